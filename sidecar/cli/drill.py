"""``warmroute drill``: rehearse outages and get a verdict."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from sidecar.cli.client import ADMIN, Admin
from sidecar.cli.outcome import EXIT_FAILED, EXIT_OK, EXIT_REFUSED, CliError, complain
from sidecar.cli.tables import show as show_table
from sidecar.cli.tables import table
from sidecar.config.addresses import AddressError, split_address
from sidecar.config.problems import Problem, SettingsError
from sidecar.drills.examine import length_s
from sidecar.drills.reading import load_drill
from sidecar.drills.scenario import Drill, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.drills.whole import Form

app = App(name="drill", help="Rehearse outages: inject faults, hold objectives, get a verdict.", version_flags=())

SHIPPED = Path("deploy/drills")
RESULTS = Path("drill-results")

Files = Annotated[tuple[Path, ...], Parameter(help="Drills; directories stand for the *.yaml in them.")]
Short = Annotated[bool, Parameter(negative=(), help="The short form: with the times and settings of its `short`.")]
Jobs = Annotated[
    int, Parameter(help="How many at a time, each with a fleet of its own.", validator=Number(gte=1, lte=16))
]
Out = Annotated[Path, Parameter(help="Where the reports go: NAME.json, NAME.xml (JUnit), NAME.html.")]


@app.command
def run(
    file: Annotated[Path, Parameter(help="Drill; a directory stands for the *.yaml in it.")],
    /,
    *more: Annotated[Path, Parameter(help="Further ones.", show_default=False)],
    short: Short = False,
    without: Annotated[
        str, Parameter(help="Switch off this feature, as the drill says under `without`: then it must fail.")
    ] = "",
    jobs: Jobs = 1,
    out: Out = RESULTS,
    target: Annotated[
        str,
        Parameter(help="HOST:PORT that requests go to, of drills that start nothing; needed where they have a load."),
    ] = "",
    parent_pid: Annotated[int | None, Parameter(help="End as by SIGTERM when this process, the parent, does.")] = None,
    admin: Admin = ADMIN,
) -> int:
    """Run drills and say whether their objectives held.

    Exit code 0: all passed. 1: one did not. 2: a file cannot be used, or a drill cannot begin: it touched nothing.
    3: the admin API does not answer. Ctrl-C ends them: faults are taken back first, and what a drill started is ended.
    """
    from sidecar.boot import die_with_parent
    from sidecar.drills.whole import Form

    if parent_pid is not None:
        die_with_parent(parent_pid)
    drills = load_all((file, *more))
    target = target.removeprefix("http://")
    if target:
        try:
            split_address(target)
        except AddressError as error:
            raise CliError(f"--target: {target!r}: {error}", EXIT_REFUSED) from None
    for path, drill in drills:
        if without and without not in drill.without:
            known = ", ".join(drill.without) or "none"
            raise CliError(f'{path}: says not how to do without "{without}"; it has: {known}', EXIT_REFUSED)
        if drill.start is None and not target and any(phase.load and not phase.load.to for phase in drill.phases):
            raise CliError(
                f"{path}: has a load and starts nothing: --target HOST:PORT says where it goes", EXIT_REFUSED
            )
        if drill.start is None and jobs > 1:
            raise CliError(f"{path}: starts nothing: --jobs is for drills with fleets of their own", EXIT_REFUSED)
    _try_out(out)
    if jobs > 1 and len(drills) > 1:
        flags = ["--out", str(out), *(["--short"] if short else []), *(["--without", without] if without else [])]
        codes = _apart([(drill.name, (str(path), *flags)) for path, drill in drills], jobs)
    else:
        codes = _here(drills, Form(short, without), out, target, admin)
    if len(drills) > 1:
        for (_, drill), code in zip(drills, codes, strict=True):
            print(f"{_WORDS.get(code, 'could not begin'):<15} {drill.name}")
    return max(EXIT_FAILED if code is None else code for code in codes)


def _try_out(out: Path) -> None:
    """Refuse a place for reports where none can be written, before a drill that would have none touches anything."""
    from sidecar.drills.reports import try_out

    try:
        try_out(out)
    except OSError as error:
        remedy = "name a directory that can be written to"
        raise CliError(f"--out: {out}: {error.strerror}: {remedy}", EXIT_REFUSED) from None


_WORDS = {EXIT_OK: "passed", EXIT_FAILED: "FAILED", None: "not run"}
"""What became of a drill, by exit code."""


def _here(drills: list[tuple[Path, Drill]], form: Form, out: Path, target: str, admin: Admin) -> list[int | None]:
    """Run drills in this process, one after another; return the exit code of each, None of one that was not run.

    What is told to end between two (SIGINT, SIGTERM, SIGHUP) ends behind the reports of the one before; after the last
    nobody is told anything.
    """
    from sidecar.drills.reports import summary, write
    from sidecar.drills.show import Show
    from sidecar.drills.whole import DrillError, run_drill
    from sidecar.heeding import ignore

    show = Show()
    codes: list[int | None] = [None] * len(drills)
    told = False

    def noted(*_: object) -> None:
        nonlocal told
        ignore()  # first: others that come meanwhile would interrupt this one again and again
        told = True

    for number, (path, drill) in enumerate(drills):
        if told:
            break
        try:
            outcome = run_drill(drill, form, show, os.environ, admin, target, str(path), noted)
        except DrillError as error:
            codes[number] = complain(str(error), error.code)
            if error.interrupted:
                break
            continue
        codes[number] = EXIT_OK if outcome.verdict.passed else EXIT_FAILED
        for line in summary(outcome):
            show.line(line)
        try:
            show.line("  " + " ".join(str(made) for made in write(outcome, out)))
        except OSError as error:
            raise CliError(f"--out: {out}: {error.strerror}", EXIT_FAILED) from None
        if outcome.record.cut_short.startswith("interrupted"):
            break
    ignore()
    return codes


def _apart(parts: list[tuple[str, tuple[str, ...]]], jobs: int) -> list[int | None]:
    """Run drills each in a process of its own, by what their lines begin with and the arguments of ``drill run``."""
    from sidecar.drills.show import Show
    from sidecar.drills.together import Apart, run_together

    apart = [Apart(*part) for part in parts]
    codes = run_together(apart, jobs, os.environ, Show().line, Show(sys.stderr).line)
    known = {None, EXIT_OK, EXIT_FAILED, EXIT_REFUSED}
    return [code if code in known else EXIT_FAILED for code in codes]


@app.command
def matrix(
    directory: Annotated[Path, Parameter(help="Directory with drills, or one drill.")] = SHIPPED,
    /,
    *,
    only: Annotated[tuple[str, ...], Parameter(help="A drill by name; may be repeated.", show_default=False)] = (),
    jobs: Jobs = 1,
    write: Annotated[
        Path | None, Parameter(help="Page whose matrix is replaced, between its marks; with --only, those rows of it.")
    ] = None,
    out: Out = RESULTS,
) -> int:
    """Run the short form of each drill as shipped, and without each feature that it tests, and show the matrix.

    Exit code 0: each passed as shipped, and failed without. 1: one did not.
    """
    from sidecar.drills.matrix import cell_of, digest, rewrite, table
    from sidecar.drills.reports import stem
    from sidecar.drills.whole import Form

    drills = [(path, drill) for path, drill in load_all((directory,)) if not only or drill.name in only]
    for path, drill in drills:
        if drill.start is None:
            raise CliError(f"{path}: starts nothing, so nothing can be switched off: leave it out", EXIT_REFUSED)
    if not drills:
        raise CliError(f"--only: {directory} has no drill {' or '.join(only)}: warmroute drill list", EXIT_REFUSED)
    made_from = {drill.name: digest(path.read_bytes()) for path, drill in drills}
    runs = [(path, drill.name, feature) for path, drill in drills for feature in ("", *drill.without)]
    forms = [Form(short=True, without=feature) for _, _, feature in runs]
    _try_out(out)
    parts, reports = [], []
    for (path, name, feature), form in zip(runs, forms, strict=True):
        flags = ["--short", "--out", str(out), *(["--without", feature] if feature else [])]
        parts.append((f"{name} {form}".rstrip(), (str(path), *flags)))
        reports.append(out / f"{stem(name, str(form))}.json")
    for report in reports:
        report.unlink(missing_ok=True)  # whatever is there afterwards is of this run
    _apart(parts, jobs)
    try:
        cells = [cell_of(*run[1:], report.read_bytes()) for run, report in zip(runs, reports, strict=True)]
    except OSError as error:
        raise CliError(f"the matrix is not whole: {error.filename}: {error.strerror}", EXIT_FAILED) from None
    for line in table(cells):
        print(line)
    if write is not None:
        try:
            rewrite(write, cells, made_from)
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
