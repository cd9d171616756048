"""Messages of gRPC calls, each behind a byte that says whether it is compressed, and its length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.grpc.matching import MESSAGE_HEAD

if TYPE_CHECKING:
    from collections.abc import Iterator


def framed(content: bytes, *, compressed: bool = False) -> bytes:
    """Return a message as it is sent."""
    return bytes((compressed,)) + len(content).to_bytes(4, "big") + content


def split(data: bytes) -> Iterator[tuple[bool, bytes]]:
    """Yield whether each whole message is compressed, and what it holds."""
    position = 0
    while position + MESSAGE_HEAD <= len(data):
        begins = position + MESSAGE_HEAD
        ends = begins + int.from_bytes(data[position + 1 : begins], "big")
        if ends > len(data):
            return
        yield data[position] & 1 == 1, data[begins:ends]
        position = ends
