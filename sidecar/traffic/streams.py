"""A caller's connection over HTTP/2 (RFC 9113): many requests at once, a stream each. gRPC calls go over it as well."""

from __future__ import annotations

import asyncio
import re
from math import inf
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import unquote

from sidecar.http2 import frames
from sidecar.http2.connection import Connection, Head
from sidecar.http2.frames import Code, name_of
from sidecar.traffic.answers import MAX_ANSWER_BYTES
from sidecar.traffic.reading import HEAD_BYTES
from sidecar.traffic.requests import fields_of
from sidecar.traffic.samples import Ended
from sidecar.traffic.trusting import lost

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.http2.hpack import Field
    from sidecar.http2.sending import Flusher
    from sidecar.http2.stream import Stream
    from sidecar.traffic.lines import Answer, Call, Owner

MOST_STREAMS: Final = 100
"""Requests at once on one connection, fewer where the server says so."""
FIELDS: Final = 1000
ALPN: Final = "h2"
_LAST_ID: Final = 1 << 30
_QUIET_S: Final = 0.25
_HTTP1: Final = re.compile(rb"(HTTP/[0-9]\.[0-9]) ")
"""How an answer in HTTP/1 begins, as long as the head of a frame, so that it is whole before one is read."""


class AnswerFields(Head):
    """A header block of an answer's."""

    __slots__ = ("fields", "status")

    def __init__(self, fields: list[Field], *, oversized: bool) -> None:
        self.fields: Final = fields
        first = fields[0] if fields else (b"", b"")
        self.status: Final = int(first[1]) if first[0] == b":status" and first[1].isdigit() else 0
        self.malformed = f"a head over {HEAD_BYTES} bytes or {FIELDS} fields" if oversized else ""


class StreamReading:
    """One answer, as far as it has come; its body is measured and not kept, but for ``tail_bytes`` of its end."""

    def __init__(self, call: Call) -> None:
        self.call: Final = call
        request = call.request
        self._tail_bytes: Final = MAX_ANSWER_BYTES if request.take else len(request.ends_with)
        self._fields: list[Field] = []
        self.stream: Stream | None = None
        self.timers: list[asyncio.TimerHandle] = []  # of what of the request is still to be sent
        self.status = 0
        self.body_bytes = 0
        self.tail = b""

    @property
    def grpc_status(self) -> int | None:
        """The code that the trailers say, 2 (UNKNOWN) where it is none."""
        text = self.fields(_STATUS).get("grpc-status")
        return None if text is None else int(text) if text.isdigit() and len(text) < 6 else 2

    @property
    def grpc_message(self) -> str:
        """What they explain it with."""
        return unquote(self.fields(_MESSAGE).get("grpc-message", ""))

    def over(self) -> None:
        """Nothing more of the request is to be sent."""
        for timer in self.timers:
            timer.cancel()

    def head(self, head: AnswerFields) -> None:
        """Take a header block: the head, or trailers."""
        self.status = self.status or head.status
        self._fields += head.fields

    def data(self, data: bytes) -> None:
        """Take a piece of the body."""
        self.body_bytes += len(data)
        if self._tail_bytes:
            self.tail = (self.tail + data[-self._tail_bytes :])[-self._tail_bytes :]

    def fields(self, wanted: frozenset[str]) -> dict[str, str]:
        """Return the values of the answer's fields that are ``wanted``, trailers too; the last of several."""
        return {
            name: value.decode("latin-1") for key, value in self._fields if (name := key.decode("latin-1")) in wanted
        }


_STATUS: Final = frozenset({"grpc-status"})
_MESSAGE: Final = frozenset({"grpc-message"})


class StreamConnection(Connection):
    """One connection. ``now`` is the owner's clock, ``later`` its loop's ``call_later``.

    ``authority`` is what requests say that name none. ``secure``: it is under TLS, where the server has to choose h2
    (ALPN); else it speaks with prior knowledge.
    """

    __slots__ = (
        "_authority",
        "_going",
        "_greeted",
        "_later",
        "_made",
        "_now",
        "_owner",
        "_quiet_at",
        "_readings",
        "_secure",
        "_waiting",
        "idle_since",
        "listed",
        "opening",
    )

    def __init__(
        self,
        owner: Owner,
        now: Callable[[], float],
        flusher: Flusher,
        later: Callable[..., asyncio.TimerHandle],
        authority: str,
        *,
        secure: bool,
    ) -> None:
        super().__init__(flusher, client=True, head_bytes=HEAD_BYTES, fields=FIELDS)
        self._owner = owner
        self._now = now
        self._later = later
        self._authority = authority
        self._secure = secure
        self._readings: dict[Call, StreamReading] = {}
        self._waiting: dict[Call, None] = {}  # until the connection stands
        self._made = False
        self._going = False  # it takes no more
        self._greeted = False  # the server has sent its settings, so it speaks HTTP/2
        self._quiet_at = 0.0
        self.idle_since = inf
        self.listed = False
        self.opening: asyncio.Task[None] | None = None

    # --- towards the owner --------------------------------------------------------------------------------------------

    @property
    def room(self) -> bool:
        """It can take one more request."""
        if self._going or self.ended or self.last_id >= _LAST_ID or (self._made and self.transport.is_closing()):
            return False
        return len(self._readings) + len(self._waiting) < min(MOST_STREAMS, self.peer_streams)

    def take(self, call: Call) -> None:
        """Send a request, at once or when the connection is made."""
        self.idle_since = inf
        if self._made:
            self._send(call)
        else:
            self._waiting[call] = None

    def leave(self, call: Call) -> Answer:
        """Reset the stream of a call."""
        self._waiting.pop(call, None)
        reading = self._readings.pop(call, None)
        if reading is None:
            return StreamReading(call)
        reading.over()
        if reading.stream is not None:
            self.reset(reading.stream, Code.CANCEL)
        return reading

    def refused(self, ended: Ended, error: str) -> None:
        """It could not be opened."""
        self._going = True
        waiting, self._waiting = self._waiting, {}
        for call in waiting:
            call.failed(ended, error, StreamReading(call))

    def drop(self) -> None:
        """Close at once."""
        self._going = True
        for reading in self._readings.values():
            reading.over()
        self._readings.clear()
        self._waiting.clear()
        if self.opening is not None:
            self.opening.cancel()
        if self._made:
            self.transport.abort()

    # --- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say who we are, and send what waits: servers' settings need not be waited for (RFC 9113 3.4)."""
        tls = transport.get_extra_info("ssl_object")
        if self._secure and (tls is None or tls.selected_alpn_protocol() != ALPN):
            self.refused(Ended.NO_HTTP2, "it did not choose h2 (ALPN)")
            cast("asyncio.Transport", transport).abort()
            return
        self.begin(transport, {frames.ENABLE_PUSH: 0, frames.MAX_HEADER_LIST_SIZE: HEAD_BYTES})
        self._made = True
        waiting, self._waiting = self._waiting, {}
        for call in waiting:
            self._send(call)

    def data_received(self, data: bytes) -> None:
        """Read frames, unless what the server says first is of HTTP/1 (RFC 9112 4)."""
        if not self._greeted and not self.ended and (other := _HTTP1.match(self._buffer + data)):
            self.fail(Code.PROTOCOL_ERROR, f"it answered in {other[1].decode()}")
        else:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """What is under way is lost with it."""
        self.ended = self._going = True
        self._owner.gone(self)
        self._fail_all(*lost(exc))

    def eof_received(self) -> bool:
        """The server sends nothing more."""
        return False

    # --- what streams mean --------------------------------------------------------------------------------------------

    def _send(self, call: Call) -> None:
        now = self._now()
        if now - self._quiet_at >= _QUIET_S:
            self.quieten(min(now - self._quiet_at, 1.0), now)
            self._quiet_at = now
        request = call.request
        reading = self._readings[call] = StreamReading(call)
        call.sending()
        reading.stream = stream = self.open_stream(reading)
        fields = fields_of(request, self._authority, call.request_id, secure=self._secure)
        self.send_headers(stream, fields, end=not request.body and not request.parts)
        if request.body:
            self.send_data(stream, request.body, end=not request.parts)
        last = len(request.parts) - 1
        for number, (after_s, data) in enumerate(request.parts):
            timer = self._later(after_s, self._send_part, stream, data, number == last)
            reading.timers.append(timer)

    def _send_part(self, stream: Stream, data: bytes, end: bool) -> None:
        if not self.ended and self.streams.get(stream.id) is stream:
            self.send_data(stream, data, end=end)

    def _parse(self, fields: list[Field], *, oversized: bool) -> Head:
        return AnswerFields(fields, oversized=oversized)

    def _opened(self, stream_id: int, head: Head, *, end: bool) -> None:
        raise frames.ProtocolError(Code.PROTOCOL_ERROR, f"HEADERS on stream {stream_id}, which was never opened")

    def _headers(self, stream: Stream, head: Head, *, end: bool) -> None:
        reading: StreamReading = stream.call
        fields = cast("AnswerFields", head)
        self._began(reading)
        if fields.malformed or (not reading.status and not fields.status):
            self.reset(stream, Code.PROTOCOL_ERROR)
            self._fail(reading, Ended.WRONG, fields.malformed or "a head without a status")
        elif not 0 < fields.status < 200:
            reading.head(fields)
            if end:
                self._whole(reading)

    def _data(self, stream: Stream, data: bytes, *, end: bool) -> None:
        reading: StreamReading = stream.call
        self._began(reading)
        self.credit(stream, len(data))
        reading.data(data)
        if end:
            self._whole(reading)

    def _reset(self, stream: Stream, code: int) -> None:
        self._fail(stream.call, Ended.CUT, f"the stream was reset ({name_of(code)})")

    def _goaway(self, last_id: int, code: int, detail: str) -> None:
        self._going = True
        for reading in list(self._readings.values()):
            if reading.stream is not None and reading.stream.id > last_id:
                self.reset(reading.stream, Code.CANCEL)
                self._fail(reading, Ended.CUT, f"the connection took no more ({name_of(code)})")
        self._close_if_done()

    def fail(self, code: Code, detail: str) -> None:
        """The server broke the protocol."""
        super().fail(code, detail)
        self._going = True
        self._fail_all(Ended.WRONG, detail, before=Ended.CUT if self._greeted else Ended.NO_HTTP2)
        self.transport.close()

    def crashed(self, error: Exception) -> None:
        """An error of warmroute's own."""
        asyncio.get_running_loop().call_exception_handler({"message": "a connection crashed", "exception": error})
        self.transport.abort()

    def _settings(self) -> None:
        self._greeted = True
        self._tell_room()

    def _closed(self, stream: Stream) -> None:
        self._tell_room()

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _began(self, reading: StreamReading) -> None:
        if reading.call.first_byte_at is None:
            reading.call.first_byte_at = self._now()

    def _whole(self, reading: StreamReading) -> None:
        stream = reading.stream
        if self._readings.pop(reading.call, None) is None:
            return
        reading.over()
        if stream is not None and not stream.local_done:  # it answered before the request's end
            self.reset(stream, Code.NO_ERROR)
        self._tell_room()
        reading.call.answered(reading)

    def _fail(self, reading: StreamReading, ended: Ended, error: str) -> None:
        if self._readings.pop(reading.call, None) is not None:
            reading.over()
            self._tell_room()
            reading.call.failed(ended, error, reading)

    def _fail_all(self, ended: Ended, error: str, before: Ended | None = None) -> None:
        """Fail everything; ``before`` is how those end of whose answer nothing had come, where that is another way."""
        unanswered = before or ended
        readings, self._readings = self._readings, {}
        for reading in readings.values():
            reading.over()
            reading.call.failed(unanswered if reading.call.first_byte_at is None else ended, error, reading)
        waiting, self._waiting = self._waiting, {}
        for call in waiting:
            call.failed(unanswered, error, StreamReading(call))

    def _tell_room(self) -> None:
        """Say that there is room, and since when nothing is under way."""
        if not self._readings and not self._waiting:
            self.idle_since = self._now()
        if self.room:
            self._owner.idle(self)
        else:
            self._close_if_done()

    def _close_if_done(self) -> None:
        if self._going and not self._readings and not self._waiting and self._made and not self.ended:
            self.goaway(0)
            self.end()
            self.transport.close()
