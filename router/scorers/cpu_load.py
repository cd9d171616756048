"""How busy an endpoint's processors are, by its own report."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.policy import ScoringPolicy
    from router.protocols import Candidate, Scorer


class CpuLoad:
    """The part of an endpoint's processor time that it did not use."""

    name = "cpu_load"
    unit = "ratio"
    observed = False

    def raw(self, candidate: Candidate) -> float | None:
        """Return the load, None where it was not reported."""
        return candidate.record.cpu_load

    def __call__(self, candidates: Sequence[Candidate]) -> list[float | None]:
        """Return the score of each."""
        loads = [candidate.record.cpu_load for candidate in candidates]
        return [None if load is None else 1.0 - min(1.0, load) for load in loads]


def make_scorer(policy: ScoringPolicy) -> Scorer:
    """Return the scorer."""
    return CpuLoad()
