"""When requests are meant to go out, where no trace says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random


def steady(rate_per_s: float, duration_s: float) -> Iterator[float]:
    """Yield evenly spaced moments, seconds from the beginning."""
    for number in range(int(rate_per_s * duration_s)):
        yield number / rate_per_s


def poisson(rate_per_s: float, duration_s: float, rng: Random) -> Iterator[float]:
    """Yield the moments of a Poisson process: callers that know nothing of each other."""
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(rate_per_s)) < duration_s:
        yield at_s
