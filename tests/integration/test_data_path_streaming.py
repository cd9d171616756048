"""Streams pass piece by piece at once; one that breaks says so in an event where it may, else it is cut."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from sidecar.settings import Timeouts
from tests.support.data_path import DataPath, Script, on_data_path
from tests.support.wires import CHUNKED, STEP_S, OriginConnection, chunk, request

EVENTS = b"Content-Type: text/event-stream"
ASK = request(b"GET /v1/chat/completions HTTP/1.1")


def head(*fields: bytes) -> bytes:
    return b"\r\n".join([b"HTTP/1.1 200 OK", *fields, b"", b""])


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("framing", ["chunked", "length", "until close"])
def test_each_piece_passes_at_once(framing: str, version: bytes) -> None:
    """None waits for another: each is sent once the one before it is here."""
    pieces = [b"data: %d\n\n" % number for number in range(5)]
    wanted = asyncio.Semaphore(0)

    async def ticks(origin: OriginConnection) -> None:
        await origin.request()
        length = b"Content-Length: %d" % sum(map(len, pieces))
        await origin.send(
            head(EVENTS, *{"chunked": [CHUNKED], "length": [length]}.get(framing, [b"Connection: close"]))
        )
        for piece in pieces:
            await wanted.acquire()
            await origin.send(chunk(piece) if framing == "chunked" else piece)
        if framing == "chunked":
            await origin.send(b"0\r\n\r\n")

    @on_data_path(ticks)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        await client.send(request(b"GET /v1/x HTTP/" + version))
        got = await client.head()
        for piece in pieces:
            in_chunks = bool(got.values(b"Transfer-Encoding"))
            expected = chunk(piece) if in_chunks else piece
            wanted.release()
            async with asyncio.timeout(STEP_S):
                assert await client.reader.readexactly(len(expected)) == expected
        assert in_chunks == (version == b"1.1" and framing != "length")

    scenario()


def breaks(*pieces: bytes, how: str = "close") -> Script:
    async def script(origin: OriginConnection) -> None:
        await origin.request()
        for piece in pieces:
            await origin.send(piece)
            await asyncio.sleep(0.03)
        if how == "reset":
            origin.reset()
        elif how == "stall":
            await origin.reader.read()

    return script


STREAM = head(EVENTS, CHUNKED), chunk(b'data: {"a": 1}\n\n')


@pytest.mark.parametrize(
    ("script", "timeouts", "outcome"),
    [
        (breaks(*STREAM), Timeouts(), "upstream_cut"),
        (breaks(*STREAM, how="reset"), Timeouts(), "upstream_cut"),
        (breaks(b"".join(STREAM)), Timeouts(), "upstream_cut"),
        (breaks(*STREAM, b"1"), Timeouts(), "upstream_cut"),  # half a size line is not passed on
        (breaks(head(EVENTS, CHUNKED), STREAM[1][:9], STREAM[1][9:]), Timeouts(), "upstream_cut"),
        (breaks(head(EVENTS, CHUNKED)), Timeouts(), "upstream_cut"),
        (breaks(head(EVENTS), b"data: 1\n\n", how="reset"), Timeouts(), "upstream_cut"),
        (breaks(*STREAM, how="stall"), Timeouts(stream_idle_s=0.1), "stream_idle"),
        (breaks(*STREAM, how="stall"), Timeouts(total_s=0.2), "deadline_exceeded"),
        (breaks(*STREAM, how="stall"), Timeouts(try_s=0.2), "upstream_timeout"),
    ],
)
def test_a_broken_stream_of_events_ends_with_one_that_says_so(script: Script, timeouts: Timeouts, outcome: str) -> None:
    @on_data_path(script, timeouts=timeouts)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        await client.send(ASK)
        await client.head()
        rest = await client.rest()
        size, _, event = rest.rpartition(b"\r\ndata: ")
        event = b"data: " + event
        assert int(size.rpartition(b"\n")[2], 16) == len(event) - 2  # a whole chunk, and not the last
        assert event.endswith(b"}\n\n\r\n")
        error = json.loads(event[6:-4])["error"]
        assert (error["code"], error["type"], error["param"]) == (outcome, "server_error", None)
        assert path.outcomes == {outcome: 1}

    scenario()


@pytest.mark.parametrize(
    ("asked", "script"),
    [
        (ASK, breaks(*STREAM[:1], chunk(b"data: 1\n"))),
        (ASK, breaks(*STREAM[:1], chunk(b"data: 1\n\n")[:-2])),
        (ASK, breaks(*STREAM, b"5\r\nabc")),
        (ASK, breaks(*STREAM, b"xx\r\n")),
        (ASK, breaks(*STREAM, chunk(b"data: [DONE]\n\n"))),
        (ASK, breaks(head(EVENTS, b"Content-Length: 50"), b"data: 1\n\n")),
        (ASK, breaks(head(b"Content-Type: application/json", CHUNKED), chunk(b"data: 1\n\n"))),
        (request(b"GET /v2/models/m/generate_stream HTTP/1.1"), breaks(*STREAM)),
        (request(b"GET /events HTTP/1.1"), breaks(*STREAM)),
    ],
)
def test_elsewhere_a_broken_stream_is_cut(asked: bytes, script: Script) -> None:
    @on_data_path(script)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        await client.send(asked)
        await client.head()
        rest = await client.rest()
        assert b"error" not in rest
        assert not rest.endswith(b"0\r\n\r\n")
        assert path.outcomes == {"upstream_cut": 1}

    scenario()


@on_data_path(breaks(*STREAM))
async def test_an_old_caller_is_reset_and_told_nothing(path: DataPath) -> None:
    client = await path.connect()
    await client.send(request(b"GET /v1/x HTTP/1.0"))
    await client.head()
    assert await client.reader.readexactly(16) == b'data: {"a": 1}\n\n'
    assert await client.ended()
    assert path.outcomes == {"upstream_cut": 1}


@on_data_path(breaks(*STREAM, how="stall"))
async def test_the_end_of_the_grace_period_is_told_too(path: DataPath) -> None:
    client = await path.connect()
    await client.send(ASK)
    await client.head()
    await client.reader.readexactly(len(STREAM[1]))
    path.plane.drain(time.monotonic())
    path.plane.cut_all()
    assert b'"code":"drain_cut"' in await client.rest()
