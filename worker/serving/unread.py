"""Answers on their way out, within limits: of all that are held at once, and of the time that a caller takes nothing.

How large an answer becomes is known once it is made, and then it is sent. So the limit of all keeps the next request
from running, and what is over it is at most what was running by then.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from worker.log import EventLog

UNREAD_S: Final = 30.0
DRAINING_S: Final = 5.0
"""How long a caller may take nothing while the worker drains, at most."""
LOOK_S: Final = 1.0
LEAST_BYTES_PER_S: Final = 64 << 10
"""An answer on a connection that carries others, too, has its time and a second more for each so many bytes."""
_COUNT: Final = struct.Struct("i")


class _Watched:
    """One answer that does not fit into what the kernel takes."""

    __slots__ = ("before", "begun", "count", "cut", "left", "since")

    def __init__(self, left: Callable[[], int | None], cut: Callable[[], None], now: float, before: int) -> None:
        self.left = left
        self.cut = cut
        self.before = before
        self.begun = self.since = now
        self.count: int | None = None
        """How large it is, where it may be stuck while its connection is not."""


class Unread:
    """The answers that callers have not taken yet. Used on the event loop only."""

    def __init__(
        self,
        together_bytes: int = 1 << 62,
        unread_s: float = UNREAD_S,
        log: EventLog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``together_bytes``: with as many held, nothing more is run. ``unread_s``: 0: for ever.

        ``clock``: monotonic seconds.
        """
        self._together_bytes = together_bytes
        self._unread_s = unread_s
        self._log = log
        self._clock = clock
        self._watched: set[_Watched] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.held_bytes = 0
        self.cut = 0
        """How many were cut because nobody took them."""
        self.draining = False
        """Have a caller take something within :data:`DRAINING_S`."""

    @property
    def full(self) -> str:
        """Why nothing more is run now; empty where it may be."""
        if self.held_bytes < self._together_bytes:
            return ""
        return f"the worker holds {self.held_bytes} bytes of answers that nobody has taken yet, no room for more"

    @property
    def patience_s(self) -> float:
        """How long a caller may take nothing; 0: for ever."""
        return min(self._unread_s or DRAINING_S, DRAINING_S) if self.draining else self._unread_s

    @property
    def watched(self) -> int:
        """How many do not fit into what the kernel takes."""
        return len(self._watched)

    @contextmanager
    def hold(self, count: int) -> Iterator[None]:
        """Count an answer of ``count`` bytes until the end of the ``with`` block."""
        self.held_bytes += count
        try:
            yield
        finally:
            self.held_bytes -= count

    @contextmanager
    def watch(self, left: Callable[[], int], cut: Callable[[], None]) -> Iterator[None]:
        """Call ``cut`` where its caller takes nothing for too long; until the end of the ``with`` block.

        ``left``: how many bytes are not taken yet.
        """
        with self._watching(_Watched(left, cut, self._clock(), left())):
            yield

    @contextmanager
    def sending(self, count: int, taken: Callable[[], int | None], cut: Callable[[], None]) -> Iterator[None]:
        """Count an answer of ``count`` bytes, on a connection that others share, until the end of the ``with`` block.

        It is cut where its connection takes nothing for too long. One that takes something, which may be of others, is
        left alone until the worker holds as much as it may, or drains; then it has the time of one that takes nothing,
        and a second more for each 64 KiB.

        ``taken``: how many bytes the connection has taken since it began; None: it is not told, and cannot be cut.
        """
        began_at: int | None = None

        def left() -> int | None:
            nonlocal began_at
            now_at = taken()
            if now_at is None:
                return None
            if began_at is None:
                began_at = now_at
            return count - (now_at - began_at)

        one = _Watched(left, cut, self._clock(), count)
        one.count = count
        with self.hold(count), self._watching(one):
            yield

    @contextmanager
    def _watching(self, one: _Watched) -> Iterator[None]:
        self._watched.add(one)
        self._look_later()
        try:
            yield
        finally:
            self._watched.discard(one)

    def look(self) -> None:
        """Cut what has been on its way for too long."""
        now, patience_s = self._clock(), self.patience_s
        short = self.draining or bool(self.full)
        late: list[_Watched] = []
        for one in self._watched:
            left = one.left()
            if left is None:
                continue
            if left != one.before:
                one.before, one.since = left, now
            stuck = now - one.since >= patience_s
            if not stuck and short and one.count is not None:
                stuck = now - one.begun >= patience_s + one.count / LEAST_BYTES_PER_S
            if stuck and patience_s:
                late.append(one)
        for one in late:
            self._watched.discard(one)
            one.cut()
        if late:
            self.note_cut(len(late), sum(max(0, one.before) for one in late), patience_s)

    def note_cut(self, answers: int, left_bytes: int, after_s: float) -> None:
        """Count and tell answers that were cut."""
        self.cut += answers
        if self._log is not None:
            remedy = "read answers, or ask for less; --answer-unread-s is how long the worker waits"
            self._log.warning(
                "answers.cut", answers=answers, left_bytes=left_bytes, after_s=round(after_s, 3), remedy=remedy
            )

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._timed)

    def _timed(self) -> None:
        self._timer = None
        self.look()
        if self._watched:
            self._look_later()


def left_of(transport: asyncio.WriteTransport) -> int:
    """Return how many bytes written to a connection its other end has not taken: here, and in the kernel."""
    waiting = transport.get_write_buffer_size()
    sock = transport.get_extra_info("socket")
    try:
        (queued,) = _COUNT.unpack(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(_COUNT.size)))
        return waiting + int(queued)
    except (AttributeError, OSError):  # closed meanwhile, or not told
        return waiting
