"""Requests that wait over real sockets: helpers of the tests of admission."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from router.admission import Refusal
from router.model import Replica, State
from router.policy import ModelPolicy, OnNoCandidate
from sidecar.http1.forwarding import ListenerRules
from sidecar.settings import Admission, Model, ModelAdmission, Priority
from sidecar.telemetry.page import (
    MODEL_TURNED_AWAY,
    REFUSAL_WORDS,
)
from tests.support.data_path import POLICIES, DataPath
from tests.support.held_origin import held, waiting
from tests.support.wires import Client, OriginConnection, answer, post

ONE = replace(POLICIES, requests_per_endpoint=1)
TRUSTED = ListenerRules(trusted_networks=("127.0.0.1",))
CLASSES = Priority(classes={"gold": 10, "batch": -10})
PATIENT = Admission(queue_wait_s=5.0)
WAITS = ModelPolicy("m", default=True, on_no_candidate=OnNoCandidate.WAIT)
LAZY = ModelPolicy("m", default=True, on_no_candidate=OnNoCandidate.LAZY)
COLD = (Replica("m", state=State.COLD),)


async def brisk(origin: OriginConnection) -> None:
    """Take 50 ms for each request."""
    while True:
        message = await origin.request()
        await asyncio.sleep(0.05)
        await origin.send(answer(message.body))


def turned_away(path: DataPath, kind: int = 0) -> dict[Refusal, int]:
    counts = dict.fromkeys(Refusal, 0)
    for _, row in path.plane.page.models():
        for index, refusal in enumerate(Refusal):
            counts[refusal] += int(path.plane.words[row + MODEL_TURNED_AWAY + kind * REFUSAL_WORDS + index])
    return {refusal: count for refusal, count in counts.items() if count}


async def queue(path: DataPath, body: bytes, *fields: bytes) -> Client:
    """Send a request that has to wait, and return once it does."""
    before = waiting(path)
    client = await path.connect()
    await client.send(post(body, *fields))
    await path.until(lambda: waiting(path) == before + 1, "in the queue")
    return client


async def occupy(path: DataPath) -> Client:
    client = await path.connect()
    await client.send(post(b"first"))
    await path.until(lambda: held(path).seen, "at the worker")
    return client


def limited(requests: int) -> tuple[Model, ...]:
    return (Model(name="m", admission=ModelAdmission(requests=requests)),)
