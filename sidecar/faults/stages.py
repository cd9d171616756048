"""What a fault does to the bytes that go one way: a stage that says which piece passes when. Pure.

A pipe is a row of stages, each of which is given what the one before it lets pass, and when. Nothing here waits: the
moments are computed, so that stages can stand behind each other, and be tested without a clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class End(IntEnum):
    """What comes behind a piece."""

    NONE = 0  # more
    ENDS = 1  # the end of the connection, as its other side made it
    CLOSES = 2  # an end in order
    RESETS = 3  # a reset


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes, the moment (seconds, of any clock) before which they do not pass, and what comes behind them.

    ``head``: instead of bytes it is a head that stands apart from them, as gRPC's do; HTTP/1.1's are bytes.
    """

    at: float
    data: bytes
    end: End = End.NONE
    head: object | None = None


class Stage:
    """What is done to one direction of one attempt. As it stands, nothing."""

    def data(self, data: bytes, at: float) -> Iterable[Piece]:
        """Say what becomes of bytes that come ``at`` this moment."""
        yield Piece(at, data)

    def head(self, head: object, at: float) -> Iterable[Piece]:
        """Say what becomes of a head that stands apart from the bytes."""
        yield Piece(at, b"", head=head)

    def ends(self, at: float) -> Iterable[Piece]:
        """Say what becomes of the end of the connection."""
        yield Piece(at, b"", End.ENDS)

    def take(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Yield what becomes of several pieces; none passes before the one ahead of it does."""
        for piece in pieces:
            if piece.head is not None:
                yield from self.head(piece.head, piece.at)
            if piece.data:
                yield from self.data(piece.data, piece.at)
            if piece.end is End.ENDS:
                yield from self.ends(piece.at)
            elif piece.end is not End.NONE:
                yield Piece(piece.at, b"", piece.end)


class Pipe:
    """A row of stages."""

    def __init__(self, stages: Sequence[Stage] = ()) -> None:
        self._stages = tuple(stages)
        self._last = float("-inf")
        self.over = False
        """It has said where the connection ends; nothing passes behind that."""

    def data(self, data: bytes, at: float) -> list[Piece]:
        """Return what becomes of bytes."""
        return self._take([Piece(at, data)])

    def head(self, head: object, at: float) -> list[Piece]:
        """Return what becomes of a head that stands apart from the bytes."""
        return self._take([Piece(at, b"", head=head)])

    def ends(self, at: float) -> list[Piece]:
        """Return what becomes of the end."""
        return self._take([Piece(at, b"", End.ENDS)])

    def _take(self, pieces: Iterable[Piece]) -> list[Piece]:
        for stage in self._stages:
            pieces = stage.take(pieces)
        out: list[Piece] = []
        for piece in pieces:
            if self.over:
                break
            self._last = max(self._last, piece.at)
            out.append(Piece(self._last, piece.data, piece.end, piece.head))
            self.over = piece.end is not End.NONE
        return out
