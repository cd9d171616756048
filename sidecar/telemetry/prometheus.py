"""Prometheus text exposition (format 0.0.4), written by hand: families declared once, samples in, bytes out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf, isnan
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Kind(StrEnum):
    """What a family's samples mean."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name, kind, label names, and what it says, with its unit."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


class Exposition:
    """Collects samples; :meth:`render` writes families in the order of their declaration, each with HELP and TYPE."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._lines: dict[str, list[str]] = {family.name: [] for family in families}
        self._families = families

    def add(self, family: Family, value: float, *labels: str) -> None:
        """Add one sample of a counter or gauge; ``labels`` are the values of the family's labels, in order."""
        self._lines[family.name].append(f"{family.name}{_labels(family.labels, labels)} {number(value)}")

    def add_histogram(
        self, family: Family, bounds: Sequence[float], counts: Sequence[int], total: float, *labels: str
    ) -> None:
        """Add one histogram: ``counts`` per bucket, not cumulative, the last one above all ``bounds``; and its sum."""
        lines = self._lines[family.name]
        names = (*family.labels, "le")
        cumulative = 0
        for bound, count in zip((*bounds, inf), counts, strict=True):
            cumulative += count
            lines.append(f"{family.name}_bucket{_labels(names, (*labels, number(bound)))} {cumulative}")
        plain = _labels(family.labels, labels)
        lines.append(f"{family.name}_sum{plain} {number(total)}")
        lines.append(f"{family.name}_count{plain} {cumulative}")

    def render(self) -> bytes:
        """Return the exposition. Families without samples are left out."""
        out: list[str] = []
        for family in self._families:
            lines = self._lines[family.name]
            if lines:
                out.append(f"# HELP {family.name} {_escape_help(family.help)}")
                out.append(f"# TYPE {family.name} {family.kind.value}")
                out.extend(lines)
        out.append("")
        return "\n".join(out).encode()


def number(value: float) -> str:
    """Return a sample value as the format spells it."""
    if value == inf:
        return "+Inf"
    if value == -inf:
        return "-Inf"
    if isnan(value):
        return "NaN"
    return str(int(value)) if isinstance(value, bool) or value == int(value) else repr(value)


def _labels(names: Iterable[str], values: Sequence[str]) -> str:
    pairs = ",".join(f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True))
    return f"{{{pairs}}}" if pairs else ""


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
