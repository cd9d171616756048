"""Work of our own: it takes a place like any other, and nothing is learned of how it ends."""

from __future__ import annotations

import pytest

from router.outcomes import AttemptResult, Reason
from router.policy import BalancerName, ModelPolicy, Policies
from router.routes import NoCandidate
from tests.support.fleet import Driven, only, record


def fleet(requests_per_endpoint: int = 0) -> Driven:
    driven = Driven(policies=Policies(requests_per_endpoint=requests_per_endpoint))
    driven.seen(record("a"), record("b"))
    return driven


def learned(driven: Driven) -> object:
    now = driven.now
    endpoints = driven.cluster.endpoints.values()
    return [
        (
            only(e).latency.ewma_ms,
            dict(only(e).latency.fresh),
            only(e).breaker.calls.totals(now),
            e.quarantine.active,
            e.busy_until,
        )
        for e in endpoints
    ]


@pytest.mark.parametrize("result", list(AttemptResult))
def test_whatever_becomes_of_it_nothing_is_learned_but_that_it_is_over(result: AttemptResult) -> None:
    driven = fleet()
    driven.done(driven.attempt(), AttemptResult.SUCCESS, 0.05)
    before = learned(driven)
    attempt = driven.cluster.choose_background(driven.route(), driven.now, driven.rng)
    assert attempt is not None
    assert attempt.background
    assert not attempt.probe
    assert attempt.endpoint.in_flight == 1
    assert driven.done(attempt, result, 3.0, 5.0) == ()
    assert driven.done(attempt, result) == ()
    assert attempt.endpoint.in_flight == 0
    assert learned(driven) == before


def test_it_is_in_flight_for_choices_and_for_siblings() -> None:
    driven = Driven(models=[ModelPolicy("m", balancer=BalancerName.LEAST_REQUEST)])
    driven.seen(record("a"), record("b"))
    candidate = driven.route().candidates[0]
    held = [driven.cluster.begin_background(candidate, driven.route(), driven.now) for _ in range(3)]
    assert {driven.attempt().endpoint.id for _ in range(3)} == {"b"}
    assert driven.cluster.observe(driven.now)[0].in_flight == 3
    assert all(held)


def test_it_is_the_last_that_an_endpoint_was_given() -> None:
    """So a request goes to one of equal load whose work is further along."""
    driven = fleet()
    a, b = driven.route().candidates
    for candidate in (a, b):
        assert driven.cluster.begin_background(candidate, driven.route(), driven.now) is not None
        driven.now += 0.01
    assert driven.attempt().endpoint is a.endpoint
    own = driven.cluster.choose_background(driven.route(), driven.now, driven.rng)
    assert own is not None
    assert own.endpoint is b.endpoint
    assert own.endpoint.picked_at == driven.now


def test_a_limit_holds_for_it_and_it_leaves_half_of_the_places_to_callers() -> None:
    driven = fleet(requests_per_endpoint=4)
    cluster, route = driven.cluster, driven.route()
    picked = [cluster.choose_background(route, driven.now, driven.rng) for _ in range(6)]
    assert sum(one is not None for one in picked) == 4
    assert [one.in_flight for one in cluster.endpoints.values()] == [2, 2]
    assert [one.passed_over for one in cluster.endpoints.values()] == [0, 0]  # no caller was
    for _ in range(2):
        assert cluster.begin_background(route.candidates[0], route, driven.now) is not None
    assert cluster.begin_background(route.candidates[0], route, driven.now) is None


def test_where_there_is_one_place_it_has_none() -> None:
    driven = fleet(requests_per_endpoint=1)
    assert driven.cluster.choose_background(driven.route(), driven.now, driven.rng) is None


@pytest.mark.parametrize("balancer", [BalancerName.WARM, BalancerName.ROUND_ROBIN, BalancerName.LEAST_REQUEST])
def test_it_takes_no_place_that_somebody_waits_for(balancer: BalancerName) -> None:
    driven = Driven(models=[ModelPolicy("m", balancer=balancer), ModelPolicy("n")])
    driven.seen(record("a"))
    cluster, route = driven.cluster, driven.route()
    cluster.hold_back(route, NoCandidate(Reason.AT_LIMIT, 1.0, "full"))
    assert cluster.choose_background(route, driven.now, driven.rng) is None
    cluster.hold_back(route, None)
    assert cluster.choose_background(route, driven.now, driven.rng) is not None


def test_it_tries_nobody_who_is_out_and_takes_no_probe() -> None:
    driven = fleet()
    driven.gone("b")
    driven.done(driven.attempt(), AttemptResult.CONNECT_REFUSED)
    driven.now += 60.0
    assert driven.cluster.choose_background(driven.route(), driven.now, driven.rng) is None
    assert driven.attempt().probe


def test_it_may_go_to_one_that_is_not_warm_yet_where_it_is_named() -> None:
    driven = fleet()
    driven.done(driven.to("a"), AttemptResult.CONNECT_REFUSED)
    candidate = driven.route().candidates[0]
    assert candidate.endpoint.id == "a"
    attempt = driven.cluster.begin_background(candidate, driven.route(), driven.now)
    assert attempt is not None
    driven.done(attempt, AttemptResult.SUCCESS)
    assert candidate.endpoint.quarantine.active


def test_it_is_no_request_in_the_budget_of_retries() -> None:
    driven = fleet()
    before = driven.cluster._budget.calls.totals(driven.now)
    driven.cluster.choose_background(driven.route(), driven.now, driven.rng)
    assert driven.cluster._budget.calls.totals(driven.now) == before
