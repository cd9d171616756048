from __future__ import annotations

import asyncio
import threading

import pytest

from tests.support.loops import turns
from worker.engines import Cancellation, GivenUpError
from worker.execution import Executor, QueueFullError


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
    """Wait until no thread is at work any more; nothing can be handed in after that."""
    await asyncio.to_thread(executor._pool.shutdown)


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
        with executor.place(background=True) as place:
            apart = asyncio.create_task(place.run(lambda _: None))
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
