"""When a second try is sent while the first is waited for: after how long, and whether it may be.

A route that hedges measures how long its requests wait for their response heads. Requests that were hedged count with
the wait of their first try, up to the head that came: had they been left out, the slow ones would be missing and the
quantile would creep down.
"""

from __future__ import annotations

from enum import StrEnum
from math import ceil, inf, log
from typing import TYPE_CHECKING

from router.stats import LEAST_MS, MOST_MS, LogBuckets, SketchWindow, rebucketed

if TYPE_CHECKING:
    from router.policy import HedgingPolicy, LatencyPolicy


class HedgeDenied(StrEnum):
    """Why no second try is sent beside the first."""

    ANSWERED = "answered"  # the answer began
    NOT_IDEMPOTENT = "not_idempotent"  # the route does not allow that it is executed twice
    NOT_REPLAYABLE = "not_replayable"  # the request is not whole, or not kept
    ATTEMPTS = "attempts"  # tried often enough
    DEADLINE = "deadline"  # the request's time is over
    BUDGET = "budget"  # retries and hedges are too large a part of the traffic already
    NOBODY = "nobody"  # no other endpoint can take it


def may_hedge(
    *, answered: bool, idempotent: bool, replayable: bool, tries: int, attempts: int, left_s: float
) -> HedgeDenied | None:
    """Say why a request must not be sent to a second endpoint beside the first, None where it may.

    Args:
        answered: a byte of an answer has gone downstream.
        idempotent: the route declares that doing it twice is harmless.
        replayable: the request is whole, and all of it can be sent again.
        tries: tries begun, the one that runs included.
        attempts: how many beyond the first the retry policy allows; a hedge is one of them.
        left_s: the time that is left for the request.
    """
    if answered:
        return HedgeDenied.ANSWERED
    if not idempotent:
        return HedgeDenied.NOT_IDEMPOTENT
    if not replayable:
        return HedgeDenied.NOT_REPLAYABLE
    if tries > attempts:
        return HedgeDenied.ATTEMPTS
    return HedgeDenied.DEADLINE if left_s <= 0 else None


class HeadTimes:
    """How long a route's requests waited for their response heads, and ``delay_s``, after which one is hedged.

    ``delay_s`` is infinite until enough is measured. It is brought up to date with the route's table, not by requests.
    """

    __slots__ = ("_buckets", "_fresh", "_latency", "_policy", "_window", "delay_s")

    def __init__(self, policy: HedgingPolicy, latency: LatencyPolicy, buckets: LogBuckets, now: float) -> None:
        self._policy = policy
        self._latency = latency
        self._buckets = buckets
        self._window = SketchWindow(buckets, latency.window_s, latency.slots, now)
        self._fresh: dict[int, int] = {}
        self.delay_s = inf

    def configure(self, policy: HedgingPolicy, latency: LatencyPolicy, buckets: LogBuckets, now: float) -> None:
        """Go by other policies from now on; what was measured stays."""
        self._policy = policy
        if buckets is not self._buckets or latency != self._latency:
            self._window = self._window.remade(buckets, latency.window_s, latency.slots, now)
            self._fresh = rebucketed(self._fresh, self._buckets, buckets)
        self._latency = latency
        self._buckets = buckets
        self.settle(now)

    def sample(self, seconds: float) -> None:
        """Take one request's wait for its response head."""
        index = ceil(log(min(max(seconds * 1000.0, LEAST_MS), MOST_MS)) * self._buckets.scale)
        self._fresh[index] = self._fresh.get(index, 0) + 1

    def settle(self, now: float) -> None:
        """Bring ``delay_s`` up to ``now``."""
        self._window.add(self._fresh.items(), now)
        self._fresh = {}
        if self._window.total < self._policy.minimum_samples:
            self.delay_s = inf
            return
        values = self._window.quantiles((self._policy.quantile,))
        self.delay_s = inf if values is None else max(values[0], self._policy.min_delay_ms) / 1000
