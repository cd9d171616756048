"""A line for each inference whose caller names it, for whoever joins them with what callers saw (docs/replay.md).

Off by default. Serving never waits for the disk: lines go to a thread through a bounded buffer. What has no room there,
or cannot be written, is lost and shows as a gap in ``seq``.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

import msgspec

from worker import json_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from worker.log import EventLog

ID_HEADER: Final = "x-request-id"
ATTEMPT_HEADER: Final = "warmroute-attempt"
"""Which try of one request this is: a sidecar writes it, 1 for the first."""
MAX_ID_CHARS: Final = 256
MAX_NAME_CHARS: Final = 128
"""Of a model that is here; of one that is not, a caller may say anything."""
MAX_WAITING_BYTES: Final = 4 << 20
"""Of lines that are not written yet."""
TELL_EVERY_S: Final = 10.0
CLOSE_S: Final = 1.0
_END: Final = b""


class Line(msgspec.Struct, omit_defaults=True):
    """One line. ``at``: when it began, seconds of 1970; other times are seconds.

    ``seq`` counts the lines of one ``epoch``, a worker's process. ``took_s``: from the end of the head to an answer
    that is ready, or to its error. ``queue_s``, ``run_s``: of these, the wait for a thread and the run; not there where
    it did not come so far. ``status``: HTTP's, also of gRPC calls.
    """

    request_id: str
    attempt: int
    worker: str
    epoch: str
    seq: int
    model: str
    version: str
    at: float
    took_s: float
    status: int
    failed: bool = False
    queue_s: float | None = None
    run_s: float | None = None


class Note:
    """One request on its way. Threads that execute it set ``queue_s`` and ``run_s``."""

    __slots__ = ("_log", "at", "attempt", "began", "model", "queue_s", "request_id", "run_s", "version")

    def __init__(self, log: RequestLog, request_id: str, attempt: int, model: str, at: float, began: float) -> None:
        self._log = log
        self.request_id = request_id
        self.attempt = attempt
        self.model = model
        self.at = at
        self.began = began
        self.version = ""
        self.queue_s: float | None = None
        self.run_s: float | None = None

    def end(self, status: int) -> None:
        """It is over."""
        self._log.end(self, status)


class RequestLog:
    """Appends to a file. At ``limit_bytes`` it becomes ``FILE.1`` and a new one begins; who moves it away may do so.

    Used on the event loop, but for its own thread.
    """

    def __init__(
        self,
        path: Path,
        limit_bytes: int,
        worker: str,
        epoch: str,
        log: EventLog,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Open it.

        Raises:
            OSError: it cannot be opened.
        """
        self._path = path
        self._limit = limit_bytes
        self._worker = worker
        self._epoch = epoch
        self._log = log
        self._clock = clock
        self._wall = wall
        self._seq = 0
        self._lost = 0
        self._waiting = 0
        self._lock = threading.Lock()
        self._queue: SimpleQueue[bytes] = SimpleQueue()
        self._torn = False
        self._tell_at = 0.0
        self._file = -1
        self._open()
        self._thread = threading.Thread(target=self._work, name="request-log", daemon=True)
        self._thread.start()

    def begin(self, model: str, get: Callable[[str], str | None]) -> Note | None:
        """Note that a request began; ``get`` returns the fields of its head. None: it has no id to be joined by."""
        request_id = get(ID_HEADER)
        if not request_id or len(request_id) > MAX_ID_CHARS or not request_id.isascii():
            return None
        attempt = get(ATTEMPT_HEADER) or ""
        number = int(attempt) if attempt.isascii() and attempt.isdecimal() and len(attempt) < 5 else 1
        return Note(self, request_id, number, model, self._wall(), self._clock())

    def end(self, note: Note, status: int) -> None:
        """Have a request that is over written, later."""
        self._seq += 1
        took_s = self._clock() - note.began
        line = Line(
            note.request_id,
            note.attempt,
            self._worker,
            self._epoch,
            self._seq,
            _legible(note.model[:MAX_NAME_CHARS]),
            note.version,
            round(note.at, 6),
            round(took_s, 6),
            status,
            status >= 500,
            None if note.queue_s is None else round(note.queue_s, 6),
            None if note.run_s is None else round(note.run_s, 6),
        )
        encoded = bytes(json_text.encode(line) + b"\n")
        with self._lock:
            if self._waiting + len(encoded) > MAX_WAITING_BYTES:
                self._lost += 1
                return
            self._waiting += len(encoded)
        self._queue.put(encoded)

    def close(self) -> None:
        """Write what waits, for a second at most."""
        self._queue.put(_END)
        self._thread.join(CLOSE_S)

    # --- in the thread ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        ended = False
        while not ended:
            lines = [self._queue.get()]
            try:
                while True:
                    lines.append(self._queue.get_nowait())
            except Empty:
                pass
            ended = _END in lines
            data = b"".join(lines)
            lost = 0
            if data:
                try:
                    self._append(data)
                except OSError as error:
                    lost = sum(1 for line in lines if line)
                    self._tell(error.strerror or str(error), lost)
            with self._lock:
                self._waiting -= len(data)
                dropped, self._lost = self._lost, 0
            if dropped:
                self._tell("the disk is too slow", dropped)
        os.close(self._file)

    def _append(self, data: bytes) -> None:
        self._turn(len(data))
        left = memoryview(b"\n" + data if self._torn else data)
        self._torn = True
        while left:
            left = left[os.write(self._file, left) :]
        self._torn = False

    def _turn(self, more: int) -> None:
        """Go on in a new file where this one was moved away, or becomes too large with so many bytes ``more``."""
        ours = os.fstat(self._file)
        if not self._in_place(ours):
            self._open()
        elif ours.st_size and ours.st_size + more > self._limit:
            fcntl.flock(self._file, fcntl.LOCK_EX)  # until it is closed: other workers may write to it, and do the same
            if self._in_place(ours):
                self._path.replace(f"{self._path}.1")
            self._open()

    def _in_place(self, ours: os.stat_result) -> bool:
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def _open(self) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        if self._file >= 0:
            os.close(self._file)
        self._file = file
        self._torn = False

    def _tell(self, why: str, lines: int) -> None:
        now = self._clock()
        if now >= self._tell_at:
            self._tell_at = now + TELL_EVERY_S
            self._log.warning("request_log.lost", file=str(self._path), lines=lines, error=why)


def _legible(text: str) -> str:
    """Return a text that can be encoded: a path may hold what is no UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
