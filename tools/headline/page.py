"""The page: docs/headline.md between its marks, the pictures and the figures in docs/benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tools.headline.plot import drawn
from tools.headline.report import about_figures, from_json, judged, table, to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tools.headline.report import Result

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = "headline.md"
KEPT = "benchmarks/headline.json"
BEGIN = "<!-- measured: written by make headline, from benchmarks/headline.json -->"
END = "<!-- end of measured -->"


def kept(docs: Path = DOCS) -> list[Result]:
    """Return the results that are kept; none where nothing was measured yet."""
    path = docs / KEPT
    return from_json(path.read_bytes()) if path.exists() else []


def keep(results: Sequence[Result], docs: Path = DOCS) -> None:
    """Keep results in place of those of the same profiles, and write the page and its pictures by all that are kept.

    Raises:
        ValueError: the page lacks its marks.
    """
    known = {result.name: result for result in [*kept(docs), *results]}
    (docs / KEPT).write_bytes(to_json(list(known.values())))
    render(docs)


def render(docs: Path = DOCS) -> None:
    """Write the page and its pictures by what is kept.

    Raises:
        ValueError: the page lacks its marks.
    """
    results = kept(docs)
    page = docs / PAGE
    page.write_text(replaced(page.read_text(encoding="utf-8"), results), encoding="utf-8")
    for name, text in pictures(results).items():
        (docs / name).write_text(text, encoding="utf-8")


def pictures(results: Sequence[Result]) -> dict[str, str]:
    """Return the pictures by their path under docs/."""
    return {_picture(result): drawn(result) for result in results}


def replaced(page: str, results: Sequence[Result]) -> str:
    """Return ``page`` with ``results`` between its marks.

    Raises:
        ValueError: it lacks them.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} needs the lines {BEGIN!r} and {END!r}")
    measured = "\n".join(rendered(result) for result in results) or "Nothing was measured yet.\n"
    return f"{before}{BEGIN}\n\n{measured}\n{END}{after}"


def rendered(result: Result) -> str:
    """Return a result as Markdown."""
    verdicts = "\n".join(f"- **{line[0]}**{line[1]}{line[2]}" for line in _lines(result))
    facts = [*result.parameters.items(), *(("version of " + name, one) for name, one in result.versions.items())]
    facts += result.machine.items()
    return "\n\n".join(
        [
            f"## {result.title}",
            verdicts,
            table(result),
            about_figures(result),
            f"![{result.title}: latency over time, and its distribution]({_picture(result)})",
            "\n".join(["| parameter | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in facts)]),
            "",
        ]
    )


def _lines(result: Result) -> list[tuple[str, str, str]]:
    return [judged(verdict).partition(":") for verdict in result.compared.verdicts]


def _picture(result: Result) -> str:
    return f"benchmarks/headline-{result.name}.svg"
