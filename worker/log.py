"""Structured events on standard error: one JSON object a line, or a line for people."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

from worker import json_text

if TYPE_CHECKING:
    import sys
    from collections.abc import Callable

EVERY_S = 10.0
MAX_LOGGERS = 32
MAX_TEXT_CHARS = 512
MAX_UNRAISABLE = 64
LOOK_S = 2.0


def _wall_clock() -> datetime:
    return datetime.now(UTC)


class EventLog:
    """Writes events, from any thread. An event has a dotted name and fields; it is no sentence, and holds no secret."""

    def __init__(self, stream: TextIO, *, json: bool = True, clock: Callable[[], datetime] = _wall_clock) -> None:
        """``json``: one object a line; else text for people. ``clock`` gives the time of day, for the ``ts`` field."""
        self._stream = stream
        self._json = json
        self._clock = clock
        self._lock = threading.Lock()

    def info(self, event: str, **fields: Any) -> None:
        """Write an event of normal life."""
        self._write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Write an event that an operator should know of; the worker goes on."""
        self._write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Write an event that left something undone."""
        self._write("error", event, fields)

    def _write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        now = self._clock()
        if self._json:
            stamp = now.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
            said = {"ts": stamp, "level": level, "event": event, **fields}
            try:
                line = json_text.encode(said).decode()
            except UnicodeEncodeError:  # the name of a file that is no UTF-8
                line = json_text.encode(_legible(said)).decode()
        else:
            rest = " ".join(f"{name}={value}" for name, value in fields.items())
            line = f"{now:%H:%M:%S} {level:<7} {event} {_legible(rest)}".rstrip()
        try:
            with self._lock:
                self._stream.write(line + "\n")
                self._stream.flush()
        except (OSError, ValueError):
            pass  # whoever read our standard error is gone: no reason to stop serving


class LibraryLog(logging.Handler):
    """Writes what libraries log, from warnings on, as events ``library.log``: of each logger one in ten seconds.

    A caller may have a library complain as often as it likes.
    """

    def __init__(self, log: EventLog, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: monotonic seconds."""
        super().__init__(logging.WARNING)
        self._log = log
        self._clock = clock
        self._loggers: dict[str, tuple[float, int]] = {}
        """When each may be heard again, and how much it said since it was."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one, or count it for the next of its logger. Called by one thread at a time."""
        name = record.name if record.name in self._loggers or len(self._loggers) < MAX_LOGGERS else "others"
        now = self._clock()
        again_at, dropped = self._loggers.get(name, (now, 0))
        if now < again_at:
            self._loggers[name] = (again_at, dropped + 1)
            return
        self._loggers[name] = (now + EVERY_S, 0)
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - text and arguments are the library's
            text = str(record.msg)
        fields: dict[str, Any] = {"logger": name, "message": _line(text)}
        raised = record.exc_info[1] if record.exc_info else None
        if raised is not None:
            fields["error"] = _line(f"{type(raised).__name__}: {raised}")
        if dropped:
            fields["dropped"] = dropped
        (self._log.error if record.levelno >= logging.ERROR else self._log.warning)("library.log", **fields)


class Unraisable:
    """Logs what Python could raise nowhere: it would write lines of its own between ours.

    Not that there was no memory, as for the first step of a thread: whoever waits for the thread finds out. There a
    hook in Python could not be called either, so this one only keeps what it is told, for :meth:`look`.
    """

    def __init__(self) -> None:
        self._told: deque[sys.UnraisableHookArgs] = deque(maxlen=MAX_UNRAISABLE)
        self.hook: Callable[[sys.UnraisableHookArgs], object] = self._told.append
        """For ``sys.unraisablehook``; of more than :data:`MAX_UNRAISABLE` at once the first are lost."""

    def look_now_and_then(self) -> None:
        """Log what came, on the running loop, until that is closed."""
        self.look()
        asyncio.get_running_loop().call_later(LOOK_S, self.look_now_and_then)

    def look(self) -> None:
        """Log what came."""
        while self._told:
            told = self._told.popleft()
            if not issubclass(told.exc_type, MemoryError):
                text = told.err_msg or "an error that could be raised nowhere"
                logging.getLogger("python").error("%s", text, exc_info=told.exc_value)


def _legible(said: Any) -> Any:
    """Return what is said with escapes for what is no UTF-8 in it."""
    if isinstance(said, str):
        return said.encode("utf-8", "backslashreplace").decode()
    if isinstance(said, dict):
        return {_legible(name): _legible(value) for name, value in said.items()}
    return [_legible(value) for value in said] if isinstance(said, list | tuple) else said


def _line(text: str) -> str:
    return " ".join(text.split())[:MAX_TEXT_CHARS]
