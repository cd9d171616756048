"""A few shapes as SVG text: boxes with a title and lines, arrows with a label; the same bytes each time."""

from __future__ import annotations

from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

Kind = Literal["plain", "ours", "store", "other", "good", "bad", "frame"]
Side = Literal["left", "right", "top", "bottom"]

_FILL: dict[Kind, tuple[str, str]] = {
    "plain": ("#ffffff", "#64748b"),
    "ours": ("#fff4e6", "#d9730d"),
    "store": ("#eaf2ff", "#3b6fb6"),
    "other": ("#f1f5f9", "#64748b"),
    "good": ("#e9f7ec", "#2f8f46"),
    "bad": ("#fdecec", "#c2413b"),
    "frame": ("none", "#94a3b8"),
}
_FONT = "font-family='Helvetica, Arial, DejaVu Sans, sans-serif'"
_LINE_PX = 16


class Box:
    """A rectangle that arrows can start from and lead to."""

    def __init__(self, x: int, y: int, width: int, height: int) -> None:
        self.x, self.y, self.width, self.height = x, y, width, height

    def at(self, side: Side, share: float = 0.5) -> tuple[int, int]:
        """Return the point on ``side``, ``share`` of the way along it."""
        along_x, along_y = self.x + round(self.width * share), self.y + round(self.height * share)
        return {
            "left": (self.x, along_y),
            "right": (self.x + self.width, along_y),
            "top": (along_x, self.y),
            "bottom": (along_x, self.y + self.height),
        }[side]


class Drawing:
    """Collects shapes; ``text()`` is the SVG document."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._width, self._height, self._title = width, height, title
        self._frames: list[str] = []
        self._shapes: list[str] = []
        self._arrows: list[str] = []

    def box(
        self, x: int, y: int, width: int, height: int, title: str, *lines: str, kind: Kind = "plain", big: bool = False
    ) -> Box:
        """Draw a box with ``title`` and ``lines`` in its middle; a ``frame`` has its title in the corner."""
        fill, stroke = _FILL[kind]
        frame = kind == "frame"
        dash = " stroke-dasharray='5 4'" if frame else ""
        place = f"x='{x}' y='{y}' width='{width}' height='{height}' rx='8'"
        parts = [f"<rect {place} fill='{fill}' stroke='{stroke}' stroke-width='1.4'{dash}/>"]
        if frame:
            parts.append(self._text(x + 12, y + 20, title, anchor="start", color="#64748b"))
        else:
            top = y + (height - _LINE_PX * len(lines)) / 2 + 5
            parts.append(self._text(x + width / 2, top, title, weight="bold", size=15 if big else 13))
            for number, line in enumerate(lines, 1):
                parts.append(self._text(x + width / 2, top + _LINE_PX * number, line, size=12, color="#475569"))
        (self._frames if frame else self._shapes).extend(parts)
        return Box(x, y, width, height)

    def bar(self, x: int, y: int, width: int, height: int, kind: Kind = "plain") -> None:
        """Draw a filled rectangle without words, in the colour that ``kind``'s outline has."""
        self._shapes.append(f"<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='2' fill='{_FILL[kind][1]}'/>")

    def band(self, x: float, y: float, width: float, height: float, color: str) -> None:
        """Shade a stretch, under what is drawn later."""
        place = f"x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}'"
        self._shapes.append(f"<rect {place} fill='{color}' fill-opacity='0.14'/>")

    def line(self, points: Sequence[tuple[float, float]], color: str, width: float = 1.4) -> None:
        """Draw a line through ``points``, without a head."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._shapes.append(
            f"<polyline points='{path}' fill='none' stroke='{color}' stroke-width='{width:g}' stroke-linejoin='round'/>"
        )

    def arrow(
        self,
        *points: tuple[int, int],
        label: str = "",
        at: tuple[int, int] | None = None,
        both: bool = False,
        dashed: bool = False,
        anchor: str = "middle",
        color: str = "#475569",
    ) -> None:
        """Draw a line through ``points`` with a head at its end; the label stands at ``at``, or in the middle."""
        path = " ".join(f"{'M' if number == 0 else 'L'}{x} {y}" for number, (x, y) in enumerate(points))
        start = " marker-start='url(#tail)'" if both else ""
        dash = " stroke-dasharray='5 4'" if dashed else ""
        self._arrows.append(
            f"<path d='{path}' fill='none' stroke='{color}' stroke-width='1.4'{dash}{start} marker-end='url(#head)'/>"
        )
        self._label(label, at or _middle(points), anchor)

    def curve(
        self,
        start: tuple[int, int],
        bend: tuple[int, int],
        end: tuple[int, int],
        label: str = "",
        anchor: str = "middle",
    ) -> None:
        """Draw a curved arrow pulled towards ``bend``, with the label beside its middle."""
        path = f"M{start[0]} {start[1]} Q{bend[0]} {bend[1]} {end[0]} {end[1]}"
        self._arrows.append(
            f"<path d='{path}' fill='none' stroke='#475569' stroke-width='1.4' marker-end='url(#head)'/>"
        )
        middle = tuple(round(start[axis] / 4 + bend[axis] / 2 + end[axis] / 4) for axis in (0, 1))
        self._label(label, (middle[0], middle[1]), anchor)

    def note(self, x: int, y: int, *lines: str, anchor: str = "start", size: int = 12, weight: str = "normal") -> None:
        """Write lines of text."""
        for number, line in enumerate(lines):
            self._shapes.append(
                self._text(x, y + _LINE_PX * number, line, anchor=anchor, size=size, weight=weight, color="#334155")
            )

    def text(self) -> str:
        """Return the document."""
        body = "\n".join([*self._frames, *self._shapes, *self._arrows])
        return (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {self._width} {self._height}'"
            f" width='{self._width}' height='{self._height}' role='img'>\n<title>{escape(self._title)}</title>\n"
            "<defs>"
            "<marker id='head' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='8' markerHeight='8' orient='auto'>"
            "<path d='M0 0 L8 4 L0 8 z' fill='#475569'/></marker>"
            "<marker id='tail' viewBox='0 0 8 8' refX='1' refY='4' markerWidth='8' markerHeight='8' orient='auto'>"
            "<path d='M8 0 L0 4 L8 8 z' fill='#475569'/></marker>"
            "</defs>\n"
            f"<rect width='{self._width}' height='{self._height}' rx='10' fill='#fcfcfd'/>\n{body}\n</svg>\n"
        )

    def _label(self, label: str, at: tuple[int, int], anchor: str) -> None:
        for number, line in enumerate(label.split("\n") if label else ()):
            self._arrows.append(self._text(at[0], at[1] + 14 * number, line, anchor=anchor, size=11, halo=True))

    @staticmethod
    def _text(
        x: float,
        y: float,
        words: str,
        *,
        anchor: str = "middle",
        size: int = 13,
        weight: str = "normal",
        color: str = "#1e293b",
        halo: bool = False,
    ) -> str:
        around = " stroke='#fcfcfd' stroke-width='4' paint-order='stroke' stroke-linejoin='round'" if halo else ""
        return (
            f"<text x='{x:g}' y='{y:g}' text-anchor='{anchor}' font-size='{size}' font-weight='{weight}' {_FONT}"
            f" fill='{color}'{around}>{escape(words)}</text>"
        )


def _middle(points: tuple[tuple[int, int], ...]) -> tuple[int, int]:
    """Return a point beside the middle of the longest stretch of a line."""
    stretches = list(pairwise(points))
    (x1, y1), (x2, y2) = max(stretches, key=lambda pair: abs(pair[0][0] - pair[1][0]) + abs(pair[0][1] - pair[1][1]))
    return (x1 + x2) // 2, (y1 + y2) // 2 - 6
