"""Where blocking calls run: threads that can become more and fewer, behind a bounded queue."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import threading
import time
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from router.stats import RecentMean
from worker.engines import Cancellation, GivenUpError, as_failure
from worker.execution.queues import DEFAULT_TICKET, Order, Ticket, make_queue
from worker.metrics import Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping

    from worker.execution.queues import Queue

T = TypeVar("T")

NO_MEMORY_PAUSE_S = 0.01
"""A thread that cannot even say that it is through, for want of memory, tries again after this long."""

NEVER_BEGAN_S = 1.0
"""A thread that was started and says nothing for so long is taken for one that found no memory for its first step."""

QUEUED_S = 60.0
"""The queue time that is reported is the mean of this long."""


class QueueFullError(Exception):
    """There is no room: rejected before queueing."""

    def __init__(self, limit: int, retry_after_s: int = 1) -> None:
        super().__init__(f"the worker's queue is full ({limit} requests wait)")
        self.retry_after_s = retry_after_s


class DeadlineError(Exception):
    """The time was over in which somebody wanted the answer. ``began``: whether it was being made by then."""

    def __init__(self, *, began: bool) -> None:
        super().__init__("its time was over while it ran" if began else "its time was over before it could begin")
        self.began = began


class Job(Generic[T]):
    """A call on its way through the queue and a thread. Belongs to the loop, except :meth:`work`."""

    def __init__(self, ticket: Ticket, cancellation: Cancellation) -> None:
        self.ticket = ticket
        self.cancellation = cancellation
        self.size = 1
        """How many places it has."""
        self.submitted = 0.0
        self.begun = False

    def work(self) -> T:
        """Do it, in a thread; may block."""
        raise NotImplementedError

    def ended(self, result: T | None, error: BaseException | None) -> None:
        """Take what came of it: a ``result`` where there is no ``error``. Its places are free."""
        raise NotImplementedError


class _Call(Job[T]):
    """A call that one awaits."""

    def __init__(self, call: Callable[[Cancellation], T], ticket: Ticket, future: asyncio.Future[T]) -> None:
        super().__init__(ticket, Cancellation())
        self._call: Callable[[Cancellation], T] | None = call
        self.future = future

    def work(self) -> T:
        call, self._call = self._call, None  # what it holds may be large, and is not wanted after it
        if call is None:
            raise GivenUpError("it has run already")
        return call(self.cancellation)

    def ended(self, result: T | None, error: BaseException | None) -> None:
        self._call = None
        if self.future.done():
            return
        if error is None:
            self.future.set_result(result)  # type: ignore[arg-type]  # the result's own type may be None
        else:
            self.future.set_exception(error)


class Executor:
    """Runs calls in at most ``threads`` threads, with at most ``queue_limit`` calls waiting for one.

    A place is taken before a call is handed in and given back when its thread is through with it, so a call that nobody
    waits for any more still counts until it has really ended. Used on one event loop.
    """

    def __init__(
        self,
        threads: int,
        queue_limit: int | None,
        clock: Callable[[], float] = time.monotonic,
        order: Order = Order.FIFO,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """``queue_limit`` None: as many as there are threads. ``clock``: monotonic seconds.

        ``order``: who is next. ``weights``: of tenants, for the order ``fair``.
        """
        self._threads = threads
        self._queue_limit = queue_limit
        self._clock = clock
        self.order = order
        self._waiting: Queue[Job[Any]] = make_queue(order, weights or {})
        # One token for each call that waits and each thread that is to leave. Threads sleep on them, which takes no
        # lock of the interpreter's own making; what a token stands for is decided under the lock.
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._lock = threading.Lock()
        self._alive = 0
        self._coming: dict[int, float] = {}  # threads that were started and have said nothing yet: since when
        self._leaving = 0
        self._busy = 0
        self._running = 0
        self._number = 0
        self._closed = False
        self._in_flight = 0
        self._handed_in: set[Job[Any]] = set()
        self._queued_s = 0.0
        self._queued = 0
        self._recent = RecentMean(QUEUED_S)
        self.ran_s = 0.0
        """How long calls ran in all, and how many did: those of the background, too."""
        self.ran = 0
        self.overdue = 0
        """Calls that were dropped or stopped because their time was over."""
        self.waits = Histogram()
        """How long calls waited for a thread, in seconds; those of the background are left out."""

    @property
    def in_flight(self) -> int:
        """Places that are taken: calls that run or wait, or that are still to be handed in."""
        return self._in_flight

    @property
    def queue_depth(self) -> int:
        """Places taken beyond those that threads work on, or could."""
        return max(0, self._in_flight - max(self._threads, self._running))

    @property
    def queue_limit(self) -> int:
        """How many may wait."""
        return self._threads if self._queue_limit is None else self._queue_limit

    @property
    def threads(self) -> int:
        """How many threads there may be now."""
        return self._threads

    @property
    def busy(self) -> int:
        """How many threads run a call."""
        return self._busy

    def facts(self) -> dict[str, Any]:
        """Return its threads, for ``/stats``."""
        return {"size": self._threads, "lent": 0, "busy": self._busy}

    def rank(self, ticket: Ticket) -> Hashable:
        """Return what is equal for calls that the queue tells apart by their arrival alone."""
        return self._waiting.rank(ticket)

    def queue_time_ms(self) -> float | None:
        """Return how long calls of the last minute waited for a thread, on average; None where there were none.

        Calls of the background are left out: nobody waited for them.
        """
        mean_s = self._recent.take(self._queued_s, self._queued, self._clock())
        return None if mean_s is None else mean_s * 1000

    # --- places and calls -------------------------------------------------------------------------------------------

    @contextmanager
    def place(self) -> Iterator[Place]:
        """Take a place now, for a call that may come later; it is free again at the end of the ``with`` block.

        Where a call was handed in, it is free when that call has ended too.

        Raises:
            QueueFullError: there is no room.
        """
        limit = self.queue_limit
        if self._in_flight >= max(self._threads, self._running) + limit:
            raise QueueFullError(limit)
        self._in_flight += 1
        place = Place(self)
        try:
            yield place
        finally:
            if not place.handed_in:
                self._in_flight -= 1

    async def run(self, call: Callable[[Cancellation], T], ticket: Ticket = DEFAULT_TICKET) -> T:
        """Take a place and run ``call`` in it: see :meth:`Place.run`.

        Raises:
            QueueFullError: there is no room.
        """
        with self.place() as place:
            return await place.run(call, ticket)

    def submit(self, job: Job[Any]) -> None:
        """Have ``job``, which has its places, wait for a thread.

        Raises:
            GivenUpError: closed.
            RuntimeError, MemoryError: there is no thread, and none can be started; it has its places still.
        """
        if self._closed:
            raise GivenUpError("the worker stopped")
        job.submitted = self._clock()
        self._handed_in.add(job)
        with self._lock:
            self._waiting.push(job)
            if self._coming:
                self._give_up_on_threads(job.submitted)
            more = self._alive < self._threads and len(self._waiting) > self._alive - self._busy
            if more:
                self._alive += 1
        self._tokens.put(None)
        if more:
            try:
                self._start(job.submitted)
            except (RuntimeError, MemoryError):
                with self._lock:
                    alone = self._alive == 0 and self._waiting.remove(job)
                if alone:  # else another thread comes to it
                    self._tokens.get_nowait()
                    self._handed_in.discard(job)
                    raise

    def withdraw(self, job: Job[Any]) -> bool:
        """Have ``job`` run no more, where it still waits: gives its places back. False where it has begun or ended."""
        with self._lock:
            if not self._waiting.remove(job):
                return False
        with contextlib.suppress(Empty):  # a thread has its token already, and will find nothing
            self._tokens.get_nowait()
        self._release(job)
        return True

    def leave(self, job: Job[Any]) -> bool:
        """Say that nobody waits for ``job`` any more; True where it has not begun, and never will."""
        waited = self.withdraw(job)
        if not waited:
            job.cancellation.cancel()
        return waited

    def free(self, places: int) -> None:
        """Give back that many places that no call has, or has any more."""
        self._in_flight -= places

    @property
    def now(self) -> float:
        """The time now, in monotonic seconds."""
        return self._clock()

    # --- threads ----------------------------------------------------------------------------------------------------

    def resize(self, threads: int) -> None:
        """Have so many threads. More begin at once; of those that are too many each leaves after the call it runs."""
        with self._lock:
            self._threads = threads
            # What is on its way out stays where it is wanted again.
            leave = max(0, self._alive - threads) - self._leaving
            self._leaving += leave
            more = 0
            if not self._closed:
                more = min(threads - self._alive, len(self._waiting) - (self._alive - self._busy))
                more = max(0, more)
                self._alive += more
        for _ in range(leave):
            self._tokens.put(None)
        for _ in range(-leave):
            with contextlib.suppress(Empty):
                self._tokens.get_nowait()
        for _ in range(more):
            with contextlib.suppress(RuntimeError, MemoryError):  # the next call tries again
                self._start(self._clock())

    def stand(self) -> None:
        """Have a thread before there is a call: with memory out none may begin, and a lone call wait for the next."""
        with self._lock:
            self._alive += 1
        self._start(self._clock())

    def _start(self, now: float) -> None:
        """Start a thread, which is counted as alive already; where it cannot be started, it is counted no more."""
        self._number += 1
        number = self._number
        loop = asyncio.get_running_loop()
        with self._lock:
            self._coming[number] = now
        try:
            # Thread.start() waits for the thread's first word, and for ever where that found no memory to begin with.
            # A thread whose call cannot be stopped does not keep the process from ending: this one does not, either.
            _thread.start_new_thread(self._begin, (number, loop))
        except (RuntimeError, MemoryError):
            with self._lock:
                del self._coming[number]
                self._alive -= 1
            raise

    def _give_up_on_threads(self, now: float) -> None:
        """Count no more what was started and never began. Under the lock."""
        for number, since in list(self._coming.items()):
            if now - since > NEVER_BEGAN_S:
                del self._coming[number]
                self._alive -= 1

    def _begin(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(MemoryError):  # it has not begun, and Python would write to standard error of it
            with self._lock:
                if self._coming.pop(number, None) is None:
                    self._alive += 1  # it was given up
            with contextlib.suppress(MemoryError):  # one without a name works as well
                threading.current_thread().name = f"execute-{number}"
            self._work(loop)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:  # with memory out every step here may fail, and no call be lost for it, nor this thread
            try:
                job = self._next()
            except MemoryError:
                time.sleep(NO_MEMORY_PAUSE_S)
                continue
            if job is None:
                return
            self._execute(job, job.size, loop)
            del job

    def _next(self) -> Job[Any] | None:
        """Wait for a call; None: this thread is to leave."""
        while True:
            self._tokens.get()
            while True:
                try:
                    with self._lock:
                        if self._leaving:
                            self._leaving -= 1
                            self._alive -= 1
                            return None
                        job = self._waiting.pop()
                        if job is None:
                            break
                        job.begun = True
                        self._busy += 1
                        self._running += job.size
                        return job
                except MemoryError:  # the token is taken, and nothing else yet
                    time.sleep(NO_MEMORY_PAUSE_S)

    def _execute(self, job: Job[Any], size: int, loop: asyncio.AbstractEventLoop) -> None:
        result: Any = None
        error: Exception | None = None
        began, ran_s = job.submitted, 0.0
        try:
            began = self._clock()
            deadline = job.ticket.deadline
            if deadline is not None and began >= deadline:
                raise DeadlineError(began=False)
            result = job.work()
        except BaseException as raised:  # noqa: BLE001 - whoever waits for it gets it, and nobody else
            try:
                error = as_failure(raised)
            except MemoryError as lacking:
                error = lacking
        with contextlib.suppress(MemoryError):
            ran_s = self._clock() - began
        with self._lock:
            self._busy -= 1
            self._running -= size
        while True:
            try:
                loop.call_soon_threadsafe(self._ended, job, result, error, began, ran_s)
            except MemoryError as lacking:  # its places would be taken for ever: there will be memory again
                result, error = None, lacking
                time.sleep(NO_MEMORY_PAUSE_S)
            except RuntimeError:
                return  # the loop is closed: nobody counts any more
            else:
                return

    def _ended(self, job: Job[Any], result: Any, error: BaseException | None, began: float, ran_s: float) -> None:
        if not job.ticket.background:
            waited_s = max(0.0, began - job.submitted)
            self._queued_s += waited_s
            self._queued += 1
            self.waits.observe(waited_s)
        if not isinstance(error, DeadlineError):
            self.ran_s += ran_s
            self.ran += 1
        self._release(job)
        job.ended(result, error)

    def _release(self, job: Job[Any]) -> None:
        self._handed_in.discard(job)
        self._in_flight -= job.size

    def close(self) -> None:
        """Give everything up that runs or waits; does not wait for it. Threads leave when they are through."""
        self._closed = True
        for job in tuple(self._handed_in):
            if self.leave(job):
                job.ended(None, GivenUpError("the worker stopped"))
        with self._lock:
            leave = self._alive - self._leaving
            self._leaving += leave
        for _ in range(leave):
            self._tokens.put(None)


class Place:
    """One place among those that run or wait. It may be used once."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.handed_in = False
        """Whether a call has it now, which gives it back."""

    async def run(self, call: Callable[[Cancellation], T], ticket: Ticket = DEFAULT_TICKET) -> T:
        """Run ``call`` in a thread and return what it returns or raise what it raises.

        Where the awaiting task is cancelled, a call that has not begun never begins, and one that has is told through
        its :class:`Cancellation`; so it is when the ticket's deadline comes.

        Raises:
            DeadlineError: the ticket's deadline came first.
        """
        executor = self._executor
        loop = asyncio.get_running_loop()
        job = _Call(call, ticket, loop.create_future())
        if ticket.deadline is None:
            return await self._answer(job)
        left_s = ticket.deadline - executor.now
        timer = loop.call_later(max(0.0, left_s), self._overdue, job)
        try:
            if left_s <= 0:
                raise DeadlineError(began=False)
            return await self._answer(job)
        except DeadlineError:
            executor.overdue += 1
            raise
        finally:
            timer.cancel()

    async def _answer(self, job: _Call[T]) -> T:
        self._executor.submit(job)
        self.handed_in = True
        try:
            return await job.future
        except asyncio.CancelledError:
            self._executor.leave(job)
            raise

    def _overdue(self, job: _Call[Any]) -> None:
        waited = self._executor.leave(job)
        if not job.future.done():
            job.future.set_exception(DeadlineError(began=not waited))
