"""The tables of a run and its plot, for the terminal and for docs/routing.md between its marks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.sim.laws import WARM
from tests.sim.runs import HERDS, LYING, ROLLING, STALE_RESTART, Row, verdicts
from tests.sim.signals import Knows
from tools.bench.plots import Group, bars

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.sim.measures import Result
    from tests.sim.runs import Played

Rows = list[tuple[str, ...]]

DOCS = Path(__file__).resolve().parents[2] / "docs"
BEGIN = "<!-- simulated: written by make sim -->"
END = "<!-- end of simulated -->"


def named(row: Row, title: str) -> str:
    """Return what a row is called."""
    if row.law == WARM:
        told = {
            Knows.REPORTS: "workers report",
            Knows.PROOF: "warm-up requests",
            Knows.CHECKS: "checks alone",
            Knows.NOTHING: "told nothing",
        }
        return f"{WARM}, {told[row.knows]}"
    if row.knows is Knows.CHECKS:
        return f"{row.law}, checks that {'lie' if title == LYING else 'tell the truth'}"
    return row.law


def verdict_rows(played: Played) -> Rows:
    """Return each bound beside what was reached."""
    rows: Rows = [("figure", "to reach", "reached", "closest", "")]
    for one in verdicts(played):
        rows.append((one.figure, one.bound, f"{one.reached:.2f} ×", one.who, "✓" if one.met else "✗ missed"))
    return rows


def scenario_rows(played: Played, titles: Sequence[str]) -> Rows:
    """Return every row of these scenarios."""
    rows: Rows = [("scenario", "law", "P50 ms", "P99 ms", "P99.9 ms", "failed")]
    for title, row, result in _in_order(played, titles):
        rows.append((title, named(row, title), *quantiles(result), f"{result.errors / result.requests:.2%}"))
    return rows


def quantiles(result: Result) -> tuple[str, str, str]:
    """Return the three as text."""
    return tuple(f"{ms:,.1f}" if ms < 100 else f"{ms:,.0f}" for ms in (result.p50_ms, result.p99_ms, result.p999_ms))  # type: ignore[return-value]


def matrix_rows(played: Played, titles: Sequence[str]) -> Rows:
    """Return one row a law with a column a scenario: P50, P99 and P99.9."""
    rows: Rows = [("law", *titles)]
    laws = dict.fromkeys(row for title, row in played if title in titles)
    for row in laws:
        cells = [quantiles(played[title, row]) if (title, row) in played else () for title in titles]
        rows.append((named(row, ""), *(" / ".join(cell) for cell in cells)))
    return rows


def herd_rows(played: Played) -> Rows:
    """Return the busiest endpoint's share in any 100 ms, by law."""
    titles = [title for title in HERDS if any(title == each for each, _ in played)]
    rows: Rows = [("law", *titles)]
    for row in dict.fromkeys(row for title, row in played if title in titles):
        rows.append((named(row, ""), *(f"{played[title, row].herd:.2f} ×" for title in titles)))
    return rows


def _in_order(played: Played, titles: Sequence[str]) -> Iterator[tuple[str, Row, Result]]:
    for title in titles:
        for (of, row), result in played.items():
            if of == title:
                yield title, row, result


def tables(played: Played) -> Iterator[tuple[str, Rows]]:
    """Return all tables, each with its heading."""
    titles = list(dict.fromkeys(title for title, _ in played))
    restarts = [title for title in titles if title in (ROLLING, LYING, STALE_RESTART)]
    yield "What was to be reached", verdict_rows(played)
    if restarts:
        yield "Rolling restart", scenario_rows(played, restarts)
    rest = [title for title in titles if title not in restarts and title not in HERDS]
    for number, part in enumerate((rest[:3], rest[3:6], rest[6:])):
        if part:
            heading = ("Steady fleets", "Slow replicas and bursts", "Memory, and many")[number]
            yield f"{heading}: P50 / P99 / P99.9 in ms", matrix_rows(played, part)
    if any(title in HERDS for title in titles):
        yield "Herds: the busiest of equal endpoints in any 100 ms, over its even share", herd_rows(played)


def as_text(rows: Rows) -> str:
    """Return a table in columns."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def as_markdown(rows: Rows) -> str:
    """Return a table as Markdown."""
    head, *body = rows
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in body)])


def plot(played: Played) -> str:
    """Draw the P99.9 of each law in the restarts and in the fleets that tell laws apart."""
    groups = []
    for title in (ROLLING, LYING, "16, a quarter 4 × slower, 70%", "8, in turn 5 × slower, 60%"):
        found = [(row, result) for _, row, result in _in_order(played, (title,)) if _is_drawn(row, title)]
        bars_of = [(row.law, min(result.p999_ms, MOST_MS), f"{result.p999_ms:,.0f} ms") for row, result in found]
        groups.append(Group(title, bars_of))
    note = f"simulated; shorter is better; bars end at {MOST_MS:,.0f} ms"
    return bars("99.9th percentile by law", groups, note, kinds={WARM: "ours"})


MOST_MS = 2200.0


def _is_drawn(row: Row, title: str) -> bool:
    """Return whether it belongs in the plot: each law once, the others without truthful checks."""
    if title == LYING:
        return row.knows is (Knows.PROOF if row.law == WARM else Knows.CHECKS)
    return row.knows is (Knows.REPORTS if row.law == WARM else Knows.NOTHING)


def page(played: Played, seeds: Sequence[int]) -> str:
    """Return what stands between the marks."""
    requests = sum(result.requests for result in played.values())
    parts = [f"{requests / 1e6:.0f} million requests; medians over {len(seeds)} seeds, herds the worst of them."]
    for heading, rows in tables(played):
        parts += [f"**{heading}**", as_markdown(rows)]
        if rows and heading == "What was to be reached":
            parts.append("![The 99.9th percentile by law](pictures/laws.svg)")
    return "\n\n".join(parts)


def write(played: Played, seeds: Sequence[int], docs: Path = DOCS) -> None:
    """Write the page's part and the plot.

    Raises:
        ValueError: the page lacks the marks.
    """
    path = docs / "routing.md"
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} needs the lines {BEGIN!r} and {END!r}")
    path.write_text(f"{before}{BEGIN}\n\n{page(played, seeds)}\n\n{END}{after}", encoding="utf-8")
    (docs / "pictures" / "laws.svg").write_text(plot(played), encoding="utf-8")
