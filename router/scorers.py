"""Each signal to [0, 1]. What is unknown is None here; the cluster then takes the candidates' median."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.policy import ScoringPolicy
    from router.protocols import Candidate, Scorer

NEUTRAL = 0.5
"""The score where a signal is unknown for every candidate, or says nothing that tells them apart."""


class Warmth:
    """The share of the model's shape classes that a run has proven, the mean over the classes reported."""

    name = "warmth"
    unit = "ratio"
    observed = False

    def raw(self, candidate: Candidate) -> float | None:
        """Return the mean warmth, None where it was not measured."""
        warmth = candidate.replica.warmth
        if not warmth:
            return None
        return sum(ratio for _, ratio in warmth) / len(warmth)

    def __call__(self, candidates: Sequence[Candidate]) -> list[float | None]:
        """Return the warmth of each."""
        return [self.raw(candidate) for candidate in candidates]


class FreeMemory:
    """Free device memory as a ratio of all of it."""

    name = "free_memory"
    unit = "bytes"
    observed = False

    def raw(self, candidate: Candidate) -> float | None:
        """Return the free bytes, None where they were not reported."""
        return candidate.record.free_memory_bytes

    def __call__(self, candidates: Sequence[Candidate]) -> list[float | None]:
        """Return the free ratio of each."""
        scores: list[float | None] = []
        for candidate in candidates:
            record = candidate.record
            free, total = record.free_memory_bytes, record.total_memory_bytes
            scores.append(None if free is None or not total else min(1.0, free / total))
        return scores


class Speed:
    """Min-max over the candidates of 1 / P95. Where the spread is small, it says nothing: 0.5 for all."""

    name = "speed"
    unit = "ms"
    observed = True

    def __init__(self, spread_ratio: float) -> None:
        self._spread_ratio = spread_ratio

    def raw(self, candidate: Candidate) -> float | None:
        """Return the P95, None where nothing was measured."""
        return candidate.p95_ms

    def __call__(self, candidates: Sequence[Candidate]) -> list[float | None]:
        """Return the relative speed of each."""
        rates = [None if (p95 := candidate.p95_ms) is None else 1 / p95 for candidate in candidates]
        known = [rate for rate in rates if rate is not None]
        if not known:
            return list(rates)
        low, high = min(known), max(known)
        if high < self._spread_ratio * low or high == low:
            return [None if rate is None else NEUTRAL for rate in rates]
        span = high - low
        return [None if rate is None else (rate - low) / span for rate in rates]


def default_scorers(policy: ScoringPolicy) -> tuple[tuple[Scorer, float], ...]:
    """Return each scorer with its coefficient."""
    return (
        (Warmth(), policy.warmth),
        (FreeMemory(), policy.free_memory),
        (Speed(policy.speed_spread_ratio), policy.speed),
    )
