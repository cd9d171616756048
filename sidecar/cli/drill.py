"""``warmroute drill``: rehearse outages and get a verdict."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from sidecar.cli.client import ADMIN, Admin
from sidecar.cli.outcome import EXIT_FAILED, EXIT_OK, EXIT_REFUSED, CliError
from sidecar.cli.tables import show as show_table
from sidecar.cli.tables import table
from sidecar.config.problems import Problem, SettingsError
from sidecar.drills.examine import length_s
from sidecar.drills.reading import load_drill
from sidecar.drills.scenario import Drill, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable

app = App(name="drill", help="Rehearse outages: inject faults, hold objectives, get a verdict.", version_flags=())

SHIPPED = Path("deploy/drills")
RESULTS = Path("drill-results")

Files = Annotated[tuple[Path, ...], Parameter(help="Drills; directories stand for the *.yaml in them.")]
Short = Annotated[bool, Parameter(negative=(), help="The short form: with the times and settings of its `short`.")]
Out = Annotated[Path, Parameter(help="Where the reports go: NAME.json, NAME.xml (JUnit), NAME.html.")]


@app.command
def run(
    file: Annotated[Path, Parameter(help="Drill; a directory stands for the *.yaml in it.")],
    /,
    *more: Annotated[Path, Parameter(help="Further ones, run one after another.", show_default=False)],
    short: Short = False,
    without: Annotated[
        str, Parameter(help="Switch off this feature, as the drill says under `without`: then it must fail.")
    ] = "",
    out: Out = RESULTS,
    target: Annotated[
        str,
        Parameter(help="HOST:PORT that requests go to, of drills that start nothing; needed where they have a load."),
    ] = "",
    admin: Admin = ADMIN,
) -> int:
    """Run drills and say whether their objectives held.

    Exit code 0: all passed. 1: one did not. 2: a file cannot be used, or a drill cannot begin; nothing was touched.
    Ctrl-C ends it: faults are taken back first, and what a drill started is ended.
    """
    from sidecar.drills.reports import summary, write
    from sidecar.drills.show import Show
    from sidecar.drills.whole import DrillError, Form, run_drill

    drills = load_all((file, *more))
    show, form, passed = Show(), Form(short, without), True
    for path, drill in drills:
        if without and without not in drill.without:
            known = ", ".join(drill.without) or "none"
            raise CliError(f'{path}: says not how to do without "{without}"; it has: {known}', EXIT_REFUSED)
        if drill.start is None and not target and any(phase.load and not phase.load.to for phase in drill.phases):
            raise CliError(
                f"{path}: has a load and starts nothing: --target HOST:PORT says where it goes", EXIT_REFUSED
            )
    for path, drill in drills:
        try:
            outcome = run_drill(drill, form, show, os.environ, admin, target.removeprefix("http://"), str(path))
        except DrillError as error:
            raise CliError(str(error), EXIT_REFUSED) from None
        for line in summary(outcome):
            show.line(line)
        try:
            show.line("  " + " ".join(str(made) for made in write(outcome, out)))
        except OSError as error:
            raise CliError(f"--out: {out}: {error.strerror}", EXIT_FAILED) from None
        passed = passed and outcome.verdict.passed
        if outcome.record.cut_short.startswith("interrupted"):
            break
    return EXIT_OK if passed else EXIT_FAILED


@app.command
def matrix(
    directory: Annotated[Path, Parameter(help="Directory with drills, or one drill.")] = SHIPPED,
    /,
    *,
    only: Annotated[tuple[str, ...], Parameter(help="A drill by name; may be repeated.", show_default=False)] = (),
    write: Annotated[Path | None, Parameter(help="Page whose matrix is replaced, between its marks.")] = None,
    out: Out = RESULTS,
) -> int:
    """Run the short form of each drill as shipped, and without each feature that it tests, and show the matrix.

    Exit code 0: each passed as shipped, and failed without. 1: one did not.
    """
    from sidecar.drills import reports
    from sidecar.drills.matrix import Cell, rewrite, table, why
    from sidecar.drills.show import Show
    from sidecar.drills.whole import DrillError, Form, run_drill

    drills = [(path, drill) for path, drill in load_all((directory,)) if not only or drill.name in only]
    for path, drill in drills:
        if drill.start is None:
            raise CliError(f"{path}: starts nothing, so nothing can be switched off: leave it out", EXIT_REFUSED)
    show, cells = Show(), []
    for path, drill in drills:
        for feature in ("", *drill.without):
            form = Form(short=True, without=feature)
            try:
                outcome = run_drill(drill, form, show, os.environ, ADMIN, "", str(path))
            except DrillError as error:
                raise CliError(str(error), EXIT_FAILED) from None
            for line in reports.summary(outcome):
                show.line(line)
            reports.write(outcome, out)
            if outcome.record.cut_short.startswith("interrupted"):
                return EXIT_FAILED
            cells.append(Cell(drill.name, feature, outcome.verdict.passed, why(outcome.verdict)))
    for line in table(cells):
        show.line(line)
    if write is not None:
        try:
            rewrite(write, cells)
        except (OSError, ValueError) as error:
            raise CliError(f"--write: {write}: {error}", EXIT_FAILED) from None
    return EXIT_OK if all(cell.right for cell in cells) else EXIT_FAILED


@app.command
def check(file: Annotated[Path, Parameter(help="Drill, or a directory of them.")], /, *more: Path) -> int:
    """Check drills without touching anything.

    Exit code 0: they can be used. 2: every error names file, line, field, value and remedy.
    """
    for path, drill in load_all((file, *more)):
        print(f"{path}: good: {drill.name}, {len(drill.phases)} phases, {len(drill.objectives)} objectives")
    return EXIT_OK


@app.command(name="list")
def list_drills(directory: Annotated[Path, Parameter(help="Directory with drills.")] = SHIPPED, /) -> int:
    """List the drills in a directory: what they rehearse, for how long, and which features they test."""
    made = table("drill", "at most", "short", "tests", "rehearses", right=("at most", "short"))
    for _, drill in load_all((directory,)):
        short = length_s(shortened(drill))
        made.add_row(drill.name, f"{length_s(drill):.0f} s", f"{short:.0f} s", ", ".join(drill.without), drill.title)
    show_table(made)
    return EXIT_OK


def load_all(paths: Iterable[Path]) -> list[tuple[Path, Drill]]:
    """Return the drills of files and directories; all are read before anything is touched.

    :raises SettingsError: some cannot be used; it holds every problem found.
    :raises CliError: there are none, or two have one name.
    """
    files = [file for path in paths for file in (sorted(path.glob("*.yaml")) if path.is_dir() else [path])]
    if not files:
        raise CliError(f"no *.yaml in {', '.join(map(str, paths))}: name a drill's file", EXIT_REFUSED)
    drills: list[tuple[Path, Drill]] = []
    problems: list[Problem] = []
    for file in files:
        try:
            drills.append((file, load_drill(file)))
        except SettingsError as error:
            problems += error.problems
    if problems:
        raise SettingsError(problems)
    names: dict[str, Path] = {}
    for file, drill in drills:
        if drill.name in names:
            raise CliError(
                f'{file}: the name "{drill.name}" is that of {names[drill.name]}: give it another', EXIT_REFUSED
            )
        names[drill.name] = file
    return drills
