"""When an endpoint is taken out because its process is not there, and how it comes back: by probes."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from router.breaker import Guard, GuardEvent, GuardState
from router.outcomes import ATTEMPT_BLAME, BROKEN_OFF, QUARANTINES, AttemptResult, Blame

if TYPE_CHECKING:
    from router.policy import QuarantinePolicy
    from router.protocols import Rng

HELD_S: Final = 1.0
"""For so long a probe that waits for its caller keeps others from probing, and any where nobody else is left."""
MOST_PROBES: Final = 8
"""Probes at a time that the endpoint has whole and has yet to answer."""
PROBE_PASSES: Final[frozenset[AttemptResult]] = frozenset(
    {
        AttemptResult.SUCCESS,
        AttemptResult.CLIENT_ERROR,
        AttemptResult.BUSY,
        AttemptResult.CALL_FAILED,
        AttemptResult.TURNED_AWAY,
        AttemptResult.NOT_READY,
    }
)
"""Results that end a quarantine: the process is there and answers, though it may push back."""


class Quarantine(Guard):
    """Opens at once, backs off from ``base_s`` doubling to ``max_s``, then lets probes through.

    The next one may begin as soon as one said something. Those that the endpoint has whole and says nothing to are
    likely held while it loads, and a request lost to that is one too many: where others are left, each that is added
    keeps further ones from probing for a back-off of its own, two base steps and doubling. Where nobody else is left
    one follows each ``HELD_S``. There are ``MOST_PROBES`` at most. One that waits for its caller is none of them: it
    keeps others from probing for ``HELD_S``, and nobody where nobody else is left, as a caller that takes its time
    must not turn all others away.

    Jitter only shortens, so the documented times are upper bounds. ``soon`` is when a probe is due in a route that has
    nobody else left: one base step after the last failure, whatever the back-off has grown to. ``asked_at`` is when
    the endpoint was given the last probe, ``held_until`` until when that keeps others from probing where some are left.
    """

    __slots__ = ("asked_at", "held_until", "level", "policy", "soon")

    def __init__(self, policy: QuarantinePolicy) -> None:
        super().__init__()
        self.policy = policy
        self.level = 0  # back-off steps taken, from 1
        self.soon = -inf
        self.asked_at = -inf
        self.held_until = -inf

    @property
    def active(self) -> bool:
        """True from the ejection to the probe that passed."""
        return self.state is not GuardState.CLOSED

    def probe_at(self, *, alone: bool) -> float:
        """Return when a probe may begin, infinity where none may. ``alone``: no other candidate is left."""
        if self.state is GuardState.OPEN:
            return min(self.soon, self.until) if alone else self.until
        if self.state is GuardState.CLOSED or self.trials >= MOST_PROBES:
            return inf
        if alone:
            return self.asked_at + HELD_S if self.trials else -inf
        return self.held_until

    def take(self, now: float) -> None:
        """Count the probe that begins."""
        if self.state is GuardState.OPEN:
            self._wait_over(now)
        self.trials += 1
        self._hold(now)

    def lend(self, started: float) -> None:
        """A probe waits for its caller from here on, and keeps others from probing for no longer than ``HELD_S``."""
        super().lend(started)
        self.held_until = min(self.held_until, self.asked_at + HELD_S)

    def wait_again(self, started: float, now: float) -> None:
        """A probe whose place was lent waits for the endpoint again, and keeps others from probing."""
        if self._is_trial(started):
            self.reclaim(started)
            self._hold(now)

    def _hold(self, now: float) -> None:
        """Have the probes that wait for the endpoint keep others from probing."""
        policy = self.policy
        self.asked_at = now
        self.held_until = max(self.held_until, now + min(policy.base_s * 2**self.trials, policy.max_s))

    def record(
        self,
        result: AttemptResult,
        now: float,
        rng: Rng,
        *,
        started: float,
        probe: bool,
        lent: bool = False,
        alone: bool = False,
    ) -> bool:
        """Judge how an attempt ended, or how its answer began. True where it opened or closed.

        ``probe``: it was begun by :meth:`take`, and its place is ``lent`` or not.
        ``alone``: nobody else could take its place, so an endpoint that accepts connections is kept (BROKEN_OFF).
        Attempts that began before the last ejection say nothing new: one crash resets many connections.
        """
        if self.state is GuardState.CLOSED:
            if result in QUARANTINES and started > self.since and not (alone and result in BROKEN_OFF):
                self._open(now, rng)
                return True
            return False
        if not probe or not self._is_trial(started):
            return False
        if result in PROBE_PASSES:
            self._close(GuardEvent.PASSED, now)
            return True
        if ATTEMPT_BLAME[result] is Blame.FAILURE:
            self._open(now, rng)
            return True
        self._give_back(lent=lent)  # neither: the next request may probe
        if not self.trials:
            self.held_until = -inf
        return False

    def peer_opened(self, until: float, level: int, at: float) -> None:
        """Open because a sibling process did at ``at``; a later end of our own stands."""
        if at < self.closed_at or (self.state is GuardState.OPEN and self.until >= until):
            return
        self._move(GuardEvent.PEER_OPENED)
        self.since = max(self.since, at)
        self.until = until
        self.level = max(1, level)
        self.soon = min(until, at + self.policy.base_s)

    def peer_closed(self, at: float) -> None:
        """Close because a sibling process had seen it answer at ``at``, or answers to warm-up requests did say so."""
        if at >= self.since:
            self._close(GuardEvent.PEER_CLOSED, at)

    def _open(self, now: float, rng: Rng) -> None:
        self._move(GuardEvent.TRIPPED)
        self.level += 1
        shorten = 1 - self.policy.jitter_ratio * rng()
        step = self.policy.base_s * 2 ** min(self.level - 1, 32)
        self.since = now
        self.until = now + min(step, self.policy.max_s) * shorten
        self.soon = now + self.policy.base_s * shorten

    def _close(self, event: GuardEvent, now: float) -> None:
        self._move(event)
        self.closed_at = now
        self.level = 0
