"""One caller's connection: reads requests, asks the router, hands each to a worker, and answers in order.

One request is in hand at a time; what is pipelined behind it waits in ``_buffer`` (bounded: then no more is read).
There is no task, future or timer per request: bytes come in by callback, one coarse sweep looks at deadlines.

A request is answered whole, refused with an error body, or cut. It is never finished falsely: once a byte of the answer
went downstream, nothing but the rest of that answer or the end of the connection follows.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from typing import TYPE_CHECKING, Final, cast

from router.matching import Surface
from router.outcomes import OUTCOMES, AttemptResult, Outcome
from router.retry import RetryDenied
from router.routes import NoCandidate
from sidecar.faults import strike
from sidecar.http1.answers import error_answer
from sidecar.http1.chunked import ChunkError, ChunkScanner
from sidecar.http1.head import (
    CHUNKED,
    UNTIL_CLOSE,
    HeadError,
    RequestHead,
    ResponseHead,
    hopeless,
    parse_request,
    without_fields,
)
from sidecar.http1.plane import NO_MODEL
from sidecar.telemetry.page import Scalar

if TYPE_CHECKING:
    from router.endpoint import Endpoint
    from router.routes import Attempt, Route
    from sidecar.http1.plane import Plane, Target
    from sidecar.upstreams.pool import Upstream, UpstreamConnection

_NEW, _IDLE, _READING, _BODY, _WAITING, _ANSWERING, _LINGERING, _CLOSED = range(8)
# _NEW: no request yet. _IDLE: between requests. _READING: part of a head is here. _BODY: the request's body is coming.
# _WAITING: request complete, no answer yet. _ANSWERING: the answer has begun. _LINGERING: answered, discarding input.

VIA = b"via: 1.1 warmroute\r\n"
_VIA_END = VIA + b"\r\n"
UNSENT_BYTES = 65536
"""Request body read ahead while no worker takes it."""
LINGER_S = 2.0
LINGER_BYTES = 1 << 20
"""How long and how much input is read and thrown away behind a refusal, so that the caller can read it (a reset would
destroy it, RFC 9112 9.6)."""
CLOSE_STALL_S = 30.0
"""How long a closing connection may take nothing of what is still to be sent."""

_OUTCOME_OF: dict[AttemptResult, Outcome] = {
    AttemptResult.CONNECT_REFUSED: Outcome.CONNECT_FAILED,
    AttemptResult.CONNECT_TIMEOUT: Outcome.CONNECT_TIMEOUT,
    AttemptResult.STALE: Outcome.UPSTREAM_RESET,
    AttemptResult.RESET: Outcome.UPSTREAM_RESET,
    AttemptResult.PROTOCOL: Outcome.UPSTREAM_PROTOCOL,
    AttemptResult.HEAD_TIMEOUT: Outcome.UPSTREAM_TIMEOUT,
    AttemptResult.CUT: Outcome.UPSTREAM_CUT,
    AttemptResult.STREAM_IDLE: Outcome.STREAM_IDLE,
    AttemptResult.CANCELLED: Outcome.OVERLOADED,
}


class DownstreamConnection(asyncio.Protocol):
    """A caller's connection. Also the ``Exchange`` that an upstream connection reports to."""

    __slots__ = (
        "_attempt",
        "_buffer",
        "_close_after",
        "_default_model",
        "_discarded",
        "_head",
        "_last_head",
        "_left",
        "_peer_full",
        "_phase",
        "_plane",
        "_read_paused",
        "_request_id",
        "_scanner",
        "_seen",
        "_sent_head",
        "_started",
        "_target",
        "_ticket",
        "_timer",
        "_tries",
        "_unflushed",
        "_upstream",
        "_whole",
        "_write_paused",
        "active",
        "deadline",
        "method",
        "old_client",
        "request_done",
        "transport",
    )

    def __init__(self, plane: Plane, default_model: str | None = None) -> None:
        self._plane: Final = plane
        self._default_model: Final = default_model
        self._phase = _NEW
        self._buffer = b""
        self._last_head: RequestHead | None = None
        self._head: RequestHead  # of the request in hand; these two are set before anything reads them
        self._target: Target
        self._attempt: Attempt | None = None
        self._upstream: UpstreamConnection | None = None
        self._scanner: ChunkScanner | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._left = 0
        self._started = 0.0
        self._tries = 0
        self._ticket = 0
        self._seen = b""
        self._whole = True
        self._sent_head = b""
        self._request_id = b""
        self._close_after = False
        self._read_paused = False
        self._write_paused = False
        self._peer_full = False
        self._discarded = 0
        self._unflushed = 0
        self.active = False
        self.deadline = 0.0
        self.method = b""
        self.old_client = False
        self.request_done = True
        self.transport: asyncio.Transport

    # --- asyncio.Protocol ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a new connection, or refuse it over the limit."""
        plane = self._plane
        self.transport = cast("asyncio.Transport", transport)
        plane.count(Scalar.CONNECTIONS_TOTAL)
        self.deadline = plane.clock() + plane.timeouts.client_head_s
        plane.connections.add(self)
        if len(plane.connections) > plane.limits.connections:
            plane.count(Scalar.REFUSED_CONNECTIONS_TOTAL)
            self.transport.write(error_answer(Surface.PLAIN, Outcome.OVERLOADED, "too many connections", close=True))
            self._linger()

    def data_received(self, data: bytes) -> None:
        """Read on, according to the phase."""
        self._plane.received_bytes += len(data)
        phase = self._phase
        try:
            if phase <= _READING:
                if self._buffer:
                    data = self._buffer + data
                self._read_head(data)
            elif phase == _BODY:
                self.active = True
                self._read_body(data)
            elif phase < _LINGERING:
                if not self.request_done:  # the answer came before the request's end
                    self.active = True
                    self._read_body(data)
                    return
                self._buffer += data
                if len(self._buffer) > self._plane.limits.pipelined:
                    self._pause_reading()
            elif phase == _LINGERING:
                self._discarded += len(data)
                if self._discarded > LINGER_BYTES:
                    self.transport.abort()
        except Exception as error:  # noqa: BLE001  one connection's end, not the process's
            self.crashed(error)

    def eof_received(self) -> bool:
        """A caller that shuts its side while it waits has gone: the work for it is cancelled."""
        if _BODY <= self._phase < _LINGERING:
            self._abandon()
            self._hang_up()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Settle what was in hand."""
        if _BODY <= self._phase < _LINGERING:
            self._abandon()
        self._phase = _CLOSED
        self._buffer = b""
        plane = self._plane
        plane.connections.discard(self)
        if plane.draining and not plane.connections:
            plane.drained()

    def pause_writing(self) -> None:
        """The caller reads too slowly: read no more from the worker."""
        self._write_paused = True
        if self._upstream is not None:
            self._upstream.pause_reading()
        elif self._phase <= _READING:
            self._pause_reading()

    def resume_writing(self) -> None:
        """The caller reads again."""
        self._write_paused = False
        if self._upstream is not None:
            self._upstream.resume_reading()
        elif self._phase <= _READING:
            self._read_on()
            if self._phase == _IDLE and self._buffer:
                self._plane.loop.call_soon(self._resume)

    # --- reading ------------------------------------------------------------------------------------------------

    def _read_head(self, data: bytes) -> None:
        end = data.find(b"\r\n\r\n") + 4
        if end < 5:  # not whole, or an empty line before the request, which is ignored (RFC 9112 2.2)
            if data.startswith(b"\r\n"):
                data = _without_empty_lines(data)
                if len(data) > 1:
                    self._read_head(data)
                    return
            self._read_part_of_head(data)
            return
        plane = self._plane
        limits = plane.limits
        if end > limits.head_bytes:
            self._refuse(HeadError(Outcome.HEAD_TOO_LARGE, f"over {limits.head_bytes} bytes"), data)
            return
        raw = data[:end]
        head = self._last_head
        if head is None or head.raw != raw:
            try:
                head = parse_request(raw, limits.target_bytes, limits.fields)
            except HeadError as error:
                if raw.startswith(b"\r\n"):
                    self._read_head(_without_empty_lines(data))
                else:
                    self._refuse(error, data)
                return
            self._last_head = head
        self._begin(head, data, end)

    def _read_part_of_head(self, data: bytes) -> None:
        plane = self._plane
        limits = plane.limits
        if self._phase != _READING:
            self._phase = _READING
            self.deadline = plane.clock() + plane.timeouts.client_head_s
        why = hopeless(data)
        if why is not None:
            self._refuse(HeadError(Outcome.BAD_REQUEST, why), data)
        elif len(data) > limits.target_bytes and data.find(b"\r\n") < 0:
            self._refuse(HeadError(Outcome.TARGET_TOO_LONG, f"over {limits.target_bytes} bytes"), data)
        elif len(data) > limits.head_bytes:
            self._refuse(HeadError(Outcome.HEAD_TOO_LARGE, f"over {limits.head_bytes} bytes"), data)
        else:
            self._buffer = data
            if self._read_paused and not self._write_paused:
                self._resume_reading()

    def _begin(self, head: RequestHead, data: bytes, end: int) -> None:
        """A head is whole: find out what it asks for, take what there is of its body, and hand it on."""
        plane = self._plane
        self._head = head
        self._target = target = plane.resolve(head.target, self._default_model)
        self._started = now = plane.clock()
        self._tries = 0
        self._whole = True
        self._close_after = not head.keep_alive or plane.draining
        self.method = head.method
        self.old_client = head.minor == 0
        length = head.length
        if length == 0:
            self._seen = b""
            self._buffer = data[end:]
            self.request_done = True
        elif length > 0:
            stop = end + length
            self._left = stop - len(data)
            if self._left <= 0:
                self._seen = data[end:stop]
                self._buffer = data[stop:]
                self.request_done = True
            else:
                self._seen = data[end:]
                self._buffer = b""
                self.request_done = False
        else:
            self._seen = b""
            self._buffer = b""
            self.request_done = False
            self._scanner = ChunkScanner()
        out = head.forward
        self._request_id = head.request_id
        if not self._request_id:
            self._request_id = plane.new_request_id()
            out += b"x-request-id: " + self._request_id + b"\r\n"
        self._sent_head = out + (_VIA_END if head.has_traceparent else plane.new_traceparent() + _VIA_END)
        if self.request_done:
            self._phase = _WAITING
            self.deadline = now + plane.response_head_s
        else:
            self._phase = _BODY
            self.deadline = now + plane.timeouts.client_body_idle_s
        if length > plane.body_bytes:
            self._end_with(Outcome.BODY_TOO_LARGE, f"{length} bytes, at most {plane.body_bytes}")
            return
        if target.route is None:
            self._end_with(Outcome.NO_ROUTE, target.why)
            return
        self._dispatch(target.route, None, now)
        if length == CHUNKED and end < len(data) and self._phase == _BODY:
            self._read_body(data[end:])

    def _read_body(self, data: bytes) -> None:
        """More of the request's body: pass it on, and keep it while it is small enough to be sent again."""
        scanner = self._scanner
        if scanner is not None:
            try:
                out = scanner.feed(data)
            except ChunkError as error:
                self._fail_request(Outcome.BAD_REQUEST, str(error))
                return
            if scanner.payload_bytes > self._plane.body_bytes:
                self._fail_request(Outcome.BODY_TOO_LARGE, f"over {self._plane.body_bytes} bytes")
                return
            if scanner.done:
                self._buffer = scanner.rest
                self._scanner = None
                self.request_done = True
        else:
            left = self._left - len(data)
            if left > 0:
                out = data
            else:
                out = data[: self._left]
                self._buffer = data[self._left :]
                self.request_done = True
            self._left = left
        if self.request_done and self._phase == _BODY:
            self._phase = _WAITING
            self.deadline = self._plane.clock() + self._plane.response_head_s
        upstream = self._upstream
        if upstream is not None:
            upstream.transport.write(out)
            if self._whole:
                if len(self._seen) + len(out) <= self._plane.replay_bytes:
                    self._seen += out
                else:
                    self._whole = False
                    self._seen = b""
        else:
            self._seen += out
            if len(self._seen) > UNSENT_BYTES:
                self._pause_reading()

    # --- choosing and sending -----------------------------------------------------------------------------------

    def _dispatch(self, route: Route, tried: Endpoint | None, now: float) -> None:
        """Choose a worker and send the request there."""
        plane = self._plane
        attempt = plane.cluster.choose(route, now, plane.rng, tried)
        if isinstance(attempt, NoCandidate):
            self._end_with(Outcome.NO_CANDIDATE, attempt.detail or attempt.reason.value, attempt.retry_after_s)
            return
        self._attempt = attempt
        upstream: Upstream = attempt.endpoint.shell or plane.upstream(attempt.endpoint)
        if plane.faults and self._struck(upstream, route, now):
            return
        connection = upstream.checkout(now)
        if connection is None:
            self._connect(upstream)
            return
        seen = self._seen
        self._upstream = connection
        connection.begin(self, self._sent_head + seen)
        if len(seen) > plane.replay_bytes or self._write_paused or self._read_paused:
            self._settle_in(connection)

    def _struck(self, upstream: Upstream, route: Route, now: float) -> bool:
        """Let an injected fault have its way with the attempt; True where it took it over."""
        plane = self._plane
        action = strike(plane.faults, route.model, upstream.id, now, plane.rng)
        if action is None:
            return False
        plane.count(Scalar.FAULTS_INJECTED_TOTAL)
        if action.status:
            self._settle(AttemptResult.CANCELLED, now)
            self._end_with(Outcome.FAULT, "", status=action.status)
        else:
            self._timer = plane.loop.call_later(action.delay_s, self._connect, upstream)
        return True

    def _connect(self, upstream: Upstream) -> None:
        self._timer = None
        self._ticket = ticket = self._ticket + 1
        upstream.connect(self, lambda: self._ticket == ticket)

    def _settle_in(self, connection: UpstreamConnection) -> None:
        """The request is under way on ``connection``: keep what can be sent again, and let what was paused go on."""
        if len(self._seen) > self._plane.replay_bytes:
            self._whole = False
            self._seen = b""
        if self._write_paused:
            connection.pause_reading()
        if self._read_paused and not self._peer_full:
            self._read_on()

    # --- Exchange: what the upstream connection reports -----------------------------------------------------------

    def attached(self, connection: UpstreamConnection) -> None:
        """A connection was made for this request."""
        self._ticket += 1
        self._upstream = connection
        connection.begin(self, self._sent_head + self._seen)
        self._settle_in(connection)

    def begin_answer(self, head: ResponseHead) -> bytes:
        """Return the head that goes downstream."""
        request = self._head
        self._phase = _ANSWERING
        self.active = True
        if not self.request_done or self._plane.draining:
            self._close_after = True
        out = head.forward
        length = head.length
        if not head.has_request_id:
            out += b"x-request-id: " + self._request_id + b"\r\n"
        if length == UNTIL_CLOSE:
            if request.minor == 1:
                out += b"Transfer-Encoding: chunked\r\n"
            else:
                self._close_after = True
        elif length == CHUNKED and request.minor == 0:
            out = without_fields(out, (b"transfer-encoding",))
            self._close_after = True
        if self._close_after:
            return out + VIA + b"Connection: close\r\n\r\n"
        if request.minor == 0:
            return out + VIA + b"Connection: keep-alive\r\n\r\n"
        return out + _VIA_END

    def interim(self, head: ResponseHead) -> None:
        """Pass a 1xx on to callers that know them (RFC 9110 15.2); it is no byte of the answer."""
        if not self.old_client:
            self.transport.write(head.forward + b"\r\n")

    def whole_answer(self, now: float, head: ResponseHead, body: bytes) -> None:
        """Head and body came in one piece, as most do: send and settle them in one step where nothing is special."""
        plane = self._plane
        attempt = self._attempt
        self._upstream = None
        if (
            attempt is None
            or self._close_after
            or self._tries
            or self.old_client
            or head.status >= 400
            or plane.draining
            or not self.request_done
        ):
            self.transport.write(self.begin_answer(head) + body)
            self.answer_ended(now, head)
            return
        out = head.forward
        if not head.has_request_id:
            out += b"x-request-id: " + self._request_id + b"\r\n"
        self._phase = _ANSWERING
        self.transport.write(out + _VIA_END + body)
        plane.answered(attempt, self._target.row, now)
        self._attempt = None
        self._next(now)

    def answer_ended(self, now: float, head: ResponseHead) -> None:
        """The whole answer went downstream: count it, and go on to what is pipelined behind it."""
        plane = self._plane
        attempt = self._attempt
        row = self._target.row
        if attempt is None:
            return
        status = head.status
        self._upstream = None
        if status < 400 and not self._tries:
            plane.answered(attempt, row, now)
        else:
            if status < 400:
                result, outcome = AttemptResult.SUCCESS, Outcome.OK
            elif head.busy:
                result, outcome = AttemptResult.BUSY, Outcome.UPSTREAM_BUSY
            elif status < 500:
                result, outcome = AttemptResult.CLIENT_ERROR, Outcome.UPSTREAM_4XX
            else:
                result, outcome = AttemptResult.SERVER_ERROR, Outcome.UPSTREAM_5XX
            plane.attempt_ended(attempt, result, now)
            plane.request_ended(row, outcome, now - self._started)
        self._attempt = None
        self._next(now)

    def attempt_failed(self, result: AttemptResult, detail: str) -> None:
        """The attempt broke: try again where that is safe, tell the caller, or cut."""
        plane = self._plane
        now = plane.clock()
        self._upstream = None
        self._peer_full = False  # that was the connection which is gone
        self._ticket += 1
        attempt = self._attempt
        answered = self._phase == _ANSWERING
        if attempt is None:
            return
        self._settle(result, now)
        if answered:
            self._cut(_OUTCOME_OF[result] if result in _CUTS else Outcome.UPSTREAM_CUT)
            return
        self._tries += 1
        if result is not AttemptResult.CANCELLED:
            verdict = plane.cluster.retry(
                attempt,
                result,
                answered=False,
                replayable=self._whole,
                tries=self._tries,
                now=now,
                rng=plane.rng,
            )
            if verdict.allowed:
                plane.count(Scalar.RETRIES_TOTAL)
                self._timer = plane.loop.call_later(verdict.delay_s, self._retry, attempt.endpoint)
                return
            if verdict.denied is RetryDenied.BUDGET:
                plane.count(Scalar.RETRIES_DENIED_TOTAL)
        self._end_with(_OUTCOME_OF[result], detail)

    def upstream_full(self, *, full: bool) -> None:
        """The worker's side is full, or no longer: read the request's body accordingly."""
        self._peer_full = full
        if full:
            self._pause_reading()
        else:
            self._read_on()

    def crashed(self, error: Exception) -> None:
        """End this connection because of an error of warmroute's own. It is reported once; nothing else is touched."""
        plane = self._plane
        now = plane.clock()
        plane.loop.call_exception_handler({"message": "a connection crashed", "exception": error, "protocol": self})
        phase = self._phase
        try:
            attempt, self._attempt = self._attempt, None
            if attempt is not None and attempt.endpoint.shell is not None:
                plane.attempt_ended(attempt, AttemptResult.CANCELLED, now)
            elif attempt is not None:  # it is the making of the pool that crashed
                plane.cluster.done(attempt, AttemptResult.CANCELLED, now)
            self._drop_upstream()
            if phase >= _LINGERING:
                self.transport.abort()
            elif phase == _ANSWERING:
                self._cut(Outcome.INTERNAL)
            elif phase >= _BODY:
                self._end_with(Outcome.INTERNAL, "")
            else:  # before anything is known of the request
                plane.request_ended(plane.page.model_row(NO_MODEL), Outcome.INTERNAL, 0.0)
                self._say(error_answer(Surface.PLAIN, Outcome.INTERNAL, close=True))
                self._linger()
        except Exception:  # noqa: BLE001  whatever is broken, the connection ends
            self.transport.abort()

    def _retry(self, tried: Endpoint) -> None:
        self._timer = None
        now = self._plane.clock()
        if self.request_done:
            self.deadline = now + self._plane.response_head_s
        route = self._target.route
        if route is not None:
            try:
                self._dispatch(route, tried, now)
            except Exception as error:  # noqa: BLE001
                self.crashed(error)

    # --- endings ------------------------------------------------------------------------------------------------

    def _settle(self, result: AttemptResult, now: float) -> None:
        attempt = self._attempt
        if attempt is not None:
            self._attempt = None
            self._plane.attempt_ended(attempt, result, now)

    def _drop_upstream(self) -> None:
        """Cancel what is under way: the timer, the connecting, the upstream request."""
        self._ticket += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._upstream is not None:
            self._upstream.drop()
            self._upstream = None

    def _abandon(self) -> None:
        """The caller went away in the middle: stop the worker's work for it."""
        plane = self._plane
        now = plane.clock()
        self._drop_upstream()
        self._settle(AttemptResult.CANCELLED, now)
        plane.request_ended(self._target.row, Outcome.CLIENT_ABORT, now - self._started)
        self._phase = _CLOSED
        self.deadline = now + LINGER_S
        self._unflushed = 0
        self._scanner = None
        self._seen = b""

    def _refuse(self, error: HeadError, data: bytes) -> None:
        """A head that cannot be taken: answer and close. Nothing behind it can be trusted."""
        plane = self._plane
        self._buffer = b""
        plane.count(Scalar.REJECTED_MESSAGES_TOTAL)
        target = plane.resolve(_guess_target(data), self._default_model)
        plane.request_ended(target.row, error.outcome, 0.0)
        self._say(error_answer(target.surface, error.outcome, error.detail, close=True))
        self._linger()

    def _say(self, data: bytes) -> None:
        """Send an answer of warmroute's own."""
        self._plane.count(Scalar.SENT_BYTES, len(data))
        self.transport.write(data)

    def _fail_request(self, outcome: Outcome, detail: str) -> None:
        """The request's body turned out bad: stop the worker, then answer or cut."""
        self._drop_upstream()
        self._settle(AttemptResult.CANCELLED, self._plane.clock())
        if self._phase == _ANSWERING:
            self._cut(outcome)
        else:
            self._end_with(outcome, detail)

    def _end_with(self, outcome: Outcome, detail: str, retry_after_s: float | None = None, *, status: int = 0) -> None:
        """End the request with an answer of warmroute's own."""
        plane = self._plane
        head = self._head
        target = self._target
        now = plane.clock()
        close = (
            OUTCOMES[outcome].close or not self.request_done or not head.keep_alive or plane.draining or head.minor == 0
        )
        self._close_after = close
        self._say(
            error_answer(
                target.surface,
                outcome,
                detail,
                request_id=self._request_id,
                retry_after_s=retry_after_s,
                close=close,
                head_only=head.method == b"HEAD",
                status=status,
            )
        )
        plane.request_ended(target.row, outcome, now - self._started)
        self._next(now)

    def _next(self, now: float) -> None:
        """The request is over: close, or read the next one."""
        self._seen = b""
        self._scanner = None
        self.active = False
        if self._close_after or self._plane.draining:
            if self.request_done and not self._buffer:
                self._phase = _LINGERING
                self.deadline = now + LINGER_S
                self._unflushed = 0
                self.transport.close()
            else:
                self._linger()
            return
        self._phase = _IDLE
        self.deadline = now + self._plane.keep_alive_s
        if self._write_paused:  # answers pile up: no further request is taken before the caller reads
            self._pause_reading()
            return
        if self._read_paused:
            self._peer_full = False
            self._read_on()
        if self._buffer:
            self._plane.loop.call_soon(self._resume)

    def _resume(self) -> None:
        """Read what was pipelined behind the last request."""
        if self._phase == _IDLE and self._buffer and not self._write_paused:
            data, self._buffer = self._buffer, b""
            try:
                self._read_head(data)
            except Exception as error:  # noqa: BLE001
                self.crashed(error)

    def _linger(self) -> None:
        """Close so that what was written arrives: shut our side, throw away input for a moment, then close."""
        self._phase = _LINGERING
        self._buffer = b""
        self._discarded = 0
        self._unflushed = 0
        self.active = False
        self.deadline = self._plane.clock() + LINGER_S
        if self._read_paused:
            self._resume_reading()
        if not self.transport.can_write_eof():
            self.transport.close()
        elif not self.transport.is_closing():
            self.transport.write_eof()

    def _cut(self, outcome: Outcome) -> None:
        """End an answer that had begun, so that nobody can take it for a whole one."""
        plane = self._plane
        plane.request_ended(self._target.row, outcome, plane.clock() - self._started)
        self._phase = _LINGERING
        self._buffer = b""
        self._seen = b""
        self._scanner = None
        self._unflushed = 0
        self.active = False
        self.deadline = plane.clock() + LINGER_S
        self._hang_up()

    def _hang_up(self) -> None:
        """Close so that nobody takes an answer that had begun for a whole one."""
        if self._head.minor == 0 and not self.transport.is_closing():
            # An HTTP/1.0 answer may end with its connection: only a reset tells it from a whole one.
            sock = cast("socket.socket", self.transport.get_extra_info("socket"))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()
        else:
            self.transport.close()

    # --- deadlines and draining -----------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """True while a request is in hand."""
        return _BODY <= self._phase < _LINGERING

    def refresh(self, now: float) -> None:
        """Something moved since the last sweep: idle times start anew (total times do not)."""
        self.active = False
        timeouts = self._plane.timeouts
        if self._phase == _ANSWERING:
            self.deadline = now + timeouts.stream_idle_s
        elif self._phase == _BODY:
            self.deadline = now + timeouts.client_body_idle_s

    def expired(self, now: float) -> None:
        """The phase's time is over."""
        phase = self._phase
        plane = self._plane
        if phase in (_NEW, _IDLE):
            self._phase = _CLOSED
            self.transport.close()
        elif phase == _READING:
            self._refuse(
                HeadError(Outcome.CLIENT_TIMEOUT, f"no whole head in {plane.timeouts.client_head_s} s"), self._buffer
            )
        elif phase == _BODY:
            if self._peer_full:
                self._give_up(AttemptResult.HEAD_TIMEOUT, "the worker does not take the request's body")
            else:
                self._fail_request(
                    Outcome.CLIENT_TIMEOUT, f"no byte of the body in {plane.timeouts.client_body_idle_s} s"
                )
        elif phase == _WAITING:
            self._give_up(AttemptResult.HEAD_TIMEOUT, f"no response head in {plane.response_head_s} s")
        elif phase == _ANSWERING:
            self._drop_upstream()
            slow_caller = self._write_paused
            self._settle(AttemptResult.CANCELLED if slow_caller else AttemptResult.STREAM_IDLE, now)
            self._cut(Outcome.CLIENT_TIMEOUT if slow_caller else Outcome.STREAM_IDLE)
        else:
            unflushed = self.transport.get_write_buffer_size()
            if unflushed and unflushed != self._unflushed:  # a slow reader still takes what was written
                self._unflushed = unflushed
                self.deadline = now + CLOSE_STALL_S
            else:
                self.transport.abort()

    def _give_up(self, result: AttemptResult, detail: str) -> None:
        """The worker took too long: let go of it and say so."""
        attempt = self._attempt
        name = attempt.endpoint.id + ": " if attempt is not None else ""
        self._drop_upstream()
        if attempt is None:
            self._end_with(Outcome.UPSTREAM_TIMEOUT, detail)
        else:
            self.attempt_failed(result, name + detail)

    def close_if_idle(self) -> None:
        """Close a connection that waits for nothing (draining)."""
        if self._phase in (_NEW, _IDLE):
            self._phase = _CLOSED
            self.transport.close()

    def cut_for_drain(self) -> None:
        """The grace period is over: end whatever is in hand."""
        plane = self._plane
        if self.busy:
            now = plane.clock()
            self._drop_upstream()
            self._settle(AttemptResult.CANCELLED, now)
            if self._phase == _ANSWERING:
                self._cut(Outcome.DRAIN_CUT)
            else:
                self._end_with(Outcome.DRAINING, "")
        else:
            self.transport.abort()

    # --- flow control -------------------------------------------------------------------------------------------

    def _pause_reading(self) -> None:
        if not self._read_paused and not self.transport.is_closing():
            self._read_paused = True
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._read_paused:
            self._read_paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def _read_on(self) -> None:
        """Resume reading, unless too much is pipelined already: then requests are taken from that first."""
        if len(self._buffer) <= self._plane.limits.pipelined:
            self._resume_reading()


_CUTS = frozenset({AttemptResult.CUT, AttemptResult.STREAM_IDLE})


_EMPTY_LINES = re.compile(rb"(?:\r\n)+")


def _without_empty_lines(data: bytes) -> bytes:
    """Return what follows the empty lines at the start of ``data`` (RFC 9112 2.2 ignores them before a request)."""
    lines = _EMPTY_LINES.match(data)
    return data if lines is None else data[lines.end() :]


def _guess_target(data: bytes) -> bytes:
    """Return what looks like the target of a refused head, to answer on the surface that the caller may know."""
    line = data[: data.find(b"\r\n")] if b"\r\n" in data else data[:1024]
    parts = line.split(b" ")
    return parts[1][:1024] if len(parts) > 1 and parts[1].startswith(b"/") else b"/"
