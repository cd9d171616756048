"""A gRPC call of a sidecar's own, with a worker that is played by frames."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from sidecar.http2 import frames
from sidecar.http2.frames import frame, headers_frames
from sidecar.http2.hpack import Encoder
from sidecar.upstreams.grpc_call import call

if TYPE_CHECKING:
    from collections.abc import Sequence

PIECE_BYTES: Final = 16384


class Piece(bytes):
    """A frame's payload that knows how much was copied to put it behind what had come before."""

    copied = 0

    def __radd__(self, left: object) -> bytes:
        """Count what is copied where two values become a third one; what grows in place does not."""
        if isinstance(left, bytes):
            Piece.copied += len(left)
        return cast("bytes", NotImplemented)


class Worker:
    """Gives these frames, whatever it is asked: as much of a reader and a writer as a call has use for."""

    def __init__(self, answer: Sequence[bytes]) -> None:
        self._left = [part for one in answer for part in (one[: frames.HEAD_BYTES], Piece(one[frames.HEAD_BYTES :]))]

    async def readexactly(self, size: int) -> bytes:
        """Return the next head or payload."""
        part = self._left.pop(0)
        assert len(part) == size
        return part

    def write(self, data: bytes) -> None:
        """Take what it is told."""


def test_a_long_answer_is_read_without_copying_it_for_each_of_its_frames() -> None:
    encoder = Encoder()
    size = 64 * PIECE_BYTES
    data = b"\x00" + size.to_bytes(4, "big") + bytes(size)
    answer = [
        headers_frames(1, encoder.encode([(b":status", b"200")]), end=False),
        *(frame(frames.DATA, 0, 1, data[at : at + PIECE_BYTES]) for at in range(0, len(data), PIECE_BYTES)),
        headers_frames(1, encoder.encode([(b"grpc-status", b"0")]), end=True),
    ]

    async def main() -> list[int]:
        worker = Worker(answer)
        reader, writer = cast("asyncio.StreamReader", worker), cast("asyncio.StreamWriter", worker)
        return [len(one) async for one in call(reader, writer, "w", b"/a.B/C", b"", most=size)]

    Piece.copied = 0
    assert asyncio.run(main()) == [size]
    assert Piece.copied < size
