from __future__ import annotations

import _thread
import asyncio
import threading
from functools import partial
from typing import Any

import pytest

from tests.support.loops import turns
from worker.engines import Cancellation, EngineError, GivenUpError
from worker.execution import DeadlineError, Executor, Order, QueueFullError, Ticket


def same(number: int, _: Cancellation) -> int:
    return number


class Held:
    """A call that lasts until it is released or given up."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.release = threading.Event()
        self.given_up = threading.Event()

    def __call__(self, cancellation: Cancellation) -> str:
        cancellation.on_cancel(self.release.set)
        self.started.set()
        assert self.release.wait(10)
        if cancellation.cancelled:
            self.given_up.set()
            raise GivenUpError("x")
        return "done"


async def threads_through(executor: Executor) -> None:
    """Wait until no thread is at work any more, and the loop knows."""
    while executor.busy:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await turns(2)


def test_runs_calls_and_passes_on_what_they_return_and_raise() -> None:
    async def scenario() -> None:
        executor = Executor(1, 1)
        assert await executor.run(lambda _: 7) == 7

        def fail(_: Cancellation) -> None:
            raise ValueError("no")

        with pytest.raises(ValueError, match=r"^no$"):
            await executor.run(fail)
        assert executor.in_flight == 0
        executor.close()

    asyncio.run(scenario())


class Mute(BaseException):
    """What ends more than a call, and fails as it is asked what it says."""

    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (SystemExit(3), "the engine raised SystemExit: 3, which would have ended the worker"),
        (KeyboardInterrupt(), "the engine raised KeyboardInterrupt, which would have ended the worker"),
        (
            Mute(),
            "the engine raised Mute: Mute, which cannot say more, which would have ended the worker",
        ),
        (asyncio.CancelledError(), "the engine raised CancelledError, which would have ended the worker"),
    ],
)
def test_what_would_end_the_process_fails_its_call_only(raised: BaseException, said: str) -> None:
    async def scenario() -> None:
        executor = Executor(1, 1)

        def fail(_: Cancellation) -> None:
            raise raised

        with pytest.raises(EngineError) as caught:
            await executor.run(fail)
        assert str(caught.value) == said
        assert await executor.run(lambda _: 7) == 7
        executor.close()

    asyncio.run(scenario())


def test_rejects_what_neither_runs_nor_fits_the_queue() -> None:
    async def scenario() -> None:
        executor = Executor(1, 2)
        held = Held()
        tasks = [asyncio.create_task(executor.run(held)) for _ in range(3)]
        await asyncio.to_thread(held.started.wait, 10)
        assert (executor.in_flight, executor.queue_depth) == (3, 2)
        with pytest.raises(QueueFullError, match=r"^the worker's queue is full \(2 requests wait\)$"):
            await executor.run(held)
        held.release.set()
        assert await asyncio.gather(*tasks) == ["done"] * 3
        assert (executor.in_flight, executor.queue_depth) == (0, 0)
        executor.close()

    asyncio.run(scenario())


def test_a_caller_that_leaves_cancels_what_runs_and_unqueues_what_waits() -> None:
    async def scenario() -> None:
        executor = Executor(1, 1)
        running, waiting = Held(), Held()
        first = asyncio.create_task(executor.run(running))
        await asyncio.to_thread(running.started.wait, 10)
        second = asyncio.create_task(executor.run(waiting))
        await turns(1)
        assert executor.queue_depth == 1
        second.cancel()
        await asyncio.wait({second})
        assert second.cancelled()
        first.cancel()
        await asyncio.wait({first})
        await threads_through(executor)
        assert executor.in_flight == 0
        assert running.given_up.is_set()
        assert not waiting.started.is_set()
        executor.close()

    asyncio.run(scenario())


def test_a_place_is_taken_until_the_thread_is_through() -> None:
    async def scenario() -> None:
        executor = Executor(1, 0)
        go_on, started = threading.Event(), threading.Event()

        def stubborn(_: Cancellation) -> None:
            started.set()
            go_on.wait(10)

        task = asyncio.create_task(executor.run(stubborn))
        await asyncio.to_thread(started.wait, 10)
        task.cancel()
        await asyncio.wait({task})
        assert executor.in_flight == 1
        with pytest.raises(QueueFullError):
            await executor.run(lambda _: None)
        go_on.set()
        await threads_through(executor)
        assert executor.in_flight == 0
        executor.close()

    asyncio.run(scenario())


def test_a_place_may_be_taken_before_there_is_a_call() -> None:
    async def scenario() -> None:
        executor = Executor(1, 0)
        with executor.place() as place:
            assert executor.in_flight == 1
            with pytest.raises(QueueFullError), executor.place():
                pass
            assert await place.run(lambda _: "done") == "done"
        assert executor.in_flight == 0
        with executor.place():
            pass  # whoever wanted it thought better of it
        assert executor.in_flight == 0
        with executor.place() as place:
            executor.close()
            with pytest.raises(GivenUpError):
                await place.run(lambda _: None)
        assert executor.in_flight == 0

    asyncio.run(scenario())


def test_closing_gives_everything_up() -> None:
    async def scenario() -> None:
        executor = Executor(1, 1)
        running, waiting = Held(), Held()
        first = asyncio.create_task(executor.run(running))
        await asyncio.to_thread(running.started.wait, 10)
        second = asyncio.create_task(executor.run(waiting))
        await turns(1)
        executor.close()
        results = await asyncio.gather(first, second, return_exceptions=True)
        assert isinstance(results[0], GivenUpError)
        assert isinstance(results[1], asyncio.CancelledError | GivenUpError)
        await threads_through(executor)
        assert executor.in_flight == 0

    asyncio.run(scenario())


def test_cancellation_calls_back_once_also_when_late() -> None:
    calls: list[str] = []
    cancellation = Cancellation()
    cancellation.on_cancel(lambda: calls.append("early"))
    cancellation.wait(0)
    cancellation.cancel()
    cancellation.cancel()
    cancellation.on_cancel(lambda: calls.append("late"))
    assert calls == ["early", "late"]
    with pytest.raises(GivenUpError):
        cancellation.wait(0)


def test_what_calls_waited_for_a_thread_is_measured_but_for_those_of_the_background() -> None:
    async def scenario() -> None:
        now = 100.0
        executor = Executor(1, 8, lambda: now)
        assert executor.queue_time_ms() is None
        held = Held()
        first = asyncio.create_task(executor.run(held))
        await asyncio.to_thread(held.started.wait, 10)
        await turns(1)
        with executor.place() as place:
            apart = asyncio.create_task(place.run(lambda _: None, Ticket(background=True)))
            second = asyncio.create_task(executor.run(lambda _: None))
            await turns(1)
            now += 0.2
            held.release.set()
            await asyncio.gather(first, second, apart)
        await threads_through(executor)
        await turns(1)
        assert executor.queue_time_ms() == pytest.approx(100.0)  # one waited for nobody, one for 200 ms
        now += 120.0
        executor.queue_time_ms()
        now += 120.0
        assert executor.queue_time_ms() is None
        executor.close()

    asyncio.run(scenario())


def test_what_cannot_begin_in_time_is_dropped_and_what_runs_too_long_is_told_to_stop() -> None:
    async def scenario() -> None:
        executor = Executor(1, 8)
        running, waiting = Held(), Held()
        soon = executor.now + 0.02
        first = asyncio.create_task(executor.run(running, Ticket(deadline=soon)))
        second = asyncio.create_task(executor.run(waiting, Ticket(deadline=soon)))
        late = asyncio.create_task(executor.run(waiting, Ticket(deadline=executor.now)))
        results = await asyncio.gather(first, second, late, return_exceptions=True)
        assert [str(one) for one in results] == [
            "its time was over while it ran",
            "its time was over before it could begin",
            "its time was over before it could begin",
        ]
        await threads_through(executor)
        assert running.given_up.is_set()
        assert not waiting.started.is_set()
        assert (executor.in_flight, executor.overdue) == (0, 3)
        executor.close()

    asyncio.run(scenario())


def test_the_thread_sees_that_the_time_is_over_where_the_loop_has_not_yet() -> None:
    async def scenario() -> None:
        now = 10.0
        executor = Executor(1, 8, lambda: now)
        held = Held()
        first = asyncio.create_task(executor.run(held))
        await asyncio.to_thread(held.started.wait, 10)
        second = asyncio.create_task(executor.run(lambda _: "ran", Ticket(deadline=3600.0)))
        await turns(1)
        now = 7200.0
        held.release.set()
        with pytest.raises(DeadlineError, match=r"^its time was over before it could begin$"):
            await second
        await first
        executor.close()

    asyncio.run(scenario())


def test_the_order_decides_who_is_next() -> None:
    async def scenario() -> None:
        executor = Executor(1, 8, order=Order.PRIORITY)
        held = Held()
        began: list[int] = []

        def note(level: int, _: Cancellation) -> None:
            began.append(level)

        first = asyncio.create_task(executor.run(held))
        await asyncio.to_thread(held.started.wait, 10)
        rest = [asyncio.create_task(executor.run(partial(note, level), Ticket(level))) for level in (9, 1, 5)]
        await turns(1)
        held.release.set()
        await asyncio.gather(first, *rest)
        assert began == [1, 5, 9]
        executor.close()

    asyncio.run(scenario())


def test_a_queue_as_large_as_the_pool_follows_it() -> None:
    async def scenario() -> None:
        executor = Executor(1, None)
        held = Held()
        tasks = [asyncio.create_task(executor.run(held)) for _ in range(2)]
        await turns(1)
        with pytest.raises(QueueFullError, match=r"\(1 requests wait\)$"):
            await executor.run(held)
        executor.resize(2)
        assert (executor.queue_limit, executor.queue_depth) == (2, 0)
        tasks += [asyncio.create_task(executor.run(held)) for _ in range(2)]
        await turns(1)
        assert executor.queue_depth == 2
        held.release.set()
        assert await asyncio.gather(*tasks) == ["done"] * 4
        executor.close()

    asyncio.run(scenario())


def test_threads_become_more_and_fewer_without_losing_a_call() -> None:
    async def scenario() -> None:
        executor = Executor(2, 100)
        held = [Held() for _ in range(6)]
        tasks = [asyncio.create_task(executor.run(one)) for one in held]
        await turns(1)
        executor.resize(5)
        await asyncio.gather(*(asyncio.to_thread(one.started.wait, 10) for one in held[:5]))
        assert (executor.busy, executor.queue_depth) == (5, 1)
        executor.resize(1)
        assert executor.queue_depth == 1, "five run on, though the size is one"
        for one in held[:5]:
            one.release.set()
        await asyncio.to_thread(held[5].started.wait, 10)
        executor.resize(3)
        held[5].release.set()
        assert await asyncio.gather(*tasks) == ["done"] * 6
        assert await asyncio.gather(*(executor.run(lambda _: 1) for _ in range(50))) == [1] * 50
        await threads_through(executor)
        assert executor._alive <= 3
        assert executor.in_flight == 0
        executor.close()

    asyncio.run(scenario())


def test_sizes_that_change_all_the_time_lose_no_call() -> None:
    async def scenario() -> None:
        executor = Executor(1, 10_000)
        sizes = [3, 1, 7, 2, 1, 8, 4, 1]

        async def change() -> None:
            for turn in range(80):
                executor.resize(sizes[turn % len(sizes)])
                await turns(1)

        tasks = [asyncio.create_task(executor.run(partial(same, number))) for number in range(400)]
        leaving = [asyncio.create_task(executor.run(lambda _: None)) for _ in range(50)]
        await turns(1)
        for task in leaving:
            task.cancel()
        await change()
        assert await asyncio.gather(*tasks) == list(range(400))
        await threads_through(executor)
        assert executor.in_flight == 0
        assert executor._tokens.qsize() == executor._leaving
        executor.close()

    asyncio.run(scenario())


def test_a_call_that_raises_stop_iteration_is_an_error_like_any_other() -> None:
    async def scenario() -> None:
        executor = Executor(1, 1)

        def stop(_: Cancellation) -> None:
            raise StopIteration("end")

        with pytest.raises(RuntimeError, match=r"^StopIteration: end$"):
            await executor.run(stop)
        executor.close()

    asyncio.run(scenario())


def test_a_thread_that_cannot_be_started_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        executor = Executor(1, 1)
        with monkeypatch.context() as patched:
            patched.setattr(_thread, "start_new_thread", no_thread)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await executor.run(partial(same, 1))
            executor.resize(2)
        assert (executor.in_flight, executor.queue_depth) == (0, 0)
        assert await executor.run(partial(same, 2)) == 2
        held = Held()
        first = asyncio.create_task(executor.run(held))
        await asyncio.to_thread(held.started.wait, 10)
        with monkeypatch.context() as patched:
            patched.setattr(_thread, "start_new_thread", no_thread)
            second = asyncio.create_task(executor.run(partial(same, 3)))
            await turns(3)
        held.release.set()
        assert list(await asyncio.gather(first, second)) == ["done", 3], "the thread that is there comes to it"
        executor.close()

    asyncio.run(scenario())


def no_thread(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def test_a_thread_that_never_begins_holds_nobody_and_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        now = 0.0
        executor = Executor(1, 2, clock=lambda: now)
        with monkeypatch.context() as patched:
            patched.setattr(_thread, "start_new_thread", lambda *_: 1)  # it found no memory for its first step
            first = asyncio.create_task(executor.run(partial(same, 1)))
            await turns(3)
        now = 0.5
        second = asyncio.create_task(executor.run(partial(same, 2)))
        await turns(3)
        assert not second.done(), "it may be coming yet"
        now = 2.0
        assert await executor.run(partial(same, 3)) == 3
        assert list(await asyncio.gather(first, second)) == [1, 2]
        executor.close()

    asyncio.run(scenario())


def test_a_call_alone_is_run_where_no_thread_can_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        executor = Executor(2, 2)
        executor.stand()
        monkeypatch.setattr(_thread, "start_new_thread", lambda *_: 1)
        assert await asyncio.wait_for(executor.run(partial(same, 1)), 10) == 1
        assert executor._alive == 1
        executor.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("lacks", ["pop", "clock"])
def test_a_thread_that_finds_no_memory_on_its_way_loses_no_call(lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = 3

    def scarce(real: Any) -> Any:
        def call(*args: Any) -> Any:
            nonlocal failures
            if threading.current_thread() is not threading.main_thread() and failures:
                failures -= 1
                raise MemoryError
            return real(*args)

        return call

    async def scenario() -> None:
        executor = Executor(1, 8)
        if lacks == "pop":
            monkeypatch.setattr(executor._waiting, "pop", scarce(executor._waiting.pop))
        else:
            monkeypatch.setattr(executor, "_clock", scarce(executor._clock))
        for number in range(6):
            try:
                assert await asyncio.wait_for(executor.run(partial(same, number)), 10) == number
            except MemoryError:
                assert lacks == "clock"
        await threads_through(executor)
        assert (failures, executor.in_flight, executor._alive) == (0, 0, 1)
        executor.close()

    asyncio.run(scenario())


def test_a_thread_that_finds_no_memory_to_say_so_says_it_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        say = loop.call_soon_threadsafe
        refused: list[Any] = []

        def scarce(*said: Any, **more: Any) -> Any:
            if len(refused) < 3:
                refused.append(said)
                raise MemoryError
            return say(*said, **more)

        monkeypatch.setattr(loop, "call_soon_threadsafe", scarce)
        executor = Executor(1, 1)
        with pytest.raises(MemoryError):
            await executor.run(partial(same, 1))
        assert executor.in_flight == 0
        assert await executor.run(partial(same, 2)) == 2
        executor.close()

    asyncio.run(scenario())
