"""The arithmetic of a comparison. Pure; chance is an argument.

Requests of one block of a trace share their moment: a busy second makes all of them slow, so they are not independent
and count for less than their number. What is independent are blocks, so intervals come from drawing whole blocks with
replacement, the same for both targets, as both were sent the same requests (the bootstrap of clusters: Davison and
Hinkley, Bootstrap Methods and their Application, 1997, 3.8). Percentile intervals of few blocks are too narrow; they
are widened as Hesterberg proposes (What Teachers Should Know About the Bootstrap, 2015: the expanded percentile
interval).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from math import ceil, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

_NORMAL: Final = NormalDist()


class Interval(NamedTuple):
    """Where a figure lies, with the confidence that was asked for."""

    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of its width: differences under this size do not show."""
        return (self.high - self.low) / 2


class Pooled:
    """Blocks of values, of which quantiles are asked for with each block taken several times."""

    def __init__(self, blocks: Sequence[Sequence[float]]) -> None:
        self._blocks = [sorted(block) for block in blocks]
        self._all = sorted(value for block in self._blocks for value in block)

    def __len__(self) -> int:
        return len(self._all)

    def quantile(self, q: float, weights: Sequence[int]) -> float | None:
        """Return the nearest-rank quantile where block ``i`` is there ``weights[i]`` times; None of nothing."""
        taken = [(block, weight) for block, weight in zip(self._blocks, weights, strict=True) if weight and block]
        total = sum(len(block) * weight for block, weight in taken)
        if not total:
            return None
        rank = max(1, ceil(q * total))

        def up_to(value: float) -> int:
            return sum(bisect_right(block, value) * weight for block, weight in taken)

        return self._all[bisect_left(self._all, rank, key=up_to)]


def resamples(blocks: int, count: int, rng: Random) -> list[list[int]]:
    """Return ``count`` times how often each block was drawn, as many draws as there are blocks."""
    drawn = []
    for _ in range(count):
        weights = [0] * blocks
        for index in rng.choices(range(blocks), k=blocks):
            weights[index] += 1
        drawn.append(weights)
    return drawn


def interval(
    figure: Callable[[Sequence[int]], float | None], drawn: Sequence[Sequence[int]], blocks: int, confidence: float
) -> Interval | None:
    """Return the expanded percentile interval of a figure, None where some draws have no such figure."""
    values = [figure(weights) for weights in drawn]
    known = sorted(value for value in values if value is not None)
    if not known or len(known) < len(values):
        return None
    tail = _NORMAL.cdf(-student_quantile((1 + confidence) / 2, blocks - 1) * sqrt(blocks / (blocks - 1)))
    low = int(tail * len(known))
    return Interval(known[low], known[len(known) - 1 - low])


def student_quantile(p: float, degrees: int) -> float:
    """Return the quantile of Student's t (Abramowitz and Stegun 26.7.5): to 1% from 5 degrees of freedom on."""
    z = _NORMAL.inv_cdf(p)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(z + sum(term / degrees**power for power, term in enumerate(terms, 1)))


def wilson(failures: int, requests: int, confidence: float) -> Interval:
    """Return the interval of a share (Wilson, 1927): above 0 also where nothing failed. ``requests`` is above 0."""
    z = _NORMAL.inv_cdf((1 + confidence) / 2)
    share = failures / requests
    middle = share + z * z / (2 * requests)
    reach = z * sqrt(share * (1 - share) / requests + z * z / (4 * requests**2))
    scale = 1 + z * z / requests
    return Interval(max(0.0, (middle - reach) / scale), min(1.0, (middle + reach) / scale))


def newcombe(a: tuple[int, int], b: tuple[int, int], confidence: float) -> Interval:
    """Return the interval of the share of ``b`` less that of ``a``, each (failures, requests).

    Newcombe, 1998, Interval estimation for the difference between independent proportions, method 10.
    """
    share_a, share_b = a[0] / a[1], b[0] / b[1]
    in_a, in_b = wilson(*a, confidence), wilson(*b, confidence)
    difference = share_b - share_a
    return Interval(
        difference - sqrt((share_b - in_b.low) ** 2 + (in_a.high - share_a) ** 2),
        difference + sqrt((in_b.high - share_b) ** 2 + (share_a - in_a.low) ** 2),
    )
