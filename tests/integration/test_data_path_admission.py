"""Requests that wait for room at endpoints, over real sockets."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from router.admission import Refusal
from router.model import EndpointRecord, EndpointSeen, Replica, State
from router.policy import ModelPolicy, OnNoCandidate
from sidecar.faults.injector import Injector
from sidecar.settings import Admission, Tenant
from sidecar.telemetry.page import (
    MODEL_QUEUED,
    QUEUED_SUM,
)
from tests.support.admission import (
    CLASSES,
    ONE,
    PATIENT,
    TRUSTED,
    WAITS,
    brisk,
    limited,
    occupy,
    queue,
    turned_away,
)
from tests.support.data_path import DataPath, echo, on_data_path
from tests.support.held_origin import Held, held, waiting
from tests.support.wires import CHUNKED, Client, OriginConnection, chunk, post, request

# --- room at endpoints ---------------------------------------------------------------------------------------------


@on_data_path(brisk, policies=ONE, admission=PATIENT)
async def test_a_short_burst_over_a_limit_is_served(path: DataPath) -> None:
    clients = [await path.connect() for _ in range(6)]
    for turn, client in enumerate(clients):
        await client.send(post(b"%d" % turn))
    assert [(await client.answer()).body for client in clients] == [b"%d" % turn for turn in range(6)]
    assert path.outcomes == {"ok": 6}
    (row,) = (row for model, row in path.plane.page.models() if model == "m")
    assert sum(path.plane.words[row + MODEL_QUEUED : row + QUEUED_SUM]) == 5
    assert 0.05 * 15 - 0.05 < path.plane.words[row + QUEUED_SUM] / 1e6 < 4
    assert waiting(path) == 0
    (candidate,) = path.cluster.endpoints["o0"].candidates.values()
    latency = candidate.latency
    assert latency.ewma_ms < 200  # waiting here is not held against the worker: that was 250 ms for the last one


@on_data_path(Held(), policies=ONE)
async def test_the_longest_wait_is_50_ms_by_default(path: DataPath) -> None:
    first = await occupy(path)
    late = await path.connect()
    began = time.monotonic()
    got = await late.ask(post(b"late"))
    assert 0.045 < time.monotonic() - began < 1
    assert (got.status, got.value(b"warmroute-outcome"), got.value(b"Retry-After")) == (503, b"overloaded", b"1")
    assert b"at their limit (limits.requests_per_endpoint: 1); its turn did not come in time (0." in got.body
    assert turned_away(path) == {Refusal.TIMEOUT: 1}
    held(path).allowed.release()
    assert (await first.answer()).status == 200
    assert path.results == {"success": 1}


@on_data_path(Held(), policies=ONE, admission=Admission(queue_wait_s=0))
async def test_nobody_waits_where_that_is_turned_off(path: DataPath) -> None:
    first = await occupy(path)
    got = await (await path.connect()).ask(post(b"late"))
    assert got.status == 503
    assert b"turn" not in got.body
    assert turned_away(path) == {}
    held(path).allowed.release()
    await first.answer()


@on_data_path(Held(), policies=ONE, admission=Admission(queue_wait_s=5, queue_requests=2))
async def test_a_full_queue_refuses_at_once(path: DataPath) -> None:
    first = await occupy(path)
    second, third = await queue(path, b"2"), await queue(path, b"3")
    began = time.monotonic()
    got = await (await path.connect()).ask(post(b"4"))
    assert time.monotonic() - began < 0.5
    assert (got.status, got.value(b"warmroute-outcome")) == (503, b"overloaded")
    assert b"the queue is full" in got.body
    for client in (first, second, third):
        held(path).allowed.release()
        assert (await client.answer()).status == 200
    assert held(path).seen == [b"first", b"2", b"3"]
    assert turned_away(path) == {Refusal.FULL: 1}


@on_data_path(
    Held(), policies=ONE, admission=Admission(queue_wait_s=5, queue_requests=2, priority=CLASSES), rules=TRUSTED
)
async def test_the_highest_class_goes_first_and_the_lowest_is_shed(path: DataPath) -> None:
    first = await occupy(path)
    older = await queue(path, b"older", b"warmroute-priority: batch")
    younger = await queue(path, b"younger", b"Warmroute-Priority: BATCH ")
    gold = await path.connect()
    await gold.send(post(b"gold", b"warmroute-priority: gold"))
    got = await younger.answer()
    assert (got.status, got.value(b"warmroute-outcome")) == (503, b"overloaded")
    assert b"a request of a higher class took its place" in got.body
    refused = await (await path.connect()).ask(post(b"late", b"warmroute-priority: batch"))
    assert refused.status == 503
    for client in (first, gold, older):
        held(path).allowed.release()
        assert (await client.answer()).status == 200
    assert held(path).seen == [b"first", b"gold", b"older"]
    kinds = path.plane.admission.sorting.kinds
    assert kinds == ("default", "batch", "gold")
    assert turned_away(path, 1) == {Refusal.FULL: 1, Refusal.DISPLACED: 1}
    assert turned_away(path, 0) == turned_away(path, 2) == {}


@on_data_path(Held(), policies=ONE, admission=Admission(queue_wait_s=5, priority=CLASSES))
async def test_strangers_name_no_class(path: DataPath) -> None:
    first = await occupy(path)
    plain = await queue(path, b"plain")
    gold = await queue(path, b"gold", b"warmroute-priority: gold")
    for client in (first, plain, gold):
        held(path).allowed.release()
        await client.answer()
    assert held(path).seen == [b"first", b"plain", b"gold"]


@on_data_path(
    Held(),
    policies=ONE,
    admission=Admission(queue_wait_s=5, queue_requests=4, tenant=Tenant(header="x-tenant")),
    rules=TRUSTED,
)
async def test_tenants_take_turns_and_who_floods_is_told_429(path: DataPath) -> None:
    first = await occupy(path)
    flood = [await queue(path, b"a%d" % turn, b"x-tenant: a") for turn in range(4)]
    small = await path.connect()
    await small.send(post(b"b", b"x-tenant: b"))
    got = await flood[3].answer()
    assert (got.status, got.value(b"warmroute-outcome"), got.value(b"Retry-After")) == (429, b"over_share", b"1")
    again = await (await path.connect()).ask(post(b"a9", b"x-tenant: a"))
    assert (again.status, again.value(b"warmroute-outcome")) == (429, b"over_share")
    for client in (first, flood[0], small, flood[1], flood[2]):
        held(path).allowed.release()
        assert (await client.answer()).status == 200
    assert held(path).seen == [b"first", b"a0", b"b", b"a1", b"a2"]


@on_data_path(Held(), policies=ONE, admission=PATIENT)
async def test_a_callers_own_time_ends_its_wait(path: DataPath) -> None:
    first = await occupy(path)
    late = await path.connect()
    began = time.monotonic()
    got = await late.ask(post(b"late", b"x-request-timeout-ms: 40"))
    assert 0.035 < time.monotonic() - began < 1
    assert (got.status, got.value(b"warmroute-outcome")) == (504, b"deadline_exceeded")
    assert turned_away(path) == {Refusal.DEADLINE: 1}
    held(path).allowed.release()
    await first.answer()
    assert held(path).seen == [b"first"]


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_caller_that_leaves_the_queue(how: str) -> None:
    @on_data_path(Held(), policies=ONE, admission=PATIENT)
    async def scenario(path: DataPath) -> None:
        first = await occupy(path)
        late = await queue(path, b"late")
        getattr(late, how)()
        await path.until(lambda: not waiting(path), "out of the queue")
        assert turned_away(path) == {Refusal.LEFT: 1}
        held(path).allowed.release()
        await first.answer()
        assert path.outcomes == {"ok": 1, "client_abort": 1}
        assert held(path).seen == [b"first"]

    scenario()


@on_data_path(Held(), policies=ONE, admission=PATIENT)
async def test_a_body_is_not_read_while_its_request_waits(path: DataPath) -> None:
    first = await occupy(path)
    late = await path.connect()
    await late.send(request(b"POST / HTTP/1.1", CHUNKED) + chunk(b"a" * 1000))
    await path.until(lambda: waiting(path) == 1, "in the queue")
    received = path.plane.received_bytes
    late.writer.write(chunk(b"b" * 300_000) + b"0\r\n\r\n")
    await asyncio.sleep(0.05)
    assert path.plane.received_bytes <= received + 300_000  # at most what the loop had read already
    held(path).allowed.release()
    await first.answer()
    held(path).allowed.release()
    assert (await late.answer()).body == b"a" * 1000 + b"b" * 300_000


@on_data_path(Held(), policies=ONE, admission=PATIENT)
async def test_a_caller_that_leaves_with_half_a_body_is_noticed(path: DataPath) -> None:
    first = await occupy(path)
    late = await path.connect()
    await late.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf")
    await path.until(lambda: waiting(path) == 1, "in the queue")
    late.reset()
    await path.until(lambda: not waiting(path), "noticed")
    held(path).allowed.release()
    await first.answer()
    assert path.outcomes == {"ok": 1, "client_abort": 1}


@on_data_path(brisk, policies=ONE, admission=PATIENT)
async def test_nobody_overtakes_who_waits(path: DataPath) -> None:
    done: list[int] = []

    async def ask(turn: int) -> None:
        client = await path.connect()
        await asyncio.sleep(turn / 1000)
        assert (await client.ask(post(b"%d" % turn))).status == 200
        done.append(turn)

    await asyncio.gather(*map(ask, range(0, 60, 3)))
    assert done == sorted(done)
    assert path.outcomes == {"ok": 20}


@on_data_path(Held(), policies=ONE, admission=PATIENT, idempotent=True)
async def test_a_worker_that_dies_makes_room_for_who_waits(path: DataPath) -> None:
    first = await occupy(path)
    late = await queue(path, b"late")
    path.origin.script = echo
    path.origin.connections[0].reset()
    assert (await first.answer()).status in (200, 502)
    assert (await late.answer()).body == b"late"


@on_data_path(Held(), policies=ONE, admission=PATIENT)
async def test_the_end_of_a_drain_ends_the_wait(path: DataPath) -> None:
    first = await occupy(path)
    late = await queue(path, b"late")
    path.plane.drain(path.plane.clock())
    assert waiting(path) == 1
    path.plane.cut_all()
    got = await late.answer()
    assert (got.status, got.value(b"warmroute-outcome")) == (503, b"draining")
    assert (await first.answer()).status == 503
    assert waiting(path) == 0


@on_data_path(Held(), policies=ONE, models=(replace(WAITS, hedge=True, idempotent=True),), admission=PATIENT)
async def test_a_request_that_may_be_hedged_waits_as_others_do(path: DataPath) -> None:
    first = await occupy(path)
    late = await queue(path, b"late")
    for client in (first, late):
        held(path).allowed.release()
        assert (await client.answer()).status == 200


async def dies_once_it_is_asked(origin: OriginConnection) -> None:
    await origin.request()
    origin.reset()


TWICE = (ModelPolicy("m", default=True, idempotent=True),)


async def two(path: DataPath) -> tuple[Client, Client]:
    """Have a request at each worker: the one that dies with it, and the one that is left, which has no room then."""
    one, other = await path.connect(), await path.connect()
    await one.send(post(b"one"))
    await other.send(post(b"two"))
    return one, other


@on_data_path(Held(), dies_once_it_is_asked, policies=ONE, models=TWICE, admission=PATIENT)
async def test_a_retry_waits_for_room(path: DataPath) -> None:
    clients = await two(path)
    await path.until(lambda: waiting(path) == 1 and bool(held(path).seen), "in the queue")
    held(path).allowed.release()
    held(path).allowed.release()
    assert [(await client.answer()).body for client in clients] == [b"one", b"two"]
    assert path.outcomes == {"ok": 2}
    assert path.results == {"reset": 1, "success": 2}
    assert waiting(path) == 0


@on_data_path(Held(), dies_once_it_is_asked, policies=ONE, models=TWICE)
async def test_a_retry_whose_turn_does_not_come_says_how_it_failed(path: DataPath) -> None:
    clients = await two(path)
    await path.until(lambda: bool(turned_away(path)), "turned away")
    held(path).allowed.release()
    answers = {got.status: got for got in [await client.answer() for client in clients]}
    assert set(answers) == {200, 502}
    assert answers[502].value(b"warmroute-outcome") == b"upstream_reset"
    assert b"o1: " in answers[502].body
    assert b"no other endpoint is left for a retry: " in answers[502].body
    assert b"its turn did not come in time" in answers[502].body
    assert turned_away(path) == {Refusal.TIMEOUT: 1}


class Broken(Injector):
    """Cannot say what it strikes."""

    def strike(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("broken")


@on_data_path(Held(), policies=ONE, admission=PATIENT)
async def test_a_crash_in_its_turn_ends_that_request(path: DataPath) -> None:
    first = await occupy(path)
    late, last = await queue(path, b"late"), await queue(path, b"last")
    path.plane.faults = Broken(path.plane)
    held(path).allowed.release()
    assert (await first.answer()).status == 200
    assert [(await late.answer()).status, (await last.answer()).status] == [500, 500]
    assert len(path.errors) == 2
    path.errors.clear()


@on_data_path(echo, models=(ModelPolicy("m", default=True), ModelPolicy("cold", on_no_candidate=OnNoCandidate.WAIT)))
async def test_answers_are_told_to_those_alone_who_wait_for_room(path: DataPath) -> None:
    cold = EndpointRecord("c", "http://127.0.0.1:1", replicas=(Replica("cold", state=State.COLD),), static=True)
    path.cluster.apply(EndpointSeen(cold, time.monotonic()), time.monotonic())
    waits = await path.connect()
    await waits.send(post(b"x", target=b"/v2/models/cold/infer"))
    await path.until(lambda: waiting(path) == 1, "in the queue")
    assert not path.plane.admission.waiting
    assert (await (await path.connect()).ask(post(b"y"))).body == b"y"
    waits.reset()
    await path.until(lambda: not waiting(path), "gone")


@on_data_path(Held(), configured=limited(1), admission=PATIENT)
async def test_a_limit_that_is_raised_holds_for_those_who_wait(path: DataPath) -> None:
    first = await occupy(path)
    late = await queue(path, b"late")
    path.plane.admission.configure(PATIENT, limited(2))
    await path.until(lambda: len(held(path).seen) == 2, "at the worker")
    path.plane.admission.configure(PATIENT, ())
    path.plane.configure(path.plane.limits, path.plane.timeouts)
    third = await path.connect()
    await third.send(post(b"third"))
    await path.until(lambda: len(held(path).seen) == 3, "no limit at all")
    for client in (first, late, third):
        held(path).allowed.release()
        assert (await client.answer()).status == 200
