"""How many requests wait at an endpoint, by its own report."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.policy import ScoringPolicy
    from router.protocols import Candidate, Scorer


class QueueDepth:
    """1 / (1 + requests that wait): 1 where none does, half for the first one."""

    name = "queue_depth"
    unit = "requests"
    observed = False

    def raw(self, candidate: Candidate) -> float | None:
        """Return how many wait, None where it was not reported."""
        return candidate.record.queue_depth

    def __call__(self, candidates: Sequence[Candidate]) -> list[float | None]:
        """Return the score of each."""
        depths = [candidate.record.queue_depth for candidate in candidates]
        return [None if depth is None else 1 / (1 + depth) for depth in depths]


def make_scorer(policy: ScoringPolicy) -> Scorer:
    """Return the scorer."""
    return QueueDepth()
