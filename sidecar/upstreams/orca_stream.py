"""Load reports out of band: a call of ``xds.service.orca.v3.OpenRcaService/StreamCoreMetrics``, followed to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sidecar.http2 import frames
from sidecar.http2.frames import HEAD, PREFACE, ProtocolError, frame, headers_frames, settings_frame, window_update
from sidecar.http2.hpack import Decoder, Encoder
from sidecar.upstreams.orca import MAX_BYTES

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator

    from sidecar.http2.hpack import Field

PATH: Final = b"/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics"
UNIMPLEMENTED: Final = 12
_LIST_BYTES: Final = 65536
_FIELDS: Final = 100
_HEAD_BYTES: Final = 5
"""A gRPC message's own head: whether it is compressed, and its length."""


class NotServedError(ValueError):
    """The server does not know the service: there is no use in asking it soon again."""


def request_bytes(interval_s: float) -> bytes:
    """Return an ``OrcaLoadReportRequest`` that asks for a report so often."""
    seconds = int(interval_s)
    nanos = int((interval_s - seconds) * 1e9)
    duration = (b"\x08" + _varint(seconds) if seconds else b"") + (b"\x10" + _varint(nanos) if nanos else b"")
    return b"\x0a" + _varint(len(duration)) + duration


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


async def stream_reports(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, authority: str, interval_s: float
) -> AsyncIterator[bytes]:
    """Ask for reports every ``interval_s`` and yield each as it comes, an ``OrcaLoadReport`` in bytes.

    Raises:
        NotServedError: the server does not know the service.
        ValueError: it ended the call, or answered with what is no gRPC, too large or compressed.
        EOFError: it closed the connection.
    """
    fields: list[Field] = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", PATH),
        (b":authority", authority.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"warmroute-probe"),
    ]
    asked = request_bytes(interval_s)
    writer.write(
        PREFACE
        + settings_frame({frames.ENABLE_PUSH: 0})
        + headers_frames(1, Encoder().encode(fields), end=False)
        + frame(frames.DATA, frames.END_STREAM, 1, b"\x00" + len(asked).to_bytes(4, "big") + asked)
    )
    decoder = Decoder(_LIST_BYTES, _FIELDS)
    block = body = b""
    ended = False
    while True:
        high, low, kind, flags, stream = HEAD.unpack(await reader.readexactly(frames.HEAD_BYTES))
        length = high << 8 | low
        if length > frames.FRAME_BYTES:
            raise ValueError("what came is not HTTP/2")
        payload = await reader.readexactly(length)
        if kind == frames.SETTINGS and not flags & frames.ACK:
            writer.write(frame(frames.SETTINGS, frames.ACK, 0))
        elif kind == frames.PING and not flags & frames.ACK:
            writer.write(frame(frames.PING, frames.ACK, 0, payload))
        elif kind == frames.GOAWAY or (kind == frames.RST_STREAM and stream == 1):
            raise ValueError("it ended the call")
        elif kind == frames.DATA and stream == 1:
            if flags & frames.PADDED:
                raise ValueError("padded frames")
            if payload:
                writer.write(window_update(0, length) + window_update(1, length))
            body += payload
            while len(body) >= _HEAD_BYTES:
                size = int.from_bytes(body[1:_HEAD_BYTES], "big")
                if body[0] or size > MAX_BYTES:
                    raise ValueError(f"a report that is compressed or over {MAX_BYTES} bytes")
                if len(body) < _HEAD_BYTES + size:
                    break
                yield body[_HEAD_BYTES : _HEAD_BYTES + size]
                body = body[_HEAD_BYTES + size :]
        elif kind in (frames.HEADERS, frames.CONTINUATION) and stream == 1:
            if flags & (frames.PADDED | frames.WITH_PRIORITY) and kind == frames.HEADERS:
                raise ValueError("padded frames")
            block += payload
            ended = ended or (kind == frames.HEADERS and flags & frames.END_STREAM != 0)
            if len(block) > _LIST_BYTES:
                raise ValueError("a head over the limits")
            if flags & frames.END_HEADERS:
                _judge(decoder, block, ended=ended)
                block = b""


def _judge(decoder: Decoder, block: bytes, *, ended: bool) -> None:
    try:
        said = {field[0]: field[1] for field in decoder.decode(block)}
    except ProtocolError as error:
        raise ValueError(str(error)) from None
    status = said.get(b"grpc-status", b"")
    if status == b"%d" % UNIMPLEMENTED or said.get(b":status", b"200") != b"200":
        raise NotServedError("the server does not know OpenRcaService")
    if ended:
        raise ValueError(f"it ended the call: grpc-status {(status or b'missing')[:16].decode('latin-1')}")
