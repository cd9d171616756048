"""The end of a request that was hedged: what becomes of both tries, what is counted, who hears of it."""

from __future__ import annotations

import time

from router.outcomes import AttemptResult
from router.policy import HedgingPolicy, Policies
from router.routes import Attempt
from sidecar.http1.downstream import DownstreamConnection
from sidecar.http1.hedging import Hedge
from sidecar.settings import Timeouts
from tests.support.data_path import EARLY_S, POLICIES, DataPath, Full, silent
from tests.support.hedging import (
    DELAY_S,
    FAST,
    after,
    both_asked,
    hedged,
)
from tests.support.wires import Client, answer, post, request


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
    got = await client.ask(request(b"GET / HTTP/1.1", b"x-request-timeout-ms: 1000"))
    assert (got.status, got.value(b"warmroute-outcome")) == (504, b"deadline_exceeded")
    assert path.results == {"overdue": 1, "outrun": 1}
    assert path.outcomes == {"deadline_exceeded": 1}
    await path.until(lambda: all(origin.ended for origin in path.origins), "both cancelled", within_s=0.5)


@hedged(silent, silent, timeouts=Timeouts(response_head_s=0.15))
async def test_each_has_its_own_time_to_a_response_head(path: DataPath, client: Client) -> None:
    began = time.monotonic()
    got = await client.ask(post(b"hello"))
    assert got.value(b"warmroute-outcome") == b"upstream_timeout"
    assert 0.15 + DELAY_S - EARLY_S <= time.monotonic() - began <= 0.15 + DELAY_S + 1.0
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
