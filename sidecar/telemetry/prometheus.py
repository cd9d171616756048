"""Prometheus text exposition (format 0.0.4), written by hand: families declared once, samples in, bytes out."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isnan
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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


LINES = 512
"""Lines that are put together at once: about 64 KiB."""
_LEVEL = 1
"""Of compression: lines of one family differ in little, and time is what is short."""


class Exposition:
    """Collects samples; :meth:`pieces` gives families in the order of their declaration, each with HELP and TYPE.

    Samples come a model or a replica at a time, and a family's must stand together; so all are kept until the last one
    has come. What is more than :data:`LINES` of a family is kept compressed, in about a twentieth of the memory.
    """

    def __init__(self, families: Sequence[Family]) -> None:
        self._lines: dict[str, list[str]] = {family.name: [] for family in families}
        self._packed: dict[str, list[bytes]] = {}
        self._families = families
        self._bounds: dict[Sequence[float], list[str]] = {}

    def add(self, family: Family, value: float, *labels: str) -> None:
        """Add one sample of a counter or gauge; ``labels`` are the values of the family's labels, in order."""
        pairs = label_text(family.labels, labels)
        lines = self._lines[family.name]
        lines.append(f"{family.name}{f'{{{pairs}}}' if pairs else ''} {number(value)}")
        if len(lines) >= LINES:
            self._pack(family.name)

    def add_labelled(self, family: Family, value: float, pairs: str) -> None:
        """Add one sample whose labels are spelled already (:func:`label_text`): many families share them."""
        lines = self._lines[family.name]
        lines.append(f"{family.name}{{{pairs}}} {number(value)}")
        if len(lines) >= LINES:
            self._pack(family.name)

    def add_histogram(
        self, family: Family, bounds: Sequence[float], counts: Sequence[int], total: float, *labels: str
    ) -> None:
        """Add one histogram: ``counts`` per bucket, not cumulative, the last one above all ``bounds``; and its sum."""
        lines = self._lines[family.name]
        spelled = self._bounds.get(bounds)
        if spelled is None:
            spelled = self._bounds[bounds] = [f'le="{number(bound)}"' for bound in (*bounds, inf)]
        pairs = label_text(family.labels, labels)
        start = f"{family.name}_bucket{{{pairs}{',' if pairs else ''}"
        cumulative = 0
        for bound, count in zip(spelled, counts, strict=True):
            cumulative += count
            lines.append(f"{start}{bound}}} {cumulative}")
        plain = f"{{{pairs}}}" if pairs else ""
        lines.append(f"{family.name}_sum{plain} {number(total)}")
        lines.append(f"{family.name}_count{plain} {cumulative}")
        if len(lines) >= LINES:
            self._pack(family.name)

    def _pack(self, name: str) -> None:
        lines = self._lines[name]
        self._packed.setdefault(name, []).append(zlib.compress(_text(lines), _LEVEL))
        lines.clear()

    def pieces(self) -> Iterator[bytes]:
        """Yield the exposition, once, in pieces of a bounded number of lines. Families without samples are left out."""
        for family in self._families:
            packed, lines = self._packed.pop(family.name, []), self._lines.pop(family.name)
            if packed or lines:
                yield f"# HELP {family.name} {_escape_help(family.help)}\n# TYPE {family.name} {family.kind}\n".encode()
            for piece in packed:
                yield zlib.decompress(piece)
            if lines:
                yield _text(lines)


def _text(lines: Sequence[str]) -> bytes:
    return "\n".join([*lines, ""]).encode()


def number(value: float) -> str:
    """Return a sample value as the format spells it."""
    if isinstance(value, int):
        return str(int(value))
    if value == inf:
        return "+Inf"
    if value == -inf:
        return "-Inf"
    if isnan(value):
        return "NaN"
    return str(int(value)) if value == int(value) else repr(value)


def label_text(names: Iterable[str], values: Sequence[str]) -> str:
    """Return labels as the format spells them, without the braces."""
    return ",".join([f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True)])


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
