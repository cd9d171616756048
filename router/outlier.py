"""Which replicas of a route fail so much more than the others that they are taken out for a while.

Where a breaker judges a replica by itself, this compares: one that fails a tenth of its calls while the others fail
none is broken; where all fail a tenth it is the callers, or what stands behind all of them. The comparison is that of
Envoy's success-rate detection (mean less a number of standard deviations), with the one judged left out of both, since
in small groups a single bad replica moves the mean that it is compared with. Where the others happen to fail nearly
alike, their deviation is nothing to go by: it counts as no less than that of as many calls drawn by their mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Final

from router.outcomes import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.policy import OutlierPolicy

PANIC_OVERLOOKS: Final = frozenset({Reason.BREAKER_OPEN, Reason.OUTLIER})
"""Why a replica may be out that is picked all the same where too few are left."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What one replica's calls came to within the window.

    ``ejected``: it is out by this alone already. ``out``: by this or by its breaker.
    """

    successes: int
    failures: int
    out: bool = False
    ejected: bool = False

    @property
    def calls(self) -> int:
        """All that count."""
        return self.successes + self.failures

    @property
    def failure_ratio(self) -> float:
        """The share that failed; 0 where there were none."""
        return self.failures / self.calls if self.calls else 0.0


@dataclass(frozen=True, slots=True)
class Found:
    """One replica that is an outlier: its place, its failure ratio, and that which would still have been let pass."""

    index: int
    failure_ratio: float
    bound_ratio: float


def outliers(tallies: Sequence[Tally], policy: OutlierPolicy) -> list[Found]:
    """Return whom to eject, the worst first; no more than leave ``max_ejected_ratio`` of the group ejected.

    Judged are those with ``minimum_calls``, against at least ``minimum_others`` others with as many.
    """
    judged = [
        index for index, tally in enumerate(tallies) if not tally.out and tally.calls >= max(1, policy.minimum_calls)
    ]
    if len(judged) <= policy.minimum_others:
        return []
    found: list[Found] = []
    for index in judged:
        others = [tallies[other].failure_ratio for other in judged if other != index]
        mean = sum(others) / len(others)
        spread = sqrt(sum((ratio - mean) ** 2 for ratio in others) / len(others))
        chance = sqrt(mean * (1 - mean) / tallies[index].calls)  # so far off one of them is that fails as they do
        bound = max(policy.least_failure_ratio, mean + policy.deviations * max(spread, chance))
        ratio = tallies[index].failure_ratio
        if ratio > bound:
            found.append(Found(index, ratio, bound))
    found.sort(key=_worst_first)
    room = int(len(tallies) * policy.max_ejected_ratio) - sum(tally.out for tally in tallies)
    return found[: max(0, room)]


def returning(tallies: Sequence[Tally], policy: OutlierPolicy) -> list[int]:
    """Return who of those that are ejected comes back, the least bad first: breakers took out more than may be out."""
    excess = sum(tally.out for tally in tallies) - int(len(tallies) * policy.max_ejected_ratio)
    ejected = [(tally.failure_ratio, index) for index, tally in enumerate(tallies) if tally.ejected]
    return [index for _, index in sorted(ejected)[: max(0, excess)]]


def _worst_first(found: Found) -> tuple[float, int]:
    return -found.failure_ratio, found.index


def ejection_s(times: int, policy: OutlierPolicy) -> float:
    """Return for how long a replica is out the ``times``-th time in a row, from 1."""
    return min(policy.base_s * max(1, times), policy.max_s)


def panics(open_: int, ejected: int, policy: OutlierPolicy) -> bool:
    """Return whether so few of a route are left that those which are ejected take their share again.

    Only where somebody is left. With nobody, those are let in that are merely slow, or fail more often than others did;
    failing at once is worth more than trying those whose breakers are open.
    """
    return 0 < open_ < policy.panic_ratio * (open_ + ejected)
