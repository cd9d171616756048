"""The degradation ladder beside the queue: who finds no room goes down alone, whatever its class, tenant and time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from router.ladder import LadderStep
from router.model import Replica, State
from router.policy import ModelPolicy, OnNoCandidate
from sidecar.http1.forwarding import ListenerRules
from sidecar.settings import Admission, Model, ModelAdmission, Priority, Wait
from tests.support.data_path import DataPath, on_data_path
from tests.support.degrading import INFER, SLOW, STATIC, infer, step
from tests.support.held_origin import Held, held, waiting
from tests.support.wires import Client, post

ONE = replace(SLOW, requests_per_endpoint=1)
TRUSTED = ListenerRules(trusted_networks=("127.0.0.1",))
CLASSES = Priority(classes={"gold": 10, "batch": -10})
NARROW = Admission(queue_wait_s=5.0, queue_requests=2, priority=CLASSES)
LADDERS = (Model(name="m", static_answer=STATIC),)
BATCH = b"warmroute-priority: batch"
GOLD = b"warmroute-priority: gold"
WAITS = ModelPolicy("m", default=True, on_no_candidate=OnNoCandidate.WAIT)
COLD = (Replica("m", state=State.COLD),)


async def queue(path: DataPath, body: bytes, *fields: bytes) -> Client:
    """Send a request that has to wait, and return once it does."""
    before = waiting(path)
    client = await path.connect()
    await client.send(post(body, *fields, target=INFER))
    await path.until(lambda: waiting(path) == before + 1, "in the queue")
    return client


async def occupy(path: DataPath) -> Client:
    client = await path.connect()
    await client.send(post(b"first", target=INFER))
    await path.until(lambda: held(path).seen, "at the worker")
    return client


async def shed(path: DataPath, *fields: bytes, times: int = 6) -> None:
    """Have requests turned away, each answered from below."""
    client = await path.connect()
    for _ in range(times):
        assert (await infer(client, b"x", *fields)).value(b"warmroute-degraded") == b"static"


async def check_the_highest_class_is_served(path: DataPath) -> None:
    first = await occupy(path)
    older = await queue(path, b"older", BATCH)
    younger = await queue(path, b"younger", BATCH)
    await shed(path, BATCH)
    gold = await path.connect()
    await gold.send(post(b"gold", GOLD, target=INFER))
    assert (await younger.answer()).value(b"warmroute-degraded") == b"static"
    await shed(path, BATCH)
    assert step(path) is LadderStep.REPLICA
    for client, body in ((first, b"first"), (gold, b"gold"), (older, b"older")):
        held(path).allowed.release()
        assert (await client.answer()).body == body


@on_data_path(Held(), policies=ONE, admission=NARROW, rules=TRUSTED, ladders=LADDERS)
async def test_the_lowest_class_that_is_shed_degrades_no_other(path: DataPath) -> None:
    await check_the_highest_class_is_served(path)


@on_data_path(
    Held(),
    policies=SLOW,
    admission=NARROW,
    rules=TRUSTED,
    ladders=LADDERS,
    configured=(Model(name="m", admission=ModelAdmission(requests=1)),),
)
async def test_nor_does_it_where_the_model_has_the_limit(path: DataPath) -> None:
    await check_the_highest_class_is_served(path)


@on_data_path(Held(), policies=ONE, admission=Admission(queue_wait_s=0.0), ladders=LADDERS)
async def test_there_is_room_again_with_the_next_answer(path: DataPath) -> None:
    first = await occupy(path)
    await shed(path)
    held(path).allowed.release()
    assert (await first.answer()).body == b"first"
    held(path).allowed.release()
    assert (await infer(first, b"next")).body == b"next"


@on_data_path(Held(), policies=ONE, admission=Admission(queue_wait_s=5.0), ladders=LADDERS)
async def test_a_time_that_would_be_over_before_its_turn_is_its_callers_own(path: DataPath) -> None:
    first = await occupy(path)
    clients = [await queue(path, b"%d" % turn) for turn in range(20)]
    for client in (first, *clients[:9]):  # so it is known how fast it goes
        await asyncio.sleep(0.01)
        held(path).allowed.release()
        await client.answer()
    assert waiting(path) == 10
    await shed(path, b"x-request-timeout-ms: 40")
    assert step(path) is LadderStep.REPLICA
    last = await queue(path, b"last")
    for client in (*clients[9:], last):
        held(path).allowed.release()
        assert (await client.answer()).status == 200


@on_data_path(
    Held(),
    models=(WAITS,),
    replicas=(Replica("m", state=State.LOADING, warm_in_s=3.0),),
    policies=SLOW,
    ladders=LADDERS,
)
async def test_so_it_is_where_a_replica_is_waited_for(path: DataPath) -> None:
    await shed(path, b"x-request-timeout-ms: 1000")
    assert step(path) is LadderStep.REPLICA
    await queue(path, b"patient")


@on_data_path(
    Held(),
    models=(WAITS,),
    replicas=COLD,
    policies=SLOW,
    admission=NARROW,
    rules=TRUSTED,
    ladders=LADDERS,
    configured=(Model(name="m", wait=Wait(max_s=0.3, requests=1)),),
)
async def test_a_replica_that_did_not_come_in_time_came_for_nobody(path: DataPath) -> None:
    batch = await queue(path, b"batch", BATCH)
    await shed(path, BATCH)
    gold = await path.connect()
    await gold.send(post(b"gold", GOLD, target=INFER))
    assert (await batch.answer()).value(b"warmroute-degraded") == b"static"
    assert (step(path), waiting(path)) == (LadderStep.REPLICA, 1)
    assert (await gold.answer()).value(b"warmroute-degraded") == b"static"
    assert step(path) is LadderStep.STATIC
