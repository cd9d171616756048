"""Who steers versions: operators' commands, what outlives the control process, and what is counted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from router.model import (
    EjectCause,
    EndpointEjected,
    EndpointGone,
    EndpointSeen,
    GoneReason,
    ModelObservation,
    Observation,
    PeerObserved,
    State,
    VersionsSteered,
    VersionSteering,
)
from router.policy import (
    ModelPolicy,
    ServePolicy,
    ServeRule,
    VersionShare,
)
from sidecar.channel import decode, encode
from sidecar.state.memory import Memory, Remembered
from sidecar.state.steering import BATCH, MAX_STEERED, Steered, SteeringError
from tests.support.fleet import record
from tests.support.steering_bench import LATEST, SPLIT, Bench, both, keyed, shard


def test_promoting_makes_one_version_take_all_and_rolling_back_the_one_before() -> None:
    bench = Bench(SPLIT, "1", "2")
    made = bench.steering.promote("m", "", "unix uid=0 pid=7", bench.now)
    assert made == Steered(
        VersionSteering("m", ServeRule.PINNED, "2"),
        "unix uid=0 pid=7",
        1_800_000_100.0,
        "promoted 2",
        made.basis,
        previous="1",
    )
    assert bench.shares() == {"2": 1.0, "1": 0.0}
    assert bench.steering.rollback("m", "", "somebody", bench.now).steering.version == "1"
    assert bench.shares() == {"2": 0.0, "1": 1.0}
    with pytest.raises(SteeringError, match=r"^m: there is nothing to go back to: name a version$"):
        bench.steering.rollback("m", "", "somebody", bench.now)
    assert bench.steering.rollback("m", "2", "somebody", bench.now).why == "rolled back to 2"
    bench.steering.reset("m", "somebody")
    assert bench.shares() == {"2": 0.05, "1": 0.95}
    assert bench.steering.changes == {("m", "operator"): 4}


@pytest.mark.parametrize(
    ("serve", "to"),
    [
        (SPLIT, "1"),  # the one that is not new
        (LATEST, "2"),  # the newest that is older than what serves
        (ServePolicy(ServeRule.PINNED, version="2"), "1"),
        (ServePolicy(), "2"),
    ],
)
def test_rolling_back_without_a_command_before(serve: ServePolicy, to: str) -> None:
    bench = Bench(serve, "1", "2", "3") if serve is not SPLIT else Bench(serve, "1", "2")
    assert bench.steering.rollback("m", "", "x", bench.now).steering == VersionSteering("m", ServeRule.PINNED, to)


def test_promoting_without_a_version_takes_the_newest_that_has_a_replica() -> None:
    bench = Bench(ServePolicy(), "1", "2")
    bench.holds("3", State.LOADING)
    assert bench.steering.promote("m", "", "x", bench.now).steering.version == "2"


def test_a_split_by_hand() -> None:
    bench = Bench(LATEST, "1", "2")
    bench.holds("3", State.LOADING)
    made = bench.steering.split("m", (VersionShare("1", 3), VersionShare("3", 1)), "x", bench.now)
    assert made.why == "split 1=3, 3=1"
    assert made.previous == "2"
    assert bench.shares() == {"3": 0.0, "2": 0.0, "1": 1.0}
    bench.holds("3")
    assert bench.shares() == {"3": 0.25, "2": 0.0, "1": 0.75}


@pytest.mark.parametrize(
    ("what", "text", "known"),
    [
        (lambda s, now: s.promote("nope", "1", "x", now), "no model 'nope'", ["m", "n"]),
        (lambda s, now: s.promote("m", "9", "x", now), "m: version '9' has no replica that may be picked", ["1", "2"]),
        (lambda s, now: s.promote("m", "3", "x", now), "m: version '3' has no replica that may be picked", ["1", "2"]),
        (lambda s, now: s.promote("n", "", "x", now), "n: version '' has no replica that may be picked", []),
        (lambda s, now: s.rollback("m", "9", "x", now), "m: version '9' has no replica that may be picked", ["1", "2"]),
        (lambda s, now: s.split("m", (), "x", now), "m: name 1 to 8 versions, each once", []),
        (
            lambda s, now: s.split("m", (VersionShare("1", 1), VersionShare("1", 2)), "x", now),
            "m: name 1 to 8 versions, each once",
            [],
        ),
        (
            lambda s, now: s.split("m", (VersionShare("1", 1), VersionShare("9", 2)), "x", now),
            "m: no endpoint holds version '9'",
            ["1", "2", "3"],
        ),
        (
            lambda s, now: s.split("m", (VersionShare("1", 0), VersionShare("3", 2)), "x", now),
            "m: 3 has no replica that may be picked",
            ["1", "2"],
        ),
        (lambda s, now: s.reset("m", "x"), "m: goes by its configuration", []),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(what: object, text: str, known: list[str]) -> None:
    bench = Bench(LATEST, "1", "2")
    bench.holds("3", State.LOADING)
    with pytest.raises(SteeringError) as caught:
        what(bench.steering, bench.now)  # type: ignore[operator]
    assert str(caught.value) == text
    assert caught.value.known == known
    assert bench.steering.records == {}


def test_the_number_of_steered_models_is_bounded() -> None:
    bench = Bench(LATEST, "1", "2")
    made = bench.steering.promote("m", "1", "x", bench.now)
    bench.steering.records = {str(number): made for number in range(MAX_STEERED)}
    with pytest.raises(SteeringError, match=f"^{MAX_STEERED} models are steered already: reset some first$"):
        bench.steering.promote("m", "1", "x", bench.now)


def test_it_is_told_in_parts_that_fit_a_message() -> None:
    bench = Bench(LATEST, "1", "2")
    assert bench.steering.messages() == [VersionsSteered(())]
    shares = tuple(VersionShare("v" * 127 + str(number), 1e5) for number in range(8))
    for number in range(2 * BATCH + 1):
        model = f"{number:03}" * 42
        bench.steering.records[model] = Steered(VersionSteering(model, ServeRule.SPLIT, "", shares), "", 0.0, "", "")
    parts = bench.steering.messages()
    assert [(part.first, part.last, len(part.steerings)) for part in parts] == [
        (True, False, BATCH),
        (False, False, BATCH),
        (False, True, 1),
    ]
    assert [decode(encode(part)) for part in parts] == parts


@contextmanager
def memory_file() -> Iterator[int]:
    fd = os.memfd_create("test", 0)
    try:
        yield fd
    finally:
        os.close(fd)


def test_it_outlives_the_control_process_unless_the_configuration_is_another() -> None:
    bench = Bench(LATEST, "1", "2")
    made = bench.steering.promote("m", "1", "x", bench.now)
    with memory_file() as fd:
        Memory(fd).save(Remembered(steered=(made,)))
        kept = Memory(fd).load().steered
    assert kept == (made,)
    same, other = Bench(LATEST, "1", "2"), Bench(SPLIT, "1", "2")
    same.steering.restore(kept)
    assert same.shares() == {"2": 0.0, "1": 1.0}
    other.steering.restore(kept)
    assert other.shares() == {"2": 0.05, "1": 0.95}


def test_a_reload_drops_what_was_steered_where_the_versions_of_the_model_are_configured_anew() -> None:
    bench = Bench(LATEST, "1", "2")
    bench.steering.promote("m", "1", "x", bench.now)
    assert not bench.steering.configure([ModelPolicy("m", serve=LATEST, idempotent=True)], bench.now)
    assert "m" in bench.steering.records
    assert bench.steering.configure([ModelPolicy("m", serve=SPLIT)], bench.now)
    assert bench.steering.records == {}
    assert bench.steering.changes == {("m", "operator"): 1, ("m", "configuration"): 1}


# --- what a version must have to take all of them ---------------------------------------------------------------


def test_no_version_is_promoted_that_would_leave_callers_of_a_protocol_without_anybody() -> None:
    bench = Bench(SPLIT, "1", "2")
    both(bench, "grpc", "1")
    nobody = "no replica that may be picked over grpc"
    for refused in (bench.steering.promote, bench.steering.rollback):
        with pytest.raises(SteeringError, match=f"^m: version '2' has {nobody}$") as caught:
            refused("m", "2", "x", bench.now)
        assert caught.value.known == ["1"]
    with pytest.raises(SteeringError, match=f"^m: 2 has {nobody}$"):
        bench.steering.split("m", (VersionShare("1", 0), VersionShare("2", 1)), "x", bench.now)
    bench.steering.split("m", (VersionShare("1", 1), VersionShare("2", 99)), "x", bench.now)  # nobody is left out
    row = bench.steering.rows("m", bench.now)[0]
    assert (row.version, row.replicas, row.ready) == ("2", 1, 1)
    both(bench, "grpc", "2", State.LOADING)
    both(bench, "http", "2")
    bench.holds("2", State.LOADING)
    with pytest.raises(SteeringError, match=f"^m: version '2' has {nobody}$"):
        bench.steering.promote("m", "", "x", bench.now)
    both(bench, "grpc", "2")
    bench.steering.promote("m", "", "x", bench.now)
    assert bench.shares() == {"2": 1.0, "1": 0.0}


def test_what_is_lacking_over_every_protocol_is_said_once() -> None:
    bench = Bench(SPLIT, "1")
    both(bench, "grpc", "1")
    with pytest.raises(SteeringError, match=r"^m: version '2' has no replica that may be picked$"):
        bench.steering.promote("m", "2", "x", bench.now)


def test_shares_that_differ_by_protocol_are_said() -> None:
    bench = Bench(SPLIT, "1", "2")
    both(bench, "grpc", "1")
    assert [(row.version, row.share, row.note) for row in bench.steering.rows("m", bench.now)] == [
        ("2", 0.05, "over grpc 0%"),
        ("1", 0.95, "over grpc 100%"),
    ]


def test_a_protocol_that_nobody_serves_asks_for_nothing() -> None:
    bench = Bench(SPLIT)
    both(bench, "http", "0")  # it takes nothing in this split
    both(bench, "grpc", "1")
    both(bench, "grpc", "2")
    bench.steering.promote("m", "2", "x", bench.now)
    assert bench.shares() == {"2": 1.0, "1": 0.0, "0": 0.0}


def test_a_protocol_whose_last_endpoint_is_dead_asks_for_nothing_after_a_while() -> None:
    bench = Bench(SPLIT, "1")
    both(bench, "grpc", "1")
    both(bench, "grpc", "2")
    ejected = EndpointEjected("w1", EjectCause.QUARANTINE, bench.now + 1.0, 1, bench.now)
    bench.cluster.apply(ejected, bench.now)
    bench.now += 30.0
    with pytest.raises(SteeringError, match=r"^m: version '2' has no replica that may be picked over http$"):
        bench.steering.promote("m", "2", "x", bench.now)  # it may be back in a moment
    bench.now += 31.0
    bench.steering.promote("m", "2", "x", bench.now)


@pytest.mark.parametrize("serve", [SPLIT, LATEST, ServePolicy()])
def test_a_version_is_not_promoted_before_each_of_its_shards_has_somebody(serve: ServePolicy) -> None:
    bench = keyed(serve)
    text = "has no replica of shards 1, 2 that may be picked"
    for refused in (bench.steering.promote, bench.steering.rollback):
        with pytest.raises(SteeringError, match=f"^m: version '2' {text}$") as caught:
            refused("m", "2", "x", bench.now)
        assert caught.value.known == ["1"]
    with pytest.raises(SteeringError, match=f"^m: 2 {text}$"):
        bench.steering.split("m", (VersionShare("1", 0), VersionShare("2", 1)), "x", bench.now)
    shard(bench, "2", 1)
    with pytest.raises(SteeringError, match=r"^m: version '2' has no replica of shard 2 that may be picked$"):
        bench.steering.promote("m", "2", "x", bench.now)
    shard(bench, "2", 2)
    bench.steering.promote("m", "2", "x", bench.now)
    assert bench.shares() == {"2": 1.0, "1": 0.0}
    shard(bench, "1", 2, State.LOADING)
    with pytest.raises(SteeringError, match=r"^m: version '1' has no replica of shard 2 that may be picked$"):
        bench.steering.rollback("m", "1", "x", bench.now)


def test_the_listing_says_what_versions_of_a_model_in_shards_take() -> None:
    bench = keyed(LATEST)
    assert [(row.version, row.share, row.note) for row in bench.steering.rows("m", bench.now)] == [
        ("2", 0.0, "no replica of shards 1, 2 that may be picked"),
        ("1", 1.0, "the newest that has a replica that may be picked"),
    ]
    bench = keyed(SPLIT)
    assert [(row.version, row.share, row.note) for row in bench.steering.rows("m", bench.now)] == [
        ("2", 0.0, "no replica of shards 1, 2 that may be picked: its share goes to the others"),
        ("1", 1.0, "with what those leave that have nobody"),
    ]


def test_attempts_are_counted_by_version_as_long_as_somebody_holds_it() -> None:
    bench = Bench(LATEST, "1", "2")
    bench.saw("1", 3, 1)
    bench.saw("1", 1, 0)
    assert bench.steering.attempts == {("m", "1"): [4, 1]}
    bench.steering.tick(bench.now)
    assert bench.steering.attempts == {("m", "1"): [4, 1]}
    bench.saw("9", 1, 0)
    bench.now += 1.0
    bench.steering.tick(bench.now)
    assert bench.steering.attempts == {("m", "1"): [4, 1]}


def test_what_was_counted_of_a_model_that_left_is_let_go() -> None:
    """Workers may bring models, and take them away again: what is kept of them is bounded by what is there."""
    bench = Bench(LATEST, "1")
    for number in range(50):
        model = f"guest-{number}"
        told = record("guest", version="1", model=model)
        bench.cluster.apply(EndpointSeen(told, bench.now), bench.now)
        seen = ModelObservation(model, "1", None, (), 1, 0)
        bench.steering.observed(PeerObserved(0, (Observation("guest", 0, (seen,)),), bench.now))
        bench.steering.promote(model, "1", "x", bench.now)
        bench.now += 1.0
        bench.steering.tick(bench.now)
        assert bench.steering.attempts == {(model, "1"): [1, 0]}
        bench.steering.reset(model, "x")
    assert bench.steering.changes == {(model, "operator"): 2}
    bench.cluster.apply(EndpointGone("guest", GoneReason.DEREGISTERED, bench.now), bench.now)
    bench.steering.promote("m", "1", "x", bench.now)
    bench.now += 1.0
    bench.steering.tick(bench.now)
    assert (bench.steering.attempts, bench.steering.changes) == ({}, {("m", "operator"): 1})
