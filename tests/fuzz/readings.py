"""Other readings of the same bytes: a strict one, lenient ones as real servers have them, and llhttp's.

None of them shares code with the data path. The first two are those of the conformance harness.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httptools

_PATH = Path(__file__).resolve().parents[1] / "conformance" / "smuggle" / "rawhttp.py"
_SPEC = importlib.util.spec_from_file_location("rawhttp", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
_RAW: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_RAW)

LENIENT: tuple[dict[str, Any], ...] = tuple(_RAW.PANEL)


class Asked(NamedTuple):
    """A request as somebody reads it: what it is, and where it ends."""

    method: bytes
    body: bytes
    end: int


@dataclass(frozen=True)
class Reading:
    """What a stream of requests is: whole ones, and whether what is left is ``end``, ``incomplete`` or an ``error``."""

    asked: list[Asked]
    tail: str
    error: str


def requests(data: bytes, model: dict[str, Any] | None = None) -> Reading:
    """Read a stream of requests strictly, or as ``model`` of LENIENT does."""
    found, tail, error, _, _ = _RAW.split_stream(data, *([] if model is None else [model]))
    return Reading([Asked(one["method"].encode("latin1"), one["body"], one["end"]) for one in found], tail, error)


def requests_of_caller(data: bytes) -> Reading:
    """Read what a caller sent: strictly, but that empty lines before a request are skipped (RFC 9112 2.2)."""
    found: list[Asked] = []
    at = 0
    while True:
        while data.startswith(b"\r\n", at):
            at += 2
        state, end, info = _RAW.parse_request(data, at)
        if state != "ok":
            return Reading(found, state, info.get("error", ""))
        found.append(Asked(info["method"].encode("latin1"), info["body"], end))
        at = end


class Answered(NamedTuple):
    """A response as somebody reads it. ``state``: ``ok``, ``incomplete`` or ``error``."""

    state: str
    status: int
    body: bytes
    end: int
    fields: dict[str, str]
    to_close: bool


def response(data: bytes, at: int, method: bytes, *, ended: bool) -> Answered:
    """Read one response strictly; ``ended``: the connection has, so that a body without framing is whole."""
    state, end, info = _RAW.parse_response(data, at, method.decode("latin1"), ended)
    fields = {name.lower(): value for name, value in info.get("headers", ())}
    return Answered(
        state, info.get("status", 0), info.get("body", b""), end, fields, bool(info.get("close_delimited", False))
    )


def final(data: bytes, method: bytes, *, ended: bool) -> Answered:
    """Read what comes after all 1xx."""
    at = 0
    while True:
        found = response(data, at, method, ended=ended)
        if found.state != "ok" or found.status >= 200 or found.status == 101:
            return found
        at = found.end


class _Counter:
    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.body = b""

    def on_message_begin(self) -> None:
        self.body = b""

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.bodies.append(self.body)


def llhttp_bodies(data: bytes) -> list[bytes] | None:
    """Return the bodies of the requests that llhttp finds, None where it finds an error or an upgrade."""
    counter = _Counter()
    try:
        httptools.HttpRequestParser(counter).feed_data(data)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    return counter.bodies
