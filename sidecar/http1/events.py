"""The error event that ends a broken stream of server-sent events, where the caller's surface has one. Pure.

An OpenAI client raises for an event whose data has an ``error`` at the moment it reads it. That is only safe to say
between two events and between two chunks; then the connection ends without the last chunk, so that whoever does not
look into events sees a cut all the same.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from router.matching import Surface
from sidecar.http1.answers import error_body
from sidecar.http1.chunked import ChunkError, ChunkScanner

if TYPE_CHECKING:
    from router.outcomes import Outcome

_EVENTS: Final = re.compile(rb"\r\ncontent-type:[ \t]*text/event-stream[ \t]*(?:;|\r\n)", re.IGNORECASE)
_CODED: Final = re.compile(rb"\r\ncontent-encoding:", re.IGNORECASE)
_LAST: Final = (b'data: {"error"', b'data:{"error"', b"data: [DONE]", b"data:[DONE]")
"""Events that are the last of a stream already: what comes behind them is nothing to tell of."""


def is_stream(forward: bytes) -> bool:
    """Return whether a response head says that its body is a stream of events, coded or not."""
    return _EVENTS.search(forward) is not None


def streams_events(forward: bytes) -> bool:
    """Return whether a response head says that its body is a plain stream of events."""
    return _EVENTS.search(forward) is not None and _CODED.search(forward) is None


def between_events(passed: bytes, *, chunked: bool) -> bool:
    """Return whether an error event may follow on the ``passed`` piece of a stream, the last one that went out.

    A chunked piece must end with a chunk. Nothing passed is such a place too. Where the piece does not show it, it may
    not: a piece that begins inside a chunk and whose lines end in CRLF.
    """
    if not passed:
        return True
    if chunked and passed.endswith(b"\n\n\r\n"):
        data = passed[:-2]  # a chunk that is one line feed alone has the CR of its size line before it
        ends = data[-3:-2] not in (b"", b"\r", b"\n")
    elif chunked:
        data = _unchunked(passed)
        ends = data.endswith(b"\r\n\r\n")
    else:
        data = passed
        ends = data.endswith((b"\n\n", b"\r\n\r\n"))
    return ends and not data.rstrip(b"\r\n").rpartition(b"\n")[2].startswith(_LAST)


def error_event(outcome: Outcome, detail: str) -> bytes:
    """Return a whole event, in a chunk of its own, that tells an OpenAI client of ``outcome``."""
    event = b"data: %s\n\n" % error_body(Surface.OPENAI, outcome, detail)[1]
    return b"%x\r\n%s\r\n" % (len(event), event)


def _unchunked(passed: bytes) -> bytes:
    """Return the data of a piece that is made of whole chunks, or nothing."""
    scanner = ChunkScanner(decode=True)
    try:
        data = scanner.feed(passed)
    except ChunkError:
        return b""
    return data if scanner.between_chunks and not scanner.done else b""
