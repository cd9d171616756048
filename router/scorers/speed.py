"""How fast an endpoint answers, beside the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from router.scorers import NEUTRAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.policy import ScoringPolicy
    from router.protocols import Candidate, Scorer


QUEUED_MOST: Final = 0.9
"""Queue time takes at most this much of a P95 away."""


def service_ms(candidate: Candidate) -> float | None:
    """Return the P95 less what requests wait in the endpoint's own queue on average, where that is known.

    How long its queue is does not say how fast it is; other terms, and what is in flight, count that.
    """
    p95_ms, queued_ms = candidate.p95_ms, candidate.record.queue_time_ms
    if p95_ms is None or queued_ms is None:
        return p95_ms
    return max(p95_ms - queued_ms, p95_ms * (1 - QUEUED_MOST))


class Speed:
    """Min-max over the candidates of 1 / P95 of service. Where the spread is small, it says nothing: 0.5 for all."""

    name = "speed"
    unit = "ms"
    observed = True

    def __init__(self, spread_ratio: float) -> None:
        self._spread_ratio = spread_ratio

    def raw(self, candidate: Candidate) -> float | None:
        """Return the P95 of service, None where nothing was measured."""
        return service_ms(candidate)

    def __call__(self, candidates: Sequence[Candidate]) -> list[float | None]:
        """Return the relative speed of each."""
        rates = [None if (p95 := service_ms(candidate)) is None else 1 / p95 for candidate in candidates]
        known = [rate for rate in rates if rate is not None]
        if not known:
            return list(rates)
        low, high = min(known), max(known)
        if high < self._spread_ratio * low or high == low:
            return [None if rate is None else NEUTRAL for rate in rates]
        span = high - low
        return [None if rate is None else (rate - low) / span for rate in rates]


def make_scorer(policy: ScoringPolicy) -> Scorer:
    """Return the scorer."""
    return Speed(policy.speed_spread_ratio)
