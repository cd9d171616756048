"""The matrix of drills: each passes as shipped, and fails without the feature that it tests."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from sidecar.drills.verdict import ABORTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

BEGIN = "<!-- drill matrix: warmroute drill matrix --write FILE -->"
END = "<!-- end of the drill matrix -->"
HEAD = ("| drill | as shipped | without | then | on |", "| --- | --- | --- | --- | --- |")
_ROW = re.compile(r"\| ([A-Za-z0-9._-]{1,64}) \|")
_RUN_FROM = re.compile(r"<!-- run from: (.*) -->")


class _Report(msgspec.Struct, frozen=True):
    """What of a drill's JSON report makes a cell."""

    passed: bool
    failed_on: str
    cut_short: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: of which drill, without which feature ("" as shipped), and what it came to."""

    drill: str
    without: str
    passed: bool
    why: str = ""
    judged: bool = True
    """Whether it ran to its end, or to that of its own conditions: what was cut short otherwise shows nothing."""

    @property
    def right(self) -> bool:
        """Whether it came out as it must: passed as shipped, failed without."""
        return self.judged and self.passed is not bool(self.without)


def cell_of(drill: str, without: str, report: bytes) -> Cell:
    """Return the cell that a drill's JSON report makes.

    Raises:
        msgspec.DecodeError: it is none.
    """
    found = msgspec.json.decode(report, type=_Report)
    judged = not found.cut_short or found.cut_short.startswith(ABORTED)
    return Cell(drill, without, found.passed, found.failed_on, judged=judged)


def table(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield the lines of the matrix as Markdown."""
    yield from HEAD
    yield from _rows(cells)


def digest(content: bytes) -> str:
    """Return what stands in a page for the content of a drill's file that its row was made from."""
    return hashlib.sha256(content).hexdigest()[:12]


def rewrite(file: Path, cells: Sequence[Cell], made_from: Mapping[str, str]) -> None:
    """Put the rows of ``cells`` into ``file``, between its two marks, and what drills' files they were made from.

    Rows of drills that are not among ``cells`` stay as they are.

    Raises:
        ValueError: it has no marks.
        OSError: it cannot be read or written.
    """
    text = file.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    inside, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"has no marks: put {BEGIN} and {END} where the matrix belongs")
    again = {cell.drill for cell in cells}
    kept = [line for line in inside.splitlines() if _drill(line) not in again | {""}]
    rows = sorted([*kept, *_rows(cells)])
    digests = {**run_from(text), **made_from}
    source = ", ".join(f"{drill} {digests[drill]}" for drill in sorted({_drill(row) for row in rows} & digests.keys()))
    lines = [before + begin, "", *HEAD, *rows, "", f"<!-- run from: {source} -->", "", end + after]
    file.write_text("\n".join(lines), encoding="utf-8")


def run_from(text: str) -> dict[str, str]:
    """Return what the matrix in a page's ``text`` was made from: by drill, the digest of its file then."""
    found = _RUN_FROM.search(text)
    pairs: Iterable[list[str]] = (part.split(" ") for part in found[1].split(", ")) if found and found[1] else ()
    return {drill: made for drill, made in pairs}  # noqa: C416  dict() would not check that they are pairs


def _drill(line: str) -> str:
    """Return whose row a line is; "" where it is none."""
    found = None if line in HEAD else _ROW.match(line)
    return found[1] if found else ""


def _rows(cells: Sequence[Cell]) -> Iterator[str]:
    shipped = {cell.drill: cell for cell in cells if not cell.without}
    for cell in cells:
        if cell.without:
            on = cell.why.replace("|", "/") or "-"
            yield f"| {cell.drill} | {_word(shipped[cell.drill])} | {cell.without} | {_word(cell)} | {on} |"


def _word(cell: Cell) -> str:
    return ("passed" if cell.passed else "failed") + ("" if cell.right else " (WRONG)")
