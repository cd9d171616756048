"""What all connections of one data process share: the cluster, the pools, the metrics page, the limits."""

from __future__ import annotations

import random
from heapq import nsmallest
from typing import TYPE_CHECKING, Final, Protocol, cast

from sidecar.http1.admission import AdmissionPlane
from sidecar.http1.caller import HEALTH_ONLY, LAME_DUCK_S, NEVER, SHUT
from sidecar.http1.hangups import Hangups
from sidecar.http1.settling import Settling
from sidecar.http1.shapes import Shapes
from sidecar.http1.targets import Target, Targets
from sidecar.http1.watch import Times
from sidecar.telemetry.page import ENDPOINT_IN_FLIGHT, ENDPOINT_LIMIT, ENDPOINT_PASSED_OVER, OVERFLOW_KEY, Page, Scalar
from sidecar.tls.material import HTTP1
from sidecar.upstreams.names import Names
from sidecar.upstreams.pool import Upstream, lifetime_s

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection, Mapping, Sequence

    from router.cluster import Cluster
    from router.endpoint import Endpoint
    from router.model import Event
    from router.routes import Attempt
    from sidecar.http1.caller import CallerConnection
    from sidecar.http1.copying import UnderWay
    from sidecar.http1.downstream import DownstreamConnection
    from sidecar.http1.ladders import Ladders
    from sidecar.http1.recognise import Recogniser
    from sidecar.http1.steps import StepMaker
    from sidecar.settings import Limits, ModelTimeouts, Timeouts
    from sidecar.tls.client import UpstreamGate

_TRACE_NAME: Final = len(b"traceparent: ")
_AFFINITY: Final = (Scalar.AFFINITY_HITS_TOTAL, Scalar.AFFINITY_DECLINED_TOTAL, Scalar.AFFINITY_UNSEEN_TOTAL)
FEW: Final = 4
"""Refused connections whose input is waited for beyond as many as have a place reserved for health."""
TIGHT_LEAST: Final = 64
"""Connections that are accepted however short memory or descriptors are."""
TRACES_DRAWN: Final = 32
SHED_LEAST: Final = 16
"""How many idle connections are closed at least, of those there are, each time that room is made."""
SMALL_BYTES: Final = 4096
"""So much of any request is kept until it is answered, where that much may be."""
SWEEP_S: Final = 0.25
"""How often deadlines are looked at: timeouts are this coarse."""


class Pool(Protocol):
    """What is known here of an endpoint's pool, whatever protocol it speaks."""

    row: int
    sent_bytes: int

    @property
    def pooled(self) -> int: ...  # noqa: D102
    @property
    def open_connections(self) -> Collection[object]: ...  # noqa: D102
    def configure(self, limits: Limits, timeouts: Timeouts) -> None: ...  # noqa: D102
    def expire(self, now: float) -> None: ...  # noqa: D102
    def shed(self) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class Plane(Settling):
    """The state of one data process's data path. One loop, one thread."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        page: Page,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        rng: random.Random,
        limits: Limits,
        timeouts: Timeouts,
        share: Callable[[tuple[Event, ...]], None],
        model_timeouts: Mapping[str, ModelTimeouts] | None = None,
        step_makers: Sequence[StepMaker] = (),
    ) -> None:
        super().__init__(cluster, page, share)
        self.loop = loop
        self.clock = clock
        self.rng = rng.random
        self._bits = rng.getrandbits
        self._id_prefix = b"%016x-" % rng.getrandbits(64)
        self._id_count = 0
        self._trace_prefix = b"traceparent: 00-%016x" % rng.getrandbits(64)
        self.traces: list[bytes] = []  # drawn before they are needed: many at once cost less
        self.connections: set[DownstreamConnection] = set()
        self.other_connections: Collection[object] = ()  # callers' connections over another protocol
        self.copies: dict[Attempt, UnderWay] = {}  # mirrored requests under way, the oldest first
        self.copying: dict[str, int] = {}  # how many that are, by model
        self.unread: set[DownstreamConnection] = set()  # those whose callers do not take what was written
        self.spare: dict[DownstreamConnection, None] = {}  # those over the limit that may ask for health, in order
        self.parting: dict[CallerConnection, None] = {}  # and those of them that were refused, and are lingering
        self.tight = False  # memory or descriptors are short: connections are given up as they come to rest
        self.memory_bytes = 1 << 62  # that this process may have; its guard says how much that is
        self.refusing = ""  # why no new request is taken, where that is so
        self.most_connections = limits.connections
        self._most_callers = limits.connections
        self._spare_places = 0
        self.gate = limits.body_bytes
        self.recogniser: Recogniser | None = None  # what errors mean other than their status
        self.leaving = False  # not ready any more
        self.upstream_tls: Callable[[tuple[str, ...]], UpstreamGate] | None = None  # None: none to workers
        self.draining = False  # and every answer closes its connection
        self.on_tighten: list[Callable[[], None]] = []  # called each time that ``tighten`` is
        self.on_drain: list[Callable[[], None]] = []  # called once, as ``draining`` begins: GOAWAY of other protocols
        self.drained: Callable[[], None] = lambda: None
        self.received_bytes = 0
        self._leaving: list[Pool] = []  # pools of endpoints that left, while answers still come from them
        self.ladders: Ladders | None = None
        self.shapes = Shapes()
        self.names = Names(loop, clock, self.count, timeouts.name_refresh_s)
        self.hangups = Hangups(loop)
        self.want_load: Callable[[str, str], None] = lambda model, version: None  # somebody waits for it
        self.admission = AdmissionPlane(self)
        self.targets = Targets(cluster, page, self.times_of, (*step_makers, self.admission.step_of))
        self.configure(limits, timeouts, model_timeouts)

    def configure(
        self, limits: Limits, timeouts: Timeouts, model_timeouts: Mapping[str, ModelTimeouts] | None = None
    ) -> None:
        """Go by these limits and times from now on. Connections and requests that are there stay as they are."""
        self.limits = limits
        self.timeouts = timeouts
        self.body_bytes = limits.body_bytes
        self._make_room()
        self._set_gates()
        self._times = Times(timeouts)
        self._times_of = {model: Times(timeouts, own) for model, own in (model_timeouts or {}).items()}
        self.targets.clear()
        self.keep_alive_s = timeouts.keep_alive_s
        self.names.refresh_s = timeouts.name_refresh_s
        for endpoint in self.cluster.endpoints.values():
            pool: Pool | None = endpoint.shell
            if pool is not None:
                pool.configure(limits, timeouts)

    # --- requests -----------------------------------------------------------------------------------------------

    def resolve(self, target: bytes, default_model: str | None, asked: bytes = b"") -> Target:
        """Return what a request target means, with the model that a field or a body asks for."""
        return self.targets.resolve(target, default_model, asked)

    def times_of(self, model: str) -> Times:
        """Return the times of a model's requests."""
        return self._times_of.get(model, self._times)

    def new_request_id(self) -> bytes:
        """Return a new request id: random per process, then counted."""
        self._id_count += 1
        return self._id_prefix + b"%08x" % self._id_count

    def new_trace(self) -> bytes:
        """Return a line with a new, unsampled trace context (W3C Trace Context, version 00).

        The upper half of the trace id is random per process; its lower half and the parent id are random per request.
        """
        if not self.traces:
            prefix, pairs = self._trace_prefix, 2 * TRACES_DRAWN
            drawn = self._bits(64 * pairs).to_bytes(8 * pairs, "little").hex("-", 8).encode()
            self.traces += [prefix + drawn[at : at + 33] + b"-00\r\n" for at in range(0, len(drawn), 34)]
        return self.traces.pop()

    def new_traceparent(self) -> bytes:
        """Return the value of a new trace context, as above."""
        return self.new_trace()[_TRACE_NAME:-2]

    def upstream(self, endpoint: Endpoint) -> Upstream:
        """Return an endpoint's pool, made at its first use."""
        pool: Upstream | None = endpoint.shell
        if pool is None:
            pool = endpoint.shell = Upstream(
                endpoint.id,
                endpoint.address,
                loop=self.loop,
                clock=self.clock,
                page=self.page,
                limits=self.limits,
                timeouts=self.timeouts,
                shapes=self.shapes,
                rng=self.rng,
                connect=self.names.connect,
                tls=self.upstream_tls(HTTP1) if self.upstream_tls is not None else None,
            )
        return pool

    @property
    def essential_only(self) -> bool:
        """True while nothing should be done that could be left out: a model is degraded, or there is no room.

        Mirrors and samples look at this. What a healthy model keeps for bad times goes by its own ladder.
        """
        return self.tight or self.refusing != "" or (self.ladders is not None and self.ladders.degraded > 0)

    @property
    def callers(self) -> int:
        """Callers' connections of this process, whatever protocol they speak."""
        return len(self.connections) + len(self.other_connections)

    # --- room ---------------------------------------------------------------------------------------------------

    def offer(self, callers: int, spare: int) -> None:
        """Take at most so many connections, and ``spare`` more that may ask for health and nothing else."""
        self._most_callers = callers
        self._spare_places = spare
        self._make_room()

    def _make_room(self) -> None:
        if not self.tight:
            self.most_connections = min(self.limits.connections, self._most_callers)
            self._keep(self.limits.replay_bytes)

    def _keep(self, replay_bytes: int) -> None:
        self.replay_bytes = replay_bytes
        self.small_bytes = min(replay_bytes, SMALL_BYTES)

    def _set_gates(self) -> None:
        self.gate = SHUT if self.refusing else self.body_bytes
        for connection in self.connections:
            if connection.gate != HEALTH_ONLY:
                connection.gate = self.gate

    def over_limit(self, connection: DownstreamConnection) -> None:
        """Let a connection over the limit ask for health; who has held such a place the longest makes way for it."""
        connection.gate = HEALTH_ONLY
        connection.last = True
        self.spare[connection] = None
        if len(self.spare) > self._spare_places:
            oldest = next(iter(self.spare))
            del self.spare[oldest]
            oldest.turn_away()

    def part(self, connection: CallerConnection) -> None:
        """Let one over the limit that was refused linger, as many as have places; the oldest is cut off for it."""
        self.spare.pop(cast("DownstreamConnection", connection), None)
        self.parting[connection] = None
        if len(self.parting) > self._spare_places + FEW:
            oldest = next(iter(self.parting))
            del self.parting[oldest]
            oldest.end_now()

    def refuse(self, why: str) -> None:
        """Answer every new request with 503 and ``why``, but for questions after health; "": take them again."""
        turns = bool(why) is not bool(self.refusing)
        self.refusing = why
        if turns:
            self._set_gates()

    def tighten(self, now: float) -> None:
        """Memory or descriptors are short: grow no further, and give back what is idle. To be called again and again.

        Every answer is its connection's last. Of the connections that ask nothing an eighth is closed at each call, the
        longest idle first, and half of those to workers. Bodies are not kept for a retry, those of requests that are
        under way neither.
        """
        if not self.tight:
            self.tight = True
            self._keep(0)
            self.most_connections = min(self.most_connections, max(self.callers, TIGHT_LEAST))
            for connection in self.connections:
                connection.retire(now, NEVER)
        for connection in self.connections:
            connection.keep_less()
        idle = [connection for connection in self.connections if connection.idle]
        closing = nsmallest(max(len(idle) // 8, SHED_LEAST), idle, key=lambda connection: connection.deadline)
        for connection in closing:
            connection.close_if_idle()
        self.count(Scalar.OVERLOAD_SHED_TOTAL, len(closing))
        for endpoint in self.cluster.endpoints.values():
            pool: Pool | None = endpoint.shell
            if pool is not None:
                pool.shed()
        if self.ladders is not None:
            self.ladders.shed()
        for hook in self.on_tighten:
            hook()

    def relax(self) -> None:
        """There is room again."""
        self.tight = False
        self._make_room()

    # --- time ---------------------------------------------------------------------------------------------------

    def age_s(self) -> float:
        """Return how old a new connection may become."""
        return lifetime_s(self.timeouts.connection_age_s, self.rng)

    def sweep(self, now: float) -> None:
        """Look at every deadline once."""
        for connection in list(self.connections):
            try:
                if connection.active:
                    connection.refresh(now)
                if now >= connection.deadline:  # whether or not something moved: a total time runs on
                    connection.expired(now)
            except Exception as error:  # noqa: BLE001  one connection's end, not the sweep's
                connection.crashed(error)
        for connection in list(self.unread):
            try:
                connection.watch_reader(now)
            except Exception as error:  # noqa: BLE001
                connection.crashed(error)
        if self.draining and not self.connections:
            self.drained()

    def flush(self, now: float) -> None:
        """Write the gauges, drop what left the fleet, age the pools. Once a second."""
        self.settle(now)
        if self.ladders is not None:
            self.ladders.flush(now)
        self.count(Scalar.RECEIVED_BYTES, self.received_bytes)
        self.received_bytes = 0
        self.gauge(Scalar.CONNECTIONS_NOW, self.callers)
        for member, times in zip(_AFFINITY, self.cluster.affinity.take(), strict=True):
            if times:
                self.count(member, times)
        busy = 0
        for connection in self.connections:
            busy += connection.busy
            if now >= connection.retire_at:
                connection.retire(now, LAME_DUCK_S)
                self.count(Scalar.CONNECTIONS_AGED_TOTAL)
        self.gauge(Scalar.REQUESTS_NOW, busy)
        self.gauge(Scalar.TUNNELS_NOW, self.tunnels)
        self.admission.flush()
        pooled = opened = sent = 0
        words = self.words
        for endpoint in self.cluster.endpoints.values():
            pool: Pool | None = endpoint.shell
            if pool is not None:
                pool.expire(now)
                sent += pool.sent_bytes
                pool.sent_bytes = 0
                pooled += pool.pooled
                opened += len(pool.open_connections)
                words[pool.row + ENDPOINT_IN_FLIGHT] = endpoint.in_flight
                words[pool.row + ENDPOINT_PASSED_OVER] += endpoint.passed_over
                endpoint.passed_over = 0
                words[pool.row + ENDPOINT_LIMIT] = 0 if endpoint.limiter is None else endpoint.limit
        for pool in self._leaving:
            sent += pool.sent_bytes
            pool.sent_bytes = 0
        self._leaving = [pool for pool in self._leaving if pool.open_connections]
        self.count(Scalar.SENT_BYTES, sent)
        self.gauge(Scalar.UPSTREAM_POOLED_NOW, pooled)
        self.gauge(Scalar.UPSTREAM_CONNECTIONS_NOW, opened)

    def bury(self) -> list[str]:
        """Close the pools and end the series of endpoints that left; return their ids."""
        departed = self.cluster.departed
        if departed:
            self.settle(self.clock())
        ids = []
        while departed:
            endpoint = departed.pop()
            pool: Pool | None = endpoint.shell
            if pool is not None:
                self.count(Scalar.SENT_BYTES, pool.sent_bytes)
                pool.sent_bytes = 0
                self._leaving.append(pool)
                pool.close()
                if endpoint.id not in self.cluster.endpoints:
                    self.page.drop_endpoint(endpoint.id)
                if endpoint.in_flight:  # its row may soon be another's, at the latest when its successor leaves too
                    pool.row = self.page.endpoint_row(OVERFLOW_KEY)
            ids.append(endpoint.id)
        return ids

    def leave(self) -> None:
        """Say to who asks that this process is not ready any more; everything else goes on as before."""
        self.leaving = True
        self.gauge(Scalar.DRAINING_NOW, 1)

    def drain(self, now: float) -> None:
        """Begin to end: every answer from now on closes its connection, idle ones go after ``timeouts.drain_idle_s``.

        That long a request which is already on its way is still answered. Whether this process is ready is another
        question (:meth:`leave`): where another sidecar serves on the same sockets, the address is.
        """
        self.draining = True
        self.gauge(Scalar.DRAINING_NOW, 1)
        for connection in self.connections:
            connection.retire(now, self.timeouts.drain_idle_s)
        for hook in self.on_drain:
            hook()

    def cut_all(self) -> int:
        """End what still runs, because the grace period is over; return how many requests that cut."""
        cut = sum(connection.busy for connection in self.connections)
        for connection in list(self.connections):
            connection.cut_for_drain()
        return cut
