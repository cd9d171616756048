from __future__ import annotations

import random
from itertools import product
from math import inf

import pytest

from router.cluster import Cluster
from router.hedging import HeadTimes, HedgeDenied, may_hedge
from router.model import EndpointHeld, EndpointSeen, Tick
from router.outcomes import AttemptResult
from router.policy import HedgingPolicy, LatencyPolicy, ModelPolicy, Policies, RetryPolicy
from router.routes import Attempt, Route
from router.stats import LogBuckets
from tests.support.fleet import only, record

HEDGING = HedgingPolicy(quantile=0.95, min_delay_ms=5.0, minimum_samples=20)
BUCKETS = LogBuckets(0.05)
HEDGED = ModelPolicy("m", idempotent=True, hedge=True)


@pytest.mark.parametrize(
    ("answered", "idempotent", "replayable", "tries", "left_s"),
    list(product([False, True], [True, False], [True, False], [1, 2, 3], [inf, 0.1, 0.0, -1.0])),
)
def test_a_second_try_beside_the_first_needs_all_of_it(
    answered: bool, idempotent: bool, replayable: bool, tries: int, left_s: float
) -> None:
    denied = may_hedge(
        answered=answered, idempotent=idempotent, replayable=replayable, tries=tries, attempts=2, left_s=left_s
    )
    allowed = not answered and idempotent and replayable and tries <= 2 and left_s > 0
    assert (denied is None) is allowed
    if denied is not None:
        named = {
            HedgeDenied.ANSWERED: answered,
            HedgeDenied.NOT_IDEMPOTENT: not idempotent,
            HedgeDenied.NOT_REPLAYABLE: not replayable,
            HedgeDenied.ATTEMPTS: tries > 2,
            HedgeDenied.DEADLINE: left_s <= 0,
        }
        assert named[denied]


def times(policy: HedgingPolicy = HEDGING, latency: LatencyPolicy | None = None) -> HeadTimes:
    return HeadTimes(policy, latency or LatencyPolicy(), BUCKETS, 0.0)


def test_nothing_is_hedged_before_enough_is_measured() -> None:
    waits = times()
    for _ in range(19):
        waits.sample(0.1)
    waits.settle(1.0)
    assert waits.delay_s == inf
    waits.sample(0.1)
    assert waits.delay_s == inf  # a request changes nothing by itself
    waits.settle(1.1)
    assert waits.delay_s == pytest.approx(0.1, rel=0.06)


def test_the_delay_is_the_quantile_and_no_less_than_the_least() -> None:
    waits = times()
    for milliseconds in range(1, 101):
        waits.sample(milliseconds / 1000)
    waits.settle(1.0)
    assert waits.delay_s == pytest.approx(0.095, rel=0.06)
    quick = times()
    for _ in range(100):
        quick.sample(0.0001)
    quick.settle(1.0)
    assert quick.delay_s == 0.005


def test_what_was_measured_ages() -> None:
    waits = times()
    for _ in range(100):
        waits.sample(1.0)
    waits.settle(1.0)
    assert waits.delay_s < inf
    waits.settle(62.0)
    assert waits.delay_s == inf


def test_hedged_requests_keep_the_quantile_where_it_is() -> None:
    """What a hedge answered counts with the wait of its first try, so the delay does not creep down."""
    rng = random.Random(5)
    waits = times()
    delays: list[float] = []
    for turn in range(4000):
        wait = 0.010 if rng.random() < 0.9 else 0.5
        if wait > waits.delay_s:
            wait = min(wait, waits.delay_s + 0.010)
        waits.sample(wait)
        if turn % 50 == 0:
            waits.settle(turn / 1000)
            delays.append(waits.delay_s)
    settled = delays[-20:]
    assert max(settled) < 0.6
    hedged_share = sum(1 for _ in range(10_000) if (0.010 if rng.random() < 0.9 else 0.5) > settled[-1]) / 10_000
    assert hedged_share <= 0.12


def test_another_policy_keeps_what_was_measured() -> None:
    waits = times()
    for milliseconds in range(1, 101):
        waits.sample(milliseconds / 1000)
    finer = LatencyPolicy(relative_error=0.01, window_s=30.0, slots=3)
    waits.configure(HedgingPolicy(quantile=0.5, minimum_samples=100), finer, LogBuckets(0.01), 1.0)
    assert waits.delay_s == pytest.approx(0.05, rel=0.07)
    waits.configure(HedgingPolicy(quantile=0.5, minimum_samples=101), finer, LogBuckets(0.01), 1.0)
    assert waits.delay_s == inf


# --- the cluster ------------------------------------------------------------------------------------------------------


class Fleet:
    def __init__(self, *ids: str, policies: Policies | None = None, model: ModelPolicy = HEDGED) -> None:
        self.now = 100.0
        self.cluster = Cluster(policies or Policies(hedging=HEDGING), [model], self.now)
        for id_ in ids:
            self.cluster.apply(EndpointSeen(record(id_), self.now), self.now)
        self.cluster.apply(Tick(), self.now)
        self.rng = random.Random(3).random

    @property
    def route(self) -> Route:
        route = self.cluster.route("m")
        assert route is not None
        return route

    def first(self) -> Attempt:
        attempt = self.cluster.choose(self.route, self.now, self.rng)
        assert isinstance(attempt, Attempt)
        return attempt

    def hedge(self, attempt: Attempt, tries: int = 1) -> Attempt | HedgeDenied:
        return self.cluster.hedge(
            attempt, answered=False, replayable=True, tries=tries, left_s=inf, now=self.now, rng=self.rng
        )

    def in_flight(self) -> dict[str, int]:
        return {id_: endpoint.in_flight for id_, endpoint in self.cluster.endpoints.items()}


def test_a_hedge_goes_elsewhere_and_is_counted_there() -> None:
    fleet = Fleet("a", "b", "c")
    for _ in range(20):
        attempt = fleet.first()
        hedge = fleet.hedge(attempt)
        assert isinstance(hedge, Attempt)
        assert hedge.endpoint is not attempt.endpoint
        assert sum(fleet.in_flight().values()) == 2
        fleet.cluster.done(attempt, AttemptResult.OUTRUN, fleet.now)
        fleet.cluster.done(hedge, AttemptResult.SUCCESS, fleet.now)
    assert set(fleet.in_flight().values()) == {0}


def test_nobody_else_is_no_hedge_and_costs_nothing() -> None:
    fleet = Fleet("a")
    attempt = fleet.first()
    assert fleet.hedge(attempt) is HedgeDenied.NOBODY
    assert fleet.cluster._budget.calls.totals(fleet.now) == (1, 0)
    assert fleet.in_flight() == {"a": 1}


def test_hedges_share_the_budget_of_retries() -> None:
    policies = Policies(hedging=HEDGING, retry=RetryPolicy(budget_min_per_s=0.2, budget_ratio=0.0))
    fleet = Fleet("a", "b", policies=policies)
    attempt = fleet.first()
    hedge = fleet.hedge(attempt)
    assert isinstance(hedge, Attempt)
    assert fleet.cluster.retry(
        attempt,
        AttemptResult.CONNECT_REFUSED,
        answered=False,
        replayable=True,
        tries=1,
        now=fleet.now,
        rng=fleet.rng,
    ).allowed
    assert fleet.hedge(attempt) is HedgeDenied.BUDGET
    assert sum(fleet.in_flight().values()) == 2


def test_a_hedge_is_one_of_the_tries() -> None:
    fleet = Fleet("a", "b")
    assert fleet.hedge(fleet.first(), tries=2) is HedgeDenied.ATTEMPTS


def test_nobody_who_is_out_or_pushed_back_is_asked() -> None:
    fleet = Fleet("a", "b", "c")
    fleet.cluster.apply(EndpointHeld("b", True, fleet.now), fleet.now)
    attempt = fleet.first()
    other = next(e for id_, e in fleet.cluster.endpoints.items() if id_ != "b" and e is not attempt.endpoint)
    hedge = fleet.hedge(attempt)
    assert isinstance(hedge, Attempt)
    assert hedge.endpoint is other
    fleet.cluster.done(hedge, AttemptResult.BUSY, fleet.now, 5.0)
    assert fleet.hedge(attempt) is HedgeDenied.NOBODY


@pytest.mark.parametrize(
    "policies",
    [
        Policies(hedging=HEDGING, requests_per_endpoint=2),
        Policies(hedging=HEDGING, connections_per_endpoint=2),
    ],
)
def test_a_hedge_leaves_the_last_place_to_others(policies: Policies) -> None:
    fleet = Fleet("a", "b", "c", policies=policies)
    first = fleet.first()
    hedges = [fleet.hedge(first) for _ in range(3)]
    assert hedges[2] is HedgeDenied.NOBODY
    assert set(fleet.in_flight().values()) == {1}
    assert {endpoint.passed_over for endpoint in fleet.cluster.endpoints.values()} == {0}  # nobody is at the limit
    for _ in range(3):
        fleet.first()
    assert set(fleet.in_flight().values()) == {2}


def test_who_was_outrun_is_known_to_be_slower() -> None:
    fleet = Fleet("a", "b")
    attempt = fleet.first()
    fleet.now += 0.2
    assert fleet.cluster.done(attempt, AttemptResult.OUTRUN, fleet.now) == ()
    latency = only(attempt.endpoint).latency
    assert latency.ewma_ms == pytest.approx(200)
    assert latency.fresh == {}  # it is no sample of the quantiles
    assert only(attempt.endpoint).untold.failures == 0
    quicker = fleet.cluster.choose(fleet.route, fleet.now, lambda: 0.0)
    assert isinstance(quicker, Attempt)
    fleet.cluster.done(quicker, AttemptResult.OUTRUN, fleet.now + 0.001)
    assert latency.ewma_ms == pytest.approx(200)  # it says "at least", never "at most"


def test_only_models_that_are_hedged_measure() -> None:
    fleet = Fleet("a", model=ModelPolicy("m", idempotent=True))
    assert fleet.route.hedging is None
    fleet.cluster.waited(fleet.route, 0.1)
    fleet.cluster.configure(Policies(hedging=HEDGING), [HEDGED], fleet.now)
    routes = [fleet.cluster.route("m", version) for version in ("", "1")]
    measured = [route and route.hedging for route in routes]
    assert None not in measured
    assert measured[0] is not measured[1]
    fleet.cluster.configure(Policies(), [HEDGED], fleet.now)
    assert [route and route.hedging for route in routes] == measured
    fleet.cluster.configure(Policies(), [ModelPolicy("m", hedge=True)], fleet.now)
    assert [route and route.hedging for route in routes] == [None, None]


def test_the_delay_follows_with_the_table() -> None:
    fleet = Fleet("a", "b")
    for _ in range(30):
        fleet.cluster.done(fleet.first(), AttemptResult.SUCCESS, fleet.now)
        fleet.cluster.waited(fleet.route, 0.05)
    assert fleet.route.hedging is not None
    fleet.now += 0.2
    fleet.cluster.apply(Tick(), fleet.now)
    assert fleet.route.hedging.delay_s == pytest.approx(0.05, rel=0.06)
