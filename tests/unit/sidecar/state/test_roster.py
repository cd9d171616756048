from __future__ import annotations

from collections.abc import Callable

import pytest

from router.model import (
    EjectCause,
    EndpointEjected,
    EndpointGone,
    EndpointHeld,
    EndpointRecord,
    EndpointReturned,
    EndpointSeen,
    EndpointsHeard,
    GoneReason,
    SnapshotBegan,
    SnapshotEnded,
    StoreChanged,
    StoreMode,
)
from router.wire import MAX_ID_CHARS
from sidecar.channel import FaultsChanged, encode
from sidecar.faults.rules import FaultRule
from sidecar.state.roster import HEARD_IDS, MAX_HELD, Roster, RosterError, heard_messages


def record(name: str, epoch: str = "e1") -> EndpointRecord:
    return EndpointRecord(id=name, address="http://127.0.0.1:9001", epoch=epoch)


def roster(*names: str, at: float = 1.0) -> Roster:
    made = Roster(0.0)
    for name in names:
        made.found("redis", EndpointSeen(record(name), at))
    return made


def test_a_snapshot_tells_everything_between_its_ends_and_then_what_else_holds() -> None:
    made = roster("a", "b")
    made.found("redis", EndpointsHeard(("b",), 3.0))
    made.found("redis", StoreChanged(StoreMode.FROZEN, 4.0))
    made.hold("b", held=True)
    ejected = EndpointEjected("a", EjectCause.BREAKER, 60.0, 1, 4.0)
    made.ejected(ejected)
    rule = FaultRule("f", "abort", 1.0, until=99.0)
    made.faults["f"] = rule
    assert made.snapshot(7, 5.0) == [
        SnapshotBegan(7, 5.0),
        EndpointSeen(record("a"), 1.0),
        EndpointSeen(record("b"), 1.0),
        EndpointsHeard(("b",), 3.0),
        SnapshotEnded(7, 5.0),
        StoreChanged(StoreMode.FROZEN, 4.0),
        EndpointHeld("b", held=True, at=5.0),
        ejected,
        FaultsChanged((rule,)),
    ]


def test_an_endpoint_belongs_to_the_source_that_named_it_first() -> None:
    made = Roster(0.0)
    static = EndpointSeen(record("a"), 1.0)
    assert made.found("static", static) is static
    assert made.found("redis", EndpointSeen(record("a", "e2"), 2.0)) is None
    assert made.found("redis", EndpointsHeard(("a",), 2.0)) is None
    assert made.found("redis", EndpointGone("a", GoneReason.EXPIRED, 2.0)) is None
    assert [(r.epoch, source) for r, source, _ in made.records()] == [("e1", "static")]
    gone = EndpointGone("a", GoneReason.REMOVED, 3.0)
    assert made.found("static", gone) is gone
    assert "a" not in made


def test_heartbeats_of_unknown_endpoints_are_left_out() -> None:
    made = roster("a")
    assert made.found("redis", EndpointsHeard(("a", "x"), 2.0)) == EndpointsHeard(("a",), 2.0)
    assert made.found("redis", EndpointsHeard(("x",), 2.0)) is None


def test_ejections_end_by_return_by_time_and_with_the_process() -> None:
    ends: list[Callable[[Roster], object]] = [
        lambda made: made.returned(EndpointReturned("a", EjectCause.QUARANTINE, 2.0)),
        lambda made: made.expire(9.0),
        lambda made: made.found("redis", EndpointSeen(record("a", "e2"), 2.0)),
        lambda made: made.found("redis", EndpointGone("a", GoneReason.EXPIRED, 2.0)),
    ]
    for end in ends:
        made = roster("a")
        made.ejected(EndpointEjected("a", EjectCause.QUARANTINE, 9.0, 1, 1.0))
        made.ejected(EndpointEjected("unknown", EjectCause.QUARANTINE, 9.0, 1, 1.0))
        assert sum(isinstance(message, EndpointEjected) for message in made.snapshot(1, 2.0)) == 1
        end(made)
        assert not any(isinstance(message, EndpointEjected) for message in made.snapshot(2, 2.0))


def test_a_hold_outlives_the_endpoint_and_is_bounded() -> None:
    made = roster("a")
    made.hold("a", held=True)
    made.found("redis", EndpointGone("a", GoneReason.EXPIRED, 2.0))
    assert made.held == {"a"}
    for number in range(MAX_HELD - 1):
        made.hold(f"w{number}", held=True)
    with pytest.raises(RosterError, match="resume some first"):
        made.hold("one-more", held=True)
    made.hold("a", held=True)
    made.hold("a", held=False)
    made.hold("one-more", held=True)


def test_faults_end_by_themselves() -> None:
    made = roster()
    made.faults = {"a": FaultRule("a", "abort", 1.0, until=5.0), "b": FaultRule("b", "abort", 1.0, until=6.0)}
    assert not made.expire(4.9)
    assert made.expire(5.0)
    assert list(made.faults) == ["b"]


def test_every_message_of_heartbeats_fits_a_datagram() -> None:
    ids = [f"{number:😀>{MAX_ID_CHARS}}" for number in range(3 * HEARD_IDS + 1)]
    messages = list(heard_messages(ids, 1.0))
    assert [name for message in messages for name in message.ids] == ids
    assert all(encode(message) for message in messages)
