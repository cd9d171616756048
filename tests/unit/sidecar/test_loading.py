"""Lazy models: one load at a time, by the V2 repository API, on one endpoint."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence

import pytest

from router.cluster import Cluster
from router.model import EndpointRecord, EndpointSeen, Replica, State
from router.policy import ModelPolicy, OnNoCandidate, Policies
from sidecar.loading import RETRY_MOST_S, SETTLE_S, Loader
from sidecar.upstreams.adapters import Answer, Question
from tests.support.loops import beside, turns

INDEX = "/v2/repository/index"
LOAD = "/v2/repository/models/m/load"


class Fleet:
    """Endpoints that answer what the test says, by address; ``gate`` holds loads back."""

    def __init__(self, *records: EndpointRecord) -> None:
        self.now = 100.0
        self.runner = asyncio.Runner()
        self.cluster = Cluster(Policies(), [ModelPolicy("m", on_no_candidate=OnNoCandidate.LAZY)], self.now)
        for record in records:
            self.cluster.apply(EndpointSeen(record, self.now), self.now)
        self.states: dict[str, object] = {}
        self.loads: dict[str, Answer] = {}
        self.asked: list[tuple[str, str, str]] = []
        self.waits: list[float] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.loader = Loader(self.cluster, self.ask, clock=lambda: self.now, bounds={"m": 7.0})

    async def ask(self, address: str, questions: Sequence[Question], timeout_s: float) -> list[Answer]:
        (question,) = questions
        assert json.loads(question.body) == {}
        self.asked.append((address, question.method, question.path))
        if question.path == INDEX:
            states = self.states.get(address, [{"name": "m", "version": "1", "state": "UNAVAILABLE"}])
            return [states if isinstance(states, Answer) else Answer(200, body=json.dumps(states).encode())]
        self.waits.append(timeout_s)
        await self.gate.wait()
        return [self.loads.get(address, Answer(200))]


def at(
    name: str, *, state: State = State.COLD, static: bool = True, free: int | None = None, leaves: bool = False
) -> EndpointRecord:
    replicas = (Replica("m", state=state),)
    return EndpointRecord(
        name, f"http://{name}:1", replicas=replicas, static=static, free_memory_bytes=free, draining=leaves
    )


@pytest.fixture(autouse=True)
def runners(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the loop of each fleet that a test makes."""
    made: list[asyncio.Runner] = []
    new = asyncio.Runner

    def keep() -> asyncio.Runner:
        made.append(new())
        return made[-1]

    monkeypatch.setattr(asyncio, "Runner", keep)
    yield
    for runner in made:
        runner.close()


def settled(fleet: Fleet, *wanted: str) -> dict[str, int]:
    """Say that models are wanted, and return how that ended."""

    async def run() -> None:
        async with beside(fleet.loader.run()):
            for model in wanted:
                fleet.loader.wanted(model, "")
            await turns(50)

    fleet.runner.run(run())
    return dict(fleet.loader.counts)


def test_many_that_wait_have_one_endpoint_load_once() -> None:
    fleet = Fleet(at("a", free=1), at("b", free=2))
    assert settled(fleet, "m", "m", "m") == {"loaded": 1}
    assert fleet.asked == [("http://b:1", "POST", INDEX), ("http://b:1", "POST", LOAD)]
    fleet.now += SETTLE_S - 1
    assert settled(fleet, "m") == {"loaded": 1}
    fleet.now += 2
    assert settled(fleet, "m") == {"loaded": 2}


@pytest.mark.parametrize("state", ["READY", "LOADING"])
def test_a_server_that_has_it_or_loads_it_is_not_told_again(state: str) -> None:
    fleet = Fleet(at("a", state=State.LOADING))
    fleet.states["http://a:1"] = [{"name": "other", "state": "READY"}, {"name": "m", "state": state}]
    assert settled(fleet, "m") == {"already": 1}
    assert fleet.asked == [("http://a:1", "POST", INDEX)]


def test_a_replica_that_is_coming_by_its_own_word_is_waited_for() -> None:
    fleet = Fleet(at("a", state=State.COLD), at("b", state=State.WARMING, static=False))
    assert settled(fleet, "m") == {"already": 1}
    assert fleet.asked == []


def test_the_next_is_asked_where_one_fails_or_knows_no_such_api() -> None:
    fleet = Fleet(at("a"), at("b"), at("c"))
    fleet.states["http://a:1"] = Answer(404)
    fleet.loads["http://b:1"] = Answer(400, body=b'{"error": "no such model"}')
    assert settled(fleet, "m") == {"loaded": 1}
    assert [(address, path) for address, _, path in fleet.asked] == [
        ("http://a:1", INDEX),
        ("http://b:1", INDEX),
        ("http://b:1", LOAD),
        ("http://c:1", INDEX),
        ("http://c:1", LOAD),
    ]


def test_one_that_takes_the_load_and_hangs_is_passed_over_while_it_says_that_it_loads() -> None:
    fleet = Fleet(at("a", free=2), at("b", free=1))
    fleet.loads["http://a:1"] = Answer(None, "nothing within 7 s")
    fleet.loads["http://b:1"] = Answer(503)
    assert settled(fleet, "m") == {"failed": 1}
    assert fleet.waits == [7.0, 7.0]
    fleet.states["http://a:1"] = [{"name": "m", "version": "1", "state": "LOADING"}]
    del fleet.loads["http://b:1"]
    fleet.now += RETRY_MOST_S
    assert settled(fleet, "m") == {"failed": 1, "loaded": 1}
    assert fleet.asked[-1] == ("http://b:1", "POST", LOAD)
    fleet.states["http://a:1"] = [{"name": "m", "version": "1", "state": "READY"}]
    fleet.now += SETTLE_S + 1
    assert settled(fleet, "m") == {"failed": 1, "loaded": 1, "already": 1}


def test_a_failure_everywhere_is_tried_again_later_and_later() -> None:
    fleet = Fleet(at("a"))
    fleet.loads["http://a:1"] = Answer(500, body=b"out of memory")
    assert settled(fleet, "m", "m") == {"failed": 1}
    fleet.now += 1.1
    assert settled(fleet, "m") == {"failed": 2}
    fleet.now += 1.1
    assert settled(fleet, "m") == {"failed": 2}  # two seconds this time
    for _ in range(12):
        fleet.now += RETRY_MOST_S * 1.2 + 0.1
        settled(fleet, "m")
    assert fleet.loader.counts["failed"] == 14
    fleet.now += RETRY_MOST_S * 1.2 + 0.1
    fleet.loads.clear()
    assert settled(fleet, "m")["loaded"] == 1


@pytest.mark.parametrize(
    "record",
    [
        at("a", leaves=True),
        at("a", state=State.WARM),
        EndpointRecord("a", "grpc://a:1", protocol="grpc", replicas=(Replica("m", state=State.COLD),)),
    ],
    ids=["leaves", "warm", "grpc"],
)
def test_who_is_not_asked(record: EndpointRecord) -> None:
    fleet = Fleet(record)
    assert settled(fleet, "m") == {"nobody": 1}
    assert fleet.asked == []


def test_a_server_without_the_api_loads_nothing() -> None:
    fleet = Fleet(at("a"), at("b"))
    fleet.states |= {"http://a:1": Answer(None, "refused"), "http://b:1": Answer(200, body=b"hello")}
    assert settled(fleet, "m") == {"nobody": 1}
    assert LOAD not in [path for _, _, path in fleet.asked]


def test_a_model_that_is_gone_is_not_loaded() -> None:
    fleet = Fleet(at("a"))
    assert settled(fleet, "other") == {}


def test_models_are_loaded_beside_each_other() -> None:
    fleet = Fleet(at("a"))
    fleet.cluster.configure(Policies(), [ModelPolicy("m"), ModelPolicy("n")], fleet.now)
    fleet.gate.clear()
    settled(fleet, "m", "n")  # the first one's load hangs
    assert fleet.loader.counts == {"nobody": 1}
