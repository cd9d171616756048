"""The decisions: who is chosen of whom, what one hears whom nobody can take, and what is said to siblings."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from router.cluster import Cluster, no_jitter
from router.model import (
    EjectCause,
    EndpointEjected,
    EndpointHeld,
    EndpointSeen,
    Observation,
    State,
    StoreMode,
    Tick,
)
from router.outcomes import AttemptResult, Reason
from router.policy import ModelPolicy, Policies, QuarantinePolicy, RampPolicy
from router.protocols import Candidate, Choosable, Rng
from router.retry import RetryDenied
from router.routes import Attempt
from tests.support.fleet import Driven, only, pair, record

OK = AttemptResult.SUCCESS
REFUSED = AttemptResult.CONNECT_REFUSED
FAILED = AttemptResult.SERVER_ERROR


# --- the law --------------------------------------------------------------------------------------------------------


def test_a_warm_endpoint_is_chosen_and_counted() -> None:
    driven = Driven()
    driven.seen(record("a"))
    attempt = driven.attempt()
    assert attempt.endpoint is driven.cluster.endpoints["a"]
    assert attempt.endpoint.in_flight == 1
    assert attempt.route.key == "m"
    assert attempt.started == driven.now
    assert not attempt.probe


def test_in_flight_is_released_exactly_once() -> None:
    driven = Driven()
    driven.seen(record("a"))
    attempt = driven.attempt()
    driven.done(attempt, OK, 0.01)
    assert driven.done(attempt, REFUSED) == ()
    assert attempt.endpoint.in_flight == 0
    assert not attempt.endpoint.quarantine.active


def test_draws_follow_the_weights_where_waits_are_equal() -> None:
    driven = Driven()
    driven.seen(record("a", warmth=1.0), record("b", warmth=0.0))
    share = driven.shares()["a"]
    assert share > 0.6
    assert driven.ids(2000)["a"] / 2000 == pytest.approx(share, abs=0.04)


def test_the_lowest_expected_wait_wins_of_those_drawn() -> None:
    driven = pair()
    a, b = (only(driven.cluster.endpoints[id_]) for id_ in "ab")
    a.latency.ewma_ms, b.latency.ewma_ms = 100.0, 10.0
    assert driven.ids(100) == {"b": 100}
    b.endpoint.in_flight = 8
    assert driven.ids(1000)["a"] / 1000 == pytest.approx(0.5, abs=0.06)  # about equal, 100 and 90: the first drawn
    b.endpoint.in_flight = 7
    assert driven.ids(100) == {"b": 100}
    b.endpoint.in_flight = 11
    assert driven.ids(100) == {"a": 100}


def test_of_those_alike_the_one_picked_longest_ago_is_taken() -> None:
    driven = Driven()
    driven.seen(record("a", warmth=0.9), record("b"), record("c", warmth=0.8))
    a, b, c = (only(driven.cluster.endpoints[id_]) for id_ in "abc")
    a.latency.ewma_ms, b.latency.ewma_ms, c.latency.ewma_ms = 20.0, 21.0, 22.0
    for each in (a, b, c):
        each.endpoint.in_flight = 2

    def taken(count: int) -> str:
        ids = ""
        for _ in range(count):
            driven.now += 0.001
            attempt = driven.attempt()
            attempt.endpoint.in_flight -= 1
            ids += attempt.endpoint.id
        return ids

    taken(3)
    b.endpoint.picked_at = driven.now - 30.0
    turns = taken(99)
    assert turns[0] == "b"
    assert {id_: turns.count(id_) for id_ in "abc"} == {"a": 33, "b": 33, "c": 33}
    c.latency.ewma_ms = 23.0  # more than a tenth slower than the fastest: it is not as good
    a.endpoint.in_flight = b.endpoint.in_flight = c.endpoint.in_flight = 1
    a.latency.ewma_ms, b.latency.ewma_ms = 20.0, 20.0
    assert set(taken(60)) == {"a", "b"}
    c.latency.ewma_ms = 20.0
    c.endpoint.in_flight = 2  # nor is one with more in flight, however long ago it was picked
    assert set(taken(60)) == {"a", "b"}


def test_where_nothing_is_in_flight_age_does_not_count() -> None:
    driven = pair()
    driven.attempt().endpoint.in_flight = 0
    a, b = (driven.cluster.endpoints[id_] for id_ in "ab")
    a.picked_at, b.picked_at = driven.now - 1.0, driven.now - 2.0
    picked = driven.cluster.choose(driven.route(), driven.now, lambda: 0.0)
    assert isinstance(picked, Attempt)
    table = driven.route().table
    assert table is not None
    assert picked.candidate is table[1][0][0]


def test_the_lowest_of_many_wins_whoever_was_drawn_first() -> None:
    driven = Driven()
    driven.seen(*(record(f"e{index}") for index in range(8)))
    for index, endpoint in enumerate(driven.cluster.endpoints.values()):
        only(endpoint).latency.ewma_ms = 10.0 * 2**index
    counts = driven.ids(2000)
    assert counts["e0"] > 600  # it is in about half of all hands
    assert [counts.get(f"e{index}", 0) for index in range(8)] == sorted(counts.values(), reverse=True) + [0] * (
        8 - len(counts)
    )


@pytest.mark.parametrize("first", ["a", "b"])
def test_of_about_equal_waits_the_first_drawn_wins(first: str) -> None:
    driven = pair()
    driven.ids(1)
    table = driven.route().table
    assert table is not None
    size, hands = table
    number = next(index for index, hand in enumerate(hands) if hand[0].endpoint.id == first) / size
    for a_ms, b_ms in ((0.0, 0.0), (10.0, 10.0), (10.0, 9.2), (9.2, 10.0)):
        for id_, ms in (("a", a_ms), ("b", b_ms)):
            only(driven.cluster.endpoints[id_]).latency.ewma_ms = ms
        attempt = driven.cluster.choose(driven.route(), driven.now, lambda: number)
        assert isinstance(attempt, Attempt)
        assert attempt.endpoint.id == first
        driven.done(attempt, AttemptResult.CANCELLED)


def test_slow_endpoints_lose_weight() -> None:
    driven = pair()
    for _ in range(40):
        attempt = driven.attempt()
        driven.cluster.done(attempt, OK, driven.now + (0.010 if attempt.endpoint.id == "a" else 0.100))
    driven.wait(2, heard=("a", "b"))
    assert driven.shares()["a"] == pytest.approx(0.825 / (0.825 + 0.575))


# --- out at once, in soon --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["draining", "cold", "held", "gone", "epoch", "sibling", "breaker", "version"])
def test_who_is_taken_out_is_not_chosen_again_even_without_a_tick(how: str) -> None:
    driven = pair()
    for id_, ewma_ms in (("a", 1.0), ("b", 100.0)):  # whenever it is drawn at all, it would win
        only(driven.cluster.endpoints[id_]).latency.ewma_ms = ewma_ms
    driven.ids(10)
    if how == "draining":
        driven.seen(record("a", draining=True))
    elif how == "cold":
        driven.seen(record("a", state=State.COLD))
    elif how == "held":
        driven.apply(EndpointHeld("a", True, driven.now))
    elif how == "gone":
        driven.gone("a")
    elif how == "epoch":
        driven.seen(record("a", epoch="b", state=State.LOADING))
    elif how == "sibling":
        driven.apply(EndpointEjected("a", EjectCause.QUARANTINE, driven.now + 4, 3, driven.now))
    elif how == "breaker":
        driven.apply(EndpointEjected("a", EjectCause.BREAKER, driven.now + 60, 1, driven.now, "m", "1"))
    else:
        driven.seen(record("a", model="other"))
    assert driven.ids() == {"b": 300}
    driven.now += 0.3
    driven.apply(Tick())
    assert driven.ids() == {"b": 300}


def test_stale_endpoints_are_not_chosen_and_come_back_when_heard() -> None:
    driven = pair()
    driven.ids(10)
    driven.wait(4.9, heard=("b",), tick=False)
    assert set(driven.ids()) == {"a", "b"}
    driven.wait(0.1, heard=("b",), tick=False)
    assert driven.ids() == {"b": 300}
    driven.heard("a", "nobody")
    driven.wait(0.3, heard=("a", "b"))
    assert set(driven.ids()) == {"a", "b"}


def test_older_endpoints_lose_weight() -> None:
    driven = pair()
    driven.wait(3.5, heard=("b",))
    assert driven.shares()["a"] == pytest.approx(0.5 / 1.5)


def test_the_first_candidate_is_chosen_at_once() -> None:
    driven = Driven()
    driven.seen(record("a", state=State.WARMING))
    assert driven.nobody().reason is Reason.NOT_WARM
    driven.seen(record("a"))
    assert driven.ids(3) == {"a": 3}


def test_one_more_candidate_comes_at_once_and_others_of_that_second_within_the_interval_even_without_a_tick() -> None:
    driven = Driven()
    driven.seen(record("a"))
    driven.ids(3)
    driven.wait(1.0, heard=("a",))
    driven.seen(record("b"))
    assert set(driven.ids()) == {"a", "b"}
    driven.seen(record("c"))
    assert set(driven.ids()) == {"a", "b"}
    driven.now += 0.11
    assert set(driven.ids()) == {"a", "b", "c"}
    driven.wait(1.0, heard=("a", "b", "c"))
    driven.seen(record("d"))
    assert set(driven.ids()) == {"a", "b", "c", "d"}


def test_where_all_of_the_table_is_out_the_others_are_found_at_once() -> None:
    driven = Driven()
    driven.seen(record("a"))
    driven.ids(3)
    driven.seen(record("b"))
    driven.seen(record("a", draining=True))
    assert driven.ids(3) == {"b": 3}


def test_many_out_and_one_left_is_found() -> None:
    driven = Driven()
    driven.seen(*(record(f"e{n:03}") for n in range(200)))
    driven.ids(10)
    for n in range(199):
        driven.apply(EndpointHeld(f"e{n:03}", True, driven.now))
    assert driven.ids(20) == {"e199": 20}


def test_tables_are_made_at_most_ten_times_a_second() -> None:
    made = 0
    driven = pair()
    route = driven.route()
    for _ in range(1000):
        before = route.built_at
        driven.now += 0.001
        driven.seen(record("a", free=driven.route().used))
        driven.attempt()
        driven.apply(Tick())
        made += route.built_at != before
    assert 9 <= made <= 11


def test_big_tables_are_made_seldomer_and_a_tick_does_a_bounded_share() -> None:
    driven = Driven()
    models = [f"m{n}" for n in range(5)]
    for model in models:
        driven.seen(*(record(f"{model}-{n:03}", model=model) for n in range(900)))
    for model in models:
        driven.attempt(route=driven.route(model))
    assert driven.route("m0").interval_s == pytest.approx(0.9)
    driven.now += 1.5
    heard = [f"{model}-{n:03}" for model in models for n in range(900)]
    driven.heard(*heard)
    driven.apply(Tick())
    assert sum(driven.route(model).built_at == driven.now for model in models) == 3
    driven.apply(Tick())
    assert sum(driven.route(model).built_at == driven.now for model in models) == 5


def test_unused_routes_cost_nothing() -> None:
    driven = pair()
    built = driven.route(version="1").built_at
    driven.wait(5, heard=("a", "b"))
    assert driven.route(version="1").built_at == built
    driven.attempt(route=driven.route(version="1"))


# --- nobody ----------------------------------------------------------------------------------------------------------


def test_nobody_serves_it() -> None:
    none = Driven().nobody()
    assert none.reason is Reason.NO_ENDPOINTS
    assert none.detail == "no endpoint serves m"
    assert none.retry_after_s == 1.0


def test_the_reason_is_the_one_that_most_share_and_the_detail_counts_all() -> None:
    driven = Driven()
    driven.seen(
        record("a", state=State.LOADING), record("b", state=State.COLD), record("c", draining=True), record("d")
    )
    driven.apply(EndpointHeld("d", True, driven.now))
    none = driven.nobody()
    assert none.reason is Reason.NOT_WARM
    assert none.detail == "m: none of 4 can be picked: 2 not_warm, 1 draining, 1 held"
    assert driven.nobody() is none
    driven.seen(record("b", draining=True), record("a", draining=True))
    assert driven.nobody().reason is Reason.DRAINING


def test_a_retry_without_another_endpoint_says_so() -> None:
    driven = Driven()
    driven.seen(record("a"))
    none = driven.nobody(driven.cluster.endpoints["a"])
    assert none.reason is Reason.ALREADY_TRIED
    assert "a" in none.detail
    driven.apply(EndpointHeld("a", True, driven.now))
    assert driven.nobody(driven.cluster.endpoints["a"]).reason is Reason.HELD


# --- retries ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_retry_is_asked_of_the_route_and_the_budget(idempotent: bool) -> None:
    driven = Driven(models=[ModelPolicy("m", idempotent=idempotent)])
    driven.seen(record("a"), record("b"))
    attempt = driven.attempt()
    driven.done(attempt, AttemptResult.RESET)
    verdict = driven.cluster.retry(
        attempt, AttemptResult.RESET, answered=False, replayable=True, tries=1, now=driven.now, rng=driven.rng
    )
    assert verdict.allowed is idempotent
    assert verdict.denied is (None if idempotent else RetryDenied.NOT_IDEMPOTENT)


def test_the_budget_counts_requests_not_retries() -> None:
    driven = pair()
    driven.ids(500)
    attempt = driven.attempt()
    allowed = 0
    for _ in range(300):
        verdict = driven.cluster.retry(
            attempt, REFUSED, answered=False, replayable=True, tries=1, now=driven.now, rng=driven.rng
        )
        allowed += verdict.allowed
        if verdict.allowed:
            driven.done(driven.attempt(attempt.endpoint), OK)
    assert allowed == 100


# --- what siblings are told ------------------------------------------------------------------------------------------


def test_observations_are_what_was_seen_since_the_last_call() -> None:
    driven = pair()
    assert driven.cluster.observe(driven.now) == ()
    first, second = driven.to("a"), driven.to("a")
    driven.done(first, OK, 0.010)
    (observed,) = driven.cluster.observe(driven.now)
    (seen,) = observed.seen
    assert (observed.id, observed.in_flight, seen.model, seen.version) == ("a", 1, "m", "1")
    assert (seen.successes, seen.failures) == (1, 0)
    assert seen.ewma_ms == pytest.approx(10)
    assert sum(count for _, count in seen.buckets) == 1
    assert driven.cluster.observe(driven.now) == (Observation("a", 1),)
    driven.done(second, AttemptResult.CANCELLED)
    assert driven.cluster.observe(driven.now) == (Observation("a", 0),)
    assert driven.cluster.observe(driven.now) == ()
    driven.done(driven.to("b"), AttemptResult.CLIENT_ERROR)
    driven.done(driven.to("b"), FAILED)
    (observed,) = driven.cluster.observe(driven.now)
    (seen,) = observed.seen
    assert (observed.id, seen.successes, seen.failures, seen.others, seen.buckets) == ("b", 0, 1, 1, ())


# --- configuration ---------------------------------------------------------------------------------------------------


def test_policies_reach_every_part() -> None:
    policies = Policies(quarantine=QuarantinePolicy(base_s=7, jitter_ratio=0), ramp=RampPolicy(duration_s=0))
    driven = Driven(policies=policies)
    driven.seen(record("a", warm_for_s=0), record("b"))
    assert driven.shares() == {"a": 0.5, "b": 0.5}
    driven.done(driven.to("a"), REFUSED)
    event = driven.shared[-1]
    assert isinstance(event, EndpointEjected)
    assert event.until == driven.now + 7


def test_a_cluster_without_rng_jitters_in_the_middle() -> None:
    from router.cluster import no_jitter

    assert no_jitter() == 0.5


class Vetoed:
    name = "vetoed"

    def __call__(self, candidate: Candidate, mode: StoreMode) -> Reason | None:
        return Reason.HELD if candidate.record.id == "a" else None


class ByName:
    name = "by_name"
    unit = "letter"
    observed = True

    def raw(self, candidate: Candidate) -> float | None:
        return float(ord(candidate.record.id))

    def __call__(self, candidates: Sequence[Candidate]) -> list[float | None]:
        return [1.0 if candidate.record.id == "c" else 0.5 for candidate in candidates]


class Last:
    def __init__(self, candidates: Sequence[Choosable], weights: Sequence[float], turn: int) -> None:
        self._last = candidates[-1]

    def draw(self, rng: Rng) -> list[Choosable]:
        return [self._last]


def test_filters_scorers_and_pickers_are_plug_ins() -> None:
    now = 1.0
    cluster = Cluster(Policies(), [ModelPolicy("m")], now, filters=[Vetoed()], scorers=[(ByName(), 2.0)], picker=Last)
    for id_ in "abc":
        cluster.apply(EndpointSeen(record(id_, state=State.COLD), now), now)
    route = cluster.route("m")
    assert route is not None
    rows = cluster.explain(route, now, no_jitter).rows
    assert [(row.endpoint, row.weight, row.reason) for row in rows] == [
        ("c", 2.0 * 0.1, None),
        ("b", 1.0 * 0.1, None),
        ("a", 0.0, Reason.HELD),
    ]
    attempt = cluster.choose(route, now, no_jitter)
    assert isinstance(attempt, Attempt)
    assert attempt.endpoint.id == "c"
