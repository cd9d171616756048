"""What passes through the data path, byte for byte: framing both ways, what is added and what is taken out."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from router.model import EndpointHeld
from router.policy import Policies, QuarantinePolicy
from sidecar.settings import Limits
from tests.support.data_path import DataPath, Refusing, echo, on_data_path, says
from tests.support.wires import CHUNKED, OriginConnection, answer, chunk, chunked, post, request

TRACEPARENT = re.compile(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-00")


@on_data_path(echo)
async def test_a_body_with_a_length_passes_both_ways(path: DataPath) -> None:
    client = await path.connect()
    got = await client.ask(post(b"hello"))
    assert (got.status, got.body, got.value(b"Content-Length")) == (200, b"hello", b"5")
    assert path.origin.requests[0].body == b"hello"
    assert path.outcomes == {"ok": 1}
    assert path.results == {"success": 1}


@on_data_path(says(b"HTTP/1.1 200 OK\r\n" + CHUNKED + b"\r\n\r\n3;x=1\r\nabc\r\n2\r\nde\r\n0\r\nX-T: v\r\n\r\n"))
async def test_chunks_pass_both_ways_with_extensions_and_without_trailers(path: DataPath) -> None:
    client = await path.connect()
    body = b"5;name=v\r\nhello\r\n0\r\nX-Trailer: v\r\n\r\n"
    got = await client.ask(request(b"POST / HTTP/1.1", CHUNKED) + body)
    assert got.raw.partition(b"\r\n\r\n")[2] == b"3;x=1\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    (arrived,) = path.origin.requests
    assert arrived.raw.partition(b"\r\n\r\n")[2] == b"5;name=v\r\nhello\r\n0\r\n\r\n"
    assert (await client.ask(request())).body == b"abcde"
    assert path.outcomes == {"ok": 2}


@on_data_path(echo)
async def test_any_pieces_make_the_same_request(path: DataPath) -> None:
    client = await path.connect()
    whole = post(b"hello") + request(b"POST / HTTP/1.1", CHUNKED) + chunked(b"abc", b"d" * 20)
    for at in range(len(whole)):
        client.writer.write(whole[at : at + 1])
        await asyncio.sleep(0)
    assert (await client.answer()).body == b"hello"
    assert (await client.answer()).body == b"abc" + b"d" * 20
    assert path.outcomes == {"ok": 2}


async def piecewise(origin: OriginConnection) -> None:
    whole = answer(b"hello") + b"HTTP/1.1 200 OK\r\n" + CHUNKED + b"\r\n\r\n" + chunked(b"abc", b"de")
    await origin.request()
    for at in range(len(whole)):
        if at == len(answer(b"hello")):
            await origin.request()
        origin.writer.write(whole[at : at + 1])
        await asyncio.sleep(0.001)


@on_data_path(piecewise)
async def test_an_answer_in_pieces_of_one_byte_passes(path: DataPath) -> None:
    client = await path.connect()
    assert (await client.ask(request())).body == b"hello"
    assert (await client.ask(request())).body == b"abcde"


@pytest.mark.parametrize(
    ("method", "head"),
    [
        (b"HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
        (b"HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        (b"GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        (b"GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nETag: x\r\n\r\n"),
    ],
)
def test_an_answer_without_a_body_ends_with_its_head(method: bytes, head: bytes) -> None:
    @on_data_path(says(head, answer(b"next")))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        got = await client.ask(request(method + b" / HTTP/1.1"), method)
        assert got.raw.startswith(head[:-2])
        assert (await client.ask(request())).body == b"next"  # on the same two connections
        assert len(path.origin.connections) == 1
        assert path.outcomes == {"ok": 2}

    scenario()


async def continues(origin: OriginConnection) -> None:
    head = await origin.head()
    assert head.value(b"Expect") == b"100-continue"
    await origin.send(b"HTTP/1.1 100 Continue\r\n\r\n")
    await origin.send(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\nConnection: link2\r\nLink2: no\r\n\r\n")
    await origin.body(head)
    await origin.send(answer(head.body))


@on_data_path(continues)
async def test_the_worker_answers_an_expectation_and_interim_answers_pass(path: DataPath) -> None:
    client = await path.connect()
    await client.send(request(b"POST / HTTP/1.1", b"Expect: 100-continue", b"Content-Length: 5"))
    assert (await client.answer()).raw == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert (await client.answer()).raw == b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    await client.send(b"hello")
    assert (await client.answer()).body == b"hello"
    assert path.outcomes == {"ok": 1}


@on_data_path(says(b"HTTP/1.1 102 Processing\r\n\r\n" * 64 + answer(b"x")))
async def test_an_old_client_sees_no_interim_answer(path: DataPath) -> None:
    client = await path.connect()
    got = await client.ask(request(b"GET / HTTP/1.0"))
    assert (got.status, got.body) == (200, b"x")


@on_data_path(says(b"HTTP/1.1 102 Processing\r\n\r\n" * 65 + answer(b"x")))
async def test_interim_answers_without_end_are_a_worker_gone_wrong(path: DataPath) -> None:
    client = await path.connect()
    await client.send(request())
    for _ in range(64):
        assert (await client.answer()).status == 102
    got = await client.answer()
    assert got.status == 502
    assert b"more than 64 interim answers" in got.body
    assert path.outcomes == {"upstream_protocol": 1}


@on_data_path(says(b"HTTP/1.1 200 OK\r\n\r\nhello", close=True))
async def test_an_answer_that_ends_with_its_connection_becomes_chunked(path: DataPath) -> None:
    client = await path.connect()
    for _ in range(2):  # the caller's connection stays
        got = await client.ask(request())
        assert (got.value(b"Transfer-Encoding"), got.body) == (b"chunked", b"hello")
    assert path.outcomes == {"ok": 2}
    assert len(path.origin.connections) == 2


async def cut_by_reset(origin: OriginConnection) -> None:
    await origin.request()
    await origin.send(b"HTTP/1.1 200 OK\r\n\r\nhello")
    await asyncio.sleep(0.02)
    origin.reset()


@on_data_path(cut_by_reset)
async def test_an_answer_that_ends_with_a_reset_is_no_whole_one(path: DataPath) -> None:
    client = await path.connect()
    await client.send(request())
    head = await client.head()
    assert head.value(b"Transfer-Encoding") == b"chunked"
    with pytest.raises(asyncio.IncompleteReadError):
        await client.body(head)
    assert path.outcomes == {"upstream_cut": 1}
    assert path.results == {"cut": 1}


@pytest.mark.parametrize(
    "start",
    [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", b"HTTP/1.1 200 OK\r\n" + CHUNKED + b"\r\n\r\n5\r\nhel"],
)
def test_an_answer_that_ends_too_early_is_cut(start: bytes) -> None:
    @on_data_path(says(start, close=True))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        await client.send(request())
        head = await client.head()
        with pytest.raises(asyncio.IncompleteReadError):
            await client.body(head)
        assert path.outcomes == {"upstream_cut": 1}

    scenario()


@on_data_path(echo)
async def test_an_old_client_is_closed_on_unless_it_asks_otherwise(path: DataPath) -> None:
    client = await path.connect()
    got = await client.ask(b"POST /p HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\na")
    assert (got.start, got.value(b"Connection"), got.body) == (b"HTTP/1.1 200 OK", b"keep-alive", b"a")
    got = await client.ask(b"POST /p HTTP/1.0\r\nContent-Length: 1\r\n\r\nb")
    assert (got.value(b"Connection"), got.body) == (b"close", b"b")
    assert await client.rest() == b""
    assert path.origin.requests[1].start == b"POST /p HTTP/1.1"
    assert path.origin.requests[1].value(b"Host") == b"localhost"


@on_data_path(says(b"HTTP/1.1 200 OK\r\n" + CHUNKED + b"\r\n\r\n" + chunked(b"hel", b"lo")))
async def test_an_old_client_gets_chunks_decoded(path: DataPath) -> None:
    client = await path.connect()
    got = await client.ask(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert got.values(b"Transfer-Encoding") == []
    assert (got.value(b"Connection"), got.body) == (b"close", b"hello")


async def chunks_then_reset(origin: OriginConnection) -> None:
    await origin.request()
    await origin.send(b"HTTP/1.1 200 OK\r\n" + CHUNKED + b"\r\n\r\n" + chunk(b"hello"))
    await asyncio.sleep(0.02)
    origin.reset()


@pytest.mark.parametrize("script", [chunks_then_reset, cut_by_reset])
def test_an_old_client_is_reset_where_its_answer_is_cut(script: object) -> None:
    """An answer without framing may end with its connection, so only a reset tells a cut one."""

    @on_data_path(script)  # type: ignore[arg-type]
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        await client.send(b"GET / HTTP/1.0\r\n\r\n")
        await client.head()
        assert await client.ended()
        assert path.outcomes == {"upstream_cut": 1}

    scenario()


@on_data_path(echo, default=False)
async def test_pipelined_requests_are_answered_in_order(path: DataPath) -> None:
    client = await path.connect()
    burst = b""
    for number in range(60):
        target = b"/v2/models/m/infer" if number % 3 else b"/nothing/here"
        burst += post(b"%d" % number, target=target)
    await client.send(burst)
    for number in range(60):
        got = await client.answer()
        if number % 3:
            assert (got.status, got.body) == (200, b"%d" % number)
        else:
            assert (got.status, got.values(b"Connection")) == (404, [])
    assert path.outcomes == {"ok": 40, "no_route": 20}


@on_data_path(echo)
async def test_empty_lines_before_a_request_are_skipped(path: DataPath) -> None:
    client = await path.connect()
    assert (await client.ask(b"\r\n" + post(b"a"))).body == b"a"
    assert (await client.ask(b"\r\n" * 30000 + post(b"b"))).body == b"b"
    await client.send(b"\r")
    await asyncio.sleep(0.02)
    assert (await client.ask(b"\n" + post(b"c"))).body == b"c"
    assert path.outcomes == {"ok": 3}


@on_data_path(
    says(answer(b"x", b"Connection: close, X-Hop", b"X-Hop: 1", b"Keep-Alive: timeout=5", b"X-Kept: caf\xe9"))
)
async def test_what_is_for_one_hop_only_is_taken_out_both_ways(path: DataPath) -> None:
    client = await path.connect()
    got = await client.ask(
        request(
            b"GET /p HTTP/1.1",
            b"Connection: X-Hop, Content-Length",
            b"x-hop: 1",
            b"TE: trailers",
            b"Upgrade: websocket",
            b"Proxy-Authorization: secret",
            b"X-Kept: caf\xe9",
        )
    )
    (arrived,) = path.origin.requests
    for message in (arrived, got):
        for name in (b"X-Hop", b"TE", b"Upgrade", b"Proxy-Authorization", b"Keep-Alive", b"Connection"):
            assert message.values(name) == []
        assert message.value(b"X-Kept") == b"caf\xe9"
        assert message.value(b"Via") == b"1.1 warmroute"
    assert (await client.ask(request())).status == 200  # the worker's "close" was its own


@on_data_path(echo)
async def test_identifiers_are_made_where_they_are_missing(path: DataPath) -> None:
    client = await path.connect()
    made = set()
    for _ in range(3):
        got = await client.ask(request())
        arrived = path.origin.requests[-1]
        assert got.value(b"x-request-id") == arrived.value(b"x-request-id")
        assert TRACEPARENT.fullmatch(arrived.value(b"traceparent"))
        made.add((arrived.value(b"x-request-id"), arrived.value(b"traceparent")))
    assert len(made) == 3


@on_data_path(echo)
async def test_the_caller_s_identifiers_are_kept_and_returned(path: DataPath) -> None:
    client = await path.connect()
    trace = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    got = await client.ask(request(b"GET / HTTP/1.1", b"X-Request-ID: Mine 1", b"traceparent: " + trace))
    (arrived,) = path.origin.requests
    assert arrived.value(b"x-request-id") == b"Mine 1"
    assert arrived.value(b"traceparent") == trace
    assert got.value(b"x-request-id") == b"Mine 1"


@on_data_path(says(answer(b"x", b"X-Request-Id: the worker's")))
async def test_the_worker_s_own_request_id_stands(path: DataPath) -> None:
    client = await path.connect()
    assert (await client.ask(request())).values(b"x-request-id") == [b"the worker's"]


@on_data_path(echo)
async def test_an_absolute_target_goes_on_as_a_path(path: DataPath) -> None:
    client = await path.connect()
    await client.ask(request(b"GET http://b.test:81/p?q HTTP/1.1"))
    (arrived,) = path.origin.requests
    assert (arrived.start, arrived.value(b"Host")) == (b"GET /p?q HTTP/1.1", b"b.test:81")


async def answers_early(origin: OriginConnection) -> None:
    await origin.head()
    await origin.send(answer(b"too much", status=b"413 Content Too Large"))
    await origin.reader.read()


@on_data_path(answers_early)
async def test_an_answer_before_the_request_s_end_is_passed_and_both_connections_end(path: DataPath) -> None:
    client = await path.connect()
    await client.send(request(b"POST / HTTP/1.1", b"Content-Length: 100") + b"x" * 10)
    got = await client.answer()
    assert (got.status, got.body, got.value(b"Connection")) == (413, b"too much", b"close")
    assert await client.rest() == b""
    assert path.outcomes == {"upstream_4xx": 1}
    await path.until(lambda: path.origin.ended, "the upstream connection ended")
    assert path.pool().pooled == 0


async def echo_with_id(origin: OriginConnection) -> None:
    """Answer with the request's id and body; HEAD with a length and no body."""
    while True:
        message = await origin.request()
        fields = (b"Date: Sun, 29 Nov 2026 13:00:00 GMT", b"X-Request-Id: " + message.value(b"x-request-id"))
        whole = answer(message.body or b"none", *fields)
        await origin.send(whole[: whole.find(b"\r\n\r\n") + 4] if message.start.startswith(b"HEAD") else whole)


@on_data_path(echo_with_id)
async def test_heads_of_a_learned_shape_are_read_right(path: DataPath) -> None:
    """Lengths and ids differ from one message to the next on one connection, and other heads come in between."""
    client = await path.connect()
    for number in range(60):
        body, id_ = b"x" * (1 + number * 37 % 500), b"id-%d" % number
        got = await client.ask(post(body, b"X-Request-Id: " + id_, b"X-Same: 1"))
        assert (got.status, got.body, got.value(b"x-request-id")) == (200, body, id_)
        arrived = path.origin.requests[-1]
        assert (arrived.body, arrived.value(b"x-request-id"), arrived.value(b"x-same")) == (body, id_, b"1")
        if number % 7 == 0:
            got = await client.ask(request(b"HEAD /h HTTP/1.1", b"X-Request-Id: h%d" % number), b"HEAD")
            assert (got.status, got.body, got.value(b"content-length")) == (200, b"", b"4")
            got = await client.ask(request(b"GET /g HTTP/1.1", b"X-Request-Id: g%d" % number))
            assert (got.body, got.value(b"x-request-id")) == (b"none", b"g%d" % number)
    (pooled,) = path.pool().idle
    assert pooled._learned._known
    assert path.outcomes == {"ok": 60 + 2 * 9}
    await client.send(
        post(b"abc", b"X-Request-Id: a b", b"X-Same: 1").replace(b"Content-Length: 3", b"Content-Length: +3")
    )
    assert (await client.answer()).status == 400


@on_data_path(echo)
async def test_an_empty_request_id_is_none(path: DataPath) -> None:
    client = await path.connect()
    got = await client.ask(request(b"GET / HTTP/1.1", b"X-Request-Id:"))
    (arrived,) = path.origin.requests
    assert len(arrived.values(b"x-request-id")) == 1
    assert arrived.value(b"x-request-id")
    assert got.value(b"x-request-id") == arrived.value(b"x-request-id")


@on_data_path(echo, default=False)
async def test_what_v2_clients_ask_the_server_is_answered_here(path: DataPath) -> None:
    client = await path.connect()
    got = await client.ask(request(b"GET /v2/health/live HTTP/1.1", b"X-Request-Id: r"))
    assert (got.status, got.body, got.value(b"x-request-id")) == (200, b"", b"r")
    assert (await client.ask(request(b"GET /v2/health/ready HTTP/1.1"))).status == 200
    about = await client.ask(request(b"GET /v2 HTTP/1.1"))
    assert json.loads(about.body)["name"] == "warmroute"
    head = await client.ask(request(b"HEAD /v2 HTTP/1.1"), b"HEAD")
    assert (head.status, head.body) == (200, b"")
    assert (await client.ask(post(b"x", target=b"/v2"))).status == 404
    assert path.outcomes == {"ok": 4, "no_route": 1}
    for held in (True, False):
        path.cluster.apply(EndpointHeld("o0", held=held, at=path.plane.clock()), path.plane.clock())
        got = await client.ask(request(b"GET /v2/health/ready HTTP/1.1"))
        assert got.status == (503 if held else 200)
        assert (got.values(b"retry-after") != []) is held
    assert not path.origin.requests


@on_data_path(echo)
async def test_a_default_model_takes_those_paths_too(path: DataPath) -> None:
    client = await path.connect()
    assert (await client.ask(request(b"GET /v2/health/ready HTTP/1.1"))).status == 200
    assert len(path.origin.requests) == 1


@pytest.mark.parametrize(
    "fields",
    [
        (b"X-Request-Id:", b"X-Request-Id: abc"),
        (b"X-Request-Id: abc", b"X-Request-Id:"),
        (b"Connection: x-request-id", b"X-Request-Id: abc"),
        (
            b"Connection: keep-alive, traceparent",
            b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ),
    ],
)
def test_identifiers_that_are_cut_out_are_made_anew(fields: tuple[bytes, ...]) -> None:
    @on_data_path(echo)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        got = await client.ask(request(b"GET / HTTP/1.1", *fields))
        (arrived,) = path.origin.requests
        assert got.value(b"x-request-id") == arrived.value(b"x-request-id") != b""
        assert TRACEPARENT.fullmatch(arrived.value(b"traceparent"))

    scenario()


@pytest.mark.parametrize("fields", [(b"X-Request-Id:",), (b"Connection: x-request-id", b"X-Request-Id: worker's")])
def test_the_caller_s_id_comes_back_where_the_worker_s_does_not(fields: tuple[bytes, ...]) -> None:
    @on_data_path(says(answer(b"x", *fields)))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        got = await client.ask(request(b"GET / HTTP/1.1", b"X-Request-Id: mine"))
        assert got.values(b"x-request-id") == [b"mine"]

    scenario()


@on_data_path(echo, limits=Limits(pipelined=4096))
async def test_a_flood_of_empty_lines_leaves_the_connection_readable(path: DataPath) -> None:
    client = await path.connect()
    await client.send(request() + b"\r\n" * 3000)
    assert (await client.answer()).status == 200
    assert (await client.ask(post(b"x"))).body == b"x"


@on_data_path(
    Refusing,
    default=False,
    policies=Policies(quarantine=QuarantinePolicy(base_s=0.05, jitter_ratio=0.0)),
)
async def test_ready_says_so_as_soon_as_a_request_would_be_taken(path: DataPath) -> None:
    """Nobody may wait for traffic that waits for readiness: a due probe is a candidate."""
    client = await path.connect()
    ready, infer = request(b"GET /v2/health/ready HTTP/1.1"), post(b"x", target=b"/v2/models/m/infer")
    assert (await client.ask(infer)).status == 502  # refused, and nobody else is there
    assert (await client.ask(ready)).status == 503
    await asyncio.sleep(0.1)
    assert (await client.ask(ready)).status == 200


@pytest.mark.parametrize("pieces", [(1 << 30,), (1,), (200, 40_000), (70_000,)])
@pytest.mark.parametrize("more", [b"", b"stray"])
def test_large_bodies_pass_whole_however_they_come(pieces: tuple[int, ...], more: bytes) -> None:
    body = bytes(range(256)) * 400

    async def in_pieces(origin: OriginConnection) -> None:
        while True:
            await origin.request()
            left = answer(body) + more
            for size in pieces:
                piece, left = left[:size], left[size:]
                await origin.send(piece)
                await asyncio.sleep(0.005)
            if left:
                await origin.send(left)

    @on_data_path(in_pieces)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        for count in (1, 2):
            assert (await client.ask(request())).body == body
            assert path.outcomes == {"ok": count}
        assert len(path.origin.connections) == (2 if more else 1)

    scenario()
