"""Files that somebody opens for writing while models are mapped from them: nobody's memory changes under a run."""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from router.model import State
from tests.support.loops import in_loop, until
from tests.support.worker_parts import DoublingModel, ReadableLog
from worker.engines import Cancellation, EngineError
from worker.gate import GateClosedError
from worker.loading import StrategyName
from worker.loading.leases import Leases
from worker.loading.model_loader import ModelLoader
from worker.loading.own_memory import FileId, mapped_areas
from worker.memory import Memory
from worker.replica import HeldReplica
from worker.stages import Stages
from worker.store import ModelFiles

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="leases and mremap are Linux's")

PAGES = 3
SIZE = PAGES * mmap.PAGESIZE + 17
BODY = {"x": np.ones((1, 2), np.float32)}


class MappedModel(DoublingModel):
    """A model over a file that it has mapped, the way engines do: privately, and to be written to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.detached = self.last = 0
        descriptor = os.open(path, os.O_RDONLY)
        self.weights = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
        os.close(descriptor)

    def compute(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        self.last = self.weights[-1]  # where the file is cut, this is a SIGBUS
        return super().compute(values)

    def unload(self) -> None:
        super().unload()
        self.weights.close()


class MovableModel(MappedModel):
    def detach(self) -> None:
        self.detached += 1


class RefusingModel(MovableModel):
    def detach(self) -> None:
        raise SystemExit("no detaching")


class MappingEngine:
    """Maps ``weights.bin``; while ``hold`` is not set its loads do not end, nor while ``hold_runs`` is not its runs."""

    def __init__(self, kind: type[MappedModel] | None = MovableModel) -> None:
        self.kind = kind
        self.hold: threading.Event | None = None
        self.hold_runs: threading.Event | None = None
        self.loading = threading.Event()
        self.made: list[DoublingModel] = []

    def initialize(self, models: object) -> None:
        pass

    def memory(self) -> None:
        return None

    def load(self, files: ModelFiles, cancellation: Cancellation, stages: Stages) -> DoublingModel:
        self.loading.set()
        while self.hold is not None and not self.hold.is_set():
            cancellation.wait(0.005)
        assert files.directory is not None
        self.made.append(DoublingModel() if self.kind is None else self.kind(files.directory / "weights.bin"))
        self.made[-1].hold = self.hold_runs
        return self.made[-1]


class Bench:
    """A replica of one version with one file, and the leases of its process."""

    def __init__(self, directory: Path, engine: MappingEngine, free_bytes: int = 1 << 40, break_s: float = 45) -> None:
        self.path = directory / "weights.bin"
        self.path.write_bytes(b"\1" * SIZE)
        self.files = ModelFiles("m", "1", directory)
        self.engine = engine
        self.log = ReadableLog()
        self.leases = Leases(self.log, lambda: Memory(free_bytes, 1 << 41), break_s)
        self.replica = self.make()

    def make(self, files: ModelFiles | None = None) -> HeldReplica:
        loader = ModelLoader(StrategyName.POPULATE)
        return HeldReplica(
            files or self.files, self.engine, loader, self.log, lambda: 0.0, lambda: None, leases=self.leases
        )

    async def cut(self) -> None:
        """Cut the file short; returns once that is done."""
        await asyncio.wait_for(asyncio.to_thread(os.truncate, self.path, 1), 20)

    async def rewrite(self) -> None:
        await asyncio.wait_for(asyncio.to_thread(self.path.write_bytes, b"\2" * SIZE), 20)

    def is_mapped(self) -> bool:
        status = self.path.stat()
        return bool(mapped_areas({FileId(status.st_dev, status.st_ino): self.path}))


@asynccontextmanager
async def heeded(bench: Bench) -> AsyncIterator[None]:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGIO})  # as a process may be started
    bench.leases.heed()
    try:
        yield
    finally:
        bench.leases.close()


@pytest.mark.parametrize("how", [Bench.cut, Bench.rewrite])
@in_loop
async def test_what_is_served_stays_when_its_file_is_cut_or_rewritten(
    how: Callable[[Bench], object], tmp_path: Path
) -> None:
    own, others = tmp_path / "m", tmp_path / "l"
    own.mkdir()
    others.mkdir()
    bench = Bench(own, MappingEngine())
    async with heeded(bench):
        linked = others / bench.path.name  # the same file under another model's name
        linked.hardlink_to(bench.path)
        other = bench.make(ModelFiles("l", "1", others))
        assert await bench.replica.bring_up()
        assert await other.bring_up()
        assert bench.leases.held == 2
        first, second = bench.engine.made
        assert isinstance(first, MovableModel)
        assert isinstance(second, MovableModel)
        first.weights[5] = 9
        await how(bench)  # type: ignore[misc]
        await until(lambda: bench.replica.reason and other.reason, "what is said of it")
        assert not bench.is_mapped(), "a page that is touched now would end this process"
        assert first.weights[:] == b"\1" * 5 + b"\x09" + b"\1" * (SIZE - 6)
        assert second.weights[:] == b"\1" * SIZE
        assert (first.detached, second.detached) == (1, 1)
        assert (bench.replica.state, bench.replica.gate.is_open) == (State.WARM, True)
        assert bench.replica.reason.startswith(f"{bench.path}: opened for writing while it is served; what was loaded")
        assert other.reason.startswith(f"{linked}: opened for writing while it is served; what was loaded")
        assert (bench.leases.kept, bench.leases.held) == (2, 0)
        told = bench.log.events("model.file_changing")
        size_bytes = 2 * (PAGES + 1) * mmap.PAGESIZE
        assert sorted((one["model"], one["outcome"], one["file"], one["bytes"]) for one in told) == [
            ("l", "kept", str(linked), size_bytes),
            ("m", "kept", str(bench.path), size_bytes),
        ]
        bench.replica.take_down()
        other.take_down()


@pytest.mark.parametrize(
    ("kind", "free_bytes", "why"),
    [
        (MappedModel, 1 << 40, "its engine cannot have it moved into memory"),
        (RefusingModel, 1 << 40, "SystemExit: no detaching; "),
        (MovableModel, SIZE, f"it cannot be kept in memory: {4 * mmap.PAGESIZE} bytes are more than 80% of the {SIZE}"),
    ],
)
@in_loop
async def test_what_cannot_be_kept_is_taken_out_before_the_writer_goes_on(
    kind: type[MappedModel], free_bytes: int, why: str, tmp_path: Path
) -> None:
    bench = Bench(tmp_path, MappingEngine(kind), free_bytes, break_s=0.3)
    async with heeded(bench):
        assert await bench.replica.bring_up()
        model = bench.engine.made[0]
        model.hold = threading.Event()
        run = asyncio.create_task(asyncio.to_thread(execute, bench.replica), name="a run that goes on")
        await until(lambda: len(model.ran) == 2, "it")
        await bench.cut()
        assert model.closed, "the writer went on first"
        with pytest.raises(EngineError):
            await run
        reason = bench.replica.reason
        assert bench.replica.state is State.FAILED
        assert reason.startswith(f"{bench.path}: is being changed in place while it is served, and {why}"), reason
        with pytest.raises(GateClosedError, match="being changed in place"):
            bench.replica.gate.check()
        assert (bench.leases.taken_out, bench.leases.held) == (1, 0)
        assert bench.log.events("model.file_changing")[0]["outcome"] == "taken_out"
        await bench.rewrite()
        assert await bench.replica.bring_up()
        assert (bench.replica.state, bench.replica.reason) == (State.WARM, "")
        bench.replica.take_down()


@in_loop
async def test_a_swap_that_ends_after_its_old_copy_was_taken_out_serves(tmp_path: Path) -> None:
    bench = Bench(tmp_path, MappingEngine(MappedModel))
    async with heeded(bench):
        assert await bench.replica.bring_up()
        old = bench.engine.made[0]
        successor = tmp_path / "successor"
        successor.mkdir()
        (successor / "weights.bin").write_bytes(b"\3" * SIZE)
        bench.engine.hold = threading.Event()
        bench.engine.loading.clear()
        swap = asyncio.create_task(bench.replica.swap(ModelFiles("m", "1", successor)), name="a swap")
        assert await asyncio.to_thread(bench.engine.loading.wait, 10)
        await bench.cut()
        assert old.closed
        assert (bench.replica.state, bench.replica.gate.is_open) == (State.FAILED, False)
        bench.engine.hold.set()
        assert await swap
        assert (bench.replica.state, bench.replica.gate.is_open, bench.replica.reason) == (State.WARM, True, "")
        bench.replica.take_down()


@pytest.mark.parametrize(("draining", "state"), [(False, State.FAILED), (True, State.COLD)])
@in_loop
async def test_one_that_is_lost_or_ends_is_closed_before_the_writer_goes_on(
    draining: bool, state: State, tmp_path: Path
) -> None:
    bench = Bench(tmp_path, MappingEngine(MappedModel))
    async with heeded(bench):
        assert await bench.replica.bring_up()
        if draining:
            bench.replica.drain()
        else:
            bench.replica.lose("what it depends on is amiss")
        await bench.cut()
        assert bench.engine.made[0].closed
        assert not bench.replica.lost
        assert draining or "is being changed in place" in bench.replica.reason
        bench.replica.take_down()
        assert bench.replica.state is state


@in_loop
async def test_a_load_is_waited_for_and_given_up_where_it_takes_too_long(tmp_path: Path) -> None:
    bench = Bench(tmp_path, MappingEngine())
    bench.engine.hold = threading.Event()
    async with heeded(bench):
        load = asyncio.create_task(bench.replica.bring_up(), name="a load")
        assert await asyncio.to_thread(bench.engine.loading.wait, 10)
        cut = asyncio.create_task(bench.cut(), name="a writer")
        await until(lambda: bench.leases.is_at_work, "that it is heard of")
        bench.engine.hold.set()
        assert await load
        await cut
        assert (bench.replica.state, bench.leases.kept) == (State.WARM, 1)
        bench.replica.take_down()

    bench = Bench(tmp_path, MappingEngine())
    bench.engine.hold_runs = threading.Event()
    async with heeded(bench):
        load = asyncio.create_task(bench.replica.bring_up(), name="a load")
        await until(lambda: bool(bench.engine.made) and bool(bench.engine.made[0].ran), "its warm-up")
        cut = asyncio.create_task(bench.cut(), name="a writer")
        await until(lambda: bench.leases.is_at_work, "that it is heard of")
        assert bench.path.stat().st_size == SIZE
        bench.engine.hold_runs.set()
        assert await load
        await cut
        assert (bench.replica.state, bench.leases.kept) == (State.WARM, 1)
        bench.replica.take_down()

    bench = Bench(tmp_path, MappingEngine(), break_s=0.03)
    bench.engine.hold = threading.Event()
    async with heeded(bench):
        load = asyncio.create_task(bench.replica.bring_up(), name="a load")
        assert await asyncio.to_thread(bench.engine.loading.wait, 10)
        await bench.cut()
        assert not await load
        assert bench.replica.state is State.FAILED
        assert bench.replica.reason.startswith(f"{bench.path}: is being changed in place while it is loaded; put a new")
        assert (bench.leases.failed_loads, bench.leases.held) == (1, 0)


@in_loop
async def test_what_is_not_mapped_has_no_lease_and_what_has_none_is_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path, MappingEngine(None))
    async with heeded(bench):
        assert await bench.replica.bring_up()
        assert bench.leases.held == 0, "the loader's own mapping is never looked into"
        bench.replica.take_down()
        bench.engine.kind = MovableModel
        with bench.path.open("rb+"):
            replica = bench.make()
            assert await replica.bring_up()
        told = bench.log.events("model.not_guarded")
        assert [(one["file"], one["files"], one["reason"]) for one in told] == [
            (str(bench.path), 1, "it is open for writing")
        ]
        replica.take_down()
        assert await bench.replica.retired(1)
        with bench.path.open("rb+") as file:  # nobody is waited for
            fcntl.flock(file, fcntl.LOCK_EX)


def execute(replica: HeldReplica) -> None:
    with replica.hold() as copy:
        replica.execute(copy, BODY, ["y"], {}, Cancellation())
