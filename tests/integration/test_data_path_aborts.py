"""Callers that go away, and workers that do: the other side is let go at once, and nothing stays counted."""

from __future__ import annotations

import asyncio
import select

import pytest

from sidecar.http1.caller import CLOSED
from sidecar.http1.downstream import DownstreamConnection
from sidecar.http1.plane import Plane
from sidecar.settings import Limits, Timeouts
from tests.support.data_path import GONE_BEATS, DataPath, Full, echo, on_data_path
from tests.support.wires import CHUNKED, OriginConnection, answer, chunk, post, request


async def streams_for_ever(origin: OriginConnection) -> None:
    await origin.request()
    await origin.send(b"HTTP/1.1 200 OK\r\n" + CHUNKED + b"\r\n\r\n" + chunk(b"first"))
    await origin.reader.read()


async def takes(origin: OriginConnection) -> None:
    await origin.request()
    await origin.reader.read()


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("script", [takes, streams_for_ever])
def test_a_caller_that_leaves_stops_the_worker_s_work(script: object, reset: bool) -> None:
    @on_data_path(script, sweep=False)  # type: ignore[arg-type]
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        await client.send(post(b"x"))
        await path.until(lambda: path.origin.requests, "the request at the worker")
        if script is streams_for_ever:
            await client.head()
        assert path.in_flight == 1
        left = path.beats
        if reset:
            client.reset()
        else:
            client.close()
        await path.until(lambda: path.origin.ended, "the upstream connection ended")
        assert path.beats - left <= GONE_BEATS
        assert path.in_flight == 0
        assert path.outcomes == {"client_abort": 1}
        assert path.results == {"cancelled": 1}

    scenario()


@on_data_path(takes)
async def test_a_caller_that_shuts_its_side_only_has_left_too(path: DataPath) -> None:
    client = await path.connect()
    await client.send(post(b"x"))
    client.writer.write_eof()
    assert await client.rest() == b""
    assert path.outcomes == {"client_abort": 1}


@on_data_path(streams_for_ever)
async def test_a_begun_answer_to_an_old_client_that_shuts_its_side_is_no_whole_one(path: DataPath) -> None:
    client = await path.connect()
    await client.send(b"GET / HTTP/1.0\r\n\r\n")
    assert (await client.head()).status == 200
    client.writer.write_eof()
    assert await client.ended(), "a plain end would make the answer look whole"
    assert path.outcomes == {"client_abort": 1}


@pytest.mark.parametrize("reset", [True, False])
def test_half_a_request_never_looks_whole_to_a_worker(reset: bool) -> None:
    @on_data_path(echo, sweep=False)
    async def scenario(path: DataPath) -> None:
        for half in (
            request(b"POST / HTTP/1.1", b"Content-Length: 10") + b"12345",
            request(b"POST / HTTP/1.1", CHUNKED) + chunk(b"12345"),
            request(b"POST / HTTP/1.1", CHUNKED) + b"5\r\n123",
        ):
            seen, ended = len(path.origin.connections), len(path.origin.ended)
            client = await path.connect()
            await client.send(half)
            await path.until(lambda seen=seen: len(path.origin.connections) > seen, "the request under way")  # type: ignore[misc]
            if reset:
                client.reset()
            else:
                client.close()
            await path.until(lambda ended=ended: len(path.origin.ended) > ended, "the upstream connection ended")  # type: ignore[misc]
        client = await path.connect()
        await client.send(post(b"x")[:-20])  # not even a head: no request
        client.close()
        await path.until(lambda: not path.plane.connections, "all gone")
        assert path.origin.requests == []
        assert path.outcomes == {"client_abort": 3}

    scenario()


@on_data_path(Full, timeouts=Timeouts(connect_s=0.6))
async def test_a_caller_that_leaves_while_connecting_is_not_kept(path: DataPath) -> None:
    client = await path.connect()
    await client.send(request())
    await path.until(lambda: path.in_flight, "an attempt")
    left = path.beats
    client.reset()
    await path.until(lambda: not path.in_flight, "released")
    assert path.beats - left <= 3 * GONE_BEATS
    assert path.outcomes == {"client_abort": 1}


@pytest.mark.parametrize("reset", [True, False])
def test_a_caller_that_leaves_while_it_is_not_read_is_seen(reset: bool) -> None:
    @on_data_path(takes, limits=Limits(pipelined=4096))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        await client.send(request())
        await path.until(lambda: path.origin.requests, "the request at the worker")
        await client.send(request() * 1000)
        (connection,) = path.plane.connections
        await path.until(lambda: connection._read_paused, "read no further")
        left = path.beats
        if reset:
            client.reset()
        else:
            client.close()
        await path.until(lambda: path.origin.ended, "the upstream connection ended")
        assert path.beats - left <= GONE_BEATS
        assert path.outcomes == {"client_abort": 1}

    scenario()


async def does_not_read(origin: OriginConnection) -> None:
    """Read nothing, but look whether somebody is still there."""
    there = select.poll()
    there.register(origin.writer.get_extra_info("socket").fileno(), select.POLLRDHUP)
    for _ in range(2000):
        if there.poll(0):
            return
        await asyncio.sleep(0.002)


@on_data_path(does_not_read)
async def test_a_caller_that_resets_while_the_worker_does_not_read_is_seen(path: DataPath) -> None:
    client = await path.connect()
    client.writer.write(request(b"POST / HTTP/1.1", b"Content-Length: %d" % BIG) + b"x" * BIG)
    await path.until(lambda: any(c._peer_full for c in path.plane.connections), "full")
    left = path.beats
    client.reset()
    await path.until(lambda: path.origin.ended, "the upstream connection ended")
    assert path.beats - left <= GONE_BEATS
    assert path.outcomes == {"client_abort": 1}


@on_data_path(takes, takes)
async def test_a_caller_that_leaves_during_the_back_off_is_not_tried_for_again(path: DataPath) -> None:
    client = await path.connect()
    await client.send(request())
    await path.until(lambda: path.origins[0].requests, "at the first worker")
    (connection,) = path.plane.connections
    path.origins[0].connections[0].reset()
    client.reset()
    await path.until(lambda: connection._phase == CLOSED, "gone")
    await asyncio.sleep(0.02)
    assert path.origins[1].connections == []
    assert sum(path.outcomes.values()) == 1


# --- back-pressure --------------------------------------------------------------------------------------------------

BIG = 10 << 20


def sends(total: int, framing: bytes) -> object:
    """Answer with ``total`` bytes, as fast as they are taken; what was taken so far stands in ``taken``."""

    async def script(origin: OriginConnection) -> None:
        await origin.request()
        await origin.send(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n")
        piece = b"x" * 65536
        for _ in range(total // len(piece)):
            await origin.send(chunk(piece) if framing == CHUNKED else piece)
            script.taken += len(piece)  # type: ignore[attr-defined]
        if framing == CHUNKED:
            await origin.send(b"0\r\n\r\n")
        await origin.reader.read()

    script.taken = 0  # type: ignore[attr-defined]
    return script


@pytest.mark.parametrize("framing", [b"Content-Length: %d" % BIG, CHUNKED, b"Connection: close"])
def test_a_slow_reader_slows_the_worker(framing: bytes) -> None:
    script = sends(10 * BIG if framing == b"Connection: close" else BIG, framing)

    @on_data_path(script)  # type: ignore[arg-type]
    async def scenario(path: DataPath) -> None:
        client = await path.connect(receive_buffer=4096)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(request())
        await path.until(lambda: any(c._write_paused for c in path.plane.connections), "full")
        await asyncio.sleep(0.05)
        (connection,) = path.plane.connections
        upstream = connection._upstream
        assert upstream is not None
        assert upstream.paused
        held = connection.transport.get_write_buffer_size()
        assert held < 1 << 20
        if framing == b"Connection: close":
            client.reset()  # enough seen
            return
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        got = await client.answer()
        assert len(got.body) == BIG
        assert path.outcomes == {"ok": 1}
        await path.until(lambda: not upstream.paused, "the worker is read again")
        assert path.pool().pooled == 1

    scenario()


async def reads_slowly(origin: OriginConnection) -> None:
    head = await origin.head()
    await asyncio.sleep(0.2)
    await origin.body(head)
    await origin.send(answer(b"%d" % len(head.body)))


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_a_slow_worker_slows_the_caller(framing: str) -> None:
    @on_data_path(reads_slowly)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        if framing == "length":
            data = request(b"POST / HTTP/1.1", b"Content-Length: %d" % BIG) + b"x" * BIG
        else:
            data = request(b"POST / HTTP/1.1", CHUNKED) + chunk(b"x" * 65536) * (BIG // 65536) + b"0\r\n\r\n"
        sending = asyncio.create_task(client.send(data))
        await path.until(lambda: any(c._peer_full for c in path.plane.connections), "full")
        (connection,) = path.plane.connections
        assert connection._read_paused
        upstream = connection._upstream
        assert upstream is not None
        assert upstream.transport.get_write_buffer_size() < 2 << 20
        assert len(connection._seen) <= path.plane.limits.replay_bytes
        got = await client.answer()
        await sending
        assert got.body == b"%d" % BIG
        assert path.outcomes == {"ok": 1}
        assert (await client.ask(request(b"HEAD / HTTP/1.1"), b"HEAD")).status == 200  # it reads on

    scenario()


@on_data_path(Full, timeouts=Timeouts(connect_s=0.5))
async def test_a_body_without_a_worker_is_read_ahead_up_to_a_limit(path: DataPath) -> None:
    client = await path.connect()
    sending = asyncio.create_task(client.send(post(b"x" * BIG)))
    await path.until(lambda: any(c._read_paused for c in path.plane.connections), "read no further")
    (connection,) = path.plane.connections
    assert 65536 < len(connection._seen) <= 65536 + 262144
    client.reset()
    await asyncio.gather(sending, return_exceptions=True)


# --- errors of our own ----------------------------------------------------------------------------------------------


class BrokenError(Exception):
    """Something nobody foresaw."""


@pytest.mark.interpreted_only(reason="breaks a method of a native class, and native callers do not look it up")
@pytest.mark.parametrize(
    ("owner", "where"),
    [(Plane, "resolve"), (Plane, "upstream"), (Plane, "answered"), (DownstreamConnection, "whole_answer")],
)
def test_an_error_of_our_own_ends_one_request_and_is_told_once(
    owner: type, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @on_data_path(echo)
    async def scenario(path: DataPath) -> None:
        def breaks(*args: object, **kwargs: object) -> None:
            raise BrokenError

        client, bystander = await path.connect(), await path.connect()
        with monkeypatch.context() as broken:
            broken.setattr(owner, where, breaks)
            got = await client.ask(post(b"x"))
            if where == "answered":  # the answer was through already
                assert (got.status, got.body) == (200, b"x")
            else:
                assert (got.status, got.value(b"Connection")) == (500, b"close")
                assert got.value(b"warmroute-outcome") == b"internal"
            assert await client.rest() == b""
        assert path.outcomes == {"internal": 1}
        assert path.in_flight == 0
        assert [type(context["exception"]) for context in path.errors] == [BrokenError]
        path.errors.clear()
        assert (await bystander.ask(post(b"y"))).body == b"y"

    scenario()
