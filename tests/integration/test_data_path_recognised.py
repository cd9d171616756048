"""Errors that mean something else than their status, through real sockets: in one piece, in many, and cut short."""

from __future__ import annotations

import asyncio
import time

import pytest

from router.breaker import GuardState
from router.policy import BreakerPolicy, Policies
from sidecar.http1.recognise import Recogniser
from sidecar.settings import Means, Recognise, RecogniseRule, Timeouts
from tests.support.data_path import POLICIES, DataPath, echo, on_data_path, says
from tests.support.fleet import only
from tests.support.wires import CHUNKED, OriginConnection, answer, chunked, post

UNLOADING = b'{"error":"Request for unknown model: \'m\' has no available versions"}'
TOO_LONG = b'{"object":"error","message":"This model\'s maximum context length is 4096 tokens. However, you ..."}'
QUICK = Policies(
    retry=POLICIES.retry, quarantine=POLICIES.quarantine, breaker=BreakerPolicy(minimum_calls=4, half_open_calls=2)
)


def recognising(path: DataPath, **settings: object) -> None:
    path.plane.recogniser = Recogniser(Recognise(**settings))  # type: ignore[arg-type]


NOT_READY = answer(UNLOADING, status=b"400 Bad Request")


@on_data_path(says(NOT_READY), echo, idempotent=True)
async def test_a_model_that_is_not_ready_is_asked_for_elsewhere(path: DataPath) -> None:
    recognising(path)
    client = await path.connect()
    got = await client.ask(post(b"hello"))
    assert (got.status, got.body) == (200, b"hello")
    assert path.results == {"not_ready": 1, "success": 1}
    assert path.outcomes == {"ok": 1}
    assert path.shared == []
    assert len(path.origins[0].requests) == 1
    for _ in range(5):  # others are picked for a while
        assert (await client.ask(post(b"more"))).status == 200
    assert len(path.origins[0].requests) == 1
    (row,) = [
        row
        for row in path.cluster.explain(path.cluster.route("m"), time.monotonic(), lambda: 0.0).rows  # type: ignore[arg-type]
        if row.reason is not None
    ]
    assert (row.endpoint, row.reason) == ("o0", "busy")
    assert path.pool(0).pooled == 1  # its connection can be used again


@on_data_path(says(NOT_READY), echo)
async def test_without_a_promise_that_it_may_be_done_twice_the_answer_goes_to_the_caller(path: DataPath) -> None:
    recognising(path)
    client = await path.connect()
    got = await client.ask(post(b"hello"))
    assert (got.status, got.body) == (400, UNLOADING)
    assert (path.results, path.outcomes) == ({"not_ready": 1}, {"upstream_busy": 1})
    assert (await client.ask(post(b"hello"))).body == b"hello"


@on_data_path(says(NOT_READY), idempotent=True)
async def test_where_there_is_nobody_else_the_answer_is_passed_on_and_it_is_asked_all_the_same(path: DataPath) -> None:
    recognising(path)
    client = await path.connect()
    for _ in range(3):
        got = await client.ask(post(b"hello"))
        assert (got.status, got.body) == (400, UNLOADING)
    assert path.results == {"not_ready": 3}
    assert only(path.cluster.endpoints["o0"]).breaker.state is GuardState.CLOSED


def pieces(*parts: bytes) -> object:
    async def script(origin: OriginConnection) -> None:
        while True:
            await origin.request()
            for part in parts:
                await origin.send(part)
                await asyncio.sleep(0.01)

    return script


def whole(body: bytes) -> bytes:
    return answer(body, status=b"400 Bad Request")


IN_PIECES = [
    (whole(UNLOADING)[:-60], whole(UNLOADING)[-60:-30], whole(UNLOADING)[-30:]),
    (b"HTTP/1.1 400 Bad Request\r\n" + CHUNKED + b"\r\n\r\n", chunked(UNLOADING)),
    (b"HTTP/1.1 400 Bad Request\r\n" + CHUNKED + b"\r\n\r\n" + chunked(UNLOADING),),
    (whole(UNLOADING + b" " * 60_000)[:4000], b" " * (60_000 - 4000 + len(whole(UNLOADING)))),
]


@pytest.mark.parametrize("number", range(len(IN_PIECES)))
def test_in_any_pieces(number: int) -> None:
    @on_data_path(pieces(*IN_PIECES[number]), echo, idempotent=True)  # type: ignore[arg-type]
    async def scenario(path: DataPath) -> None:
        recognising(path)
        client = await path.connect()
        assert (await client.ask(post(b"hello"))).body == b"hello"
        assert path.results == {"not_ready": 1, "success": 1}

    scenario()


OTHER = b'{"error":"the tensor has the wrong shape"}'
CLOSES = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"
PASSED_ON = [
    ((whole(OTHER)[:-10], whole(OTHER)[-10:]), OTHER),
    ((whole(OTHER * 3000)[:300], whole(OTHER * 3000)[300:9000], whole(OTHER * 3000)[9000:]), OTHER * 3000),
    ((b"HTTP/1.1 400 Bad Request\r\n" + CHUNKED + b"\r\n\r\n", chunked(OTHER, OTHER)), OTHER * 2),
]


@pytest.mark.parametrize("number", range(len(PASSED_ON)))
def test_what_is_not_recognised_arrives_as_it_was_sent(number: int) -> None:
    parts, body = PASSED_ON[number]

    @on_data_path(pieces(*parts), echo, idempotent=True)  # type: ignore[arg-type]
    async def scenario(path: DataPath) -> None:
        recognising(path)
        client = await path.connect()
        for _ in range(2):
            got = await client.ask(post(b"hello"))
            assert (got.status, got.body) == (400, body)
        assert path.results == {"client_error": 2}
        assert path.pool(0).pooled == 1

    scenario()


@pytest.mark.parametrize("body", [UNLOADING, OTHER])
def test_a_body_that_the_end_of_the_connection_ends(body: bytes) -> None:
    async def script(origin: OriginConnection) -> None:
        await origin.request()
        await origin.send(CLOSES + body)

    @on_data_path(script, echo)
    async def scenario(path: DataPath) -> None:
        recognising(path)
        client = await path.connect()
        got = await client.ask(post(b"hello"))
        assert (got.status, got.body) == (400, body)
        assert path.results == ({"not_ready": 1} if body is UNLOADING else {"client_error": 1})

    scenario()


async def breaks_off(origin: OriginConnection) -> None:
    await origin.request()
    await origin.send(whole(OTHER)[:-10])


@on_data_path(breaks_off, echo, idempotent=True)
async def test_an_error_that_is_cut_while_it_is_looked_at_is_cut_for_the_caller(path: DataPath) -> None:
    recognising(path)
    client = await path.connect()
    await client.send(post(b"hello"))
    assert (await client.rest()).endswith(OTHER[:-10])
    assert path.results == {"cut": 1}


@on_data_path(says(answer(TOO_LONG, status=b"500 Internal Server Error")), echo, policies=QUICK)
async def test_a_prompt_that_is_too_long_is_the_caller_s_fault_whatever_the_status(path: DataPath) -> None:
    recognising(path)
    client = await path.connect()
    for _ in range(8):
        got = await client.ask(post(b"hello"))
        assert (got.status, got.body) == (500, TOO_LONG)
    assert only(path.cluster.endpoints["o0"]).breaker.state is GuardState.CLOSED
    assert (path.results, path.outcomes) == ({"client_error": 8}, {"upstream_4xx": 8})


@on_data_path(says(answer(TOO_LONG, status=b"500 Internal Server Error")), echo, policies=QUICK)
async def test_where_nothing_is_recognised_it_is_a_failure(path: DataPath) -> None:
    recognising(path, known=False)
    client = await path.connect()
    for _ in range(4):
        assert (await client.ask(post(b"hello"))).status == 500
    assert only(path.cluster.endpoints["o0"]).breaker.state is GuardState.OPEN


@on_data_path(says(answer(b"go away: reshuffling", status=b"418 Teapot")), echo, idempotent=True)
async def test_rules_of_one_s_own(path: DataPath) -> None:
    rule = RecogniseRule(status=418, body_contains="reshuffling", means=Means.NOT_READY)
    recognising(path, known=False, rules=(rule,))
    client = await path.connect()
    assert (await client.ask(post(b"hello"))).body == b"hello"


@on_data_path(says(NOT_READY), says(NOT_READY), idempotent=True)
async def test_where_nobody_has_it_ready_the_last_answer_is_passed_on(path: DataPath) -> None:
    recognising(path)
    client = await path.connect()
    got = await client.ask(post(b"hello"))
    assert (got.status, got.body) == (400, UNLOADING)
    assert path.results == {"not_ready": 2}


@on_data_path(says(answer(b"", b"Retry-After: 1", status=b"503 Service Unavailable")), echo, idempotent=True)
async def test_back_pressure_is_back_pressure(path: DataPath) -> None:
    recognising(path)
    client = await path.connect()
    assert (await client.ask(post(b"hello"))).status == 503
    assert path.results == {"busy": 1}


OURS = b'{"error":"model \'m\' is not ready: it is loading"}'


@on_data_path(says(answer(OURS, b"Retry-After: 1", status=b"503 Service Unavailable")), echo, idempotent=True)
async def test_a_worker_of_ours_that_is_loading_is_not_ready(path: DataPath) -> None:
    recognising(path)
    client = await path.connect()
    got = await client.ask(post(b"hello"))
    assert (got.status, got.body) == (200, b"hello")
    assert path.results == {"not_ready": 1, "success": 1}


@on_data_path(says(answer(OURS, b"Retry-After: 1", status=b"429 Too Many Requests")), echo, idempotent=True)
async def test_a_429_is_back_pressure_whatever_it_says(path: DataPath) -> None:
    recognising(path)
    client = await path.connect()
    assert (await client.ask(post(b"hello"))).status == 429
    assert path.results == {"busy": 1}


@on_data_path(says(NOT_READY[: -len(UNLOADING)]), echo)
async def test_an_answer_to_head_has_nothing_to_look_at(path: DataPath) -> None:
    recognising(path)
    client = await path.connect()
    got = await client.ask(b"HEAD /v2/models/m HTTP/1.1\r\nHost: a\r\n\r\n", b"HEAD")
    assert got.status == 400
    assert path.results == {"client_error": 1}


def stalls(status: bytes) -> object:
    async def script(origin: OriginConnection) -> None:
        await origin.request()
        await origin.send(answer(OTHER, status=status)[:-10])
        await asyncio.sleep(5)

    return script


STALLED = [
    (b"400 Bad Request", {"client_error": 1}),
    (b"500 Internal Server Error", {"stream_idle": 1}),
]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("status", "results"), STALLED)
def test_an_error_whose_body_stalls_is_passed_on_and_a_4xx_counts_for_nothing(
    status: bytes, results: dict[str, int], known: bool
) -> None:
    timeouts = Timeouts(response_head_s=0.4, stream_idle_s=0.3)

    @on_data_path(stalls(status), timeouts=timeouts, sweep=True)  # type: ignore[arg-type]
    async def scenario(path: DataPath) -> None:
        recognising(path, known=known)
        client = await path.connect()
        await client.send(post(b"hello"))
        got = await client.rest()
        assert got.startswith(b"HTTP/1.1 " + status)
        assert got.endswith(OTHER[:-10])
        assert (path.results, path.outcomes) == (results, {"stream_idle": 1})

    scenario()


@pytest.mark.parametrize(
    ("status", "results"), [(STALLED[0][0], {"client_error": 1}), (STALLED[1][0], {"try_timeout": 1})]
)
def test_one_that_stalls_until_the_try_is_over_is_no_failure_either(status: bytes, results: dict[str, int]) -> None:
    @on_data_path(stalls(status), timeouts=Timeouts(try_s=0.2), sweep=True)  # type: ignore[arg-type]
    async def scenario(path: DataPath) -> None:
        recognising(path)
        client = await path.connect()
        await client.send(post(b"hello"))
        assert (await client.rest()).startswith(b"HTTP/1.1 " + status)
        assert path.results == results

    scenario()


@on_data_path(stalls(b"400 Bad Request"), sweep=True)  # type: ignore[arg-type]
async def test_one_that_stalls_until_the_callers_time_is_over_is_not_overdue(path: DataPath) -> None:
    recognising(path)
    client = await path.connect()
    got = await client.ask(post(b"hello", b"x-request-timeout-ms: 100"))
    assert got.status == 504
    assert path.results == {"outrun": 1}


@pytest.mark.parametrize("value", [b"banana", b"-5", b"", b"1.5", b"Sun, 06 Nov 1994"])
def test_a_retry_after_that_cannot_be_read_asks_for_nothing(value: bytes) -> None:
    unwell = answer(b"", b"Retry-After: " + value, status=b"503 Service Unavailable")

    @on_data_path(says(unwell), policies=QUICK)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        for _ in range(4):
            assert (await client.ask(post(b"hello"))).status == 503
        assert path.results == {"server_error": 4}
        assert only(path.cluster.endpoints["o0"]).breaker.state is GuardState.OPEN

    scenario()


@pytest.mark.parametrize(
    "value",
    [
        b"0",
        b"5 ",
        b"9" * 30,
        b"Sun, 06 Nov 1994 08:49:37 GMT",
        b"Sunday, 06-Nov-94 08:49:37 GMT",
        b"Sun Nov  6 08:49:37 1994",
    ],
)
def test_a_retry_after_that_can_be_read_is_back_pressure(value: bytes) -> None:
    @on_data_path(says(answer(b"", b"Retry-After: " + value, status=b"503 Service Unavailable")))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        assert (await client.ask(post(b"hello"))).status == 503
        assert path.results == {"busy": 1}

    scenario()
