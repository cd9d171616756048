from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest

from router.model import Replica, State
from router.wire import ModelEvent, ModelNews, decode_fields, decode_news
from tests.support.worker_parts import ReadableLog
from worker.memory import Memory
from worker.news import News
from worker.report import RecordBuilder, Reporter, StoreUnavailableError, stepped

GB = 1 << 30


class FakeStore:
    """A writer that keeps what it is told. ``down``: it raises; ``forgetful``: it lacks the record once."""

    def __init__(self) -> None:
        self.calls: list[dict[str, str]] = []
        self.record: dict[str, str] = {}
        self.down = False
        self.removed = 0

    async def write(self, fields: Mapping[str, str]) -> bool:
        if self.down:
            raise StoreUnavailableError("ConnectionError: refused")
        self.calls.append(dict(fields))
        if not self.record and "addr" not in fields:
            return False
        self.record |= fields
        return True

    async def remove(self) -> None:
        if self.down:
            raise StoreUnavailableError("ConnectionError: refused")
        self.removed += 1
        self.record = {}

    async def close(self) -> None:
        pass


class Bench:
    """A reporter over a fake store, with everything that it reads."""

    def __init__(self) -> None:
        self.store = FakeStore()
        self.log = ReadableLog()
        self.memory: Memory | None = Memory(50 * GB, 100 * GB)
        self.replicas = [Replica("m", "1", state=State.WARM, warmth=(("batch-1", 1.0),))]
        self.queue_depth = 0
        self.cpu_load: float | None = None
        self.idle_for_s: float | None = None
        self.now = 0.0
        self.builder = RecordBuilder(
            "w1",
            "e1",
            "http://127.0.0.1:9001",
            self,
            lambda: self.replicas,
            lambda: self.queue_depth,
            lambda: self.cpu_load,
            lambda: self.idle_for_s,
        )
        self.news = News()
        self.reporter = Reporter(self.store, self.builder, self.log, lambda: self.now, lambda: 0.5, self.news)

    def read(self) -> Memory | None:
        return self.memory

    def running(self, check: Callable[[], Awaitable[None]]) -> None:
        async def scenario() -> None:
            task = asyncio.create_task(self.reporter.run())
            try:
                await asyncio.wait_for(check(), 20)
            finally:
                task.cancel()
                await asyncio.wait({task})

        asyncio.run(scenario())


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_first_everything_then_what_changed_then_nothing(bench: Bench) -> None:
    async def check() -> None:
        assert await bench.reporter.flush(5)
        bench.queue_depth = 3
        assert await bench.reporter.flush(5)
        assert await bench.reporter.flush(5)

    bench.running(check)
    first = bench.store.calls[0]
    assert sorted(first) == ["addr", "cpu", "draining", "free", "idle", "proto", "queue", "replicas", "total", "wait"]
    record = decode_fields("w1", {**first, "v": "1", "epoch": "e1", "rev": "1"})
    assert (record.address, record.replicas, record.free_memory_bytes) == (
        "http://127.0.0.1:9001",
        tuple(bench.replicas),
        50 * GB,
    )
    assert [call for call in bench.store.calls[1:] if call] == [{"queue": "3"}]
    assert bench.store.calls[-1] == {}
    assert [event["event"] for event in bench.log.events()] == ["state.registered"]


def test_what_became_of_models_goes_along_and_the_last_of_it_stays(bench: Bench) -> None:
    async def check() -> None:
        assert await bench.reporter.flush(5)
        bench.news.add(ModelEvent.LOADED, "m", "1")
        assert await bench.reporter.flush(5)
        for version in range(2, 12):
            bench.news.add(ModelEvent.UNLOADED, "m", str(version), "idle")
        assert await bench.reporter.flush(5)
        assert await bench.reporter.flush(5)

    bench.running(check)
    assert "news" not in bench.store.calls[0]
    first, last = (decode_news("w1", call["news"]) for call in bench.store.calls if "news" in call)
    assert first == [ModelNews(1, ModelEvent.LOADED, "m", "1", "")]
    assert [one.number for one in last] == [4, 5, 6, 7, 8, 9, 10, 11]


def test_a_store_that_lacks_the_record_gets_everything_again(bench: Bench) -> None:
    async def check() -> None:
        assert await bench.reporter.flush(5)
        bench.store.record = {}
        bench.queue_depth = 1
        assert await bench.reporter.flush(5)

    bench.running(check)
    assert bench.store.calls[-2] == {"queue": "1"}
    assert len(bench.store.calls[-1]) == 10
    assert bench.store.record["queue"] == "1"
    assert len(bench.log.events("state.record_lost")) == 1


def test_losing_the_store_is_logged_once_and_everything_is_sent_on_its_return(bench: Bench) -> None:
    async def check() -> None:
        assert await bench.reporter.flush(5)
        bench.store.down = True
        for _ in range(3):
            assert not await bench.reporter.flush(0.01)
        bench.store.down = False
        bench.now = 4.0
        assert await bench.reporter.flush(5)

    bench.running(check)
    assert len(bench.store.calls[-1]) == 10
    lost, back = bench.log.events("state.lost"), bench.log.events("state.back")
    assert [event["error"] for event in lost] == ["ConnectionError: refused"]
    assert [event["after_s"] for event in back] == [4.0]


def test_the_wait_between_tries_grows_to_a_second_with_jitter(bench: Bench) -> None:
    delays = [bench.reporter._failed(StoreUnavailableError("x")) for _ in range(12)]
    assert delays[0] == pytest.approx(0.075)
    assert delays == sorted(delays)
    assert delays[-1] == pytest.approx(0.05 + 0.95 * 0.5)


def test_leaving_removes_the_record_and_a_store_that_is_down_does_not_hold_it_up(bench: Bench) -> None:
    async def check() -> None:
        assert await bench.reporter.leave(1)
        assert bench.store.removed == 1
        bench.store.down = True
        assert not await bench.reporter.leave(1)

    asyncio.run(check())


def test_beats_come_sooner_while_a_model_loads(bench: Bench) -> None:
    async def quick() -> bool:
        return await bench.reporter._send()

    assert not asyncio.run(quick())
    bench.replicas = [Replica("m", "1", state=State.WARMING)]
    assert asyncio.run(quick())


def test_small_moves_of_memory_are_not_reported(bench: Bench) -> None:
    def free() -> int | None:
        return bench.builder.build().free_memory_bytes

    assert free() == 50 * GB
    bench.memory = Memory(50 * GB - GB // 2, 100 * GB)
    assert free() == 50 * GB
    bench.memory = Memory(49 * GB, 100 * GB)
    assert free() == 49 * GB
    bench.memory = Memory(49 * GB - 1, 60 * GB)
    assert free() == 49 * GB - 1
    bench.memory = None
    assert free() is None


def test_small_moves_of_load_are_not_reported(bench: Bench) -> None:
    def load(now: float | None) -> float | None:
        bench.cpu_load = now
        return bench.builder.build().cpu_load

    assert [load(now) for now in (None, 0.123, 0.16, 0.08, 0.169, 0.175, 1.0, 0.96, None, 0.0)] == [
        None, 0.12, 0.12, 0.12, 0.12, 0.17, 1.0, 1.0, None, 0.0,
    ]  # fmt: skip


def test_times_are_rounded_down_so_that_a_quiet_worker_changes_nothing(bench: Bench) -> None:
    bench.idle_for_s = 5.9
    bench.replicas = [Replica("m", "1", warm_for_s=39.9)]
    record = bench.builder.build()
    assert (record.idle_for_s, record.replicas[0].warm_for_s) == (4.0, 20.0)


@pytest.mark.parametrize(
    ("seconds", "exact_s", "result"),
    [
        (0.0, 10, 0.0),
        (0.9, 10, 0.0),
        (9.99, 10, 9.0),
        (10.0, 10, 10.0),
        (19.9, 10, 10.0),
        (20, 10, 20.0),
        (0.5, 1, 0.0),
    ],
)
def test_stepped(seconds: float, exact_s: int, result: float) -> None:
    assert stepped(seconds, exact_s) == result
    assert stepped(seconds, exact_s) <= seconds
