"""When an endpoint is taken out and how it comes back: one table of transitions, two guards that follow it.

The :class:`Breaker` opens where a ratio of recent calls failed and tries a counted number of calls before it closes.
The :class:`Quarantine` opens at the first sign that the process is not there (refused, reset, timed out), backs off
from ``base_s`` to ``max_s`` and lets one probe through at a time. Reading a guard never changes it; time moves it only
through :meth:`advance`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from router.outcomes import ATTEMPT_BLAME, BROKEN_OFF, QUARANTINES, AttemptResult, Blame
from router.stats import SlidingCounts

if TYPE_CHECKING:
    from router.policy import BreakerPolicy, QuarantinePolicy
    from router.protocols import Rng


class GuardState(StrEnum):
    """``closed`` lets everything through, ``open`` nothing, ``half_open`` a counted number of trials."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class GuardEvent(StrEnum):
    """What may move a guard."""

    TRIPPED = "tripped"  # own calls failed
    WAITED = "waited"  # the time in open is over
    PASSED = "passed"  # the trials went well
    PEER_OPENED = "peer_opened"  # a sibling process ejected the endpoint
    PEER_CLOSED = "peer_closed"  # a sibling process saw it answer again


TRANSITIONS: Final[dict[tuple[GuardState, GuardEvent], GuardState]] = {
    (GuardState.CLOSED, GuardEvent.TRIPPED): GuardState.OPEN,
    (GuardState.CLOSED, GuardEvent.PEER_OPENED): GuardState.OPEN,
    (GuardState.CLOSED, GuardEvent.PEER_CLOSED): GuardState.CLOSED,
    (GuardState.OPEN, GuardEvent.WAITED): GuardState.HALF_OPEN,
    (GuardState.OPEN, GuardEvent.PEER_OPENED): GuardState.OPEN,
    (GuardState.OPEN, GuardEvent.PEER_CLOSED): GuardState.CLOSED,
    (GuardState.HALF_OPEN, GuardEvent.PASSED): GuardState.CLOSED,
    (GuardState.HALF_OPEN, GuardEvent.TRIPPED): GuardState.OPEN,
    (GuardState.HALF_OPEN, GuardEvent.PEER_OPENED): GuardState.OPEN,
    (GuardState.HALF_OPEN, GuardEvent.PEER_CLOSED): GuardState.CLOSED,
}
"""Every legal step of both guards; a pair that is not here cannot happen."""

PROBE_PASSES: Final[frozenset[AttemptResult]] = frozenset(
    {
        AttemptResult.SUCCESS,
        AttemptResult.CLIENT_ERROR,
        AttemptResult.BUSY,
        AttemptResult.CALL_FAILED,
        AttemptResult.TURNED_AWAY,
    }
)
"""Results that end a quarantine: the process is there and answers, though it may push back."""


class Guard:
    """What both guards share: state, times and the trials in flight.

    ``since`` is when it last opened, ``until`` when it may be tried again, ``trials`` how many trials are in flight.
    What a sibling process says counts only where it is newer than the last move here.
    """

    __slots__ = ("closed_at", "half_open_since", "since", "state", "trials", "until")

    def __init__(self) -> None:
        self.state = GuardState.CLOSED
        self.since = float("-inf")
        self.until = float("-inf")
        self.half_open_since = float("-inf")
        self.closed_at = float("-inf")
        self.trials = 0

    def _move(self, event: GuardEvent) -> None:
        self.state = TRANSITIONS[self.state, event]
        self.trials = 0

    def _wait_over(self, now: float) -> None:
        self._move(GuardEvent.WAITED)
        self.half_open_since = now

    def _is_trial(self, started: float) -> bool:
        """True for a trial of this half-open time, not one that an earlier half-open time left behind."""
        return self.state is GuardState.HALF_OPEN and started >= self.half_open_since


class Breaker(Guard):
    """Opens when ``failure_ratio`` of at least ``minimum_calls`` within the window failed.

    In ``half_open`` at most ``half_open_calls`` trials are let through; it closes or opens again as soon as they have
    decided the ratio. A neutral result gives its place back.
    """

    __slots__ = ("calls", "failed", "passed", "policy")

    def __init__(self, policy: BreakerPolicy, now: float) -> None:
        super().__init__()
        self.policy = policy
        self.calls = SlidingCounts(policy.window_s, now)  # yes: succeeded, no: failed
        self.passed = 0
        self.failed = 0

    def configure(self, policy: BreakerPolicy, now: float) -> None:
        """Go by another policy from now on. State and counts stay; half-open trials are counted from none again."""
        if policy == self.policy:
            return
        if policy.window_s != self.policy.window_s:
            self.calls = self.calls.remade(policy.window_s, now)
        self.policy = policy
        self.passed = self.failed = 0  # so that a smaller number of trials never leaves it without a place

    @property
    def blocks(self) -> bool:
        """True where no call may be made now: open, or half open with every trial taken."""
        if self.state is GuardState.CLOSED:
            return False
        if self.state is GuardState.OPEN:
            return True
        return self.trials + self.passed + self.failed >= self.policy.half_open_calls

    def advance(self, now: float) -> bool:
        """Go half open where the time in open is over; True where that happened."""
        if self.state is not GuardState.OPEN or now < self.until:
            return False
        self._wait_over(now)
        self.passed = self.failed = 0
        return True

    def take(self) -> bool:
        """Count a trial that begins; False where the breaker is closed and the call is none."""
        if self.state is not GuardState.HALF_OPEN:
            return False
        self.trials += 1
        return True

    def record(self, blame: Blame, now: float, *, started: float, trial: bool) -> bool:
        """Count how a call ended. ``trial``: it was begun by :meth:`take`. True where the state changed."""
        if self.state is GuardState.CLOSED:
            if blame is not Blame.NEUTRAL:
                return self.count(int(blame is Blame.SUCCESS), int(blame is Blame.FAILURE), now)
            return False
        if not trial or not self._is_trial(started):
            return False  # it began before the breaker opened: already judged
        self.trials -= 1
        self.passed += blame is Blame.SUCCESS
        self.failed += blame is Blame.FAILURE
        fatal = self.policy.failure_ratio * self.policy.half_open_calls
        if self.failed >= fatal:
            self._open(now)
            return True
        if self.policy.half_open_calls - self.passed < fatal:  # the rest cannot reach the ratio any more
            self._close(GuardEvent.PASSED, now)
            return True
        return False

    def count(self, successes: int, failures: int, now: float) -> bool:
        """Count calls, own or a sibling process's, while closed; True where that opened it."""
        if self.state is not GuardState.CLOSED:
            return False
        self.calls.add(successes, failures, now)
        if not failures:
            return False
        good, bad = self.calls.totals(now)
        if good + bad < self.policy.minimum_calls or bad < self.policy.failure_ratio * (good + bad):
            return False
        self._open(now)
        return True

    def peer_opened(self, until: float, at: float) -> None:
        """Open because a sibling process did at ``at``; a later end of our own stands."""
        if at < self.closed_at:
            return
        self._move(GuardEvent.PEER_OPENED)
        self.since = max(self.since, at)
        self.until = max(self.until, until)

    def peer_closed(self, at: float) -> None:
        """Close because a sibling process's trials had gone well at ``at``."""
        if at >= self.since:
            self._close(GuardEvent.PEER_CLOSED, at)

    def _open(self, now: float) -> None:
        self._move(GuardEvent.TRIPPED)
        self.since = now
        self.until = now + self.policy.open_s

    def _close(self, event: GuardEvent, now: float) -> None:
        self._move(event)
        self.closed_at = now
        self.calls.clear(now)


class Quarantine(Guard):
    """Opens at once, backs off from ``base_s`` doubling to ``max_s``, lets one probe through at a time.

    Jitter only shortens, so the documented times are upper bounds. ``soon`` is when a probe is due in a route that has
    nobody else left: one base step after the last failure, whatever the back-off has grown to.
    """

    __slots__ = ("level", "policy", "soon")

    def __init__(self, policy: QuarantinePolicy) -> None:
        super().__init__()
        self.policy = policy
        self.level = 0  # back-off steps taken, from 1
        self.soon = float("-inf")

    @property
    def active(self) -> bool:
        """True from the ejection to the probe that passed."""
        return self.state is not GuardState.CLOSED

    def probe_at(self, *, alone: bool) -> float:
        """Return when a probe may begin, infinity where none may. ``alone``: no other candidate is left."""
        if self.state is GuardState.OPEN:
            return min(self.soon, self.until) if alone else self.until
        return float("-inf") if self.state is GuardState.HALF_OPEN and not self.trials else float("inf")

    def take(self, now: float) -> None:
        """Count the probe that begins."""
        if self.state is GuardState.OPEN:
            self._wait_over(now)
        self.trials = 1

    def record(
        self, result: AttemptResult, now: float, rng: Rng, *, started: float, probe: bool, alone: bool = False
    ) -> bool:
        """Judge how an attempt ended. ``probe``: it was begun by :meth:`take`. True where it opened or closed.

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
        self.trials = 0  # neither: the next request may probe
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
        """Close because a sibling process had seen it answer at ``at``."""
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
