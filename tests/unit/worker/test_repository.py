"""What a worker holds follows its repository: at the start, and by request."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from router.model import State
from tests.support.loops import in_loop, turns, until
from worker.control import Control
from worker.models import UnknownModelError
from worker.repository import Entry, LoadFailedError, RefusedError, StillInUseError
from worker.served import Rest
from worker.store import StoreError, Versions

if TYPE_CHECKING:
    pass

from tests.support.repository_rig import FILE, Bench


@in_loop
async def test_nothing_rests_and_nothing_is_loaded_by_request_without_control(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put("m", "1", "a")
    async with bench.running():
        assert bench.answering == {"m": "a"}
        for change in (bench.repository.load, bench.repository.unload):
            with pytest.raises(RefusedError) as caught:
                await change("m")
            assert str(caught.value) == (
                "model 'm': loading and unloading by request is off; start the worker with --model-control explicit"
            )


@in_loop
async def test_under_explicit_control_only_what_was_said_is_loaded(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT, startup=("b",))
    for name in "abc":
        bench.put(name, "1", name)
    async with bench.running():
        assert bench.answering == {"b": "b"}
        assert [entry for entry in await bench.repository.index() if entry.name == "a"] == [
            Entry("a", "1", "UNAVAILABLE", "unloaded")
        ]
        assert await bench.repository.index(ready_only=True) == [Entry("b", "1", "READY", "")]
        await bench.repository.load("a")
        assert bench.answering == {"a": "a", "b": "b"}
        await bench.repository.unload("b")
        await bench.repository.unload("b")
        assert bench.engine.open == ["a"]
        assert bench.states == {"a@1": State.COLD, "b@1": State.COLD, "c@1": State.COLD} | {"a@1": State.WARM}
        reason = "it is not loaded; POST /v2/repository/models/b/load loads it"
        assert bench.models.find("b").reason == reason
        await bench.repository.load("b")
        assert bench.engine.open == ["a", "b"]


@in_loop
async def test_all_may_be_loaded_at_the_start(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT, startup=("*",))
    for name in "ab":
        bench.put(name, "1", name)
    async with bench.running():
        assert bench.answering == {"a": "a", "b": "b"}


@in_loop
async def test_a_model_to_load_at_the_start_must_be_there(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT, startup=("x",))
    with pytest.raises(StoreError) as caught:
        await bench.repository.find()
    assert str(caught.value) == f"--load-model x: no such model in {root}"


@in_loop
async def test_loading_again_takes_over_what_changed_and_leaves_what_did_not(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT, Versions(2), startup=("*",))
    bench.put("m", "1", "one")
    bench.put("m", "2", "two")
    async with bench.running():
        first = bench.models.find("m", "1").model
        bench.put("m", "2", "two again")
        await bench.repository.load("m")
        assert bench.models.find("m", "1").model is first
        assert bench.engine.open == ["one", "two again"]
        bench.put("m", "3", "three")
        await bench.repository.load("m")
        assert bench.engine.open == ["three", "two again"]
        assert list(bench.states) == ["m@3", "m@2"]


@in_loop
async def test_a_load_that_fails_says_why_and_what_served_serves(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT, startup=("*",))
    bench.put("m", "1", "one")
    async with bench.running():
        bench.put("m", "2", "bad")
        with pytest.raises(LoadFailedError) as caught:
            await bench.repository.load("m")
        assert str(caught.value) == f"model 'm' was not loaded: version 2: {root}/m/2/{FILE}: not a model"
        assert (bench.answering, bench.engine.open) == ({"m": "one"}, ["one"])
        assert bench.states == {"m@2": State.FAILED, "m@1": State.WARM}
        assert await bench.repository.index() == [
            Entry("m", "2", "UNAVAILABLE", f"{root}/m/2/{FILE}: not a model"),
            Entry("m", "1", "READY", ""),
        ]
        bench.put("m", "2", "two")
        await bench.repository.load("m")
        assert (bench.states, bench.engine.open) == ({"m@2": State.WARM}, ["two"])
        bench.put("m", "2", "bad")
        with pytest.raises(LoadFailedError) as caught:
            await bench.repository.load("m")
        why = f"the new content was not taken over: {root}/m/2/{FILE}: not a model"
        assert str(caught.value) == f"model 'm' was not loaded: version 2: {why}"
        assert await bench.repository.index() == [Entry("m", "2", "READY", why)]
        assert bench.answering == {"m": "two"}


@in_loop
async def test_a_model_with_a_name_that_none_may_have_is_told_what_is_wrong_with_it(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT)
    bench.put("m", "1", "one")
    bench.put("bad name", "1", "two")
    why = f"{root}/bad name: name 'bad name': use 1 to 128 of A-Z a-z 0-9 . _ : -"
    async with bench.running():
        assert [(event["model"], event["reason"]) for event in bench.log.events("model.refused")] == [("bad name", why)]
        assert Entry("bad name", "", "UNAVAILABLE", why) in await bench.repository.index()
        with pytest.raises(LoadFailedError) as failed:
            await bench.repository.load("bad name")
        assert str(failed.value) == f"model 'bad name' was not loaded: {why}"
        with pytest.raises(UnknownModelError) as unknown:
            bench.models.find("bad name")
        assert str(unknown.value) == f"model 'bad name' is not served here: {why}"


@in_loop
async def test_what_is_not_in_the_repository_is_not_loaded(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT, names=("m", "n"))
    bench.put("m", "1", "one")
    bench.put("secret", "1", "not to be served")
    async with bench.running():
        assert [event["model"] for event in bench.log.events("model.refused")] == ["n"]
        for name in ("secret", "../m", "n"):
            with pytest.raises(UnknownModelError) as caught:
                await bench.repository.load(name)
            assert str(caught.value) == f"model {name!r} is not in the repository"
        with pytest.raises(UnknownModelError):
            await bench.repository.unload("secret")


@in_loop
async def test_unloading_ends_a_load_that_is_under_way(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT)
    bench.put("m", "1", "one")
    async with bench.running():
        bench.engine.hold = threading.Event()
        loading = asyncio.create_task(bench.repository.load("m"))
        await until(lambda: bench.states["m@1"] is State.LOADING, "the load")
        await bench.repository.unload("m")
        with pytest.raises(LoadFailedError, match="it was unloaded meanwhile"):
            await loading
        bench.engine.hold.set()
        assert bench.states == {"m@1": State.COLD}
        await bench.repository.load("m")
        assert bench.states == {"m@1": State.WARM}


@in_loop
async def test_unloading_ends_a_load_that_waits_for_its_turn(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT)
    for name in "ab":
        bench.put(name, "1", name)
    async with bench.running():
        bench.engine.hold = threading.Event()
        first = asyncio.create_task(bench.repository.load("a"))
        await until(lambda: bench.states["a@1"] is State.LOADING, "the first load")
        second = asyncio.create_task(bench.repository.load("b"))
        await turns()
        await bench.repository.unload("b")
        bench.engine.hold.set()
        await first
        with pytest.raises(LoadFailedError, match="it was unloaded meanwhile"):
            await second
        assert bench.states == {"a@1": State.WARM, "b@1": State.COLD}
        assert bench.engine.open == ["a"]


@in_loop
async def test_a_load_of_what_left_the_repository_leaves_what_serves(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT, startup=("m",))
    bench.put("m", "1", "one")
    async with bench.running():
        (root / "m").rename(root / ".away")
        with pytest.raises(UnknownModelError) as caught:
            await bench.repository.load("m")
        assert str(caught.value) == "model 'm' is not in the repository"
        assert bench.answering == {"m": "one"}
        (root / ".away").rename(root / "m")
        await bench.repository.load("m")
        assert (bench.answering, bench.engine.open) == ({"m": "one"}, ["one"])
        shutil.rmtree(root / "m")
        await bench.repository.unload("m")
        with pytest.raises(UnknownModelError):
            await bench.repository.load("m")
        assert (bench.states, bench.repository._changes._locks) == ({}, {})


@in_loop
async def test_an_unload_says_so_where_something_is_still_used(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT, startup=("m",), drain_s=0.01)
    bench.put("m", "1", "one")
    async with bench.running():
        with bench.models.find("m").hold():
            with pytest.raises(StillInUseError) as caught:
                await bench.repository.unload("m")
            assert str(caught.value) == (
                "model 'm' is unloaded, but requests still run on it after 0.01 s (--drain-s); what they use is given "
                "back when they end: ask again"
            )
            assert bench.states == {"m@1": State.COLD}
        await bench.repository.unload("m")
        assert bench.engine.open == []


@in_loop
async def test_whoever_left_is_told_nothing_and_nobody_else_is(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT)
    bench.put("m", "1", "bad")
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    async with bench.running():
        bench.engine.hold = threading.Event()
        loading = asyncio.create_task(bench.repository.load("m"))
        await until(lambda: bench.states["m@1"] is State.LOADING, "the load")
        loading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await loading
        bench.engine.hold.set()
        await until(lambda: bench.states["m@1"] is State.FAILED, "the failure")
        await until(lambda: not bench.repository._changes._tasks, "the end of its task")
    gc.collect()
    await turns()
    assert [context["message"] for context in told] == []


@in_loop
async def test_a_load_goes_on_where_whoever_asked_goes_away(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT)
    bench.put("m", "1", "one")
    async with bench.running():
        bench.engine.hold = threading.Event()
        loading = asyncio.create_task(bench.repository.load("m"))
        await until(lambda: bench.states["m@1"] is State.LOADING, "the load")
        loading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await loading
        bench.engine.hold.set()
        await until(lambda: bench.states["m@1"] is State.WARM, "the model")


@in_loop
async def test_the_index_finds_models_that_are_new_on_disk_and_forgets_cold_ones_that_left(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT)
    bench.put("m", "1", "one")
    async with bench.running():
        bench.put("n", "7", "new")
        (root / "broken" / "v1").mkdir(parents=True)
        why = f"{root}/broken/v1: version 'v1': a version is a number from 1 to 999999999, without leading zeros"
        assert await bench.repository.index() == [
            Entry("m", "1", "UNAVAILABLE", "unloaded"),
            Entry("n", "7", "UNAVAILABLE", "unloaded"),
            Entry("broken", "", "UNAVAILABLE", why),
        ]
        with pytest.raises(UnknownModelError) as caught:
            bench.models.find("broken")
        assert str(caught.value) == f"model 'broken' is not served here: {why}"
        with pytest.raises(LoadFailedError) as failed:
            await bench.repository.load("broken")
        assert str(failed.value) == f"model 'broken' was not loaded: {why}"
        shutil.rmtree(root / "m")
        shutil.rmtree(root / "broken")
        assert await bench.repository.index() == [Entry("n", "7", "UNAVAILABLE", "unloaded")]


@in_loop
async def test_the_index_leaves_what_is_still_to_be_loaded_at_the_start(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT, startup=("*",))
    for name in "ab":
        bench.put(name, "1", name)
    bench.engine.hold = threading.Event()
    await bench.repository.find()
    running = asyncio.create_task(bench.repository.run())
    await until(lambda: bench.states["a@1"] is State.LOADING, "the first load")
    assert [entry.state for entry in await bench.repository.index()] == ["LOADING", "UNAVAILABLE"]
    bench.engine.hold.set()
    await until(lambda: bench.states == {"a@1": State.WARM, "b@1": State.WARM}, "both")
    bench.repository.drain()
    await running
    bench.repository.take_down()


@in_loop
async def test_what_the_index_finds_rests_until_it_is_asked_for_also_where_models_are_lazy(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT, lazy=True)
    bench.put("m", "1", "one")
    async with bench.running():
        bench.put("n", "1", "new")
        await bench.repository.index()
        assert {replica.rest for replica in bench.models} == {Rest.UNLOADED}


@in_loop
async def test_whoever_asks_for_what_is_not_there_leaves_nothing_behind(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT)
    async with bench.running():
        for number in range(50):
            with pytest.raises(UnknownModelError):
                await bench.repository.load(f"x{number}")
        assert bench.repository._changes._locks == {}
