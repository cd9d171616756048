"""What is tried again, where, and what never is."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import pytest

from router.model import EjectCause, EndpointEjected
from router.policy import BackPressurePolicy, ModelPolicy, Policies, QuarantinePolicy, RetryPolicy
from sidecar.settings import Limits, Timeouts
from sidecar.telemetry.page import Scalar
from tests.support.data_path import BRIEF, DataPath, Full, Refusing, echo, on_data_path, resets, says
from tests.support.fleet import only
from tests.support.wires import CHUNKED, OriginConnection, answer, chunk, post, request


@pytest.mark.parametrize("body", [b"", b"x" * 100_000])
def test_a_request_that_was_refused_goes_to_another_worker(body: bytes) -> None:
    """Surely not started, so it is safe whether or not the model is idempotent."""

    @on_data_path(Refusing, echo, idempotent=False)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        assert (await client.ask(post(body) if body else request())).body == body
        assert path.outcomes == {"ok": 1}
        assert path.results == {"connect_refused": 1, "success": 1}
        assert path.scalar(Scalar.RETRIES_TOTAL) == 1
        (event,) = path.shared
        assert isinstance(event, EndpointEjected)
        assert (event.id, event.cause) == ("o0", EjectCause.QUARANTINE)

    scenario()


@pytest.mark.parametrize(
    ("script", "status", "outcome", "why"),
    [
        (Refusing, 502, b"connect_failed", b"o0: Connection refused"),
        (Full, 504, b"connect_timeout", b"o0: no connection in 0.1 s"),
        (resets, 502, b"upstream_reset", b"o0: the connection failed (ConnectionResetError) before the response head"),
    ],
)
def test_where_nobody_is_left_for_a_retry_the_failure_is_told(
    script: Any, status: int, outcome: bytes, why: bytes
) -> None:
    @on_data_path(script, idempotent=True, timeouts=Timeouts(connect_s=0.1))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        got = await client.ask(request())
        assert (got.status, got.value(b"warmroute-outcome")) == (status, outcome)
        assert why + b"; no other endpoint is left for a retry" in got.body
        assert got.values(b"Retry-After") == []
        assert path.outcomes == {outcome.decode(): 1}
        assert sum(path.results.values()) == 1

    scenario()


@on_data_path(resets, echo, idempotent=True)
async def test_a_request_that_may_have_started_is_repeated_where_that_is_harmless(path: DataPath) -> None:
    client = await path.connect()
    assert (await client.ask(post(b"hello"))).body == b"hello"
    assert path.results == {"reset": 1, "success": 1}
    first, second = (origin.requests[0] for origin in path.origins)
    counted = first.raw.replace(b"warmroute-attempt: 1", b"warmroute-attempt: 2")
    assert counted == second.raw  # the same request, its identifiers too
    assert first.value(b"warmroute-attempt") == b"1"
    assert path.outcomes == {"ok": 1}


@on_data_path(resets, echo, idempotent=False)
async def test_a_request_that_may_have_started_is_not_repeated_elsewhere(path: DataPath) -> None:
    client = await path.connect()
    got = await client.ask(post(b"hello"))
    assert (got.status, got.value(b"warmroute-outcome")) == (502, b"upstream_reset")
    assert b"o0: the connection failed (ConnectionResetError) before the response head" in got.body
    assert path.origins[1].requests == []
    assert path.scalar(Scalar.RETRIES_TOTAL) == 0


@on_data_path(resets, echo, idempotent=True, limits=Limits(replay_bytes=1000), policies=BRIEF)
async def test_a_body_that_was_not_kept_is_not_repeated(path: DataPath) -> None:
    client = await path.connect()
    assert (await client.ask(post(b"x" * 1001))).status == 502
    assert path.origins[1].requests == []
    await asyncio.sleep(0.06)  # out of quarantine
    assert (await client.ask(post(b"x" * 1000))).body == b"x" * 1000
    assert path.outcomes == {"upstream_reset": 1, "ok": 1}


async def begins_then_resets(origin: OriginConnection) -> None:
    await origin.request()
    await origin.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello")
    await asyncio.sleep(0.01)
    origin.reset()


@on_data_path(begins_then_resets, echo, idempotent=True)
async def test_nothing_is_repeated_once_a_byte_has_gone_downstream(path: DataPath) -> None:
    client = await path.connect()
    await client.send(request())
    await client.head()
    assert await client.rest() == b"hello"
    assert path.origins[1].connections == []
    assert path.outcomes == {"upstream_cut": 1}


async def interim_then_resets(origin: OriginConnection) -> None:
    await origin.request()
    await origin.send(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
    await asyncio.sleep(0.01)
    origin.reset()


@on_data_path(interim_then_resets, echo, idempotent=True)
async def test_an_interim_answer_is_no_byte_of_the_answer(path: DataPath) -> None:
    client = await path.connect()
    assert (await client.ask(post(b"x"))).status == 103
    assert (await client.answer()).body == b"x"
    assert path.outcomes == {"ok": 1}


async def reads_a_little_then_resets(origin: OriginConnection) -> None:
    await origin.reader.read(1024)
    await asyncio.sleep(0.05)
    origin.reset()


@pytest.mark.parametrize("size", [2000, 700_000])
def test_a_request_is_repeated_while_its_body_still_comes(size: int) -> None:
    """What had been sent is sent again, and the rest follows; a caller that was held back is read again."""

    @on_data_path(reads_a_little_then_resets, echo, idempotent=True)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        parts = [bytes([65 + number]) * (size // 10) for number in range(10)]
        await client.send(request(b"POST / HTTP/1.1", CHUNKED))
        for part in parts[:9]:
            client.writer.write(chunk(part))
        await path.until(lambda: path.origins[1].connections, "at the second worker")
        await client.send(chunk(parts[9]) + b"0\r\n\r\n")
        assert (await client.answer()).body == b"".join(parts)
        assert path.outcomes == {"ok": 1}
        assert path.results == {"reset": 1, "success": 1}

    scenario()


@on_data_path(Refusing, Refusing, policies=Policies(retry=RetryPolicy(attempts=1)))
async def test_as_many_tries_as_the_policy_says(path: DataPath) -> None:
    client = await path.connect()
    got = await client.ask(request())
    assert (got.status, got.value(b"warmroute-outcome")) == (502, b"connect_failed")
    assert path.results == {"connect_refused": 2}
    assert path.scalar(Scalar.RETRIES_TOTAL) == 1


BROKE = Policies(
    retry=RetryPolicy(budget_ratio=0.0, budget_min_per_s=0.1),
    quarantine=QuarantinePolicy(base_s=0.001, max_s=0.001, jitter_ratio=0.0),
)


@on_data_path(resets, resets, idempotent=True, policies=BROKE)
async def test_retries_stay_within_their_budget(path: DataPath) -> None:
    client = await path.connect()
    for tries in (2, 3):  # 0.1 a second over 10 s is one
        assert (await client.ask(request())).status == 502
        assert path.results == {"reset": tries}
        await asyncio.sleep(0.01)
    assert path.scalar(Scalar.RETRIES_TOTAL) == 1
    assert path.scalar(Scalar.RETRIES_DENIED_TOTAL) == 1
    assert path.outcomes == {"upstream_reset": 2}


PAUSE_S = 1.0
PAUSES = Policies(retry=RetryPolicy(attempts=2, backoff_min_ms=PAUSE_S * 1000, backoff_max_ms=PAUSE_S * 1000))


@on_data_path(Refusing, Refusing, Refusing, policies=PAUSES)
async def test_a_caller_that_leaves_during_the_back_off_is_let_go(path: DataPath) -> None:
    client = await path.connect()
    await client.send(request())
    await path.until(lambda: path.scalar(Scalar.RETRIES_TOTAL) == 2, "the back-off began")
    client.reset()
    await path.until(lambda: path.outcomes, "the end", 0.9 * PAUSE_S)
    assert path.outcomes == {"client_abort": 1}
    await asyncio.sleep(PAUSE_S)
    assert path.results == {"connect_refused": 2}


BUSY_ANSWER = answer(b"no", b"Retry-After: 1", status=b"503 Busy")


@on_data_path(
    says(BUSY_ANSWER, answer(b"bad", status=b"500 Broken")),
    echo,
    policies=Policies(back_pressure=BackPressurePolicy(0.0, 0.0)),
)
async def test_a_worker_s_own_errors_pass_and_are_told_apart(path: DataPath) -> None:
    client = await path.connect()
    assert (await client.ask(request())).start == b"HTTP/1.1 503 Busy"
    assert (await client.ask(request())).start == b"HTTP/1.1 500 Broken"
    assert path.outcomes == {"upstream_busy": 1, "upstream_5xx": 1}
    assert path.results == {"busy": 1, "server_error": 1}


@on_data_path(says(BUSY_ANSWER), echo)
async def test_while_a_worker_pushes_back_the_other_is_asked(path: DataPath) -> None:
    client = await path.connect()
    assert (await client.ask(request())).start == b"HTTP/1.1 503 Busy"
    for _ in range(10):
        assert (await client.ask(request())).status == 200
    assert path.results == {"busy": 1, "success": 10}


@on_data_path(policies=Policies(), models=(ModelPolicy("m", default=True),))
async def test_no_candidate_is_said_on_each_surface_with_a_time_to_come_back(path: DataPath) -> None:
    client = await path.connect()
    bodies = {}
    for target in (b"/v2/models/m/infer", b"/v1/chat/completions", b"/other"):
        got = await client.ask(post(b"x", target=target))
        assert got.status == 503
        assert int(got.value(b"Retry-After")) >= 1
        assert got.values(b"Connection") == []
        bodies[target] = got.body
    head = await client.ask(request(b"HEAD /other HTTP/1.1"), b"HEAD")
    assert int(head.value(b"Content-Length")) == len(bodies[b"/other"])
    assert path.outcomes == {"no_candidate": 4}
    reason = b"no warm replica can take this: "
    v2, openai, plain = bodies.values()
    assert v2.startswith(b'{"error":"' + reason)
    assert openai.startswith(b'{"error":{"message":"' + reason)
    assert openai.endswith(b'"type":"server_error","param":null,"code":"no_candidate"}}')
    assert plain.startswith(b"503 Service Unavailable: " + reason)
    assert plain.endswith(b"\n")


@on_data_path(says(answer(b"busy", b"Retry-After: 5", status=b"503 Busy")), echo)
async def test_a_busy_worker_is_left_alone_for_as_long_as_it_asks(path: DataPath) -> None:
    client = await path.connect()
    statuses = [(await client.ask(post(b"x"))).status for _ in range(60)]
    assert statuses.count(503) <= 1
    assert path.results.get("busy", 0) == statuses.count(503)


@on_data_path(echo)
async def test_a_slow_upload_is_not_the_worker_s_time(path: DataPath) -> None:
    client = await path.connect()
    whole = post(b"x" * 100)
    await client.send(whole[:-50])
    await asyncio.sleep(0.5)
    await client.send(whole[-50:])
    assert (await client.answer()).status == 200
    assert only(path.cluster.endpoints["o0"]).latency.ewma_ms < 400
    assert path.outcomes == {"ok": 1}


class Blind:
    """Sees nothing: the worker closes after the kernel was asked, and before it takes what is sent."""

    def poll(self, timeout: int) -> list[tuple[int, int]]:
        return []


@pytest.mark.interpreted_only  # it puts a blind one in the place of select.poll
@pytest.mark.parametrize(
    ("asked", "kept"),
    [(request(), True), (post(b"hello"), True), (post(b"x" * 4096), True), (post(b"x" * 4097), False)],
)
def test_a_request_that_a_closing_worker_never_took_is_sent_anew(asked: bytes, kept: bool) -> None:
    @on_data_path(echo, idempotent=False)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        assert (await client.ask(post(b"first"))).body == b"first"
        (down,), (idle,) = path.plane.connections, path.pool().idle
        idle.readable = Blind()
        worker = path.origin.connections[0].writer.get_extra_info("socket")
        with socket.socket(fileno=os.dup(worker.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)  # and what comes from now on is reset
        down.data_received(asked)  # before the loop hears of that
        got = await client.answer()
        if not kept:
            assert (got.status, path.results) == (502, {"success": 1, "reset": 1})
            return
        assert (got.status, got.body) == (200, asked.partition(b"\r\n\r\n")[2])
        assert [len(one.requests) for one in path.origin.connections] == [1, 1]
        assert (path.outcomes, path.results) == ({"ok": 2}, {"success": 2})
        assert path.scalar(Scalar.UPSTREAM_STALE_TOTAL) == 1
        assert path.scalar(Scalar.RETRIES_TOTAL) == 0
        assert path.shared == []

    scenario()


def gives_up(*, begins: bytes = b"", reset: bool = False) -> Any:
    """Answer the first request on each connection, and end it at the second, perhaps having said something."""

    async def script(origin: OriginConnection) -> None:
        await origin.send(answer((await origin.request()).body))
        await origin.request()
        if begins:
            await origin.send(begins)
            await asyncio.sleep(0.01)
        if reset:
            origin.reset()

    return script


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("begins", [b"HTTP/1.1 103 Early Hints\r\n\r\n", b"HTTP/1.1 2", b""])
@pytest.mark.parametrize("asked", [request(), post(b"hello")])
def test_one_that_a_worker_took_before_it_ended_is_not(asked: bytes, begins: bytes, reset: bool) -> None:
    @on_data_path(gives_up(begins=begins, reset=reset))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        assert (await client.ask(asked)).status == 200
        got = await client.ask(asked)
        if got.status == 103:
            got = await client.answer()
        if reset and not begins and asked.startswith(b"GET"):  # perhaps it was never read, and it is safe to do twice
            assert (got.status, path.results) == (200, {"success": 2})
            assert path.scalar(Scalar.UPSTREAM_STALE_TOTAL) == 1
        else:
            assert (got.status, path.results) == (502, {"success": 1, "reset": 1})

    scenario()
