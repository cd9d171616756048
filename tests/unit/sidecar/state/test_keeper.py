from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from router.breaker import GuardState
from router.evidence import breaker_row
from router.model import (
    EjectCause,
    EndpointEjected,
    EndpointGone,
    EndpointHeld,
    EndpointReturned,
    EndpointSeen,
    EndpointsHeard,
    Evidence,
    GoneReason,
    PeerObserved,
    SnapshotEnded,
    StoreChanged,
    StoreMode,
)
from sidecar.channel import FaultsChanged, GuardsInForce, Hello, LoadWanted, Ping
from sidecar.faults.rules import FaultRule
from sidecar.settings import Fault
from sidecar.state.memory import Memory
from sidecar.state.processes import SPEAKS_S
from tests.support.fleet import observation
from tests.support.keeper_bench import Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def test_what_a_source_says_goes_to_every_data_process_and_into_the_own_cluster(bench: Bench) -> None:
    event = bench.seen("a")
    assert (bench.sent(0), bench.sent(1)) == ([event], [event])
    assert "a" in bench.keeper.cluster.endpoints
    gone = EndpointGone("a", GoneReason.DEREGISTERED, bench.now)
    bench.keeper.found("redis", gone)
    assert bench.sent(0) == [gone]
    assert "a" not in bench.keeper.cluster.endpoints
    assert bench.keeper.cluster.departed == []
    changed = StoreChanged(StoreMode.FROZEN, bench.now)
    bench.keeper.found("redis", changed)
    assert bench.sent(0) == [changed]


def test_heartbeats_wait_for_the_tick_and_go_together(bench: Bench) -> None:
    bench.seen("a")
    bench.seen("b")
    bench.sent()
    bench.keeper.found("redis", EndpointsHeard(("a",), 100.1))
    bench.keeper.found("redis", EndpointsHeard(("b",), 100.2))
    bench.keeper.found("redis", EndpointsHeard(("a",), 100.3))
    assert bench.sent() == []
    bench.now = 100.4
    bench.keeper.tick()
    assert bench.sent() == [EndpointsHeard(("a", "b"), 100.1)]
    bench.keeper.tick()
    assert bench.sent() == []


def test_a_hello_is_answered_once_the_first_attempt_to_learn_everything_is_over(bench: Bench) -> None:
    bench.keeper.from_data(0, Hello(0, 1, "e"))
    bench.keeper.tick()
    assert bench.sent() == []
    bench.source.tried = True
    bench.keeper.tick()
    assert any(isinstance(message, SnapshotEnded) for message in bench.sent(0))
    assert bench.sent(1) == []


def test_all_being_known_sets_no_process_going_before_first_probes_are_over(bench: Bench) -> None:
    bench.source.complete = True
    bench.keeper.from_data(0, Hello(0, 1, "e"))
    bench.keeper.tick()
    assert (bench.sent(0), bench.sent(1)) == ([], [])
    bench.source.tried = True
    bench.keeper.tick()
    assert all(any(isinstance(message, SnapshotEnded) for message in bench.sent(index)) for index in (0, 1))


def test_processes_that_did_not_ask_get_a_snapshot_once_and_only_when_all_is_known(bench: Bench) -> None:
    bench.source.tried = True
    bench.seen("a")
    bench.keeper.tick()
    assert not any(isinstance(message, SnapshotEnded) for message in bench.sent(1))
    bench.source.complete = True
    bench.keeper.tick()
    assert sum(isinstance(message, SnapshotEnded) for message in bench.sent(1)) == 1
    bench.keeper.tick()
    assert bench.sent(1) == []


def test_a_held_endpoint_that_comes_back_is_held_again(bench: Bench) -> None:
    bench.seen("a")
    bench.keeper.hold("a", held=True)
    bench.keeper.found("redis", EndpointGone("a", GoneReason.EXPIRED, bench.now))
    bench.sent()
    event = bench.seen("a", "e2")
    assert bench.sent() == [event, EndpointHeld("a", held=True, at=bench.now)]
    assert bench.keeper.cluster.endpoints["a"].held


def test_observed_means_a_latency_of_an_endpoint_that_is_there(bench: Bench) -> None:
    bench.seen("a")
    for name, ewma_ms in (("x", 3.0), ("a", None)):
        bench.keeper.from_data(0, PeerObserved(0, (observation(name, 1, ewma_ms, (), 0, 0),), bench.now))
        assert not bench.keeper.observed
    bench.keeper.from_data(0, PeerObserved(0, (observation("a", 1, 3.0, (), 1, 0),), bench.now))
    assert bench.keeper.observed
    bench.keeper.found("redis", EndpointGone("a", GoneReason.EXPIRED, bench.now))
    assert not bench.keeper.observed


def test_who_answered_is_known_while_it_is_there(bench: Bench) -> None:
    bench.seen("a")
    for name, successes, failures in (("x", 1, 0), ("a", 0, 3)):
        bench.keeper.from_data(0, PeerObserved(0, (observation(name, 1, 3.0, (), successes, failures),), bench.now))
        assert bench.keeper.answered_at(name) == float("-inf")
    bench.keeper.from_data(0, PeerObserved(0, (observation("a", 1, 3.0, (), 1, 0),), bench.now))
    assert bench.keeper.answered_at("a") == bench.now
    bench.keeper.found("redis", EndpointGone("a", GoneReason.EXPIRED, bench.now))
    assert bench.keeper.answered_at("a") == float("-inf")


def test_a_process_speaks_while_it_was_heard_just_now(bench: Bench) -> None:
    process = bench.keeper.processes[1]
    assert not process.speaks(bench.now)
    bench.keeper.from_data(1, PeerObserved(1, (), bench.now))
    assert process.speaks(bench.now + SPEAKS_S)
    assert not process.speaks(bench.now + SPEAKS_S + 0.1)


def quarantined(at: float, until: float) -> EndpointEjected:
    return EndpointEjected("a", EjectCause.QUARANTINE, until, 1, at)


def guards_of(bench: Bench) -> list[tuple[str, EjectCause]]:
    return [(event.id, event.cause) for event in bench.keeper.cluster.guards()]


def test_a_new_control_process_learns_what_is_ejected_from_the_data_processes(bench: Bench) -> None:
    bench.source.tried = True
    old = (quarantined(90.0, 130.0), EndpointEjected("a", EjectCause.BREAKER, 150.0, 1, 95.0, "m"))
    bench.keeper.from_data(0, GuardsInForce(old, first=True, last=True))  # before anybody has named the endpoint
    assert guards_of(bench) == []
    bench.seen("a")
    bench.now = 101.0
    bench.keeper.from_data(0, GuardsInForce(old[:1], first=True, last=False))
    bench.keeper.from_data(0, GuardsInForce(old[1:], first=False, last=True))
    assert guards_of(bench) == [("a", EjectCause.QUARANTINE), ("a", EjectCause.BREAKER)]
    bench.seen("a")  # a later report
    bench.sent(1)
    bench.keeper.from_data(1, Hello(1, 1, "e"))
    told = [message for message in bench.sent(1) if isinstance(message, EndpointEjected)]
    assert [(event.cause, event.until) for event in told] == [(event.cause, event.until) for event in old]
    assert all(event.at >= bench.now for event in told)  # or they would be those of an earlier process


def test_trials_of_all_data_processes_are_shown_while_they_are_under_way(bench: Bench) -> None:
    bench.seen("a")
    (one,) = bench.keeper.cluster.endpoints["a"].candidates.values()
    opened = EndpointEjected("a", EjectCause.BREAKER, 101.0, 1, 100.0, one.model, one.version)
    bench.keeper.from_data(0, opened)
    assert one.breaker.elsewhere is None
    bench.now = 102.0
    assert breaker_row(one, bench.now).evidence == Evidence(0, 0, 0, 0, trials=True)
    for index, failed in ((0, 2), (1, 1)):
        tried = replace(opened, trials=10, tried=Evidence(3, failed, 0, 0, trials=True))
        bench.keeper.from_data(index, GuardsInForce((tried,), first=True, last=True))
    row = breaker_row(one, bench.now)
    assert (row.state, row.trials) == (GuardState.HALF_OPEN, 20)
    assert (row.evidence.calls, row.evidence.failed, row.evidence.trials) == (6, 3, True)
    for index in (0, 1):
        bench.keeper.from_data(index, GuardsInForce((opened,), first=True, last=True))
    assert one.breaker.elsewhere is None


def test_an_ejection_that_no_data_process_knows_any_more_ends(bench: Bench) -> None:
    bench.source.tried = True
    bench.seen("a")
    event = quarantined(100.0, 101.0)
    bench.keeper.from_data(0, event)
    bench.keeper.from_data(1, GuardsInForce((), first=True, last=True))  # sent before it heard of it
    assert guards_of(bench) == [("a", EjectCause.QUARANTINE)]
    bench.now = 102.0
    bench.keeper.tick()
    bench.keeper.from_data(0, GuardsInForce((event,), first=True, last=True))  # over, but it waits for a probe there
    bench.keeper.from_data(1, GuardsInForce((), first=True, last=True))
    assert guards_of(bench) == [("a", EjectCause.QUARANTINE)]
    bench.keeper.from_data(0, Hello(0, 2, "another process"))
    bench.keeper.from_data(0, GuardsInForce((), first=True, last=True))
    assert guards_of(bench) == []


def test_a_process_that_starts_is_not_asked_what_it_is_about_to_be_told(bench: Bench) -> None:
    bench.source.tried = True
    bench.seen("a")
    bench.keeper.from_data(0, quarantined(100.0, 130.0))
    bench.keeper.from_data(0, Hello(0, 2, "another process"))
    bench.keeper.from_data(1, GuardsInForce((), first=True, last=True))
    assert guards_of(bench) == [("a", EjectCause.QUARANTINE)]


def test_a_list_that_was_under_way_when_it_returned_brings_no_ejection_back(bench: Bench) -> None:
    bench.seen("a")
    event = quarantined(100.0, 130.0)
    bench.keeper.from_data(0, event)
    bench.now = 103.0
    bench.keeper.from_data(0, EndpointReturned("a", EjectCause.QUARANTINE, 103.0))
    bench.keeper.from_data(1, GuardsInForce((event,), first=True, last=True))
    assert guards_of(bench) == []
    assert list(bench.keeper.roster.ejections) == []


def test_every_ping_names_the_control_process() -> None:
    pings = []
    for made in (Bench(), Bench()):
        made.keeper.tick()
        made.now += 1.0
        made.keeper.tick()
        pings += [message.epoch for message in made.data[0].receive() if isinstance(message, Ping)]
        made.close()
    assert [len(pings), len(set(pings))] == [4, 2]


def test_faults_are_told_as_a_whole_and_end_by_themselves(bench: Bench) -> None:
    first, second = FaultRule("f", "abort", 1.0, until=105.0), FaultRule("g", "abort", 1.0, until=200.0)
    bench.keeper.add_fault(first)
    bench.keeper.add_fault(second)
    assert bench.sent() == [FaultsChanged((first,)), FaultsChanged((first, second))]
    bench.now = 106.0
    bench.keeper.tick()
    assert bench.sent() == [FaultsChanged((second,))]
    assert bench.keeper.remove_fault("g")
    assert not bench.keeper.remove_fault("g")
    assert bench.sent() == [FaultsChanged(())]


def test_a_new_control_process_goes_by_the_last_good_view_while_the_store_is_away() -> None:
    fd = os.memfd_create("memory")
    before = Bench(Memory(fd))
    before.seen("a")
    before.seen("b")
    before.now += 1.0
    before.keeper.tick()

    after = Bench(Memory(fd))
    after.keeper.tick()
    assert not list(after.keeper.roster.ids)  # the store has not been tried yet: it may well answer
    after.source.tried = True
    after.keeper.tick()
    assert sorted(after.keeper.roster.ids) == ["a", "b"]
    assert [event.record.id for event in after.sent() if isinstance(event, EndpointSeen)] == ["a", "b"]
    after.keeper.found("redis", StoreChanged(StoreMode.FROZEN, after.now))

    third = Bench(Memory(fd))  # and it is not forgotten by one that never reached the store
    third.source.tried = True
    third.now += 2.0
    third.keeper.hold("a", held=True)
    third.keeper.tick()
    assert sorted(third.keeper.roster.ids) == ["a", "b"]

    third.seen("a", epoch="e2")  # the store is back: who is there takes over, who is not is gone
    third.source.complete = True
    third.keeper.tick()
    assert sorted(third.keeper.roster.ids) == ["a"]
    assert [event.id for event in third.sent() if isinstance(event, EndpointGone)] == ["b"]
    third.now += 2.0
    third.keeper.tick()
    assert [record.id for record in Memory(fd).load().records] == ["a"]
    for made in (before, after, third):
        made.close()
    os.close(fd)


def test_faults_of_the_configuration_begin_once_and_as_many_as_may_be() -> None:
    fd = os.memfd_create("test-keeper-faults")
    made = Bench(memory=Memory(fd))
    rules = (Fault(kind="abort", id="a", for_s=5.0), Fault(kind="reset", id="b"), Fault(kind="abort", id="c"))
    made.keeper.configure_faults(rules, 2)
    (told,) = [message for message in made.sent() if isinstance(message, FaultsChanged)]
    assert [rule.id for rule in told.rules] == ["a", "b"]
    assert told.rules[0].until == made.now + 5.0
    made.keeper.configure_faults(rules, 2)
    assert made.sent() == []
    made.now += 6.0
    made.keeper.tick()
    after = Bench(memory=Memory(fd))
    after.keeper.configure_faults(rules, 2)
    assert list(after.keeper.roster.faults) == ["b"]  # one ended before, and does not begin anew
    after.keeper.configure_faults((), 2)
    assert after.keeper.roster.faults == {}
    for bench in (made, after):
        bench.close()
    os.close(fd)


# --- over whom limits are divided ------------------------------------------------------------------------------------


def alive(bench: Bench, index: int = 0) -> list[tuple[int, ...]]:
    return [message.alive for message in bench.data[index].receive(10_000) if isinstance(message, Ping)]


def hello(bench: Bench, index: int, pid: int) -> None:
    bench.keeper.from_data(index, Hello(index, pid, f"e{pid}"))


def test_limits_are_divided_over_the_processes_that_live() -> None:
    running = {1, 2}
    bench = Bench(runs=running.__contains__)
    hello(bench, 0, 1)
    bench.keeper.tick()
    assert set(alive(bench)) <= {()}  # the other one has had no time yet
    hello(bench, 1, 2)
    bench.keeper.tick()
    assert alive(bench)[-1] == (0, 1)
    running.discard(2)
    bench.now += 0.1
    bench.keeper.tick()
    assert alive(bench) == [(0,)]  # at once
    running.add(3)
    hello(bench, 1, 3)
    bench.now += 0.1
    bench.keeper.tick()
    assert alive(bench) == [(0, 1)]
    bench.close()


def test_a_process_that_hangs_has_no_part_of_limits_after_a_while() -> None:
    bench = Bench(runs=lambda pid: True)
    hello(bench, 0, 1)
    hello(bench, 1, 2)
    bench.keeper.tick()
    bench.now += SPEAKS_S + 0.1
    hello(bench, 0, 1)
    alive(bench)
    bench.keeper.tick()
    assert alive(bench) == [(0,)]
    bench.close()


def test_a_process_that_never_spoke_is_not_waited_for_without_end() -> None:
    bench = Bench(runs=lambda pid: True)
    bench.now += SPEAKS_S + 0.1
    hello(bench, 1, 2)
    bench.keeper.tick()
    assert alive(bench, 1) == [(1,)]
    bench.close()


def test_what_data_processes_want_loaded_is_passed_on(bench: Bench) -> None:
    wanted: list[tuple[str, str]] = []
    bench.keeper.load_wanted = lambda model, version: wanted.append((model, version))
    bench.keeper.from_data(1, LoadWanted("m", "2"))
    assert wanted == [("m", "2")]
