from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from router.model import State
from tests.support.loops import turns
from tests.support.worker_parts import DoublingModel, EmptyLoader, FixedEngine, ReadableLog
from worker.engines import EngineError
from worker.loading import Loaded, LoadError
from worker.loading.version_files import version_files
from worker.replica import HeldReplica
from worker.served import Rest
from worker.store import ModelFiles, ShapeClass

if TYPE_CHECKING:
    from pathlib import Path

    from worker.engines import Array, Cancellation
    from worker.loading import Progress
    from worker.stages import Stages


class Bench:
    """One replica with doubles around it, and the states that were reported, in order."""

    def __init__(
        self, engine: FixedEngine | None = None, loader: EmptyLoader | None = None, files: ModelFiles | None = None
    ) -> None:
        self.model = DoublingModel()
        self.log = ReadableLog()
        self.now = 100.0
        self.seen: list[tuple[State, dict[str, float]]] = []
        self.replica = HeldReplica(
            files or ModelFiles("m", "3"),
            engine or FixedEngine(self.model),
            loader or EmptyLoader(),
            self.log,
            lambda: self.now,
            self._changed,
        )

    def _changed(self) -> None:
        report = self.replica.report()
        self.seen.append((report.state, dict(report.warmth)))


def ready(bench: Bench) -> bool:
    return bench.replica.gate.is_open


def state(bench: Bench) -> State:
    return bench.replica.state


def test_it_is_warm_only_after_every_class_was_proven() -> None:
    bench = Bench(files=ModelFiles("m", "3", warmup=(ShapeClass("a"), ShapeClass("b"))))
    assert not ready(bench)
    asyncio.run(bench.replica.bring_up())
    assert [seen for seen, _ in bench.seen] == [
        State.LOADING,
        State.WARMING,
        State.WARMING,
        State.WARMING,
        State.WARM,
    ]
    assert [warmth for _, warmth in bench.seen][1:] == [
        {"a": 0.0, "b": 0.0},
        {"a": 1.0, "b": 0.0},
        {"a": 1.0, "b": 1.0},
        {"a": 1.0, "b": 1.0},
    ]
    assert ready(bench)
    assert len(bench.model.ran) == 2
    assert bench.replica.counts.executed == 0, "warm-up runs are not requests"
    bench.now += 7
    report = bench.replica.report()
    assert (report.model, report.version, report.content_hash, report.warm_for_s) == ("m", "3", "abc", 7.0)
    (warm,) = bench.log.events("model.warm")
    assert (warm["model"], warm["seconds"], warm["stages"]) == ("m", 0.0, {"warm_up": 0.0})
    assert (warm["strategy"], warm["bytes_read"], warm["residency_ratio"]) == ("full", 10, None)
    assert [(e["from"], e["to"]) for e in bench.log.events("model.state")] == [
        ("cold", "loading"),
        ("loading", "warming"),
        ("warming", "warm"),
    ]


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
def test_facts_that_an_engine_cannot_tell_say_why_and_end_nothing(kind: type[BaseException]) -> None:
    class Broken(DoublingModel):
        def facts(self) -> Mapping[str, Any]:
            raise kind("no facts")

    bench = Bench(FixedEngine(Broken()))
    asyncio.run(bench.replica.bring_up())
    assert bench.replica.engine_facts() == {"error": f"{kind.__name__}: no facts"}


def test_progress_is_logged_at_its_end_and_not_more_often_than_five_times_a_second() -> None:
    bench = Bench()
    for done in range(100):
        bench.now += 0.01
        bench.replica._note_progress(done, 100)
    bench.replica._note_progress(100, 100)
    logged = bench.log.events("model.loading")
    assert logged[-1]["bytes_read"] == logged[-1]["bytes_total"] == 100
    assert 4 <= len(logged) <= 7


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            lambda: Bench(loader=EmptyLoader(LoadError("/m/model.onnx: Permission denied"))),
            "/m/model.onnx: Permission denied",
        ),
        (lambda: Bench(engine=FixedEngine(DoublingModel(), EngineError("not a model"))), "not a model"),
        (
            lambda: Bench(engine=FixedEngine(DoublingModel(error=EngineError("bad kernel")))),
            "warm-up run 'batch-1' failed: bad kernel",
        ),
        (lambda: Bench(loader=EmptyLoader(ZeroDivisionError("oops"))), "ZeroDivisionError: oops"),
        (
            lambda: Bench(files=ModelFiles("m", "3", labels=("a", "b", "c"))),
            "None: 3 labels fit no output; the outputs are y [-1, 2]",
        ),
    ],
)
def test_whatever_breaks_ends_in_failed_with_the_reason(make: Callable[[], Bench], reason: str) -> None:
    bench = make()
    asyncio.run(bench.replica.bring_up())
    report = bench.replica.report()
    assert (report.state, report.reason) == (State.FAILED, reason)
    assert not ready(bench)
    assert bench.log.events("model.state")[-1]["reason"] == reason
    bench.replica.drain()
    bench.replica.take_down()
    assert state(bench) is State.FAILED


def test_a_drain_gives_the_load_up() -> None:
    async def scenario() -> Bench:
        bench = Bench(engine=FixedEngine(DoublingModel(), hold=threading.Event()))
        task = asyncio.create_task(bench.replica.bring_up())
        await turns(1)  # the task's first step
        assert state(bench) is State.LOADING
        bench.replica.drain()
        assert state(bench) is State.DRAINING
        await asyncio.wait_for(task, 5)
        bench.replica.take_down()
        return bench

    bench = asyncio.run(scenario())
    assert state(bench) is State.COLD
    assert not ready(bench)
    assert bench.log.events("model.warm") == []


class Uninterruptible(DoublingModel):
    """Runs that nothing cuts short, once they have begun."""

    def __init__(self) -> None:
        super().__init__()
        self.started, self.release = threading.Event(), threading.Event()

    def compute(self, values: Array) -> Array:
        self.started.set()
        assert self.release.wait(10)
        return values


def test_a_drain_during_the_last_warm_up_run_is_not_undone_by_its_end() -> None:
    async def scenario() -> Bench:
        model = Uninterruptible()
        bench = Bench(engine=FixedEngine(model))
        task = asyncio.create_task(bench.replica.bring_up())
        assert await asyncio.to_thread(model.started.wait, 10)
        bench.replica.drain()
        model.release.set()
        await asyncio.wait_for(task, 5)
        return bench

    bench = asyncio.run(scenario())
    assert state(bench) is State.DRAINING
    assert not ready(bench)
    assert bench.log.events("model.warm") == []


class CheckedLoader(EmptyLoader):
    """What it brought in is looked at once more for as long as a test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.looks, self.release = threading.Event(), threading.Event()

    def load(self, files: ModelFiles, progress: Progress, cancellation: Cancellation, stages: Stages) -> Loaded:
        looks, release = self.looks, self.release

        class Checked(Loaded):
            def check(self) -> None:
                looks.set()
                assert release.wait(10)

        return Checked("abc", 10)


@pytest.mark.parametrize("unloaded", [False, True])
def test_a_drain_or_an_unload_while_the_files_are_looked_at_once_more_is_not_undone(unloaded: bool) -> None:
    async def scenario() -> Bench:
        loader = CheckedLoader()
        bench = Bench(loader=loader)
        task = asyncio.create_task(bench.replica.bring_up())
        assert await asyncio.to_thread(loader.looks.wait, 10)
        unloading = None
        if unloaded:
            unloading = asyncio.create_task(bench.replica.unload(Rest.UNLOADED, "it was unloaded"))
            await turns()
        else:
            bench.replica.drain()
        assert state(bench) is State.DRAINING
        loader.release.set()
        assert not await asyncio.wait_for(task, 5)
        if unloading is not None:
            await unloading
        return bench

    bench = asyncio.run(scenario())
    assert state(bench) is (State.COLD if unloaded else State.DRAINING)
    assert not ready(bench)
    assert bench.model.closed


def test_draining_keeps_the_gate_open_and_taking_down_closes_it() -> None:
    bench = Bench()
    asyncio.run(bench.replica.bring_up())
    bench.replica.drain()
    assert state(bench) is State.DRAINING
    assert ready(bench)
    bench.replica.take_down()
    assert not ready(bench)
    assert bench.model.closed
    assert bench.replica.model is None


class ChangedAfterwards(EmptyLoader):
    """A loader whose file is not what it was by the time that the model is warm."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def load(self, files: ModelFiles, progress: Progress, cancellation: Cancellation, stages: Stages) -> Loaded:
        self.path.write_bytes(b"abc")
        (file,) = version_files(self.path.parent)
        self.path.write_bytes(b"ab")
        return Loaded("abc", 3, files=(file,))


def test_a_file_that_changed_before_the_model_was_warm_fails_it(tmp_path: Path) -> None:
    bench = Bench(loader=ChangedAfterwards(tmp_path / "f"))
    asyncio.run(bench.replica.bring_up())
    assert state(bench) is State.FAILED
    assert bench.replica.report().reason.startswith(f"{tmp_path}/f: changed from 3 to 2 bytes while it was loaded; put")
