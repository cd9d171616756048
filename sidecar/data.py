"""One data process: listeners, the data path, a cluster of its own, and the channel to the control process.

It serves on with the last snapshot when the control process is gone, and accepts nothing before its first snapshot (or
until it has waited long enough for one), so that a process that just started refuses nobody for want of routes.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import secrets
import signal
import time
from typing import TYPE_CHECKING

import uvloop

from router.cluster import Cluster
from router.model import (
    BreakersHinted,
    EndpointEjected,
    EndpointGone,
    EndpointHeld,
    EndpointReturned,
    EndpointSeen,
    EndpointsHeard,
    FleetMeasured,
    LoadsReported,
    PeerObserved,
    PrefixesSeen,
    SnapshotBegan,
    SnapshotEnded,
    StoreChanged,
    StoreMode,
    Tick,
    VersionsSteered,
)
from sidecar.boot import DataPlan
from sidecar.channel import (
    AnswerFound,
    CacheCleared,
    Channel,
    ChannelError,
    FaultsChanged,
    Hello,
    LoadWanted,
    Ping,
    guard_messages,
    observation_messages,
)
from sidecar.entrances import Entrances
from sidecar.faults.injector import Injector
from sidecar.http1.classifying import shape_step
from sidecar.http1.ladders import Ladders
from sidecar.http1.mirrors import mirror_step
from sidecar.http1.plane import SWEEP_S, Plane
from sidecar.http1.recognise import Recogniser
from sidecar.http1.shared_answers import SharedTier
from sidecar.http1.versions import version_step
from sidecar.membership import Membership, model_timeouts
from sidecar.overload import Guard
from sidecar.settings import HeaderTrust, model_policies, router_policies
from sidecar.telemetry.logs import get_log
from sidecar.telemetry.page import Page, Scalar
from sidecar.telemetry.verdicts import log_event, log_failing, log_panic, log_trials
from sidecar.tls.process import ProcessTls

if TYPE_CHECKING:
    from router.model import Event
    from sidecar.boot import PlanFile
    from sidecar.settings import Faults

TICK_S = 0.1
OBSERVE_S = 1.0
HELLO_S = 1.0
FIRST_SNAPSHOT_S = 5.0
"""Longest wait for a snapshot before connections are accepted all the same."""
CONTROL_SILENT_S = 2.0
"""No ping for this long: the control process is gone or stuck."""

_ROUTER_EVENTS = (
    EndpointsHeard,
    EndpointHeld,
    EndpointEjected,
    EndpointReturned,
    PeerObserved,
    LoadsReported,
    FleetMeasured,
    PrefixesSeen,
    SnapshotBegan,
    VersionsSteered,
    BreakersHinted,
)
_MODE_INDEX = {mode: index for index, mode in enumerate(StoreMode)}


class DataProcess:
    """The composition of one data process, on one loop."""

    def __init__(self, plan: DataPlan, file: PlanFile, loop: asyncio.AbstractEventLoop) -> None:
        self._plan = plan
        self._file = file
        self._loop = loop
        self._log = get_log("data")
        self._clock = time.monotonic
        self._channel = Channel.from_fd(plan.channel_fd)
        self._page = Page(plan.metrics_fd)
        self._epoch = secrets.token_hex(8)
        settings = plan.settings
        rng = random.Random(secrets.randbits(64))  # noqa: S311  routing, not secrets
        now = self._clock()
        self._page.begin(os.getpid(), now)
        self._page.reserve_models(model.name for model in settings.models)
        self._cluster = Cluster(router_policies(settings), model_policies(settings), now, rng=rng.random)
        policies = settings.policies
        ladders = Ladders(settings.models, policies.ladder, self._page, now, policies.admission)
        self._plane = Plane(
            cluster=self._cluster,
            page=self._page,
            loop=loop,
            clock=self._clock,
            rng=rng,
            limits=settings.limits,
            timeouts=settings.timeouts,
            share=self._share,
            model_timeouts=model_timeouts(settings),
            step_makers=(version_step, shape_step, mirror_step, ladders.maker),
        )
        self._plane.ladders = ladders
        self._plane.recogniser = Recogniser(settings.recognise)
        if settings.state.url != "none":
            ladders.tier = SharedTier(loop, self._clock, self._channel.send)
        self._plane.drained = self._finish
        processes = max(listener.processes for listener in settings.listeners)
        self._plane.admission.divide(plan.index, processes)  # before there are limits: none is ever shown undivided
        self._membership = Membership(self._plane, settings, now)
        self._plane.want_load = self._want_load
        self._injector = Injector(self._plane)
        self._configure_faults(settings.faults, now)
        self._guard = Guard(self._plane, settings.overload, processes)
        self._tick_due = now
        self._tls = ProcessTls(settings, loop=loop, page=self._page, clock=self._clock)
        self._plane.upstream_tls = self._tls.upstream
        self._plane.gauge(Scalar.CONFIG_NOW, plan.sequence)
        self._entrances = Entrances(self._plane, self._tls)
        self._control_epoch = ""
        self._mode = StoreMode.LIVE
        self._pinged = now
        self._snapshot = False
        self._go = asyncio.Event()  # accept now: a snapshot came, or there is nothing to wait for
        self._control_lost = False
        self._hello_due = now
        self._observe_due = now + OBSERVE_S
        self._sweep_due = now + SWEEP_S
        self._drain_at: float | None = None  # when connections begin to be closed, where that is to be waited for
        self._drain_until: float | None = None
        self._ended = loop.create_future()

    async def run(self) -> int:
        """Serve until told to stop; return the exit code."""
        loop = self._loop
        loop.add_signal_handler(signal.SIGTERM, self._leave)
        loop.add_reader(self._channel.fileno(), self._read_channel)
        self._say_hello()
        self._tick()
        try:
            async with asyncio.timeout(None if self._plan.succeeds else FIRST_SNAPSHOT_S):
                await self._go.wait()
        except TimeoutError:
            self._log.warning("snapshot.missing", waited_s=FIRST_SNAPSHOT_S)
        # What lives now lives on: the collector need not look at it again, nor run for every few hundred objects.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        if self._drain_until is None:
            await self._accept()
        await self._ended
        self._ticker.cancel()
        self._flush(self._clock())
        loop.remove_reader(self._channel.fileno())
        self._log.info("process.stopped")
        return 0

    async def _accept(self) -> None:
        self._tls.prepare()
        self._guard.begin()
        await self._entrances.open(self._plan, self._membership.rules)
        self._say_listening()
        self._plane.gauge(Scalar.ACCEPTING_NOW, 1)
        self._log.info("process.accepting", listeners=[held.address for held in self._plan.listeners])

    async def _listen_later(self) -> None:
        """Listen on what had to wait for the sidecar that served before."""
        if self._entrances.accepting and self._drain_until is None:
            await self._entrances.listen_later()
            self._say_listening()

    async def _stop_accepting(self) -> None:
        taken = await self._entrances.close()
        self._log.info("process.closed", taken_from_queue=taken)

    # --- the channel --------------------------------------------------------------------------------------------

    def _say_hello(self) -> None:
        self._hello_due = self._clock() + HELLO_S
        self._channel.send(Hello(self._plan.index, os.getpid(), self._epoch))

    def _say_listening(self) -> None:
        for message in self._entrances.listening(self._plan):
            self._channel.send(message)

    def _send(self, message: object) -> None:
        """Tell the control process, or count that the channel takes nothing now."""
        if not self._channel.send(message):
            self._plane.count(Scalar.CHANNEL_DROPPED_TOTAL)

    def _share(self, events: tuple[Event, ...]) -> None:
        if events:
            self._say_trials()  # before what came of them
        for event in events:
            self._send(event)
            log_event(event)

    def _say_trials(self) -> None:
        if self._cluster.half_opened:
            log_trials(self._cluster.half_opened)
            self._cluster.half_opened.clear()

    def _read_channel(self) -> None:
        try:
            for message in self._channel.receive():
                self._take(message)
        except ChannelError as error:
            self._log.error("channel.unreadable", error=str(error))
        except EOFError:
            self._loop.remove_reader(self._channel.fileno())  # the supervisor is gone too: SIGTERM follows
            self._log.error("channel.closed")
        self._bury()
        self._plane.admission.changed()  # a replica may be warm now

    def _take(self, message: object) -> None:
        now = self._clock()
        if isinstance(message, EndpointSeen | EndpointGone):
            self._share(self._membership.told(message, now))
        elif isinstance(message, _ROUTER_EVENTS):
            self._share(self._cluster.apply(message, now))
        elif isinstance(message, Ping):
            self._membership.pinged(message.epoch, now)
            self._divide(message.alive)
            self._pinged = now
            if message.epoch != self._control_epoch:  # a new control process, which knows nothing of us
                self._control_epoch = message.epoch
                self._say_listening()
                self._say_guards()
            if self._control_lost:
                self._control_lost = False
                self._plane.gauge(Scalar.CONTROL_LOST_NOW, 0)
                self._log.info("control.returned")
                self._set_mode(self._mode, now)
        elif isinstance(message, StoreChanged):
            self._mode = message.mode
            self._set_mode(message.mode, now)
        elif isinstance(message, SnapshotEnded):
            self._share(self._membership.ended(message, now))
            self._snapshot = True
            self._go.set()
        elif isinstance(message, FaultsChanged):
            if message.rules != self._injector.rules:
                self._log.warning("faults.changed", rules=len(message.rules))
                self._injector.put(message.rules)
                self._arm_faults(now)
        elif isinstance(message, AnswerFound):
            if self._plane.ladders is not None and self._plane.ladders.tier is not None:
                self._plane.ladders.tier.found(message)
        elif isinstance(message, CacheCleared) and self._plane.ladders is not None:
            forgotten = self._plane.ladders.clear(message.model)
            self._log.info("cache.cleared", model=message.model, answers=forgotten)

    def _divide(self, alive: tuple[int, ...]) -> None:
        """Take this process's part of what must hold for the sidecar; one that nobody has heard yet counts as well."""
        index = self._plan.index
        if alive:
            before = sum(other < index for other in alive)
            self._plane.admission.divide(before, len(alive) + (index not in alive))

    def _want_load(self, model: str, version: str) -> None:
        self._send(LoadWanted(model, version))

    def _set_mode(self, mode: StoreMode, now: float) -> None:
        self._cluster.apply(StoreChanged(mode, now), now)
        self._plane.gauge(Scalar.STORE_MODE_NOW, _MODE_INDEX[mode])

    def _bury(self) -> None:
        for id in self._plane.bury():  # noqa: A001
            self._log.info("endpoint.gone", endpoint=id)

    # --- configuration ------------------------------------------------------------------------------------------

    def _look_at_plan(self, now: float) -> None:
        """Take over what the supervisor wrote since; connections and requests that are there go on."""
        plan = self._file.newer()
        if not isinstance(plan, DataPlan):
            return
        before, self._plan = self._plan, plan
        if before.succeeds and not plan.succeeds:
            self._listening = self._loop.create_task(self._listen_later(), name="listen later")
        if plan.sequence == before.sequence:
            return
        self._page.reserve_models(model.name for model in plan.settings.models)
        self._membership.configure(plan.settings, tuple(held.listener for held in plan.listeners), now)
        self._bury()
        self._plane.recogniser = Recogniser(plan.settings.recognise)
        self._guard.configure(plan.settings.overload)
        self._configure_faults(plan.settings.faults, now)
        self._tls.configure(plan.settings)
        self._plane.gauge(Scalar.CONFIG_NOW, plan.sequence)
        self._log.info("config.in_force", revision=plan.revision)

    def _configure_faults(self, faults: Faults, now: float) -> None:
        self._injector.most_attempts = faults.most_attempts
        self._injector.headers = faults.headers is HeaderTrust.TRUSTED
        self._arm_faults(now)

    def _arm_faults(self, now: float) -> None:
        """Have attempts looked at while there is a fault in force, or one under way that was struck."""
        self._injector.expire(now)
        self._plane.faults = None if self._injector.idle else self._injector

    # --- time ---------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = self._clock()
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        self._guard.ticked(max(0.0, now - self._tick_due), now)
        self._tick_due = now + TICK_S
        self._plane.settle(now)
        self._look_at_plan(now)
        if self._membership.settle(now):
            self._bury()
        self._share(self._cluster.apply(Tick(), now))
        self._say_trials()
        self._plane.admission.tick(now)
        if self._cluster.panicked:
            log_panic(self._cluster.panicked)
            self._cluster.panicked.clear()
        if self._cluster.failing:
            log_failing(self._cluster.failing)
            self._cluster.failing.clear()
        self._cluster.differing.clear()  # the control process says it, once for all
        self._plane.hangups.look()
        if now >= self._sweep_due:
            self._plane.gauge(Scalar.LOOP_LAG_US_NOW, int(max(0.0, now - self._sweep_due) * 1e6))
            self._sweep_due = now + SWEEP_S
            self._plane.sweep(now)
            if self._entrances.grpc is not None:
                self._entrances.grpc.sweep(now)
        if now >= self._observe_due:
            self._observe_due = now + OBSERVE_S
            self._flush(now)
            self._tls.tick(now)
            self._observe(now)
        if not self._snapshot and now >= self._hello_due:
            self._say_hello()
        if not self._control_lost and now - self._pinged > CONTROL_SILENT_S:
            self._control_lost = True
            self._plane.gauge(Scalar.CONTROL_LOST_NOW, 1)
            self._log.warning("control.lost", silent_s=round(now - self._pinged, 1))
            self._set_mode(StoreMode.FROZEN, now)
        if self._plane.faults is not None:
            self._arm_faults(now)
        if self._drain_at is not None and now >= self._drain_at:
            self._drain(now)
        if self._drain_until is not None and now >= self._drain_until and not self._ended.done():
            cut = self._plane.cut_all()
            if self._entrances.grpc is not None:
                cut += self._entrances.grpc.cut_all()
            self._log.warning("drain.cut", requests=cut)
            self._drain_until = float("inf")
            self._loop.call_later(0.2, self._end)

    def _flush(self, now: float) -> None:
        self._plane.flush(now)
        self._tls.flush()
        if self._entrances.grpc is not None:
            self._entrances.grpc.flush()

    def _observe(self, now: float) -> None:
        for message in observation_messages(self._plan.index, self._cluster.observe(now), now):
            self._send(message)
        for prefixes in self._cluster.take_prefixes():
            self._send(prefixes)
        self._say_guards()

    def _say_guards(self) -> None:
        if self._snapshot:  # before that we know of no ejection, which does not mean that there is none
            for part in guard_messages(self._cluster.guards()):
                self._send(part)

    # --- the end ------------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Begin to end. Load balancers get their time to notice first, unless nobody would be told of it."""
        if self._drain_until is not None or self._drain_at is not None:
            return
        now = self._clock()
        self._look_at_plan(now)
        wait_s = 0.0 if self._plan.handed_over else self._plan.settings.timeouts.drain_wait_s
        if wait_s and self._entrances.accepting and os.getppid() == self._plan.parent_pid:
            self._plane.leave()
            self._drain_at = now + wait_s
            self._log.info("drain.waiting", connections=self._plane.callers, wait_s=wait_s)
        else:
            self._drain(now)

    def _drain(self, now: float) -> None:
        self._drain_at = None
        grace_s = self._plan.settings.timeouts.drain_s
        self._drain_until = now + grace_s
        self._log.info("drain.began", connections=self._plane.callers, grace_s=grace_s)
        if not self._plan.handed_over:
            self._plane.leave()
        self._plane.drain(now)
        self._go.set()
        self._stopping = self._loop.create_task(self._stop_accepting(), name="stop accepting")

    def _finish(self) -> None:
        """Everything that ran over one protocol has ended."""
        if not self._plane.callers:
            self._end()

    def _end(self) -> None:
        """Everything has ended, or was cut; whoever is still in a handshake was accepted too."""
        if not self._entrances.accepting and not self._tls.handshakes and not self._ended.done():
            self._ended.set_result(None)


def run_data(plan: DataPlan, file: PlanFile) -> int:
    """Run one data process to its end; return the exit code. ``file`` is where ``plan`` and later ones are read."""

    async def main() -> int:
        return await DataProcess(plan, file, asyncio.get_running_loop()).run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())
