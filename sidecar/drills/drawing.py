"""The timeline of a drill as SVG: latency, requests, routes, states, with faults as bands through all of it. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from sidecar.drills.picks import LEAST_S, windows
from sidecar.drills.traffic import slices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sidecar.drills.record import Look, Record, Seen
    from sidecar.drills.traffic import Figures

WIDTH = 960
LEFT = 90
RIGHT = 20
TOP = 34
CHART = 120
LANE = 18
GAP = 44
KEY_ROW = 13
KEY_LETTER = 6.2
MOST_LETTERS = 24
MOST_SLICES = 600
MOST_LANES = 24
COLOURS = ("#3b6fb6", "#b5651d", "#4b8b3b", "#8b4a8b", "#a33", "#2a8a8a", "#777", "#a08000")
PERCENTILES = (("P50", COLOURS[0]), ("P95", COLOURS[3]), ("P99", "#c9b8d8"))
ANSWERS = (("answered", "#9fb8d8"), ("degraded", "#e8c35a"), ("failed", "#c0504d"))
STATES = {
    "picked": "#9fc89f",
    "half_open": "#e8c35a",
    "breaker_open": "#c0504d",
    "quarantined": "#d98a5a",
    "outlier": "#b06fb0",
    "gone": "#555",
    "other": "#b8b8b8",
}
_TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600)


@dataclass(frozen=True, slots=True)
class Axis:
    """Seconds of the drill to places in the picture."""

    length_s: float

    def x(self, at: float) -> float:
        """Return where a moment is."""
        inside = min(max(at, 0.0), self.length_s)
        return LEFT + (WIDTH - LEFT - RIGHT) * inside / self.length_s

    def ticks(self) -> list[float]:
        """Return the moments that are named."""
        step = next((one for one in _TICKS if self.length_s / one <= 12), 1200)
        return [float(number * step) for number in range(int(self.length_s / step) + 1)]


def timeline(record: Record) -> str:
    """Return the whole picture as one SVG element."""
    axis = Axis(max(record.length_s, 0.001))
    width_s = max(1.0, math.ceil(axis.length_s / MOST_SLICES))
    parts = slices(record, width_s)
    endpoints = _endpoints(record.looks)
    y = TOP
    drawn: list[str] = []
    of_endpoints = [(endpoint, COLOURS[number % len(COLOURS)]) for number, endpoint in enumerate(endpoints)]
    for title, unit, key, draw in (
        ("latency", "ms", PERCENTILES, _latency(axis, parts, width_s)),
        ("requests", "/s", ANSWERS, _requests(axis, parts, width_s)),
        ("picks", "share", of_endpoints, _shares(axis, record, endpoints, width_s)),
    ):
        drawn += draw(y)
        drawn.append(_text(4, y + 12, title, "title"))
        drawn += [_text(4, y + 26, unit, "small")] if unit else []
        rows = _key(y + CHART + KEY_ROW, key)
        drawn += [part for row in rows for part in row]
        y += CHART + GAP + KEY_ROW * max(0, len(rows) - 1)
    drawn.append(_text(4, y - 6, "routes and breakers", "title"))
    for endpoint in endpoints:
        drawn += _lane(axis, record.looks, endpoint, y)
        y += LANE
    y += 8
    height = y + 24
    under = [*_faults(axis, record, y), *_phases(axis, record, y), *_ticks(axis, y)]
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="timeline of the drill" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(under)}{"".join(drawn)}</svg>'
    )


def legend() -> Iterator[tuple[str, str]]:
    """Yield the names and colours of states."""
    yield from STATES.items()


def state_of(seen: Seen | None) -> str:
    """Return which of ``STATES`` an endpoint is in."""
    if seen is None:
        return "gone"
    if seen.out:
        return seen.out if seen.out in STATES else "other"
    return "half_open" if seen.breaker == "half_open" else "picked"


def _endpoints(looks: Sequence[Look]) -> list[str]:
    return sorted({name for look in looks for name in look.endpoints})[:MOST_LANES]


def _latency(axis: Axis, parts: Sequence[tuple[float, Figures]], width_s: float) -> Callable[[int], list[str]]:
    known = [part.p99_ms for _, part in parts if part.p99_ms is not None and math.isfinite(part.p99_ms)]
    top = _rounded(max(known, default=1.0))

    def draw(y: int) -> list[str]:
        drawn = _frame(axis, y, top)
        for name, colour in reversed(PERCENTILES):
            points = [
                (axis.x(begin + width_s / 2), _y(y, value, top))
                for begin, part in parts
                if (value := getattr(part, f"{name.lower()}_ms")) is not None
            ]
            drawn += [_line(points, colour, name)]
        return drawn

    return draw


def _requests(axis: Axis, parts: Sequence[tuple[float, Figures]], width_s: float) -> Callable[[int], list[str]]:
    top = _rounded(max((part.requests / width_s for _, part in parts), default=1.0))

    def draw(y: int) -> list[str]:
        drawn = _frame(axis, y, top)
        for begin, part in parts:
            x, wide = axis.x(begin), max(0.5, axis.x(begin + width_s) - axis.x(begin) - 0.5)
            below = 0.0
            well = part.requests - part.errors - part.degraded
            for count, (what, colour) in zip((well, part.degraded, part.errors), ANSWERS, strict=True):
                if count > 0:
                    upper = below + count / width_s
                    high = _y(y, below, top) - _y(y, upper, top)
                    said = f"{begin:.0f} s: {count} {what}"
                    drawn.append(_rect(x, _y(y, upper, top), wide, high, colour, said))
                    below = upper
        return drawn

    return draw


def _shares(axis: Axis, record: Record, endpoints: Sequence[str], width_s: float) -> Callable[[int], list[str]]:
    found = list(windows(record.scrapes, 0.0, axis.length_s, width_s=LEAST_S * width_s))

    def draw(y: int) -> list[str]:
        drawn = _frame(axis, y, 1.0)
        for number, endpoint in enumerate(endpoints):
            points = [
                (axis.x((begin + end) / 2), _y(y, shares.get(endpoint, 0.0), 1.0)) for begin, end, shares in found
            ]
            drawn.append(_line(points, COLOURS[number % len(COLOURS)], endpoint))
        return drawn

    return draw


def _lane(axis: Axis, looks: Sequence[Look], endpoint: str, y: int) -> list[str]:
    drawn = [_text(4, y + LANE - 6, endpoint[:14], "small")]
    for begin, end, state in runs([(look.at, state_of(look.endpoints.get(endpoint))) for look in looks], axis.length_s):
        x = axis.x(begin)
        said = f"{endpoint} {state} {begin:.1f} to {end:.1f} s"
        drawn.append(_rect(x, y + 2, max(0.5, axis.x(end) - x), LANE - 5, STATES[state], said))
    return drawn


def runs(seen: Iterable[tuple[float, str]], end: float) -> list[tuple[float, float, str]]:
    """Return (begin, end, value) of each stretch in which a value stayed the same."""
    found: list[tuple[float, float, str]] = []
    for at, value in seen:
        if found and found[-1][2] == value:
            found[-1] = (found[-1][0], at, value)
        else:
            if found:
                found[-1] = (found[-1][0], at, found[-1][2])
            found.append((at, at, value))
    if found:
        found[-1] = (found[-1][0], end, found[-1][2])
    return found


def _faults(axis: Axis, record: Record, bottom: int) -> Iterator[str]:
    for number, fault in enumerate(record.faults):
        x = axis.x(fault.begin)
        yield (
            f'<rect class="fault" x="{x:.1f}" y="{TOP - 4}" width="{max(1.0, axis.x(fault.end) - x):.1f}" '
            f'height="{bottom - TOP}"><title>{escape(fault.about or fault.id)}</title></rect>'
        )
        yield _text(x + 3, TOP + 8 + 11 * (number % 3), f"fault {fault.id}", "small fault-name")


def _phases(axis: Axis, record: Record, bottom: int) -> Iterator[str]:
    for number, span in enumerate(record.spans):
        x = axis.x(span.begin)
        yield (
            f'<line class="phase" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 4}" y2="{bottom}">'
            f"<title>{escape(span.name)}</title></line>"
        )
        if span.end - span.begin > axis.length_s / 25:
            yield _text(x + 2, 11 + 11 * (number % 2), span.name[:22], "small")


def _ticks(axis: Axis, y: int) -> Iterator[str]:
    for at in axis.ticks():
        yield f'<line class="grid" x1="{axis.x(at):.1f}" x2="{axis.x(at):.1f}" y1="{TOP}" y2="{y}"/>'
        yield _text(axis.x(at) - 6, y + 14, f"{at:.0f} s", "small")


def _key(y: float, entries: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Return what names a chart's colours, by rows, below it."""
    rows: list[list[str]] = []
    x = float(WIDTH)
    for name, colour in entries:
        text = name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…"
        wide = 26 + KEY_LETTER * len(text)
        if x + wide > WIDTH - RIGHT:
            rows.append([])
            x = float(LEFT)
        level = y + KEY_ROW * (len(rows) - 1)
        rows[-1] += [_rect(x, level - 8, 10, 8, colour, name), _text(x + 14, level, text, "small key")]
        x += wide
    return rows


def _frame(axis: Axis, y: int, top: float) -> list[str]:
    left, right = axis.x(0), axis.x(axis.length_s)
    drawn = []
    for share in (0.0, 0.5, 1.0):
        level = _y(y, top * share, top)
        drawn.append(f'<line class="grid" x1="{left:.1f}" x2="{right:.1f}" y1="{level:.1f}" y2="{level:.1f}"/>')
        drawn.append(f'<text class="small" x="{LEFT - 6}" y="{level + 4:.1f}" text-anchor="end">{top * share:g}</text>')
    return drawn


def _y(y: int, value: float, top: float) -> float:
    return y + CHART * (1 - min(value, top) / top)


def _rounded(value: float) -> float:
    """Return the next 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1.0, 2.0, 5.0, 10.0) if value <= step * power * (1 + 1e-9))


def _line(points: Sequence[tuple[float, float]], colour: str, said: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}"><title>{escape(said)}</title></polyline>'


def _rect(x: float, y: float, width: float, height: float, colour: str, said: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}">'
        f"<title>{escape(said)}</title></rect>"
    )


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
