"""When an endpoint is taken out and how it comes back: one table of transitions, and the guards that follow it.

The :class:`Breaker` opens where a ratio of recent calls failed, found nobody there or was much slower than usual, and
tries a counted number of calls before it closes. ``router.quarantine`` has the guard against a process that is not
there. Reading a guard never changes it; time moves it only through :meth:`advance`.
"""

from __future__ import annotations

from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, Final

from router.model import BreakerRule, Evidence
from router.outcomes import Blame
from router.outlier import ejection_s
from router.stats import SlidingCounts

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.policy import BreakerPolicy, OutlierPolicy


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
    ELAPSED = "elapsed"  # an outlier's time is over
    NEEDED = "needed"  # nobody else is left, and it answers, if slowly or not always
    PEER_OPENED = "peer_opened"  # a sibling process ejected the endpoint
    PEER_CLOSED = "peer_closed"  # a sibling process saw it answer again


TRANSITIONS: Final[dict[tuple[GuardState, GuardEvent], GuardState]] = {
    (GuardState.CLOSED, GuardEvent.TRIPPED): GuardState.OPEN,
    (GuardState.CLOSED, GuardEvent.PEER_OPENED): GuardState.OPEN,
    (GuardState.CLOSED, GuardEvent.PEER_CLOSED): GuardState.CLOSED,
    (GuardState.OPEN, GuardEvent.WAITED): GuardState.HALF_OPEN,
    (GuardState.OPEN, GuardEvent.ELAPSED): GuardState.CLOSED,
    (GuardState.OPEN, GuardEvent.NEEDED): GuardState.CLOSED,
    (GuardState.OPEN, GuardEvent.PEER_OPENED): GuardState.OPEN,
    (GuardState.OPEN, GuardEvent.PEER_CLOSED): GuardState.CLOSED,
    (GuardState.HALF_OPEN, GuardEvent.PASSED): GuardState.CLOSED,
    (GuardState.HALF_OPEN, GuardEvent.TRIPPED): GuardState.OPEN,
    (GuardState.HALF_OPEN, GuardEvent.NEEDED): GuardState.CLOSED,
    (GuardState.HALF_OPEN, GuardEvent.PEER_OPENED): GuardState.OPEN,
    (GuardState.HALF_OPEN, GuardEvent.PEER_CLOSED): GuardState.CLOSED,
}
"""Every legal step of the guards; a pair that is not here cannot happen."""


class Guard:
    """What all guards share: state, times and the trials in flight.

    ``since`` is when it last opened, ``until`` when it may be tried again. ``trials`` is how many trials are in flight
    that hold a place. ``lent`` counts those beside them that only wait for their callers, to send the rest of a request
    or to read the rest of an answer: how long that takes says nothing of the endpoint, so their places are others'.
    What a sibling process says counts only where it is newer than the last move here.
    """

    __slots__ = ("closed_at", "half_open_since", "lent", "since", "state", "trials", "until")

    def __init__(self) -> None:
        self.state = GuardState.CLOSED
        self.since = -inf
        self.until = -inf
        self.half_open_since = -inf
        self.closed_at = -inf
        self.trials = 0
        self.lent = 0

    @property
    def under_way(self) -> int:
        """All trials in flight."""
        return self.trials + self.lent

    def lend(self, started: float) -> None:
        """A trial waits for its caller from here on: others may have its place."""
        if self._is_trial(started):
            self.trials -= 1
            self.lent += 1

    def reclaim(self, started: float) -> None:
        """A trial whose place was lent waits for the endpoint again: it holds one, be there one or not."""
        if self._is_trial(started):
            self.lent -= 1
            self.trials += 1

    def _give_back(self, *, lent: bool) -> None:
        if lent:
            self.lent -= 1
        else:
            self.trials -= 1

    def _move(self, event: GuardEvent) -> None:
        self.state = TRANSITIONS[self.state, event]
        self.trials = self.lent = 0

    def _wait_over(self, now: float) -> None:
        self._move(GuardEvent.WAITED)
        self.half_open_since = now

    def _is_trial(self, started: float) -> bool:
        """True for a trial of this half-open time, not one that an earlier half-open time left behind."""
        return self.state is GuardState.HALF_OPEN and started >= self.half_open_since


def opens(calls: int, failed: int, unanswered: int, slow: int, policy: BreakerPolicy) -> BreakerRule | None:
    """Say which rule so many calls meet, the gravest first; None where none does. How many they are is not judged."""
    if calls == 0:
        return None
    if unanswered >= policy.unavailable_ratio * calls:
        return BreakerRule.UNAVAILABLE
    if failed >= policy.failure_ratio * calls:
        return BreakerRule.GENERAL
    if policy.surge and slow >= policy.surge_ratio * calls:
        return BreakerRule.SURGE
    return None


def open_s(rule: BreakerRule, policy: BreakerPolicy) -> float:
    """Return how long a breaker stays open that a rule opened."""
    if rule is BreakerRule.UNAVAILABLE:
        return policy.unavailable_open_s
    return policy.surge_open_s if rule is BreakerRule.SURGE else policy.open_s


def _always() -> bool:
    return True


class Breaker(Guard):
    """Opens where enough calls within the window meet a rule of :func:`opens`, for as long as that rule says.

    In ``half_open`` at most ``half_open_calls`` trials are let through, beside those whose places are lent; it closes
    or opens again, by whatever rule they meet, as soon as they have decided that. A neutral result gives its place
    back, and is no call.

    A replica that is slow still answers: whether it can be ``spared`` is asked before a surge opens its breaker. Where
    it cannot, trials that were slow close it.

    ``rule`` and ``evidence`` are those of the last time that it opened. ``elsewhere`` is for show: how many trials
    sibling processes have under way, and how theirs went.
    """

    __slots__ = (
        "calls", "elsewhere", "evidence", "failed", "hinted_until", "passed", "policy", "rule", "signs", "slow",
        "unanswered",
    )  # fmt: skip

    def __init__(self, policy: BreakerPolicy, now: float) -> None:
        super().__init__()
        self.policy = policy
        self.calls = SlidingCounts(policy.window_s, now)  # yes: succeeded, no: failed
        self.signs = SlidingCounts(policy.window_s, now)  # yes: slow, no: unanswered
        self.hinted_until = -inf
        self.rule: BreakerRule | None = None
        self.evidence: Evidence | None = None
        self.elsewhere: tuple[int, Evidence] | None = None
        self._forget_trials()

    def _forget_trials(self) -> None:
        self.passed = self.failed = self.unanswered = self.slow = 0

    def configure(self, policy: BreakerPolicy, now: float) -> None:
        """Go by another policy from now on. State and counts stay; half-open trials are counted from none again."""
        if policy == self.policy:
            return
        if policy.window_s != self.policy.window_s:
            self.calls = self.calls.remade(policy.window_s, now)
            self.signs = self.signs.remade(policy.window_s, now)
        self.policy = policy
        self._forget_trials()  # so that a smaller number of trials never leaves it without a place

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
        self._forget_trials()
        return True

    def take(self) -> bool:
        """Count a trial that begins; False where the breaker is closed and the call is none."""
        if self.state is not GuardState.HALF_OPEN:
            return False
        self.trials += 1
        return True

    def record(
        self,
        blame: Blame,
        now: float,
        *,
        started: float,
        trial: bool,
        lent: bool = False,
        passed: bool = False,
        unanswered: bool = False,
        slow: bool = False,
        spared: Callable[[], bool] = _always,
    ) -> bool:
        """Count how a call ended. ``trial``: it was begun by :meth:`take`, and its place is ``lent`` or not.

        ``passed``: it was a trial that has counted as one that went well since its answer began; where it broke after
        all, it counts as one that failed. True where the state changed.
        """
        good, bad = int(blame is Blame.SUCCESS), int(blame is Blame.FAILURE)
        if self.state is GuardState.CLOSED:
            if blame is not Blame.NEUTRAL:
                return self.count(good, bad, now, int(unanswered), int(slow), spared)
            return False
        if not (trial or (passed and bad)) or not self._is_trial(started):
            return False  # it began before the breaker opened, or its answer said enough: already judged
        if trial:
            self._give_back(lent=lent)
        else:
            self.passed = max(0, self.passed - 1)
            slow = False  # of that it has been judged
        if blame is Blame.NEUTRAL:
            return False
        self.passed += good
        self.failed += bad
        self.unanswered += unanswered
        self.slow += slow
        return self._judge_trials(now, spared)

    def _judge_trials(self, now: float, spared: Callable[[], bool]) -> bool:
        """Open or close as soon as the trials that are left can change nothing of it; True where that is so."""
        policy, slow = self.policy, self.slow
        done = self.passed + self.failed
        left = max(0, policy.half_open_calls - done)
        rule = opens(policy.half_open_calls, self.failed, self.unanswered, slow, policy)
        may_surge = left
        if rule is BreakerRule.SURGE and not spared():
            rule = None
            slow = may_surge = 0
        if rule is not None:
            rule = opens(done, self.failed, self.unanswered, slow, policy) or rule
            self._open(rule, Evidence(done, self.failed, self.unanswered, self.slow, trials=True), now)
            return True
        if left and opens(policy.half_open_calls, self.failed + left, self.unanswered + left, slow + may_surge, policy):
            return False
        self._close(GuardEvent.PASSED, now)
        return True

    def count(
        self,
        successes: int,
        failures: int,
        now: float,
        unanswered: int = 0,
        slow: int = 0,
        spared: Callable[[], bool] = _always,
    ) -> bool:
        """Count calls, own or a sibling process's, while closed; True where that opened it."""
        if self.state is not GuardState.CLOSED:
            return False
        self.calls.add(successes, failures, now)
        if not failures and not slow:
            return False
        if slow or unanswered:
            self.signs.add(slow, unanswered, now)
        return self._judge_calls(now, spared)

    def _judge_calls(self, now: float, spared: Callable[[], bool]) -> bool:
        good, bad = self.calls.totals(now)
        if good + bad < self.enough(now):
            return False
        slow, unanswered = self.signs.totals(now)
        rule = opens(good + bad, bad, unanswered, slow, self.policy)
        if rule is None or (rule is BreakerRule.SURGE and not spared()):
            return False
        self._open(rule, Evidence(good + bad, bad, unanswered, slow), now)
        return True

    def enough(self, now: float) -> int:
        """Return how many calls may open it now: fewer while another sidecar says that its breaker opened."""
        policy = self.policy
        if now < self.hinted_until:
            return min(policy.minimum_calls, policy.hinted_minimum_calls)
        return policy.minimum_calls

    def hinted(self, at: float, now: float, spared: Callable[[], bool] = _always) -> bool:
        """Take another sidecar's word that its breaker opened; True where own calls so far say so too: it opens then.

        Without calls of its own it stays closed, whatever others say.
        """
        self.hinted_until = max(self.hinted_until, at + self.policy.hint_s)
        return self.state is GuardState.CLOSED and self._judge_calls(now, spared)

    def look(self, now: float) -> Evidence:
        """Return what it goes by now: the calls in the window, the trials; or what it opened on. Changes nothing."""
        if self.state is GuardState.HALF_OPEN:
            return self.tried
        if self.state is GuardState.OPEN and self.evidence is not None:
            return self.evidence
        good, bad = self.calls.peek(now)
        slow, unanswered = self.signs.peek(now)
        return Evidence(good + bad, bad, unanswered, slow)

    @property
    def tried(self) -> Evidence:
        """How the trials went that ended since it went half open."""
        return Evidence(self.passed + self.failed, self.failed, self.unanswered, self.slow, trials=True)

    def peer_opened(
        self, until: float, at: float, rule: BreakerRule | None = None, evidence: Evidence | None = None
    ) -> None:
        """Open because a sibling process did at ``at``; a later end of our own stands."""
        if at < self.closed_at:
            return
        if self.state is GuardState.CLOSED or until > self.until:
            self.rule, self.evidence = rule, evidence
        self._move(GuardEvent.PEER_OPENED)
        self.since = max(self.since, at)
        self.until = max(self.until, until)

    def peer_closed(self, at: float) -> None:
        """Close because a sibling process's trials had gone well at ``at``."""
        if at >= self.since:
            self._close(GuardEvent.PEER_CLOSED, at)

    @property
    def merely_slow(self) -> bool:
        """True where it is not closed, and opened for a surge."""
        return self.state is not GuardState.CLOSED and self.rule is BreakerRule.SURGE

    def needed(self, now: float) -> bool:
        """Close where it opened for a surge, because nobody else is left: slow answers are better than none."""
        if not self.merely_slow:
            return False
        self._close(GuardEvent.NEEDED, now)
        return True

    def _open(self, rule: BreakerRule, evidence: Evidence, now: float) -> None:
        self._move(GuardEvent.TRIPPED)
        self.rule = rule
        self.evidence = evidence
        self.since = now
        self.until = now + open_s(rule, self.policy)

    def _close(self, event: GuardEvent, now: float) -> None:
        self._move(event)
        self.closed_at = now
        self.calls.clear(now)
        self.signs.clear(now)


class Ejection(Guard):
    """Opens where a replica is an outlier among the others of its version (``router/outlier.py``), and closes in time.

    Out for ``base_s``, and that much longer for each time in a row: a replica that stays in for as long as it was out
    last begins anew. ``level`` counts the times, ``evidence`` is what it was ejected for.
    """

    __slots__ = ("evidence", "level")

    def __init__(self) -> None:
        super().__init__()
        self.level = 0
        self.evidence: Evidence | None = None

    @property
    def active(self) -> bool:
        """True while it is out."""
        return self.state is GuardState.OPEN

    def eject(self, evidence: Evidence, policy: OutlierPolicy, now: float) -> None:
        """Take it out."""
        in_a_row = now - self.closed_at <= ejection_s(self.level, policy)
        self._move(GuardEvent.TRIPPED)
        self.level = self.level + 1 if in_a_row else 1
        self.evidence = evidence
        self.since = now
        self.until = now + ejection_s(self.level, policy)

    def advance(self, now: float) -> bool:
        """Let it in where its time is over; True where that happened."""
        if self.state is not GuardState.OPEN or now < self.until:
            return False
        self._move(GuardEvent.ELAPSED)
        self.closed_at = self.until
        return True

    def needed(self, now: float) -> bool:
        """Let it in because nobody else is left, or too many are out; True where it was out."""
        if self.state is not GuardState.OPEN:
            return False
        self._move(GuardEvent.NEEDED)
        self.closed_at = now
        return True

    def peer_opened(self, until: float, level: int, at: float, evidence: Evidence | None) -> None:
        """Take it out because a sibling process did at ``at``."""
        if at < self.closed_at or (self.state is GuardState.OPEN and self.until >= until):
            return
        self._move(GuardEvent.PEER_OPENED)
        self.since = max(self.since, at)
        self.until = until
        self.level = max(1, level)
        self.evidence = evidence

    def peer_closed(self, at: float) -> None:
        """Let it in because a sibling process did."""
        if self.state is GuardState.OPEN and at >= self.since:
            self._move(GuardEvent.PEER_CLOSED)
            self.closed_at = at
