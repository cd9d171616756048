"""The page: docs/benchmarks/README.md between its marks, the plots beside it, and the run itself as results.json."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tools.bench import plots
from tools.bench.contenders import COMPILED, OURS
from tools.bench.profiles import MEMORY, PROFILES
from tools.bench.tables import (
    MISSED,
    choice_rows,
    functions_rows,
    kinds_rows,
    memory_rows,
    parts_rows,
    rows_of,
    target_rows,
)
from tools.bench.targets import verdicts

if TYPE_CHECKING:
    from tools.bench.results import Run
    from tools.bench.tables import Rows

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
BEGIN = "<!-- results: written by make bench, from results.json -->"
END = "<!-- end of results -->"
_BUILDS = {OURS: "interpreted", COMPILED: "compiled"}


def write(run: Run, folder: Path = FOLDER) -> None:
    """Write results.json, the plots, and the page's part between the marks.

    Raises:
        ValueError: the page lacks the marks.
    """
    (folder / "results.json").write_bytes(run.to_json())
    for name, text in drawn(run).items():
        (folder / name).write_text(text, encoding="utf-8")
    page = folder / "README.md"
    page.write_text(replaced(page.read_text(encoding="utf-8"), run), encoding="utf-8")


def replaced(page: str, run: Run) -> str:
    """Return ``page`` with the results of ``run`` between its marks.

    Raises:
        ValueError: it lacks the marks.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{rendered(run)}\n{END}{after}"


def drawn(run: Run) -> dict[str, str]:
    """Return the plots that the run has figures for, by file name."""
    made = {"cpu.svg": plots.cpu(run), "others.svg": plots.others(run)}
    made |= {"latency.svg": plots.latency(run), "memory.svg": plots.memory(run)}
    return {name: text for name, text in made.items() if text}


def rendered(run: Run) -> str:
    """Return the results as Markdown."""
    reached = verdicts(run)
    met = sum(1 for one in reached if one.met)
    rounds = f"{run.rounds} interleaved rounds" if run.rounds > 1 else "one round"
    summary = f"{met} of {len(reached)} figures are within their bound. Medians over {rounds} of {run.seconds:g} s"
    parts = [
        "## What was to be reached, and what was",
        f"{summary}; least and most in brackets.",
        _markdown(target_rows(run), strong=MISSED),
        *(f"![{name.removesuffix('.svg')}]({name})" for name in drawn(run)),
        "### The machine",
        _markdown([("", ""), *run.machine.items()]),
    ]
    if run.skipped:
        parts += ["Not measured: " + "; ".join(f"{name} ({why})" for name, why in run.skipped.items()) + "."]
    for name in run.samples:
        parts += [f"## {PROFILES[name].title[0].upper()}{PROFILES[name].title[1:]}", _markdown(rows_of(run, name))]
        parts += _explained(run, name)
    if run.memory:
        parts += ["## Memory", _markdown(memory_rows(run))]
        missed = {one.build for one in reached if one.target.profile == MEMORY and not one.met}
        for name in missed:
            parts += [f"What the idle data process of the {_BUILDS[name]} build is:", _markdown(kinds_rows(run, name))]
    if run.choices:
        parts += ["## One choice of an endpoint, interpreted", _markdown(choice_rows(run))]
    return "\n\n".join(parts) + "\n"


def _explained(run: Run, profile: str) -> list[str]:
    found = run.explained.get(profile, {})
    if not found:
        return []
    unit = PROFILES[profile].unit
    missed = [one for one in verdicts(run) if one.target.profile == profile and not one.met]
    parts = [f"**Where the time goes**, in µs/{unit} of the process that serves, sampled:"]
    if missed:
        bounds = "; ".join(f"{_BUILDS[one.build]} {one.target.bound(one.build)}" for one in missed)
        parts.insert(0, f"Missed: {bounds}.")
    if rows := parts_rows(run, profile):
        parts.append(_markdown(rows))
    if rows := functions_rows(run, profile):
        parts.append(_markdown(rows))
    if missing := dict.fromkeys(text for one in found.values() for text in one.missing):
        parts.append(f"Not sampled further: {'; '.join(missing)}.")
    return parts


def _markdown(rows: Rows | list[tuple[str, str]], strong: str = "") -> str:
    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(f"**{cell}**" if strong and strong in cell else cell for cell in cells) + " |"

    return "\n".join([line(rows[0]), "|" + " --- |" * len(rows[0]), *(line(row) for row in rows[1:])])
