"""One caller's HTTP/2 connection: opens calls, and ends them when it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from sidecar.grpc.call import Call
from sidecar.grpc.heads import CallHeads
from sidecar.grpc.phases import ENDING
from sidecar.http1.caller import LAME_DUCK_S, NEVER
from sidecar.http1.forwarding import STRANGER
from sidecar.http1.transports import limit_flush, much_unsent, reset, unsent
from sidecar.http2 import frames
from sidecar.http2.connection import BROKEN_NOISE, LINGER_S, UPDATES_SAVED, Connection
from sidecar.http2.frames import MAX_STREAM, Code
from sidecar.http2.hpack import literal
from sidecar.telemetry.page import Scalar

if TYPE_CHECKING:
    import asyncio

    from sidecar.grpc.heads import AnswerHead, CallHead
    from sidecar.grpc.plane import GrpcPlane
    from sidecar.http1.forwarding import ListenerRules
    from sidecar.http2.connection import Head
    from sidecar.http2.hpack import Field
    from sidecar.http2.stream import Stream

EARLY_S: Final = 0.1
EARLY_CALLS: Final = 10
"""A call that its caller gives up sooner than EARLY_S, before an answer, is taken for one that lasted as long: else
what a connection may have done is not bounded by the calls that it may have at once (rapid reset, CVE-2023-44487). Its
part of EARLY_S that was left is what counts; at once and per second there may be EARLY_CALLS whole ones for each call
at once, which is what those that do last that long come to."""
TRUSTED_CALLS: Final = 10
"""A trusted proxy in front, which carries many callers and bounds each, may give up so many times as many."""
_DRAIN_PING: Final = b"wr-drain"


class CallerConnection(Connection):
    """A caller's connection, as the loop sees it."""

    __slots__ = (
        "_early",
        "_final_id",
        "_going",
        "_leaving",
        "_most",
        "_most_early",
        "_over",
        "_heads",
        "_plane",
        "_retire_at",
        "_rules",
        "_unsent",
        "deadline",
        "model_field",
        "trusted",
    )

    def __init__(self, plane: GrpcPlane, rules: ListenerRules) -> None:
        limits = plane.limits
        super().__init__(plane.flusher, client=False, head_bytes=limits.head_bytes, fields=limits.fields)
        self._plane = plane
        self._rules = rules
        self._most = limits.calls_per_connection
        self._most_early = float(limits.early_resets_per_s or EARLY_CALLS * self._most)
        self._early = 0.0  # calls given up early lately
        self._over = 0  # streams that have ended: each may be reset once more, for that crosses its end
        self._heads = CallHeads(STRANGER)
        self.model_field = b""  # of the metadata that names a model
        self.trusted = False  # what it says of whom it speaks for is believed
        self._retire_at = NEVER
        self.deadline = 0.0
        self._leaving = 0.0  # when the final GOAWAY is due, 0: not leaving
        self._going = False  # the caller says that it goes
        self._unsent = 0  # behind its end: what the caller had yet to take when that was looked at
        self._final_id = MAX_STREAM  # streams above it are passed over

    @property
    def default_model(self) -> str | None:
        """The model of calls that name none, as the listener has it now."""
        return self._rules.default_model

    # --- asyncio.Protocol --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a new connection, or refuse it over the limit."""
        plane = self._plane
        shared = plane.shared
        shared.count(Scalar.CONNECTIONS_TOTAL)
        secure = transport.get_extra_info("ssl_object") is not None
        peer = self._rules.peer(transport.get_extra_info("peername"), secure=secure)
        self._heads = CallHeads(peer)
        self.trusted = peer.trusted
        self.model_field = peer.model_field[2:-1]
        if peer.trusted:
            self._most_early *= TRUSTED_CALLS
        if shared.timeouts.connection_age_s is not None:
            self._retire_at = plane.clock() + shared.age_s()
        self.deadline = plane.clock() + shared.timeouts.client_head_s
        plane.connections.add(self)
        self.begin(
            transport,
            {frames.MAX_CONCURRENT_STREAMS: self._most, frames.MAX_HEADER_LIST_SIZE: self._head_bytes},
        )
        if plane.crowded():
            shared.count(Scalar.REFUSED_CONNECTIONS_TOTAL)
            self.goaway(0, Code.ENHANCE_YOUR_CALM, "too many connections")
            self.end()
        elif shared.draining:  # it waited in the queue
            self.leave(plane.clock(), shared.timeouts.drain_idle_s)

    def eof_received(self) -> bool:
        """A caller that shuts its side has gone; return whether it stays open for what it may still read."""
        if much_unsent(self.transport):
            if not self.ended:
                self.end()
            return not self.transport.is_closing()
        limit_flush(self.transport, self._plane.limits.read_grace_s)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End what was in hand."""
        self.ended = True
        streams, self.streams = self.streams, {}
        for stream in streams.values():
            call: Call = stream.call
            try:
                call.cancelled()
            except Exception as error:  # noqa: BLE001
                call.crashed(error)
        self._plane.left(self)

    # --- calls -------------------------------------------------------------------------------------------------------

    def _parse(self, fields: list[Field], *, oversized: bool) -> Head:
        return self._heads.read(fields, oversized=oversized)

    def _opened(self, stream_id: int, head: Head, *, end: bool) -> None:
        self.last_id = stream_id
        if stream_id > self._final_id:
            return
        plane = self._plane
        if head.malformed:
            plane.shared.count(Scalar.REJECTED_MESSAGES_TOTAL)
            self._hear_noise(BROKEN_NOISE)
            self._over += 1
            self._refuse(stream_id, Code.PROTOCOL_ERROR)
            return
        if len(self.streams) >= self._most or self._early > self._most_early:  # clients send it again
            plane.shared.count(Scalar.GRPC_REFUSED_TOTAL)
            self._hear_noise()
            self._over += 1
            self._refuse(stream_id, Code.REFUSED_STREAM)
            return
        call = Call(self, plane, cast("CallHead", head), plane.clock())
        call.down = self.take_stream(stream_id, call, end=end)
        try:
            call.begin(end=end)
        except Exception as error:  # noqa: BLE001  one call's end, not the connection's
            call.crashed(error)

    def _headers(self, stream: Stream, head: Head, *, end: bool) -> None:
        call: Call = stream.call
        if not end:
            self._broken(stream, Code.PROTOCOL_ERROR, "HEADERS in the middle of a request")
            return
        try:
            call.request_trailers()
        except Exception as error:  # noqa: BLE001
            call.crashed(error)

    def _data(self, stream: Stream, data: bytes, *, end: bool) -> None:
        call: Call = stream.call
        try:
            call.request_data(data, end=end)
        except Exception as error:  # noqa: BLE001
            call.crashed(error)

    def _reset(self, stream: Stream, code: int) -> None:
        call: Call = stream.call
        try:
            call.cancelled()
        except Exception as error:  # noqa: BLE001
            call.crashed(error)

    def given_up(self, after_s: float) -> None:
        """A call was given up, or ended by what its caller set or sent, so long after it was opened and unanswered."""
        if after_s < EARLY_S:
            self._early += 1.0 - after_s / EARLY_S

    def _late_reset(self) -> None:
        if self._over:
            self._over -= 1
        else:
            self._hear_noise()

    def _flushed(self, stream: Stream) -> None:
        call: Call = stream.call
        if call.phase == ENDING:
            call.flushed()

    def _closed(self, stream: Stream) -> None:
        self._over += 1
        if not self.streams:
            self.deadline = self._plane.clock() + self._plane.shared.timeouts.keep_alive_s
            if (self._going or self._final_id != MAX_STREAM) and not self.ended:
                self.end()

    def _settings(self) -> None:
        if not self.streams and not self.ended and not self.last_id:
            self.deadline = self._plane.clock() + self._plane.shared.timeouts.keep_alive_s

    def send_answer_head(self, stream: Stream, head: AnswerHead, request_id: bytes) -> None:
        """Send a worker's initial metadata, with the request's id where it has none."""
        block = self._encoder.encode_known(head, head.forward)
        if not head.has_request_id:
            block += literal(b"x-request-id", request_id)
        self.send_block(stream, block, end=False)

    def send_answer_end(self, stream: Stream, head: AnswerHead, request_id: bytes) -> None:
        """Send a worker's answer that is trailers alone."""
        block = self._encoder.encode_known(head, head.forward)
        if not head.has_request_id:
            block += literal(b"x-request-id", request_id)
        self.send_block(stream, block, end=True)

    # --- leaving -----------------------------------------------------------------------------------------------------

    def leave(self, now: float, after_s: float) -> None:
        """Begin to close without loss (RFC 9113 6.8): say so, and name the last call a round trip or a while later."""
        if not self._leaving and not self.ended:
            self._leaving = now + after_s
            self.goaway(MAX_STREAM)
            self._write(frames.frame(frames.PING, 0, 0, _DRAIN_PING))

    def _pinged(self, payload: bytes) -> None:
        if payload == _DRAIN_PING and self._leaving and not self._plane.shared.draining:
            self._leave_now()

    def _leave_now(self) -> None:
        if self._final_id == MAX_STREAM and not self.ended:
            self._final_id = self.last_id
            self.goaway(self.last_id)
            if not self.streams:
                self.end()

    def _goaway(self, last_id: int, code: int, detail: str) -> None:
        """The caller has all it wants: the connection ends with its last call."""
        self._going = True
        if not self.streams and not self.ended:
            self.end()

    def fail(self, code: Code, detail: str) -> None:
        """The caller broke the protocol."""
        if not self.ended:
            self._plane.shared.count(Scalar.REJECTED_MESSAGES_TOTAL)
        super().fail(code, detail)

    def linger_until(self) -> None:
        """Set when it is cut off."""
        self.deadline = self._plane.clock() + LINGER_S
        streams, self.streams = self.streams, {}
        for stream in streams.values():
            call: Call = stream.call
            call.cancelled()

    def crashed(self, error: Exception) -> None:
        """An error of warmroute's own that belongs to no call ends this connection."""
        self._plane.shared.loop.call_exception_handler(
            {"message": "a caller's connection crashed", "exception": error, "protocol": self}
        )
        self.transport.abort()

    # --- time --------------------------------------------------------------------------------------------------------

    def sweep(self, now: float, seconds: float) -> None:
        """Look at the times of this connection and of its calls."""
        self.quieten(seconds, now)
        if self._early:
            self._early = max(0.0, self._early - seconds * self._most_early)
        self._over = min(self._over, UPDATES_SAVED)
        for stream in list(self.streams.values()):
            call: Call = stream.call
            try:
                call.check(now)
            except Exception as error:  # noqa: BLE001  one call's end, not the sweep's
                call.crashed(error)
        if now >= self._retire_at:
            self._retire_at = NEVER
            self._plane.shared.count(Scalar.CONNECTIONS_AGED_TOTAL)
            self.leave(now, LAME_DUCK_S)
        if self._leaving and now >= self._leaving:
            self._leave_now()
        if self._block_stream and not self.ended:
            if now >= self._block_at + self._plane.shared.timeouts.client_head_s:
                self.fail(Code.PROTOCOL_ERROR, "a header block did not end in time")
            return
        if now < self.deadline or self.streams:
            return
        if self.ended:
            self._part(now)
        elif not self._settled:
            self.fail(Code.PROTOCOL_ERROR, "a preface or settings did not come in time")
        else:
            self.leave(now, LAME_DUCK_S)
            self.deadline = now + LAME_DUCK_S + LINGER_S

    def _part(self, now: float) -> None:
        """End it for good, unless the caller still takes what waits for it."""
        transport = self.transport
        limits = self._plane.limits
        if not much_unsent(transport):
            limit_flush(transport, limits.read_grace_s)
            transport.abort()
            return
        waiting = unsent(transport)
        least = max(1.0, limits.read_rate_bytes_per_s * limits.read_grace_s)
        if self._unsent and self._unsent - waiting < least:
            self._plane.shared.count(Scalar.SLOW_READERS_TOTAL)
            reset(transport)
            return
        self._unsent = waiting
        self.deadline = now + limits.read_grace_s

    def cut_for_drain(self) -> None:
        """The grace period is over: end whatever is in hand."""
        for stream in list(self.streams.values()):
            call: Call = stream.call
            call.cut_for_drain()
        if not self.ended:
            self._leave_now()
            if not self.ended:
                self.end()
