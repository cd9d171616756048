"""A second try beside the first: when it is sent, who wins, what becomes of the loser, what is counted."""

from __future__ import annotations

import asyncio
import time

import pytest

from router.policy import HedgingPolicy, Policies, RetryPolicy
from sidecar.faults.rules import FaultRule
from sidecar.settings import Limits, Timeouts
from sidecar.telemetry.page import Scalar
from tests.support.data_path import EARLY_S, POLICIES, DataPath, Full, Refusing, echo, on_data_path, resets, silent
from tests.support.fleet import only
from tests.support.hedging import (
    DELAY_S,
    FAST,
    HEDGING,
    LONG_S,
    MODELS,
    UNHURRIED,
    after,
    answered,
    both_asked,
    hedged,
    hedges,
    waits_then_resets,
)
from tests.support.held_origin import RESET, Held, held
from tests.support.wires import CHUNKED, Client, OriginConnection, answer, chunk, chunked, post, request


@hedged(silent, FAST)
async def test_a_slow_first_try_is_overtaken(path: DataPath, client: Client) -> None:
    began = time.monotonic()
    got = await client.ask(post(b"hello"))
    assert got.body == b"fast"
    assert DELAY_S - EARLY_S <= time.monotonic() - began <= DELAY_S + 1.0
    await path.until(lambda: path.origin.ended, "the loser was cancelled", within_s=0.5)
    assert hedges(path) == (1, 1, 0)
    assert path.results == {"outrun": 1, "success": 1}
    assert path.outcomes == {"ok": 1}
    assert path.scalar(Scalar.RETRIES_TOTAL) == 0
    assert path.origins[1].requests[0].value(b"warmroute-attempt") == b"2"
    slow = path.cluster.endpoints["o0"]
    assert only(slow).latency.ewma_ms >= DELAY_S * 1000 - 2  # so slow it is at least: it is chosen less from now on
    assert (only(slow).untold.failures, path.shared) == (0, [])
    assert (await client.ask(post(b"again"))).body == b"fast"  # the caller's connection goes on


@hedged(Held(answer(b"first")), silent)
async def test_a_first_try_that_answers_all_the_same_wins(path: DataPath, client: Client) -> None:
    await both_asked(path, client)
    held(path).allowed.release()
    assert (await client.answer()).body == b"first"
    await path.until(lambda: path.origins[1].ended, "the hedge was cancelled", within_s=0.5)
    assert hedges(path) == (1, 0, 0)
    assert path.results == {"outrun": 1, "success": 1}
    assert path.outcomes == {"ok": 1}


@hedged(FAST, FAST, policies=UNHURRIED)
async def test_a_fast_request_is_asked_once(path: DataPath, client: Client) -> None:
    for _ in range(5):
        assert (await client.ask(post(b"hello"))).body == b"fast"
    await asyncio.sleep(LONG_S + 0.1)
    assert hedges(path) == (0, 0, 0)
    assert path.origins[1].requests == []


LONG = b"HTTP/1.1 200 OK\r\n" + CHUNKED + b"\r\n\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        (LONG, chunk(b"fa"), chunk(b"st"), b"0\r\n\r\n"),
        (LONG + chunked(b"fa", b"st"),),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", b"fa", b"st"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n", b"HTTP/1.1 200 OK\r\nCont", b"ent-Length: 4\r\n\r\nfast"),
    ],
)
def test_a_hedge_may_answer_in_any_form(pieces: tuple[bytes, ...]) -> None:
    @hedged(silent, after(0.0, *pieces))
    async def scenario(path: DataPath, client: Client) -> None:
        for turn in (1, 2):
            assert (await client.ask(post(b"hello"))).body == b"fast"
            await path.until(lambda: path.in_flight == 0, "settled")
            assert path.outcomes == {"ok": turn}
            only(path.cluster.endpoints["o0"]).latency.ewma_ms = 0.0
        assert path.results == {"outrun": 2, "success": 2}

    scenario()


async def to_its_end(origin: OriginConnection) -> None:
    await origin.request()
    await origin.send(b"HTTP/1.1 200 OK\r\n\r\nfast")


@hedged(silent, to_its_end)
async def test_a_hedge_may_answer_to_the_end_of_its_connection(path: DataPath, client: Client) -> None:
    assert (await client.ask(post(b"hello"))).body == b"fast"
    assert path.outcomes == {"ok": 1}


@hedged(Held(LONG, chunk(b"fi"), chunk(b"rst"), b"0\r\n\r\n"), Held(answer(b"late")))
async def test_not_a_byte_of_the_loser_follows_the_winners(path: DataPath, client: Client) -> None:
    await both_asked(path, client)
    held(path).allowed.release()
    assert (await client.answer()).body == b"first"
    held(path, 1).allowed.release()
    await path.until(lambda: path.origins[1].ended, "it has said what it had to say")
    for index in (0, 1):
        held(path, index).allowed.release()
    await client.send(request())
    assert (await client.answer()).body in (b"first", b"late")
    assert path.outcomes == {"ok": 2}


# --- failures ---------------------------------------------------------------------------------------------------------


@hedged(Held(RESET), Held(answer(b"late")))
async def test_a_hedge_under_way_is_the_retry(path: DataPath, client: Client) -> None:
    await both_asked(path, client)
    held(path).allowed.release()
    assert (await answered(path, client, "reset", 1)).body == b"late"
    assert path.results == {"reset": 1, "success": 1}
    assert path.scalar(Scalar.RETRIES_TOTAL) == 0
    assert hedges(path) == (1, 0, 0)
    assert len(path.origins[1].requests) == 1
    assert path.outcomes == {"ok": 1}


@hedged(Held(answer(b"first")), resets)
async def test_a_hedge_that_fails_leaves_the_first_try_alone(path: DataPath, client: Client) -> None:
    await client.send(post(b"hello"))
    assert (await answered(path, client, "reset")).body == b"first"
    assert path.results == {"reset": 1, "success": 1}
    assert path.outcomes == {"ok": 1}


@hedged(Held(answer(b"first")), Refusing)
async def test_a_hedge_that_finds_no_connection_leaves_the_first_try_alone(path: DataPath, client: Client) -> None:
    await client.send(post(b"hello"))
    assert (await answered(path, client, "connect_refused")).body == b"first"
    assert path.results == {"connect_refused": 1, "success": 1}


@hedged(waits_then_resets, waits_then_resets)
async def test_both_may_fail(path: DataPath, client: Client) -> None:
    got = await client.ask(post(b"hello"))
    assert (got.status, got.value(b"warmroute-outcome")) == (502, b"upstream_reset")
    assert b"o1: " in got.body
    assert path.results == {"reset": 2}
    assert path.outcomes == {"upstream_reset": 1}
    assert path.scalar(Scalar.RETRIES_TOTAL) == 0


@hedged(Held(RESET), Full, timeouts=Timeouts(connect_s=1.0))
async def test_a_hedge_that_is_connecting_takes_over_and_may_fail(path: DataPath, client: Client) -> None:
    await client.send(post(b"hello"))
    await path.until(lambda: path.in_flight == 2, "both in flight")
    held(path).allowed.release()
    got = await client.answer()
    assert (got.status, got.value(b"warmroute-outcome")) == (504, b"connect_timeout")
    assert path.results == {"reset": 1, "connect_timeout": 1}


THREE = Policies(
    retry=RetryPolicy(attempts=2, backoff_min_ms=1.0, backoff_max_ms=2.0),
    quarantine=POLICIES.quarantine,
    hedging=HEDGING.hedging,
)


@hedged(waits_then_resets, resets, FAST, policies=THREE)
async def test_a_retry_may_follow_where_a_third_try_is_allowed(path: DataPath, client: Client) -> None:
    assert (await client.ask(post(b"hello"))).body == b"fast"
    assert path.results == {"reset": 2, "success": 1}
    assert path.origins[2].requests[0].value(b"warmroute-attempt") == b"3"


# --- when none is sent ------------------------------------------------------------------------------------------------


@hedged(after(0.11, answer(b"first")), FAST, limits=Limits(replay_bytes=10))
async def test_a_request_that_was_not_kept_is_not_hedged(path: DataPath, client: Client) -> None:
    assert (await client.ask(post(b"eleven byte"))).body == b"first"
    assert hedges(path) == (0, 0, 1)
    assert path.origins[1].requests == []


@pytest.mark.parametrize("target", [b"/sleep?level=2", b"/v2/repository/models/m/load"])
def test_what_sets_a_worker_up_is_not_done_at_two(target: bytes) -> None:
    @hedged(Held(answer(b"asleep")), FAST)
    async def scenario(path: DataPath, client: Client) -> None:
        await client.send(post(b"{}", target=target))
        await path.until(lambda: hedges(path) == (0, 0, 1), "it was due, and denied")
        held(path).allowed.release()
        assert (await client.answer()).body == b"asleep"
        assert path.origins[1].requests == []

    scenario()


@hedged(FAST, FAST, policies=UNHURRIED)
async def test_the_wait_begins_with_the_requests_end(path: DataPath, client: Client) -> None:
    await client.send(request(b"POST / HTTP/1.1", b"Content-Length: 10") + b"half")
    await asyncio.sleep(LONG_S + 0.1)
    assert (await client.ask(b"andmor")).body == b"fast"
    assert hedges(path) == (0, 0, 0)


@hedged(after(0.11, answer(b"first")))
async def test_one_endpoint_alone_is_not_asked_twice(path: DataPath, client: Client) -> None:
    assert (await client.ask(post(b"hello"))).body == b"first"
    assert hedges(path) == (0, 0, 1)


@hedged(
    after(0.11, answer(b"first")),
    FAST,
    policies=Policies(
        retry=RetryPolicy(budget_min_per_s=0.0, backoff_min_ms=1.0, backoff_max_ms=2.0), hedging=HEDGING.hedging
    ),
)
async def test_the_retry_budget_holds(path: DataPath, client: Client) -> None:
    assert (await client.ask(post(b"hello"))).body == b"first"
    assert hedges(path) == (0, 0, 1)


@hedged(after(0.11, answer(b"first")), FAST)
async def test_endpoints_that_pushed_back_are_not_asked_beside_others(path: DataPath, client: Client) -> None:
    other = path.cluster.endpoints["o1"]
    other.pushed_back(time.monotonic() + 5, time.monotonic())
    await asyncio.sleep(0.15)  # the table follows
    only(path.cluster.endpoints["o0"]).latency.ewma_ms = 0.0
    assert (await client.ask(post(b"hello"))).body == b"first"
    assert hedges(path) == (0, 0, 1)


@hedged(after(0.11, answer(b"first")), FAST)
async def test_nothing_is_hedged_while_new_work_is_refused(path: DataPath, client: Client) -> None:
    await client.send(post(b"hello"))
    await path.until(lambda: path.in_flight, "in flight")
    path.plane.refusing = "memory"
    assert (await client.answer()).body == b"first"
    assert hedges(path) == (0, 0, 1)


@on_data_path(after(0.11, answer(b"first")), FAST, policies=HEDGING, idempotent=True)
async def test_other_models_have_no_timer(path: DataPath) -> None:
    client = await path.connect()
    assert (await client.ask(post(b"hello"))).body == b"first"
    assert hedges(path) == (0, 0, 0)


# --- injected faults --------------------------------------------------------------------------------------------------


def delay(endpoint: str, delay_ms: float) -> FaultRule:
    return FaultRule("f", "delay", 1.0, until=time.monotonic() + 60, endpoint=endpoint, delay_ms=delay_ms)


@hedged(FAST, echo)
async def test_an_injected_delay_is_hedged_as_a_real_one(path: DataPath, client: Client) -> None:
    path.inject(delay("o0", 5000))
    assert (await client.ask(post(b"hello"))).body == b"hello"
    assert hedges(path) == (1, 1, 0)


@hedged(Held(RESET), echo)
async def test_a_hedge_that_is_late_takes_over(path: DataPath, client: Client) -> None:
    path.inject(delay("o1", 1000))
    await client.send(post(b"hello"))
    await path.until(lambda: path.in_flight == 2, "both in flight")
    held(path).allowed.release()
    assert (await client.answer()).body == b"hello"
    assert path.results == {"reset": 1, "success": 1}


@hedged(Held(answer(b"first")), echo)
async def test_an_injected_error_of_the_hedge_is_no_answer(path: DataPath, client: Client) -> None:
    path.inject(FaultRule("f", "abort", 1.0, until=time.monotonic() + 60, endpoint="o1"))
    await client.send(post(b"hello"))
    assert (await answered(path, client, "server_error")).body == b"first"
    assert path.results == {"server_error": 1, "success": 1}


# --- what it is for ---------------------------------------------------------------------------------------------------


class Sometimes:
    """Answers at once, but every twentieth request only after 400 ms."""

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self, origin: OriginConnection) -> None:
        while True:
            message = await origin.request()
            self.asked += 1
            if self.asked % 20 == 0:
                await asyncio.sleep(0.4)
            await origin.send(answer(message.body))


@on_data_path(
    Sometimes(),
    Sometimes(),
    models=MODELS,
    policies=Policies(
        retry=POLICIES.retry, quarantine=POLICIES.quarantine, hedging=HedgingPolicy(min_delay_ms=20, minimum_samples=40)
    ),
)
async def test_the_tail_falls_and_every_request_is_answered_once(path: DataPath) -> None:
    """From its own measure: no more than a share of the requests is executed twice."""
    took: list[float] = []
    number = iter(range(400))

    async def caller() -> None:
        client = await path.connect()
        for turn in number:
            began = time.monotonic()
            body = b"%d" % turn
            assert (await client.ask(post(body))).body == body
            took.append(time.monotonic() - began)

    async with asyncio.timeout(12):
        await asyncio.gather(*(caller() for _ in range(4)))
    late = sorted(took[200:])
    assert late[int(len(late) * 0.97)] < 0.25
    sent, won, _ = hedges(path)
    assert 5 <= won <= sent <= 80
    assert path.outcomes == {"ok": 400}
    executed = sum(len(origin.requests) for origin in path.origins)
    assert 400 <= executed <= 400 + sent
