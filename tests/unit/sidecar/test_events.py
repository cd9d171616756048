"""Where an error event may follow in a stream, and what it looks like."""

from __future__ import annotations

import json

import pytest

from router.outcomes import Outcome
from sidecar.http1.chunked import ChunkScanner
from sidecar.http1.events import between_events, error_event, streams_events


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@pytest.mark.parametrize(
    ("passed", "may"),
    [
        (b"", True),
        (chunk(b"data: 1\n\n"), True),
        (chunk(b"data: 1\r\n\r\n"), True),
        (chunk(b"data: 1\n\ndata: 2\n\n"), True),
        (chunk(b"data: 1\n\n") + chunk(b": ping 2\r\n\r\n"), True),
        (b"a: 1}\n\n\r\n", True),  # begins inside a chunk
        (b"HTTP/1.1 200 OK\r\n\r\n" + chunk(b"x\n\n"), True),
        (chunk(b"data: 1\n"), False),
        (chunk(b"data: 1"), False),
        (chunk(b"data: 1") + chunk(b"\n"), False),
        (chunk(b"\n"), False),
        (chunk(b"data: 1") + chunk(b"\r\n"), False),
        (b"a: 2\r\n\r\n\r\n", False),  # may be a whole event, or a chunk of CRLF behind its size
        (b"\n\n\r\n", False),
        (chunk(b'data: {"error": {}}\n\n'), False),
        (chunk(b"data: 1\n\ndata: [DONE]\n\n"), False),
        (b"broken", False),
    ],
)
def test_between_events_in_chunks(passed: bytes, may: bool) -> None:
    assert between_events(passed, chunked=True) is may


@pytest.mark.parametrize(
    ("passed", "may"),
    [
        (b"", True),
        (b"data: 1\n\n", True),
        (b"data: 1\r\n\r\n", True),
        (b"data: 1\r\n", False),
        (b"\n", False),
        (b"data: [DONE]\n\n", False),
    ],
)
def test_between_events_until_close(passed: bytes, may: bool) -> None:
    assert between_events(passed, chunked=False) is may


@pytest.mark.parametrize(
    ("fields", "streams"),
    [
        (b"Content-Type: text/event-stream", True),
        (b"content-type:text/event-stream; charset=utf-8", True),
        (b"Content-Type: Text/Event-Stream \r\nX: 1", True),
        (b"Content-Type: text/event-streams", False),
        (b"X: text/event-stream", False),
        (b"Content-Type: text/event-stream\r\nContent-Encoding: gzip", False),
    ],
)
def test_a_head_says_whether_events_follow(fields: bytes, streams: bool) -> None:
    assert streams_events(b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n") is streams


def test_the_event_is_a_whole_one_in_one_chunk() -> None:
    scanner = ChunkScanner(decode=True)
    event = scanner.feed(error_event(Outcome.UPSTREAM_CUT, 'o0: "gone"'))
    assert scanner.between_chunks
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    assert event.count(b"\n") == 2
    assert json.loads(event[6:]) == {
        "error": {
            "message": 'the worker\'s answer was cut short: o0: "gone"',
            "type": "server_error",
            "param": None,
            "code": "upstream_cut",
        }
    }
