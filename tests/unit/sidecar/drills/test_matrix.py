"""The matrix of drills, and its place in a page."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sidecar.drills.matrix import BEGIN, END, HEAD, Cell, cell_of, digest, rewrite, run_from, table
from sidecar.drills.reading import load_drill

ROOT = Path(__file__).parents[4]
CELLS = [
    Cell("one", "", passed=True),
    Cell("one", "cache", passed=False, why="error_ratio at most 0%: 5%"),
    Cell("one", "retry", passed=True),
]
OTHER = [Cell("other", "", passed=True), Cell("other", "gate", passed=False, why="never")]


def page(path: Path) -> Path:
    path.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    return path


def test_what_came_out_as_it_must() -> None:
    assert [cell.right for cell in CELLS] == [True, True, False]
    assert not Cell("one", "", passed=False).right


def test_a_line_for_each_feature() -> None:
    assert list(table(CELLS))[2:] == [
        "| one | passed | cache | failed | error_ratio at most 0%: 5% |",
        "| one | passed | retry | passed (WRONG) | - |",
    ]


def test_a_cell_is_made_of_a_report() -> None:
    report = b'{"drill": "one", "passed": false, "failed_on": "error_ratio at most 0%: 5%", "figures": {}}'
    assert cell_of("one", "cache", report) == CELLS[1]
    for why, right in (("aborted: error_ratio over 50%", True), ("interrupted (SIGINT)", False), ("", True)):
        cut = msgspec.json.encode({"passed": False, "failed_on": why or "p99_ms at most 5", "cut_short": why})
        assert cell_of("one", "cache", cut).right is right  # it fails, but not because the feature is off
    with pytest.raises(msgspec.DecodeError):
        cell_of("one", "cache", b'{"drill": "one"}')


def test_only_what_is_between_the_marks_is_replaced(tmp_path: Path) -> None:
    file = page(tmp_path / "page.md")
    rewrite(file, CELLS, {"one": "abc"})
    text = file.read_text()
    assert text.startswith(f"before\n{BEGIN}\n\n| drill |")
    assert text.endswith(f"|\n\n<!-- run from: one abc -->\n\n{END}\nafter\n")
    rewrite(file, CELLS, {"one": "abc"})
    assert file.read_text() == text


def test_rows_of_other_drills_stay(tmp_path: Path) -> None:
    file = page(tmp_path / "page.md")
    rewrite(file, CELLS, {"one": "abc"})
    rewrite(file, OTHER, {"other": "def"})
    rewrite(file, [CELLS[0], Cell("one", "retry", passed=False, why="5%")], {"one": "new"})
    assert file.read_text().partition(BEGIN)[2].partition(END)[0].split("\n") == [
        *("", "", *HEAD),
        "| one | passed | retry | failed | 5% |",
        "| other | passed | gate | failed | never |",
        *("", "<!-- run from: one new, other def -->", "", ""),
    ]
    assert run_from(file.read_text()) == {"one": "new", "other": "def"}


def test_a_page_without_marks_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text("text\n")
    with pytest.raises(ValueError, match="has no marks"):
        rewrite(file, CELLS, {})
    assert file.read_text() == "text\n"


def test_the_page_shows_the_drills_as_they_are() -> None:
    """Each passes as shipped and fails without each of its features, and its file is the one that was run."""
    text = (ROOT / "docs" / "drills.md").read_text(encoding="utf-8")
    inside = text.partition(BEGIN)[2].partition(END)[0]
    rows = [
        tuple(part.strip() for part in line.strip("|").split("|")[:4]) for line in inside.splitlines() if "|" in line
    ]
    shipped = sorted((ROOT / "deploy" / "drills").glob("*.yaml"))
    drills = [load_drill(path) for path in shipped]
    wanted = [(drill.name, "passed", feature, "failed") for drill in drills for feature in drill.without]
    again = "warmroute drill matrix --write docs/drills.md --only NAME makes the rows of a drill again"
    assert rows[2:] == sorted(wanted), again
    assert run_from(text) == {path.stem: digest(path.read_bytes()) for path in shipped}, again
