"""The picture of a profile: latency over time, failures where there are any, and the distribution."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tools.headline.figures import GRID, SLICE_S
from tools.pictures.svg import Drawing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tools.headline.report import Result

_WIDTH, _TOP, _LEFT, _RIGHT = 860, 116, 70, 20
_HIGH, _LOW, _GAP = 170, 60, 46
_COLORS = ("#c2413b", "#3b6fb6", "#d9730d")
_GRID, _BAND = "#e2e8f0", "#64748b"
_NAMED = {0.5: "P50", 0.9: "P90", 0.99: "P99", 0.999: "P99.9", 0.9999: "P99.99"}


def drawn(result: Result) -> str:
    """Draw a result as an SVG document."""
    rows = result.compared.rows
    failing = any(share for row in rows for share in row.failed)
    height = _TOP + 2 * (_HIGH + _GAP) + (_LOW + _GAP if failing else 0)
    drawing = Drawing(_WIDTH, height, result.title)
    drawing.note(20, 28, result.title, size=15, weight="bold")
    for number, (row, color) in enumerate(zip(rows, _COLORS, strict=True)):
        drawing.line([(20, 46 + 16 * number), (38, 46 + 16 * number)], color, 3)
        drawing.note(44, 50 + 16 * number, f"({row.key}) {row.about}", size=11)
    length_s = len(rows[0].slices_ms) * SLICE_S
    values = [one for row in rows for one in (*(x for x in row.slices_ms if x is not None), *row.curve_ms)]
    scale = _Log(min(values), max(values))
    y = _TOP
    over = _axis(0.0, length_s)
    for begin, end in result.compared.bands:
        below = y + _HIGH + (_GAP + _LOW if failing else 0)
        drawing.band(over(begin), y, over(min(end, length_s)) - over(begin), below - y, _BAND)
    drawing.note(
        20, y - 10, f"P{100 * result.told:g} of each {SLICE_S:g} s, ms; over the seconds of the trace", size=11
    )
    _frame(drawing, y, scale)
    _seconds(drawing, over, length_s, y + _HIGH)
    for row, color in zip(rows, _COLORS, strict=True):
        slices = [(SLICE_S * (n + 0.5), one) for n, one in enumerate(row.slices_ms) if one is not None]
        drawing.line([(over(at), scale.y(y, one)) for at, one in slices], color)
    y += _HIGH + _GAP
    if failing:
        _failures(drawing, y, over, [row.failed for row in rows], length_s)
        y += _LOW + _GAP
    drawing.note(20, y - 10, "distribution: how long all but the slowest share took, ms", size=11)
    _frame(drawing, y, scale)
    along = _axis(0.0, max(-math.log10(1 - GRID[len(row.curve_ms) - 1]) for row in rows))
    for q, name in _NAMED.items():
        nines = -math.log10(1 - q)
        if nines <= max(-math.log10(1 - GRID[len(row.curve_ms) - 1]) for row in rows) + 1e-9:
            drawing.line([(along(nines), y), (along(nines), y + _HIGH)], _GRID, 1)
            drawing.note(round(along(nines)), y + _HIGH + 14, name, anchor="middle", size=10)
    for row, color in zip(rows, _COLORS, strict=True):
        curve = zip(GRID, row.curve_ms, strict=False)
        drawing.line([(along(-math.log10(1 - q)), scale.y(y, one)) for q, one in curve], color)
    return drawing.text()


class _Log:
    """A logarithmic axis from the 1, 2 or 5 below ``low`` to the one above ``high``."""

    def __init__(self, low: float, high: float) -> None:
        steps = [10.0**power * step for power in range(-2, 7) for step in (1, 2, 5)]
        least = max(step for step in steps if step <= max(low, steps[0]))
        most = min((step for step in steps if step >= high and step > least), default=steps[-1])
        self.ticks = [step for step in steps if least <= step <= most]
        self._low, self._span = math.log10(least), math.log10(most / least)

    def y(self, top: float, value: float) -> float:
        """Return where ``value`` is in a panel that begins at ``top``."""
        share = (math.log10(max(value, 1e-9)) - self._low) / self._span
        return top + _HIGH * (1 - min(max(share, 0.0), 1.0))


def _axis(least: float, most: float) -> Callable[[float], float]:
    span = (most - least) or 1.0
    return lambda value: _LEFT + (_WIDTH - _LEFT - _RIGHT) * (value - least) / span


def _frame(drawing: Drawing, y: int, scale: _Log) -> None:
    for tick in scale.ticks:
        level = scale.y(y, tick)
        drawing.line([(_LEFT, level), (_WIDTH - _RIGHT, level)], _GRID, 1)
        drawing.note(_LEFT - 8, round(level) + 4, f"{tick:,g}", anchor="end", size=10)


def _seconds(drawing: Drawing, over: Callable[[float], float], length_s: float, y: int) -> None:
    step = next((one for one in (1, 2, 5, 10, 20) if length_s / one <= 12), 60)
    for at in range(0, int(length_s) + 1, step):
        drawing.note(round(over(at)), y + 14, f"{at} s", anchor="middle", size=10)


def _failures(
    drawing: Drawing, y: int, over: Callable[[float], float], failed: Sequence[Sequence[float]], length_s: float
) -> None:
    most = max(share for shares in failed for share in shares)
    drawing.note(20, y - 10, f"failed of each {SLICE_S:g} s, %", size=11)
    for level in (0.0, most):
        drawing.line(
            [(_LEFT, y + _LOW * (1 - level / most)), (_WIDTH - _RIGHT, y + _LOW * (1 - level / most))], _GRID, 1
        )
        drawing.note(_LEFT - 8, round(y + _LOW * (1 - level / most)) + 4, f"{100 * level:.3g}", anchor="end", size=10)
    _seconds(drawing, over, length_s, y + _LOW)
    for shares, color in zip(failed, _COLORS, strict=True):
        points = [(over(SLICE_S * (n + 0.5)), y + _LOW * (1 - share / most)) for n, share in enumerate(shares)]
        drawing.line(points, color)
