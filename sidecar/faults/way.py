"""One direction of an attempt that faults strike, on a loop: what passes, when its time has come."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from sidecar.faults.stages import Piece, Pipe


class Way:
    """One direction: what is held back of it, and what lets it go when its time has come, to ``deliver``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pipe: Pipe, deliver: Callable[[Piece], None]) -> None:
        self._loop = loop
        self._pipe = pipe
        self._deliver = deliver
        self._queue: deque[Piece] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._delivering = False
        self.stopped = False  # whoever it is for takes nothing just now
        self.held_bytes = 0

    def data(self, data: bytes) -> int:
        """Take bytes; return how many of them are lost, and never pass."""
        return len(data) - self._enter(self._pipe.data(data, self._loop.time()))

    def head(self, head: object) -> None:
        """Take a head that stands apart from the bytes."""
        self._enter(self._pipe.head(head, self._loop.time()))

    def ends(self) -> None:
        """Take the end of the connection."""
        self._enter(self._pipe.ends(self._loop.time()))

    def _enter(self, pieces: Iterable[Piece]) -> int:
        size = 0
        for piece in pieces:
            self._queue.append(piece)
            size += len(piece.data)
        self.held_bytes += size
        self.run()
        return size

    def run(self) -> None:
        """Let pass whose time has come."""
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._queue and not self.stopped and self._queue[0].at <= self._loop.time():
                piece = self._queue.popleft()
                self.held_bytes -= len(piece.data)
                self._deliver(piece)
        finally:
            self._delivering = False
        if self._queue and not self.stopped and self._timer is None:
            self._timer = self._loop.call_at(self._queue[0].at, self._due)

    def _due(self) -> None:
        self._timer = None
        self.run()

    def clear(self) -> None:
        """Forget everything."""
        self._queue.clear()
        self.held_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
