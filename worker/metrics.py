"""``GET /metrics``: what a worker says of itself, in Prometheus' text format (version 0.0.4).

Nothing is kept between two scrapes: every number is read where it already stands. So a model that goes takes its series
along, and a worker that nobody scrapes pays nothing.
"""

from __future__ import annotations

import asyncio
import bisect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
QUEUE_BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with its series: label values by name, and a number. ``kind``: counter, gauge or histogram."""

    name: str
    kind: str
    help: str
    samples: list[tuple[Mapping[str, str], float]] = field(default_factory=list)
    histograms: list[tuple[Mapping[str, str], Histogram]] = field(default_factory=list)

    def add(self, value: float, **labels: str) -> None:
        """Add one series."""
        self.samples.append((labels, value))


class Histogram:
    """Counts of values by upper bound. Used on one thread."""

    def __init__(self, bounds: Sequence[float] = QUEUE_BOUNDS_S) -> None:
        """``bounds``: rising; what is larger than all of them is counted too."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value


class Metrics:
    """What is exposed. Sources are asked at each scrape."""

    def __init__(self) -> None:
        self._sources: list[Callable[[], Iterable[Family]]] = []
        self._blocking: list[Callable[[], Callable[[], Iterable[Family]]]] = []

    def add(self, source: Callable[[], Iterable[Family]]) -> None:
        """Expose what ``source`` returns. It is asked on the event loop, and must be quick."""
        self._sources.append(source)

    def add_blocking(self, source: Callable[[], Callable[[], Iterable[Family]]]) -> None:
        """Expose what the call that ``source`` returns returns: the first on the event loop, the second in a thread."""
        self._blocking.append(source)

    async def text(self) -> str:
        """Return everything as text."""
        families = [family for source in self._sources for family in source()]
        calls = [source() for source in self._blocking]
        if calls:
            families += await asyncio.to_thread(lambda: [family for call in calls for family in call()])
        return "".join(map(_family, families))


def _family(family: Family) -> str:
    if not family.samples and not family.histograms:
        return ""
    lines = [f"# HELP {family.name} {_escaped(family.help, quotes=False)}", f"# TYPE {family.name} {family.kind}"]
    lines += [f"{family.name}{_labels(labels)} {_number(value)}" for labels, value in family.samples]
    for labels, histogram in family.histograms:
        below = 0
        for bound, count in zip((*map(_number, histogram.bounds), "+Inf"), histogram.counts, strict=True):
            below += count
            lines.append(f"{family.name}_bucket{_labels({**labels, 'le': bound})} {below}")
        lines.append(f"{family.name}_sum{_labels(labels)} {_number(histogram.total)}")
        lines.append(f"{family.name}_count{_labels(labels)} {below}")
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(text: str, *, quotes: bool = True) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


def _number(value: float) -> str:
    return repr(int(value)) if float(value).is_integer() and abs(value) < 1 << 53 else repr(float(value))
