"""How much device memory an endpoint has left."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.policy import ScoringPolicy
    from router.protocols import Candidate, Scorer


class FreeMemory:
    """Free device memory as a ratio of all of it; the free share of its KV cache where a worker names no bytes."""

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
            scores.append(record.free_memory_ratio if free is None or not total else min(1.0, free / total))
        return scores


def make_scorer(policy: ScoringPolicy) -> Scorer:
    """Return the scorer."""
    return FreeMemory()
