"""What is measured of a run: how long requests took, how many failed, how evenly they were spread."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

HERD_S = 0.1
HERD_PICKS = 200
"""A herd is looked for in every stretch of 100 ms with at least so many picks."""


@dataclass(frozen=True, slots=True)
class Result:
    """One run of one law. Milliseconds are those of the requests that were answered, by nearest rank.

    ``herd``: the most that an endpoint got in any stretch that is looked at, over its even share; 0 where there was
    none. ``busiest``: the same over the whole run. ``loads``: models that were loaded.
    """

    requests: int
    errors: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    herd: float
    busiest: float
    loads: int


class Measures:
    """Collects. Requests that came before ``since`` are left out; ``pending`` are those that have not ended."""

    def __init__(self, endpoints: int, since: float) -> None:
        self.pending = 0
        self._since = since
        self._ms: list[float] = []
        self._errors = 0
        self._picks: list[tuple[float, str]] = []
        self._endpoints = endpoints

    def came(self) -> None:
        """Count a request that has come."""
        self.pending += 1

    def answered(self, came: float, now: float) -> None:
        """Count an answer."""
        self.pending -= 1
        if came >= self._since:
            self._ms.append((now - came) * 1000)

    def failed(self, came: float) -> None:
        """Count a request that failed."""
        self.pending -= 1
        if came >= self._since:
            self._errors += 1

    def picked(self, id_: str, now: float) -> None:
        """Count a pick."""
        if now >= self._since:
            self._picks.append((now, id_))

    def result(self, loads: int, longest_s: float) -> Result:
        """Return what was measured; whatever is pending took ``longest_s``."""
        ordered = [*sorted(self._ms), *[longest_s * 1000] * self.pending]
        counts = Counter(id_ for _, id_ in self._picks)
        return Result(
            requests=len(ordered) + self._errors,
            errors=self._errors,
            p50_ms=quantile(ordered, 0.5),
            p99_ms=quantile(ordered, 0.99),
            p999_ms=quantile(ordered, 0.999),
            herd=herd(self._picks, self._endpoints),
            busiest=max(counts.values(), default=0) * self._endpoints / max(1, len(self._picks)),
            loads=loads,
        )


def quantile(ordered: Sequence[float], of: float) -> float:
    """Return the value of nearest rank; 0 where there is none."""
    return ordered[max(0, ceil(of * len(ordered)) - 1)] if ordered else 0.0


def herd(picks: Sequence[tuple[float, str]], endpoints: int) -> float:
    """Return the largest share of any endpoint in any 100 ms that end with a pick, over the even share."""
    worst = 0.0
    within: deque[tuple[float, str]] = deque()
    counts: Counter[str] = Counter()
    for moment, id_ in picks:
        within.append((moment, id_))
        counts[id_] += 1
        while within[0][0] <= moment - HERD_S:
            counts[within.popleft()[1]] -= 1
        if len(within) >= HERD_PICKS:
            worst = max(worst, counts[id_] * endpoints / len(within))
    return worst
