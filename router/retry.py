"""Whether one more try is made: what is safe to repeat, how long to wait, and the budget that keeps it rare."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, Final

from router.outcomes import MAYBE_STARTED, NOT_STARTED, AttemptResult
from router.stats import SlidingCounts

if TYPE_CHECKING:
    from router.endpoint import Endpoint
    from router.outcomes import Outcome
    from router.policy import RetryPolicy
    from router.protocols import Rng


class RetryDenied(StrEnum):
    """Why no further try is made."""

    ANSWERED = "answered"  # a byte of the answer went downstream
    POINTLESS = "pointless"  # the result is an answer, or trying again would not change it
    NOT_IDEMPOTENT = "not_idempotent"  # it may have been started, and the route does not allow it twice
    NOT_REPLAYABLE = "not_replayable"  # the body is gone
    ATTEMPTS = "attempts"  # tried often enough
    DEADLINE = "deadline"  # the request's time is over
    BUDGET = "budget"  # retries are too large a part of the traffic already


@dataclass(frozen=True, slots=True)
class RetryVerdict:
    """Whether to try again, after how long, or why not."""

    allowed: bool
    delay_s: float = 0.0
    denied: RetryDenied | None = None


class Failed:
    """An attempt that failed where another try was allowed: what its caller is told if nobody can take that."""

    __slots__ = ("detail", "endpoint", "outcome")

    def __init__(self, endpoint: Endpoint, outcome: Outcome, detail: str) -> None:
        self.endpoint: Final = endpoint
        self.outcome: Final = outcome
        self.detail: Final = detail


NOBODY_ELSE: Final = "; no other endpoint is left for a retry"
"""What is added to the detail then."""

_AT_ONCE: Final = RetryVerdict(True)
_DENIED: Final = {reason: RetryVerdict(False, 0.0, reason) for reason in RetryDenied}


class RetryBudget:
    """Retries may be ``budget_ratio`` of the requests of the last ``budget_window_s``, at least ``budget_min_per_s``.

    ``calls`` counts requests as ``yes`` and retries as ``no``; the chooser counts requests there by hand.
    """

    __slots__ = ("_floor", "_ratio", "_window_s", "calls")

    def __init__(self, policy: RetryPolicy, now: float) -> None:
        self._ratio = policy.budget_ratio
        self._floor = policy.budget_min_per_s * policy.budget_window_s
        self._window_s = policy.budget_window_s
        self.calls = SlidingCounts(policy.budget_window_s, now)

    def configure(self, policy: RetryPolicy, now: float) -> None:
        """Go by another policy from now on; what was counted stays. ``calls`` may be another object afterwards."""
        if policy.budget_window_s != self._window_s:
            self._window_s = policy.budget_window_s
            self.calls = self.calls.remade(policy.budget_window_s, now)
        self._ratio = policy.budget_ratio
        self._floor = policy.budget_min_per_s * policy.budget_window_s

    def has_room(self, now: float) -> bool:
        """Return whether one more retry fits."""
        requests, retries = self.calls.totals(now)
        return retries + 1 <= max(self._floor, self._ratio * requests)

    def withdraw(self, now: float) -> bool:
        """Count one retry if the budget has room; False where it has not."""
        if not self.has_room(now):
            return False
        self.calls.no += 1
        return True


def may_repeat(result: AttemptResult, *, answered: bool, idempotent: bool, replayable: bool) -> RetryDenied | None:
    """Say why a request must not be sent again after ``result``, None where it may.

    Args:
        result: how the attempt ended.
        answered: a byte of an answer has gone downstream.
        idempotent: the route declares that doing it twice is harmless.
        replayable: all of the request that was sent can be sent again.
    """
    if answered:
        return RetryDenied.ANSWERED
    if result in MAYBE_STARTED:
        if not idempotent:
            return RetryDenied.NOT_IDEMPOTENT
    elif result not in NOT_STARTED:
        return RetryDenied.POINTLESS
    return None if replayable else RetryDenied.NOT_REPLAYABLE


def judge_retry(
    policy: RetryPolicy,
    budget: RetryBudget,
    result: AttemptResult,
    *,
    answered: bool,
    idempotent: bool,
    replayable: bool,
    tries: int,
    now: float,
    rng: Rng,
    left_s: float = inf,
) -> RetryVerdict:
    """Decide on one more try after ``tries`` of them, and withdraw it from the budget where it is allowed.

    The first retry waits for nothing: it goes to another endpoint, which the failure says nothing about, and the budget
    holds back storms. The wait of a later one is drawn evenly between the policy's bounds, and is at most half of
    ``left_s``, the time that is left for the request.
    """
    denied = may_repeat(result, answered=answered, idempotent=idempotent, replayable=replayable)
    if denied is None and tries > policy.attempts:
        denied = RetryDenied.ATTEMPTS
    if denied is None and left_s <= 0:
        denied = RetryDenied.DEADLINE
    if denied is None and not budget.withdraw(now):
        denied = RetryDenied.BUDGET
    if denied is not None:
        return _DENIED[denied]
    if tries == 1:
        return _AT_ONCE
    spread_ms = policy.backoff_max_ms - policy.backoff_min_ms
    return RetryVerdict(True, min((policy.backoff_min_ms + spread_ms * rng()) / 1000, left_s / 2))
