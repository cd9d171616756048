"""Upstream connections: kept and reused while they are clean, never after anything odd."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import pytest

from router.model import EndpointGone, EndpointHeld, GoneReason
from router.outcomes import AttemptResult
from sidecar.http1.transports import unread
from sidecar.settings import Limits, Timeouts
from sidecar.telemetry.page import Scalar
from sidecar.upstreams.pool import split_address
from tests.support.data_path import DataPath, Origin, Refusing, echo, on_data_path, says
from tests.support.wires import CHUNKED, OriginConnection, answer, chunked, post, request


async def numbered(origin: OriginConnection) -> None:
    """Answer with the port of the other end, which names the connection."""
    port = origin.writer.get_extra_info("peername")[1]
    while True:
        await origin.request()
        await asyncio.sleep(0.02)
        await origin.send(answer(b"%d" % port))


@on_data_path(numbered)
async def test_the_connection_used_last_is_used_next(path: DataPath) -> None:
    first, second = await path.connect(), await path.connect()
    await first.send(request())
    await asyncio.sleep(0.005)
    await second.send(request())
    one, two = (await first.answer()).body, (await second.answer()).body
    assert one != two
    await path.until(lambda: path.pool().pooled == 2, "both pooled")
    assert (await first.ask(request())).body == two
    assert (await second.ask(request())).body == two
    assert path.scalar(Scalar.UPSTREAM_CONNECTIONS_TOTAL) == 2


@on_data_path(says(answer(b"x"), close=True))
async def test_a_connection_closed_meanwhile_is_not_used(path: DataPath) -> None:
    client = await path.connect()
    for _ in range(3):
        assert (await client.ask(request())).body == b"x"
        await path.until(lambda: path.pool().pooled == 0, "noticed")
    assert path.outcomes == {"ok": 3}
    assert len(path.origin.connections) == 3


@pytest.mark.parametrize("trace", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong"])
def test_what_waits_unread_is_seen_before_a_connection_is_used(trace: bytes) -> None:
    """A FIN, or an answer nobody asked for, that the kernel holds and the loop has not read yet."""

    @on_data_path(echo)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        await client.ask(post(b"a"))
        pool = path.pool()
        (connection,) = pool.idle
        connection.transport.pause_reading()  # as if the loop had no time yet
        if trace:
            await path.origin.connections[0].send(trace)
        else:
            path.origin.connections[0].close()
        await asyncio.sleep(0.02)
        assert unread(connection.transport)
        assert (await client.ask(post(b"b"))).body == b"b"
        assert path.scalar(Scalar.UPSTREAM_STALE_TOTAL) == 1
        assert path.outcomes == {"ok": 2}
        assert path.results == {"success": 2}

    scenario()


@on_data_path(echo)
async def test_an_idle_connection_that_speaks_is_dropped(path: DataPath) -> None:
    client = await path.connect()
    await client.ask(post(b"a"))
    await path.origin.connections[0].send(answer(b"smuggled"))
    await path.until(lambda: path.pool().pooled == 0, "dropped")
    assert path.scalar(Scalar.UPSTREAM_POISONED_TOTAL) == 1
    assert (await client.ask(post(b"b"))).body == b"b"
    assert path.outcomes == {"ok": 2}


@pytest.mark.parametrize(
    "given",
    [
        answer(b"a") + b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong",
        b"HTTP/1.1 200 OK\r\n" + CHUNKED + b"\r\n\r\n" + chunked(b"a") + b"X",
        b"HTTP/1.1 204 No Content\r\n\r\nX",
        answer(b"a", b"Connection: close"),
        b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na",
    ],
)
def test_a_connection_is_used_once_where_its_answer_says_so_or_more(given: bytes) -> None:
    @on_data_path(says(given))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        for _ in range(2):
            got = await client.ask(request())
            assert got.body in (b"a", b"")
        assert path.outcomes == {"ok": 2}
        assert len(path.origin.connections) == 2
        assert path.pool().pooled == 0

    scenario()


@on_data_path(says(b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\na"))
async def test_an_old_worker_that_keeps_alive_is_kept(path: DataPath) -> None:
    client = await path.connect()
    for _ in range(2):
        got = await client.ask(request())
        assert (got.start, got.values(b"Connection")) == (b"HTTP/1.1 200 OK", [])
    assert len(path.origin.connections) == 1


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", b"Content-Length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n" + CHUNKED + b"\r\n\r\nhello", b"Content-Length"),
        (b"HTTP/1.1 200 OK\r\n" + CHUNKED + b"\r\n\r\nxx\r\n", b"chunk size"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", b"switched protocols"),
        (b"SSH-2.0-OpenSSH\n", b"not HTTP"),
        (b"HTTP/1.1 200 OK\nContent-Length: 1\n\na", b"not HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70000 + b"\r\n\r\n", b"over the limit"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70000, b"over the limit"),
    ],
)
def test_an_answer_without_one_reading_becomes_502(given: bytes, why: bytes) -> None:
    @on_data_path(says(given))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        got = await client.ask(request())
        assert (got.status, got.value(b"warmroute-outcome")) == (502, b"upstream_protocol")
        assert why in got.body
        assert path.results == {"protocol": 1}
        await path.until(lambda: path.origin.ended, "the upstream connection ended")
        assert path.pool().pooled == 0

    scenario()


@on_data_path(echo, timeouts=Timeouts(upstream_keep_alive_s=0.05))
async def test_idle_connections_expire(path: DataPath) -> None:
    client = await path.connect()
    await client.ask(post(b"a"))
    await asyncio.sleep(0.06)
    assert (await client.ask(post(b"b"))).body == b"b"  # not on the old one, swept or not
    assert len(path.origin.connections) == 2
    await asyncio.sleep(0.06)
    path.plane.flush(path.plane.clock())
    assert path.pool().pooled == 0
    await path.until(lambda: len(path.origin.ended) == 2, "closed")


@on_data_path(numbered, limits=Limits(pooled_per_endpoint=1))
async def test_only_so_many_idle_connections_are_kept(path: DataPath) -> None:
    clients = [await path.connect() for _ in range(3)]
    for client in clients:
        await client.send(request())
    for client in clients:
        assert (await client.answer()).status == 200
    await path.until(lambda: len(path.origin.ended) == 2, "two closed")
    assert path.pool().pooled == 1
    path.plane.flush(path.plane.clock())
    assert path.scalar(Scalar.UPSTREAM_POOLED_NOW) == path.scalar(Scalar.UPSTREAM_CONNECTIONS_NOW) == 1


def test_workers_on_unix_sockets_are_pooled_and_looked_at_too(tmp_path: Path) -> None:
    @on_data_path(Origin(echo, str(tmp_path / "worker.sock")))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        assert (await client.ask(post(b"a"))).body == b"a"
        (connection,) = path.pool().idle
        assert connection.transport.get_extra_info("socket").family == socket.AF_UNIX
        assert not unread(connection.transport)
        await asyncio.sleep(0.02)
        assert (await client.ask(post(b"b"))).body == b"b"
        assert len(path.origin.connections) == 1
        connection.transport.pause_reading()
        path.origin.connections[0].close()
        await asyncio.sleep(0.02)
        await path.until(lambda: unread(connection.transport), "the end is seen")
        await asyncio.sleep(0.02)
        assert (await client.ask(post(b"c"))).body == b"c"
        assert path.scalar(Scalar.UPSTREAM_STALE_TOTAL) == 1

    scenario()


@on_data_path(echo)
async def test_a_connection_that_nobody_wants_any_more_is_kept_for_the_next(path: DataPath) -> None:
    pool = path.plane.upstream(path.cluster.endpoints["o0"])
    pool.connect(None, lambda: False)  # type: ignore[arg-type]
    await path.until(lambda: pool.pooled == 1, "pooled")
    client = await path.connect()
    assert (await client.ask(post(b"x"))).body == b"x"
    assert path.scalar(Scalar.UPSTREAM_CONNECTIONS_TOTAL) == 1


async def hangs_up(origin: OriginConnection) -> None:
    origin.reset()


@on_data_path(hangs_up, echo, idempotent=True)
async def test_a_worker_that_hangs_up_at_once_is_left_for_another(path: DataPath) -> None:
    client = await path.connect()
    assert (await client.ask(post(b"x"))).body == b"x"
    assert path.outcomes == {"ok": 1}
    assert path.results["success"] == 1
    assert sum(path.results.values()) == 2


@on_data_path(echo)
async def test_an_endpoint_that_left_ends_with_its_last_answer(path: DataPath) -> None:
    async def slow(origin: OriginConnection) -> None:
        await origin.request()
        await asyncio.sleep(0.05)
        await origin.send(answer(b"last"))
        await origin.reader.read()

    path.origin.script = slow
    client = await path.connect()
    await client.send(request())
    await path.until(lambda: path.origin.requests, "under way")
    endpoint = path.cluster.endpoints["o0"]
    now = path.plane.clock()
    path.cluster.apply(EndpointGone("o0", GoneReason.REMOVED, now), now)
    assert path.plane.bury() == ["o0"]
    assert dict(path.plane.page.endpoints()).keys() == {"_other"}
    assert (await client.answer()).body == b"last"
    assert endpoint.in_flight == 0
    assert endpoint.shell.pooled == 0
    await path.until(lambda: path.origin.ended, "closed")
    assert path.results == {"success": 1}  # counted, but under no other endpoint's name
    assert (await client.ask(request())).status == 503


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("http://127.0.0.1:80", ("127.0.0.1", 80, None)),
        ("http://a.test/", ("a.test", 80, None)),
        ("http://[::1]:9", ("::1", 9, None)),
        ("http://[::1]", ("::1", 80, None)),
        ("https://a.test", ("a.test", 443, None)),
        ("https://a.test:8443/", ("a.test", 8443, None)),
        ("unix:/run/w.sock", ("", 0, "/run/w.sock")),
    ],
)
def test_addresses_of_workers(address: str, parts: tuple[str, int, str | None]) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize("address", ["ftp://a:1", "a:1", "http://", "http://a:b", "http://a:65536", "http://a:²", ""])
def test_what_is_no_address_of_a_worker_is_said_so(address: str) -> None:
    with pytest.raises(ValueError, match="must be HOST:PORT after http://, https://"):
        split_address(address)


@on_data_path(echo)
async def test_an_address_that_is_none_counts_as_a_worker_that_is_not_there(path: DataPath) -> None:
    path.cluster.endpoints["o0"].address = "grpc://somewhere"
    client = await path.connect()
    got = await client.ask(request())
    assert (got.status, got.value(b"warmroute-outcome")) == (502, b"connect_failed")
    assert path.results == {AttemptResult.CONNECT_REFUSED.value: 1}


@on_data_path(echo)
async def test_an_endpoint_may_be_a_name(path: DataPath) -> None:
    path.cluster.endpoints["o0"].address = path.origin.address.replace("127.0.0.1", "localhost")
    client = await path.connect()
    assert (await client.ask(post(b"x"))).body == b"x"


class NamedNowhere(Refusing):
    """A name that no resolver knows (RFC 2606)."""

    async def start(self) -> None:
        self.address = "http://worker.invalid:80"


@on_data_path(NamedNowhere, echo, timeouts=Timeouts(connect_s=1.0))
async def test_a_name_that_leads_nowhere_costs_no_more_than_the_time_to_connect(path: DataPath) -> None:
    """Whatever the resolver does: it may answer at once, or be silent for long."""
    lost, other = await path.connect(), await path.connect()
    began = time.monotonic()
    await lost.send(post(b"lost"))
    await path.until(lambda: path.in_flight or path.results, "in flight, or refused already")
    path.cluster.apply(EndpointHeld("o0", True, began), began)
    assert (await other.ask(post(b"other"))).body == b"other"
    assert time.monotonic() - began < 1.0  # nobody else waits for a name
    assert (await lost.answer()).body == b"lost"
    assert time.monotonic() - began < 3
    assert path.results["success"] == 2
    assert path.results.get("connect_refused", 0) + path.results.get("connect_timeout", 0) == 1
