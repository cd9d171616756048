"""One caller's connection: reads requests, and has each carried to a worker and answered, in order.

One request is in hand at a time; what is pipelined behind it waits in ``_buffer`` (bounded: then no more is read).
There is no task, future or timer per request: bytes come in by callback, one coarse sweep looks at deadlines.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, cast

from router.outcomes import AttemptResult, Outcome
from sidecar.http1.answers import error_answer
from sidecar.http1.bounds import BoundedConnection
from sidecar.http1.caller import (
    ANSWERING,
    BODY,
    CLOSED,
    HEALTH_ONLY,
    IDLE,
    LINGER_BYTES,
    LINGERING,
    NEW,
    READING,
    TUNNEL,
    WAITING,
)
from sidecar.http1.chunked import ChunkError, ChunkScanner
from sidecar.http1.head import HeadError, RequestHead
from sidecar.http1.parsing import hopeless, parse_request
from sidecar.http1.targets import NO_MODEL
from sidecar.http1.transports import much_unsent, reset
from sidecar.telemetry.page import Scalar

if TYPE_CHECKING:
    import asyncio

UNSENT_BYTES: Final = 65536
"""Request body read ahead while no worker takes it."""
TEDIOUS_BYTES: Final = 4096
"""Read at once, and more than half of it what frames chunks: others have their turn before more of it is read."""
LOOKED_AT_BYTES: Final = 65536
"""The same where a body is looked at for its model: so much, read at once, may take milliseconds (``model_field``)."""
LOOKED_AT_LEAST: Final = 256
"""Beginnings of heads up to this size are looked at whole for each piece."""
_EMPTY_LINES: Final = re.compile(rb"(?:\r\n)+")


class DownstreamConnection(BoundedConnection):
    """A caller's connection, as the loop sees it."""

    __slots__ = ()

    # --- asyncio.Protocol ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a new connection, or refuse it over the limit."""
        plane = self._plane
        self.transport = self.sink = cast("asyncio.Transport", transport)
        plane.count(Scalar.CONNECTIONS_TOTAL)
        self._peer = self._rules.peer(
            transport.get_extra_info("peername"), secure=transport.get_extra_info("ssl_object") is not None
        )
        now = plane.clock()
        timeouts = plane.timeouts
        self.deadline = now + (timeouts.drain_idle_s if plane.draining else timeouts.client_head_s)
        self.retire_at = now + plane.age_s()
        self.last = plane.draining or plane.tight
        self.gate = plane.gate
        plane.connections.add(self)
        if plane.callers > plane.most_connections:
            plane.over_limit(self)

    def data_received(self, data: bytes) -> None:
        """Read on, according to the phase."""
        self._plane.received_bytes += len(data)
        phase = self._phase
        try:
            if phase <= READING:
                if self._buffer:
                    if phase == READING and self._within_line(data):
                        return
                    data = self._buffer + data
                head = self._last_head  # _read_head by hand: this is every request
                end = head.again(data)
                if end:
                    self._begin(head, data, end)
                else:
                    self._read_another_head(data)
            elif phase == BODY:
                self.active = True
                self._read_body(data)
            elif phase < LINGERING:
                if not self.request_done:  # the answer came before the request's end
                    self.active = True
                    self._read_body(data)
                    return
                upstream = self._upstream
                if phase == TUNNEL and upstream is not None:
                    self.active = True
                    upstream.transport.write(data)
                    return
                self._buffer += data
                if len(self._buffer) > self._plane.limits.pipelined:
                    self._pause_reading()
            elif phase == LINGERING:
                self._discarded += len(data)
                if self._discarded > LINGER_BYTES:
                    if much_unsent(self.transport):
                        reset(self.transport)
                    else:
                        self.transport.abort()
        except Exception as error:  # noqa: BLE001  one connection's end, not the process's
            self.crashed(error)

    def eof_received(self) -> bool:
        """A caller that shuts its side while it waits has gone: the work for it is cancelled. A tunnel has halves.

        Returns whether the connection stays open: for what the caller may still read.
        """
        if self._phase == TUNNEL:
            return self._caller_finished()
        if BODY <= self._phase < LINGERING:
            self._abandon()
            self._hang_up()
        elif self._phase < BODY:  # what it asked for halfway, or behind that, is not answered
            self._buffer = b""
            self._close()
        return not self.transport.is_closing() and much_unsent(self.transport)

    def left(self, *, broken: bool) -> None:
        """The caller has gone, and only the kernel knows. With nothing in hand, a mere end is found in its turn."""
        if BODY <= self._phase < TUNNEL:
            self.eof_received()
        else:
            super().left(broken=broken)

    def connection_lost(self, exc: Exception | None) -> None:
        """Settle what was in hand."""
        if self._phase == TUNNEL:
            self._caller_lost()
        elif BODY <= self._phase < LINGERING:
            self._abandon()
        self._phase = CLOSED
        self._buffer = b""
        plane = self._plane
        if self._read_paused:
            plane.hangups.resumed(self)
        plane.connections.discard(self)
        plane.unread.discard(self)
        if self.gate == HEALTH_ONLY:
            plane.spare.pop(self, None)
            plane.parting.pop(self, None)
        if plane.draining and not plane.connections:
            plane.drained()

    def pause_writing(self) -> None:
        """The caller reads too slowly: read no more from the worker."""
        self._write_paused = True
        self._reader_at = 0.0
        self._plane.unread.add(self)
        if self._upstream is not None:
            self._upstream.pause_reading()
        elif self._phase <= READING:
            self._pause_reading()

    def resume_writing(self) -> None:
        """The caller reads again."""
        self._write_paused = False
        if self._phase < LINGERING:  # else it is watched to its end
            self._plane.unread.discard(self)
        if self._upstream is not None:
            self._upstream.resume_reading()
        elif self._phase <= READING:
            self._read_on()
            if self._phase == IDLE and self._buffer:
                self._plane.loop.call_soon(self._resume)

    # --- reading ----------------------------------------------------------------------------------------------------

    def _read_head(self, data: bytes) -> None:
        head = self._last_head
        end = head.again(data)
        if end:
            self._begin(head, data, end)
        else:
            self._read_another_head(data)

    def _read_another_head(self, data: bytes) -> None:
        """Read a head that is not like the last one."""
        end = data.find(b"\r\n\r\n") + 4
        if end < 5:  # not whole, or an empty line before the request, which is ignored (RFC 9112 2.2)
            if data.startswith(b"\r\n"):
                data = _without_empty_lines(data)
                if len(data) > 1:
                    self._read_another_head(data)
                    return
            self._read_part_of_head(data)
            return
        plane = self._plane
        limits = plane.limits
        if end > limits.head_bytes:
            self._refuse(HeadError(Outcome.HEAD_TOO_LARGE, f"over {limits.head_bytes} bytes"), data)
            return
        raw = data[:end]
        head = self._learned.find(raw)
        if head is None:
            try:
                head = parse_request(raw, limits.target_bytes, limits.fields, self._peer)
            except HeadError as error:
                if raw.startswith(b"\r\n"):
                    self._read_another_head(_without_empty_lines(data))
                else:
                    self._refuse(error, data)
                return
            self._learned.read_in_full(head, plane.shapes, plane.clock, limits.head_bytes)
        self._last_head = head
        self._begin(head, data, end)

    def _within_line(self, data: bytes) -> bool:
        """Keep a piece of a head with no end of a line, if that decides nothing; True where it was kept.

        Who sends byte by byte must not have all that came before looked at for each of them.
        """
        limits = self._plane.limits
        buffer = self._buffer
        size = len(buffer) + len(data)
        if size < LOOKED_AT_LEAST or size > limits.head_bytes:
            return False
        if data.find(b"\n") >= 0 or data.find(b"\r") >= 0 or buffer.endswith(b"\r"):
            return False
        if size > limits.target_bytes and buffer.find(b"\r\n", 0, limits.target_bytes) < 0:
            return False
        self._buffer = buffer + data
        return True

    def _read_part_of_head(self, data: bytes) -> None:
        plane = self._plane
        limits = plane.limits
        if data in (b"", b"\r"):  # nothing of a request yet: the connection is as idle as it was
            self._buffer = data
            if not self._write_paused:
                self._resume_reading()
            return
        if self._phase != READING:
            self._phase = READING
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
        if head is not self._head or plane.cluster.generation != self._generation:
            self._turn_to(head)
        self._target = target = self._known_target
        self._started = now = plane.clock()
        self._tries = 0
        self._whole = True
        self._close_after = close = self.last or not head.keep_alive
        length = head.length
        if length == 0:
            left = 0
            self._seen = b""
            self._buffer = data[end:]
            self.request_done = True
        elif length > 0:
            stop = end + length
            left = stop - len(data)
            if left <= 0:
                self._seen = data[end:stop]
                self._buffer = data[stop:] if left else b""
                self.request_done = True
            else:
                self._left = left
                self._seen = data[end:]
                self._buffer = b""
                self.request_done = False
        else:
            left = 1  # or more
            self._seen = b""
            self._buffer = b""
            self.request_done = False
            self._left = 0  # counts what came, downwards
            self._scanner = ChunkScanner()
        out = head.forward
        if head.has_request_id:
            self._request_id = b""  # taken from the head where it is needed
        else:
            self._request_id = plane.new_request_id()
            out += b"x-request-id: " + self._request_id + b"\r\n"
        if head.has_traceparent:
            self._sent_head = out + head.end
        else:
            self._sent_head = out + (plane.traces.pop() if plane.traces else plane.new_trace()) + head.end
        if self.request_done:
            self._plain = not close and not self.old_client
            self._phase = WAITING
            self.deadline = now + target.times.response_head_s
        else:
            self._plain = False
            self._phase = BODY
            self._body_at = 0.0
            self._body_from = -length if length > 0 else 0
            self.deadline = now + plane.timeouts.client_body_idle_s
        if self._watched:
            self._start_watch(now)
        if length > self.gate and self._stopped(length, now):
            return
        route = target.route
        if route is None:
            self._without_route(target, now)
        elif self._watch is None or head.timeout_ms or not self._over(now):
            self._dispatch(route, None, now)
        if left > 0 and self._phase == BODY:
            if length < 0 and end < len(data):
                self._read_body(data[end:])
            if not self.request_done:
                self._wait_for_caller(now)

    def _turn_to(self, head: RequestHead) -> None:
        """Take over what is not the same as for the request before."""
        plane = self._plane
        self._head = head
        self.method = head.method
        self.old_client = head.minor == 0
        generation = plane.cluster.generation
        if head.key != self._target_text or generation != self._generation:
            self._known_target = plane.resolve(head.target, self._rules.default_model, head.asked)
            self._target_text, self._generation = head.key, generation
        self._watched = self._known_target.watched or head.timeout_ms >= 0

    def _read_body(self, data: bytes) -> None:
        """More of the request's body: pass it on, and keep it while it is small enough to be sent again."""
        scanner = self._scanner
        tedious = False
        if scanner is not None:
            self._left -= len(data)
            before = scanner.taken_bytes
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
                tedious = len(data) > TEDIOUS_BYTES and (scanner.taken_bytes - before) * 2 < len(data)
        else:
            left = self._left - len(data)
            if left > 0:
                out = data
            else:
                out = data[: self._left]
                self._buffer = data[self._left :]
                self.request_done = True
            self._left = left
        if self.request_done and self._phase == BODY:
            self._phase = WAITING
            now = self._plane.clock()
            attempt = self._attempt
            if attempt is not None:  # how long the caller took to send is not the worker's time
                attempt.started = now
                if attempt.permits:
                    self._plane.cluster.reclaim(attempt, now)
            held = self._timer is not None  # before a retry, or in a queue: the worker is not asked yet
            self._wait_for_head(max(now, self._held_until) if held else now)
            if self._watch is not None:
                self._arm_hedge(self._watch, now)
        if self._look is not None:
            tedious = tedious or (len(out) > LOOKED_AT_BYTES and not self.request_done)
            if self._look_on(self._look, out):
                if tedious and self._phase == BODY:
                    self._let_others_go_first()
                return
        upstream = self._upstream
        if upstream is not None:
            upstream.transport.write(out)
            if self._whole:
                if len(self._seen) + len(out) <= self._most_kept():
                    self._seen += out
                else:
                    self._whole = False
                    self._seen = b""
            if tedious:
                self._let_others_go_first()
        else:
            self._seen += out
            if len(self._seen) > UNSENT_BYTES:
                self._pause_reading()

    def _let_others_go_first(self) -> None:
        """Read the rest of a body in later turns of the loop: it costs more time than bodies do."""
        if not self._read_paused:
            self._pause_reading()
            self._plane.loop.call_soon(self._go_on_reading)

    def _go_on_reading(self) -> None:
        look = self._look
        if (look is not None and (look.waiting or look.course is not None)) or (
            self._upstream is not None and not self._peer_full
        ):
            self._read_on()  # else somebody will in time

    def _refuse(self, error: HeadError, data: bytes) -> None:
        """A head that cannot be taken: answer and close. Nothing behind it can be trusted."""
        plane = self._plane
        self._buffer = b""
        plane.count(Scalar.REJECTED_MESSAGES_TOTAL)
        target = plane.resolve(_guess_target(data), self._rules.default_model)
        plane.request_ended(plane.page.model_row(NO_MODEL), error.outcome, 0.0)
        head_only = data.startswith(b"HEAD ")
        self._say(error_answer(target.surface, error.outcome, error.detail, close=True, head_only=head_only))
        self._linger()

    # --- deadlines and draining -------------------------------------------------------------------------------------

    def refresh(self, now: float) -> None:
        """Something moved since the last sweep: idle times start anew (total times do not)."""
        self.active = False
        timeouts = self._plane.timeouts
        if self._phase == ANSWERING:
            self.deadline = now + self._target.times.stream_idle_s
        elif self._phase == BODY:
            self.deadline = now + timeouts.client_body_idle_s
            if self._plane.limits.body_rate_bytes_per_s:
                self._watch_body(now)
        elif self._phase == TUNNEL:
            self.deadline = now + self._tunnel_idle_s()
        if self._watch is not None:
            self._clip()

    def expired(self, now: float) -> None:
        """The phase's time is over."""
        phase = self._phase
        plane = self._plane
        if self._watch is not None and self._over(now):
            return
        if phase in (NEW, IDLE):
            self.close_if_idle()
        elif phase == READING:
            self._refuse(
                HeadError(Outcome.CLIENT_TIMEOUT, f"no whole head in {plane.timeouts.client_head_s} s"), self._buffer
            )
        elif phase == BODY:
            if self._peer_full:
                self._give_up(AttemptResult.HEAD_TIMEOUT, "the worker does not take the request's body")
            elif self._read_paused:  # it is we who do not read on; what we wait for has a time of its own
                self.deadline = now + plane.timeouts.client_body_idle_s
                self._clip()
            else:
                self._fail_request(
                    Outcome.CLIENT_TIMEOUT, f"no byte of the body in {plane.timeouts.client_body_idle_s} s"
                )
        elif phase == WAITING:
            if self._upstream is not None and self._upstream.look_no_longer():
                return  # a head did come: what is missing is more of an error's body
            self._give_up(AttemptResult.HEAD_TIMEOUT, f"no response head in {self._target.times.response_head_s} s")
        elif phase == ANSWERING:
            slow_caller = self._write_paused or not (self.request_done or self._peer_full)
            result = AttemptResult.CANCELLED if slow_caller else self._stalled(AttemptResult.STREAM_IDLE)
            broken = self._drop_upstream()
            self._settle(result, now)
            if slow_caller:
                self._cut(Outcome.CLIENT_TIMEOUT)
            else:
                self._cut(Outcome.STREAM_IDLE, broken, f"{self._target.times.stream_idle_s} s")
        elif phase == TUNNEL:
            self._tunnel_expired()
        else:
            self._linger_on()

    def cut_for_drain(self) -> None:
        """The grace period is over: end whatever is in hand."""
        plane = self._plane
        if self._phase == TUNNEL:
            self._end_tunnel(Outcome.DRAIN_CUT, AttemptResult.CANCELLED)
        elif self.busy:
            now = plane.clock()
            broken = self._drop_upstream()
            self._settle(AttemptResult.CANCELLED, now)
            if self._phase == ANSWERING:
                self._cut(Outcome.DRAIN_CUT, broken)
            else:
                self._end_with(Outcome.DRAINING, "")
        else:
            self.end_now()


def _without_empty_lines(data: bytes) -> bytes:
    """Return what follows the empty lines at the start of ``data`` (RFC 9112 2.2 ignores them before a request)."""
    lines = _EMPTY_LINES.match(data)
    return data if lines is None else data[lines.end() :]


def _guess_target(data: bytes) -> bytes:
    """Return what looks like the target of a refused head, to answer on the surface that the caller may know."""
    line = data[: data.find(b"\r\n")] if b"\r\n" in data else data[:1024]
    parts = line.split(b" ")
    return parts[1][:1024] if len(parts) > 1 and parts[1].startswith(b"/") else b"/"
