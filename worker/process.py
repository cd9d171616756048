"""A worker's life: accept, bring the models up, serve, and on SIGTERM drain in the order that loses no request."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiohttp import web

from worker.serving.http_server import Runner

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine, Sequence

    from worker.alarms import AlarmWatch
    from worker.debug import DebugServer
    from worker.execution import Executor
    from worker.execution.pool import Pool
    from worker.log import EventLog
    from worker.report import Reporters
    from worker.repository import Repository
    from worker.serving.grpc.server import GrpcSurface
    from worker.serving.v2 import Serving
    from worker.standby import Standby

ANNOUNCE_S = 1.0
"""How long the start and a drain wait for the shared state to hear of it, and the leaving for its record to be gone."""
BACKLOG = 1024
KEEP_ALIVE_S = 75.0
"""Longer than the sidecar keeps an idle connection (55 s), so that it is never the worker that closes first."""
MAX_HEAD_LINE_BYTES = 64 << 10
"""As long as the whole head may be at the sidecar, so that what it forwards is not refused here."""
CUT_S = 0.5
"""How long requests that are cut may take to end with an error of their own."""


@dataclass(frozen=True, slots=True)
class DrainTimes:
    """``settle_s``: how long to go on accepting after the shared state heard. ``drain_s``: for everything together."""

    settle_s: float
    drain_s: float


class WorkerProcess:
    """Runs what the composition root has built."""

    def __init__(
        self,
        sock: socket.socket | None,
        address: str,
        serving: Serving,
        repository: Repository,
        executor: Executor,
        reporters: Reporters,
        times: DrainTimes,
        log: EventLog,
        clock: Callable[[], float],
        grpc: GrpcSurface | None = None,
        debug: DebugServer | None = None,
        watch: AlarmWatch | None = None,
        pool: Pool | None = None,
        standby: Standby | None = None,
    ) -> None:
        """``sock`` is bound and does not listen yet; ``address`` is what to tell of it. ``grpc`` is bound, too.

        ``standby``: the line for that address. Without ``sock`` this worker is not the first in it: it is loaded, and
        then waits for its turn.
        """
        self._sock = sock
        self._address = address
        self._serving = serving
        self._repository = repository
        self._executor = executor
        self._reporters = reporters
        self._grpc = grpc
        self._debug = debug
        self._watch = watch
        self._pool = pool
        self._standby = standby
        self._times = times
        self._log = log
        self._clock = clock
        self._stop = asyncio.Event()
        self._cut = asyncio.Event()
        self._exit_code = 0
        self._heeded: tuple[signal.Signals, ...] = ()

    def stop(self) -> None:
        """Begin to drain; a second call cuts the drain short."""
        (self._cut if self._stop.is_set() else self._stop).set()

    def heed(self, signals: Sequence[signal.Signals]) -> None:
        """Have each of ``signals`` :meth:`stop` it, from now on: also before :meth:`run`, which then drains at once."""
        loop = asyncio.get_running_loop()
        self._heeded = tuple(signals)
        for number in signals:
            loop.add_signal_handler(number, self.stop)

    def _stopped(self) -> int:
        """Say so, and heed no signal any more: one would end what is ending, with a code that tells of a failure."""
        for number in self._heeded:
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
        self._log.info("worker.stopped")
        return self._exit_code

    async def run(self) -> int:
        """Serve until told to stop, by :meth:`stop`; returns the exit code.

        The code is 0 after a drain that somebody asked for, 1 after one that a defect of the worker made necessary.
        """
        runner = Runner(
            self._serving.application(),
            self._serving.refuse,
            self._serving.inference.unread,
            handle_signals=False,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=KEEP_ALIVE_S,
            shutdown_timeout=self._times.drain_s + CUT_S,
            max_line_size=MAX_HEAD_LINE_BYTES,
            max_field_size=MAX_HEAD_LINE_BYTES,
        )
        await runner.setup()
        following: asyncio.Task[None] | None = None
        if self._sock is None:
            following = self._task(self._repository.run(), "repository")
            self._sock = await self._turn()
            if self._sock is None:
                return await self._end_before_its_turn(runner, following)
        site = web.SockSite(runner, self._sock, backlog=BACKLOG)
        reporting = self._task(self._reporters.run(), "report") if self._reporters else None
        await self._listen(site)
        watching = None if self._watch is None else self._task(self._watch.run(), "alarms")
        sizing = None if self._pool is None else self._task(self._pool.run(), "pool")
        following = following or self._task(self._repository.run(), "repository")
        await self._stop.wait()
        await self._drain(site, runner, following)
        await self._leave(reporting)
        for task in (watching, sizing):
            if task is not None:
                task.cancel()
        if self._debug is not None:
            await self._debug.stop()
        return self._stopped()

    async def _turn(self) -> socket.socket | None:
        """Wait for this worker's turn to listen; None where it is to stop before that."""
        if self._standby is None:
            return None
        telling = self._task(self._tell_standing_by(), "standing by")
        try:
            found = await self._standby.turn(self._stop)
        except OSError as error:
            self._fail("standby", error)
            return None
        finally:
            telling.cancel()
        if found is not None:
            self._log.info("worker.takes_over", address=self._address)
        return found

    async def _tell_standing_by(self) -> None:
        """Say so once all is loaded. It is in the line before that: one that still loads is better than none."""
        await self._repository.brought_up.wait()
        warm = [f"{one.name}@{one.version}" for one in self._repository.models if one.serves]
        self._log.info("worker.stands_by", address=self._address, warm=warm)

    async def _end_before_its_turn(self, runner: web.AppRunner, following: asyncio.Task[None]) -> int:
        self._repository.drain()
        self._executor.close()
        await asyncio.wait({following}, timeout=CUT_S)
        following.cancel()
        await runner.cleanup()
        self._repository.take_down()
        return self._stopped()

    def _task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start ``work``, without which the worker is of no use: where it fails, the worker drains and exits with 1."""

        def ended(task: asyncio.Task[None]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                self._fail(name, error)

        task = asyncio.create_task(work, name=name)
        task.add_done_callback(ended)
        return task

    def _fail(self, task: str, error: BaseException) -> None:
        self._log.error("worker.failed", task=task, error=f"{type(error).__name__}: {error}")
        self._exit_code = 1
        self._stop.set()

    async def _listen(self, site: web.SockSite) -> None:
        """Accept connections, but not before the shared state knows that a new process is here (if it can be told).

        Until then sidecars may take it for the one that had this id and address before it, and for warm as that was.
        """
        await self._reporters.flush(ANNOUNCE_S)
        try:
            await site.start()
            if self._debug is not None:
                await self._debug.start()
        except OSError as error:  # another process began to listen there after this one had bound
            self._fail("listen", error)
            return
        if self._grpc is not None:
            await self._grpc.start()
        others = {"grpc": self._grpc, "debug": self._debug}
        also = {name: one.address for name, one in others.items() if one is not None}
        self._log.info("worker.listening", address=self._address, **also)

    async def _drain(self, site: web.SockSite, runner: web.AppRunner, following: asyncio.Task[None]) -> None:
        deadline = self._clock() + self._times.drain_s
        self._log.info("worker.draining", in_flight=self._executor.in_flight, drain_s=self._times.drain_s)
        self._serving.drain()
        if self._grpc is not None:
            self._grpc.changed()
        self._repository.drain()
        self._reporters.drain()
        if not await self._reporters.flush(min(ANNOUNCE_S, self._times.drain_s)):
            self._log.warning("state.drain_not_announced")
        await self._until(None, min(self._clock() + self._times.settle_s, deadline))
        await site.stop()
        if self._standby is not None:
            self._standby.let_go()
        finishing = asyncio.create_task(self._finish(runner, deadline), name="finish")
        await self._until(finishing, deadline)
        if not finishing.done():
            self._log.warning("worker.drain_cut", in_flight=self._executor.in_flight)
        self._executor.close()
        _, unfinished = await asyncio.wait({finishing, following}, timeout=CUT_S)
        for task in unfinished:
            task.cancel()

    async def _finish(self, runner: web.AppRunner, deadline: float) -> None:
        grace_s = max(0.0, deadline - self._clock()) + CUT_S  # what is cut at the deadline still gets a status
        stopping = () if self._grpc is None else (self._grpc.stop(grace_s),)
        await asyncio.gather(runner.cleanup(), *stopping)

    async def _until(self, task: asyncio.Task[None] | None, deadline: float) -> None:
        """Return when ``task`` has ended, at ``deadline``, or when the drain is cut short; leaves the task running."""
        cut = asyncio.create_task(self._cut.wait(), name="cut")
        waits: set[asyncio.Task[Any]] = {cut} if task is None else {cut, task}
        await asyncio.wait(waits, timeout=max(0.0, deadline - self._clock()), return_when=asyncio.FIRST_COMPLETED)
        cut.cancel()

    async def _leave(self, reporting: asyncio.Task[None] | None) -> None:
        self._repository.take_down()
        if reporting is None:
            return
        reporting.cancel()
        await asyncio.wait({reporting})
        if not await self._reporters.leave(ANNOUNCE_S):
            self._log.warning("state.record_left", remedy="it expires by itself")
