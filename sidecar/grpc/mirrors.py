"""Copies of calls for another version of their model. The rules are those over HTTP (``sidecar.http1.copying``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from router.outcomes import AttemptResult, Outcome
from sidecar.grpc.phases import ANSWERING, OVER, WAITING
from sidecar.grpc.renaming import renamed_message
from sidecar.grpc.statuses import judge, judge_http
from sidecar.http1.copying import UnderWay, begin_copy, end_copy
from sidecar.http2.frames import FRAME_BYTES, Code
from sidecar.http2.hpack import literal
from sidecar.telemetry.page import Scalar

if TYPE_CHECKING:
    from router.policy import MirrorPolicy
    from router.routes import Attempt
    from sidecar.grpc.heads import AnswerHead, Asked
    from sidecar.grpc.plane import GrpcPlane
    from sidecar.grpc.pool import WorkerPool
    from sidecar.grpc.upstream import WorkerConnection
    from sidecar.http2.stream import Stream

_FIELD: Final = literal(b"warmroute-mirror", b"1")
"""Tells a worker that nobody waits for its answer."""


class Original:
    """A call as it was sent: its head, what only this call has of it, its data, and the fields that name its model."""

    __slots__ = ("asked", "data", "match", "rest")

    def __init__(self, asked: Asked, rest: bytes, data: bytes, match: tuple[int, int] | None) -> None:
        self.asked: Final = asked
        self.rest: Final = rest
        self.data: Final = data
        self.match: Final = match

    def for_version(self, attempt: Attempt) -> bytes | None:
        """Return its data as an attempt's endpoint must be asked; None where it cannot say which version it wants.

        Where the endpoint holds one version of the model alone, it goes as it is.
        """
        candidate = attempt.candidate
        if candidate.model not in candidate.endpoint.several or not candidate.version:
            return self.data
        if self.match is None or not self.match[1]:
            return None
        return renamed_message(self.data, self.match, candidate.model.encode(), candidate.version.encode())


def send_copy(plane: GrpcPlane, policy: MirrorPolicy, primary: Attempt, original: Original | None) -> None:
    """Copy a call that was sent; None: not all of it is here any more, so it is dropped."""
    try:
        attempt = begin_copy(plane.shared, policy, primary, whole=original is not None)
        if attempt is None or original is None:
            return
        data = original.for_version(attempt)
        if data is None:
            end_copy(plane.shared, attempt, AttemptResult.CANCELLED, Scalar.MIRRORS_DROPPED_TOTAL)
            return
        copy = CallCopy(plane, attempt, original, data)
        try:
            copy.start(policy.timeout_s)
        except Exception as error:  # noqa: BLE001  the copy's end
            copy.crashed(error)
    except Exception as error:  # noqa: BLE001  a copy's end, not the process's
        plane.shared.loop.call_exception_handler({"message": "a mirrored call crashed", "exception": error})


class CallCopy:
    """One copied call, as a worker's connection and its pool know calls."""

    __slots__ = (
        "_asked",
        "_data",
        "_http",
        "_plane",
        "_pool",
        "_rest",
        "_under_way",
        "phase",
        "up",
        "wanted",
    )

    def __init__(self, plane: GrpcPlane, attempt: Attempt, original: Original, data: bytes) -> None:
        self._plane: Final = plane
        self._asked: Final = original.asked
        self._rest: Final = original.rest + _FIELD
        self._data = data
        self._pool: WorkerPool = attempt.endpoint.shell or plane.pool(attempt.endpoint)
        self._http = 0
        self.phase = WAITING
        self.up: Stream | None = None
        self.wanted = False
        self._under_way: Final = UnderWay(plane.shared, attempt, self)

    def start(self, timeout_s: float) -> None:
        """Send it, for so long at most; not where callers wait for a connection."""
        if self._pool.queue:
            self._under_way.no_room()
            return
        self._under_way.begin(timeout_s)
        self._pool.submit(self, self._plane.clock())
        if self.wanted:
            self._under_way.count()

    # --- Copying -----------------------------------------------------------------------------------------------------

    def drop(self, code: Code = Code.CANCEL) -> None:
        """Reset its stream, or let go of its place among those that wait for one."""
        up, self.up = self.up, None
        if up is not None:
            up.connection.reset(up, code)
        if self.wanted:
            self._pool.withdraw(self)

    def close(self) -> None:
        """It is over."""
        self.phase = OVER
        self.up = None
        self._data = b""

    # --- what its connection and its pool report ---------------------------------------------------------------------

    def attached(self, connection: WorkerConnection) -> None:
        """A connection has room: send it."""
        self._under_way.count()
        self.up = up = connection.open_stream(self)
        connection.send_request(up, self._asked, self._rest, end=False)
        data, self._data = self._data, b""
        for start in range(0, len(data), FRAME_BYTES):
            part = data[start : start + FRAME_BYTES]
            connection.send_data(up, part, end=start + FRAME_BYTES >= len(data))

    def answer_head(self, head: AnswerHead, *, end: bool) -> None:
        """Read it to its end; what it says is counted alone."""
        if head.malformed:
            self.drop(Code.PROTOCOL_ERROR)
            self._under_way.failed(AttemptResult.PROTOCOL)
            return
        if 0 < head.status < 200 and not end:
            return
        self.phase = ANSWERING
        self._http = self._http or head.status
        if end:
            self._answered(head.grpc_status)

    def answer_data(self, data: bytes, *, end: bool) -> None:
        """Nobody wants it."""
        up = self.up
        if up is not None:
            up.connection.credit(up, len(data))
        if end:
            self._answered(-1)

    def _answered(self, status: int) -> None:
        up = self.up
        if up is not None and not up.local_done:
            self.drop(Code.NO_ERROR)
        other = status < 0 and self._http != 200
        _, outcome = judge_http(self._http) if other else judge(status, pushed_back=False)
        self._under_way.answered(failed=outcome is Outcome.UPSTREAM_5XX)

    def stream_reset(self, code: int) -> None:
        """The worker wants nothing of it."""
        self.attempt_failed(AttemptResult.CALL_FAILED, "")

    def left_out(self, why: str, *, again: bool) -> None:
        """The worker goes away, and has not looked at it."""
        self.attempt_failed(AttemptResult.REFUSED, why)

    def attempt_failed(self, result: AttemptResult, detail: str) -> None:
        """It came to nothing."""
        self._under_way.failed(result)

    def crashed(self, error: Exception) -> None:
        """An error of warmroute's own."""
        self._plane.shared.loop.call_exception_handler({"message": "a mirrored call crashed", "exception": error})
        self.broken()

    def broken(self) -> None:
        """An error of warmroute's own, which was reported."""
        self.drop(Code.INTERNAL_ERROR)
        self.attempt_failed(AttemptResult.CANCELLED, "")
