"""Where blocking calls run: a bounded pool of threads behind a bounded queue."""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

from router.stats import RecentMean
from worker.engines import Cancellation, GivenUpError
from worker.metrics import Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

T = TypeVar("T")

QUEUED_S = 60.0
"""The queue time that is reported is the mean of this long."""


class Submit(Protocol):
    """Hands a call to the threads."""

    def __call__(self, call: Callable[[Cancellation], T], cancellation: Cancellation, /) -> Future[T]:
        """Return the call's future."""


class QueueFullError(Exception):
    """There is no room: rejected before queueing."""

    def __init__(self, limit: int, retry_after_s: int = 1) -> None:
        super().__init__(f"the worker's queue is full ({limit} requests wait)")
        self.retry_after_s = retry_after_s


class Executor:
    """Runs calls in at most ``threads`` threads, with at most ``queue_limit`` calls waiting for one.

    A place is taken before a call is handed in and given back when its thread is through with it, so a call that nobody
    waits for any more still counts until it has really ended.
    """

    def __init__(self, threads: int, queue_limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: monotonic seconds."""
        self._threads = threads
        self._queue_limit = queue_limit
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="execute")
        self._in_flight = 0
        self._running: set[Cancellation] = set()
        self._clock = clock
        self._queued_s = 0.0
        self._queued = 0
        self._recent = RecentMean(QUEUED_S)
        self.waits = Histogram()
        """How long calls waited for a thread, in seconds; those of the background are left out."""

    @property
    def in_flight(self) -> int:
        """Places that are taken: calls that run or wait, or that are still to be handed in."""
        return self._in_flight

    @property
    def queue_depth(self) -> int:
        """Places taken beyond those that a thread can work on."""
        return max(0, self._in_flight - self._threads)

    def queue_time_ms(self) -> float | None:
        """Return how long calls of the last minute waited for a thread, on average; None where there were none.

        Calls of the background are left out: nobody waited for them.
        """
        mean_s = self._recent.take(self._queued_s, self._queued, self._clock())
        return None if mean_s is None else mean_s * 1000

    @contextmanager
    def place(self, *, background: bool = False) -> Iterator[Place]:
        """Take a place now, for a call that may come later; it is free again at the end of the ``with`` block.

        Where a call was handed in, it is free when that call has ended too.

        Raises:
            QueueFullError: there is no room.
        """
        if self._in_flight >= self._threads + self._queue_limit:
            raise QueueFullError(self._queue_limit)
        self._in_flight += 1
        place = Place(self._submit_apart if background else self._submit)
        try:
            yield place
        finally:
            if not place.handed_in:
                self._in_flight -= 1

    async def run(self, call: Callable[[Cancellation], T]) -> T:
        """Take a place and run ``call`` in it: see :meth:`Place.run`.

        Raises:
            QueueFullError: there is no room.
        """
        with self.place() as place:
            return await place.run(call)

    def _submit(self, call: Callable[[Cancellation], T], cancellation: Cancellation) -> Future[T]:
        loop = asyncio.get_running_loop()
        submitted = self._clock()

        def begin(cancellation: Cancellation) -> T:
            waited_s = self._clock() - submitted
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody counts any more
                loop.call_soon_threadsafe(self._waited, waited_s)
            return call(cancellation)

        return self._submit_apart(begin, cancellation)

    def _waited(self, seconds: float) -> None:
        self._queued_s += seconds
        self._queued += 1
        self.waits.observe(seconds)

    def _submit_apart(self, call: Callable[[Cancellation], T], cancellation: Cancellation) -> Future[T]:
        loop = asyncio.get_running_loop()
        future = self._pool.submit(call, cancellation)
        self._running.add(cancellation)

        def ended(_: Future[T]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody counts any more
                loop.call_soon_threadsafe(self._release, cancellation)

        future.add_done_callback(ended)
        return future

    def _release(self, cancellation: Cancellation) -> None:
        self._running.discard(cancellation)
        self._in_flight -= 1

    def close(self) -> None:
        """Give everything up that runs or waits; does not wait for it."""
        for cancellation in tuple(self._running):
            cancellation.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)


class Place:
    """One place among those that run or wait. :meth:`run` may be called once."""

    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self.handed_in = False
        """Whether a call has it now, which gives it back."""

    async def run(self, call: Callable[[Cancellation], T]) -> T:
        """Run ``call`` in a thread and return what it returns or raise what it raises.

        Where the awaiting task is cancelled, a call that has not begun never begins, and one that has is told through
        its :class:`Cancellation`.
        """
        cancellation = Cancellation()
        try:
            future = self._submit(call, cancellation)
        except RuntimeError as error:  # closed while the caller was still sending
            raise GivenUpError("the worker stopped") from error
        self.handed_in = True
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            cancellation.cancel()
            raise
