"""The plot of a bench: one bar for each row and state of the page cache, made of its stages. One file, no script."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from worker.bench.results import CACHES, REST
from worker.stages import Stage

if TYPE_CHECKING:
    from worker.bench.results import Results

_WIDTH, _NAMES, _NUMBERS = 900, 160, 120
_BAR, _GAP, _TOP = 17, 30, 96
_FONT = "font-family='Helvetica, Arial, DejaVu Sans, sans-serif'"
COLORS: Final = {
    Stage.IMPORTS.value: "#94a3b8",
    Stage.DECOMPRESS.value: "#7c3aed",
    Stage.OPEN.value: "#0ea5e9",
    Stage.PAGE_IN.value: "#3b6fb6",
    Stage.CHECKSUM.value: "#14b8a6",
    Stage.CONFIGURE.value: "#a3a30d",
    Stage.DEVICE.value: "#be185d",
    Stage.CREATE.value: "#d9730d",
    Stage.TRANSFER.value: "#9d174d",
    Stage.WARM_UP.value: "#c2413b",
    Stage.FIRST_ANSWER.value: "#2f8f46",
    REST: "#e2e8f0",
}


def draw(results: Results) -> str:
    """Return the plot as SVG text; the same for the same results."""
    caches = [cache for cache in CACHES if any(sample.cache == cache for sample in results.samples)]
    found = {(row, cache): results.stages(row, cache) for cache in caches for row in results.rows()}
    names = [name for name in COLORS if any(name in one for one in found.values())]
    longest = max((results.answer_s(*one) or 0.0 for one in found), default=0.0) or 1.0
    scale = (_WIDTH - 40 - _NAMES - _NUMBERS) / longest
    shapes: list[str] = []
    y = _TOP
    for cache in caches:
        shapes.append(_text(20, y + 4, f"{cache} page cache", weight="bold"))
        y += 12
        for row in results.rows():
            answer_s = results.answer_s(row, cache)
            if answer_s is not None:
                shapes += _bar(row, found[row, cache], answer_s, y, scale, results.times_lower(row, cache))
            y += _BAR
        y += _GAP
    title = f"Spawn to first answer: {results.model}, {results.model_bytes / 1e6:,.0f} MB"
    head = [_text(20, 28, title, size=15, weight="bold"), *_legend(names)]
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {y}' role='img'"
        f" aria-label='{escape(title, quote=True)}'>\n<rect width='{_WIDTH}' height='{y}' fill='#ffffff'/>\n"
        + "\n".join([*head, *shapes])
        + "\n</svg>\n"
    )


def _bar(row: str, stages: dict[str, float], answer_s: float, y: int, scale: float, lower: float | None) -> list[str]:
    """Return one bar; where its stages overlap, and add up to more than it took, they are drawn in proportion."""
    scale *= min(1.0, answer_s / sum(stages.values()))
    x = 20.0 + _NAMES
    shapes = [_text(x - 8, y + 12, row, anchor="end", size=11)]
    for name, seconds in stages.items():
        width = seconds * scale
        shapes.append(
            f"<rect x='{x:.1f}' y='{y + 2}' width='{width:.1f}' height='{_BAR - 4}' fill='{COLORS[name]}'>"
            f"<title>{escape(row)}: {name.replace('_', ' ')} {seconds * 1000:.1f} ms</title></rect>"
        )
        x += width
    times = f" ({lower:.1f} × lower)" if lower is not None and abs(lower - 1) > 0.05 else ""
    shapes.append(_text(x + 6, y + 12, f"{answer_s * 1000:,.0f} ms{times}", size=11))
    return shapes


def _legend(names: list[str]) -> list[str]:
    shapes = []
    x, y = 20.0, 50
    for name in names:
        label = name.replace("_", " ")
        shapes.append(f"<rect x='{x:.0f}' y='{y - 9}' width='10' height='10' fill='{COLORS[name]}'/>")
        shapes.append(_text(x + 14, y, label, size=11))
        x += 34 + 6 * len(label)
        if x > _WIDTH - 120:
            x, y = 20.0, y + 16
    return shapes


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, weight: str = "normal") -> str:
    return (
        f"<text x='{x:.0f}' y='{y:.0f}' {_FONT} font-size='{size}' font-weight='{weight}' text-anchor='{anchor}'"
        f" fill='#334155'>{escape(text)}</text>"
    )
