"""How long a start should take: a linear model over what is known before it, and the band in which it is no news.

Every feature is brought to [0, 1] over its range first, so coefficients are seconds and compare with each other::

    seconds = intercept + Σ coefficient · (value - low) / (high - low)

:data:`PRIOR` is what is published; ``warmroute bench coldstart --fit`` measures a machine's own (docs/coldstart.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

MOST_S: Final = 86_400.0
"""No start is predicted to take longer, whatever coefficients somebody has written."""


@dataclass(frozen=True, slots=True)
class Term:
    """One feature's part: ``coefficient`` seconds from the ``low`` end of its range to the ``high`` one."""

    low: float
    high: float
    coefficient: float

    def __post_init__(self) -> None:
        """Refuse what cannot be computed with.

        Raises:
            ValueError: a number that is none, or a range without width.
        """
        if not all(map(math.isfinite, (self.low, self.high, self.coefficient))) or self.high <= self.low:
            raise ValueError(
                f"term [{self.low}, {self.high}] × {self.coefficient}: expected finite numbers, low < high"
            )

    def part_s(self, value: float, *, beyond: bool = False) -> float:
        """Return the seconds that ``value`` adds, at least as ``low``, at most as ``high`` (unless ``beyond``)."""
        share = max(0.0, (value - self.low) / (self.high - self.low))
        return self.coefficient * (share if beyond else min(1.0, share))


@dataclass(frozen=True, slots=True)
class StartFeatures:
    """What is known of a start before it begins."""

    parameters_billions: float
    """Weights, 10⁹ of them."""
    saved_percent: float
    """Compression ratio: how much smaller the files are than those weights at four bytes each, 0 to 100."""
    free_memory_gb: float
    """Free memory of the device that the weights go to, 10⁹ bytes."""
    accelerator: bool = False
    """Whether that device is one, rather than the CPU."""
    cached_ratio: float = 0.0
    """Share of the files' bytes that are in the page cache, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A model of start times. ``band_s``: how far from the prediction a start may end and be no news; None: unknown."""

    intercept_s: float
    parameters: Term
    saved: Term
    memory: Term
    accelerator_s: float = 0.0
    """Added where the device is an accelerator."""
    cached_s: float = 0.0
    """Added in proportion to the share of the files that is in the page cache; negative where that saves time."""
    band_s: tuple[float, float] | None = None
    """Seconds below (negative) and above the prediction."""
    runs: int = 0
    """How many runs it was fitted to."""

    def __post_init__(self) -> None:
        """Refuse what cannot be computed with.

        Raises:
            ValueError: a number that is none, or a band that is upside down.
        """
        if not all(map(math.isfinite, (self.intercept_s, self.accelerator_s, self.cached_s, *(self.band_s or ())))):
            raise ValueError("baseline: expected finite numbers")
        if self.band_s is not None and not self.band_s[0] <= 0 <= self.band_s[1]:
            raise ValueError(
                f"baseline: band_s {list(self.band_s)}: expected one number of 0 or less and one of 0 or more"
            )

    def predict_s(self, start: StartFeatures) -> float:
        """Return how long a start should take, from 0 to a day.

        Outside its range a feature counts as the end of it, except that more parameters than the range goes on costing.
        """
        predicted_s = (
            self.intercept_s
            + self.parameters.part_s(start.parameters_billions, beyond=True)
            + self.saved.part_s(start.saved_percent)
            + self.memory.part_s(start.free_memory_gb)
            + (self.accelerator_s if start.accelerator else 0.0)
            + self.cached_s * min(1.0, max(0.0, start.cached_ratio))
        )
        return min(MOST_S, max(0.0, predicted_s))

    def is_outside(self, predicted_s: float, took_s: float) -> bool:
        """Return whether a start that took ``took_s`` lies outside the band; never where there is no band."""
        if self.band_s is None:
            return False
        return not self.band_s[0] <= took_s - predicted_s <= self.band_s[1]


PRIOR: Final = Baseline(
    intercept_s=0.69,
    parameters=Term(0.1, 5.0, 0.62),
    saved=Term(30.0, 95.0, -0.41),
    memory=Term(2.0, 24.0, -0.28),
)
"""Published ranges and coefficients; the intercept is the one that makes the best case 0 s."""


def remaining_s(predicted_s: float, elapsed_s: float) -> float | None:
    """Return how much longer a start should take; None once it is overdue, when the prediction says nothing more."""
    return predicted_s - elapsed_s if elapsed_s < predicted_s else None
