"""What must hold before a worker loads what its repository has."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from router.model import State
from tests.support.loops import in_loop, turns, until
from tests.support.worker_parts import EmptyLoader
from worker.control import Control
from worker.memory import Memory
from worker.replica import HeldReplica
from worker.repository import LoadFailedError

if TYPE_CHECKING:
    from worker.engines import Cancellation
    from worker.loading import Loaded, Progress
    from worker.stages import Stages
    from worker.store import ModelFiles

from tests.support.repository_rig import FILE, HOUR_S, Bench


@in_loop
async def test_new_content_for_which_there_is_no_memory_leaves_the_old_one_serving(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT, startup=("*",))
    bench.put("m", "1", "one")
    async with bench.running():
        bench.put("m", "1", "two")
        bench.memory = Memory(1, 100)
        with pytest.raises(LoadFailedError, match="version 1: the new content was not taken over: there was no memory"):
            await bench.repository.load("m")
        assert bench.models.find("m").gate.is_open
        assert (bench.answering, bench.engine.open) == ({"m": "one"}, ["one"])
        bench.memory = Memory(100, 100)
        await bench.repository.load("m")
        assert (bench.answering, bench.models.find("m").reason) == ({"m": "two"}, "")


class WaitingLoader(EmptyLoader):
    """Brings nothing in until it is given up, as one that fetches from a source that is slow."""

    def load(self, files: ModelFiles, progress: Progress, cancellation: Cancellation, stages: Stages) -> Loaded:
        while True:
            cancellation.wait(0.005)


def put_slow(bench: Bench, name: str) -> None:
    """Put a version whose source never answers."""
    (bench.root / name / "1").mkdir(parents=True)
    (bench.root / name / "1" / "model.yaml").write_text(f"load: {{source: 'http://127.0.0.1:9/{name}'}}")
    make = bench.repository._changes._make
    bench.repository._changes._make = lambda files: (
        HeldReplica(files, bench.engine, WaitingLoader(), bench.log, lambda: bench.now, lambda: None)
        if files.name == name
        else make(files)
    )


@in_loop
async def test_what_is_fetched_holds_up_no_other_model_at_the_start(root: Path) -> None:
    bench = Bench(root)
    put_slow(bench, "a")
    bench.put("m", "1", "one")
    await bench.repository.find()
    running = asyncio.create_task(bench.repository.run())
    try:
        await until(lambda: bench.answering == {"m": "one"}, "the model that is here")
        assert bench.states["a@1"] is State.LOADING
    finally:
        bench.repository.drain()
        await asyncio.wait_for(running, 5)
        bench.repository.take_down()


@in_loop
async def test_what_is_fetched_holds_up_no_look_at_the_repository(root: Path) -> None:
    bench = Bench(root, Control.POLL)
    bench.put("m", "1", "one")
    async with bench.running():
        put_slow(bench, "a")
        bench.put("m", "1", "two")
        await asyncio.wait_for(bench.look_twice(), 5)
        assert bench.answering == {"m": "two"}
        await until(lambda: bench.states["a@1"] is State.LOADING, "the fetch")
        bench.put("m", "1", "three")
        await asyncio.wait_for(bench.look_twice(), 5)
        assert bench.answering == {"m": "three"}


@in_loop
async def test_what_is_fetched_holds_up_no_other_model_and_is_unloaded_at_once(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT)
    put_slow(bench, "f")
    bench.put("m", "1", "one")
    async with bench.running():
        fetching = asyncio.create_task(bench.repository.load("f"))
        await until(lambda: bench.states["f@1"] is State.LOADING, "the fetch")
        await bench.repository.load("m")
        assert bench.answering == {"m": "one"}
        await bench.repository.unload("f")
        with pytest.raises(LoadFailedError):
            await fetching


@in_loop
async def test_a_fetch_and_a_load_are_not_both_given_the_last_memory(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT)
    (root / "f" / "1" / ".incoming").mkdir(parents=True)
    (root / "f" / "1" / ".incoming" / FILE).write_text("x" * 50)  # the half of it that came before
    (root / "f" / "1" / "model.yaml").write_text("load: {source: 'http://127.0.0.1:9/f'}")
    make = bench._make
    bench.repository._changes._make = lambda files: (
        HeldReplica(files, bench.engine, WaitingLoader(), bench.log, lambda: bench.now, lambda: None)
        if files.name == "f"
        else make(files)
    )
    bench.put("m", "1", "x" * 40)
    async with bench.running():
        fetching = asyncio.create_task(bench.repository.load("f"))
        await until(lambda: bench.states["f@1"] is State.LOADING, "the fetch")
        loading = asyncio.create_task(bench.repository.load("m"))
        await until(lambda: "for loads under way" in bench.models.find("m").reason, "that it is held back")
        assert bench.answering == {}
        await bench.repository.unload("f")
        with pytest.raises(LoadFailedError):
            await fetching
        await loading
        assert bench.answering == {"m": "x" * 40}


@in_loop
async def test_what_waits_for_its_dependencies_holds_up_no_other_model(root: Path) -> None:
    bench = Bench(root, Control.POLL)
    bench.put("m", "1", "one")
    async with bench.running():
        bench.amiss = "the sun is down"
        bench.put("d", "1", "depends")
        (root / "d" / "1" / "model.yaml").write_text("depends_on: ['tcp://127.0.0.1:9']")
        bench.put("m", "1", "two")
        await bench.look_twice()
        assert bench.answering == {"m": "two"}
        await until(lambda: any("the sun is down" in one.reason for one in bench.models.of("d")), "why it waits")
        bench.put("m", "1", "three")
        await bench.look_twice()
        assert bench.answering == {"m": "three"}
        bench.amiss = ""
        await until(lambda: bench.states["d@1"] is State.WARM, "the model that waited")


DEPENDS = "depends_on: ['tcp://127.0.0.1:9']"


@in_loop
async def test_a_dependency_that_is_mended_is_gone_by_also_for_what_waits(root: Path) -> None:
    bench = Bench(root, Control.POLL)
    bench.amiss = "the sun is down"
    bench.put("d", "1", "depends")
    (root / "d" / "1" / "model.yaml").write_text(DEPENDS)
    await bench.repository.find()
    running = asyncio.create_task(bench.repository.run())
    await until(lambda: "the sun is down" in bench.models.find("d").reason, "why it waits")
    await bench.look_twice()
    await turns()
    assert "the sun is down" in bench.models.find("d").reason, "it was given up though nothing changed"
    (root / "d" / "1" / "model.yaml").unlink()
    await bench.look_twice()
    await until(lambda: "the sun is down" not in bench.models.find("d").reason, "the end of the wait")
    await bench.repository.look_again()
    assert (bench.answering, bench.models.find("d").reason) == ({"d": "depends"}, "")
    bench.repository.drain()
    await running
    bench.repository.take_down()


@in_loop
async def test_what_serves_takes_over_content_that_needs_nothing_while_other_content_waits(root: Path) -> None:
    bench = Bench(root, Control.POLL)
    bench.put("d", "1", "one")
    async with bench.running():
        bench.amiss = "the sun is down"
        bench.put("d", "1", "two")
        (root / "d" / "1" / "model.yaml").write_text(DEPENDS)
        await bench.look_twice()
        await until(lambda: "the sun is down" in bench.models.find("d").reason, "why it waits")
        assert bench.answering == {"d": "one"}
        (root / "d" / "1" / "model.yaml").unlink()
        await bench.look_twice()
        await until(lambda: bench.models.find("d").reason == "", "the end of the wait")
        await bench.repository.look_again()
        assert bench.answering == {"d": "two"}


@in_loop
async def test_a_version_that_comes_while_another_waits_is_loaded(root: Path) -> None:
    bench = Bench(root, Control.POLL)
    bench.put("d", "1", "one")
    async with bench.running():
        bench.amiss = "the sun is down"
        bench.put("d", "2", "two")
        (root / "d" / "2" / "model.yaml").write_text(DEPENDS)
        await bench.look_twice()
        await until(lambda: "the sun is down" in bench.models.of("d")[0].reason, "why it waits")
        bench.put("d", "3", "three")
        await bench.look_twice()
        await until(lambda: bench.models.of("d")[0].reason == "", "the end of the wait")
        await bench.repository.look_again()
        assert (bench.answering, list(bench.states)) == ({"d": "three"}, ["d@3"])


@in_loop
async def test_a_model_that_waits_goes_with_its_directory(root: Path) -> None:
    bench = Bench(root, Control.POLL)
    bench.put("m", "1", "one")
    async with bench.running():
        bench.amiss = "the sun is down"
        bench.put("d", "1", "depends")
        (root / "d" / "1" / "model.yaml").write_text(DEPENDS)
        await bench.look_twice()
        await until(lambda: any("the sun is down" in one.reason for one in bench.models.of("d")), "why it waits")
        shutil.rmtree(root / "d")
        await bench.look_twice()
        await turns(20)
        await bench.repository.look_again()
        assert bench.models.names == ("m",)


@in_loop
async def test_a_load_that_is_asked_for_again_goes_by_what_a_model_needs_now(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT)
    bench.put("d", "1", "depends")
    (root / "d" / "1" / "model.yaml").write_text(DEPENDS)
    async with bench.running():
        bench.amiss = "the sun is down"
        first = asyncio.create_task(bench.repository.load("d"))
        await until(lambda: "the sun is down" in bench.models.find("d").reason, "why it waits")
        (root / "d" / "1" / "model.yaml").unlink()
        await bench.repository.load("d")
        with pytest.raises(LoadFailedError, match="its files changed while it waited"):
            await first
        assert bench.answering == {"d": "depends"}


@in_loop
async def test_new_content_of_a_model_that_lost_its_dependencies_is_taken_over_when_it_has_them_again(
    root: Path,
) -> None:
    bench = Bench(root, Control.POLL)
    bench.put("d", "1", "one")
    (root / "d" / "1" / "model.yaml").write_text("depends_on: ['tcp://127.0.0.1:9']")
    async with bench.running():
        bench.amiss = "the sun is down"
        await until(lambda: bench.models.find("d").lost, "the loss")
        bench.put("d", "1", "two")
        await bench.look_twice()
        await turns()
        assert bench.engine.open == ["one"]
        bench.amiss = ""
        await until(lambda: bench.states["d@1"] is State.WARM, "its return")
        await bench.repository.look_again()
        await until(lambda: bench.engine.open == ["two"], "the new content")


@in_loop
async def test_a_model_that_lost_its_dependencies_serves_once_it_needs_them_no_more(root: Path) -> None:
    bench = Bench(root, Control.POLL)
    bench.put("d", "1", "one")
    source = root / "d" / "1" / "model.yaml"
    source.write_text("depends_on: ['tcp://127.0.0.1:9']")
    async with bench.running():
        bench.amiss = "the sun is down"
        await until(lambda: bench.models.find("d").lost, "the loss")
        source.unlink()
        await bench.look_twice()
        await until(lambda: bench.states["d@1"] is State.WARM, "its return")
        assert bench.engine.open == ["one"]


@in_loop
async def test_what_is_held_back_for_memory_holds_up_no_other_model(root: Path) -> None:
    bench = Bench(root, Control.POLL, memory_wait_s=HOUR_S)
    bench.put("m", "1", "one")
    async with bench.running():
        bench.memory = Memory(50, 100)
        bench.put("huge", "1", "x" * 60)
        looking = asyncio.create_task(bench.look_twice())
        await until(lambda: any("held back" in one.reason for one in bench.models.of("huge")), "why it waits")
        bench.put("m", "1", "two")
        await bench.look_twice()
        assert bench.answering == {"m": "two"}
        bench.memory = Memory(100, 100)
        await until(lambda: bench.states["huge@1"] is State.WARM, "the model that waited")
        await looking
