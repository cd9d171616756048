"""Copies of requests for another version of their model. What it answers is thrown away, and counts for nothing.

A copy goes out right behind its request's first attempt, once the request is whole; nothing waits for it, and it is
dropped wherever there is no room: over ``versions.mirror.most`` at once, while only what is essential is done, where
the body was not kept, or where the version has nobody to spare for it. One that is under way is given up as soon as a
caller finds no room because of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from router.matching import is_inference
from router.outcomes import AttemptResult
from sidecar.http1.copying import UnderWay, begin_copy, mirror_of
from sidecar.http1.steps import MIRRORED
from sidecar.http1.versions import with_version

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from router.policy import MirrorPolicy
    from router.routes import Attempt
    from sidecar.http1.head import ResponseHead
    from sidecar.http1.plane import Plane
    from sidecar.http1.special import SpecialConnection
    from sidecar.http1.steps import Course, Step
    from sidecar.http1.targets import Target
    from sidecar.upstreams.connection import UpstreamConnection
    from sidecar.upstreams.pool import Upstream

FIELD: Final = b"warmroute-mirror: 1\r\n"
"""Tells a worker that nobody waits for its answer."""


class Nowhere:
    """Where answers go that nobody wants: as much of a transport as an upstream connection writes to."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Throw it away."""

    def writelines(self, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        """Throw them away."""


_NOWHERE: Final = cast("asyncio.Transport", Nowhere())


def mirror_step(target: Target) -> Step | None:
    """Return what copies the requests of a target, None where nothing does."""
    policy = mirror_of(target.route)
    return None if policy is None else MirrorStep(policy)


class MirrorStep:
    """Has a share of a target's requests copied."""

    def __init__(self, policy: MirrorPolicy) -> None:
        self.rank = MIRRORED
        self.body_bytes = 0
        self._policy = policy

    def take(self, caller: SpecialConnection, course: Course, now: float) -> bool:
        """Draw whether this one is; what changes a model or asks about one never is."""
        head = caller.head
        if caller.plane.rng() < self._policy.share and not head.upgrade and is_inference(head.method, head.target):
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
        "_under_way",
        "active",
        "method",
        "old_client",
        "request_done",
        "sink",
    )

    def __init__(self, plane: Plane, attempt: Attempt, data: bytes, method: bytes) -> None:
        self._plane: Final = plane
        self._attempt: Final = attempt
        self._data = data
        self._connection: UpstreamConnection | None = None
        self.active = False
        self.request_done = True
        self.method = method
        self.old_client = False
        self.sink: asyncio.Transport = _NOWHERE
        self._under_way: Final = UnderWay(plane, attempt, self)

    def start(self, timeout_s: float, now: float) -> None:
        """Send it, for so long at most."""
        plane = self._plane
        endpoint = self._attempt.endpoint
        upstream: Upstream = endpoint.shell or plane.upstream(endpoint)
        connection = upstream.checkout(now)
        if connection is None and upstream.full:
            self._under_way.no_room()
            return
        self._under_way.count()
        self._under_way.begin(timeout_s)
        if connection is None:
            upstream.connect(self, self.is_wanted)
        else:
            self.attached(connection)

    def is_wanted(self) -> bool:
        """Return whether a connection that is being made is still waited for."""
        return not self._under_way.over

    # --- Copying -----------------------------------------------------------------------------------------------------

    def drop(self) -> None:
        """Let go of its connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.drop()

    def close(self) -> None:
        """It is over."""
        self._connection = None
        self._data = b""

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
        self._under_way.answered(failed=head.status >= 500)

    def interim(self, head: ResponseHead) -> None:
        """Nobody hears of it."""

    def attempt_failed(self, result: AttemptResult, detail: str) -> None:
        """It came to nothing."""
        self._under_way.failed(result)

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
        self._under_way.failed(AttemptResult.CANCELLED)
        self._plane.loop.call_exception_handler({"message": "a mirrored request crashed", "exception": error})
