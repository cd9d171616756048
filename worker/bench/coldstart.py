"""``warmroute bench coldstart``: every row in fresh processes, rounds interleaved, from cold and warm page caches."""

from __future__ import annotations

import argparse
import math
import platform
import re
import shutil
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from worker.baseline import encode_baseline, features
from worker.bench.beside import Beside
from worker.bench.contenders import DEFAULT, MEASURES, PLAIN, Contender, available, contenders, strategies
from worker.bench.fit import FitError, describe, fit
from worker.bench.model import ModelError, find_model
from worker.bench.plot import draw
from worker.bench.results import CACHES, SCHEMA, BesideSample, Machine, Results
from worker.bench.runs import Run, RunsError, append_runs, read_runs
from worker.bench.samples import Measuring, Sample, cores
from worker.bench.tables import report
from worker.bench.worker_start import StartError
from worker.bench.zygotes import BenchZygote
from worker.flag_types import MAX_THREADS, count, number
from worker.memory import HostMemory
from worker.store import ModelFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from router.baseline_load import StartFeatures
    from worker.bench.model import BenchModel
    from worker.bench.samples import Steady

WARM_UPS: Final = 3
ROUNDS: Final = 5
MOST_ROUNDS: Final = 10_000
MOST_SPAN_S: Final = 3600.0
"""How long a load may be."""
MOST_VALUES: Final = 1 << 24
"""Of one input: they are sent as JSON."""
STEADY_S: Final = 3.0
_FAILED, _REFUSED = 1, 2
_DEVICES: Final = {"cpu": (), "cuda": ("CUDAExecutionProvider", "CPUExecutionProvider")}


class Progress:
    """Says on standard error what is being measured, and how long the rest should take."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._began = time.monotonic()
        self._shown = sys.stderr.isatty()

    def step(self, text: str) -> None:
        """One of the starts has ended."""
        self._done += 1
        each_s = (time.monotonic() - self._began) / self._done
        line = f"[{self._done}/{self._total}, {each_s * (self._total - self._done):,.0f} s to go] {text}"
        sys.stderr.write(f"\r\x1b[K{line}" if self._shown else f"{line}\n")
        if self._shown and self._done == self._total:
            sys.stderr.write("\n")
        sys.stderr.flush()


def add_command(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command to a parser, by its ``add_parser``."""
    parser = add(
        "coldstart",
        help="measure starts stage by stage",
        description="Measure starts from spawn to first answer: a plain InferenceSession, every loading strategy, each "
        "measure alone, all together.",
        allow_abbrev=False,
    )
    option = parser.add_argument
    option("model", type=Path, nargs="?", metavar="MODEL", help="a version's directory, as models/synthetic/1")
    option(
        "--strategies", metavar="ROW,...", help="these rows only; --list names them (the plain session is always in)"
    )
    option("--list", action="store_true", help="name the rows and end")
    option(
        "--rounds",
        type=count(1, MOST_ROUNDS),
        default=ROUNDS,
        metavar="N",
        help=f"measured starts of each row ({ROUNDS})",
    )
    option(
        "--warm-ups", type=count(0, MOST_ROUNDS), default=WARM_UPS, metavar="N", help=f"starts before them ({WARM_UPS})"
    )
    option("--caches", type=_caches, default=CACHES, metavar="C,...", help="states of the page cache (cold,warm)")
    option("--keep-libraries", action="store_true", help="cold: empty the page cache of the model's files alone")
    option(
        "--threads",
        type=count(1, MAX_THREADS),
        default=cores(),
        metavar="N",
        help="within one execution of a worker (all cores)",
    )
    option("--shape", type=_shape, action="append", default=[], metavar="INPUT=1x16", help="ask with this; repeatable")
    option("--device", choices=tuple(_DEVICES), default="cpu", help="what executes the model (cpu)")
    option(
        "--steady-s",
        type=number(0, MOST_SPAN_S),
        default=STEADY_S,
        metavar="S",
        help=f"one caller's load afterwards ({STEADY_S:.0f}); 0: none",
    )
    option("--no-beside", action="store_true", help="leave out the load beside the start")
    option("--json", type=Path, metavar="FILE", help="write every sample there")
    option("--plot", type=Path, metavar="FILE", help="draw the stages there, as SVG")
    option("--runs", type=Path, metavar="FILE", help="add every start to this file, to fit a baseline to")
    option("--fit", action="store_true", help="fit a baseline to the runs in --runs; without MODEL nothing is started")
    option("--fit-row", default=DEFAULT, metavar="ROW", help=f"the row whose starts to fit to ({DEFAULT})")
    option("--baseline", type=Path, metavar="FILE", help="write the fitted baseline there, for a worker's --baseline")
    parser.set_defaults(command=run)


def run(given: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    rows = contenders(available(MEASURES), strategies(), _DEVICES[given.device])
    if given.list:
        print("\n".join(row.name for row in rows))
        return 0
    try:
        if given.model is None and not given.fit:
            raise ValueError("MODEL: name the directory of a version, or fit to earlier runs with --fit --runs FILE")
        if given.fit and given.runs is None:
            raise ValueError("--fit: needs --runs FILE, which earlier runs stand in")
        rows = chosen(rows, given.strategies)
        model = None if given.model is None else find_model(given.model, dict(given.shape))
    except (ModelError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        return _REFUSED
    if given.device == "cuda" and shutil.which("nvidia-smi") is None:
        print("skipped: no NVIDIA device here")
        return 0
    try:
        if model is not None:
            _bench(model, rows, given)
        if given.fit:
            _fit(given)
    except (StartError, ModelError, RunsError, FitError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return _FAILED
    return 0


def _bench(model: BenchModel, rows: Sequence[Contender], given: argparse.Namespace) -> None:
    results = measure(model, rows, given)
    print(report(results), end="")
    if given.json is not None:
        given.json.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    if given.plot is not None:
        given.plot.write_text(draw(results))
    if given.runs is not None:
        append_runs(given.runs, _runs(model, results))


def _runs(model: BenchModel, results: Results) -> Iterator[Run]:
    """Every measured start of a worker, as a run that a baseline can be fitted to."""
    known = _known(model)
    for sample in results.samples:
        if sample.row != PLAIN and sample.cached_before is not None:
            yield Run(
                sample.row,
                known.parameters_billions,
                known.saved_percent,
                sample.free_bytes / 1e9,
                results.device != "cpu",
                sample.cached_before,
                sample.warm_s,
            )


def _known(model: BenchModel) -> StartFeatures:
    return features(ModelFiles(model.directory.parent.name, "1", model.directory), None)


def _fit(given: argparse.Namespace) -> None:
    runs = [run for run in read_runs(given.runs) if run.row == given.fit_row]
    found = fit(runs)
    print(f"{given.fit_row}:\n{describe(found)}", end="")
    if given.baseline is not None:
        given.baseline.write_bytes(encode_baseline(found.baseline))


def chosen(rows: Sequence[Contender], text: str | None) -> list[Contender]:
    """Return the rows that ``text`` names, and the plain session before them; all of them where it is None.

    Raises:
        ValueError: it names one that is not there.
    """
    if text is None:
        return list(rows)
    names = [name.strip() for name in text.split(",")]
    known = [row.name for row in rows]
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise ValueError(f"--strategies: {unknown!r}: there is no such row; there are: {', '.join(known)}")
    return [row for row in rows if row.name in (PLAIN, *names)]


def measure(model: BenchModel, rows: Sequence[Contender], given: argparse.Namespace) -> Results:
    """Measure everything.

    Raises:
        StartError: a start failed.
        ModelError: the model cannot be put into repositories.
    """
    steady_rounds = min(given.rounds, 3) if given.steady_s else 0
    beside_rounds = 0 if given.no_beside else min(given.rounds, 3)
    starts = len(rows) * len(given.caches) * (given.warm_ups + given.rounds)
    keeping = [row for row in rows if row.change is not None and row.change.kept]
    progress = Progress(starts + len(keeping) + len(rows) * (steady_rounds + beside_rounds))
    samples: list[Sample] = []
    loads: list[Steady] = []
    with (
        BenchZygote() as zygote,
        Measuring(
            model,
            rows,
            given.threads,
            zygote,
            everything=not given.keep_libraries,
            providers=_DEVICES[given.device],
        ) as measuring,
    ):
        for row in keeping:
            measuring.prepare(row)
            progress.step(f"prepared, {row.name}")
        for number in range(-given.warm_ups, given.rounds):
            for row, cache in _interleaved(rows, given.caches, number):
                sample = measuring.start(row, cache, number)
                progress.step(f"{cache}, {row.name}: {sample.answer_s * 1000:,.0f} ms")
                if number >= 0:
                    samples.append(sample)
        for number in range(steady_rounds):
            for row in rows:
                load = measuring.steady(row, number, given.steady_s)
                progress.step(f"load, {row.name}: {load.after_rps:,.1f} answers/s")
                loads.append(load)
        neighbours = list(_beside(measuring, rows, beside_rounds, progress)) if beside_rounds else []
    order = {row.name: place for place, row in enumerate(rows)}
    samples.sort(key=lambda sample: (order[sample.row], sample.cache, sample.round))
    return Results(
        SCHEMA,
        machine(),
        f"{model.directory.parent.name}@{model.directory.name}",
        model.size_bytes,
        model.shown_shapes,
        given.device,
        given.threads,
        given.rounds,
        given.warm_ups,
        measuring.dropped,
        samples,
        loads,
        neighbours,
        bool(model.packed),
        _known(model).saved_percent,
    )


def _interleaved(rows: Sequence[Contender], caches: Sequence[str], number: int) -> Iterator[tuple[Contender, str]]:
    """Every row from every state of the page cache, each round beginning with another row."""
    first = number % len(rows)
    for row in (*rows[first:], *rows[:first]):
        for cache in caches:
            yield row, cache


def _beside(measuring: Measuring, rows: Sequence[Contender], rounds: int, progress: Progress) -> Iterator[BesideSample]:
    with Beside() as neighbour:
        for number in range(rounds):
            for row in rows:
                quiet_s = neighbour.quiet()
                measuring.start(row, "warm", number)
                sample = BesideSample(row.name, quiet_s, neighbour.take())
                progress.step(f"beside, {row.name}: P99 {sample.during_s * 1000:,.1f} ms")
                yield sample


def machine() -> Machine:
    """Return where this runs."""
    memory = HostMemory().read()
    return Machine(
        cores(),
        _processor(),
        0 if memory is None else memory.total_bytes,
        platform.release(),
        platform.python_version(),
        next(filter(None, map(_version, ("onnxruntime", "onnxruntime-gpu"))), "unknown"),
    )


def _processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    try:
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _caches(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(text.split(",")))
    if not set(found) <= set(CACHES):
        raise argparse.ArgumentTypeError(f"{text!r}: expected some of {','.join(CACHES)}")
    return found


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, dims = text.partition("=")
    parts = dims.split("x")
    if not equals or not all(re.fullmatch("[1-9][0-9]{0,8}", part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text[:80]!r}: expected INPUT=1x16")
    shape = tuple(map(int, parts))
    if math.prod(shape) > MOST_VALUES:
        raise argparse.ArgumentTypeError(f"{text[:80]!r}: expected at most {MOST_VALUES} values")
    return name, shape
