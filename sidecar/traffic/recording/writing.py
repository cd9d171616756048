"""The file that is recorded into, written by a thread: a slow or full disk loses lines, and holds no traffic up."""

from __future__ import annotations

import errno
import os
import queue
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sidecar.traffic.recording.noting import Told
    from sidecar.traffic.traces.recorded import Opening

MAX_WAITING_BYTES: Final = 64 << 20
"""Of requests that are not written yet."""
CLOSE_S: Final = 30.0
"""How long the end waits for a disk that hangs."""


class TraceFile:
    """A new file, readable by its owner alone: traces hold what callers sent.

    ``lines`` were written, ``lost`` had no room in memory or in the file, or the disk did not take them; ``why`` says
    what was the matter last. Where it is to ``rotate``, a file that has its size becomes ``FILE.1`` and a new one
    begins. Raises OSError where the file cannot be made, also where there is one.
    """

    def __init__(self, path: Path, opening: Callable[[], Opening], max_bytes: int, *, rotate: bool = False) -> None:
        """``opening`` makes the first line of each file."""
        self._path = path
        self._opening = opening
        self._max = max_bytes
        self._rotate = rotate
        self._bytes = 0
        self._waiting = 0
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Told | None] = queue.SimpleQueue()
        self._encode = msgspec.json.Encoder().encode
        self._full = False
        self._unwritten = 0
        self._dropped = 0
        self.lines = 0
        self.why = ""
        self._file = -1
        self._begin()
        self._thread = threading.Thread(target=self._work, name="trace-file", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        """Lines that are not in the file."""
        return self._dropped + self._unwritten

    def take(self, one: Told) -> None:
        """Write a line, later."""
        size = one.size
        with self._lock:
            room = self._waiting + size <= MAX_WAITING_BYTES
            if room:
                self._waiting += size
            else:
                self._dropped += 1
        if room:
            self._queue.put(one)

    def close(self) -> None:
        """Write what waits. What a disk that hangs does not take in time is lost."""
        self._queue.put(None)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self.why = f"the disk took nothing for {CLOSE_S:g} s"
            self._dropped += self._queue.qsize()

    # --- in the thread ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (one := self._queue.get()) is not None:
            if self._say(one):
                self.lines += 1
            else:
                self._unwritten += 1
            with self._lock:
                self._waiting -= one.size
        os.close(self._file)

    def _say(self, one: Told) -> bool:
        try:
            line = self._encode(one.recorded()) + b"\n"
        except Exception as error:  # noqa: BLE001 (whatever it is: the others are to be written)
            self.why = f"a defect of this command: {type(error).__name__}: {error}"
            return False
        return self._append(line)

    def _append(self, line: bytes) -> bool:
        try:
            if self._full or self._bytes + len(line) > self._max:
                if not self._rotate:
                    self._full = True
                    self.why = f"the file has {self._bytes} bytes and may have {self._max}"
                    return False
                with suppress(FileNotFoundError):  # a new one could not be begun before
                    self._path.replace(f"{self._path}.1")
                self._begin()
                if self._bytes + len(line) > self._max:
                    self.why = f"a line has {len(line)} bytes and a file may have {self._max}"
                    return False
            self._write(line)
        except OSError as error:
            self.why = f"cannot be written: {error.strerror}"
            return False
        return True

    def _begin(self) -> None:
        line = self._encode(self._opening()) + b"\n"
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, line)
            if os.fstat(file).st_size < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.close(file)
            self._path.unlink()
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file = file
        self._bytes = len(line)

    def _write(self, line: bytes) -> None:
        """Write a whole line, or nothing of it: what a full disk took of one would spoil the next one."""
        left = memoryview(line)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            os.ftruncate(self._file, self._bytes)
            os.lseek(self._file, self._bytes, os.SEEK_SET)
            raise
        self._bytes += len(line)
