"""Structured events on standard error: one JSON object a line, or a line for people."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable


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
            line = msgspec.json.encode({"ts": stamp, "level": level, "event": event, **fields}).decode()
        else:
            rest = " ".join(f"{name}={value}" for name, value in fields.items())
            line = f"{now:%H:%M:%S} {level:<7} {event} {rest}".rstrip()
        try:
            with self._lock:
                self._stream.write(line + "\n")
                self._stream.flush()
        except (OSError, ValueError):
            pass  # whoever read our standard error is gone: no reason to stop serving
