"""Frames of HTTP/2 as bytes (RFC 9113, sections 4, 6 and 7)."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client sends first (RFC 9113 3.4)."""
HEAD_BYTES: Final = 9
HEAD: Final = struct.Struct(">HBBBL")
"""A frame's head: length (upper 16 bits, lower 8), type, flags, stream id with its reserved bit."""

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

FRAME_BYTES: Final = 16384
"""Largest frame taken here, and sent: the least that every peer has to take (RFC 9113 4.2)."""
WINDOW: Final = 65535
"""Initial windows (RFC 9113 6.9.2)."""
MAX_WINDOW: Final = (1 << 31) - 1
MAX_STREAM: Final = (1 << 31) - 1


class Code(IntEnum):
    """Error codes (RFC 9113 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


def name_of(code: int) -> str:
    """Return an error code's name, or its number where it has none."""
    return Code(code).name if code in Code.__members__.values() else str(code)


class ProtocolError(Exception):
    """The peer broke the protocol in a way that ends its connection (RFC 9113 5.4.1)."""

    def __init__(self, code: Code, detail: str) -> None:
        super().__init__(detail)
        self.code = code


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return one frame."""
    length = len(payload)
    return HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream_id) + payload


def headers_frames(stream_id: int, block: bytes, *, end: bool) -> bytes:
    """Return a header block as HEADERS and, where it is long, CONTINUATION frames."""
    flags = END_STREAM if end else 0
    if len(block) <= FRAME_BYTES:
        return frame(HEADERS, flags | END_HEADERS, stream_id, block)
    out = [frame(HEADERS, flags, stream_id, block[:FRAME_BYTES])]
    for start in range(FRAME_BYTES, len(block), FRAME_BYTES):
        last = END_HEADERS if start + FRAME_BYTES >= len(block) else 0
        out.append(frame(CONTINUATION, last, stream_id, block[start : start + FRAME_BYTES]))
    return b"".join(out)


def settings_frame(values: dict[int, int]) -> bytes:
    """Return a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HL", key, value) for key, value in values.items()))


def window_update(stream_id: int, by: int) -> bytes:
    """Return a WINDOW_UPDATE frame."""
    return frame(WINDOW_UPDATE, 0, stream_id, by.to_bytes(4, "big"))


def reset_frame(stream_id: int, code: int) -> bytes:
    """Return a RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def goaway_frame(last_id: int, code: int, detail: str = "") -> bytes:
    """Return a GOAWAY frame; ``detail`` is for people."""
    return frame(GOAWAY, 0, 0, struct.pack(">LL", last_id, code) + detail.encode()[:256])
