"""How much of the model's work a replica has been proven for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.policy import ScoringPolicy
    from router.protocols import Candidate, Scorer


class Warmth:
    """The share of the model's shape classes that a run has proven, and of that what idleness has left.

    The mean over the classes reported; ``policies.warmth`` says how it decays.
    """

    name = "warmth"
    unit = "ratio"
    observed = False

    def raw(self, candidate: Candidate) -> float | None:
        """Return the mean warmth, None where it was not measured."""
        warmth = candidate.replica.warmth
        if not warmth:
            return None
        return candidate.lasting * sum(ratio for _, ratio in warmth) / len(warmth)

    def __call__(self, candidates: Sequence[Candidate]) -> list[float | None]:
        """Return the warmth of each."""
        return [self.raw(candidate) for candidate in candidates]


def make_scorer(policy: ScoringPolicy) -> Scorer:
    """Return the scorer."""
    return Warmth()
