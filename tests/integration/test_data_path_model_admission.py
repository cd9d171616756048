"""Requests that wait within their model's own limit, or for a replica that is warm, over real sockets."""

from __future__ import annotations

import asyncio
import time

import pytest

from router.admission import Refusal
from router.model import EndpointRecord, EndpointSeen, Replica, State
from sidecar.settings import Admission, Model, Wait
from tests.support.admission import (
    COLD,
    LAZY,
    ONE,
    PATIENT,
    WAITS,
    limited,
    occupy,
    queue,
    turned_away,
)
from tests.support.data_path import DataPath, echo, on_data_path
from tests.support.held_origin import Held, held
from tests.support.wires import CHUNKED, OriginConnection, answer, chunk, post, request

# --- a model's own limit -------------------------------------------------------------------------------------------


class Counting:
    """A worker that notes how many requests it has at most at once."""

    def __init__(self) -> None:
        self.now = self.most = 0

    async def __call__(self, origin: OriginConnection) -> None:
        while True:
            message = await origin.request()
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0.003)
            self.now -= 1
            await origin.send(answer(message.body))


@on_data_path(Counting(), admission=PATIENT, configured=limited(2))
async def test_a_model_has_no_more_in_flight_than_it_may(path: DataPath) -> None:
    clients = [await path.connect() for _ in range(8)]
    for turn, client in enumerate(clients):
        await client.send(post(b"%d" % turn))
    for turn, client in enumerate(clients):
        assert (await client.answer()).body == b"%d" % turn
    assert isinstance(path.origin.script, Counting)
    assert path.origin.script.most == 2
    assert path.outcomes == {"ok": 8}


@pytest.mark.parametrize("field", [b"Content-Length: 3", CHUNKED])
def test_a_caller_that_sends_slowly_holds_no_place_within_the_model(field: bytes) -> None:
    rest = chunk(b"w") + b"0\r\n\r\n" if field is CHUNKED else b"w"

    @on_data_path(echo, admission=Admission(queue_wait_s=0.0), configured=limited(1))
    async def scenario(path: DataPath) -> None:
        slow = [await path.connect() for _ in range(4)]
        for client in slow:
            await client.send(request(b"POST / HTTP/1.1", field) + (chunk(b"sl") if field is CHUNKED else b"sl"))
        await asyncio.sleep(0.02)
        other = await path.connect()
        for _ in range(3):
            assert (await other.ask(post(b"quick"))).body == b"quick"
        for client in slow:
            assert (await client.ask(rest)).body == b"slw"
        assert path.outcomes == {"ok": 7}

    scenario()


@on_data_path(Held(), configured=limited(1), admission=Admission(queue_wait_s=0))
async def test_over_a_models_limit_without_a_queue(path: DataPath) -> None:
    first = await occupy(path)
    late = await path.connect()
    got = await late.ask(post(b"late"))
    assert (got.status, got.value(b"warmroute-outcome")) == (503, b"overloaded")
    assert b"m: 1 requests are in flight, of 1 that may be in this process" in got.body
    first.reset()
    await path.until(lambda: path.outcomes.get("client_abort"), "noticed")
    for _ in range(2):  # the worker has yet to find out that the first is gone
        held(path).allowed.release()
    assert (await late.ask(post(b"again"))).body == b"again"  # its place was given back


@on_data_path(Held(), configured=limited(2), admission=PATIENT)
async def test_a_share_of_the_sidecars_limit_grows_when_a_sibling_dies(path: DataPath) -> None:
    path.plane.admission.divide(0, 2)
    first = await occupy(path)
    late = await queue(path, b"late")
    path.plane.admission.divide(0, 1)
    await path.until(lambda: len(held(path).seen) == 2, "the other one too")
    path.plane.admission.divide(1, 2)  # what runs goes on
    third = await queue(path, b"third")
    for client in (first, late, third):
        held(path).allowed.release()
        assert (await client.answer()).status == 200


@on_data_path(Held(), policies=ONE, configured=limited(2), admission=PATIENT)
async def test_a_place_within_the_model_is_not_kept_while_waiting_for_an_endpoint(path: DataPath) -> None:
    first = await occupy(path)
    late = await queue(path, b"late")
    assert path.plane.admission.permit_for(path.cluster.route("m")).gate.in_flight == 1  # type: ignore[union-attr]
    for client in (first, late):
        held(path).allowed.release()
        assert (await client.answer()).status == 200
    assert path.plane.admission.permit_for(path.cluster.route("m")).gate.in_flight == 0  # type: ignore[union-attr]


# --- a replica that is warm ----------------------------------------------------------------------------------------


def becomes(path: DataPath, state: State, warm_in_s: float = 0.0) -> None:
    record = path.cluster.endpoints["o0"].record
    replicas = (Replica("m", state=state, warm_in_s=warm_in_s),)
    record = EndpointRecord(record.id, record.address, replicas=replicas, static=True)
    path.cluster.apply(EndpointSeen(record, time.monotonic()), time.monotonic())


@on_data_path(echo, models=(WAITS,), replicas=COLD)
async def test_requests_wait_until_a_replica_is_warm(path: DataPath) -> None:
    clients = [await queue(path, b"%d" % turn) for turn in range(3)]
    await asyncio.sleep(0.1)  # longer than for room
    becomes(path, State.WARM)
    for turn, client in enumerate(clients):
        assert (await client.answer()).body == b"%d" % turn
    assert path.outcomes == {"ok": 3}


@on_data_path(echo, models=(WAITS,), replicas=COLD, configured=(Model(name="m", wait=Wait(max_s=0.05, requests=1)),))
async def test_waiting_for_a_replica_has_bounds(path: DataPath) -> None:
    first = await queue(path, b"1")
    got = await (await path.connect()).ask(post(b"2"))
    assert (got.status, got.value(b"warmroute-outcome")) == (503, b"no_candidate")
    assert b"the queue is full" in got.body
    got = await first.answer()
    assert (got.status, got.value(b"warmroute-outcome")) == (503, b"no_candidate")
    assert b"none of 1 can be picked: 1 not_warm; its turn did not come in time" in got.body
    assert turned_away(path) == {Refusal.FULL: 1, Refusal.TIMEOUT: 1}


@on_data_path(echo, models=(WAITS,), replicas=(Replica("m", state=State.LOADING, warm_in_s=60.0),))
async def test_nobody_waits_for_a_replica_that_will_not_be_warm_in_time(path: DataPath) -> None:
    got = await asyncio.wait_for((await path.connect()).ask(post(b"1")), 5)
    assert (got.status, got.value(b"warmroute-outcome"), got.value(b"retry-after")) == (503, b"no_candidate", b"60")
    assert b"1 not_warm; its turn would not come in time" in got.body
    becomes(path, State.LOADING, warm_in_s=5.0)
    await path.until(lambda: path.cluster.route("m").none is None, "looked at anew")  # type: ignore[union-attr]
    own = await asyncio.wait_for((await path.connect()).ask(post(b"2", b"x-request-timeout-ms: 2000")), 1.5)
    assert (own.status, own.value(b"warmroute-outcome"), own.value(b"retry-after")) == (503, b"no_candidate", b"5")
    patient = await queue(path, b"3")
    assert turned_away(path) == {Refusal.SLOW: 1, Refusal.DEADLINE: 1}
    becomes(path, State.WARM)
    assert (await patient.answer()).body == b"3"


@on_data_path(echo, models=(LAZY,), replicas=COLD)
async def test_one_request_has_a_cold_model_loaded(path: DataPath) -> None:
    wanted: list[tuple[str, str]] = []
    path.plane.want_load = lambda model, version: wanted.append((model, version))
    clients = [await queue(path, b"%d" % turn) for turn in range(3)]
    assert wanted == [("m", "")]
    becomes(path, State.LOADING)
    await asyncio.sleep(0.05)
    becomes(path, State.WARM)
    for turn, client in enumerate(clients):
        assert (await client.answer()).body == b"%d" % turn
    assert wanted == [("m", "")]


@on_data_path(echo, replicas=COLD)
async def test_a_model_that_fails_does_not_wait(path: DataPath) -> None:
    got = await (await path.connect()).ask(post(b"x"))
    assert (got.status, got.value(b"warmroute-outcome")) == (503, b"no_candidate")
    assert turned_away(path) == {}
