"""Whether a worker as a whole takes requests: what it loads at the start counts, what comes later takes nobody away."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from router.model import State
from tests.support.loops import in_loop, until
from tests.support.repository_rig import Bench
from worker.control import Control
from worker.readiness import not_ready, said_of
from worker.repository import LoadFailedError
from worker.store import Versions


def away(bench: Bench, *, strict: bool = False) -> str:
    """Return what keeps the worker from being ready, ``""`` where nothing does."""
    replica = not_ready(bench.models, strict=strict)
    return "" if replica is None else f"{replica.name}@{replica.version}"


@in_loop
async def test_a_worker_without_models_is_ready(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT)
    async with bench.running():
        assert away(bench) == away(bench, strict=True) == ""


@in_loop
async def test_a_worker_is_ready_once_each_model_of_the_start_has_come_to_an_end(root: Path) -> None:
    bench = Bench(root)
    for name, content in (("a", "one"), ("b", "two")):
        bench.put(name, "1", content)
    await bench.repository.find()
    assert away(bench) == "a@1"
    bench.engine.hold = threading.Event()
    running = asyncio.create_task(bench.repository.run())
    await until(lambda: bench.states["a@1"] is State.LOADING, "the load")
    assert away(bench) == "a@1"
    bench.engine.hold.set()
    await until(lambda: bench.states["a@1"] is State.WARM, "the first")
    assert away(bench) in ("b@1", "")
    await until(lambda: bench.states["b@1"] is State.WARM, "the second")
    assert away(bench) == away(bench, strict=True) == ""
    bench.repository.drain()
    await running
    bench.repository.take_down()


@pytest.mark.parametrize(
    ("contents", "lenient", "strict"),
    [(("one", "bad"), "", "b@1"), (("bad", "one"), "", "a@1"), (("bad", "bad"), "a@1", "a@1")],
)
def test_a_model_of_the_start_that_failed_leaves_the_rest(
    contents: tuple[str, str], lenient: str, strict: str, root: Path
) -> None:
    async def scenario() -> None:
        bench = Bench(root)
        for name, content in zip("ab", contents, strict=True):
            bench.put(name, "1", content)
        async with bench.running():
            assert (away(bench), away(bench, strict=True)) == (lenient, strict)

    asyncio.run(scenario())


@in_loop
async def test_what_a_request_has_loaded_takes_nobody_away_while_it_loads_or_where_it_fails(root: Path) -> None:
    bench = Bench(root)
    bench.put("m", "1", "one")
    for name, content in (("good", "two"), ("poor", "bad")):
        bench.put(name, "1", content)
        (root / name / "model.yaml").write_text("lazy: true")
    async with bench.running():
        bench.engine.hold = threading.Event()
        seen = set()
        for name, end in (("good", State.WARM), ("poor", State.FAILED)):
            bench.models.wanted(name)
            seen |= {away(bench), away(bench, strict=True)}
            await until(lambda name=name: bench.states[f"{name}@1"] is State.LOADING, "the load")  # type: ignore[misc]
            seen |= {away(bench), away(bench, strict=True)}
            bench.engine.hold.set()
            await until(lambda name=name, end=end: bench.states[f"{name}@1"] is end, "its end")  # type: ignore[misc]
            seen |= {away(bench), away(bench, strict=True)}
            bench.engine.hold.clear()
        assert seen == {""}


@in_loop
async def test_a_lazy_model_that_failed_keeps_its_worker_ready_or_nobody_would_try_it_again(root: Path) -> None:
    bench = Bench(root, lazy=True)
    bench.put("m", "1", "bad")
    async with bench.running():
        assert away(bench) == ""
        bench.models.wanted("m")
        await until(lambda: bench.states["m@1"] is State.FAILED, "its end")
        assert away(bench) == away(bench, strict=True) == ""


@in_loop
async def test_where_all_of_the_start_failed_a_model_that_comes_on_request_is_enough(root: Path) -> None:
    bench = Bench(root)
    bench.put("m", "1", "bad")
    bench.put("z", "1", "one")
    (root / "z" / "model.yaml").write_text("lazy: true")
    async with bench.running():
        assert (away(bench), away(bench, strict=True)) == ("", "m@1")


@in_loop
async def test_an_explicit_load_takes_nobody_away(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT, startup=("m",))
    for name, content in (("m", "one"), ("poor", "bad")):
        bench.put(name, "1", content)
    async with bench.running():
        bench.engine.hold = threading.Event()
        loading = asyncio.create_task(bench.repository.load("poor"))
        await until(lambda: bench.states["poor@1"] is State.LOADING, "the load")
        assert away(bench) == away(bench, strict=True) == ""
        bench.engine.hold.set()
        with pytest.raises(LoadFailedError):
            await loading
        assert away(bench) == away(bench, strict=True) == ""
        await bench.repository.unload("m")
        assert away(bench) == away(bench, strict=True) == "", "that was wanted"


@in_loop
async def test_a_new_version_counts_as_the_one_before_it_did(root: Path) -> None:
    bench = Bench(root, Control.POLL)
    bench.put("m", "1", "one")
    (root / "m" / "1" / "model.yaml").write_text("depends_on: [tcp://127.0.0.1:9]")
    async with bench.running():
        bench.put("m", "2", "two")
        (root / "m" / "2" / "model.yaml").write_text("depends_on: [tcp://127.0.0.1:9]")
        await bench.look_twice()
        await until(lambda: bench.states == {"m@2": State.WARM}, "the new version")
        assert away(bench) == ""
        bench.amiss = "nobody there"
        await until(lambda: bench.states == {"m@2": State.FAILED}, "the loss")
        assert away(bench) == "m@2"


@in_loop
async def test_nobody_waits_for_a_model_that_waits_for_what_it_depends_on(root: Path) -> None:
    bench = Bench(root)
    bench.put("a", "1", "one")
    (root / "a" / "1" / "model.yaml").write_text("depends_on: [tcp://127.0.0.1:9]")
    bench.put("b", "1", "two")
    bench.amiss = "nobody there"
    await bench.repository.find()
    running = asyncio.create_task(bench.repository.run())
    await until(lambda: bench.states["b@1"] is State.WARM and not bench.models.find("a").starting, "the other")
    assert (away(bench), away(bench, strict=True)) == ("", "a@1")
    assert not bench.repository.brought_up.is_set()
    bench.amiss = ""
    await until(lambda: away(bench, strict=True) == "", "its dependency")
    await asyncio.wait_for(bench.repository.brought_up.wait(), 5)
    bench.repository.drain()
    await running
    bench.repository.take_down()


@in_loop
async def test_a_ready_model_says_which_newer_version_does_not_serve(root: Path) -> None:
    bench = Bench(root, versions=Versions(3))
    for version, content in (("1", "one"), ("2", "two"), ("3", "bad")):
        bench.put("m", version, content)
    async with bench.running():
        why = f"version 3 does not serve: {root}/m/3/model.txt: not a model"
        newest = bench.models.find("m")
        assert newest.version == "2"
        assert said_of(bench.models, newest, newer=True) == why
        assert said_of(bench.models, newest, newer=False) == ""
        bench.models.find("m").note_unread("why")
        unread = "what is in the repository cannot be read: why"
        assert said_of(bench.models, newest, newer=True) == f"{unread}; {why}"
