"""Times of a request as a whole: configured, from its caller, and of one try."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from router.breaker import GuardState
from router.model import BreakerRule
from router.policy import BreakerPolicy, Policies, RetryPolicy
from sidecar.faults.rules import FaultRule
from sidecar.settings import ModelTimeouts, Timeouts
from sidecar.telemetry.page import Scalar
from tests.support.data_path import EARLY_S, POLICIES, DataPath, Refusing, echo, on_data_path, resets, silent
from tests.support.fleet import only
from tests.support.wires import CHUNKED, Client, OriginConnection, answer, chunk, post, request

FIELD = b"x-request-timeout-ms"
SLACK_S = 1.0
"""Other tests run beside these; tests/acceptance holds the times more closely."""


def ms(number: int) -> bytes:
    return FIELD + b": %d" % number


async def asks(path: DataPath, data: bytes, expected_s: float) -> tuple[int, bytes, bytes]:
    """Return (status, outcome, body) of an answer that must come when ``expected_s`` are over."""
    client = await path.connect()
    began = time.monotonic()
    got = await client.ask(data)
    took_s = time.monotonic() - began
    assert expected_s - EARLY_S <= took_s <= expected_s + SLACK_S
    return got.status, got.value(b"warmroute-outcome"), got.body


async def says_what_it_was_told(origin: OriginConnection) -> None:
    while True:
        await origin.send(answer(b", ".join((await origin.request()).values(FIELD))))


async def told_ms(path: DataPath, client: Client, given_ms: int, gone_ms: int = 0) -> None:
    """Hold that the worker is told all but the time that has gone by, which is ``gone_ms`` at least."""
    began = time.monotonic()
    told = int((await client.ask(request(b"GET / HTTP/1.1", ms(given_ms)))).body)
    took_ms = (time.monotonic() - began) * 1000
    assert given_ms - took_ms - 1 <= told <= given_ms - gone_ms


async def streams_on(origin: OriginConnection) -> None:
    await origin.request()
    await origin.send(b"HTTP/1.1 200 OK\r\n" + CHUNKED + b"\r\n\r\n")
    while True:
        await origin.send(chunk(b"more"))
        await asyncio.sleep(0.01)


# --- the time that the caller gave ------------------------------------------------------------------------------------


@on_data_path(silent, echo, sweep=False)
async def test_the_callers_time_is_kept_without_any_sweep(path: DataPath) -> None:
    status, outcome, body = await asks(path, request(b"GET /v2/models/m HTTP/1.1", ms(500)), 0.5)
    assert (status, outcome) == (504, b"deadline_exceeded")
    assert body == b'{"error":"the request\'s time is over: over 500 ms (x-request-timeout-ms)"}'
    assert path.outcomes == {"deadline_exceeded": 1}
    assert path.results == {"overdue": 1}
    await path.until(lambda: path.origin.ended, "the worker's connection dropped", within_s=0.5)
    assert only(path.cluster.endpoints["o0"]).latency.ewma_ms >= 490  # that slow it is at least
    assert not path.shared  # and nothing else is held against it
    assert path.scalar(Scalar.RETRIES_TOTAL) == 0


async def hangs_where_it_is_told_to(origin: OriginConnection) -> None:
    while b"/hang" not in (await origin.request()).start:
        await origin.send(answer())
    await silent(origin)


@on_data_path(hangs_where_it_is_told_to, sweep=False)
async def test_the_connection_is_kept_after_a_time_that_was_over(path: DataPath) -> None:
    client = await path.connect()
    assert (await client.ask(request(b"GET /hang HTTP/1.1", ms(20)))).status == 504
    assert (await client.ask(request())).status == 200


@on_data_path(says_what_it_was_told)
async def test_the_worker_is_told_what_is_left(path: DataPath) -> None:
    client = await path.connect()
    for _ in range(3):  # on a new connection, and on a pooled one
        await told_ms(path, client, 5000)
    assert (await client.ask(request())).body == b""
    assert path.outcomes == {"ok": 4}


@pytest.mark.parametrize("timeouts", [Timeouts(total_s=1.0), Timeouts(try_s=1.0), Timeouts(total_s=2.0, try_s=1.0)])
def test_the_worker_is_told_the_least_of_all_that_holds(timeouts: Timeouts) -> None:
    @on_data_path(says_what_it_was_told, timeouts=timeouts)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        began = time.monotonic()
        told = int((await client.ask(request(b"GET / HTTP/1.1", ms(60_000)))).body)
        assert 999 - (time.monotonic() - began) * 1000 <= told <= 1000
        assert (await client.ask(request())).body == b""  # who asked for nothing has nothing said in its name

    scenario()


@on_data_path(silent, timeouts=Timeouts(total_s=0.1))
async def test_a_longer_time_than_is_configured_changes_nothing(path: DataPath) -> None:
    status, outcome, body = await asks(path, request(b"GET / HTTP/1.1", ms(60_000)), 0.1)
    assert (status, outcome) == (504, b"deadline_exceeded")
    assert b"over 0.1 s (timeouts.total_s)" in body


@on_data_path(echo)
async def test_no_time_left_is_answered_at_once(path: DataPath) -> None:
    client = await path.connect()
    got = await client.ask(post(b"x", ms(0)))
    assert (got.status, got.value(b"warmroute-outcome")) == (504, b"deadline_exceeded")
    assert path.origin.connections == []
    assert (await client.ask(post(b"x", ms(1000)))).body == b"x"


@pytest.mark.parametrize("value", [b"", b"-1", b"1.5", b"1s", b"0x10", b"1e3", b"9999999999", b"1, 2"])
def test_a_time_that_is_none_is_refused(value: bytes) -> None:
    @on_data_path(echo)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        got = await client.ask(request(b"GET / HTTP/1.1", FIELD + b": " + value))
        assert (got.status, got.value(b"warmroute-outcome")) == (400, b"bad_request")
        assert b"x-request-timeout-ms is not one whole number of milliseconds" in got.body
        assert path.origin.connections == []

    scenario()


@on_data_path(echo)
async def test_two_times_are_refused(path: DataPath) -> None:
    client = await path.connect()
    assert (await client.ask(request(b"GET / HTTP/1.1", ms(10), ms(10)))).status == 400


@on_data_path(streams_on, sweep=False)
async def test_an_answer_that_had_begun_is_cut(path: DataPath) -> None:
    client = await path.connect()
    began = time.monotonic()
    await client.send(request(b"GET / HTTP/1.1", ms(150)))
    await client.head()
    got = await client.rest()
    assert 0.15 - EARLY_S <= time.monotonic() - began <= 0.15 + SLACK_S
    assert got.startswith(chunk(b"more"))
    assert not got.endswith(b"0\r\n\r\n")
    assert path.outcomes == {"deadline_exceeded": 1}
    await path.until(lambda: path.origin.ended, "the worker's connection dropped", within_s=0.5)


@on_data_path(silent, sweep=False)
async def test_a_body_that_is_still_coming_ends_with_the_time(path: DataPath) -> None:
    client = await path.connect()
    await client.send(request(b"POST / HTTP/1.1", ms(60), b"Content-Length: 10") + b"half")
    got = await client.answer()
    assert (got.status, got.value(b"Connection")) == (504, b"close")
    assert path.results == {"cancelled": 1}
    assert only(path.cluster.endpoints["o0"]).latency.ewma_ms == 0  # it had nothing to answer yet


@on_data_path(echo)
async def test_a_time_that_is_kept_leaves_no_timer(path: DataPath) -> None:
    client = await path.connect()
    for _ in range(3):
        assert (await client.ask(post(b"x", ms(60)))).body == b"x"
    await asyncio.sleep(0.1)
    assert (await client.ask(post(b"x"))).body == b"x"
    assert path.outcomes == {"ok": 4}


@on_data_path(silent, sweep=False)
async def test_a_caller_that_goes_away_first_leaves_no_timer(path: DataPath) -> None:
    client = await path.connect()
    await client.send(request(b"GET / HTTP/1.1", ms(400)))
    await path.until(lambda: path.in_flight, "in flight")
    client.close()
    await path.until(lambda: path.outcomes, "counted")
    await asyncio.sleep(0.45)
    assert path.outcomes == {"client_abort": 1}


# --- retries ----------------------------------------------------------------------------------------------------------


async def waits_then_resets(origin: OriginConnection) -> None:
    await origin.request()
    await asyncio.sleep(0.1)
    origin.reset()


@on_data_path(waits_then_resets, says_what_it_was_told, idempotent=True)
async def test_a_retry_is_told_what_is_left_for_it(path: DataPath) -> None:
    client = await path.connect()
    await told_ms(path, client, 10_000, gone_ms=100)
    assert path.results == {"reset": 1, "success": 1}


SLOW_RETRY = Policies(
    retry=RetryPolicy(attempts=2, backoff_min_ms=400.0, backoff_max_ms=400.0), quarantine=POLICIES.quarantine
)
"""Of which the first is made at once."""


@on_data_path(Refusing, Refusing, says_what_it_was_told, policies=SLOW_RETRY)
async def test_the_wait_before_a_retry_leaves_time_for_it(path: DataPath) -> None:
    client = await path.connect()
    told = int((await client.ask(request(b"GET / HTTP/1.1", ms(700)))).body)
    assert 0 < told <= 350


@on_data_path(Refusing, Refusing, echo, policies=SLOW_RETRY, timeouts=Timeouts(try_s=0.35))
async def test_no_time_of_a_try_runs_while_a_retry_waits(path: DataPath) -> None:
    client = await path.connect()
    began = time.monotonic()
    assert (await client.ask(post(b"x"))).body == b"x"
    assert time.monotonic() - began >= 0.4 - EARLY_S


# --- one try ----------------------------------------------------------------------------------------------------------


@on_data_path(silent, echo, idempotent=True, timeouts=Timeouts(try_s=0.5))
async def test_a_try_that_takes_too_long_is_made_elsewhere(path: DataPath) -> None:
    client = await path.connect()
    began = time.monotonic()
    assert (await client.ask(post(b"x"))).body == b"x"
    assert 0.5 - EARLY_S <= time.monotonic() - began <= 0.5 + SLACK_S
    assert path.results == {"try_timeout": 1, "success": 1}
    assert only(path.cluster.endpoints["o0"]).untold.failures == 1  # that is held against it
    assert path.outcomes == {"ok": 1}


@on_data_path(silent, echo, idempotent=False, timeouts=Timeouts(try_s=0.1))
async def test_a_try_that_may_have_started_is_not_made_again_where_that_could_harm(path: DataPath) -> None:
    status, outcome, body = await asks(path, post(b"x"), 0.1)
    assert (status, outcome) == (504, b"upstream_timeout")
    assert b"o0: no whole answer in 0.1 s (timeouts.try_s)" in body
    assert path.origins[1].connections == []


@on_data_path(silent, silent, idempotent=True, timeouts=Timeouts(try_s=0.1))
async def test_each_try_has_its_own_time(path: DataPath) -> None:
    status, outcome, body = await asks(path, post(b"x"), 0.2)
    assert (status, outcome) == (504, b"upstream_timeout")
    assert b"o1: no whole answer" in body
    assert path.results == {"try_timeout": 2}


@on_data_path(silent, silent, idempotent=True, timeouts=Timeouts(try_s=0.7, total_s=0.8))
async def test_the_whole_time_ends_the_second_try(path: DataPath) -> None:
    status, outcome, _ = await asks(path, post(b"x"), 0.8)
    assert (status, outcome) == (504, b"deadline_exceeded")
    assert path.results == {"try_timeout": 1, "overdue": 1}


@on_data_path(streams_on, echo, idempotent=True, timeouts=Timeouts(try_s=0.1))
async def test_a_try_that_had_answered_is_cut(path: DataPath) -> None:
    client = await path.connect()
    await client.send(request())
    await client.head()
    assert not (await client.rest()).endswith(b"0\r\n\r\n")
    assert path.outcomes == {"upstream_timeout": 1}
    assert path.results == {"try_timeout": 1}
    assert path.origins[1].connections == []


@on_data_path(echo, timeouts=Timeouts(try_s=0.5))
async def test_a_try_counts_from_the_requests_end(path: DataPath) -> None:
    client = await path.connect()
    await client.send(request(b"POST / HTTP/1.1", b"Content-Length: 10") + b"half")
    await asyncio.sleep(0.6)
    assert (await client.ask(b"andmor")).body == b"halfandmor"
    assert path.outcomes == {"ok": 1}


async def long_answer(origin: OriginConnection) -> None:
    await origin.request()
    await origin.send(answer(b"x" * 8_000_000))
    await origin.ended()


@pytest.mark.parametrize(
    ("timeouts", "outcome"),
    [
        (Timeouts(try_s=0.2), "client_timeout"),
        (Timeouts(total_s=0.2), "deadline_exceeded"),
        (Timeouts(stream_idle_s=0.2), "client_timeout"),
    ],
)
def test_a_caller_that_does_not_read_is_not_the_workers_fault(timeouts: Timeouts, outcome: str) -> None:
    """And it is reset: closed in order, the kernel would keep for minutes what nobody takes."""

    @on_data_path(long_answer, timeouts=timeouts)
    async def scenario(path: DataPath) -> None:
        client = await path.connect(receive_buffer=4096)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(request())
        await path.until(lambda: path.outcomes, "counted")
        assert path.outcomes == {outcome: 1}
        assert set(path.results) <= {"cancelled", "outrun"}
        await path.until(lambda: not path.plane.connections, "gone at once", within_s=0.5)
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        with pytest.raises(ConnectionResetError):
            await client.reader.read()

    scenario()


@on_data_path(silent, echo)
async def test_a_worker_that_hangs_is_taken_out_though_callers_give_up_before_it_may(path: DataPath) -> None:
    """Waited for longer than is usual there is slow, however little time callers give; shorter than that is nothing."""
    (one,) = path.cluster.endpoints["o0"].candidates.values()
    for _ in range(120):
        one.latency.sample(300.0, time.monotonic())
    one.settle(time.monotonic())
    for attempt_ms in (5, 700):  # slow is over 600 ms
        for _ in range(2):
            clients = [await path.connect() for _ in range(40)]
            for client in clients:
                await client.send(request(b"GET /v2/models/m HTTP/1.1", ms(attempt_ms)))
            for client in clients:
                await client.answer()
        if attempt_ms == 5:
            assert one.breaker.look(time.monotonic()).slow == 0
            assert one.breaker.state is GuardState.CLOSED
    assert one.breaker.state is GuardState.OPEN
    assert one.breaker.rule is BreakerRule.SURGE


# --- by model ---------------------------------------------------------------------------------------------------------


@on_data_path(silent, timeouts=Timeouts(total_s=5.0), model_timeouts=ModelTimeouts(total_s=0.1))
async def test_a_model_has_times_of_its_own(path: DataPath) -> None:
    status, outcome, _ = await asks(path, request(b"GET /v2/models/m HTTP/1.1"), 0.1)
    assert (status, outcome) == (504, b"deadline_exceeded")


@on_data_path(silent, timeouts=Timeouts(response_head_s=5.0), model_timeouts=ModelTimeouts(response_head_s=0.1))
async def test_a_model_has_its_own_time_to_the_response_head(path: DataPath) -> None:
    status, outcome, body = await asks(path, request(b"GET /v2/models/m HTTP/1.1"), 0.1)
    assert (status, outcome) == (504, b"upstream_timeout")
    assert b"no response head in 0.1 s" in body


@on_data_path(echo, echo, idempotent=True, timeouts=Timeouts(response_head_s=5.0, try_s=0.5))
async def test_an_injected_delay_is_of_the_try_s_time(path: DataPath) -> None:
    path.inject(FaultRule("f", "delay", 1.0, until=time.monotonic() + 60, endpoint="o0", delay_ms=5000))
    client = await path.connect()
    assert (await client.ask(post(b"x"))).body == b"x"
    assert path.results == {"try_timeout": 1, "success": 1}


@on_data_path(resets, resets, idempotent=True, timeouts=Timeouts(total_s=5.0))
async def test_a_failure_in_time_keeps_its_own_name(path: DataPath) -> None:
    client = await path.connect()
    got = await client.ask(request())
    assert (got.status, got.value(b"warmroute-outcome")) == (502, b"upstream_reset")


CHAT = request(b"POST /v1/chat/completions HTTP/1.1", b"Content-Type: application/json", b"Content-Length: 13", ms(800))


@on_data_path(silent, default=False, model_timeouts=ModelTimeouts(try_s=5.0))
async def test_the_time_runs_from_the_head_also_where_the_body_names_the_model(path: DataPath) -> None:
    client = await path.connect()
    began = time.monotonic()
    await client.send(CHAT + b'{"mod')
    await asyncio.sleep(0.6)
    await client.send(b'el":"m"}')
    assert (await client.answer()).value(b"warmroute-outcome") == b"deadline_exceeded"
    assert 0.8 - EARLY_S <= time.monotonic() - began < 0.8 + 0.6
    assert path.results == {"overdue": 1}


@on_data_path(echo, default=False, model_timeouts=ModelTimeouts(total_s=0.1))
async def test_a_model_that_is_named_too_late_is_not_asked(path: DataPath) -> None:
    client = await path.connect()
    await client.send(CHAT.replace(FIELD, b"x-other") + b'{"mod')
    await asyncio.sleep(0.15)
    await client.send(b'el":"m"}')
    assert (await client.answer()).value(b"warmroute-outcome") == b"deadline_exceeded"
    assert path.origin.connections == []


LATE = b'{"error":"model: its time was over while it ran"}'
CALLERS = b"warmroute-deadline: caller"


def late(*fields: bytes) -> Callable[[OriginConnection], Awaitable[None]]:
    async def script(origin: OriginConnection) -> None:
        while True:
            await origin.request()
            await origin.send(answer(LATE, *fields, status=b"504 Gateway Timeout"))

    return script


@pytest.mark.parametrize(
    ("fields", "result", "outcome", "state"),
    [
        ((CALLERS,), "overdue", "deadline_exceeded", GuardState.CLOSED),
        ((b"Warmroute-Deadline: caller", b"X-More: 1"), "overdue", "deadline_exceeded", GuardState.CLOSED),
        ((), "server_error", "upstream_5xx", GuardState.OPEN),
        ((b"warmroute-deadline: mine",), "server_error", "upstream_5xx", GuardState.OPEN),
        ((b"x-warmroute-deadline: caller",), "server_error", "upstream_5xx", GuardState.OPEN),
    ],
)
def test_a_worker_that_says_that_its_callers_time_is_over_opens_nothing(
    fields: tuple[bytes, ...], result: str, outcome: str, state: GuardState
) -> None:
    policies = Policies(retry=POLICIES.retry, breaker=BreakerPolicy(minimum_calls=4))

    @on_data_path(late(*fields), policies=policies)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        for _ in range(4):
            got = await client.ask(post(b"hello"))
            assert (got.status, got.body) == (504, LATE)
        assert (path.results, path.outcomes) == ({result: 4}, {outcome: 4})
        assert only(path.cluster.endpoints["o0"]).breaker.state is state

    scenario()
