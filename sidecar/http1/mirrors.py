"""Copies of requests for another version of their model. What it answers is thrown away, and counts for nothing.

A copy goes out right behind its request's first attempt, once the request is whole; nothing waits for it, and it is
dropped wherever there is no room: over ``versions.mirror.most`` at once, while only what is essential is done, where
the body was not kept, or where the version has nobody to spare for it. One that is under way is given up as soon as a
caller finds no room because of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, cast

from router.outcomes import AttemptResult
from sidecar.http1.steps import MIRRORED
from sidecar.http1.versions import with_version
from sidecar.telemetry.page import Scalar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from router.policy import MirrorPolicy
    from router.routes import Attempt, Route
    from sidecar.http1.head import ResponseHead
    from sidecar.http1.plane import Plane
    from sidecar.http1.special import SpecialConnection
    from sidecar.http1.steps import Course, Step
    from sidecar.http1.targets import Target
    from sidecar.upstreams.connection import UpstreamConnection
    from sidecar.upstreams.pool import Upstream

FIELD: Final = b"warmroute-mirror: 1\r\n"
"""Tells a worker that nobody waits for its answer."""


def give_way(plane: Plane, route: Route) -> bool:
    """Give up the youngest copy at an endpoint that a request for ``route`` could go to; False where there is none."""
    now = plane.clock()
    for attempt in reversed(plane.copies):
        if any(one.endpoint is attempt.endpoint and now < one.fit_until for one in route.candidates):
            plane.copies[attempt].give_way()
            return True
    return False


class Nowhere:
    """Where answers go that nobody wants: as much of a transport as an upstream connection writes to."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Throw it away."""

    def writelines(self, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        """Throw them away."""


_NOWHERE: Final = cast("asyncio.Transport", Nowhere())


class Copying(Protocol):
    """A copy that is under way, whatever protocol it is in."""

    def give_way(self) -> None:
        """Give it up: a caller wants its place."""


def mirror_of(route: Route | None) -> MirrorPolicy | None:
    """Return what is copied of the requests on a route, None where nothing is, or they name a version."""
    return None if route is None or route.version else route.policy.serve.mirror


def mirror_step(target: Target) -> Step | None:
    """Return what copies the requests of a target, None where nothing does."""
    policy = mirror_of(target.route)
    return None if policy is None else MirrorStep(policy)


def begin_copy(plane: Plane, policy: MirrorPolicy, primary: Attempt, *, whole: bool) -> Attempt | None:
    """Begin the attempt of a copy beside ``primary``, whose request is all here (``whole``); None: it is dropped."""
    model = primary.route.model
    route = plane.cluster.route(model, policy.version, primary.route.protocol)
    shard = primary.route.shard
    if route is not None and route.shards:  # the same keys are there, and nowhere else
        route = None if shard is None else route.shards[shard]
    under_way = plane.copying.get(model, 0)
    attempt = None
    if whole and route is not None and under_way < policy.most and not plane.essential_only:
        attempt = plane.cluster.choose_background(route, plane.clock(), plane.rng)
    if attempt is None:
        plane.count(Scalar.MIRRORS_DROPPED_TOTAL)
    else:
        plane.copying[model] = under_way + 1
    return attempt


def end_copy(plane: Plane, attempt: Attempt, result: AttemptResult, counted: Scalar | None) -> None:
    """End what :func:`begin_copy` began."""
    if counted is not None:
        plane.count(counted)
    plane.copying[attempt.route.model] -= 1
    plane.copies.pop(attempt, None)
    plane.attempt_ended(attempt, result, plane.clock())


class MirrorStep:
    """Has a share of a target's requests copied."""

    def __init__(self, policy: MirrorPolicy) -> None:
        self.rank = MIRRORED
        self.body_bytes = 0
        self._policy = policy

    def take(self, caller: SpecialConnection, course: Course, now: float) -> bool:
        """Draw whether this one is."""
        if caller.plane.rng() < self._policy.share and not caller.head.upgrade:
            course.mirror = self
        return True

    def whole(self, caller: SpecialConnection, course: Course) -> None:
        """The request is whole: copy it once this turn's work for it is done, its dispatch among that."""
        caller.plane.loop.call_soon(self._copy, caller, course)

    def _copy(self, caller: SpecialConnection, course: Course) -> None:
        plane = caller.plane
        try:
            primary = caller.attempt_of(course)
            if primary is not None and primary.candidate.version != self._policy.version:
                self._send(caller, plane, primary)
        except Exception as error:  # noqa: BLE001  a copy's end, not the process's
            plane.loop.call_exception_handler({"message": "a mirrored request crashed", "exception": error})

    def _send(self, caller: SpecialConnection, plane: Plane, primary: Attempt) -> None:
        request = caller.whole_request()
        attempt = begin_copy(plane, self._policy, primary, whole=request is not None)
        if request is None or attempt is None:
            return
        head, body = request
        line = head.find(b"\r\n") + 2
        head = with_version(head[:line] + FIELD + head[line:], attempt.candidate)
        copy = Copy(plane, attempt, head + body, caller.method)
        plane.copies[attempt] = copy
        try:
            copy.start(self._policy.timeout_s, plane.clock())
        except Exception as error:  # noqa: BLE001  the copy's end
            copy.crashed(error)


class Copy:
    """One copied request: the ``Exchange`` of its connection."""

    __slots__ = (
        "_attempt",
        "_connection",
        "_data",
        "_plane",
        "_sent",
        "_timer",
        "active",
        "method",
        "old_client",
        "over",
        "request_done",
        "sink",
    )

    def __init__(self, plane: Plane, attempt: Attempt, data: bytes, method: bytes) -> None:
        self._plane: Final = plane
        self._attempt: Final = attempt
        self._data = data
        self._connection: UpstreamConnection | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._sent = False
        self.over = False
        self.active = False
        self.request_done = True
        self.method = method
        self.old_client = False
        self.sink: asyncio.Transport = _NOWHERE

    def start(self, timeout_s: float, now: float) -> None:
        """Send it, for so long at most."""
        plane = self._plane
        endpoint = self._attempt.endpoint
        upstream: Upstream = endpoint.shell or plane.upstream(endpoint)
        connection = upstream.checkout(now)
        if connection is None and upstream.full:
            self._end(AttemptResult.CANCELLED, Scalar.MIRRORS_DROPPED_TOTAL)
            return
        self._count()
        self._timer = plane.loop.call_later(timeout_s, self._expired)
        if connection is None:
            upstream.connect(self, self.is_wanted)
        else:
            self.attached(connection)

    def _count(self) -> None:
        """Count it, once: what fails is one of those, also where it finds no connection."""
        if not self._sent:
            self._sent = True
            self._plane.count(Scalar.MIRRORS_TOTAL)

    def is_wanted(self) -> bool:
        """Return whether a connection that is being made is still waited for."""
        return not self.over

    def _expired(self) -> None:
        self._drop()
        self._end(AttemptResult.OUTRUN, Scalar.MIRRORS_FAILED_TOTAL)

    def give_way(self) -> None:
        """Give it up: a caller wants its place. It counts as dropped, whether it had been sent or not."""
        self._drop()
        self._end(AttemptResult.CANCELLED, Scalar.MIRRORS_DROPPED_TOTAL)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.drop()

    def _end(self, result: AttemptResult, counted: Scalar | None) -> None:
        if self.over:
            return
        self.over = True
        self._connection = None
        self._data = b""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        end_copy(self._plane, self._attempt, result, counted)

    # --- Exchange: what its connection reports ----------------------------------------------------------------------

    def attached(self, connection: UpstreamConnection) -> None:
        """A connection stands: send it."""
        self._connection = connection
        connection.begin(self, self._data)
        self._data = b""

    def looks_at(self, head: ResponseHead) -> int:
        """Nobody asks what it means."""
        return 0

    def recognise(self, head: ResponseHead, body: bytes) -> bool:
        """It means nothing."""
        return False

    def set_aside(self, head: ResponseHead) -> bool:
        """Whatever it says is read to its end."""
        return False

    def begin_answer(self, head: ResponseHead) -> bytes:
        """Nothing goes downstream."""
        return b""

    def whole_answer(self, now: float, head: ResponseHead, body: bytes) -> None:
        """It was answered."""
        self.answer_ended(now, head)

    def trailers(self, lines: bytes) -> None:
        """Nothing is learned of it."""

    def answer_ended(self, now: float, head: ResponseHead) -> None:
        """It was answered."""
        self._end(AttemptResult.SUCCESS, Scalar.MIRRORS_FAILED_TOTAL if head.status >= 500 else None)

    def interim(self, head: ResponseHead) -> None:
        """Nobody hears of it."""

    def attempt_failed(self, result: AttemptResult, detail: str) -> None:
        """It came to nothing."""
        self._end(result, Scalar.MIRRORS_FAILED_TOTAL)

    def switched(self, head: ResponseHead, data: bytes) -> str:
        """A request that asks for another protocol is not copied."""
        return "switched protocols unasked"

    def worker_finished(self) -> bool:
        """It is no tunnel."""
        return False

    def tunnel_lost(self, exc: Exception | None) -> None:
        """It is no tunnel."""

    def upstream_full(self, *, full: bool) -> None:
        """All of it is written already."""

    def crashed(self, error: Exception) -> None:
        """An error of warmroute's own."""
        self._count()
        self._end(AttemptResult.CANCELLED, Scalar.MIRRORS_FAILED_TOTAL)
        self._plane.loop.call_exception_handler({"message": "a mirrored request crashed", "exception": error})
