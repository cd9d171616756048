"""Upgrades: what is passed on, what becomes a tunnel, and every way in which a tunnel ends."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from sidecar.faults.rules import FaultRule
from sidecar.settings import Limits, Timeouts
from sidecar.telemetry.page import Scalar
from tests.support.data_path import GONE_BEATS, DataPath, deaf, echo, on_data_path, says
from tests.support.fleet import only
from tests.support.wires import Client, Message, OriginConnection, answer, chunked, post, request

SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: Echo\r\n\r\n"
ASK = request(b"GET /t HTTP/1.1", b"Connection: keep-alive, Upgrade", b"Upgrade: echo/2, ECHO")


async def echoes(origin: OriginConnection) -> None:
    """Switch, then send every byte back; end when the other half ends."""
    await origin.request()
    await origin.send(SWITCHED)
    while data := await origin.reader.read(65536):
        await origin.send(data)


async def opened(path: DataPath, early: bytes = b"") -> tuple[Client, Message]:
    client = await path.connect()
    got = await client.ask(ASK + early)
    assert got.status == 101
    return client, got


@on_data_path(echoes)
async def test_a_switch_makes_a_tunnel_both_ways(path: DataPath) -> None:
    client, got = await opened(path)
    (arrived,) = path.origin.requests
    assert (arrived.value(b"Connection"), arrived.value(b"Upgrade")) == (b"Upgrade", b"echo/2, ECHO")
    assert (got.value(b"Connection"), got.value(b"Upgrade")) == (b"Upgrade", b"Echo")
    assert got.value(b"x-request-id") == arrived.value(b"x-request-id")
    for data in (b"a", b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 300):
        await client.send(data)
        assert await client.reader.readexactly(len(data)) == data
    assert path.in_flight == 1
    assert path.outcomes == {}
    client.writer.write_eof()
    assert await client.rest() == b""
    await path.until(lambda: path.outcomes, "the outcome")
    assert (path.outcomes, path.results) == ({"ok": 1}, {"success": 1})
    assert path.scalar(Scalar.TUNNELS_TOTAL) == 1
    assert path.plane.tunnels == 0


@pytest.mark.parametrize(
    "faults", [{"kind": "delay", "delay_ms": 20.0}, {"kind": "slicing", "piece_bytes": 5, "direction": "response"}]
)
def test_a_tunnel_goes_through_faults(faults: dict[str, Any]) -> None:
    @on_data_path(echoes)
    async def scenario(path: DataPath) -> None:
        path.inject(FaultRule(id="f", ratio=1.0, until=path.plane.clock() + 60, **faults))
        client, _ = await opened(path)
        await client.send(b"x" * 1000)
        client.writer.write_eof()  # behind what is held back
        assert await client.rest() == b"x" * 1000
        await path.until(lambda: path.outcomes, "the outcome")
        assert (path.outcomes, path.results) == ({"ok": 1}, {"success": 1})
        assert path.plane.tunnels == 0

    scenario()


@on_data_path(echoes)
async def test_a_tunnel_is_reset_by_a_fault(path: DataPath) -> None:
    path.inject(FaultRule("f", "reset", 1.0, until=path.plane.clock() + 60, after_bytes=len(SWITCHED) + 3))
    client, _ = await opened(path)
    await client.send(b"abcdef")
    assert await client.rest() == b"abc"
    await path.until(lambda: path.outcomes, "the outcome")
    assert path.results == {"cut": 1}


async def speaks_first(origin: OriginConnection) -> None:
    await origin.request()
    await origin.send(SWITCHED + b"first")
    await origin.send(await origin.reader.readexactly(5))


@on_data_path(speaks_first)
async def test_bytes_that_came_early_are_not_lost(path: DataPath) -> None:
    client, _ = await opened(path, b"early")
    assert await client.reader.readexactly(10) == b"firstearly"


@on_data_path(says(answer(b"no", status=b"403 Forbidden"), answer(b"yes")))
async def test_anything_but_101_is_an_ordinary_answer(path: DataPath) -> None:
    client = await path.connect()
    assert (await client.ask(ASK + request(b"GET /next HTTP/1.1"))).status == 403
    assert (await client.answer()).body == b"yes"
    assert [message.start for message in path.origin.requests] == [b"GET /t HTTP/1.1", b"GET /next HTTP/1.1"]
    assert len(path.origin.connections) == 1
    assert path.outcomes == {"upstream_4xx": 1, "ok": 1}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (SWITCHED.replace(b"Echo", b"other"), b"switched to"),
        (SWITCHED.replace(b"Echo", b"Echo, other"), b"switched to"),
        (SWITCHED.replace(b"Connection: upgrade\r\n", b""), b"Upgrade"),
        (SWITCHED.replace(b"Upgrade: Echo\r\n", b""), b"Upgrade"),
        (SWITCHED.replace(b"1.1", b"1.0"), b"an upgrade without a 101"),
        (SWITCHED.replace(b"Echo", b"a b"), b"not a list of protocols"),
    ],
)
def test_a_switch_to_what_was_not_asked_is_502(said: bytes, why: bytes) -> None:
    @on_data_path(says(said))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        got = await client.ask(ASK)
        assert (got.status, got.value(b"warmroute-outcome")) == (502, b"upstream_protocol")
        assert why in got.body
        await path.until(lambda: path.origin.ended, "the upstream connection ended")
        assert path.plane.tunnels == 0

    scenario()


@pytest.mark.parametrize(
    "asked",
    [
        request(b"GET / HTTP/1.0", b"Connection: upgrade", b"Upgrade: echo"),
        request(b"GET / HTTP/1.1", b"Upgrade: echo"),
        request(b"GET / HTTP/1.1", b"Connection: Upgrade"),
        request(b"GET / HTTP/1.1", b"Connection: Upgrade", b"Upgrade:"),
        request(b"OPTIONS / HTTP/1.1", b"Connection: Upgrade", b"Upgrade: echo"),
        request(b"GET / HTTP/1.1", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"),
        post(b"x", b"Connection: Upgrade", b"Upgrade: echo"),
        request(b"GET / HTTP/1.1", b"Connection: Upgrade", b"Upgrade: echo", b"Transfer-Encoding: chunked")
        + chunked(b"x"),
    ],
)
def test_what_is_no_upgrade_goes_on_without_its_fields(asked: bytes) -> None:
    @on_data_path(echo)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        assert (await client.ask(asked)).status == 200
        (arrived,) = path.origin.requests
        for name in (b"Connection", b"Upgrade", b"HTTP2-Settings"):
            assert arrived.values(name) == []

    scenario()


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (request(b"GET / HTTP/1.1", b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c"), 501),
        (request(b"GET / HTTP/1.1", b"Connection: Upgrade", b"Upgrade: h2c-14"), 501),
        (request(b"GET / HTTP/1.1", b"Connection: Upgrade", b"Upgrade: websocket, H2-17"), 501),
        (request(b"GET / HTTP/1.1", b"Connection: upgrade", b"Upgrade: websocket", b"Upgrade: H2C"), 501),
        (request(b"OPTIONS * HTTP/1.1", b"Connection: Upgrade", b"Upgrade: TLS/1.0"), 501),
        (post(b"x", b"Connection: upgrade", b"Upgrade: HTTP/2.0"), 501),
        (post(b"x", b"Connection: upgrade", b"Upgrade: websocket"), 400),
        (request(b"GET / HTTP/1.1", b"Connection: Upgrade", b"Upgrade: a b"), 400),
        (request(b"CONNECT a.test:443 HTTP/1.1"), 501),
    ],
)
def test_what_no_tunnel_is_made_for_is_refused(asked: bytes, status: int) -> None:
    @on_data_path(echo)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        got = await client.ask(asked)
        assert (got.status, got.value(b"Connection")) == (status, b"close")
        assert await client.rest() == b""
        assert path.origin.connections == []

    scenario()


@pytest.mark.parametrize("reset", [True, False])
def test_a_caller_that_leaves_ends_the_other_side_at_once(reset: bool) -> None:
    @on_data_path(echoes, sweep=False)
    async def scenario(path: DataPath) -> None:
        client, _ = await opened(path)
        left = path.beats
        if reset:
            client.reset()
        else:
            client.close()
        await path.until(lambda: path.origin.ended, "the upstream connection ended")
        assert path.beats - left <= GONE_BEATS
        await path.until(lambda: path.outcomes, "the outcome")
        assert path.outcomes == ({"client_abort": 1} if reset else {"ok": 1})

    scenario()


async def switches_and_reads_no_more(origin: OriginConnection) -> None:
    await origin.request()
    await origin.send(SWITCHED)
    await deaf(origin)


@on_data_path(switches_and_reads_no_more)
async def test_a_caller_that_resets_is_seen_though_the_worker_does_not_read(path: DataPath) -> None:
    client, _ = await opened(path)
    (connection,) = path.plane.connections
    client.writer.write(bytes(32 << 20))
    await path.until(lambda: connection._read_paused, "a pause")
    left = path.beats
    client.reset()
    await path.until(lambda: path.outcomes, "the abort")
    assert path.beats - left <= GONE_BEATS
    assert path.outcomes == {"client_abort": 1}
    assert not path.pool().open_connections


@pytest.mark.parametrize("reset", [True, False])
def test_a_worker_that_leaves_ends_the_other_side_at_once(reset: bool) -> None:
    async def leaves(origin: OriginConnection) -> None:
        await origin.request()
        await origin.send(SWITCHED + b"last words")
        await origin.reader.readexactly(1)
        if reset:
            origin.reset()

    @on_data_path(leaves, sweep=False)
    async def scenario(path: DataPath) -> None:
        client, _ = await opened(path)
        await client.send(b"x")
        left = path.beats
        assert await client.rest() == b"last words"
        assert path.beats - left <= GONE_BEATS
        client.close()
        await path.until(lambda: path.outcomes, "the outcome")
        assert path.outcomes == ({"upstream_cut": 1} if reset else {"ok": 1})
        assert only(path.cluster.endpoints["o0"]).untold.failures == 0  # a tunnel's end says nothing of its endpoint

    scenario()


async def tells_much_and_breaks(origin: OriginConnection) -> None:
    await origin.request()
    await origin.send(SWITCHED)
    await origin.reader.readexactly(1)
    await origin.send(bytes(100_000))
    await origin.reader.readexactly(1)
    origin.reset()


@on_data_path(tells_much_and_breaks, limits=Limits(read_grace_s=0.3))
async def test_behind_a_tunnel_too_a_caller_counts_until_it_takes_what_was_sent(path: DataPath) -> None:
    client = await path.connect(receive_buffer=4096)
    await client.ask(ASK)
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await client.send(b"x")
    await asyncio.sleep(0.1)
    await client.send(b"x")
    await path.until(lambda: path.outcomes == {"upstream_cut": 1}, "the worker's end")
    await asyncio.sleep(0.2)
    (connection,) = path.plane.connections
    assert connection.transport.get_write_buffer_size() == 0
    await path.until(lambda: not path.plane.connections, "given up", 4.0)
    assert path.scalar(Scalar.SLOW_READERS_TOTAL) == 1


async def answers_at_the_end(origin: OriginConnection) -> None:
    await origin.request()
    await origin.send(SWITCHED)
    data = await origin.reader.read()
    await asyncio.sleep(0.05)
    await origin.send(b"%d" % len(data))


@on_data_path(answers_at_the_end)
async def test_one_half_may_end_before_the_other(path: DataPath) -> None:
    client, _ = await opened(path)
    await client.send(b"x" * 100_000)
    client.writer.write_eof()
    assert await client.rest() == b"100000"


def test_a_worker_that_ends_its_half_first_still_gets_all_that_its_caller_sent() -> None:
    total = 32 << 20
    took: list[int] = []
    full, go = asyncio.Event(), asyncio.Event()

    async def reads_later(origin: OriginConnection) -> None:
        await origin.request()
        await origin.send(SWITCHED)
        await full.wait()
        origin.writer.write_eof()
        await go.wait()
        took.append(len(await origin.reader.read()))

    @on_data_path(reads_later)
    async def scenario(path: DataPath) -> None:
        client, _ = await opened(path)
        (connection,) = path.plane.connections
        client.writer.write(bytes(total))
        client.writer.write_eof()
        await path.until(lambda: connection._read_paused, "the worker is full")
        full.set()
        assert await client.rest() == b""
        await asyncio.sleep(0.05)  # both sides have ended: the kernel calls that a hangup
        path.plane.hangups.look()
        go.set()
        await path.until(lambda: took, "the worker has read to the end")
        assert took == [total]
        await path.until(lambda: path.outcomes, "the outcome")
        assert (path.outcomes, path.results) == ({"ok": 1}, {"success": 1})

    scenario()


async def resets_at_the_end(origin: OriginConnection) -> None:
    await origin.request()
    await origin.send(SWITCHED + b"half of it")
    await origin.reader.read()
    origin.reset()


@on_data_path(resets_at_the_end)
async def test_a_worker_that_breaks_off_behind_its_caller_s_end_is_cut(path: DataPath) -> None:
    client, _ = await opened(path)
    assert await client.reader.readexactly(10) == b"half of it"
    client.writer.write_eof()
    assert await client.rest() == b""
    await path.until(lambda: path.outcomes, "the outcome")
    assert (path.outcomes, path.results) == ({"upstream_cut": 1}, {"cut": 1})


@pytest.mark.parametrize("who", ["caller", "worker"])
def test_whoever_does_not_read_stops_the_other_and_loses_nothing(who: str) -> None:
    total = 32 << 20
    go = asyncio.Event()

    async def far_end(origin: OriginConnection) -> None:
        await origin.request()
        await origin.send(SWITCHED)
        if who == "caller":
            origin.writer.write(bytes(total))
            await origin.writer.drain()
        else:
            await go.wait()
            left = total
            while left:
                left -= len(await origin.reader.read(1 << 20))
        await origin.send(b"end")

    @on_data_path(far_end)
    async def scenario(path: DataPath) -> None:
        client = await path.connect(receive_buffer=65536)
        assert (await client.ask(ASK)).status == 101
        (connection,) = path.plane.connections
        (upstream,) = path.pool().open_connections
        if who == "worker":
            client.writer.write(bytes(total))
        stuck, moved = (-1, -1), (0, 0)
        while stuck != moved:
            stuck = moved
            await asyncio.sleep(0.05)
            moved = path.plane.received_bytes, path.pool().sent_bytes
        assert 0 < max(moved) < total
        assert upstream.paused if who == "caller" else connection._read_paused
        for side in (connection, upstream):
            assert side.transport.get_write_buffer_size() < 1 << 20
        go.set()
        expected = b"end" if who == "worker" else bytes(total) + b"end"
        assert await client.reader.readexactly(len(expected)) == expected

    scenario()


@on_data_path(echoes, timeouts=Timeouts(tunnel_idle_s=0.8, stream_idle_s=0.1, response_head_s=0.5))
async def test_a_tunnel_may_be_silent_for_its_own_time_only(path: DataPath) -> None:
    client, _ = await opened(path)
    for _ in range(4):  # longer than the idle time in all
        await asyncio.sleep(0.25)
        await client.send(b"x")
        assert await client.reader.readexactly(1) == b"x"
    assert await client.rest() == b""
    assert path.outcomes == {"tunnel_idle": 1}
    await path.until(lambda: path.origin.ended, "the upstream connection ended")


@on_data_path(echoes, timeouts=Timeouts(total_s=1.0))
async def test_the_time_of_a_request_ends_with_its_101(path: DataPath) -> None:
    client = await path.connect()
    await client.ask(ASK.replace(b"Upgrade: echo/2", b"x-request-timeout-ms: 500\r\nUpgrade: echo/2"))
    await asyncio.sleep(1.3)
    await client.send(b"x")
    assert await client.reader.readexactly(1) == b"x"


@on_data_path(echoes, limits=Limits(read_rate_bytes_per_s=1 << 30, read_grace_s=0.1))
async def test_a_caller_that_does_not_take_what_waits_for_it_is_cut(path: DataPath) -> None:
    client = await path.connect(receive_buffer=65536)
    await client.ask(ASK)
    client.writer.write(bytes(32 << 20))
    await path.until(lambda: path.outcomes, "the cut")
    assert path.outcomes == {"client_timeout": 1}
    assert path.plane.tunnels == 0


@on_data_path(echoes)
async def test_a_tunnel_lives_through_a_drain_until_the_grace_period_ends(path: DataPath) -> None:
    client, _ = await opened(path)
    path.plane.drain(time.monotonic() - 60.0)
    await asyncio.sleep(0.05)
    await client.send(b"x")
    assert await client.reader.readexactly(1) == b"x"
    assert path.plane.cut_all() == 1
    assert await client.rest() == b""
    assert path.outcomes == {"drain_cut": 1}
    await path.until(lambda: path.origin.ended, "the upstream connection ended")


@on_data_path(echoes)
async def test_a_tunnel_counts_as_long_as_it_took_to_open(path: DataPath) -> None:
    client, _ = await opened(path)
    endpoint = path.cluster.endpoints["o0"]
    await asyncio.sleep(0.5)
    client.close()
    await path.until(lambda: path.outcomes, "the outcome")
    assert only(endpoint).latency.ewma_ms < 450


@on_data_path(echoes)
async def test_an_error_of_our_own_ends_a_tunnel_once(path: DataPath) -> None:
    client, _ = await opened(path)
    (connection,) = path.plane.connections
    connection.crashed(RuntimeError("a defect"))
    assert await client.rest() == b""
    assert path.outcomes == {"internal": 1}
    assert [str(context["exception"]) for context in path.errors] == ["a defect"]
    path.errors.clear()
