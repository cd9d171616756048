"""Rollouts of versions in virtual time: by what was seen of each, a step at a time, or back."""

from __future__ import annotations

import random

import pytest

from router.model import (
    ModelObservation,
    Observation,
    PeerObserved,
    State,
)
from router.policy import (
    RolloutPolicy,
    ServePolicy,
    ServeRule,
    VersionShare,
)
from sidecar.state.steering import ROLLOUT, Stage
from tests.support.steering_bench import ROLLING, Bench, both, keyed, shard


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
