"""Who steers versions: operators' commands, what outlives the control process, and rollouts in virtual time."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest

from router.cluster import Cluster
from router.model import (
    EjectCause,
    EndpointEjected,
    EndpointGone,
    EndpointSeen,
    GoneReason,
    ModelObservation,
    Observation,
    PeerObserved,
    Replica,
    State,
    VersionsSteered,
    VersionSteering,
)
from router.policy import (
    KeyPolicy,
    ModelPolicy,
    Policies,
    RolloutPolicy,
    ServePolicy,
    ServeRule,
    ShardMode,
    ShardPolicy,
    VersionShare,
)
from router.stats import LogBuckets
from sidecar.channel import decode, encode
from sidecar.state.memory import Memory, Remembered
from sidecar.state.steering import BATCH, MAX_STEERED, ROLLOUT, Stage, Steered, Steering, SteeringError
from tests.support.fleet import record

BUCKETS = LogBuckets(Policies().latency.relative_error)
LATEST = ServePolicy(ServeRule.LATEST)
SHARES = (VersionShare("1", 95), VersionShare("2", 5))
SPLIT = ServePolicy(ServeRule.SPLIT, shares=SHARES)
ROLLING = ServePolicy(ServeRule.SPLIT, shares=SHARES, rollout=RolloutPolicy(interval_s=20.0, min_samples=50))


class Bench:
    """A cluster with an endpoint for each version, its steering, and a clock that the test moves."""

    def __init__(self, serve: ServePolicy, *versions: str) -> None:
        self.now = 100.0
        self.models = [ModelPolicy("m", serve=serve), ModelPolicy("n")]
        self.cluster = Cluster(Policies(), self.models, self.now)
        self.steering = Steering(self.cluster, self.models, lambda: 1_800_000_000.0 + self.now)
        for version in versions:
            self.holds(version)

    def holds(self, version: str, state: State = State.WARM) -> None:
        told = record(f"w{version}", version=version, state=state, static=True)
        self.cluster.apply(EndpointSeen(told, self.now), self.now)

    def tell(self) -> None:
        for event in self.steering.messages():
            self.cluster.apply(event, self.now)

    def shares(self) -> dict[str, float | None]:
        self.tell()
        return {row.version: row.share for row in self.cluster.versions("m", self.now) or ()}

    def saw(self, version: str, successes: int, failures: int, ms: Sequence[float] = ()) -> None:
        buckets: dict[int, int] = {}
        for each in ms:
            index = BUCKETS.index(each)
            buckets[index] = buckets.get(index, 0) + 1
        seen = ModelObservation("m", version, None, tuple(sorted(buckets.items())), successes, failures)
        self.steering.observed(PeerObserved(0, (Observation(f"w{version}", 0, (seen,)),), self.now))


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


def both(bench: Bench, protocol: str, version: str, state: State = State.WARM) -> None:
    """Have an endpoint of a protocol that holds a version."""
    told = record(f"{protocol}{version}", version=version, state=state, static=True)
    bench.cluster.apply(EndpointSeen(replace(told, protocol=protocol), bench.now), bench.now)


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


def shard(bench: Bench, version: str, number: int, state: State = State.WARM) -> None:
    held = Replica("m", version, shard=number, shard_count=3, state=state, warm_for_s=1000.0)
    told = record(f"w{version}{number}", replicas=(held,), static=True)
    bench.cluster.apply(EndpointSeen(told, bench.now), bench.now)


def keyed(serve: ServePolicy) -> Bench:
    """Return a bench of a model in three shards: version 1 has all of them, of 2 two are still loading."""
    bench = Bench(serve)
    bench.models = [ModelPolicy("m", serve=serve, shards=ShardPolicy(ShardMode.KEYED, 3), key=KeyPolicy(header="x"))]
    bench.cluster.configure(Policies(), bench.models, bench.now)
    bench.steering.configure(bench.models, bench.now)
    for number in range(3):
        shard(bench, "1", number)
        shard(bench, "2", number, State.LOADING if number else State.WARM)
    return bench


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


# --- rollouts ---------------------------------------------------------------------------------------------------


def roll(bench: Bench, most_s: float, *, errors: float = 0.0, new_ms: float = 20.0, seed: int = 1) -> list[Stage]:
    """Let time pass with 100 requests a second, divided as the shares are; return the stages that it went through."""
    rng = random.Random(seed)
    stages: list[Stage] = []
    end = bench.now + most_s
    while bench.now < end:
        bench.now += 1.0
        share = bench.shares().get("2") or 0.0
        new = sum(rng.random() < share for _ in range(100))
        failed = sum(rng.random() < errors for _ in range(new))
        times = [new_ms * rng.lognormvariate(0, 0.3) for _ in range(new - failed)]
        bench.saw("1", 100 - new, 0, [20.0 * rng.lognormvariate(0, 0.3) for _ in range(100 - new)])
        bench.saw("2", new - failed, failed, times)
        bench.steering.tick(bench.now)
        stage = bench.steering.stage_of("m")
        assert stage is not None
        if not stages or stage[0] is not stages[-1]:
            stages.append(stage[0])
    return stages


def test_a_good_version_is_promoted_step_by_step() -> None:
    bench = Bench(ROLLING, "1", "2")
    assert bench.shares()["2"] == pytest.approx(0.05)
    assert roll(bench, 25.0) == [Stage.RUNNING]
    assert bench.shares()["2"] == pytest.approx(0.25)
    assert bench.steering.records["m"].by == ROLLOUT
    assert bench.steering.records["m"].why.startswith("as_good: new: 0 of ")
    assert roll(bench, 100.0) == [Stage.RUNNING, Stage.PROMOTED]
    assert bench.shares() == {"2": 1.0, "1": 0.0}
    made = bench.steering.rollback("m", "", "x", bench.now)  # there is a way back
    assert made.steering.version == "1"
    assert bench.steering.stage_of("m") == (Stage.OVERRULED, 0)
    assert roll(bench, 100.0) == [Stage.OVERRULED]
    bench.steering.reset("m", "x")
    assert bench.steering.stage_of("m") == (Stage.RUNNING, 0)


@pytest.mark.parametrize(("errors", "new_ms"), [(0.5, 20.0), (0.0, 80.0)])
def test_a_bad_version_is_rolled_back(errors: float, new_ms: float) -> None:
    bench = Bench(ROLLING, "1", "2")
    assert roll(bench, 200.0, errors=errors, new_ms=new_ms) == [Stage.RUNNING, Stage.ROLLED_BACK]
    assert bench.shares() == {"2": 0.0, "1": 1.0}
    assert bench.steering.records["m"].previous == ""
    assert bench.steering.changes == {("m", ROLLOUT): 1}


def test_a_version_that_its_breaker_took_out_is_rolled_back_all_the_same() -> None:
    bench = Bench(ROLLING, "1", "2")
    roll(bench, 3.0)
    bench.holds("2", State.FAILED)  # it may not be picked any more
    bench.saw("2", 0, 25)
    bench.saw("1", 300, 0, [20.0] * 300)
    bench.now += 1.0
    assert bench.steering.tick(bench.now)
    assert bench.steering.stage_of("m") == (Stage.ROLLED_BACK, 0)


def test_nothing_is_rolled_back_to_a_version_that_has_nobody() -> None:
    bench = Bench(ROLLING, "1", "2")
    roll(bench, 3.0)
    bench.holds("1", State.FAILED)
    bench.saw("2", 0, 25)
    bench.saw("1", 300, 0, [20.0] * 300)
    bench.now += 1.0
    bench.steering.tick(bench.now)
    assert bench.steering.stage_of("m") == (Stage.RUNNING, 0)
    assert bench.steering.progress["m"].stuck
    bench.holds("1")
    bench.now += 1.0
    assert bench.steering.tick(bench.now)
    assert bench.steering.stage_of("m") == (Stage.ROLLED_BACK, 0)
    assert bench.shares() == {"2": 0.0, "1": 1.0}


def test_no_step_is_taken_while_the_new_version_has_nobody() -> None:
    bench = Bench(ROLLING, "1")
    bench.holds("2", State.LOADING)
    assert roll(bench, 60.0) == [Stage.RUNNING]
    progress = bench.steering.progress["m"]
    assert progress.lacks == "no replica that may be picked"
    assert bench.now - progress.since < 2.0
    bench.holds("2")
    assert bench.shares()["2"] == pytest.approx(0.05)
    roll(bench, 10.0)
    assert bench.steering.stage_of("m") == (Stage.RUNNING, 0)


def test_no_step_is_taken_while_the_new_version_lacks_a_shard() -> None:
    bench = keyed(ROLLING)
    assert roll(bench, 60.0) == [Stage.RUNNING]
    assert bench.steering.progress["m"].lacks == "no replica of shards 1, 2 that may be picked"
    assert bench.shares()["2"] == 0.0
    shard(bench, "2", 1)
    shard(bench, "2", 2)
    assert roll(bench, 100.0) == [Stage.RUNNING, Stage.PROMOTED]


def test_a_rollout_waits_where_it_would_leave_a_protocol_without_anybody() -> None:
    bench = Bench(ROLLING, "1", "2")
    both(bench, "grpc", "1")
    assert roll(bench, 100.0) == [Stage.RUNNING]
    assert bench.steering.progress["m"].lacks == "no replica that may be picked over grpc"
    both(bench, "grpc", "2")
    assert roll(bench, 100.0) == [Stage.RUNNING, Stage.PROMOTED]


def test_a_rollout_goes_by_the_protocol_that_has_both_versions() -> None:
    bench = Bench(ROLLING)
    both(bench, "http", "0")
    both(bench, "grpc", "1")
    both(bench, "grpc", "2")
    assert roll(bench, 100.0) == [Stage.RUNNING, Stage.PROMOTED]


def test_calls_that_a_worker_fails_are_failures_of_its_version() -> None:
    bench = Bench(ROLLING, "1", "2")
    roll(bench, 3.0)
    seen = ModelObservation("m", "2", None, (), 0, 0, failed_calls=25)
    bench.steering.observed(PeerObserved(0, (Observation("w2", 0, (seen,)),), bench.now))
    bench.now += 1.0
    assert bench.steering.tick(bench.now)
    assert bench.steering.stage_of("m") == (Stage.ROLLED_BACK, 0)
    assert bench.steering.attempts["m", "2"][1] == 25


def test_a_rollout_goes_on_where_it_was_after_a_restart() -> None:
    bench = Bench(ROLLING, "1", "2")
    roll(bench, 25.0)
    kept = tuple(bench.steering.records.values())
    again = Bench(ROLLING, "1", "2")
    again.steering.restore(kept)
    assert again.steering.stage_of("m") == (Stage.RUNNING, 1)
    assert again.shares()["2"] == pytest.approx(0.25)
    assert roll(again, 60.0) == [Stage.RUNNING, Stage.PROMOTED]


def test_several_others_keep_their_proportions_where_the_new_one_is_rolled_back() -> None:
    shares = (VersionShare("0", 30), VersionShare("1", 60), VersionShare("2", 10))
    serve = ServePolicy(ServeRule.SPLIT, shares=shares, rollout=RolloutPolicy(interval_s=20.0, min_samples=50))
    bench = Bench(serve, "0", "1", "2")
    roll(bench, 30.0, errors=0.9)
    assert bench.shares() == {"2": 0.0, "1": pytest.approx(2 / 3), "0": pytest.approx(1 / 3)}


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
