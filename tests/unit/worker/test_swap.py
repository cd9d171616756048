"""New content of a version taken over beside the old one, and unloading: nothing from under a run, nothing left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import numpy as np
import pytest

from router.model import State
from router.wire import decode_news
from tests.support.loops import in_loop, turns, until
from tests.support.worker_parts import DoublingModel, EmptyLoader, FixedEngine, ReadableLog
from worker.engines import Cancellation, EngineError
from worker.loading import LoadError
from worker.models import Models
from worker.news import News
from worker.replica import HeldReplica
from worker.served import AtLimitError, Rest, UnloadedError
from worker.store import ModelFiles, ShapeClass

ONE = {"x": np.ones((1, 2), np.float32)}


class Bench:
    """A replica over an engine that loads ``first``, and ``second`` at the next load."""

    def __init__(self) -> None:
        self.first, self.second = DoublingModel(), DoublingModel()
        self.engine = FixedEngine(self.first)
        self.loader = EmptyLoader()
        self.log = ReadableLog()
        self.now = 50.0
        self.reports: list[State] = []
        self.news = News()
        self.replica = HeldReplica(
            ModelFiles("m", "3"), self.engine, self.loader, self.log, lambda: self.now, self._changed, news=self.news
        )

    def _changed(self) -> None:
        self.reports.append(self.replica.state)

    async def warm(self) -> None:
        assert await self.replica.bring_up()
        self.engine.model = self.second
        self.first.ran.clear()
        self.reports.clear()

    @property
    def told(self) -> list[tuple[str, str]]:
        """What the shared state is told of it."""
        return [(one.event.value, one.reason) for one in decode_news("w", self.news.fields()["news"])]

    def run(self) -> None:
        with self.replica.hold() as copy:
            copy.model.run(ONE, ["y"], {}, Cancellation())


def closed(bench: Bench) -> bool:
    return bench.first.closed


@in_loop
async def test_the_new_content_takes_over_and_the_old_one_is_closed() -> None:
    bench = Bench()
    await bench.warm()
    bench.now += 7
    files = ModelFiles("m", "3", warmup=(ShapeClass("a"),))
    assert await bench.replica.swap(files)
    assert await bench.replica.retired(5)
    assert (bench.first.closed, bench.second.closed) == (True, False)
    bench.run()
    assert (len(bench.first.ran), len(bench.second.ran)) == (0, 2), "its warm-up run, and one request's"
    report = bench.replica.report()
    assert (report.state, report.warmth, report.warm_for_s, report.reason) == (State.WARM, (("a", 1.0),), 7.0, "")
    assert bench.replica.files is files
    assert bench.reports == [State.WARM], "it was warm all the time"
    assert bench.log.events("model.swapped")[0]["version"] == "3"
    assert bench.told == [("model-loaded", ""), ("model-swapped", "")]


@in_loop
async def test_a_run_ends_on_the_copy_that_it_began_on() -> None:
    bench = Bench()
    await bench.warm()
    bench.first.hold = threading.Event()
    with bench.replica.hold() as copy:
        assert await bench.replica.swap(ModelFiles("m", "3"))
        running = asyncio.create_task(
            asyncio.to_thread(copy.model.run, ONE, ["y"], {}, Cancellation()), name="the old one's run"
        )
        await until(lambda: bench.first.ran, "the run")
        bench.run()
        assert len(bench.second.ran) == 2
        assert not await bench.replica.retired(0.01)
        assert not closed(bench)
        bench.first.hold.set()
        assert len(await running) == 1
    assert await bench.replica.retired(5)
    assert closed(bench)


@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (lambda bench: setattr(bench.loader, "error", LoadError("/m: no space")), "/m: no space"),
        (lambda bench: setattr(bench.engine, "error", EngineError("not a model")), "not a model"),
        (
            lambda bench: setattr(bench.second, "error", EngineError("bad kernel")),
            "warm-up run 'batch-1' failed: bad kernel",
        ),
    ],
)
def test_a_load_that_fails_leaves_the_old_content_serving(break_it: Callable[[Bench], None], reason: str) -> None:
    async def scenario() -> Bench:
        bench = Bench()
        await bench.warm()
        break_it(bench)
        assert not await bench.replica.swap(ModelFiles("m", "3"))
        return bench

    bench = asyncio.run(scenario())
    bench.run()
    assert (len(bench.first.ran), bench.first.closed) == (1, False)
    report = bench.replica.report()
    assert (report.state, report.reason) == (State.WARM, f"the new content was not taken over: {reason}")
    assert bench.log.events("model.swap_failed")[0]["reason"] == reason
    assert bench.told == [("model-loaded", ""), ("model-swap-failed", reason)]
    assert bench.second.closed == bool(bench.second.error), "what was loaded was given back"


@in_loop
async def test_the_next_good_content_takes_the_trouble_away() -> None:
    bench = Bench()
    await bench.warm()
    bench.engine.error = EngineError("not a model")
    assert not await bench.replica.swap(ModelFiles("m", "3"))
    bench.engine.error = None
    assert await bench.replica.swap(ModelFiles("m", "3"))
    assert bench.replica.reason == ""


@in_loop
async def test_only_what_is_warm_is_swapped() -> None:
    bench = Bench()
    assert not await bench.replica.swap(ModelFiles("m", "3"))
    await bench.warm()
    bench.replica.drain()
    assert not await bench.replica.swap(ModelFiles("m", "3"))
    assert bench.second.ran == []


@in_loop
async def test_a_drain_gives_a_swap_up() -> None:
    bench = Bench()
    await bench.warm()
    bench.engine.hold = threading.Event()
    swapping = asyncio.create_task(bench.replica.swap(ModelFiles("m", "3")))
    await turns(2)
    bench.replica.drain()
    assert not await swapping
    assert bench.replica.state is State.DRAINING
    assert bench.replica.model is bench.first


@in_loop
async def test_unloading_waits_for_requests_and_gives_everything_back() -> None:
    bench = Bench()
    await bench.warm()
    with bench.replica.request():
        unloading = asyncio.create_task(bench.replica.unload(Rest.UNLOADED, "it was unloaded"))
        await until(lambda: not bench.replica.gate.is_open, "the gate")
        assert bench.replica.state is State.DRAINING
        await turns()
        bench.run()
        assert not closed(bench)
    await unloading
    assert closed(bench)
    report = bench.replica.report()
    assert (report.state, report.warmth, report.content_hash) == (State.COLD, (("batch-1", 0.0),), "")
    assert bench.log.events("model.unloaded")[0]["reason"] == "unloaded"
    assert bench.told == [("model-loaded", ""), ("model-unloaded", "unloaded")]
    with pytest.raises(UnloadedError, match="model 'm' was unloaded before this was begun"):
        bench.run()


@in_loop
async def test_requests_are_let_in_while_callers_have_not_heard_of_it() -> None:
    bench = Bench()
    await bench.warm()
    unloading = asyncio.create_task(bench.replica.unload(Rest.UNLOADED, "it was unloaded", settle_s=0.05))
    await turns()
    assert (bench.replica.state, bench.replica.gate.is_open) == (State.DRAINING, True)
    await unloading
    assert not bench.replica.gate.is_open


@in_loop
async def test_a_run_that_does_not_end_does_not_hold_the_unload_up_and_keeps_its_copy() -> None:
    bench = Bench()
    await bench.warm()
    with bench.replica.hold():
        assert not await bench.replica.unload(Rest.UNLOADED, "it was unloaded", drain_s=0.01)
        assert bench.replica.state is State.COLD
        assert not closed(bench)
        assert not await bench.replica.unload(Rest.UNLOADED, "it was unloaded", drain_s=0.01)
    assert await bench.replica.unload(Rest.UNLOADED, "it was unloaded")
    assert closed(bench)
    assert [event["given_back"] for event in bench.log.events("model.unloaded")] == [False]


@in_loop
async def test_what_an_engine_does_not_give_back_at_an_unload_is_told_until_the_next_load() -> None:
    bench = Bench()
    await bench.warm()
    bench.first.keeps = RuntimeError("arena in use")
    why = "its engine failed to give back what it held: RuntimeError: arena in use"
    assert not await bench.replica.unload(Rest.UNLOADED, "it was unloaded")
    assert (bench.replica.state, bench.replica.reason) == (State.COLD, f"it was unloaded; {why}")
    assert bench.log.events("model.not_given_back")[0]["error"] == "RuntimeError: arena in use"
    assert [event["given_back"] for event in bench.log.events("model.unloaded")] == [False]
    assert bench.news.not_given_back == 1
    assert not await bench.replica.unload(Rest.UNLOADED, "it was unloaded"), "it is not given back now, either"
    assert await bench.replica.bring_up()
    assert bench.replica.not_given_back == ""
    assert await bench.replica.unload(Rest.UNLOADED, "it was unloaded")


@in_loop
async def test_what_an_engine_does_not_give_back_after_a_swap_keeps_nothing_from_serving() -> None:
    bench = Bench()
    await bench.warm()
    bench.first.keeps = SystemExit(4)
    assert await bench.replica.swap(ModelFiles("m", "3"))
    assert not await bench.replica.retired(5)
    bench.run()
    said = "the engine raised SystemExit: 4, which would have ended the worker"
    assert bench.log.events("model.not_given_back")[0]["error"] == said
    assert bench.replica.reason == (
        f"its old content is unloaded, but its engine failed to give back what it held: {said}"
    )
    assert await bench.replica.swap(ModelFiles("m", "3"))
    assert bench.replica.reason == ""


@in_loop
async def test_what_failed_is_the_reason_also_where_it_cannot_be_given_back() -> None:
    bench = Bench()
    bench.first.error, bench.first.keeps = KeyboardInterrupt(), RuntimeError("arena in use")
    assert not await bench.replica.bring_up()
    assert bench.replica.reason == (
        "warm-up run 'batch-1' failed: the engine raised KeyboardInterrupt, which would have ended the worker"
    )
    assert bench.log.events("model.not_given_back")[0]["error"] == "RuntimeError: arena in use"


@in_loop
async def test_what_an_engine_does_not_give_back_as_the_worker_ends_holds_nothing_up() -> None:
    bench = Bench()
    await bench.warm()
    bench.first.keeps = RuntimeError("arena in use")
    bench.replica.drain()
    bench.replica.take_down()
    assert (bench.first.closed, bench.replica.state) == (True, State.COLD)
    assert bench.log.events("model.not_given_back")[0]["error"] == "RuntimeError: arena in use"


@in_loop
async def test_unloading_again_ends_a_load_that_waits_for_the_first_to_end() -> None:
    bench = Bench()
    await bench.warm()
    with bench.replica.request():
        unloading = asyncio.create_task(bench.replica.unload(Rest.IDLE, "it was idle"))
        await turns()
        loading = asyncio.create_task(bench.replica.bring_up())
        await turns()
        again = asyncio.create_task(bench.replica.unload(Rest.UNLOADED, "it was unloaded"))
        await turns()
    await asyncio.gather(unloading, again)
    assert not await loading
    assert (bench.replica.state, bench.replica.rest) == (State.COLD, Rest.UNLOADED)
    assert len(bench.log.events("model.warm")) == 1


@in_loop
async def test_unloading_gives_a_load_up_and_it_can_be_loaded_again() -> None:
    bench = Bench()
    bench.engine.hold = threading.Event()
    loading = asyncio.create_task(bench.replica.bring_up())
    await turns(2)
    await bench.replica.unload(Rest.UNLOADED, "it was unloaded")
    assert not await loading
    assert bench.replica.state is State.COLD
    bench.engine.hold.set()
    assert await bench.replica.bring_up()
    bench.run()


@in_loop
async def test_what_failed_can_be_unloaded_and_tried_again() -> None:
    bench = Bench()
    bench.engine.error = EngineError("not a model")
    assert not await bench.replica.bring_up()
    await bench.replica.unload(Rest.UNLOADED, "it was unloaded")
    assert (bench.replica.state, bench.replica.reason) == (State.COLD, "it was unloaded")
    assert bench.told == [("model-load-failed", "not a model")]
    bench.engine.error = None
    assert await bench.replica.bring_up()
    assert bench.replica.reason == ""


@in_loop
async def test_it_is_idle_from_the_end_of_its_last_request_on() -> None:
    bench = Bench()
    await bench.warm()
    bench.now += 5
    assert bench.replica.idle_s() == 5
    with bench.replica.request():
        bench.now += 3
        assert bench.replica.idle_s() == 0
    assert bench.replica.idle_s() == 0
    bench.now += 2
    with bench.replica.request(background=True):
        assert bench.replica.idle_s() == 0, "it is used"
    assert bench.replica.idle_s() == 2, "but nobody waited for that"


@in_loop
async def test_no_more_requests_are_let_in_at_once_than_the_version_may_have() -> None:
    bench = Bench()
    await bench.warm()
    assert await bench.replica.swap(ModelFiles("m", "3", max_requests=2))
    with bench.replica.request(), bench.replica.request():
        with pytest.raises(AtLimitError) as caught, bench.replica.request():
            pass
        assert str(caught.value) == "model 'm' version 3: at its limit of 2 requests at once"
    with bench.replica.request(), bench.replica.request():
        pass


@in_loop
async def test_a_request_that_comes_while_it_goes_has_it_loaded_again() -> None:
    bench = Bench()
    await bench.warm()
    models = Models([bench.replica])
    called: list[HeldReplica] = []
    models.on_wanted = called.append
    with bench.replica.request():
        unloading = asyncio.create_task(bench.replica.unload(Rest.IDLE, "it was idle"))
        await until(lambda: not bench.replica.gate.is_open, "the gate")
        assert models.wanted("m", background=True) is bench.replica
        assert called == [], "background is no reason to load"
        assert models.wanted("m") is bench.replica
        assert called == [bench.replica]
    await unloading
