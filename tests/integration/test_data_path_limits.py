"""Limits and times of the data path: what is over one is refused or cut, said in the right words, and counted once."""

from __future__ import annotations

import asyncio
import socket

import pytest

from router.matching import Surface
from router.outcomes import Outcome
from router.policy import ModelPolicy, Policies, RetryPolicy
from sidecar.http1.answers import error_answer
from sidecar.http1.downstream import DownstreamConnection
from sidecar.settings import Limits, Timeouts
from sidecar.telemetry.page import Scalar
from tests.support.data_path import DataPath, Full, Refusing, deaf, echo, on_data_path, silent
from tests.support.wires import CHUNKED, Client, OriginConnection, answer, chunk, post, request

SMALL = Limits(head_bytes=2048, target_bytes=128, fields=10, body_bytes=1000, pipelined=4096)
SHORT_S = 0.1
ONCE = Policies(retry=RetryPolicy(attempts=0))


@pytest.mark.parametrize(
    ("data", "outcome", "status"),
    [
        (request(b"GET /" + b"a" * 128 + b" HTTP/1.1"), "target_too_long", 414),
        (b"GET /" + b"a" * 200, "target_too_long", 414),
        (request(b"GET / HTTP/1.1", b"X: " + b"a" * 2048), "head_too_large", 431),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 2048, "head_too_large", 431),
        (request(b"GET / HTTP/1.1", *[b"X: " + b"a" * 60] * 10), "head_too_large", 431),
        (request(b"POST / HTTP/1.1", b"Content-Length: 1001"), "body_too_large", 413),
        (request(b"POST / HTTP/1.1", CHUNKED) + chunk(b"a" * 1001), "body_too_large", 413),
        (request(b"POST / HTTP/1.1", CHUNKED) + b"3e9\r\n", "body_too_large", 413),
        (request(b"POST / HTTP/1.1", CHUNKED) + b"5\r\nhelloX", "bad_request", 400),
        (request(b"POST / HTTP/1.1", b"Expect: more", b"Content-Length: 1"), "expectation_failed", 417),
        (request(b"GET / HTTP/3.0"), "http_version", 505),
        (request(b"BREW / HTTP/1.1"), "not_implemented", 501),
        (b"\x16\x03\x01\x02\x00\x01", "bad_request", 400),
        (b"GET / HTTP/1.1\nHost: a\n\n", "bad_request", 400),
    ],
)
def test_what_is_over_a_limit_is_refused_and_closed(data: bytes, outcome: str, status: int) -> None:
    @on_data_path(silent, limits=SMALL)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        got = await client.ask(data)
        assert (got.status, got.value(b"warmroute-outcome")) == (status, outcome.encode())
        assert got.value(b"Connection") == b"close"
        assert await client.rest() == b""
        assert path.outcomes == {outcome: 1}
        assert path.scalar(Scalar.SENT_BYTES) == len(got.raw)
        assert path.origin.requests == []

    scenario()


@on_data_path(echo, limits=SMALL)
async def test_what_is_just_within_the_limits_passes(path: DataPath) -> None:
    client = await path.connect()
    body = b"a" * 1000
    assert (await client.ask(post(body, target=b"/" + b"a" * 127))).body == body
    await client.send(request(b"POST / HTTP/1.1", CHUNKED) + chunk(b"a" * 600) + chunk(b"a" * 400) + b"0\r\n\r\n")
    assert (await client.answer()).body == body
    assert path.outcomes == {"ok": 2}


@on_data_path(echo, limits=Limits(connections=2))
async def test_connections_over_the_limit_are_told_so(path: DataPath) -> None:
    first, second = await path.connect(), await path.connect()
    assert (await first.ask(request())).status == (await second.ask(request())).status == 200
    third = await path.connect()
    assert await third.rest() == error_answer(Surface.PLAIN, Outcome.OVERLOADED, "too many connections", close=True)
    third.close()
    await path.until(lambda: len(path.plane.connections) == 2, "the third gone")
    second.close()
    await path.until(lambda: len(path.plane.connections) == 1, "the second gone")
    fourth = await path.connect()
    assert (await fourth.ask(request())).status == 200
    assert path.scalar(Scalar.REFUSED_CONNECTIONS_TOTAL) == 1
    assert path.scalar(Scalar.CONNECTIONS_TOTAL) == 4
    assert path.outcomes == {"ok": 3}


async def slow_echo(origin: OriginConnection) -> None:
    while True:
        got = await origin.request()
        await asyncio.sleep(0.001)
        await origin.send(answer(got.body))


@on_data_path(slow_echo, limits=Limits(pipelined=4096))
async def test_what_is_pipelined_is_read_ahead_up_to_a_limit(path: DataPath) -> None:
    """A fast sender does not fill this process's memory, and still every request is answered, in order."""
    client = await path.connect()
    count, body = 400, b"x" * 3000
    sending = asyncio.create_task(client.send(b"".join(post(b"%06d" % number + body) for number in range(count))))
    (connection,) = await arrived(path)
    most = 0
    for number in range(count):
        assert (await client.answer()).body == b"%06d" % number + body
        most = max(most, len(connection._buffer))
    await sending
    assert most <= 4096 + 262144  # what one read may bring on top
    assert path.outcomes == {"ok": count}


@on_data_path(echo, default=False)
async def test_a_caller_that_reads_no_answers_is_read_no_further(path: DataPath) -> None:
    """Answers of warmroute's own cost the caller nothing: they must not pile up here."""
    client = await path.connect(receive_buffer=4096)
    (connection,) = await arrived(path)
    kernel = connection.transport.get_extra_info("socket")
    kernel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # or it takes ten thousand of them first
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    burst = request(b"GET /nothing HTTP/1.1") * 2000
    for _ in range(20):
        client.writer.write(burst)
    await path.until(lambda: connection._read_paused, "the caller is read no further")
    before = path.outcomes["no_route"]
    await asyncio.sleep(0.1)
    assert path.outcomes["no_route"] == before
    assert connection.transport.get_write_buffer_size() < 1 << 20
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    while path.outcomes["no_route"] < before + 1000:  # and it goes on from there
        assert await client.reader.read(1 << 16)
    client.reset()


async def arrived(path: DataPath) -> tuple[DownstreamConnection, ...]:
    await path.until(lambda: path.plane.connections, "a connection")
    return tuple(path.plane.connections)


# --- times ----------------------------------------------------------------------------------------------------------


@on_data_path(Full, timeouts=Timeouts(connect_s=SHORT_S), policies=ONCE)
async def test_a_worker_that_does_not_accept_in_time(path: DataPath) -> None:
    client = await path.connect()
    got = await client.ask(request())
    assert (got.status, got.value(b"warmroute-outcome")) == (504, b"connect_timeout")
    assert b"o0: no connection in 0.1 s" in got.body
    assert path.results == {"connect_timeout": 1}


@on_data_path(Refusing, policies=ONCE)
async def test_a_worker_that_refuses(path: DataPath) -> None:
    client = await path.connect()
    got = await client.ask(request())
    assert (got.status, got.value(b"warmroute-outcome")) == (502, b"connect_failed")
    assert got.values(b"Connection") == []
    assert path.results == {"connect_refused": 1}
    assert (await client.ask(request())).status == 503  # in quarantine now; the connection still stands
    assert path.outcomes == {"connect_failed": 1, "no_candidate": 1}


@on_data_path(silent, timeouts=Timeouts(response_head_s=SHORT_S))
async def test_a_worker_that_does_not_answer_in_time(path: DataPath) -> None:
    client = await path.connect()
    got = await client.ask(post(b"x"))
    assert (got.status, got.value(b"warmroute-outcome")) == (504, b"upstream_timeout")
    assert b"o0: no response head in 0.1 s" in got.body
    assert path.results == {"head_timeout": 1}
    await path.until(lambda: path.origin.ended, "the upstream connection ended")


async def drips_its_head(origin: OriginConnection) -> None:
    await origin.request()
    await origin.send(b"HTTP/1.1 200 OK\r\nX: ")
    while not origin.writer.is_closing():
        await origin.send(b"a")
        await asyncio.sleep(0.002)


@on_data_path(drips_its_head, timeouts=Timeouts(response_head_s=SHORT_S))
async def test_a_head_that_comes_in_drips_has_the_same_time(path: DataPath) -> None:
    client = await path.connect()
    assert (await client.ask(request())).status == 504
    assert path.outcomes == {"upstream_timeout": 1}


async def stalls(origin: OriginConnection) -> None:
    await origin.request()
    await origin.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhel")
    await origin.reader.read()


@on_data_path(stalls, timeouts=Timeouts(stream_idle_s=SHORT_S))
async def test_an_answer_that_stands_still_is_cut(path: DataPath) -> None:
    client = await path.connect()
    await client.send(request())
    await client.head()
    assert await client.rest() == b"hel"
    assert path.outcomes == {"stream_idle": 1}
    assert path.results == {"stream_idle": 1}


async def streams(origin: OriginConnection) -> None:
    await origin.request()
    await origin.send(b"HTTP/1.1 200 OK\r\n" + CHUNKED + b"\r\n\r\n")
    for number in range(10):
        await origin.send(chunk(b"%d" % number))
        await asyncio.sleep(0.08)
    await origin.send(b"0\r\n\r\n")


@on_data_path(streams, timeouts=Timeouts(stream_idle_s=0.6, response_head_s=0.6))
async def test_a_stream_that_moves_may_take_longer_than_any_of_these(path: DataPath) -> None:
    client = await path.connect()
    assert (await client.ask(request())).body == b"0123456789"
    assert path.outcomes == {"ok": 1}


@on_data_path(echo, timeouts=Timeouts(client_head_s=SHORT_S))
async def test_a_head_that_does_not_end_is_timed_out(path: DataPath) -> None:
    client, mute = await path.connect(), await path.connect()
    got = await client.ask(b"GET / HTTP/1.1\r\nHost: a")
    assert (got.status, got.value(b"warmroute-outcome")) == (408, b"client_timeout")
    assert await client.rest() == b""
    assert await mute.rest() == b""  # never began: nothing to answer
    assert path.outcomes == {"client_timeout": 1}


@on_data_path(echo, timeouts=Timeouts(client_body_idle_s=0.5))
async def test_a_body_that_stops_is_timed_out(path: DataPath) -> None:
    client = await path.connect()
    await client.send(request(b"POST / HTTP/1.1", b"Content-Length: 10"))
    for _ in range(4):  # slower than the time in all, but never still for so long
        await asyncio.sleep(0.15)
        await client.send(b"x")
    got = await client.answer()
    assert (got.status, got.value(b"warmroute-outcome")) == (408, b"client_timeout")
    assert path.results == {"cancelled": 1}  # says nothing of the worker
    await path.until(lambda: path.origin.ended, "the upstream connection ended")
    assert path.origin.requests == []


@on_data_path(deaf, timeouts=Timeouts(client_body_idle_s=0.3))
async def test_a_worker_that_takes_no_body_is_to_blame_itself(path: DataPath) -> None:
    client = await path.connect()
    sending = asyncio.create_task(client.send(post(b"x" * (20 << 20))))
    got = await client.answer()
    assert (got.status, got.value(b"warmroute-outcome")) == (504, b"upstream_timeout")
    assert b"does not take the request's body" in got.body
    assert path.results == {"head_timeout": 1}
    client.reset()
    await asyncio.gather(sending, return_exceptions=True)


@on_data_path(echo, timeouts=Timeouts(keep_alive_s=SHORT_S))
async def test_an_idle_connection_is_closed(path: DataPath) -> None:
    client = await path.connect()
    assert (await client.ask(request())).status == 200
    assert await client.rest() == b""
    assert path.outcomes == {"ok": 1}


async def floods(origin: OriginConnection) -> None:
    await origin.request()
    await origin.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (20 << 20) + b"x" * (20 << 20))


@on_data_path(floods, timeouts=Timeouts(stream_idle_s=0.2))
async def test_a_caller_that_stops_reading_is_to_blame_itself(path: DataPath) -> None:
    client = await path.connect(receive_buffer=4096)
    await client.send(request())
    await path.until(lambda: path.outcomes, "the end")
    assert path.outcomes == {"client_timeout": 1}
    assert path.results == {"cancelled": 1}
    client.reset()


@on_data_path(floods, limits=Limits(read_grace_s=0.2))
async def test_a_caller_that_never_reads_is_cut_long_before_the_stream_would_idle(path: DataPath) -> None:
    client = await path.connect(receive_buffer=4096)
    await client.send(request())
    await path.until(lambda: path.outcomes, "the end")
    assert path.outcomes == {"client_timeout": 1}
    assert path.results == {"cancelled": 1}
    assert path.scalar(Scalar.SLOW_READERS_TOTAL) == 1
    await path.until(lambda: not path.plane.connections, "gone, for all that is still to be sent")


@on_data_path(floods, limits=Limits(read_grace_s=0.2, read_rate_bytes_per_s=1000))
async def test_what_the_caller_s_kernel_takes_counts_as_read(path: DataPath) -> None:
    """Bytes leave the socket's queue by and by, though what waits in front of it stands still for long."""
    client = await path.connect(receive_buffer=4096)
    await client.send(request())
    await path.until(lambda: path.plane.unread, "the answer waits")
    for _ in range(8):  # four times as long as it has
        await client.reader.read(65536)
        await asyncio.sleep(0.1)
        assert path.outcomes == {}
    client.reset()
    await path.until(lambda: path.outcomes, "the end")


async def medium(origin: OriginConnection) -> None:
    """Answer with as much as a kernel takes that sends to somebody who does not read."""
    while True:
        await origin.request()
        await origin.send(answer(b"x" * MEDIUM))


MEDIUM = 100_000


async def answered_unread(path: DataPath, *fields: bytes) -> Client:
    client = await path.connect(receive_buffer=4096)
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await client.send(request(b"GET / HTTP/1.1", *fields))
    return client


@on_data_path(medium, limits=Limits(read_grace_s=0.3), timeouts=Timeouts(keep_alive_s=0.5))
async def test_an_answer_that_is_not_read_is_counted_until_it_is_given_up_however_its_connection_ends(
    path: DataPath,
) -> None:
    last = await answered_unread(path, b"Connection: close")
    idle = await answered_unread(path)
    shut = await answered_unread(path)
    await path.until(lambda: path.outcomes == {"ok": 3}, "the answers")
    shut.writer.write_eof()
    await asyncio.sleep(1.0)
    assert len(path.plane.connections) == 3
    assert not any(connection.transport.get_write_buffer_size() for connection in path.plane.connections)
    await path.until(lambda: not path.plane.connections, "given up", 4.0)
    assert path.scalar(Scalar.SLOW_READERS_TOTAL) == 3
    for client in (last, idle, shut):
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert await client.ended()  # with a reset: the kernel keeps nothing


@on_data_path(medium, timeouts=Timeouts(keep_alive_s=0.2))
async def test_an_answer_that_is_read_late_arrives_whole_behind_its_connection_s_end(path: DataPath) -> None:
    last = await answered_unread(path, b"Connection: close")
    idle = await answered_unread(path)
    await asyncio.sleep(0.6)
    for client in (last, idle):
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert (await client.answer()).body == b"x" * MEDIUM
        assert await client.rest() == b""
        client.close()
    await path.until(lambda: not path.plane.connections, "gone at once", 0.5)


@on_data_path(echo, models=(ModelPolicy("m"),))
async def test_what_names_no_model_here_is_not_found(path: DataPath) -> None:
    client = await path.connect()
    for target, text in (
        (b"/v2/models/other/infer", b'{"error":"no model matches this request: model \'other\' is not known"}'),
        (
            b"/v2/models/m/versions/9/infer",
            b"{\"error\":\"no model matches this request: model 'm' version '9' is not known\"}",
        ),
        (b"/x", b"404 Not Found: no model matches this request: the path names no model and there is no default\n"),
    ):
        got = await client.ask(post(b"x", target=target))
        assert (got.status, got.body) == (404, text)
    assert path.outcomes == {"no_route": 3}
    assert [key for key, _ in path.plane.page.models()] == ["_none"]
