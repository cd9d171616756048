"""What all gRPC connections of one data process share, on top of what they share with HTTP: cluster, page, limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from router.matching import Surface
from router.outcomes import Outcome, Reason
from sidecar.grpc import health
from sidecar.grpc.classifying import CallClasses
from sidecar.grpc.course import Needs
from sidecar.grpc.downstream import CallerConnection
from sidecar.grpc.matching import PROTOCOL
from sidecar.grpc.pool import WorkerPool
from sidecar.grpc.statuses import Status
from sidecar.http1.caller import LAME_DUCK_S
from sidecar.http1.copying import mirror_of
from sidecar.http1.special import MEMORY_PARTS
from sidecar.http1.targets import NO_MODEL, Target
from sidecar.http1.versions import Split, is_split
from sidecar.http2.sending import Flusher
from sidecar.telemetry.page import Scalar

if TYPE_CHECKING:
    from router.endpoint import Endpoint
    from router.routes import Route
    from sidecar.grpc.ends import CallEnds
    from sidecar.http1.plane import Plane
    from sidecar.settings import Limits

_MEMO_NAMES: Final = 4096
_MEMO_NAME_CHARS: Final = 256


class GrpcPlane:
    """The gRPC side of a data process. ``shared`` is what it has in common with HTTP."""

    def __init__(self, shared: Plane) -> None:
        self.shared = shared
        self.clock = shared.clock
        self.flusher = Flusher(shared.loop, shared.clock)
        self.connections: set[CallerConnection] = set()
        self.ending: dict[CallEnds, Outcome] = {}  # calls whose answer is complete, but not all sent
        self.watchers: dict[CallEnds, tuple[str, int]] = {}  # health watches: the service, and what was told last
        self.departed: set[WorkerPool] = set()  # of endpoints that left, until their last call has ended
        self._nothing: Target
        self._targets: dict[tuple[str | None, str, str], Target] = {}
        self.needs: dict[Target, Needs] = {}  # of targets whose calls need more than a pick
        self.gathered_bytes = 0  # of requests that are waited for
        self._turned: dict[Route, Target] = {}  # of routes that calls turn to: shards, shape classes
        self._generation = -1
        self._renew()
        self._swept_at = shared.clock()
        shared.other_connections = self.connections
        shared.on_drain.append(self.drain)
        shared.on_tighten.append(self.tighten)

    @property
    def limits(self) -> Limits:
        """The limits in force."""
        return self.shared.limits

    # --- routes ------------------------------------------------------------------------------------------------------

    def resolve(self, model: str, version: str, default_model: str | None) -> Target:
        """Return what a model's name and version mean here; empty ones: the default."""
        if self.shared.cluster.generation != self._generation:
            self._renew()
        key = (default_model, model, version)
        found = self._targets.get(key)
        if found is None:
            found = self._resolve(model, version, default_model)
            if len(model) + len(version) <= _MEMO_NAME_CHARS:
                if len(self._targets) >= _MEMO_NAMES:
                    self._targets.clear()
                    self.needs.clear()
                self._targets[key] = found
        return found

    @property
    def nothing(self) -> Target:
        """What calls mean whose model is not known yet, or does not matter any more."""
        if self.shared.cluster.generation != self._generation:
            self._renew()
        return self._nothing

    def _renew(self) -> None:
        """Forget what depends on the fleet and the configuration. Configuring changes the generation, too."""
        shared = self.shared
        self._targets.clear()
        self.needs.clear()
        self._turned.clear()
        self._generation = shared.cluster.generation
        row = shared.page.model_row(NO_MODEL)
        self._nothing = Target(Surface.PLAIN, None, row, "the method names no model", shared.times_of(NO_MODEL))

    def _resolve(self, model: str, version: str, default_model: str | None) -> Target:
        cluster = self.shared.cluster
        route = None
        why = "the method names no model and there is no default"
        if model:
            route = cluster.route(model, version, PROTOCOL)
            why = f"model {model[:128]!r}" + (f" version {version[:128]!r}" if version else "") + " is not known"
        elif default_model is not None:
            route = cluster.default_route_of(PROTOCOL, default_model)
        elsewhere = not model and default_model is not None  # it has a model, if not for gRPC
        if (
            route is None
            and not elsewhere
            and not (model and cluster.missing(model, version, PROTOCOL) is Reason.WRONG_VERSION)
        ):
            route = cluster.default_route_of(PROTOCOL)
        targets = self.shared.targets
        target = targets.plain(Surface.PLAIN, route)
        target.why = why
        ladders = self.shared.ladders
        ladder = None if route is None or ladders is None else ladders.by_model.get(route.model)
        gated = self.shared.admission.permit_for(route) is not None
        split = Split(target) if is_split(route) else None
        shapes = None if route is None else route.policy.shapes
        classes = None if shapes is None else CallClasses(shapes)
        in_message = target.key_source is not None and target.key_source.member != b""
        mirror = mirror_of(route)
        affinity = None if route is None else route.policy.affinity
        plain = split is None and ladder is None and classes is None and mirror is None and affinity is None
        if plain and not gated and not in_message:
            return target
        outer = targets.before(target)
        self.needs[outer] = Needs(target, split=split, ladder=ladder, classes=classes, mirror=mirror, affinity=affinity)
        return outer

    def route_of(self, target: Target) -> Route | None:
        """Return the route of a target, that of all versions where its calls are divided over them."""
        needs = self.needs.get(target)
        return target.route if needs is None else needs.target.route

    def of_shard(self, route: Route, key: bytes) -> Target:
        """Return what calls with this key mean, where each shard of a model answers for itself."""
        return self._of_route(self.shared.cluster.shard_route(route, key))

    def of_class(self, route: Route, shape: str, now: float) -> Target:
        """Return what calls of a shape class mean on a route."""
        return self._of_route(self.shared.cluster.shaped_route(route, shape, now))

    def _of_route(self, route: Route) -> Target:
        found = self._turned.get(route)
        if found is None:
            found = self._turned[route] = self.shared.targets.plain(Surface.PLAIN, route)
        return found

    @staticmethod
    def missing(model: str) -> Status:
        """Return the status for a call that nothing takes: a model that is not known, or a method."""
        return Status.NOT_FOUND if model else Status.UNIMPLEMENTED

    def pool(self, endpoint: Endpoint) -> WorkerPool:
        """Return an endpoint's pool, made at its first use."""
        found: WorkerPool | None = endpoint.shell
        if found is None:
            found = endpoint.shell = WorkerPool(self, endpoint.id, endpoint.address)
        return found

    def gathers_too_much(self) -> bool:
        """Return whether requests that are waited for take too much of this process's memory."""
        shared = self.shared
        most = min(self.limits.model_prefixes_bytes, shared.memory_bytes // MEMORY_PARTS)
        return shared.tight or self.gathered_bytes > most

    # --- connections -------------------------------------------------------------------------------------------------

    def crowded(self) -> bool:
        """Return whether there are more connections than this process may have."""
        return self.shared.callers > self.shared.most_connections

    def left(self, connection: CallerConnection) -> None:
        """A caller's connection is gone."""
        self.connections.discard(connection)
        self.shared.count(Scalar.SENT_BYTES, connection.sent_bytes)
        self.shared.count(Scalar.RECEIVED_BYTES, connection.received_bytes)
        connection.sent_bytes = connection.received_bytes = 0
        if self.shared.draining and not self.connections:
            self.shared.drained()

    @property
    def calls(self) -> int:
        """Calls in hand."""
        return sum(len(connection.streams) for connection in self.connections)

    # --- time --------------------------------------------------------------------------------------------------------

    def sweep(self, now: float) -> None:
        """Look at every time once."""
        seconds, self._swept_at = now - self._swept_at, now
        for connection in list(self.connections):
            try:
                connection.sweep(now, seconds)
            except Exception as error:  # noqa: BLE001  one connection's end, not the sweep's
                connection.crashed(error)
        for endpoint in self.shared.cluster.endpoints.values():
            if isinstance(endpoint.shell, WorkerPool):
                endpoint.shell.sweep(now, seconds)
        for pool in list(self.departed):
            pool.sweep(now, seconds)
            if pool.at_rest():
                self.departed.discard(pool)
        if self.watchers:
            health.tell_watchers(self, now)

    def flush(self) -> None:
        """Count bytes and calls, once a second."""
        sent = received = 0
        for connection in self.connections:
            sent += connection.sent_bytes
            received += connection.received_bytes
            connection.sent_bytes = connection.received_bytes = 0
        self.shared.count(Scalar.SENT_BYTES, sent)
        self.shared.count(Scalar.RECEIVED_BYTES, received)
        shared = self.shared
        busy = sum(connection.busy for connection in shared.connections)
        shared.gauge(Scalar.REQUESTS_NOW, busy + self.calls)

    def drain(self) -> None:
        """Begin to end: say NOT_SERVING, then that no more calls are taken; the last ones are named a while later."""
        now = self.clock()
        if self.watchers:
            health.tell_watchers(self, now)
        for connection in list(self.connections):
            connection.leave(now, self.shared.timeouts.drain_idle_s)

    def tighten(self) -> None:
        """Memory or descriptors are short: let go of callers that ask nothing."""
        now = self.clock()
        for connection in list(self.connections):
            if not connection.streams:
                connection.leave(now, LAME_DUCK_S)

    def cut_all(self) -> int:
        """End what still runs, because the grace period is over; return how many calls that cut."""
        cut = self.calls
        for connection in list(self.connections):
            connection.cut_for_drain()
        return cut
