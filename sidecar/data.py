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
import socket
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import uvloop

from router.cluster import Cluster
from router.evidence import breaker_text
from router.model import (
    BreakersHinted,
    EjectCause,
    EndpointEjected,
    EndpointGone,
    EndpointHeld,
    EndpointReturned,
    EndpointSeen,
    EndpointsHeard,
    Evidence,
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
    Listening,
    LoadWanted,
    Ping,
    guard_messages,
    observation_messages,
)
from sidecar.http1.classifying import shape_step
from sidecar.http1.downstream import DownstreamConnection
from sidecar.http1.forwarding import ListenerRules
from sidecar.http1.ladders import Ladders
from sidecar.http1.mirrors import Mirrors
from sidecar.http1.plane import SWEEP_S, Plane
from sidecar.http1.recognise import Recogniser
from sidecar.http1.shared_answers import SharedTier
from sidecar.http1.versions import version_step
from sidecar.membership import Membership, model_timeouts
from sidecar.overload import Guard
from sidecar.settings import Protocol, model_policies, router_policies
from sidecar.sockets import granted
from sidecar.telemetry.logs import get_log
from sidecar.telemetry.page import Page, Scalar
from sidecar.tls.material import HTTP1, HTTP2
from sidecar.tls.process import ProcessTls

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.model import Event
    from sidecar.boot import ListenerFd, PlanFile
    from sidecar.grpc.plane import GrpcPlane

TICK_S = 0.1
OBSERVE_S = 1.0
HELLO_S = 1.0
FIRST_SNAPSHOT_S = 5.0
"""Longest wait for a snapshot before connections are accepted all the same."""
MAX_QUEUED = 65536
"""Most connections taken from an accept queue while closing (the largest backlog there is)."""
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
_ALPN = {Protocol.HTTP: HTTP1, Protocol.GRPC: HTTP2}
_MODE_INDEX = {mode: index for index, mode in enumerate(StoreMode)}


def _figures(evidence: Evidence) -> dict[str, object]:
    """Return what a breaker opened on as fields of a log line, without what is unknown."""
    return {name: value for name, value in asdict(evidence).items() if value is not None}


@dataclass(slots=True)
class _Entrance:
    """One listening socket, the server on it, and what makes the protocol of a connection that it accepts."""

    sock: socket.socket
    server: asyncio.Server
    factory: Callable[[], asyncio.Protocol]
    held: ListenerFd
    name: str
    listening: bool


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
        self._cluster = Cluster(router_policies(settings), model_policies(settings), now, rng=rng.random)
        ladders = Ladders(settings.models, settings.policies.ladder, self._page, now)
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
            step_makers=(version_step, shape_step, Mirrors().step, ladders.maker),
        )
        self._plane.ladders = ladders
        self._plane.recogniser = Recogniser(settings.recognise)
        if settings.state.url != "none":
            ladders.tier = SharedTier(loop, self._clock, self._channel.send)
        self._plane.drained = self._finish
        self._membership = Membership(self._plane, settings, now)
        processes = max(listener.processes for listener in settings.listeners)
        self._plane.admission.divide(plan.index, processes)
        self._plane.want_load = self._want_load
        self._guard = Guard(self._plane, settings.overload, processes)
        self._tick_due = now
        self._tls = ProcessTls(settings, loop=loop, page=self._page, clock=self._clock)
        self._plane.upstream_tls = self._tls.upstream
        self._plane.gauge(Scalar.CONFIG_NOW, plan.sequence)
        self._entrances: list[_Entrance] = []
        self._grpc: GrpcPlane | None = None
        self._accepting = False
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

    # --- listeners ----------------------------------------------------------------------------------------------

    async def _accept(self) -> None:
        self._tls.prepare()
        self._guard.begin()
        settings = self._plan.settings
        for held in self._plan.listeners:
            listener = settings.listeners[held.listener]
            sock = socket.socket(fileno=held.fd)
            sock.setblocking(False)
            name = listener.name or held.address
            rules = ListenerRules(
                listener.default_model,
                trusted_networks=listener.trusted_networks,
                model_header=listener.model_header,
            )
            self._membership.rules.append(rules)
            factory = self._tls.guard(
                held.listener, name, _ALPN[listener.protocol], self._factory(rules, listener.protocol)
            )
            make = self._loop.create_unix_server if sock.family == socket.AF_UNIX else self._loop.create_server
            server = await make(
                factory, sock=sock, backlog=held.backlog or listener.backlog, start_serving=not held.later
            )
            self._entrances.append(_Entrance(sock, server, factory, held, name, not held.later))
        self._say_listening()
        self._accepting = True
        self._plane.gauge(Scalar.ACCEPTING_NOW, 1)
        self._log.info("process.accepting", listeners=[held.address for held in self._plan.listeners])

    async def _listen_later(self) -> None:
        """Listen on what had to wait for the sidecar that served before."""
        if self._accepting and self._drain_until is None:
            for entrance in self._entrances:
                if not entrance.listening:
                    entrance.listening = True
                    await entrance.server.start_serving()
            self._say_listening()

    async def _stop_accepting(self) -> None:
        """Close the listeners, but first take what already waits in their queues: those callers were accepted."""
        waiting: list[tuple[socket.socket, Callable[[], asyncio.Protocol]]] = []
        for entrance in self._entrances:
            for _ in range(MAX_QUEUED):
                try:
                    connection, _ = entrance.sock.accept()
                except OSError:  # nobody waits, or no descriptor is left
                    break
                connection.setblocking(False)
                waiting.append((connection, entrance.factory))
        for entrance in self._entrances:
            entrance.server.close()
        taken = 0
        for connection, factory in waiting:
            try:
                await self._loop.connect_accepted_socket(factory, connection)
                taken += 1
            except OSError:  # that caller has gone meanwhile
                connection.close()
        self._accepting = False
        self._log.info("process.closed", taken_from_queue=taken)

    def _factory(self, rules: ListenerRules, protocol: Protocol) -> Callable[[], asyncio.Protocol]:
        if protocol is Protocol.GRPC:
            from sidecar.grpc.downstream import CallerConnection

            grpc = self._with_grpc()
            return lambda: CallerConnection(grpc, rules)
        return lambda: DownstreamConnection(self._plane, rules)

    def _with_grpc(self) -> GrpcPlane:
        """Return the gRPC side of this process, which only one with such a listener has."""
        if self._grpc is None:
            from sidecar.grpc.plane import GrpcPlane

            self._grpc = GrpcPlane(self._plane)
        return self._grpc

    # --- the channel --------------------------------------------------------------------------------------------

    def _say_hello(self) -> None:
        self._hello_due = self._clock() + HELLO_S
        self._channel.send(Hello(self._plan.index, os.getpid(), self._epoch))

    def _say_listening(self) -> None:
        for entrance in self._entrances:
            if entrance.listening:
                listener = self._plan.settings.listeners[entrance.held.listener]
                grant = granted(entrance.sock, listener.backlog, listener.fastopen_queue)
                self._channel.send(
                    Listening(
                        self._plan.index, entrance.name, entrance.held.address, grant.backlog, grant.fastopen_queue
                    )
                )

    def _share(self, events: tuple[Event, ...]) -> None:
        for event in events:
            if not self._channel.send(event):
                self._plane.count(Scalar.CHANNEL_DROPPED_TOTAL)
            if isinstance(event, EndpointEjected):
                self._log_ejection(event)
            elif isinstance(event, EndpointReturned):
                if event.cause is EjectCause.BREAKER:
                    self._log.info("breaker.closed", endpoint=event.id, model=event.model, version=event.version)
                else:
                    self._log.info("endpoint.returned", endpoint=event.id, cause=event.cause.value)

    def _log_ejection(self, event: EndpointEjected) -> None:
        for_s = round(event.until - event.at, 3)
        if event.cause is EjectCause.OUTLIER and event.evidence is not None:
            found = event.evidence
            self._log.warning(
                "endpoint.ejected",
                endpoint=event.id,
                cause=event.cause.value,
                model=event.model,
                version=event.version,
                step=event.level,
                for_s=for_s,
                calls=found.calls,
                failed=found.failed,
                others_ratio=found.others_ratio,
            )
            return
        if event.cause is not EjectCause.BREAKER or event.rule is None or event.evidence is None:
            self._log.warning(
                "endpoint.ejected", endpoint=event.id, cause=event.cause.value, step=event.level, for_s=for_s
            )
            return
        self._log.warning(
            "breaker.opened",
            endpoint=event.id,
            model=event.model,
            version=event.version,
            rule=event.rule.value,
            why=breaker_text(event.rule, event.evidence),
            **_figures(event.evidence),
            for_s=for_s,
        )

    def _log_trials(self) -> None:
        """Name the breakers that are tried again."""
        for candidate in self._cluster.half_opened:
            rule = candidate.breaker.rule
            self._log.info(
                "breaker.half_open",
                endpoint=candidate.endpoint.id,
                model=candidate.model,
                version=candidate.version,
                rule=None if rule is None else rule.value,
            )
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
            if message.rules != self._plane.faults:
                self._log.warning("faults.changed", rules=len(message.rules))
            self._plane.faults = message.rules
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
        if not self._channel.send(LoadWanted(model, version)):
            self._plane.count(Scalar.CHANNEL_DROPPED_TOTAL)

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
        self._membership.configure(plan.settings, tuple(held.listener for held in plan.listeners), now)
        self._bury()
        self._plane.recogniser = Recogniser(plan.settings.recognise)
        self._guard.configure(plan.settings.overload)
        self._tls.configure(plan.settings)
        self._plane.gauge(Scalar.CONFIG_NOW, plan.sequence)
        self._log.info("config.in_force", revision=plan.revision)

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
        if self._cluster.half_opened:
            self._log_trials()
        self._plane.admission.tick(now)
        for route in self._cluster.panicked:
            say = self._log.error if route.panic else self._log.info
            say("route.panic" if route.panic else "route.calm", route=route.key, candidates=len(route.candidates))
        self._cluster.panicked.clear()
        self._cluster.differing.clear()  # the control process says it, once for all
        self._plane.hangups.look()
        if now >= self._sweep_due:
            self._plane.gauge(Scalar.LOOP_LAG_US_NOW, int(max(0.0, now - self._sweep_due) * 1e6))
            self._sweep_due = now + SWEEP_S
            self._plane.sweep(now)
            if self._grpc is not None:
                self._grpc.sweep(now)
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
        if self._plane.faults and all(now >= rule.until for rule in self._plane.faults):
            self._plane.faults = ()
        if self._drain_at is not None and now >= self._drain_at:
            self._drain(now)
        if self._drain_until is not None and now >= self._drain_until and not self._ended.done():
            cut = self._plane.cut_all()
            if self._grpc is not None:
                cut += self._grpc.cut_all()
            self._log.warning("drain.cut", requests=cut)
            self._drain_until = float("inf")
            self._loop.call_later(0.2, self._end)

    def _flush(self, now: float) -> None:
        self._plane.flush(now)
        self._tls.flush()
        if self._grpc is not None:
            self._grpc.flush()

    def _observe(self, now: float) -> None:
        for message in observation_messages(self._plan.index, self._cluster.observe(now), now):
            if not self._channel.send(message):
                self._plane.count(Scalar.CHANNEL_DROPPED_TOTAL)
        for prefixes in self._cluster.take_prefixes():
            if not self._channel.send(prefixes):
                self._plane.count(Scalar.CHANNEL_DROPPED_TOTAL)
        self._say_guards()

    def _say_guards(self) -> None:
        if self._snapshot:  # before that we know of no ejection, which does not mean that there is none
            for part in guard_messages(self._cluster.guards()):
                if not self._channel.send(part):
                    self._plane.count(Scalar.CHANNEL_DROPPED_TOTAL)

    # --- the end ------------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Begin to end. Load balancers get their time to notice first, unless nobody would be told of it."""
        if self._drain_until is not None or self._drain_at is not None:
            return
        now = self._clock()
        self._look_at_plan(now)
        wait_s = 0.0 if self._plan.handed_over else self._plan.settings.timeouts.drain_wait_s
        if wait_s and self._accepting and os.getppid() == self._plan.parent_pid:
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
        if not self._accepting and not self._tls.handshakes and not self._ended.done():
            self._ended.set_result(None)


def run_data(plan: DataPlan, file: PlanFile) -> int:
    """Run one data process to its end; return the exit code. ``file`` is where ``plan`` and later ones are read."""

    async def main() -> int:
        return await DataProcess(plan, file, asyncio.get_running_loop()).run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())
