"""One ``grpc.health.v1.Health/Check`` on a connection of its own, for readiness probes of gRPC workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sidecar.http2 import frames
from sidecar.http2.frames import HEAD, PREFACE, ProtocolError, frame, headers_frames, settings_frame
from sidecar.http2.hpack import Decoder, Encoder

if TYPE_CHECKING:
    import asyncio

    from sidecar.http2.hpack import Field

_MOST_FRAMES: Final = 256
_MOST_BYTES: Final = 1024
_LIST_BYTES: Final = 65536
_FIELDS: Final = 100
_SERVING: Final = b"\x08\x01"


async def check(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, authority: str) -> bool:
    """Ask for the health of the server as a whole; return whether it is SERVING. Time is the caller's to bound.

    Raises:
        ValueError: it answered with another status than OK (the text names it), or not as HTTP/2 has it.
        EOFError: it closed the connection before it answered.
    """
    fields: list[Field] = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/grpc.health.v1.Health/Check"),
        (b":authority", authority.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"warmroute-probe"),
    ]
    writer.write(
        PREFACE
        + settings_frame({frames.ENABLE_PUSH: 0})
        + headers_frames(1, Encoder().encode(fields), end=False)
        + frame(frames.DATA, frames.END_STREAM, 1, bytes(5))
    )
    decoder = Decoder(_LIST_BYTES, _FIELDS)
    block = body = b""
    ended = False
    for _ in range(_MOST_FRAMES):
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
            raise ValueError("it refused the call")
        elif kind == frames.DATA and stream == 1:
            body += payload
        elif kind in (frames.HEADERS, frames.CONTINUATION) and stream == 1:
            block += payload
            ended = ended or flags & frames.END_STREAM != 0
            if flags & frames.END_HEADERS:
                status = _status(decoder, block)
                block = b""
                if ended:
                    if status != b"0":
                        raise ValueError(f"health check: grpc-status {(status or b'missing')[:16].decode('latin-1')}")
                    return body[5:7] == _SERVING
        if len(body) > _MOST_BYTES or len(block) > _LIST_BYTES:
            break
    raise ValueError("the answer to a health check is too long")


def _status(decoder: Decoder, block: bytes) -> bytes:
    """Return the ``grpc-status`` of a header block, empty where it has none."""
    try:
        fields = decoder.decode(block)
    except ProtocolError as error:
        raise ValueError(str(error)) from None
    return next((field[1] for field in fields if field[0] == b"grpc-status"), b"")
