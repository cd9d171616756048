"""Structured logs on standard error: events with fields, one line each, as JSON or as text for people.

``log = get_log("data"); log.info("listener.open", address="127.0.0.1:8080", backlog=4096)``. An event is a dotted name
from a small vocabulary (docs/observability.md lists it), never a sentence; what varies stands in the fields. Built on
the standard library's logging, so lines of other libraries come out in the same shape.

Secrets never come out: fields that are named like one are masked, and so are credentials inside URLs.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from router.urls import MASK, masked_urls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_VALUE_CHARS = 2048
"""Longer field values are cut: what others send us must not fill a disk."""

_FIELDS = "warmroute_fields"
_COMPONENT = "warmroute_component"
_SECRET_NAME = re.compile(r"password|passwd|secret|token(?!_file)|authorization|cookie|credential", re.IGNORECASE)
_PLAIN = re.compile(r"[A-Za-z0-9_./:@+\-\[\]{},*%]+")
_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class Log:
    """Writes events of one component. ``exc_info`` adds an exception, True the one being handled."""

    __slots__ = ("_component", "_logger")

    def __init__(self, logger: logging.Logger, component: str) -> None:
        self._logger = logger
        self._component = component

    def debug(self, event: str, **fields: object) -> None:
        """Write an event that matters to who looks for a fault only."""
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        """Write an event of normal life."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Write an event that costs something: a degraded mode, a refused record."""
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, *, exc_info: bool | Exception = False, **fields: object) -> None:
        """Write an event that an operator must act upon."""
        self._write(logging.ERROR, event, fields, exc_info=exc_info)

    def _write(
        self, level: int, event: str, fields: Mapping[str, object], *, exc_info: bool | Exception = False
    ) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(
                level, event, exc_info=exc_info, extra={_FIELDS: fields, _COMPONENT: self._component}, stacklevel=3
            )


class Throttle:
    """Lets one event through per ``interval_s`` and counts those between. Time is passed in, monotonic seconds."""

    __slots__ = ("_interval_s", "_next", "_suppressed")

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._next = float("-inf")
        self._suppressed = 0

    def admit(self, now: float) -> int | None:
        """Return how many events were held back since the last one let through, or None: hold this one back too."""
        if now < self._next:
            self._suppressed += 1
            return None
        self._next = now + self._interval_s
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed


def get_log(component: str) -> Log:
    """Return the log of a component (``data``, ``store``, ``admin``, ...); its name stands in each line."""
    return Log(logging.getLogger(f"warmroute.{component}"), component)


def setup_logging(format: str, level: str, process: str, stream: TextIO | None = None) -> None:  # noqa: A002
    """Send all logging of this process to ``stream`` (standard error).

    ``format`` is ``json`` or ``text``, ``level`` the least level written, ``process`` the name in each line
    (``supervisor``, ``control``, ``data-0``). Called once, by the process's composition root.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(TextFormatter(process) if format == "text" else JsonFormatter(process))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)  # other libraries
    logging.getLogger("warmroute").setLevel(_LEVELS[level])
    logging.captureWarnings(capture=True)


def line_fields(record: logging.LogRecord, process: str) -> dict[str, Any]:
    """Return one line's fields in order: ts, level, process, component, event, then the event's own."""
    out: dict[str, Any] = {
        "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "process": process,
        "component": getattr(record, _COMPONENT, record.name),
    }
    fields: Mapping[str, object] | None = getattr(record, _FIELDS, None)
    if fields is None:  # a line of another library: its sentence is a field
        out["event"] = "library.message"
        out["message"] = _clean("message", record.getMessage())
    else:
        out["event"] = record.getMessage()
        for name, value in fields.items():
            out[name if name not in out else f"{name}_"] = _clean(name, value)
    if record.exc_info and record.exc_info[0] is not None:
        out["exception"] = masked_urls("".join(traceback.format_exception(*record.exc_info)))
    return out


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process
        self._encode: Callable[[object], bytes] = msgspec.json.Encoder(enc_hook=str).encode

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return self._encode(line_fields(record, self._process)).decode()


class TextFormatter(logging.Formatter):
    """One line for people: time, level, process, event, then ``name=value`` pairs."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; an exception follows on lines of its own."""
        fields = line_fields(record, self._process)
        head = f"{fields.pop('ts')[11:]} {fields.pop('level'):<7} {fields.pop('process'):<10} {fields.pop('event')}"
        exception = fields.pop("exception", None)
        fields.pop("component")
        line = " ".join((head, *(f"{name}={_quoted(value)}" for name, value in fields.items())))
        return line if exception is None else f"{line}\n{exception.rstrip()}"


def _clean(name: str, value: object) -> object:
    if _SECRET_NAME.search(name):
        return MASK if value else value
    if isinstance(value, bool | int | float) or value is None:
        return value
    if isinstance(value, dict):
        return {str(key): _clean(str(key), item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean(name, item) for item in value]
    text = masked_urls(value if isinstance(value, str) else str(value))
    return text if len(text) <= MAX_VALUE_CHARS else text[:MAX_VALUE_CHARS] + "…"


def _quoted(value: object) -> str:
    if isinstance(value, str) and not _PLAIN.fullmatch(value):
        return msgspec.json.encode(value).decode()
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
