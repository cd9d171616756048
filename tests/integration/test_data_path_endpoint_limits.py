"""Limits of one endpoint: requests in flight there, and connections to it."""

from __future__ import annotations

import asyncio

from router.policy import Policies
from sidecar.faults.rules import FaultRule
from sidecar.settings import Limits, Timeouts
from sidecar.telemetry.page import ENDPOINT_PASSED_OVER, Scalar
from tests.support.data_path import POLICIES, DataPath, Full, echo, on_data_path, says
from tests.support.fleet import only
from tests.support.wires import Client, OriginConnection, answer, post, request

TWO_AT_MOST = Policies(retry=POLICIES.retry, quarantine=POLICIES.quarantine, requests_per_endpoint=2)


async def slow(origin: OriginConnection) -> None:
    while True:
        message = await origin.request()
        await asyncio.sleep(0.4)
        await origin.send(answer(message.body))


async def begun(path: DataPath, number: int) -> list[Client]:
    """Make that many requests at once and return their callers once all are in flight."""
    before = path.in_flight
    clients = [await path.connect() for _ in range(number)]
    for turn, client in enumerate(clients):
        await client.send(post(b"%d" % turn))
    await path.until(lambda: path.in_flight == before + number, "in flight")
    return clients


@on_data_path(slow, slow, policies=TWO_AT_MOST)
async def test_requests_over_the_limit_are_refused_at_once(path: DataPath) -> None:
    clients = await begun(path, 4)
    assert {endpoint.in_flight for endpoint in path.cluster.endpoints.values()} == {2}
    late = await path.connect()
    got = await late.ask(request(b"GET /v2/models/m HTTP/1.1"))
    assert (got.status, got.value(b"warmroute-outcome"), got.value(b"Retry-After")) == (503, b"overloaded", b"1")
    assert b"m: all 2 that could take it are at their limit (limits.requests_per_endpoint: 2)" in got.body
    for turn, client in enumerate(clients):
        assert (await client.answer()).body == b"%d" % turn
    assert (await late.ask(post(b"x"))).body == b"x"  # the connection was kept, and there is room again
    assert path.outcomes == {"ok": 5, "overloaded": 1}
    path.plane.flush(0.0)
    passed = sum(int(path.plane.words[row + ENDPOINT_PASSED_OVER]) for _, row in path.plane.page.endpoints())
    assert passed > 0


ONE_CONNECTION = Limits(connections_per_endpoint=1)


@on_data_path(slow, slow, limits=ONE_CONNECTION)
async def test_a_request_that_would_need_one_more_connection_goes_elsewhere(path: DataPath) -> None:
    clients = await begun(path, 2)
    late = await path.connect()
    got = await late.ask(request(b"GET /v2/models/m HTTP/1.1"))
    assert (got.status, got.value(b"warmroute-outcome")) == (503, b"overloaded")
    assert b"at their limit (limits.connections_per_endpoint)" in got.body
    for turn, client in enumerate(clients):
        assert (await client.answer()).body == b"%d" % turn
    for turn in range(4):  # one after the other they share what is there
        assert (await late.ask(post(b"%d" % turn))).body == b"%d" % turn
    assert [len(origin.connections) for origin in path.origins] == [1, 1]
    assert path.outcomes == {"ok": 6, "overloaded": 1}
    assert path.results == {"success": 6}  # what was turned away was no attempt


@on_data_path(echo, limits=Limits(connections_per_endpoint=3))
async def test_a_burst_makes_no_more_connections_than_it_may(path: DataPath) -> None:
    clients = [await path.connect() for _ in range(12)]
    for client in clients:
        await client.send(post(b"x"))
    statuses = [(await client.answer()).status for client in clients]
    assert statuses.count(200) >= 3
    assert set(statuses) <= {200, 503}
    assert len(path.origin.connections) <= 3
    assert (await clients[0].ask(post(b"y"))).body == b"y"


@on_data_path(says(answer(b"x"), close=True), limits=ONE_CONNECTION)
async def test_a_connection_that_ended_makes_room(path: DataPath) -> None:
    client = await path.connect()
    for _ in range(3):
        assert (await client.ask(request())).body == b"x"
        await path.until(lambda: not path.pool().open_connections, "noticed")
    assert path.outcomes == {"ok": 3}


@on_data_path(Full, echo, limits=ONE_CONNECTION, timeouts=Timeouts(connect_s=0.3))
async def test_a_connection_that_is_being_made_counts(path: DataPath) -> None:
    first = await path.connect()
    await first.send(post(b"1"))
    await path.until(lambda: path.in_flight == 1, "in flight")
    second = await path.connect()
    assert (await second.ask(post(b"2"))).body == b"2"
    assert path.results == {"success": 1}
    assert (await first.answer()).body == b"1"  # after its time to connect, as a retry
    assert path.scalar(Scalar.RETRIES_TOTAL) == 1


@on_data_path(slow, echo, limits=ONE_CONNECTION)
async def test_a_faulty_attempt_needs_a_connection_of_its_own(path: DataPath) -> None:
    first = await path.connect()
    assert (await first.ask(post(b"1"))).body == b"1"  # its connection is kept, and closed to make room
    path.inject(FaultRule("f", "delay", 1.0, until=path.plane.clock() + 60, endpoint="o0", delay_ms=60))
    await first.send(post(b"held"))
    await path.until(lambda: path.in_flight == 1, "in flight")
    only(path.cluster.endpoints["o1"]).latency.ewma_ms = 1e6  # so that it too goes to the first
    second = await path.connect()
    assert (await second.ask(post(b"other"))).body == b"other"
    assert (await first.answer()).body == b"held"
    assert path.scalar(Scalar.FAULTS_INJECTED_TOTAL) == 1
    assert len(path.origin.connections) == 2


@on_data_path(echo, limits=ONE_CONNECTION)
async def test_an_attempt_out_of_a_fault_s_scope_keeps_its_connection(path: DataPath) -> None:
    path.inject(FaultRule("f", "abort", 1.0, until=path.plane.clock() + 60, endpoint="o1"))
    client = await path.connect()
    for body in (b"1", b"2", b"3"):
        assert (await client.ask(post(body))).body == body
    assert len(path.origin.connections) == 1


@on_data_path(echo, limits=ONE_CONNECTION)
async def test_a_caller_that_left_while_its_connection_was_made_leaves_it_to_the_next(path: DataPath) -> None:
    client = await path.connect()
    await client.send(request())
    client.reset()
    await path.until(lambda: path.outcomes or path.pool() is not None, "begun")
    next_one = await path.connect()
    await path.until(lambda: path.pool() is not None and path.pool().pooled == 1, "pooled")
    assert (await next_one.ask(post(b"x"))).body == b"x"
    assert len(path.origin.connections) == 1
