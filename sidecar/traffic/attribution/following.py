"""Files that grow, read as they do: also across their rotation, and where they are cut and begun anew.

A file that was moved away is read to its end, and for a moment longer, before the one in its place is: who writes it
may not have noticed yet. Pipes are read as they are, so lines of another machine may come through ``ssh``.
"""

from __future__ import annotations

import math
import os
import stat
from collections import deque
from typing import TYPE_CHECKING, Final

from sidecar.traffic.attribution.files import MAX_LINE_BYTES
from sidecar.traffic.traces.trace import TraceError

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.traffic.attribution.files import Lines
    from sidecar.traffic.attribution.joining import Half

PIECE_BYTES: Final = 1 << 18
MOVED_S: Final = 0.2
"""How long a file that was moved away is still read after nothing more came."""


class Tail:
    """The lines of what is at a path, as they come. ``read`` takes monotonic seconds; infinity: there is no later."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = -1
        self._number = 0
        self._position = 0
        self._partial = bytearray()
        self._passing = False
        self._moved_at: float | None = None
        self.fresh = False
        """True where the lines that were read last are the first of a file."""
        self.missing = True
        self.long = 0
        """Lines that were passed over for their length, and ends of files that are no whole line."""

    def close(self) -> None:
        """Read no more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def read(self, now_s: float) -> list[tuple[int, bytes]]:
        """Return the whole lines that are there, with their numbers; nothing where there is none.

        More than about :data:`PIECE_BYTES` are left for the next time.

        Raises:
            OSError: it cannot be read.
        """
        self.fresh = False
        if self._file < 0 and not self._open():
            return []
        self.fresh = self._number == 0
        data = self._piece()
        if not data and self._changed(now_s):
            self.fresh = True
            data = self._piece()
        found = self._cut(data)
        pieces = 1
        while data and not found and pieces < MAX_LINE_BYTES // PIECE_BYTES:  # a long line
            data = self._piece()
            found = self._cut(data)
            pieces += 1
        return found

    def _open(self) -> bool:
        try:
            self._file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            self.missing = True
            return False
        self.missing = False
        self._anew()
        return True

    def _anew(self) -> None:
        self.long += bool(self._partial)
        self._partial.clear()
        self._passing = False
        self._number = self._position = 0
        self._moved_at = None

    def _piece(self) -> bytes:
        try:
            data = os.read(self._file, PIECE_BYTES)
        except BlockingIOError:  # a pipe
            return b""
        self._position += len(data)
        if data:
            self._moved_at = None
        return data

    def _changed(self, now_s: float) -> bool:
        """All was read; return whether another file is in its place, or the same begun anew."""
        ours = os.fstat(self._file)
        if not stat.S_ISREG(ours.st_mode):
            return False
        if ours.st_size < self._position:
            os.lseek(self._file, 0, os.SEEK_SET)
            self._anew()
            return True
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False
        if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
            return False
        if self._moved_at is None:
            self._moved_at = now_s
        if now_s < math.inf and now_s - self._moved_at < MOVED_S:
            return False
        self.close()
        return self._open()

    def _cut(self, data: bytes) -> list[tuple[int, bytes]]:
        if not data:
            return []
        *whole, rest = data.split(b"\n")
        found = []
        for line in whole:
            self._number += 1
            if self._passing:
                self._passing = False
            else:
                found.append((self._number, bytes(self._partial) + line if self._partial else line))
            self._partial.clear()
        if not self._passing:
            self._partial += rest
            if len(self._partial) > MAX_LINE_BYTES:
                self._partial.clear()
                self._passing = True
                self.long += 1
        return found


class Source:
    """Halves of one followed file. Until one of its lines was good, a bad one is an error; later it is counted."""

    def __init__(self, path: Path, lines: Lines) -> None:
        self._tail = Tail(path)
        self._lines = lines
        self._good = False
        self.heads: deque[Half] = deque()
        self._unreadable = 0
        self.first_unreadable = ""

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._tail.path

    @property
    def missing(self) -> bool:
        """True where there is no such file yet."""
        return self._tail.missing

    @property
    def unreadable(self) -> int:
        """Lines that made no sense, or came to no end."""
        return self._unreadable + self._tail.long

    def fill(self, now_s: float) -> bool:
        """Read where nothing is left of what was read before; return whether there is a half.

        Raises:
            TraceError: it cannot be read, or is no such file.
        """
        while not self.heads:
            try:
                lines = self._tail.read(now_s)
            except OSError as error:
                raise TraceError(f"{self.path}: {error.strerror}") from None
            if self._tail.fresh and lines:
                self._lines.begin()
            for number, line in lines:
                if line.strip():
                    self._take(number, line)
            if not lines:
                break
        return bool(self.heads)

    def close(self) -> None:
        """Read no more."""
        self._tail.close()

    def _take(self, number: int, line: bytes) -> None:
        try:
            half = self._lines.half(f"{self.path}:{number}", line)
        except TraceError as error:
            if not self._good:
                raise
            self._unreadable += 1
            self.first_unreadable = self.first_unreadable or str(error)
            return
        self._good = True
        if half is not None:
            self.heads.append(half)
