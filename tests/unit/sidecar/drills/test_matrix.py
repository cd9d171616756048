"""The matrix of drills, and its place in a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.drills.matrix import BEGIN, END, Cell, rewrite, table

CELLS = [
    Cell("one", "", passed=True),
    Cell("one", "cache", passed=False, why="error_ratio at most 0%: 5%"),
    Cell("one", "retry", passed=True),
]


def test_what_came_out_as_it_must() -> None:
    assert [cell.right for cell in CELLS] == [True, True, False]
    assert not Cell("one", "", passed=False).right


def test_a_line_for_each_feature() -> None:
    assert list(table(CELLS))[2:] == [
        "| one | passed | cache | failed | error_ratio at most 0%: 5% |",
        "| one | passed | retry | passed (WRONG) | - |",
    ]


def test_only_what_is_between_the_marks_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    rewrite(page, CELLS)
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n\n| drill |")
    assert text.endswith(f"|\n\n{END}\nafter\n")
    rewrite(page, CELLS)
    assert page.read_text() == text


def test_a_page_without_marks_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n")
    with pytest.raises(ValueError, match="has no marks"):
        rewrite(page, CELLS)
    assert page.read_text() == "text\n"
