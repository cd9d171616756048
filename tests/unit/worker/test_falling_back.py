"""Preloads that take longer than their turn: what they leave out, what they say, and that they hold up nobody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from router.model import State
from tests.support.loops import in_loop, until
from tests.support.loops import turns as rounds
from tests.support.repository_rig import Bench
from tests.support.worker_parts import DoublingModel, EmptyLoader, FixedEngine, ReadableLog
from worker.control import Control
from worker.engines import EngineError
from worker.execution import Executor
from worker.exposition import of_process
from worker.loading_turns import MOST_BESIDE
from worker.memory import HostMemory
from worker.metrics import Metrics
from worker.replica import HeldReplica
from worker.served import Rest
from worker.starts import Starts
from worker.store import ModelFiles, Versions
from worker.turns import Standing, TurnOptions, Turns

if TYPE_CHECKING:
    from worker.engines import Cancellation
    from worker.loading import Loaded, Progress
    from worker.stages import Stages

WHY = (
    "it was not warm after 0.02 s of its turn to be preloaded; "
    "what need not be read before it serves comes when it is used"
)


class SlowLoader(EmptyLoader):
    """Has 10 of 30 bytes, and goes on once it is hastened, or never where it is ``stuck``, until ``go`` is set."""

    def __init__(self, go: threading.Event, *, stuck: bool = False) -> None:
        super().__init__()
        self.go = go
        self.stuck = stuck
        self.hastened: list[bool] = []

    def load(self, files: ModelFiles, progress: Progress, cancellation: Cancellation, stages: Stages) -> Loaded:
        progress(10, 30)
        while not self.go.is_set() and (self.stuck or not cancellation.hastened):
            cancellation.wait(0.005)
        self.hastened.append(cancellation.hastened)
        return super().load(files, progress, cancellation, stages)


class Held:
    """One replica whose loader is slow, and whose warm-up run waits for ``proof``."""

    def __init__(self, error: EngineError | None = None) -> None:
        self.go, self.proof = threading.Event(), threading.Event()
        self.loader = SlowLoader(self.go)
        self.log = ReadableLog()
        self.starts = Starts(self.log)
        self.model = DoublingModel(hold=self.proof, error=error)
        self.replica = HeldReplica(
            ModelFiles("m", "1"), FixedEngine(self.model), self.loader, self.log, lambda: 1.0, lambda: None, self.starts
        )

    @property
    def said(self) -> tuple[State, str]:
        report = self.replica.report()
        return report.state, report.reason


@in_loop
async def test_a_load_that_falls_back_says_so_and_is_warm_by_its_warm_up_run_alone() -> None:
    held = Held()
    loading = asyncio.create_task(held.replica.bring_up())
    await until(lambda: held.log.events("model.loading"), "its beginning")
    held.replica.fall_back(0.02)
    assert held.said == (State.LOADING, WHY)
    await until(lambda: held.replica.state is State.WARMING, "its warm-up")
    assert (held.said, held.replica.gate.is_open) == ((State.WARMING, WHY), False)
    held.proof.set()
    assert await loading
    assert (held.said, held.replica.gate.is_open) == ((State.WARM, WHY), True)
    (event,) = held.log.events("load.fell_back")
    told = {name: event[name] for name in ("model", "version", "state", "after_s", "bytes_read", "bytes_total")}
    assert told == {
        "model": "m", "version": "1", "state": "loading", "after_s": 0.02, "bytes_read": 10, "bytes_total": 30,
    }  # fmt: skip
    metrics = Metrics()
    executor = Executor(1, 1)
    metrics.add(of_process(executor, HostMemory(), held.starts, lambda: False))
    assert "warmroute_worker_preloads_fell_back_total 1\n" in await metrics.text()
    executor.close()


@in_loop
async def test_one_whose_warm_up_fails_is_failed_for_that_reason() -> None:
    held = Held(EngineError("bad kernel"))
    loading = asyncio.create_task(held.replica.bring_up())
    await until(lambda: held.log.events("model.loading"), "its beginning")
    held.replica.fall_back(0.02)
    assert not await loading
    assert held.said == (State.FAILED, "warm-up run 'batch-1' failed: bad kernel")


@in_loop
async def test_one_that_is_warm_or_failed_does_not_fall_back() -> None:
    held = Held()
    held.go.set()
    held.proof.set()
    assert await held.replica.bring_up()
    held.replica.fall_back(0.02)
    assert (held.said, held.log.events("load.fell_back")) == ((State.WARM, ""), [])


@in_loop
async def test_one_that_has_not_begun_is_quick_from_the_start_and_the_load_after_it_is_not() -> None:
    held = Held(EngineError("bad kernel"))
    held.replica.fall_back(0.02)
    assert held.said == (State.COLD, "")
    assert not await held.replica.bring_up()
    held.model.error = None
    held.proof.set()
    held.go.set()
    assert await held.replica.bring_up()
    assert held.said == (State.WARM, "")
    assert held.loader.hastened == [True, False]


@in_loop
async def test_one_that_is_unloaded_has_its_next_load_do_everything_again() -> None:
    held = Held()
    held.proof.set()
    held.replica.fall_back(0.02)
    await held.replica.unload(Rest.UNLOADED, "asked for")
    held.go.set()
    assert await held.replica.bring_up()
    assert held.loader.hastened == [False]
    assert held.said == (State.WARM, "")


# --- whose turn it is -------------------------------------------------------------------------------------------------


class Start:
    """A worker's start with ``slow`` models, the first ones, that are stuck until told to go on, and others."""

    def __init__(
        self,
        tmp_path: Path,
        slow: tuple[str, ...],
        others: tuple[str, ...],
        turn_s: float = 0.02,
        versions: Versions | None = None,
    ) -> None:
        self.now = 0.0
        self.root = tmp_path / "models"
        self.bench = Bench(self.root, Control.NONE, versions)
        self.go = {name: threading.Event() for name in slow}
        for name in (*slow, *others):
            self.bench.put(name, "1", name)
        make, repository = self.bench._make, self.bench.repository

        def slow_or_not(files: ModelFiles) -> HeldReplica:
            go = self.go.get(files.name)
            if go is None:
                return make(files)
            loader = SlowLoader(go, stuck=True)
            return HeldReplica(files, self.bench.engine, loader, self.bench.log, lambda: 0.0, lambda: None)

        repository._changes._make = slow_or_not
        self.turns = Turns(
            TurnOptions(1, "i", 60.0, turn_s), tmp_path / "shm", "ns", Standing, self.bench.log, lambda: self.now
        )
        repository._changes._turns = self.turns

    def state(self, name: str) -> State:
        return self.bench.states[f"{name}@1"]

    def fell_back(self) -> list[str]:
        return [event["model"] for event in self.bench.log.events("load.fell_back")]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        (self.root.parent / "shm").mkdir(exist_ok=True)
        await self.bench.repository.find()
        running = asyncio.create_task(self.bench.repository.run())
        try:
            yield running
        finally:
            for go in self.go.values():
                go.set()
            self.bench.repository.drain()
            ended, _ = await asyncio.wait({running}, timeout=5)
            assert ended
            self.bench.repository.take_down()


@in_loop
async def test_a_load_that_takes_longer_than_its_turn_holds_up_no_other_model(tmp_path: Path) -> None:
    start = Start(tmp_path, ("a",), ("b", "c"))
    async with start.running() as running:
        await until(lambda: (start.state("b"), start.state("c")) == (State.WARM, State.WARM), "those behind it")
        assert start.state("a") is State.LOADING
        assert "a" in start.fell_back()  # on a busy machine, others may have too
        assert not running.done(), "it waits for what goes on"
        start.go["a"].set()
        await until(lambda: start.state("a") is State.WARM, "its own end")
        assert start.bench.models.find("a").reason == WHY
        assert start.bench.models.find("b").reason == ""
        await asyncio.wait_for(running, 5)


@in_loop
async def test_the_machine_gets_the_turn_back_whatever_the_load_is_at(tmp_path: Path) -> None:
    start = Start(tmp_path, ("a",), ())
    start.bench.engine.hold = threading.Event()  # a session that is being made
    async with start.running():
        start.go["a"].set()
        await until(lambda: start.state("a") is State.LOADING, "its beginning")
        await until(start.fell_back, "its falling back")
        async with start.turns.turn(lambda: False) as got:
            assert got
            assert start.state("a") is State.LOADING
        start.bench.engine.hold.set()
        await until(lambda: start.state("a") is State.WARM, "its end")


@in_loop
async def test_a_turn_without_an_end_is_kept_for_as_long_as_the_load_takes(tmp_path: Path) -> None:
    start = Start(tmp_path, ("a",), ("b",), turn_s=0.0)
    async with start.running():
        await until(lambda: start.state("a") is State.LOADING, "its beginning")
        await rounds(100)
        assert (start.state("b"), start.fell_back()) == (State.COLD, [])
        start.go["a"].set()
        await until(lambda: start.state("b") is State.WARM, "the next")


@in_loop
async def test_no_more_than_some_go_on_beside_the_others(tmp_path: Path) -> None:
    slow = tuple(f"a{k}" for k in range(MOST_BESIDE + 2))
    start = Start(tmp_path, slow, ("b",))
    async with start.running():
        await until(lambda: len(start.fell_back()) == len(slow) + 1, "that all have had their turn")
        loading = [name for name in slow if start.state(name) is State.LOADING]
        assert loading == list(slow[: MOST_BESIDE + 1]), "two, and one that keeps the worker's turn"
        assert start.state("b") is State.COLD
        start.go[slow[MOST_BESIDE]].set()
        await until(lambda: start.state(slow[-1]) is State.LOADING, "the next")
        for go in start.go.values():
            go.set()
        await until(lambda: {start.state(name) for name in (*slow, "b")} == {State.WARM}, "all")


@in_loop
async def test_another_version_of_a_model_that_takes_long_holds_up_no_other_model(tmp_path: Path) -> None:
    start = Start(tmp_path, ("a",), ("b",), versions=Versions(0))
    start.bench.put("a", "2", "newer")
    start.bench.put("b", "2", "newer")
    async with start.running():
        await until(lambda: start.state("b") is State.WARM, "the other model, whose older version comes last")
        assert (start.bench.states["a@2"], start.state("a")) == (State.LOADING, State.COLD)
        assert start.fell_back().count("a") == 1, "the older version takes no turn to wait for the newer one"
        start.go["a"].set()
        await until(lambda: set(start.bench.states.values()) == {State.WARM}, "all")


@in_loop
async def test_dependencies_are_waited_for_outside_of_the_turn(tmp_path: Path) -> None:
    start = Start(tmp_path, (), ("a", "b"), turn_s=0.0)
    (start.root / "a" / "1" / "model.yaml").write_text("depends_on: ['tcp://127.0.0.1:9']")
    start.bench.amiss = "the sun is down"
    async with start.running():
        await until(lambda: start.state("b") is State.WARM, "the other model")
        assert start.state("a") is State.COLD
        start.bench.amiss = ""
        await until(lambda: start.state("a") is State.WARM, "the one that waited")


@in_loop
async def test_what_somebody_had_loaded_meanwhile_is_not_laid_to_rest_for_want_of_a_turn(tmp_path: Path) -> None:
    start = Start(tmp_path, (), ("a",))
    (tmp_path / "shm").mkdir()
    async with start.turns.turn(lambda: False), start.running() as running:
        await until(lambda: start.turns._users == 2, "that it waits for its turn")
        assert await start.bench.models.find("a").bring_up()
        start.now = 60.0
        await until(running.done, "that it waits no more")
        assert start.bench.models.find("a").gate.is_open


@in_loop
async def test_an_error_of_the_workers_own_ends_the_start(tmp_path: Path) -> None:
    start = Start(tmp_path, ("a",), ())
    async with start.running() as running:
        start.bench.models.find("a").bring_up = _broken  # type: ignore[method-assign, assignment]
        await until(running.done, "its end")
        with pytest.raises(ZeroDivisionError):
            await running


async def _broken(_: ModelFiles | None = None) -> bool:
    raise ZeroDivisionError
