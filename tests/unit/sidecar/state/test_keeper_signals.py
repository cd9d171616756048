"""Faults of signals, from what a source says to what data processes are told and the control process goes by."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from router.model import (
    EndpointGone,
    EndpointRecord,
    EndpointSeen,
    EndpointsHeard,
    GoneReason,
    LoadReport,
    LoadsReported,
    Replica,
    SnapshotBegan,
    SnapshotEnded,
    State,
)
from sidecar.channel import FaultsChanged
from sidecar.faults.rules import FaultRule
from sidecar.state.memory import Memory
from tests.support.keeper_bench import Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def rule(bench: Bench, kind: str, endpoint: str = "a", for_s: float = 10.0) -> FaultRule:
    return FaultRule("f", kind, 1.0, until=bench.now + for_s, endpoint=endpoint)


def again(bench: Bench, event: EndpointSeen, queue: int = 5) -> EndpointSeen:
    """Have the source say something new of an endpoint."""
    new = EndpointSeen(replace(event.record, queue_depth=queue, revision=queue), bench.now)
    bench.keeper.found("redis", new)
    return new


def state_of(bench: Bench, name: str) -> State:
    (candidate,) = bench.keeper.cluster.endpoints[name].candidates.values()
    return candidate.replica.state


def snapshot(bench: Bench) -> list[object]:
    bench.keeper.feed.send_snapshot(0)
    messages = bench.sent()
    began = next(n for n, one in enumerate(messages) if isinstance(one, SnapshotBegan))
    ended = next(n for n, one in enumerate(messages) if isinstance(one, SnapshotEnded))
    return messages[began + 1 : ended]


def test_warmth_is_lost_at_once_and_back_at_the_end(bench: Bench) -> None:
    warm, other = bench.seen("a"), bench.seen("b")
    cold = EndpointSeen(replace(warm.record, replicas=(Replica("m", state=State.COLD),)), warm.at)
    bench.sent()
    bench.now += 1
    bench.keeper.add_fault(rule(bench, "warmth_lost"))
    assert bench.sent() == [cold, EndpointsHeard(("a",), 100.0), FaultsChanged(())], "data processes need no such rule"
    assert (state_of(bench, "a"), state_of(bench, "b")) == (State.COLD, State.WARM)
    assert snapshot(bench) == [cold, other]
    told = again(bench, warm)
    assert bench.sent() == [replace(told, record=replace(told.record, replicas=cold.record.replicas))]
    bench.keeper.remove_fault("f")
    assert bench.sent() == [told, EndpointsHeard(("a",), 101.0), FaultsChanged(())]
    assert state_of(bench, "a") is State.WARM
    assert snapshot(bench) == [told, other]


def test_a_fault_of_signals_ends_by_itself(bench: Bench) -> None:
    bench.seen("a")
    bench.keeper.add_fault(rule(bench, "warmth_lost", for_s=3.0))
    bench.now += 2.9
    bench.keeper.tick()
    assert state_of(bench, "a") is State.COLD
    bench.now += 0.1
    bench.keeper.tick()
    assert state_of(bench, "a") is State.WARM
    assert not bench.keeper.roster.faults


def test_what_is_frozen_grows_old_and_is_caught_up_with(bench: Bench) -> None:
    first, other = bench.seen("a"), bench.seen("b")
    bench.keeper.add_fault(rule(bench, "telemetry_frozen", for_s=60.0))
    bench.sent()
    for _ in range(20):
        bench.now += 0.5
        last = again(bench, first, queue=int(bench.now))
        bench.keeper.found("redis", EndpointsHeard(("a", "b"), bench.now))
        bench.keeper.tick()
    cluster = bench.keeper.cluster
    assert {name: endpoint.heard_at for name, endpoint in cluster.endpoints.items()} == {"a": 100.0, "b": 110.0}
    assert all(message.ids == ("b",) for message in bench.sent() if isinstance(message, EndpointsHeard))
    assert snapshot(bench) == [first, other, EndpointsHeard(("b",), 110.0)]
    bench.keeper.remove_fault("f")
    assert bench.sent()[:2] == [last, EndpointsHeard(("a",), 110.0)]
    assert cluster.endpoints["a"].heard_at == 110.0


def test_late_words_go_out_late_and_at_once(bench: Bench) -> None:
    seen = bench.seen("a")
    bench.seen("b")
    bench.keeper.add_fault(rule(bench, "clock_skew"))
    bench.sent()
    bench.now = 100.5
    bench.keeper.found("redis", EndpointsHeard(("a", "b"), bench.now))
    assert bench.sent() == [EndpointsHeard(("a",), 90.5)]
    bench.keeper.tick()
    assert bench.sent() == [EndpointsHeard(("b",), 100.5)]
    assert snapshot(bench)[0] == replace(seen, at=90.0)


def test_reports_that_are_no_numbers_reach_nobody(bench: Bench) -> None:
    bench.seen("a")
    bench.seen("b")
    bench.keeper.add_fault(rule(bench, "nan_load"))
    bench.sent()
    bench.keeper.loads_reported(LoadsReported((("a", LoadReport(0.5)), ("b", LoadReport(0.5))), bench.now))
    assert bench.sent() == [LoadsReported((("b", LoadReport(0.5)),), bench.now)]
    bench.keeper.loads_reported(LoadsReported((("a", LoadReport(0.5)),), bench.now))
    assert bench.sent() == []


def test_an_endpoint_that_goes_is_gone_and_not_heard_of_while_its_words_are_withheld(bench: Bench) -> None:
    bench.seen("a")
    bench.keeper.add_fault(rule(bench, "telemetry_frozen"))
    gone = EndpointGone("a", GoneReason.EXPIRED, bench.now)
    bench.sent()
    bench.keeper.found("redis", gone)
    assert bench.sent() == [gone]
    back = bench.seen("a", "e2")
    assert (bench.sent(), snapshot(bench)) == ([], [])
    bench.keeper.remove_fault("f")
    assert bench.sent()[0] == back


def test_a_configured_endpoint_is_there_though_its_words_are_withheld(bench: Bench) -> None:
    bench.keeper.add_fault(rule(bench, "telemetry_frozen"))
    bench.sent()
    first = EndpointSeen(EndpointRecord("a", "http://127.0.0.1:1", replicas=(Replica("m"),), static=True), bench.now)
    bench.keeper.found("redis", first)
    assert bench.sent() == [first]
    again(bench, first)
    assert (bench.sent(), snapshot(bench)) == ([], [first])


def test_a_new_control_process_goes_on_with_the_faults_of_signals() -> None:
    fd = os.memfd_create("memory", 0)
    try:
        before = Bench(Memory(fd))
        frozen = before.seen("a")
        before.keeper.add_fault(rule(before, "telemetry_frozen"))
        before.close()
        after = Bench(Memory(fd))
        new = EndpointSeen(replace(frozen.record, queue_depth=9), after.now)
        after.keeper.found("redis", new)
        assert snapshot(after) == [frozen]
        after.keeper.remove_fault("f")
        assert snapshot(after) == [new]
        after.close()
    finally:
        os.close(fd)
