"""A new configuration under a running cluster: it takes effect, and nothing that was learned is lost."""

from __future__ import annotations

import pytest

from router.model import Replica, Tick
from router.outcomes import AttemptResult
from router.policy import (
    BreakerPolicy,
    FreshnessPolicy,
    LatencyPolicy,
    ModelPolicy,
    Policies,
    QuarantinePolicy,
    RetryPolicy,
    ScoringPolicy,
)
from tests.support.fleet import Driven, only, record

OK = AttemptResult.SUCCESS
FAILED = AttemptResult.SERVER_ERROR
M = ModelPolicy("m")


def warmed() -> Driven:
    """Return two endpoints with twenty answers of 100 ms each, and three attempts in flight on the first."""
    driven = Driven()
    driven.seen(record("a"), record("b"))
    for id_ in "ab":
        for _ in range(20):
            driven.done(driven.to(id_), OK, 0.1)
    for _ in range(3):
        driven.to("a")
    driven.apply(Tick())
    return driven


def configure(driven: Driven, policies: Policies | None = None, *models: ModelPolicy) -> None:
    driven.cluster.configure(policies or Policies(), models, driven.now)


@pytest.mark.parametrize(
    "latency",
    [LatencyPolicy(), LatencyPolicy(relative_error=0.2), LatencyPolicy(window_s=6, slots=3)],
    ids=["same", "buckets", "window"],
)
def test_what_was_measured_stays_whatever_form_the_sketch_takes(latency: LatencyPolicy) -> None:
    driven = warmed()
    endpoint = driven.cluster.endpoints["a"]
    ewma_ms = only(endpoint).latency.ewma_ms
    configure(driven, Policies(latency=latency), M)
    assert driven.cluster.endpoints["a"] is endpoint
    assert endpoint.in_flight == 3
    assert only(endpoint).latency.ewma_ms == ewma_ms
    only(endpoint).latency.settle(driven.now)
    assert only(endpoint).latency.p95_ms == pytest.approx(100, rel=0.25 if latency.relative_error > 0.1 else 0.06)


def test_an_open_breaker_stays_open_and_a_window_of_another_length_keeps_its_counts() -> None:
    driven = warmed()
    endpoint = driven.cluster.endpoints["b"]
    before = only(endpoint).breaker.calls.totals(driven.now)
    configure(driven, Policies(breaker=BreakerPolicy(window_s=100, minimum_calls=5)), M)
    assert only(endpoint).breaker.calls.totals(driven.now) == before
    for _ in range(2 * before[0]):
        if only(endpoint).breaker.blocks:
            break
        driven.done(driven.to("b"), FAILED)
    assert only(endpoint).breaker.blocks
    until = only(endpoint).breaker.until
    configure(driven, Policies(breaker=BreakerPolicy(open_s=1)), M)
    assert (only(endpoint).breaker.blocks, only(endpoint).breaker.until) == (True, until)
    assert driven.ids(50).keys() == {"a"}


def test_fewer_half_open_trials_never_leave_a_breaker_without_a_place() -> None:
    driven = Driven(policies=Policies(breaker=BreakerPolicy(minimum_calls=2, open_s=1, half_open_calls=10)))
    driven.seen(record("a", static=True))
    for _ in range(2):
        driven.done(driven.attempt(), FAILED)
    driven.wait(1.5)
    for _ in range(5):
        driven.done(driven.attempt(), OK)
    breaker = only(driven.cluster.endpoints["a"]).breaker
    assert breaker.passed == 5
    configure(driven, Policies(breaker=BreakerPolicy(minimum_calls=2, open_s=1, half_open_calls=2)), M)
    driven.done(driven.attempt(), OK)
    driven.done(driven.attempt(), OK)
    assert not breaker.blocks
    assert driven.cluster.guards() == ()


def test_a_quarantine_goes_on_and_the_next_one_goes_by_the_new_policy() -> None:
    driven = warmed()
    driven.done(driven.to("b"), AttemptResult.CONNECT_REFUSED)
    guard = driven.cluster.endpoints["b"].quarantine
    until = guard.until
    configure(driven, Policies(quarantine=QuarantinePolicy(base_s=20, jitter_ratio=0)), M)
    assert (guard.active, guard.until) == (True, until)
    driven.done(driven.to("a"), AttemptResult.CONNECT_REFUSED)
    assert driven.cluster.endpoints["a"].quarantine.until == driven.now + 20


def test_a_model_routes_as_soon_as_it_is_there_and_no_longer_than_it_is() -> None:
    driven = warmed()
    generation = driven.cluster.generation
    configure(driven, None, M, ModelPolicy("n", default=True))
    assert driven.cluster.generation != generation
    assert driven.cluster.default_route is driven.cluster.route("n")
    assert driven.cluster.missing("m", "9") == "wrong_version"
    configure(driven, None, M)
    assert driven.cluster.route("n") is None
    assert driven.cluster.default_route is None


def test_a_model_that_is_still_reported_goes_with_its_last_replica() -> None:
    driven = Driven(models=[ModelPolicy("m", idempotent=True, default=True)])
    driven.seen(record("a", static=True))
    attempt = driven.attempt()
    configure(driven)
    assert driven.cluster.default_route is None
    route = driven.route()
    assert (route.learned, route.policy) == (True, ModelPolicy("m"))
    driven.seen(record("a", static=True, replicas=(Replica("n"),)))
    driven.wait(1.1)
    assert driven.cluster.route("m") is None
    assert driven.cluster.route("m", "1") is None
    assert driven.done(attempt, OK, 0.1) == ()
    assert driven.cluster.endpoints["a"].in_flight == 0
    configure(driven, None, ModelPolicy("m", idempotent=True))
    driven.wait(2)
    assert driven.route().policy.idempotent


def test_a_learned_model_waits_for_its_workers_as_before() -> None:
    driven = Driven(models=())
    driven.seen(record("a"))
    configure(driven)
    driven.gone("a")
    driven.wait(30)
    assert driven.cluster.route("m") is not None
    driven.wait(40)
    assert driven.cluster.route("m") is None


def test_weights_freshness_and_budget_go_by_the_new_policies_at_once() -> None:
    driven = Driven()
    driven.seen(record("a", warmth=1.0, free=0), record("b", warmth=0.0, free=16 << 30))
    assert driven.shares()["a"] == pytest.approx(0.4 / 0.75, abs=0.1)
    configure(driven, Policies(scoring=ScoringPolicy(warmth=1, free_memory=0, speed=0)), M)
    assert driven.shares()["a"] > 0.97
    driven.wait(3, heard=("a",), tick=False)
    configure(driven, None, M)
    assert driven.ids(20).keys() == {"a", "b"}
    configure(driven, Policies(freshness=FreshnessPolicy(full_s=1, ttl_s=2)), M)
    assert driven.ids(20).keys() == {"a"}
    attempt = driven.attempt()
    configure(driven, Policies(retry=RetryPolicy(budget_ratio=0, budget_min_per_s=0, budget_window_s=5)), M)
    verdict = driven.cluster.retry(
        attempt,
        AttemptResult.CONNECT_REFUSED,
        answered=False,
        replayable=True,
        tries=1,
        now=driven.now,
        rng=driven.rng,
    )
    assert not verdict.allowed
