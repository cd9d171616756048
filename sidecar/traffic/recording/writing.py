"""The file that is recorded into, written by a thread: a slow disk loses lines, and holds no traffic up."""

from __future__ import annotations

import os
import queue
import threading
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.traffic.traces.recorded import Opening, Recorded

MAX_WAITING_BYTES: Final = 64 << 20
"""Of lines that are not written yet."""
_END: Final = b""


class TraceFile:
    """A new file, readable by its owner alone: traces hold what callers sent.

    ``lines`` were written, ``lost`` had no room in memory, or in the file: then ``why`` says so. Raises OSError where
    the file cannot be made, also where there is one.
    """

    def __init__(self, path: Path, opening: Opening, max_bytes: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._max = max_bytes
        self._bytes = 0
        self._waiting = 0
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._encode = msgspec.json.Encoder().encode
        self.lines = 0
        self.lost = 0
        self.why = ""
        self._put(self._encode(opening) + b"\n")
        self._thread = threading.Thread(target=self._write, name="trace-file", daemon=True)
        self._thread.start()

    def take(self, one: Recorded) -> None:
        """Write a line, later."""
        line = self._encode(one) + b"\n"
        if self.why:
            self.lost += 1
        elif self._bytes + len(line) > self._max:
            self.why = f"the file has {self._bytes} bytes and may have {self._max}"
            self.lost += 1
        elif self._waiting + len(line) > MAX_WAITING_BYTES:
            self.lost += 1
        else:
            self._put(line)
            self.lines += 1

    def close(self) -> None:
        """Write what waits."""
        self._queue.put(_END)
        self._thread.join()
        os.close(self._file)

    def _put(self, line: bytes) -> None:
        with self._lock:
            self._waiting += len(line)
        self._bytes += len(line)
        self._queue.put(line)

    def _write(self) -> None:
        while line := self._queue.get():
            left = memoryview(line)
            try:
                while left and not self.why.startswith("cannot"):
                    left = left[os.write(self._file, left) :]
            except OSError as error:
                self.why = f"cannot be written: {error.strerror}"
            with self._lock:
                self._waiting -= len(line)
