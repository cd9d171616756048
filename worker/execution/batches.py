"""Joins requests in front of the threads, as :mod:`~worker.execution.joining` says, and tells each what came of it.

A batch takes in requests as long as no thread has begun it, also while it waits in the queue: the busier the
worker, the fuller its batches. A request that fails takes nobody along: the others are run again, each alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from worker.engines import Cancellation, GivenUpError, as_failure
from worker.execution.executor import DeadlineError, Job
from worker.execution.joining import Arrival, NotRowsError, join, kind, latest_begin, next_step, split
from worker.execution.queues import Ticket
from worker.statistics import Times

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from worker.copies import LoadedCopy
    from worker.engines import Array, Parameters
    from worker.execution.buffers import Buffers
    from worker.execution.executor import Executor, Place
    from worker.execution.joining import Empty
    from worker.replica import HeldReplica
    from worker.store import Batching

    Deliver = Callable[["Member[Any]", Any, "BaseException | None"], None]

T = TypeVar("T")

_LATEST_RUN = 0.2
"""How much the latest run counts in the mean."""


class Member(Generic[T]):
    """One request. ``write`` makes its answer of its part of the outputs, in a thread."""

    def __init__(
        self,
        inputs: Mapping[str, Array],
        outputs: Sequence[str],
        parameters: Parameters,
        ticket: Ticket,
        write: Callable[[list[Array]], T],
        input_s: float = 0.0,
    ) -> None:
        """``input_s``: how long it took to read the request."""
        self.inputs = inputs
        self.outputs = outputs
        self.parameters = parameters
        self.ticket = ticket
        self.write = write
        self.input_s = input_s
        self.rows = 0
        self.at = 0.0
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.times: Times | None = None
        """What it took, once it is answered."""
        self.batch: Batch | None = None
        """What it runs in; None while it waits to be joined."""

    def arrival(self, run_s: float) -> Arrival:
        """Return what :func:`~worker.execution.joining.next_step` asks of it, where a run takes ``run_s``."""
        return Arrival(self.rows, self.at, latest_begin(self.at, self.ticket.deadline, run_s))


class Batch(Job[None]):
    """Requests that run together. ``open``: more may still come."""

    def __init__(self, batcher: Batcher, members: list[Member[Any]], *, full: bool) -> None:
        first = members[0].ticket
        # Each member has its own deadline; the batch has none.
        super().__init__(Ticket(first.level, first.tenant, background=first.background), Cancellation())
        self._batcher = batcher
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self.open = not full
        self.members = members
        self.rows = sum(member.rows for member in members)
        self.wanted = len(members)
        """Members that somebody still waits for."""
        self.size = len(members)
        self.key: Hashable | None = None
        """Under which the batcher holds it while it is open."""

    def add(self, member: Member[Any], max_size: int) -> bool:
        """Take another one in; False where it is too late, or there is no room, after which nobody is taken in."""
        with self._lock:
            if not self.open or not self.wanted or self.rows + member.rows > max_size:
                self.open = False
                return False
            self.members.append(member)
            self.rows += member.rows
            self.size += 1
            self.wanted += 1
            self.open = self.rows < max_size
        member.batch = self
        return True

    def drop(self, member: Member[Any]) -> bool:
        """Let ``member`` go before it has begun; False where it has."""
        with self._lock:
            if self.begun or member not in self.members:
                return False
            self.members.remove(member)
            self.rows -= member.rows
            return True

    def close(self) -> list[Member[Any]]:
        """Return who is in it, now that it begins."""
        with self._lock:
            self.open = False
            self.begun = True
            return list(self.members)

    def work(self) -> None:
        """See :class:`~worker.execution.executor.Job`."""
        self._batcher.execute(self.close(), self.cancellation, self._deliver)

    def _deliver(self, member: Member[Any], result: Any, error: BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(settle, member, result, error)

    def ended(self, result: None, error: BaseException | None) -> None:
        """See :class:`~worker.execution.executor.Job`."""
        self._batcher.ended(self)
        for member in self.members:  # whoever has an answer has it by now
            settle(member, None, error or GivenUpError("the worker stopped"))


def settle(member: Member[Any], result: Any, error: BaseException | None) -> None:
    """Tell a member what came of it, where nobody has yet."""
    if member.future.done():
        return
    if error is None:
        member.future.set_result(result)
    else:
        member.future.set_exception(error)


class Batcher:
    """Joins the requests to one copy of a model. Used on the event loop, but for :meth:`execute`."""

    def __init__(
        self,
        replica: HeldReplica,
        copy: LoadedCopy,
        terms: Batching,
        executor: Executor,
        on_given_up: Callable[[str], None],
        buffers: Buffers | None = None,
    ) -> None:
        """``buffers``: where inputs are joined and outputs may be written.

        ``on_given_up`` is told, in a thread, why requests to this copy are joined no more."""
        self._replica = replica
        # Whoever holds this holds it by its copy, so it must not keep that alive. Who asks has the copy in hand.
        self._copy = weakref.ref(copy)
        self._terms = terms
        self._executor = executor
        self._on_given_up = on_given_up
        self._buffers = buffers
        self._empty: Empty = np.empty if buffers is None else buffers.array
        self._waiting: dict[Hashable, list[Member[Any]]] = {}
        self._open: dict[Hashable, Batch] = {}
        self._timers: dict[Hashable, asyncio.TimerHandle] = {}
        self._kinds: dict[Member[Any], Hashable] = {}
        self._given_up = False
        self._run_s = 0.0
        """How long its runs took of late, on average."""

    async def run(self, member: Member[T], place: Place) -> T:
        """Have ``member``, which has ``place``, run with others or alone; returns its answer.

        Raises:
            DeadlineError: its deadline came first.
            EngineError: its execution failed.
        """
        member.at = self._executor.now
        left_s = None if member.ticket.deadline is None else member.ticket.deadline - member.at
        timer = None
        try:
            if left_s is not None:
                if left_s <= 0:
                    raise DeadlineError(began=False)
                timer = asyncio.get_running_loop().call_later(left_s, self._overdue, member)
            self._take_in(member)
            place.handed_in = True
            return await member.future
        except DeadlineError:
            self._executor.overdue += 1
            raise
        except asyncio.CancelledError:
            self._leave(member)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _take_in(self, member: Member[Any]) -> None:
        found = None if self._given_up else kind(member.inputs, member.outputs, member.parameters)
        if found is None or found[1] > self._terms.max_size:
            self._submit([member], None, full=True)
            return
        alike, member.rows = found
        key = (alike, self._executor.rank(member.ticket))
        open_batch = self._open.get(key)
        if open_batch is not None:
            if open_batch.add(member, self._terms.max_size):
                return
            del self._open[key]
        self._waiting.setdefault(key, []).append(member)
        self._kinds[member] = key
        self._look(key)

    def _look(self, key: Hashable) -> None:
        """Begin what is to begin of the requests of one kind, and look again when something may have changed."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        waiting = self._waiting.get(key, [])
        while waiting:
            now = self._executor.now
            step = next_step([member.arrival(self._run_s) for member in waiting], self._terms, now)
            if not step.count:
                loop = asyncio.get_running_loop()
                self._timers[key] = loop.call_later(max(0.0, step.again_at - now), self._look, key)
                return
            members = waiting[: step.count]
            del waiting[: step.count]
            for member in members:
                del self._kinds[member]
            self._submit(members, key, full=step.full)
        self._waiting.pop(key, None)

    def _submit(self, members: list[Member[Any]], key: Hashable | None, *, full: bool) -> None:
        batch = Batch(self, members, full=full)
        for member in members:
            member.batch = batch
        try:
            self._executor.submit(batch)
        except GivenUpError as error:
            self._executor.free(batch.size)
            batch.ended(None, error)
            return
        if key is not None and not full:
            self._open[key] = batch
            batch.key = key

    def ended(self, batch: Batch) -> None:
        """Forget a batch that is through."""
        if batch.key is not None and self._open.get(batch.key) is batch:
            del self._open[batch.key]

    # --- who leaves -------------------------------------------------------------------------------------------------

    def _overdue(self, member: Member[Any]) -> None:
        waited = self._leave(member)
        settle(member, None, DeadlineError(began=not waited))

    def _leave(self, member: Member[Any]) -> bool:
        """Nobody waits for ``member`` any more; True where it has not begun, and never will."""
        batch = member.batch
        if batch is None:
            key = self._kinds.pop(member, None)
            if key is not None:
                self._waiting[key].remove(member)
                self._executor.free(1)
                self._look(key)
            return True
        batch.wanted -= 1
        if batch.wanted == 0:
            waited = self._executor.leave(batch)
            if waited:
                self.ended(batch)
            return waited
        if batch.drop(member):
            batch.size -= 1
            self._executor.free(1)
            return True
        return False

    # --- in a thread ------------------------------------------------------------------------------------------------

    def execute(self, members: list[Member[Any]], cancellation: Cancellation, deliver: Deliver) -> None:
        """Run ``members`` and tell each what came of it; blocks.

        Raises:
            GivenUpError: ``cancellation`` said so.
        """
        now = self._executor.now
        in_time = []
        for member in members:
            if member.ticket.deadline is not None and now >= member.ticket.deadline:
                deliver(member, None, DeadlineError(began=False))
            else:
                in_time.append(member)
        if not in_time:
            return
        copy = self._copy()
        if copy is None or not copy.take_along():
            raise GivenUpError("nobody waits any more")
        try:
            self._run(copy, in_time, cancellation, deliver)
        finally:
            copy.give_back()

    def _run(self, copy: LoadedCopy, members: list[Member[Any]], cancellation: Cancellation, deliver: Deliver) -> None:
        begun = self._executor.now
        try:
            first = members[0]
            arrays = self._replica.execute(
                copy,
                join([member.inputs for member in members], self._empty),
                list(first.outputs),
                dict(first.parameters),
                cancellation,
                self._buffers,
            )
            parts = [arrays] if len(members) == 1 else split(arrays, [member.rows for member in members])
        except GivenUpError:
            raise
        except BaseException as error:  # noqa: BLE001 - each gets its own
            if len(members) == 1:
                deliver(members[0], None, as_failure(error))
                return
            if isinstance(error, NotRowsError):
                self._give_up(str(error))
            for member in members:  # one of them spoils it, or all do
                self._run(copy, [member], cancellation, deliver)
            return
        self._deliver(members, parts, begun, self._executor.now - begun, deliver)

    def _deliver(
        self, members: list[Member[Any]], parts: list[list[Array]], begun: float, ran_s: float, deliver: Deliver
    ) -> None:
        self._run_s += (ran_s - self._run_s) * (_LATEST_RUN if self._run_s else 1)  # threads need not agree on it
        statistics = self._replica.statistics
        statistics.executed()
        uncounted = len(members)
        for member, part in zip(members, parts, strict=True):
            if member.future.done():  # its time is over, or its caller has gone: that is counted already
                continue
            began = self._executor.now
            try:
                answer = member.write(part)
            except Exception as error:  # noqa: BLE001 - its own: the others have theirs
                deliver(member, None, error)
                continue
            queue_s = max(0.0, begun - member.at)
            member.times = Times(queue_s, member.input_s, ran_s, self._executor.now - began)
            statistics.succeeded(member.times, uncounted)
            uncounted = 0
            deliver(member, answer, None)

    def _give_up(self, why: str) -> None:
        if not self._given_up:
            self._given_up = True
            self._on_given_up(why)
