"""The matrix of drills: each passes as shipped, and fails without the feature that it tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from sidecar.drills.verdict import Verdict

BEGIN = "<!-- drill matrix: warmroute drill matrix --write FILE -->"
END = "<!-- end of the drill matrix -->"


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: of which drill, without which feature ("" as shipped), and what it came to."""

    drill: str
    without: str
    passed: bool
    why: str = ""

    @property
    def right(self) -> bool:
        """Whether it came out as it must: passed as shipped, failed without."""
        return self.passed is not bool(self.without)


def why(verdict: Verdict) -> str:
    """Return what a drill failed on, in short; "" where it passed."""
    if verdict.cut_short:
        return verdict.cut_short
    failed = [f"{one.asked}: {one.shown}" for one in verdict.results if not one.passed]
    failed += [f"{check.phase}: {check.text}" for check in verdict.checks if not check.held]
    failed += verdict.left_behind
    return failed[0] + (f", and {len(failed) - 1} more" if len(failed) > 1 else "") if failed else ""


def table(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield the lines of the matrix as Markdown."""
    yield "| drill | as shipped | without | then | on |"
    yield "| --- | --- | --- | --- | --- |"
    shipped = {cell.drill: cell for cell in cells if not cell.without}
    for cell in cells:
        if cell.without:
            on = cell.why.replace("|", "/") or "-"
            yield f"| {cell.drill} | {_word(shipped[cell.drill])} | {cell.without} | {_word(cell)} | {on} |"


def rewrite(file: Path, cells: Sequence[Cell]) -> None:
    """Put the matrix into ``file``, between its two marks.

    Raises:
        ValueError: it has no marks.
        OSError: it cannot be read or written.
    """
    text = file.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"has no marks: put {BEGIN} and {END} where the matrix belongs")
    file.write_text("\n".join([before + begin, "", *table(cells), "", end + after]), encoding="utf-8")


def _word(cell: Cell) -> str:
    return ("passed" if cell.passed else "failed") + ("" if cell.right else " (WRONG)")
