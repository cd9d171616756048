"""A second try beside the first: when it is sent, who wins, what becomes of the loser, what is counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from router.outcomes import AttemptResult
from router.policy import HedgingPolicy, ModelPolicy, Policies, RetryPolicy
from router.routes import Attempt
from sidecar.faults.rules import FaultRule
from sidecar.http1.downstream import DownstreamConnection
from sidecar.http1.hedging import Hedge
from sidecar.http1.recognise import Recogniser
from sidecar.settings import Limits, ModelTimeouts, Recognise, Timeouts
from sidecar.telemetry.page import Scalar
from tests.support.data_path import (
    CHUNKED,
    POLICIES,
    Client,
    DataPath,
    Full,
    Origin,
    OriginConnection,
    Refusing,
    Script,
    answer,
    chunk,
    chunked,
    echo,
    on_data_path,
    post,
    request,
    resets,
    says,
    silent,
)
from tests.support.fleet import only

DELAY_S = 0.05
HEDGING = Policies(
    retry=POLICIES.retry,
    quarantine=POLICIES.quarantine,
    hedging=HedgingPolicy(min_delay_ms=DELAY_S * 1000, minimum_samples=1),
)
MODELS = (ModelPolicy("m", idempotent=True, default=True, hedge=True),)
Scenario = Callable[[DataPath, Client], Awaitable[None]]


def hedged(
    *scripts: Script | Origin | type[Refusing],
    policies: Policies = HEDGING,
    timeouts: Timeouts | None = None,
    limits: Limits | None = None,
    model_timeouts: ModelTimeouts | None = None,
) -> Callable[[Scenario], Callable[[], None]]:
    """Make a test of a scenario on a model that is hedged after ``DELAY_S``; the first try goes to the first origin."""

    def decorate(scenario: Scenario) -> Callable[[], None]:
        @on_data_path(
            *scripts,
            policies=policies,
            models=MODELS,
            timeouts=timeouts,
            limits=limits,
            model_timeouts=model_timeouts,
        )
        async def test(path: DataPath) -> None:
            measured(path)
            await scenario(path, await path.connect())

        test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
        return test

    return decorate


def measured(path: DataPath) -> None:
    route = path.cluster.route("m")
    assert route is not None
    assert route.hedging is not None
    path.cluster.waited(route, 0.001)
    route.hedging.settle(time.monotonic())
    assert route.hedging.delay_s == path.cluster.policies.hedging.min_delay_ms / 1000


def hedges(path: DataPath) -> tuple[int, int, int]:
    """Return how many were sent, won, denied."""
    members = (Scalar.HEDGES_TOTAL, Scalar.HEDGES_WON_TOTAL, Scalar.HEDGES_DENIED_TOTAL)
    sent, won, denied = (path.scalar(member) for member in members)
    return sent, won, denied


def after(delay_s: float, *pieces: bytes) -> Script:
    """Answer each request after ``delay_s``, the pieces one by one."""

    async def script(origin: OriginConnection) -> None:
        while True:
            await origin.request()
            await asyncio.sleep(delay_s)
            for piece in pieces:
                await origin.send(piece)
                await asyncio.sleep(0.005)

    return script


FAST = says(answer(b"fast"))


@hedged(silent, FAST)
async def test_a_slow_first_try_is_overtaken(path: DataPath, client: Client) -> None:
    began = time.monotonic()
    got = await client.ask(post(b"hello"))
    assert got.body == b"fast"
    assert DELAY_S <= time.monotonic() - began <= DELAY_S + 1.0
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


@hedged(after(0.13, answer(b"first")), silent)
async def test_a_first_try_that_answers_all_the_same_wins(path: DataPath, client: Client) -> None:
    assert (await client.ask(post(b"hello"))).body == b"first"
    await path.until(lambda: path.origins[1].ended, "the hedge was cancelled", within_s=0.5)
    assert hedges(path) == (1, 0, 0)
    assert path.results == {"outrun": 1, "success": 1}
    assert path.outcomes == {"ok": 1}


@hedged(FAST, FAST)
async def test_a_fast_request_is_asked_once(path: DataPath, client: Client) -> None:
    for _ in range(5):
        assert (await client.ask(post(b"hello"))).body == b"fast"
    await asyncio.sleep(2 * DELAY_S)
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


@hedged(after(0.13, LONG, chunk(b"fi"), chunk(b"rst"), b"0\r\n\r\n"), after(0.2, answer(b"late")))
async def test_not_a_byte_of_the_loser_follows_the_winners(path: DataPath, client: Client) -> None:
    assert (await client.ask(post(b"hello"))).body == b"first"
    await asyncio.sleep(0.25)
    path.origin.script = FAST
    await client.send(request())
    assert (await client.answer()).body in (b"first", b"late")
    assert path.outcomes == {"ok": 2}


# --- failures ---------------------------------------------------------------------------------------------------------


async def waits_then_resets(origin: OriginConnection) -> None:
    await origin.request()
    await asyncio.sleep(2 * DELAY_S)
    origin.reset()


@hedged(waits_then_resets, after(0.13, answer(b"late")))
async def test_a_hedge_under_way_is_the_retry(path: DataPath, client: Client) -> None:
    assert (await client.ask(post(b"hello"))).body == b"late"
    assert path.results == {"reset": 1, "success": 1}
    assert path.scalar(Scalar.RETRIES_TOTAL) == 0
    assert hedges(path) == (1, 0, 0)
    assert len(path.origins[1].requests) == 1
    assert path.outcomes == {"ok": 1}


@hedged(after(0.13, answer(b"first")), resets)
async def test_a_hedge_that_fails_leaves_the_first_try_alone(path: DataPath, client: Client) -> None:
    assert (await client.ask(post(b"hello"))).body == b"first"
    assert path.results == {"reset": 1, "success": 1}
    assert path.outcomes == {"ok": 1}


@hedged(after(0.13, answer(b"first")), Refusing)
async def test_a_hedge_that_finds_no_connection_leaves_the_first_try_alone(path: DataPath, client: Client) -> None:
    assert (await client.ask(post(b"hello"))).body == b"first"
    assert path.results == {"connect_refused": 1, "success": 1}


@hedged(waits_then_resets, waits_then_resets)
async def test_both_may_fail(path: DataPath, client: Client) -> None:
    got = await client.ask(post(b"hello"))
    assert (got.status, got.value(b"warmroute-outcome")) == (502, b"upstream_reset")
    assert b"o1: " in got.body
    assert path.results == {"reset": 2}
    assert path.outcomes == {"upstream_reset": 1}
    assert path.scalar(Scalar.RETRIES_TOTAL) == 0


@hedged(waits_then_resets, Full, timeouts=Timeouts(connect_s=0.2))
async def test_a_hedge_that_is_connecting_takes_over_and_may_fail(path: DataPath, client: Client) -> None:
    got = await client.ask(post(b"hello"))
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


async def both_asked(path: DataPath, client: Client) -> None:
    """Make a request, and wait until both tries have been sent."""
    await client.send(post(b"hello"))
    await path.until(lambda: path.in_flight == 2, "both in flight")
    await path.until(
        lambda: all(any(one.exchange for one in path.pool(index).open_connections) for index in (0, 1)), "both asked"
    )


# --- answers that win nothing while another try is under way ----------------------------------------------------------

BUSY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 7\r\nContent-Length: 4\r\n\r\nbusy"
TOO_MANY = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 4\r\n\r\nbusy"
BROKEN = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\n\r\nbusy"
IN_CHUNKS = b"HTTP/1.1 502 Bad Gateway\r\n" + CHUNKED + b"\r\n\r\n" + chunked(b"bu", b"sy")
UNREADY = answer(b"Model m is not ready yet.", status=b"400 Bad Request")
TO_ITS_END = b"HTTP/1.1 500 Internal Server Error\r\n\r\nbusy"
ASIDE = [
    pytest.param((BUSY,), "busy", True, id="503 with Retry-After"),
    pytest.param((TOO_MANY,), "busy", True, id="429"),
    pytest.param((BROKEN,), "server_error", True, id="500"),
    pytest.param((BROKEN[:-2], b"sy"), "server_error", False, id="in two pieces"),
    pytest.param((IN_CHUNKS,), "server_error", False, id="in chunks"),
    pytest.param((TO_ITS_END,), "server_error", False, id="to its end"),
    pytest.param((UNREADY,), "not_ready", True, id="a model that is not ready"),
    pytest.param((UNREADY[:-2], UNREADY[-2:]), "not_ready", True, id="the same in two pieces"),
]


@pytest.mark.parametrize(("pieces", "result", "kept"), ASIDE)
def test_a_hedge_that_answers_badly_leaves_the_first_try_alone(
    pieces: tuple[bytes, ...], result: str, kept: bool
) -> None:
    @hedged(after(0.13, answer(b"first")), after(0.0, *pieces))
    async def scenario(path: DataPath, client: Client) -> None:
        if result == "not_ready":
            path.plane.recogniser = Recogniser(Recognise())
        got = await client.ask(post(b"hello"))
        assert (got.status, got.body) == (200, b"first")
        assert path.results == {result: 1, "success": 1}
        assert path.outcomes == {"ok": 1}
        assert hedges(path) == (1, 0, 0)
        assert path.scalar(Scalar.RETRIES_TOTAL) == 0
        assert path.pool(1).pooled == len(path.pool(1).open_connections) == kept
        other = path.cluster.endpoints["o1"]
        assert only(other).untold.failures == (result == "server_error")
        assert (other.busy_until > time.monotonic()) is (result == "busy")
        if pieces == (BUSY,):
            assert 5.0 < other.busy_until - time.monotonic() <= 7.0

    scenario()


@pytest.mark.parametrize(("pieces", "result", "kept"), ASIDE)
def test_a_first_try_that_answers_badly_leaves_the_hedge_alone(
    pieces: tuple[bytes, ...], result: str, kept: bool
) -> None:
    """The hedge is the retry then."""

    @hedged(after(2 * DELAY_S, *pieces), after(0.13, answer(b"late")))
    async def scenario(path: DataPath, client: Client) -> None:
        if result == "not_ready":
            path.plane.recogniser = Recogniser(Recognise())
        got = await client.ask(post(b"hello"))
        assert (got.status, got.body) == (200, b"late")
        assert path.results == {result: 1, "success": 1}
        assert path.outcomes == {"ok": 1}
        assert hedges(path) == (1, 0, 0)
        assert path.scalar(Scalar.RETRIES_TOTAL) == 0
        assert path.pool(0).pooled == len(path.pool(0).open_connections) == kept
        assert len(path.origins[1].requests) == 1
        assert path.in_flight == 0

    scenario()


@hedged(after(0.13, BUSY), after(0.0, BROKEN))
async def test_the_last_answer_is_passed_on_whatever_it_says(path: DataPath, client: Client) -> None:
    got = await client.ask(post(b"hello"))
    assert (got.status, got.value(b"Retry-After"), got.body) == (503, b"7", b"busy")
    assert path.results == {"server_error": 1, "busy": 1}
    assert path.outcomes == {"upstream_busy": 1}
    assert hedges(path) == (1, 0, 0)


@hedged(after(2 * DELAY_S, BUSY), after(0.13, BROKEN))
async def test_so_is_that_of_the_hedge(path: DataPath, client: Client) -> None:
    got = await client.ask(post(b"hello"))
    assert (got.status, got.body) == (500, b"busy")
    assert path.results == {"server_error": 1, "busy": 1}
    assert path.outcomes == {"upstream_5xx": 1}
    assert hedges(path) == (1, 0, 0)


@hedged(silent, after(0.0, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"))
async def test_what_the_caller_did_wrong_is_an_answer(path: DataPath, client: Client) -> None:
    assert (await client.ask(post(b"hello"))).status == 404
    assert path.results == {"outrun": 1, "client_error": 1}
    assert hedges(path) == (1, 1, 0)


@hedged(after(2 * DELAY_S, BROKEN), Full, timeouts=Timeouts(connect_s=0.3))
async def test_a_hedge_that_is_connecting_takes_over_from_a_bad_answer(path: DataPath, client: Client) -> None:
    got = await client.ask(post(b"hello"))
    assert (got.status, got.value(b"warmroute-outcome")) == (504, b"connect_timeout")
    assert path.results == {"server_error": 1, "connect_timeout": 1}
    assert path.outcomes == {"connect_timeout": 1}


# --- the end of the request -------------------------------------------------------------------------------------------


@hedged(silent, silent)
async def test_a_caller_that_goes_away_cancels_both(path: DataPath, client: Client) -> None:
    await both_asked(path, client)
    client.close()
    await path.until(lambda: all(origin.ended for origin in path.origins), "both cancelled", within_s=0.5)
    assert path.results == {"cancelled": 2}
    assert path.outcomes == {"client_abort": 1}


@hedged(silent, Full, timeouts=Timeouts(connect_s=0.3))
async def test_a_caller_that_goes_away_cancels_a_hedge_that_connects(path: DataPath, client: Client) -> None:
    await client.send(post(b"hello"))
    await path.until(lambda: path.in_flight == 2, "both in flight")
    client.close()
    await path.until(lambda: path.outcomes, "counted")
    assert path.results == {"cancelled": 2}


@hedged(silent, silent)
async def test_the_requests_time_ends_both(path: DataPath, client: Client) -> None:
    got = await client.ask(request(b"GET / HTTP/1.1", b"x-request-timeout-ms: 150"))
    assert (got.status, got.value(b"warmroute-outcome")) == (504, b"deadline_exceeded")
    assert path.results == {"overdue": 1, "outrun": 1}
    assert path.outcomes == {"deadline_exceeded": 1}
    await path.until(lambda: all(origin.ended for origin in path.origins), "both cancelled", within_s=0.5)


@hedged(silent, silent, timeouts=Timeouts(response_head_s=0.15))
async def test_each_has_its_own_time_to_a_response_head(path: DataPath, client: Client) -> None:
    began = time.monotonic()
    got = await client.ask(post(b"hello"))
    assert got.value(b"warmroute-outcome") == b"upstream_timeout"
    assert 0.15 + DELAY_S <= time.monotonic() - began <= 0.15 + DELAY_S + 1.0
    assert path.results == {"head_timeout": 2}


LATE = Policies(
    retry=POLICIES.retry,
    quarantine=POLICIES.quarantine,
    hedging=HedgingPolicy(min_delay_ms=300, minimum_samples=1),
)


@hedged(silent, after(0.25, answer(b"late")), timeouts=Timeouts(try_s=0.4), policies=LATE)
async def test_each_has_its_own_time_for_one_try(path: DataPath, client: Client) -> None:
    assert (await client.ask(post(b"hello"))).body == b"late"
    assert path.results == {"try_timeout": 1, "success": 1}


@hedged(silent, silent)
async def test_a_drain_that_ends_cuts_both(path: DataPath, client: Client) -> None:
    await both_asked(path, client)
    path.plane.drain(time.monotonic())
    assert path.plane.cut_all() == 1
    got = await client.answer()
    assert got.value(b"warmroute-outcome") == b"draining"
    assert path.results == {"cancelled": 2}


@hedged(silent, silent)
async def test_a_crash_of_our_own_settles_both(path: DataPath, client: Client) -> None:
    await both_asked(path, client)
    (connection,) = path.plane.connections
    assert isinstance(connection, DownstreamConnection)
    connection.crashed(RuntimeError("on purpose"))
    assert (await client.answer()).status == 500
    assert path.results == {"cancelled": 2}
    path.errors.clear()


@hedged(silent, FAST)
async def test_a_crash_in_a_try_that_was_cancelled_leaves_the_caller_alone(path: DataPath, client: Client) -> None:
    """The next request may be in hand already."""
    await client.send(post(b"hello"))
    await path.until(lambda: path.in_flight, "in flight")
    (connection,) = path.plane.connections
    assert isinstance(connection, DownstreamConnection)
    attempt = path.cluster.choose(path.plane.cluster.default_route, 0.0, lambda: 0.0)  # type: ignore[arg-type]
    assert isinstance(attempt, Attempt)
    late = Hedge(connection, attempt)
    late.cancel()
    late.crashed(RuntimeError("on purpose"))
    path.cluster.done(attempt, AttemptResult.CANCELLED, 0.0)
    assert (await client.answer()).body == b"fast"
    assert [str(context["exception"]) for context in path.errors] == ["on purpose"]
    path.errors.clear()


# --- when none is sent ------------------------------------------------------------------------------------------------


@hedged(after(0.11, answer(b"first")), FAST, limits=Limits(replay_bytes=10))
async def test_a_request_that_was_not_kept_is_not_hedged(path: DataPath, client: Client) -> None:
    assert (await client.ask(post(b"eleven byte"))).body == b"first"
    assert hedges(path) == (0, 0, 1)
    assert path.origins[1].requests == []


@hedged(FAST, FAST)
async def test_the_wait_begins_with_the_requests_end(path: DataPath, client: Client) -> None:
    await client.send(request(b"POST / HTTP/1.1", b"Content-Length: 10") + b"half")
    await asyncio.sleep(3 * DELAY_S)
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
    return FaultRule("f", "delay", 1.0, time.monotonic() + 60, endpoint=endpoint, delay_ms=delay_ms)


@hedged(FAST, echo)
async def test_an_injected_delay_is_hedged_as_a_real_one(path: DataPath, client: Client) -> None:
    path.inject(delay("o0", 5000))
    assert (await client.ask(post(b"hello"))).body == b"hello"
    assert hedges(path) == (1, 1, 0)


@hedged(waits_then_resets, echo)
async def test_a_hedge_that_is_late_takes_over(path: DataPath, client: Client) -> None:
    path.inject(delay("o1", 100))
    assert (await client.ask(post(b"hello"))).body == b"hello"
    assert path.results == {"reset": 1, "success": 1}


@hedged(after(0.13, answer(b"first")), echo)
async def test_an_injected_error_of_the_hedge_is_no_answer(path: DataPath, client: Client) -> None:
    path.inject(FaultRule("f", "abort", 1.0, time.monotonic() + 60, endpoint="o1"))
    assert (await client.ask(post(b"hello"))).body == b"first"
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
