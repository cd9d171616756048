"""What a worker holds follows its requests: lazy models, and idle ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from router.model import State
from tests.support.loops import in_loop, turns, until
from worker.control import Control
from worker.gate import GateClosedError
from worker.served import Rest
from worker.store import Versions

if TYPE_CHECKING:
    pass

from tests.support.repository_rig import Bench


@in_loop
async def test_a_lazy_model_is_loaded_by_the_first_request_for_it(root: Path) -> None:
    bench = Bench(root, lazy=True)
    bench.put("m", "1", "one")
    async with bench.running():
        assert bench.states == {"m@1": State.COLD}
        assert bench.models.find("m").rest is Rest.LAZY
        bench.models.find("m")
        await turns()
        assert bench.states == {"m@1": State.COLD}, "whoever only looks loads nothing"
        for _ in range(3):
            bench.models.wanted("m")
        await until(lambda: bench.states["m@1"] is State.WARM, "the model")
        assert len(bench.engine.loaded) == 1
        assert len(bench.log.events("model.wanted")) == 1


@in_loop
async def test_a_lazy_model_that_failed_is_tried_again_by_later_requests_ever_more_rarely(root: Path) -> None:
    bench = Bench(root, lazy=True)
    bench.put("m", "1", "bad")

    def retry_after_s() -> int:
        with pytest.raises(GateClosedError, match="not a model") as caught:
            bench.models.find("m").gate.check()
        return caught.value.retry_after_s

    def failures() -> int:
        return sum(event["to"] == "failed" for event in bench.log.events("model.state"))

    async with bench.running():
        await turns()
        for tries, wait_s in enumerate((1, 2, 4, 8, 16, 32, 60, 60), 1):
            bench.models.wanted("m")
            await until(lambda tries=tries: failures() == tries, "the failure")  # type: ignore[misc]
            assert retry_after_s() == wait_s
            bench.now += wait_s - 0.5
            bench.models.wanted("m")
            await turns()
            assert len(bench.log.events("model.wanted")) == tries, "it is not tried before its time"
            assert retry_after_s() == 1
            bench.now += 0.5
        bench.put("m", "1", "good")
        await turns()
        assert bench.states == {"m@1": State.FAILED}, "nobody asked for it"
        for _ in range(2):
            bench.models.wanted("m")
        await until(lambda: bench.answering == {"m": "good"}, "the model")
        assert len(bench.log.events("model.wanted")) == 9


@in_loop
async def test_what_is_no_longer_to_be_loaded_by_requests_is_not_tried_again_by_them(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT, lazy=True, startup=("*",))
    bench.put("m", "1", "bad")
    async with bench.running():
        bench.models.wanted("m")
        await until(lambda: bench.states["m@1"] is State.FAILED, "the failure")
        await bench.repository.unload("m")
        bench.now = 100.0
        assert not bench.models.wanted("m").can_be_wanted
        await turns()
        assert len(bench.log.events("model.wanted")) == 1


@in_loop
async def test_polling_follows_when_a_model_is_to_be_loaded_and_unloaded(root: Path) -> None:
    bench = Bench(root, Control.POLL)
    bench.put("m", "1", "one")
    bench.put("z", "1", "two")
    (root / "z" / "model.yaml").write_text("lazy: true")
    async with bench.running():
        assert bench.engine.open == ["one"]
        (root / "z" / "model.yaml").write_text("lazy: false")
        (root / "m" / "model.yaml").write_text("idle_unload_s: 5")
        await bench.look_twice()
        assert bench.engine.open == ["one", "two"]
        assert len(bench.engine.loaded) == 2, "what serves is not loaded anew for it"
        bench.now = 6.0
        bench.repository.unload_idle()
        await until(lambda: bench.engine.open == ["two"], "the unload")


@in_loop
async def test_each_model_may_say_for_itself_whether_it_is_lazy(root: Path) -> None:
    bench = Bench(root)
    for name in "ab":
        bench.put(name, "1", name)
    (root / "b" / "model.yaml").write_text("lazy: true")
    async with bench.running():
        assert bench.answering == {"a": "a"}
        await bench.repository.load("b")
        assert bench.answering == {"a": "a", "b": "b"}, "whoever could have it loaded by a request may ask for it"


@in_loop
async def test_a_request_without_a_version_calls_for_the_newest_while_an_older_one_answers(root: Path) -> None:
    bench = Bench(root, versions=Versions(2), lazy=True)
    bench.put("m", "1", "one")
    bench.put("m", "2", "two")
    async with bench.running():
        bench.models.wanted("m", "1")
        await until(lambda: bench.states["m@1"] is State.WARM, "version 1")
        assert bench.states["m@2"] is State.COLD
        assert bench.models.wanted("m").version == "1"
        await until(lambda: bench.states["m@2"] is State.WARM, "version 2")
        assert bench.models.wanted("m").version == "2"


@in_loop
async def test_what_is_idle_is_unloaded_but_not_while_a_request_is_under_way(root: Path) -> None:
    bench = Bench(root, idle_unload_s=30.0)
    for name in "ab":
        bench.put(name, "1", name)
    (root / "b" / "model.yaml").write_text("idle_unload_s: 0")
    async with bench.running():
        with bench.models.find("a").request():
            bench.now = 100.0
            bench.repository.unload_idle()
            await turns()
            assert bench.states == {"a@1": State.WARM, "b@1": State.WARM}
        bench.now = 129.0
        bench.repository.unload_idle()
        await turns()
        assert bench.states == {"a@1": State.WARM, "b@1": State.WARM}
        bench.now = 130.0
        bench.repository.unload_idle()
        await until(lambda: bench.states["a@1"] is State.COLD, "the unload")
        assert bench.engine.open == ["b"]
        assert bench.models.find("a").rest is Rest.IDLE
        assert bench.models.find("a").reason == "it was idle for 30 s; the next request has it loaded"
        bench.models.wanted("a")
        await until(lambda: bench.states["a@1"] is State.WARM, "the next load")


@in_loop
async def test_idleness_is_watched_where_it_counts(root: Path) -> None:
    bench = Bench(root, idle_unload_s=0.5)
    bench.put("m", "1", "one")
    async with bench.running():
        bench.now = 1.0
        await until(lambda: bench.states["m@1"] is State.COLD, "the unload")


@in_loop
async def test_new_content_of_what_rests_is_loaded_when_it_is_wanted(root: Path) -> None:
    bench = Bench(root, Control.POLL, lazy=True)
    bench.put("m", "1", "one")
    async with bench.running():
        bench.put("m", "1", "two")
        await bench.look_twice()
        assert bench.engine.loaded == []
        bench.models.wanted("m")
        await until(lambda: bench.answering == {"m": "two"}, "the model")
        bench.put("m", "2", "three")
        await bench.look_twice()
        assert bench.answering == {"m": "three"}, "a model that answers goes on to"
        assert bench.engine.open == ["three"]
