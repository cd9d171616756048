from __future__ import annotations

from collections.abc import Callable

import pytest

from router.model import STATE_NEXT, State
from router.outcomes import (
    ATTEMPT_BLAME,
    BACK_PRESSURE,
    MAYBE_STARTED,
    NOT_STARTED,
    OUTCOME_INDEX,
    OUTCOMES,
    QUARANTINES,
    AttemptResult,
    Blame,
    Outcome,
)
from router.policy import (
    BackPressurePolicy,
    BreakerPolicy,
    FreshnessPolicy,
    HedgingPolicy,
    KeyPolicy,
    LatencyPolicy,
    Policies,
    PolicyError,
    QuarantinePolicy,
    RampPolicy,
    RetryPolicy,
    ScoringPolicy,
    WarmthPolicy,
)

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: ScoringPolicy(warmth=-1), "scoring.warmth"),
        (lambda: ScoringPolicy(speed=INF), "scoring.speed"),
        (lambda: ScoringPolicy(free_memory=NAN), "scoring.free_memory"),
        (lambda: ScoringPolicy(warmth=0, free_memory=0, speed=0), "scoring.sum of all coefficients"),
        (lambda: ScoringPolicy(cpu_load=-1), "scoring.cpu_load"),
        (lambda: ScoringPolicy(queue_depth=NAN), "scoring.queue_depth"),
        (lambda: ScoringPolicy(coefficients={"own": -1.0}), "scoring.coefficients.own"),
        (lambda: ScoringPolicy(coefficients={"speed": 1.0}), "scoring.coefficients.speed"),
        (lambda: KeyPolicy(load_factor=0.9), "key.load_factor"),
        (lambda: KeyPolicy(load_factor=INF), "key.load_factor"),
        (lambda: ScoringPolicy(exploration_floor_ratio=1.1), "scoring.exploration_floor_ratio"),
        (lambda: ScoringPolicy(speed_spread_ratio=0.9), "scoring.speed_spread_ratio"),
        (lambda: FreshnessPolicy(heartbeat_s=0), "freshness.heartbeat_s"),
        (lambda: FreshnessPolicy(full_s=5), "freshness.ttl_s"),
        (lambda: FreshnessPolicy(empty_store_grace_s=-1), "freshness.empty_store_grace_s"),
        (lambda: RampPolicy(start_ratio=2), "ramp.start_ratio"),
        (lambda: RampPolicy(proven_start_ratio=-0.1), "ramp.proven_start_ratio"),
        (lambda: RampPolicy(duration_s=INF), "ramp.duration_s"),
        (lambda: WarmthPolicy(idle_after_s=-1), "warmth.idle_after_s"),
        (lambda: WarmthPolicy(decay_s=0), "warmth.decay_s"),
        (lambda: WarmthPolicy(floor=1.5), "warmth.floor"),
        (lambda: QuarantinePolicy(base_s=0), "quarantine.base_s"),
        (lambda: QuarantinePolicy(base_s=2, max_s=1), "quarantine.max_s"),
        (lambda: QuarantinePolicy(jitter_ratio=-0.1), "quarantine.jitter_ratio"),
        (lambda: BackPressurePolicy(default_s=-1), "back_pressure.default_s"),
        (lambda: BackPressurePolicy(default_s=2, max_s=1), "back_pressure.max_s"),
        (lambda: BackPressurePolicy(max_s=INF), "back_pressure.max_s"),
        (lambda: BreakerPolicy(failure_ratio=0), "breaker.failure_ratio"),
        (lambda: BreakerPolicy(minimum_calls=0), "breaker.minimum_calls"),
        (lambda: BreakerPolicy(half_open_calls=0), "breaker.half_open_calls"),
        (lambda: HedgingPolicy(quantile=0.4), "hedging.quantile"),
        (lambda: HedgingPolicy(quantile=1.0), "hedging.quantile"),
        (lambda: HedgingPolicy(min_delay_ms=-1), "hedging.min_delay_ms"),
        (lambda: HedgingPolicy(minimum_samples=0), "hedging.minimum_samples"),
        (lambda: RetryPolicy(attempts=6), "retry.attempts"),
        (lambda: RetryPolicy(backoff_min_ms=300), "retry.backoff_min_ms"),
        (lambda: RetryPolicy(budget_ratio=1.5), "retry.budget_ratio"),
        (lambda: RetryPolicy(budget_window_s=0), "retry.budget_window_s"),
        (lambda: RetryPolicy(budget_min_per_s=-1), "retry.budget_min_per_s"),
        (lambda: LatencyPolicy(relative_error=0.6), "latency.relative_error"),
        (lambda: LatencyPolicy(slots=0), "latency.slots"),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(make: Callable[[], object], field: str) -> None:
    with pytest.raises(PolicyError) as caught:
        make()
    assert caught.value.field == field
    assert caught.value.remedy
    assert str(caught.value).startswith(f"{field}: ")


def test_the_defaults_are_the_documented_ones() -> None:
    policies = Policies()
    scoring, retry, breaker = policies.scoring, policies.retry, policies.breaker
    assert (scoring.warmth, scoring.free_memory, scoring.speed) == (0.40, 0.35, 0.25)
    assert (policies.freshness.full_s, policies.freshness.ttl_s) == (2, 5)
    assert (policies.ramp.start_ratio, policies.ramp.proven_start_ratio, policies.ramp.duration_s) == (0.1, 0.5, 10)
    assert (policies.quarantine.base_s, policies.quarantine.max_s) == (1, 30)
    assert (policies.back_pressure.default_s, policies.back_pressure.max_s) == (1, 10)
    assert (breaker.failure_ratio, breaker.minimum_calls, breaker.window_s, breaker.open_s) == (0.5, 20, 10, 60)
    assert (retry.attempts, retry.backoff_min_ms, retry.backoff_max_ms, retry.budget_ratio) == (1, 25, 250, 0.2)


def test_every_outcome_and_result_has_a_meaning() -> None:
    assert set(OUTCOMES) == set(Outcome) == set(OUTCOME_INDEX)
    assert sorted(OUTCOME_INDEX.values()) == list(range(len(Outcome)))
    assert set(ATTEMPT_BLAME) == set(AttemptResult)
    assert not NOT_STARTED & MAYBE_STARTED
    assert all(ATTEMPT_BLAME[result] is Blame.FAILURE for result in QUARANTINES)


def test_what_is_answered_here_has_status_phrase_and_message() -> None:
    for outcome, spec in OUTCOMES.items():
        assert spec.answered_here is (spec.status != 0)
        assert spec.message, outcome
        assert bool(spec.phrase) is spec.answered_here
        assert spec.status in (429, 503) or not spec.retry_after


def test_client_errors_and_back_pressure_never_count_against_an_endpoint() -> None:
    neutral = {result for result, blame in ATTEMPT_BLAME.items() if blame is Blame.NEUTRAL}
    assert neutral >= {AttemptResult.CLIENT_ERROR, AttemptResult.CANCELLED, AttemptResult.OUTRUN} | BACK_PRESSURE


def test_any_state_may_fail_and_none_becomes_warm_but_from_warming() -> None:
    assert set(STATE_NEXT) == set(State)
    assert all(State.FAILED in after for before, after in STATE_NEXT.items() if before is not State.FAILED)
    assert [before for before, after in STATE_NEXT.items() if State.WARM in after] == [State.WARMING]
