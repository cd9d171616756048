"""Follows the two directions of an HTTP/2 connection and tells what requests and gRPC calls went over it. Pure.

It only listens. What it cannot read ends the listening, never the connection.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

import hpack

from sidecar.faults.framing import MessageReader
from sidecar.http2 import frames
from sidecar.http2.frames import HEAD, HEAD_BYTES, PREFACE
from sidecar.traffic.reading import HEAD_BYTES as MOST_HEAD_BYTES
from sidecar.traffic.recording.noting import ANSWER_FIELDS, Answered, worker_of
from sidecar.traffic.requests import REQUEST_ID
from sidecar.traffic.samples import Ended

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.traffic.recording.noting import Noted, Protocol, Terms

MOST_FRAME_BYTES: Final = 1 << 20
MOST_TABLE_BYTES: Final = 1 << 16
MOST_STREAMS: Final = 10_000
"""Larger frames, or tables of heads, and more requests at once are not followed."""

AT_ONCE_S: Final = 0.01
"""A message that comes so soon after its call's beginning came with it."""

Fields = list[tuple[str, str]]


class _LostError(Exception):
    """It cannot be followed any further."""


class _Half:
    """One direction: its frames, header blocks decoded."""

    def __init__(self, skip: int = 0) -> None:
        self._skip = skip
        self._buffer = b""
        self._decoder = hpack.Decoder(MOST_HEAD_BYTES)
        self._decoder.max_allowed_table_size = MOST_TABLE_BYTES
        self._block = b""
        self._block_end = False

    def read(self, data: bytes) -> Iterator[tuple[int, int, bool, bytes, Fields]]:
        """Yield kind, stream, whether it is the stream's end, payload and fields of what came whole and matters."""
        data = self._buffer + data
        position, self._skip = min(self._skip, len(data)), max(0, self._skip - len(data))
        while len(data) - position >= HEAD_BYTES:
            high, low, kind, flags, stream = HEAD.unpack_from(data, position)
            length = high << 8 | low
            if length > MOST_FRAME_BYTES:
                raise _LostError
            begins = position + HEAD_BYTES
            if begins + length > len(data):
                break
            payload = data[begins : begins + length]
            position = begins + length
            stream &= frames.MAX_STREAM
            end = flags & frames.END_STREAM != 0
            if kind == frames.DATA:
                yield kind, stream, end, _content(payload, flags), []
            elif kind == frames.HEADERS:
                self._block, self._block_end = _content(payload, flags), end
            elif kind == frames.CONTINUATION:
                self._block += payload
            elif kind == frames.RST_STREAM:
                yield kind, stream, True, payload, []
            if kind in (frames.HEADERS, frames.CONTINUATION):
                if len(self._block) > MOST_HEAD_BYTES:
                    raise _LostError
                if flags & frames.END_HEADERS:
                    yield frames.HEADERS, stream, self._block_end, b"", self._fields()
        self._buffer = data[position:]

    def _fields(self) -> Fields:
        try:
            decoded = self._decoder.decode(self._block, raw=True)
        except hpack.HPACKError:
            raise _LostError from None
        return [(bytes(one[0]).decode("latin-1"), bytes(one[1]).decode("latin-1")) for one in decoded]


def _content(payload: bytes, flags: int) -> bytes:
    """Return a payload of DATA or HEADERS without its padding, and its priority."""
    padding = 0
    if flags & frames.PADDED:
        padding, payload = payload[0] if payload else 1, payload[1:]
    ahead = 5 if flags & frames.WITH_PRIORITY else 0  # DATA has no such flag
    if padding + ahead > len(payload):
        raise _LostError
    return payload[ahead : len(payload) - padding]


def _printable(name: str, value: str) -> str:
    """Return a field's value in base64 where gRPC's peers have agreed to send it bare, behind a zero byte."""
    if name.endswith("-bin") and value.startswith("\0"):
        return base64.b64encode(value[1:].encode("latin-1")).decode("ascii")
    return value


class _Exchange:
    """One stream: its request, and its answer as far as it came."""

    def __init__(self, noted: Noted) -> None:
        self.noted = noted
        self.status = 0
        self.body_bytes = 0
        self.messages = 0
        self.grpc_status: int | None = None
        self.fields: dict[str, str] = {}
        self._reader = MessageReader() if noted.protocol == "grpc" else None
        self._asked = MessageReader() if noted.protocol == "grpc" and noted.sampled else None

    def asked(self, data: bytes, now_s: float) -> None:
        if self._asked is not None and not self.noted.no_body:
            moment_s = now_s - self.noted.began_s
            if moment_s < AT_ONCE_S:
                moment_s = 0.0
            self.noted.after_s += [moment_s for _ in self._asked.read(data) if self._asked.between]

    def head(self, fields: Fields) -> None:
        for name, value in fields:
            if name == ":status" and value.isdigit():
                self.status = int(value)
            elif name in ANSWER_FIELDS:
                self.fields[name] = value
            elif name == "grpc-status":
                self.grpc_status = int(value) if value.isdigit() and len(value) < 6 else 2

    def data(self, data: bytes) -> None:
        self.body_bytes += len(data)
        if self._reader is not None:
            self.messages += sum(self._reader.between for _ in self._reader.read(data))

    def answer(self) -> Answered:
        request_id, worker = self.fields.get(REQUEST_ID, ""), worker_of(self.fields)
        return Answered(self.status, self.body_bytes, request_id, worker, self.grpc_status, self.messages)

    def ended(self) -> Ended:
        """Return how a whole answer ended the request."""
        if self.status >= 400:
            return Ended.STATUS_5XX if self.status >= 500 else Ended.STATUS_4XX
        if self.noted.protocol != "grpc":
            return Ended.OK
        if self.grpc_status is None:
            return Ended.FALSE_END
        return Ended.GRPC_STATUS if self.grpc_status else Ended.OK


class StreamTap:
    """One connection's. Moments are seconds of the trace, never decreasing."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._asking = _Half(len(PREFACE))
        self._answering = _Half()
        self._exchanges: dict[int, _Exchange] = {}
        self._caller_left_s: float | None = None
        self.deaf = False

    @property
    def under_way(self) -> bool:
        """True while a request waits for its answer."""
        return not self.deaf and bool(self._exchanges)

    def from_caller(self, data: bytes, now_s: float) -> None:
        """Take what the caller sent."""
        if self.deaf:
            return
        try:
            for kind, stream, end, payload, fields in self._asking.read(data):
                exchange = self._exchanges.get(stream)
                if kind == frames.RST_STREAM:
                    self._hung_up(stream, now_s, now_s)
                    continue
                if exchange is None and kind == frames.HEADERS:
                    exchange = self._begin(stream, fields, now_s)
                if exchange is not None:
                    self._terms.keep(exchange.noted, payload)
                    exchange.asked(payload, now_s)
                    exchange.noted.whole = end
        except _LostError:
            self.give_up()

    def from_server(self, data: bytes, now_s: float) -> None:
        """Take what the server sent."""
        if self.deaf:
            return
        try:
            for kind, stream, end, payload, fields in self._answering.read(data):
                exchange = self._exchanges.get(stream)
                if exchange is None:
                    continue
                noted = exchange.noted
                if kind == frames.RST_STREAM:
                    del self._exchanges[stream]
                    self._terms.tell(noted, now_s, Ended.CUT, exchange.answer())
                    continue
                exchange.head(fields)
                if 100 <= exchange.status < 200:
                    continue
                if noted.first_byte_s is None:
                    noted.first_byte_s = now_s
                exchange.data(payload)
                if end:
                    del self._exchanges[stream]
                    self._terms.tell(noted, now_s, exchange.ended(), exchange.answer())
        except _LostError:
            self.give_up()

    def caller_left(self, now_s: float) -> None:
        """The caller sends nothing more."""
        if self._caller_left_s is None:
            self._caller_left_s = now_s

    def server_left(self, now_s: float) -> None:
        """The server sends nothing more: what has no whole answer by now will have none."""
        if self.deaf:
            return
        for stream, exchange in list(self._exchanges.items()):
            if self._caller_left_s is not None:
                self._hung_up(stream, self._caller_left_s, now_s)
            else:
                self._terms.tell(exchange.noted, now_s, Ended.CUT, exchange.answer())
        self._exchanges.clear()
        self.deaf = True

    def _begin(self, stream: int, fields: Fields, now_s: float) -> _Exchange | None:
        """Note a request; None where it is none that could be sent again."""
        pseudo = {name: value for name, value in fields if name.startswith(":")}
        method, target = pseudo.get(":method", ""), pseudo.get(":path", "")
        if not target or method == "CONNECT":
            return None
        if len(self._exchanges) >= MOST_STREAMS:
            raise _LostError
        lines = [f"{name}: {_printable(name, value)}" for name, value in fields if not name.startswith(":")]
        kind = next((value for name, value in fields if name == "content-type"), "")
        request_id = next((value for name, value in fields if name == "x-request-id"), "")
        protocol: Protocol = "grpc" if kind.startswith("application/grpc") else "h2"
        noted = self._terms.begin(method, target, lines, request_id, now_s, protocol)
        exchange = self._exchanges[stream] = _Exchange(noted)
        return exchange

    def _hung_up(self, stream: int, left_s: float, now_s: float) -> None:
        exchange = self._exchanges.pop(stream, None)
        if exchange is not None:
            hung_up_s = max(0.0, left_s - exchange.noted.began_s)
            self._terms.tell(exchange.noted, now_s, Ended.HUNG_UP, exchange.answer(), hung_up_s)

    def give_up(self) -> None:
        """Listen no more: what was under way is not known to have ended in any way."""
        if self.deaf:
            return
        self.deaf = True
        self._terms.unreadable += 1
        for exchange in self._exchanges.values():
            self._terms.forget(exchange.noted)
        self._exchanges.clear()
