"""A run on the terminal: one table a profile, then the targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tools.bench.profiles import PROFILES
from tools.bench.tables import memory_rows, rows_of, target_rows

if TYPE_CHECKING:
    from tools.bench.results import Run
    from tools.bench.tables import Rows


def print_report(run: Run) -> None:
    """Print the run on standard output."""
    console = Console()
    console.width = max(console.width, 160)  # the tables are narrower: this only keeps them from being squeezed
    for name in run.samples:
        console.print(_table(PROFILES[name].title, rows_of(run, name)))
    if run.memory:
        console.print(_table("memory (PSS)", memory_rows(run)))
    rows = target_rows(run)
    if len(rows) > 1:
        console.print(_table("what was to be reached", rows))


def _table(title: str, rows: Rows) -> Table:
    table = Table(title=title, title_justify="left")
    for number, heading in enumerate(rows[0]):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    for row in rows[1:]:
        table.add_row(*row)
    return table
