"""``warmroute bench execution``: what a pool of threads and buffers bring, each alone and both together."""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from worker.bench.onnx_writing import model, node, value_info
from worker.bench.results import median, quantile
from worker.bench.samples import cores
from worker.bench.tables import table
from worker.engines import Cancellation, EngineError
from worker.engines.registry import EngineSettings, make_engine
from worker.execution import Executor, binding
from worker.execution.buffers import Buffers
from worker.flag_types import MAX_THREADS, count, number
from worker.log import EventLog
from worker.stages import Stages
from worker.store import ModelFiles

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from worker.engines import Array, LoadedModel

ROWS: Final = ("none", "pool", "pool + buffers")
SIZES_KIB: Final = (4, 1024, 16384)
ROUNDS: Final = 5
ROUND_S: Final = 1.0
CALLERS: Final = 8
BUFFERS_BYTES: Final = 1 << 30
_FP32: Final = 1
_USAGE = 2


@dataclass(slots=True)
class Sample:
    """One round of a row: answers a second, their times, and how long the collector of garbage stopped the process."""

    qps: float
    took_s: list[float]
    pauses_s: list[float] = field(default_factory=list)
    hit_ratio: float | None = None


@contextmanager
def load(values: int, file: Path | None = None) -> Iterator[LoadedModel]:
    """Load a model of that many values to a row, by the worker's own engine: ``file``, or one that doubles."""
    with tempfile.TemporaryDirectory() as directory:
        if file is None:
            file = Path(directory) / "model.onnx"
            tensors = [[value_info(name, _FP32, ["rows", values])] for name in ("x", "y")]
            file.write_bytes(model("double", [node("Add", ["x", "x"], "y")], [], *tensors))
        engine = make_engine("onnxruntime", EngineSettings(EventLog(sys.stderr)))
        loaded = engine.load(ModelFiles("double", "1", file.parent, file), Cancellation(), Stages())
        try:
            yield loaded
        finally:
            loaded.unload()


class Row:
    """One way to execute requests."""

    def __init__(self, name: str, loaded: LoadedModel, threads: int) -> None:
        self.name = name
        self._model = loaded
        self._executor = Executor(threads, None if name == "none" else CALLERS)
        self.buffers = Buffers(BUFFERS_BYTES) if name == "pool + buffers" else None
        self._slots = threading.Semaphore(threads)

    async def request(self, body: bytes) -> None:
        """Answer one request: its values from bytes, a run, and the answer in bytes."""
        if self.name != "none":
            await self._executor.run(lambda cancellation: self._work(body, cancellation))
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def work() -> None:
            with self._slots:
                self._work(body, Cancellation())
            loop.call_soon_threadsafe(future.set_result, None)

        threading.Thread(target=work, daemon=True).start()
        await future

    def _work(self, body: bytes, cancellation: Cancellation) -> None:
        source: Array = np.frombuffer(body, np.float32).reshape(1, -1)
        empty: Callable[..., Array] = np.empty if self.buffers is None else self.buffers.array
        x = empty(source.shape, source.dtype)
        x[...] = source
        if self.buffers is None:
            (y,) = self._model.run({"x": x}, ["y"], {}, cancellation)
        else:
            (y,) = binding.run(self._model, self.buffers, {"x": x}, ["y"], {}, cancellation)
        y.tobytes()

    def close(self) -> None:
        """End its threads."""
        self._executor.close()


@contextmanager
def pauses() -> Iterator[list[float]]:
    """Measure how long each collection of garbage takes meanwhile, in seconds."""
    found: list[float] = []
    began = 0.0

    def note(phase: str, _: dict[str, Any]) -> None:
        nonlocal began
        if phase == "start":
            began = time.perf_counter()
        else:
            found.append(time.perf_counter() - began)

    gc.callbacks.append(note)
    try:
        yield found
    finally:
        gc.callbacks.remove(note)


async def measure(row: Row, body: bytes, seconds: float, callers: int = CALLERS) -> Sample:
    """Have ``callers`` ask one request after the other for so long."""
    took: list[float] = []
    ends = time.perf_counter() + seconds

    async def caller() -> None:
        while (began := time.perf_counter()) < ends:
            await row.request(body)
            took.append(time.perf_counter() - began)

    before = (0, 0) if row.buffers is None else (row.buffers.hits, row.buffers.misses)
    began = time.perf_counter()
    with pauses() as found:
        work: list[Awaitable[None]] = [caller() for _ in range(callers)]
        await asyncio.gather(*work)
    sample = Sample(len(took) / (time.perf_counter() - began), took, found)
    if row.buffers is not None:
        hits, misses = row.buffers.hits - before[0], row.buffers.misses - before[1]
        sample.hit_ratio = hits / max(1, hits + misses)
    return sample


async def ablation(
    loaded: LoadedModel, body: bytes, rounds: int, seconds: float, threads: int
) -> dict[str, list[Sample]]:
    """Measure every row in turn, so many rounds, each beginning with another row; the first round is a warm-up."""
    rows = [Row(name, loaded, threads) for name in ROWS]
    samples: dict[str, list[Sample]] = {name: [] for name in ROWS}
    try:
        for number in range(rounds + 1):
            for row in (*rows[number % len(rows) :], *rows[: number % len(rows)]):
                sample = await measure(row, body, seconds if number else min(seconds, 0.3))
                if number:
                    samples[row.name].append(sample)
    finally:
        for row in rows:
            row.close()
    return samples


def lines(size_kib: int, samples: dict[str, list[Sample]]) -> list[list[str]]:
    """Return the table's rows of one size: medians over the rounds, and the longest pause of all."""
    found = []
    for name, rounds in samples.items():
        every = [pause for one in rounds for pause in one.pauses_s]
        ratio = rounds[0].hit_ratio
        found.append(
            [
                f"{size_kib:,} KiB",
                name,
                f"{median([one.qps for one in rounds]):,.0f}",
                f"{(median(quantile(one.took_s, 0.99) for one in rounds) or 0.0) * 1000:,.2f}",
                f"{max(every, default=0.0) * 1000:,.2f}",
                f"{sum(every) * 1000 / len(rounds):,.2f}",
                "–" if ratio is None else f"{median([one.hit_ratio or 0.0 for one in rounds]):.1%}",
            ]
        )
    return found


HEAD: Final = (
    "input and output",
    "row",
    "answers/s",
    "P99, ms",
    "longest GC pause, ms",
    "GC pauses in a round, ms",
    "hit rate",
)


def add_command(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command to a parser, by its ``add_parser``."""
    parser = add(
        "execution",
        help="measure the pool of threads and buffers",
        description="Measure an execution without either, with the pool of threads, and with buffers too: the model "
        f"adds, so that what is around it shows. {CALLERS} callers, each asking one request after the other.",
        allow_abbrev=False,
    )
    option = parser.add_argument
    option("--sizes-kib", type=_sizes, default=SIZES_KIB, metavar="N,...", help="of input and output (4,1024,16384)")
    option("--rounds", type=count(1, 1000), default=ROUNDS, metavar="N", help=f"of each row, interleaved ({ROUNDS})")
    option("--round-s", type=number(0.01, 3600), default=ROUND_S, metavar="S", help=f"how long each is ({ROUND_S:g})")
    option("--threads", type=count(1, MAX_THREADS), default=cores(), metavar="N", help="executions at once (all cores)")
    parser.set_defaults(command=run)


def run(given: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    rows: list[list[str]] = []
    try:
        for size_kib in given.sizes_kib:
            values = size_kib * 256
            with load(values) as loaded:
                body = np.ones(values, np.float32).tobytes()
                samples = asyncio.run(ablation(loaded, body, given.rounds, given.round_s, given.threads))
            rows += lines(size_kib, samples)
    except (EngineError, ImportError) as error:
        sys.stderr.write(f"error: {error}\n")
        return _USAGE
    print(table(HEAD, rows))
    return 0


def _sizes(text: str) -> Sequence[int]:
    parts = text.split(",")
    if not all(part.isdecimal() and 1 <= int(part) <= 1 << 16 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r}: expected sizes in KiB, from 1 to 65536, as 4,1024")
    return tuple(map(int, parts))
