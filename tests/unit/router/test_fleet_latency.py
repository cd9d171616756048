"""Latencies of other sidecars: they count in the P95 that weights are made of, for one window, and in nothing else."""

from __future__ import annotations

from router.model import WHOLE, FleetMeasured, ModelObservation, Observation, PeerObserved, ReplicaKey, ReplicaMeasured
from router.outcomes import AttemptResult
from router.policy import LatencyPolicy, Policies
from router.stats import LogBuckets
from tests.support.fleet import Driven, record

BUCKETS = LogBuckets(0.05)


def fleet() -> Driven:
    driven = Driven()
    driven.seen(record("a"), record("b"))
    return driven


def near(value: float | None, ms: float) -> bool:
    return value is not None and abs(value - ms) <= 0.05 * ms


def others(id_: str, ms: float, count: int = 100, *, epoch: str = "a", sidecars: int = 2) -> ReplicaMeasured:
    return ReplicaMeasured(id_, epoch, "m", "1", WHOLE, sidecars, ((BUCKETS.index(ms), count),) if count else ())


def row(driven: Driven, id_: str) -> tuple[float | None, float | None, int]:
    explanation = driven.cluster.explain(driven.route(), driven.now, driven.rng)
    (found,) = (row for row in explanation.rows if row.endpoint == id_)
    return found.p95_ms, found.own_p95_ms, found.sidecars


def weights(driven: Driven) -> dict[str, float]:
    explanation = driven.cluster.explain(driven.route(), driven.now, driven.rng)
    return {row.endpoint: row.weight for row in explanation.rows}


def test_what_others_measured_makes_weights_where_nothing_was_measured_here() -> None:
    driven = fleet()
    before = weights(driven)
    assert before["a"] == before["b"]
    driven.apply(FleetMeasured((others("a", 10.0), others("b", 100.0)), driven.now))
    driven.wait(1.0, heard="ab")
    p95_ms, own_ms, sidecars = row(driven, "a")
    assert near(p95_ms, 10.0)
    assert (own_ms, sidecars) == (None, 2)
    after = weights(driven)
    assert after["a"] > before["a"] > after["b"]
    assert driven.route().candidates[0].latency.ewma_ms == 0.0  # averages are of own attempts


def test_own_and_others_samples_count_alike() -> None:
    driven = fleet()
    for _ in range(10):
        driven.done(driven.to("a"), AttemptResult.SUCCESS, 0.010)
    driven.apply(FleetMeasured((others("a", 200.0, 1),), driven.now))
    driven.wait(1.0, heard="ab")
    p95_ms, own_ms, _ = row(driven, "a")
    assert near(own_ms, 10.0)
    assert near(p95_ms, 200.0)
    driven.apply(FleetMeasured((others("a", 10.0, 1000),), driven.now))
    driven.wait(1.0, heard="ab")
    assert near(row(driven, "a")[0], 10.0)


def test_they_count_for_one_window_and_are_taken_back_by_an_empty_sketch() -> None:
    driven = fleet()
    driven.apply(FleetMeasured((others("a", 10.0), others("b", 30.0)), driven.now))
    driven.wait(1.0, heard="ab")
    driven.apply(FleetMeasured((others("b", 30.0, 0, sidecars=0),), driven.now))
    driven.wait(57.0, heard="ab")
    assert near(row(driven, "a")[0], 10.0)
    assert row(driven, "b") == (None, None, 0)
    driven.wait(3.0, heard="ab")
    assert row(driven, "a") == (None, None, 0)


def test_a_new_process_and_an_unknown_replica_get_nothing_of_it() -> None:
    driven = fleet()
    driven.apply(FleetMeasured((others("a", 10.0, epoch="z"), others("x", 10.0)), driven.now))
    driven.apply(FleetMeasured((ReplicaMeasured("a", "a", "m", "1", 3, 1, ((5, 1),)),), driven.now))
    driven.wait(1.0, heard="ab")
    assert row(driven, "a") == (None, None, 0)
    driven.apply(FleetMeasured((others("a", 10.0),), driven.now))
    driven.seen(record("a", epoch="b"))
    driven.wait(1.0, heard="ab")
    assert row(driven, "a") == (None, None, 0)


def test_only_own_measurements_are_told_on() -> None:
    driven = fleet()
    driven.apply(FleetMeasured((others("a", 10.0),), driven.now))
    driven.wait(1.0, heard="ab")
    assert list(driven.cluster.measured()) == []
    seen = ModelObservation("m", "1", None, ((50, 3),), 3, 0)
    driven.apply(PeerObserved(1, (Observation("a", 0, (seen,)),), driven.now))
    driven.wait(1.0, heard="ab")
    (told,) = driven.cluster.measured()
    assert told.key == ReplicaKey("a", "a", "m", "1", WHOLE)
    assert dict(told.counts) == {50: 3}
    changes = told.changes
    driven.apply(FleetMeasured((others("a", 20.0),), driven.now))
    driven.wait(1.0, heard="ab")
    assert next(driven.cluster.measured()).changes == changes


def test_another_relative_error_forgets_what_others_told_in_their_buckets() -> None:
    driven = fleet()
    driven.apply(FleetMeasured((others("a", 10.0),), driven.now))
    driven.wait(1.0, heard="ab")
    driven.cluster.configure(Policies(latency=LatencyPolicy(relative_error=0.01)), [driven.route().policy], driven.now)
    driven.wait(1.0, heard="ab")
    assert row(driven, "a") == (None, None, 0)
