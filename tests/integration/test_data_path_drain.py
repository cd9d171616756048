"""Draining inside one process: who is answered, who is closed when, and what the end of the grace period does."""

from __future__ import annotations

import asyncio
import os

import pytest

from sidecar.settings import Timeouts
from sidecar.telemetry.page import Scalar
from tests.support.data_path import EARLY_S, DataPath, echo, on_data_path, silent
from tests.support.wires import CHUNKED, OriginConnection, answer, chunk, post, request


async def on_command(origin: OriginConnection) -> None:
    """Begin an answer, and end it once the next byte comes from nowhere (the test feeds it)."""
    await origin.request()
    await origin.send(b"HTTP/1.1 200 OK\r\n" + CHUNKED + b"\r\n\r\n" + chunk(b"begun"))
    await origin.reader.read(1)
    await origin.send(b"0\r\n\r\n")


@on_data_path(echo)
async def test_every_answer_from_now_on_closes_its_connection(path: DataPath) -> None:
    client = await path.connect()
    assert (await client.ask(post(b"a"))).values(b"Connection") == []
    path.plane.drain(path.plane.clock())
    assert path.scalar(Scalar.DRAINING_NOW) == 1
    got = await client.ask(post(b"b") + post(b"behind it"))
    assert (got.body, got.value(b"Connection")) == (b"b", b"close")
    assert await client.rest() == b""
    assert path.outcomes == {"ok": 2}


@on_data_path(echo, default=False)
async def test_so_does_an_answer_of_our_own(path: DataPath) -> None:
    client = await path.connect()
    path.plane.drain(path.plane.clock())
    got = await client.ask(request())
    assert (got.status, got.value(b"Connection")) == (404, b"close")
    assert await client.rest() == b""


@on_data_path(echo, default=False)
async def test_one_that_is_leaving_says_so_and_serves_on(path: DataPath) -> None:
    client = await path.connect()
    path.plane.leave()
    assert path.scalar(Scalar.DRAINING_NOW) == 1
    got = await client.ask(request(b"GET /v2/health/ready HTTP/1.1"))
    assert (got.status, got.value(b"Retry-After") != b"") == (503, True)
    for _ in range(2):
        got = await (await path.connect()).ask(request(b"GET /v2/health/live HTTP/1.1"))
        assert (got.status, got.values(b"Connection")) == (200, [])


@on_data_path(echo, timeouts=Timeouts(drain_idle_s=0.0))
async def test_a_request_that_waits_unread_in_an_idle_connection_is_answered(path: DataPath) -> None:
    client = await path.connect()
    await client.ask(post(b"a"))
    path.plane.drain(path.plane.clock())
    os.write(client.writer.get_extra_info("socket").fileno(), post(b"b"))
    path.plane.sweep(path.plane.clock())
    got = await client.answer()
    assert (got.body, got.value(b"Connection")) == (b"b", b"close")


@on_data_path(on_command)
async def test_who_was_not_told_in_a_stream_s_head_may_ask_once_more(path: DataPath) -> None:
    client = await path.connect()
    await client.send(request())
    head = await client.head()
    assert head.values(b"Connection") == []
    path.plane.drain(path.plane.clock())
    await asyncio.sleep(path.plane.timeouts.drain_idle_s + 0.4)
    path.origin.connections[0].reader.feed_data(b"!")
    assert (await client.body(head)).body == b"begun"
    await client.send(request())
    head = await client.head()
    assert head.values(b"Connection") == [b"close"]
    path.origin.connections[1].reader.feed_data(b"!")
    assert (await client.body(head)).body == b"begun"
    assert await client.rest() == b""
    assert path.outcomes == {"ok": 2}


@on_data_path(on_command)
async def test_a_stream_runs_to_its_end_and_then_the_plane_is_empty(path: DataPath) -> None:
    drained = asyncio.Event()
    path.plane.drained = drained.set
    client, idle = await path.connect(), await path.connect()
    await client.send(request())
    head = await client.head()
    began = path.plane.clock()
    path.plane.drain(began)
    assert await idle.rest() == b""
    assert path.plane.timeouts.drain_idle_s == 1.0
    assert path.plane.clock() - began >= 1.0 - EARLY_S
    assert not drained.is_set()
    path.origin.connections[0].reader.feed_data(b"!")
    assert (await client.body(head)).body == b"begun"
    assert await client.rest() == b""
    await asyncio.wait_for(drained.wait(), 1.0)
    assert path.outcomes == {"ok": 1}


@pytest.mark.parametrize("old", [False, True])
def test_the_end_of_the_grace_period_cuts_what_has_begun(old: bool) -> None:
    @on_data_path(on_command)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        await client.send(request(b"GET / HTTP/1.0" if old else b"GET / HTTP/1.1"))
        head = await client.head()
        path.plane.drain(path.plane.clock())
        assert path.plane.cut_all() == 1
        if old:
            assert await client.ended()
        else:
            with pytest.raises(asyncio.IncompleteReadError):
                await client.body(head)
        assert path.outcomes == {"drain_cut": 1}
        assert path.results == {"cancelled": 1}

    scenario()


@on_data_path(silent)
async def test_the_end_of_the_grace_period_tells_those_who_wait(path: DataPath) -> None:
    waiting, sending, idle, reading = [await path.connect() for _ in range(4)]
    await waiting.send(post(b"x", target=b"/v2/models/m/infer"))
    await sending.send(request(b"POST / HTTP/1.1", b"Content-Length: 9") + b"x")
    await reading.send(b"GET / HT")
    await path.until(lambda: path.in_flight == 2, "both under way")
    path.plane.drain(path.plane.clock())
    assert path.plane.cut_all() == 2
    got = await waiting.answer()
    assert (got.status, got.value(b"Connection")) == (503, b"close")
    assert got.body == b'{"error":"the proxy is shutting down"}'
    assert (await sending.answer()).body == b"503 Service Unavailable: the proxy is shutting down\n"
    for client in (idle, reading):
        assert await client.rest() == b""
    assert path.outcomes == {"draining": 2}


@on_data_path(lambda origin: says_much(origin))
async def test_what_was_written_still_arrives_at_a_slow_reader(path: DataPath) -> None:
    client = await path.connect(receive_buffer=4096)
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    path.plane.drain(path.plane.clock())
    await client.send(request())
    await path.until(lambda: path.outcomes == {"ok": 1}, "the answer is here")
    await asyncio.sleep(0.05)
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    assert (await client.answer()).body == b"x" * (1 << 20)


async def says_much(origin: OriginConnection) -> None:
    await origin.request()
    await origin.send(answer(b"x" * (1 << 20)))
    await origin.reader.read()
