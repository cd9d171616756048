"""What all connections of one data process share: the cluster, the pools, the metrics page, the limits."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import Counter
from heapq import nsmallest
from typing import TYPE_CHECKING, Final, Protocol, cast

from router.model import EndpointEjected
from router.outcomes import OUTCOME_INDEX, AttemptResult, Outcome
from sidecar.http1.admission import AdmissionPlane
from sidecar.http1.caller import HEALTH_ONLY, LAME_DUCK_S, NEVER, SHUT
from sidecar.http1.hangups import Hangups
from sidecar.http1.shapes import Shapes
from sidecar.http1.targets import Target, Targets
from sidecar.http1.watch import Times
from sidecar.telemetry.page import (
    BUCKETS_S,
    ENDPOINT_EJECTIONS,
    ENDPOINT_HISTOGRAM,
    ENDPOINT_IN_FLIGHT,
    ENDPOINT_LIMIT,
    ENDPOINT_PASSED_OVER,
    FIRST_BYTE_SUM,
    MODEL_FIRST_BYTE,
    MODEL_OUTCOMES,
    OVERFLOW_KEY,
    Page,
    Scalar,
    bucket,
)
from sidecar.tls.material import HTTP1
from sidecar.upstreams.names import Names
from sidecar.upstreams.pool import Upstream, lifetime_s

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection, Mapping, Sequence

    from router.cluster import Cluster
    from router.endpoint import Candidate, Endpoint
    from router.model import Event
    from router.routes import Attempt
    from sidecar.channel import FaultRule
    from sidecar.http1.caller import CallerConnection
    from sidecar.http1.downstream import DownstreamConnection
    from sidecar.http1.ladders import Ladders
    from sidecar.http1.recognise import Recogniser
    from sidecar.http1.steps import StepMaker
    from sidecar.settings import Limits, ModelTimeouts, Timeouts
    from sidecar.tls.client import UpstreamGate

_TRACE_NAME: Final = len(b"traceparent: ")
_RESULT_INDEX: Final = {result: index for index, result in enumerate(AttemptResult)}
_SUM: Final = len(BUCKETS_S) + 1
_OK: Final = OUTCOME_INDEX[Outcome.OK]
_SUCCESS: Final = _RESULT_INDEX[AttemptResult.SUCCESS]
_REQUEST_SUM: Final = MODEL_OUTCOMES + _SUM
_ATTEMPT_SUM: Final = ENDPOINT_HISTOGRAM + _SUM
_AFFINITY: Final = (Scalar.AFFINITY_HITS_TOTAL, Scalar.AFFINITY_DECLINED_TOTAL, Scalar.AFFINITY_UNSEEN_TOTAL)
FEW: Final = 4
"""Refused connections whose input is waited for beyond as many as have a place reserved for health."""
TIGHT_LEAST: Final = 64
"""Connections that are accepted however short memory or descriptors are."""
TRACES_DRAWN: Final = 32
SHED_LEAST: Final = 16
"""How many idle connections are closed at least, of those there are, each time that room is made."""
MOST_TAKEN: Final = 128
"""So many answers of one replica are counted at once, before the tick."""
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


class Plane:
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
        self.cluster = cluster
        self.page = page
        self.words = page.words
        self.loop = loop
        self.clock = clock
        self.rng = rng.random
        self._bits = rng.getrandbits
        self._id_prefix = b"%016x-" % rng.getrandbits(64)
        self._id_count = 0
        self._trace_prefix = b"traceparent: 00-%016x" % rng.getrandbits(64)
        self.traces: list[bytes] = []  # drawn before they are needed: many at once cost less
        self.share = share
        self.connections: set[DownstreamConnection] = set()
        self.other_connections: Collection[object] = ()  # callers' connections over another protocol
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
        self.faults: tuple[FaultRule, ...] = ()
        self.recogniser: Recogniser | None = None  # what errors mean other than their status
        self.leaving = False  # not ready any more
        self.upstream_tls: Callable[[tuple[str, ...]], UpstreamGate] | None = None  # None: none to workers
        self.draining = False  # and every answer closes its connection
        self.on_tighten: list[Callable[[], None]] = []  # called each time that ``tighten`` is
        self.on_drain: list[Callable[[], None]] = []  # called once, as ``draining`` begins: GOAWAY of other protocols
        self.drained: Callable[[], None] = lambda: None
        self.received_bytes = 0
        self._unsettled: list[tuple[Candidate, int, list[float]]] = []  # what ``settle`` is to count
        self._leaving: list[Pool] = []  # pools of endpoints that left, while answers still come from them
        self.tunnels = 0  # open now
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

    # --- endings ------------------------------------------------------------------------------------------------

    def answered(self, attempt: Attempt, row: int, now: float) -> None:
        """Settle the usual case: the first attempt brought a whole answer below 400. The request took as long as it.

        The router's choices know of it at once; it is counted with others at :meth:`settle`. ``row`` is that of the
        model in the metrics page.
        """
        candidate = attempt.candidate
        if candidate.guarded:
            self.attempt_ended(attempt, AttemptResult.SUCCESS, now)
            self.request_ended(row, Outcome.OK, now - attempt.started)
            return
        taken = candidate.taken.get(row)
        if not taken:
            taken = self._begin_to_count(candidate, row)
        taken.append(self.cluster.succeeded(attempt, now))
        if len(taken) >= MOST_TAKEN:
            self.settle(now)

    def _begin_to_count(self, candidate: Candidate, row: int) -> list[float]:
        taken: list[float] = []
        if self.admission.waiting:  # who waits is told of each answer: it is not kept, so that the next comes here too
            self.admission.released(candidate.endpoint)
        else:
            taken = candidate.taken.setdefault(row, taken)
        self._unsettled.append((candidate, row, taken))
        return taken

    def settle(self, now: float) -> None:
        """Count what was answered since the last call: metrics, quantiles, breakers. Each tick, and when it is much.

        Counting many at once costs a third of counting each.
        """
        words = self.words
        for candidate, row, taken in self._unsettled:
            endpoint_row: int = candidate.endpoint.shell.row
            steps = Counter([bisect_left(BUCKETS_S, seconds) for seconds in taken])
            microseconds = int(sum(taken) * 1e6)
            number = len(taken)
            for at in (row + MODEL_OUTCOMES, endpoint_row + ENDPOINT_HISTOGRAM):
                for step, count in steps.items():
                    words[at + step] += count
                words[at + _SUM] += microseconds
            words[row + _OK] += number
            words[endpoint_row + _SUCCESS] += number
            shared = self.cluster.learn(candidate, taken, now)
            taken.clear()
            if shared:
                words[endpoint_row + ENDPOINT_EJECTIONS] += len(shared)
                self.share(shared)
        self._unsettled.clear()

    def attempt_ended(
        self,
        attempt: Attempt,
        result: AttemptResult,
        now: float,
        retry_after_s: float | None = None,
        passed_on_s: float = 0.0,
    ) -> None:
        """Settle one attempt with the router and the metrics; one of the background is counted as such and no more.

        ``passed_on_s``: so much of it, at its end, is no latency: a stream that was passed on as it came.
        """
        if self.admission.waiting:
            self.admission.released(attempt.endpoint)
        if attempt.background:
            self.count(Scalar.BACKGROUND_TOTAL)
            self.cluster.done(attempt, result, now)
            return
        if self._unsettled:  # what went well counts before what did not
            self.settle(now)
        words = self.words
        row = attempt.endpoint.shell.row
        words[row + _RESULT_INDEX[result]] += 1
        seconds = now - attempt.started
        words[row + ENDPOINT_HISTOGRAM + bucket(seconds)] += 1
        words[row + _ATTEMPT_SUM] += int(seconds * 1e6)
        attempt.started += passed_on_s
        shared = self.cluster.done(attempt, result, now, retry_after_s)
        if shared:
            words[row + ENDPOINT_EJECTIONS] += sum(isinstance(event, EndpointEjected) for event in shared)
            self.share(shared)

    def tunnel_began(self, attempt: Attempt, now: float) -> None:
        """An attempt became a tunnel: it stays in flight."""
        self.count(Scalar.TUNNELS_TOTAL)
        self.tunnels += 1
        shared = self.cluster.opened(attempt, now)
        if shared:
            self.share(shared)

    def tunnel_ended(self, attempt: Attempt, result: AttemptResult, opened_s: float) -> None:
        """Release it. It counts as having taken as long as it took to open."""
        self.tunnels -= 1
        words = self.words
        row = attempt.endpoint.shell.row
        words[row + _RESULT_INDEX[result]] += 1
        words[row + ENDPOINT_HISTOGRAM + bucket(opened_s)] += 1
        words[row + _ATTEMPT_SUM] += int(opened_s * 1e6)
        self.cluster.closed(attempt)
        if self.admission.waiting:
            self.admission.released(attempt.endpoint)

    def request_ended(self, row: int, outcome: Outcome, seconds: float) -> None:
        """Count one request."""
        words = self.words
        words[row + OUTCOME_INDEX[outcome]] += 1
        words[row + MODEL_OUTCOMES + bucket(seconds)] += 1
        words[row + _REQUEST_SUM] += int(seconds * 1e6)

    def first_byte(self, row: int, seconds: float) -> None:
        """Count how long a request waited for the head of an answer that came in pieces."""
        words = self.words
        words[row + MODEL_FIRST_BYTE + bucket(seconds)] += 1
        words[row + FIRST_BYTE_SUM] += int(seconds * 1e6)

    def count(self, member: Scalar, by: int = 1) -> None:
        """Add to a counter of this process."""
        self.words[self.page.scalar(member)] += by

    def gauge(self, member: Scalar, value: int) -> None:
        """Set a gauge of this process."""
        self.words[self.page.scalar(member)] = value

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
