"""Where blocking calls run: a bounded pool of threads behind a bounded queue."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from worker.engines import Cancellation

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

T = TypeVar("T")


class QueueFullError(Exception):
    """There is no room: rejected before queueing."""

    def __init__(self, limit: int, retry_after_s: int = 1) -> None:
        super().__init__(f"the worker's queue is full ({limit} requests wait)")
        self.retry_after_s = retry_after_s


class Executor:
    """Runs calls in at most ``threads`` threads, with at most ``queue_limit`` calls waiting for one.

    A place is taken when a call is handed in and given back when its thread is through with it, so a call that nobody
    waits for any more still counts until it has really ended.
    """

    def __init__(self, threads: int, queue_limit: int) -> None:
        self._threads = threads
        self._queue_limit = queue_limit
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="execute")
        self._in_flight = 0
        self._running: set[Cancellation] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def in_flight(self) -> int:
        """Calls that run or wait."""
        return self._in_flight

    @property
    def queue_depth(self) -> int:
        """Calls that wait for a thread."""
        return max(0, self._in_flight - self._threads)

    async def run(self, call: Callable[[Cancellation], T]) -> T:
        """Run ``call`` in a thread and return what it returns or raise what it raises.

        Where the awaiting task is cancelled, a call that has not begun never begins, and one that has is told through
        its :class:`Cancellation`.

        Raises:
            QueueFullError: there is no room.
        """
        if self._in_flight >= self._threads + self._queue_limit:
            raise QueueFullError(self._queue_limit)
        loop = asyncio.get_running_loop()
        cancellation = Cancellation()
        self._in_flight += 1
        self._idle.clear()
        self._running.add(cancellation)
        future = self._pool.submit(call, cancellation)

        def ended(_: Future[T]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody counts any more
                loop.call_soon_threadsafe(self._release, cancellation)

        future.add_done_callback(ended)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            cancellation.cancel()
            raise

    def _release(self, cancellation: Cancellation) -> None:
        self._running.discard(cancellation)
        self._in_flight -= 1
        if self._in_flight == 0:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Return as soon as nothing runs or waits."""
        await self._idle.wait()

    def close(self) -> None:
        """Give everything up that runs or waits; does not wait for it."""
        for cancellation in tuple(self._running):
            cancellation.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)
