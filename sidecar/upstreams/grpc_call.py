"""One gRPC call on a connection of its own, for what a sidecar itself asks workers: health, load, warm-up requests."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from sidecar.grpc.statuses import Status
from sidecar.http2 import frames
from sidecar.http2.frames import (
    FRAME_BYTES,
    HEAD,
    PREFACE,
    WINDOW,
    ProtocolError,
    frame,
    headers_frames,
    settings_frame,
    window_update,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Sequence

    from sidecar.http2.hpack import Decoder, Field

UNIMPLEMENTED: Final = "12"
HEALTH: Final = b"/grpc.health.v1.Health/Check"
_LIST_BYTES: Final = 65536
_FIELDS: Final = 100
_HEAD_BYTES: Final = 5
"""A gRPC message's own head: whether it is compressed, and its length."""
_SERVING: Final = b"\x08\x01"
_NAMES: Final = {str(int(one)): one.name for one in Status}
_SETTING: Final = struct.Struct(">HL")


class CallError(ValueError):
    """The worker ended the call with another status than OK; ``status`` is its number as text, or ``missing``.

    ``message`` is what it said of it, ``said`` all of it for people.
    """

    def __init__(self, status: str, message: str = "") -> None:
        super().__init__(f"grpc-status {status}")
        self.status = status
        self.message = message

    @property
    def said(self) -> str:
        """Status, its name and the message."""
        name = _NAMES.get(self.status)
        return f"{self}{f' ({name})' if name else ''}{f': {self.message}' if self.message else ''}"


class TooLongError(ValueError):
    """A message of the answer is longer than is read."""


async def check(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, authority: str) -> bool:
    """Ask for the health of the server as a whole; return whether it is SERVING. Time is the caller's to bound.

    Raises:
        ValueError: it answered with another status than OK (the text names it), or not as HTTP/2 has it.
        EOFError: it closed the connection before it answered.
    """
    said = b""
    try:
        async for message in call(reader, writer, authority, HEALTH, b"", most=1024):
            said = said or message
    except CallError as error:
        raise ValueError(f"health check: {error}") from None
    return said[:2] == _SERVING


async def call(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    authority: str,
    path: bytes,
    request: bytes,
    *,
    most: int,
    fields: Sequence[Field] = (),
) -> AsyncIterator[bytes]:
    """Send one message to a method and yield those of its answer, each of ``most`` bytes at most, to its end with OK.

    ``fields`` are more of its metadata. Time is the caller's to bound.

    Raises:
        CallError: it ended with another status.
        TooLongError: a message has more than ``most`` bytes.
        ValueError: what came is not gRPC, or compressed.
        EOFError: the worker closed the connection.
    """
    from sidecar.http2.hpack import Decoder, Encoder  # its table is a large part of a start: only who calls needs it

    head: list[Field] = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", authority.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"warmroute-probe"),
        *fields,
    ]
    writer.write(
        PREFACE + settings_frame({frames.ENABLE_PUSH: 0}) + headers_frames(1, Encoder().encode(head), end=False)
    )
    sending = _Sending(writer, b"\x00" + len(request).to_bytes(4, "big") + request)
    sending.go_on()
    decoder = Decoder(_LIST_BYTES, _FIELDS)
    block = b""
    body = bytearray()  # of what is here, whose start goes with each message
    ended = False
    while True:
        high, low, kind, flags, stream = HEAD.unpack(await reader.readexactly(frames.HEAD_BYTES))
        length = high << 8 | low
        if length > FRAME_BYTES:
            raise ValueError("what came is not HTTP/2")
        payload = await reader.readexactly(length)
        if flags & frames.PADDED and kind in (frames.DATA, frames.HEADERS):
            raise ValueError("padded frames")
        if kind == frames.SETTINGS and not flags & frames.ACK:
            writer.write(frame(frames.SETTINGS, frames.ACK, 0))
            sending.take_settings(payload)
        elif kind == frames.WINDOW_UPDATE and length == 4:
            sending.take_window(stream, int.from_bytes(payload, "big"))
        elif kind == frames.PING and not flags & frames.ACK:
            writer.write(frame(frames.PING, frames.ACK, 0, payload))
        elif kind == frames.GOAWAY or (kind == frames.RST_STREAM and stream == 1):
            raise ValueError("it refused the call")
        elif kind == frames.DATA and stream == 1:
            if payload:
                writer.write(window_update(0, length) + window_update(1, length))
            body += payload
            while len(body) >= _HEAD_BYTES:
                size = int.from_bytes(body[1:_HEAD_BYTES], "big")
                if size > most:
                    raise TooLongError(f"a message of over {most} bytes")
                if body[0]:
                    raise ValueError("a compressed message, for which nobody asked")
                if len(body) < _HEAD_BYTES + size:
                    break
                message = bytes(memoryview(body)[_HEAD_BYTES : _HEAD_BYTES + size])
                del body[: _HEAD_BYTES + size]
                yield message
            if flags & frames.END_STREAM:
                raise CallError("missing")
        elif kind in (frames.HEADERS, frames.CONTINUATION) and stream == 1:
            block += payload[5:] if kind == frames.HEADERS and flags & frames.WITH_PRIORITY else payload
            ended = ended or (kind == frames.HEADERS and flags & frames.END_STREAM != 0)
            if len(block) > _LIST_BYTES:
                raise ValueError("a head over the limits")
            if flags & frames.END_HEADERS:
                said = _decoded(decoder, block)
                block = b""
                if said.get(b":status", b"200") != b"200" and not ended:
                    raise ValueError(f"HTTP {said[b':status'][:3].decode('latin-1')}, which is no gRPC")
                if ended:
                    status = said.get(b"grpc-status", b"missing")[:16].decode("latin-1")
                    if status != "0":
                        raise CallError(status, unquote(said.get(b"grpc-message", b"").decode("latin-1")))
                    return


def _decoded(decoder: Decoder, block: bytes) -> dict[bytes, bytes]:
    try:
        return {field[0]: field[1] for field in decoder.decode(block)}
    except ProtocolError as error:
        raise ValueError(str(error)) from None


class _Sending:
    """A request's body on its way, as far as the worker's windows allow (RFC 9113 6.9)."""

    def __init__(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        self._writer = writer
        self._left = memoryview(data)
        self._initial = self._stream = self._connection = WINDOW

    def take_settings(self, payload: bytes) -> None:
        """Go by the worker's settings."""
        for start in range(0, len(payload) - len(payload) % _SETTING.size, _SETTING.size):
            key, value = _SETTING.unpack_from(payload, start)
            if key == frames.INITIAL_WINDOW_SIZE:
                self._stream += value - self._initial
                self._initial = value
        self.go_on()

    def take_window(self, stream: int, by: int) -> None:
        """Take that so much more may be sent."""
        if stream:
            self._stream += by
        else:
            self._connection += by
        self.go_on()

    def go_on(self) -> None:
        """Send what may be sent now."""
        while self._left:
            size = min(len(self._left), FRAME_BYTES, self._stream, self._connection)
            if size <= 0:
                return
            piece, self._left = self._left[:size], self._left[size:]
            self._stream -= size
            self._connection -= size
            self._writer.write(frame(frames.DATA, 0 if self._left else frames.END_STREAM, 1, bytes(piece)))
