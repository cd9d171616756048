"""Breakers through real sockets: an endpoint that is bad for one of its models, and what the control process shows."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from router.breaker import GuardState
from router.model import (
    WHOLE,
    BreakerRule,
    EjectCause,
    EndpointEjected,
    EndpointReturned,
    Evidence,
    Replica,
    SnapshotEnded,
)
from router.policy import BreakerPolicy, ModelPolicy, Policies
from tests.support.control_process import ControlProcess
from tests.support.data_path import POLICIES, DataPath, on_data_path
from tests.support.wires import Client, OriginConnection, answer, request

if TYPE_CHECKING:
    from pathlib import Path

MODELS = (ModelPolicy("m"), ModelPolicy("n"))
BOTH = (Replica("m"), Replica("n"))
SLOW_S = 0.08
QUICK = Policies(
    retry=POLICIES.retry,
    quarantine=POLICIES.quarantine,
    breaker=BreakerPolicy(
        minimum_calls=6, open_s=0.4, half_open_calls=3, surge_open_s=0.4, surge_minimum_samples=10, surge_least_ms=30
    ),
)


async def obeys(origin: OriginConnection) -> None:
    """Answer as the request says: with the status that its body names, or slowly."""
    while True:
        wish = (await origin.request()).body
        if wish == b"slow":
            await asyncio.sleep(SLOW_S)
        await origin.send(answer(b"", status=wish + b" As Told" if wish.isdigit() else b"200 OK"))


def asks(model: bytes, wish: bytes) -> bytes:
    return request(b"POST /v2/models/%s/infer HTTP/1.1" % model, b"Content-Length: %d" % len(wish)) + wish


async def ask(path: DataPath, client: Client, model: bytes, wish: bytes, times: int = 1) -> dict[str, int]:
    """Ask one after the other; return how many each endpoint got."""
    before = [len(origin.requests) for origin in path.origins]
    for _ in range(times):
        await client.ask(asks(model, wish))
    path.plane.settle(time.monotonic())
    return {f"o{index}": len(origin.requests) - before[index] for index, origin in enumerate(path.origins)}


def state(path: DataPath, model: str, id_: str = "o0") -> GuardState:
    return path.cluster.endpoints[id_].candidates[model, "", WHOLE].breaker.state


async def closes(path: DataPath, client: Client, event: EndpointEjected) -> None:
    """Ask until the breaker has closed: no sooner than it says."""
    while state(path, event.model, event.id) is not GuardState.CLOSED:
        assert time.monotonic() < event.until + 5
        await ask(path, client, b"m", b"200")
        await asyncio.sleep(0.01)
    assert time.monotonic() >= event.until


@on_data_path(obeys, obeys, models=MODELS, replicas=BOTH, policies=QUICK)
async def test_an_endpoint_that_is_bad_for_one_of_two_models_goes_on_with_the_other(path: DataPath) -> None:
    client = await path.connect()
    assert await ask(path, client, b"m", b"500", 6) == {"o0": 6, "o1": 0}
    assert (state(path, "m"), state(path, "n")) == (GuardState.OPEN, GuardState.CLOSED)
    (event,) = path.shared
    assert isinstance(event, EndpointEjected)
    assert (event.id, event.model, event.rule, event.evidence) == (
        "o0",
        "m",
        BreakerRule.GENERAL,
        Evidence(6, 6, 0, 0),
    )
    assert await ask(path, client, b"m", b"200", 5) == {"o0": 0, "o1": 5}
    assert await ask(path, client, b"n", b"200", 5) == {"o0": 5, "o1": 0}
    await closes(path, client, event)
    assert path.shared[-1] == EndpointReturned("o0", EjectCause.BREAKER, path.shared[-1].at, "m")  # type: ignore[union-attr]


@on_data_path(obeys, obeys, models=MODELS, replicas=BOTH, policies=QUICK)
async def test_neither_4xx_nor_back_pressure_counts(path: DataPath) -> None:
    client = await path.connect()
    for wish in (b"400", b"404", b"422", b"429"):
        await ask(path, client, b"m", wish, 12)
    assert state(path, "m") is state(path, "m", "o1") is GuardState.CLOSED
    breaker = path.cluster.endpoints["o0"].candidates["m", "", WHOLE].breaker
    assert breaker.look(time.monotonic()) == Evidence(0, 0, 0, 0)
    assert path.shared == []


@on_data_path(obeys, obeys, models=MODELS, replicas=BOTH, policies=QUICK)
async def test_a_surge_of_one_model_takes_its_replica_out_and_back(path: DataPath) -> None:
    client = await path.connect()
    for model in (b"m", b"n"):
        assert await ask(path, client, model, b"200", 20) == {"o0": 20, "o1": 0}
    usual = path.cluster.endpoints["o0"].candidates["m", "", WHOLE].baseline
    await path.until(lambda: usual.ms is not None, "it is known how long calls take")
    callers = [await path.connect() for _ in range(60)]
    await asyncio.gather(*(caller.ask(asks(b"m", b"slow")) for caller in callers))
    path.plane.settle(time.monotonic())
    (event,) = path.shared
    assert isinstance(event, EndpointEjected)
    assert (event.model, event.rule) == ("m", BreakerRule.SURGE)
    assert event.evidence is not None
    assert event.evidence.failed == 0
    assert event.evidence.slow >= 0.6 * event.evidence.calls
    assert state(path, "n", event.id) is GuardState.CLOSED
    other = "o1" if event.id == "o0" else "o0"
    assert (await ask(path, client, b"m", b"200", 5))[other] == 5
    await closes(path, client, event)


def test_the_control_process_shows_breakers_and_counts_openings(tmp_path: Path) -> None:
    models = [{"name": name, "endpoints": ["http://127.0.0.1:9001"]} for name in "mn"]
    with ControlProcess(tmp_path, models=models) as control:
        control.hello()
        control.receive(0, lambda got: any(isinstance(message, SnapshotEnded) for message in got), "a snapshot")
        now = time.monotonic()
        figures = Evidence(20, 0, 0, 14, p95_ms=310.0, baseline_ms=20.0, slow_over_ms=45.0)
        id_ = "127.0.0.1:9001"
        opened = EndpointEjected(id_, EjectCause.BREAKER, now + 30, 1, now, "m", "", BreakerRule.UNAVAILABLE, figures)
        for index in (0, 1):  # two processes that find the same at the same time
            assert control.data[index].send(opened)

        text = ""
        while "warmroute_replica_breaker_opened_total{" not in text:
            assert time.monotonic() < now + 20
            text = control.ask("/metrics").text
        assert f'warmroute_replica_breaker_state{{endpoint="{id_}",model="m",version="",shard="0"}} 1' in text
        assert f'warmroute_replica_breaker_state{{endpoint="{id_}",model="n",version="",shard="0"}} 0' in text
        labels = f'{{endpoint="{id_}",model="m",version="",shard="0",rule="unavailable"}}'
        counted = f"warmroute_replica_breaker_opened_total{labels} 1"
        assert counted in text
        assert "breakers" not in control.ask("/healthz").json
        breakers = control.ask("/healthz?detail").json["breakers"]
        assert breakers["states"] == {"closed": 1, "open": 1, "half_open": 0}
        (one,) = breakers["not_closed"]
        assert (one["endpoint"], one["model"], one["rule"], one["state"]) == (id_, "m", "unavailable", "open")
        assert one["why"] == "unavailable: 0 of 20 calls found nobody there"
        assert 0 < one["left_s"] <= 30
        assert one["evidence"]["slow"] == 14
        (row,) = control.ask("/routes/explain?model=m").json["rows"]
        assert row["breaker"]["evidence"]["baseline_ms"] == 20.0
        (endpoint,) = control.ask("/endpoints").json["endpoints"]
        states = {replica["model"]: replica["breaker"]["state"] for replica in endpoint["replicas"]}
        assert states == {"m": "open", "n": "closed"}
