"""What a worker tells the shared state, and when: registration, heartbeats, changes, its leaving.

One message per heartbeat: the first is the whole record, later ones only what changed, or nothing at all. A change of
state does not wait for the heartbeat. Nothing here is ever awaited by a request.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from router.model import EndpointRecord, State
from router.urls import protocol_of
from router.wire import changed_fields, encode_fields
from worker.memory import Memory
from worker.news import News

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from router.model import Replica
    from worker.log import EventLog
    from worker.memory import MemoryProbe

HEARTBEAT_S = 1.0
QUICK_HEARTBEAT_S = 0.2
"""While a model loads or warms up."""
TTL_S = 5.0
RETRY_MIN_S, RETRY_MAX_S = 0.05, 1.0
EXACT_WARM_S = 10
"""``warm_for_s`` is exact to the second as long as the router's ramp lasts by default."""
_MEMORY_STEPS = 100
_LOAD_STEP = 0.05
_WAIT_STEP = 0.1
_WAIT_LEAST_MS = 0.5


class StoreUnavailableError(Exception):
    """The shared state cannot be reached, or refuses; the text is safe to log."""


class StateWriter(Protocol):
    """The way to the shared state. Every call is bounded in time and raises StoreUnavailableError where it fails."""

    async def write(self, fields: Mapping[str, str]) -> bool:
        """Set ``fields`` and refresh the record's life; False where the store lacks the record: send everything."""

    async def remove(self) -> None:
        """Take the record out of the store."""

    async def close(self) -> None:
        """Close connections; the next call opens new ones."""


def stepped(seconds: float, exact_s: int) -> float:
    """Round down: to whole seconds up to ``exact_s``, from there on to ``exact_s`` times a power of two."""
    if seconds < exact_s:
        return float(int(seconds))
    step = float(exact_s)
    while step * 2 <= seconds:
        step *= 2
    return step


class RecordBuilder:
    """Puts together what is reported. Values that always move are rounded, so that a quiet worker's beats are empty."""

    def __init__(
        self,
        id: str,  # noqa: A002
        epoch: str,
        address: str,
        memory: MemoryProbe,
        replicas: Callable[[], Iterable[Replica]],
        queue_depth: Callable[[], int],
        cpu_load: Callable[[], float | None],
        idle_for_s: Callable[[], float | None],
        queue_time_ms: Callable[[], float | None] = lambda: None,
    ) -> None:
        self.draining = False
        self._id = id
        self._epoch = epoch
        self._address = address
        self._memory = memory
        self._replicas = replicas
        self._queue_depth = queue_depth
        self._cpu_load = cpu_load
        self._idle_for_s = idle_for_s
        self._queue_time_ms = queue_time_ms
        self._reported_wait: float | None = None
        self._reported: Memory | None = None
        self._reported_load: float | None = None

    def build(self) -> EndpointRecord:
        """Return the record now.

        Times are rounded down; free memory moves in steps of 1% of the total, load of 5% of all processors, the queue
        time of a tenth or half a millisecond.
        """
        memory = self._rounded(self._memory.read())
        idle_for_s = self._idle_for_s()
        return EndpointRecord(
            id=self._id,
            address=self._address,
            epoch=self._epoch,
            replicas=tuple(replace(r, warm_for_s=stepped(r.warm_for_s, EXACT_WARM_S)) for r in self._replicas()),
            free_memory_bytes=None if memory is None else memory.free_bytes,
            total_memory_bytes=None if memory is None else memory.total_bytes,
            queue_depth=self._queue_depth(),
            queue_time_ms=self._rounded_wait(self._queue_time_ms()),
            cpu_load=self._rounded_load(self._cpu_load()),
            idle_for_s=None if idle_for_s is None else stepped(idle_for_s, 1),
            draining=self.draining,
            protocol=protocol_of(self._address),
        )

    def _rounded(self, memory: Memory | None) -> Memory | None:
        before = self._reported
        if memory is None or before is None or _differ(memory, before):
            self._reported = memory
        return self._reported

    def _rounded_wait(self, wait_ms: float | None) -> float | None:
        before = self._reported_wait
        if wait_ms is None or before is None or abs(wait_ms - before) > max(_WAIT_LEAST_MS, _WAIT_STEP * before):
            self._reported_wait = None if wait_ms is None else round(wait_ms, 1)
        return self._reported_wait

    def _rounded_load(self, load: float | None) -> float | None:
        before = self._reported_load
        if load is None or before is None or abs(load - before) >= _LOAD_STEP:
            self._reported_load = None if load is None else round(load, 2)
        return self._reported_load


def _differ(memory: Memory, before: Memory) -> bool:
    moved_bytes = abs(memory.free_bytes - before.free_bytes)
    return memory.total_bytes != before.total_bytes or moved_bytes * _MEMORY_STEPS >= memory.total_bytes


class Reporter:
    """Keeps one worker's record in the shared state up to date."""

    def __init__(
        self,
        writer: StateWriter,
        builder: RecordBuilder,
        log: EventLog,
        clock: Callable[[], float],
        rng: Callable[[], float],
        news: News | None = None,
    ) -> None:
        """``clock``: monotonic seconds. ``rng``: [0, 1). ``news`` is told along."""
        self._news = News() if news is None else news
        self._writer = writer
        self._builder = builder
        self._log = log
        self._clock = clock
        self._rng = rng
        self._sent: dict[str, str] = {}
        self._wake = asyncio.Event()
        self._arrived = asyncio.Event()
        self._asked = self._answered = 0
        self._failures = 0
        self._lost_at: float | None = None
        self._registered = False

    def changed(self) -> None:
        """Something changed that should not wait for the next heartbeat."""
        self._wake.set()

    def drain(self) -> None:
        """Say from the next report on that the worker drains."""
        self._builder.draining = True

    async def run(self) -> None:
        """Report until cancelled. Losing the store is logged once, and so is its return."""
        while True:
            self._wake.clear()
            began, asked = self._clock(), self._asked
            try:
                quick = await self._send()
            except StoreUnavailableError as error:
                delay_s = self._failed(error)
            else:
                self._succeeded(asked)
                delay_s = max(0.0, began + (QUICK_HEARTBEAT_S if quick else HEARTBEAT_S) - self._clock())
            try:
                async with asyncio.timeout(delay_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def flush(self, timeout_s: float) -> bool:
        """Report now; True where it arrived within ``timeout_s``. :meth:`run` must be running."""
        self._asked += 1
        ticket = self._asked
        self._wake.set()
        try:
            async with asyncio.timeout(timeout_s):
                while self._answered < ticket:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            return False
        return True

    async def leave(self, timeout_s: float) -> bool:
        """Take the record out of the store; True where that was done within ``timeout_s``. :meth:`run` has ended."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._writer.close()  # what run was cancelled in may have left the connection in mid-answer
                await self._writer.remove()
        except (StoreUnavailableError, TimeoutError):
            return False
        return True

    async def _send(self) -> bool:
        """Send what changed; returns whether the next heartbeat should come soon."""
        record = self._builder.build()
        fields = encode_fields(record) | self._news.fields()
        if not await self._writer.write(changed_fields(self._sent, fields)):
            if self._sent:
                self._log.warning("state.record_lost", remedy="if this repeats, another worker has the same --id")
            self._sent = {}
            await self._writer.write(fields)
        self._sent = fields
        return any(replica.state in (State.LOADING, State.WARMING) for replica in record.replicas)

    def _failed(self, error: StoreUnavailableError) -> float:
        self._sent = {}
        self._failures += 1
        if self._lost_at is None:
            self._lost_at = self._clock()
            self._log.warning("state.lost", error=str(error))
        widest_s: float = min(RETRY_MAX_S, RETRY_MIN_S * 2.0 ** min(self._failures, 10))
        return RETRY_MIN_S + (widest_s - RETRY_MIN_S) * self._rng()

    def _succeeded(self, asked: int) -> None:
        self._failures = 0
        if self._lost_at is not None:
            self._log.info("state.back", after_s=round(self._clock() - self._lost_at, 3))
            self._lost_at = None
        elif not self._registered:
            self._log.info("state.registered")
        self._registered = True
        self._answered = asked
        self._arrived.set()


class Reporters:
    """The records of one worker, of which each address that it serves has one; none without a shared state."""

    def __init__(self, reporters: Iterable[Reporter] = ()) -> None:
        self._reporters = tuple(reporters)

    def __bool__(self) -> bool:
        """True where there is a shared state to report to."""
        return bool(self._reporters)

    def changed(self) -> None:
        """Something changed that should not wait for the next heartbeat."""
        for reporter in self._reporters:
            reporter.changed()

    def drain(self) -> None:
        """Say from the next report on that the worker drains."""
        for reporter in self._reporters:
            reporter.drain()

    async def run(self) -> None:
        """Report until cancelled."""
        await asyncio.gather(*(reporter.run() for reporter in self._reporters))

    async def flush(self, timeout_s: float) -> bool:
        """Report now; True where all arrived within ``timeout_s``. :meth:`run` must be running."""
        return all(await asyncio.gather(*(reporter.flush(timeout_s) for reporter in self._reporters)))

    async def leave(self, timeout_s: float) -> bool:
        """Take the records out of the store; True where that was done within ``timeout_s``. :meth:`run` has ended."""
        return all(await asyncio.gather(*(reporter.leave(timeout_s) for reporter in self._reporters)))
