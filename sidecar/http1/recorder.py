"""Keeps a copy of an answer that passes and may be kept (``sidecar.cache``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.upstreams.exchanging import Sink


class Recorder:
    """Stands in front of a caller's transport while an answer passes that may be kept.

    ``whole``: no more came than is kept. Pieces are passed on first, as they come.
    """

    __slots__ = ("_left", "_pieces", "_sink", "whole")

    def __init__(self, sink: Sink, most_bytes: int) -> None:
        self._sink: Final = sink
        self._left = most_bytes
        self._pieces: list[bytes] = []
        self.whole = True

    def write(self, data: bytes) -> None:
        """Pass a piece on."""
        self._sink.write(data)
        self._keep(data)

    def writelines(self, list_of_data: Iterable[bytes | memoryview]) -> None:
        """Pass several on."""
        pieces = list(list_of_data)
        self._sink.writelines(pieces)
        for piece in pieces:
            self._keep(bytes(piece))

    def _keep(self, data: bytes) -> None:
        if self.whole:
            self._left -= len(data)
            if self._left < 0:
                self.whole = False
                self._pieces.clear()
            else:
                self._pieces.append(data)

    def body(self) -> bytes:
        """Return what came behind the head."""
        return b"".join(self._pieces).partition(b"\r\n\r\n")[2]
