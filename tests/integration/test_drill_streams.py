"""The stand-in for a server of OpenAI's streams: what it answers, and what it refuses."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.drills.stand_in import END, MAX_BODY_BYTES, StandIn

POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nContent-Length: 2\r\n\r\n{}"


async def answered(*requests: bytes, events: int = 3) -> bytes:
    """Send requests one after another over one connection; return all that comes until its end."""
    server = await asyncio.start_server(StandIn(events, 0.0).serve, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            writer.write(b"".join(requests))
            writer.write_eof()
            return await asyncio.wait_for(reader.read(), 10)
        finally:
            writer.close()
            await writer.wait_closed()


def test_each_request_has_all_events_and_the_end_mark() -> None:
    answers = asyncio.run(answered(POST, POST))
    assert answers.count(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n") == 2
    assert answers.count(b'"object":"chat.completion.chunk"') == 6
    assert answers.count(b'"finish_reason":"stop"') == 2
    assert answers.endswith(b"e\r\n" + END + b"\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"405 "),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", b"411 "),
        (b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", b"411 "),
        (b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1), b"413 "),
    ],
)
def test_what_it_cannot_answer_is_refused_and_the_connection_ends(request_: bytes, status: bytes) -> None:
    answer = asyncio.run(answered(request_, POST))
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert answer.count(b"HTTP/1.1") == 1


def test_a_request_that_breaks_off_has_no_answer() -> None:
    assert asyncio.run(answered(POST[:-1])) == b""
