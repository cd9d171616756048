"""Properties of the weights and of one choice."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from router.cluster import Cluster
from router.model import EndpointRecord, EndpointSeen, PeerObserved
from router.outcomes import AttemptResult
from router.pickers import HandPicker
from router.policy import ModelPolicy, Policies
from router.routes import KEPT_RATIO, Attempt
from router.stats import LogBuckets, SketchWindow
from tests.support.fleet import GIB, observation, only, record

if TYPE_CHECKING:
    from router.protocols import Choosable

RATIO = st.floats(0, 1)
MEMBERS = st.lists(
    st.tuples(RATIO, st.integers(0, 16), st.sampled_from([0.0, 3.0, 50.0]), st.integers(1, 400)),
    min_size=1,
    max_size=8,
)
Member = tuple[float, int, float, int]


def reports(members: list[Member]) -> list[EndpointRecord]:
    return [
        record(f"e{index}", warmth=warmth, free=free * GIB, total=16 * GIB, warm_for_s=warm_for_s)
        for index, (warmth, free, warm_for_s, _) in enumerate(members)
    ]


def cluster_of(records: list[EndpointRecord], members: list[Member]) -> Cluster:
    cluster = Cluster(Policies(), [ModelPolicy("m")], 0.0)
    for each in records:
        cluster.apply(EndpointSeen(each, 0.0), 0.0)
    for index, (_, _, _, ms) in enumerate(members):
        latency = only(cluster.endpoints[f"e{index}"]).latency
        latency.sample(float(ms), 0.0)
        latency.settle(0.0)
    return cluster


def shares(cluster: Cluster) -> dict[str, float]:
    route = cluster.route("m")
    assert route is not None
    return {row.endpoint: row.share for row in cluster.explain(route, 0.0, lambda: 0.5).rows}


def odds(cluster: Cluster) -> dict[str, float]:
    """Return the exact probability that each endpoint is chosen where each of four is drawn for itself.

    The lowest wait wins, the first drawn unless another's is below ``KEPT_RATIO`` of its own. (A table of hands draws
    by the same weights, up to a rounding that differs from table to table: tests/unit/router/test_pickers.py.)
    """
    draw = shares(cluster)
    wait = {id_: only(endpoint).latency.ewma_ms for id_, endpoint in cluster.endpoints.items()}
    out = dict.fromkeys(draw, 0.0)
    for first, p in draw.items():
        better = sorted((id_ for id_ in draw if wait[id_] < KEPT_RATIO * wait[first]), key=lambda id_: wait[id_])
        left = 1.0  # the probability of all that are not among those looked at yet
        for ms in dict.fromkeys(wait[id_] for id_ in better):
            alike = [id_ for id_ in better if wait[id_] == ms]  # of these the first drawn
            share = sum(draw[id_] for id_ in alike)
            some = left**3 - (left - share) ** 3
            for id_ in alike:
                out[id_] += p * some * draw[id_] / share
            left -= share
        out[first] += p * left**3
    return out


@given(MEMBERS)
def test_the_odds_are_those_of_a_law(members: list[Member]) -> None:
    assert abs(sum(odds(cluster_of(reports(members), members)).values()) - 1) < 1e-9


@given(MEMBERS, st.data())
def test_more_free_memory_never_lowers_the_odds(members: list[Member], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(members) - 1))
    more = data.draw(st.integers(members[index][1], 16))
    before = reports(members)
    after = list(before)
    after[index] = replace(before[index], free_memory_bytes=more * GIB)
    id_ = f"e{index}"
    assert odds(cluster_of(after, members))[id_] >= odds(cluster_of(before, members))[id_] - 1e-9


@given(MEMBERS, st.randoms(use_true_random=False))
def test_the_order_of_arrival_never_changes_a_decision(members: list[Member], order: random.Random) -> None:
    records = reports(members)
    shuffled = list(records)
    order.shuffle(shuffled)
    first, second = cluster_of(records, members), cluster_of(shuffled, members)
    assert shares(first) == shares(second)
    picks = []
    for cluster in (first, second):
        rng, route = random.Random(4).random, cluster.route("m")
        assert route is not None
        chosen = [cluster.choose(route, 0.0, rng) for _ in range(30)]
        picks.append([attempt.endpoint.id for attempt in chosen if isinstance(attempt, Attempt)])
    assert picks[0] == picks[1]
    assert len(picks[0]) == 30


@given(MEMBERS, st.data(), st.floats(0, 1, exclude_max=True))
def test_the_choosing_law_is_the_same_wherever_it_stands(
    members: list[Member], data: st.DataObject, number: float
) -> None:
    """The usual choice, the careful one and the explanation take the same endpoint for the same draw."""
    cluster = cluster_of(reports(members), members)
    route = cluster.route("m")
    assert route is not None
    for id_, endpoint in cluster.endpoints.items():
        if data.draw(st.booleans()):
            only(endpoint).latency.ewma_ms = data.draw(st.sampled_from([0.0, 1.0, 7.5, 200.0]))
        endpoint.in_flight = data.draw(st.integers(0, 3))
        endpoint.picked_at = data.draw(st.sampled_from([float("-inf"), -3.0, -2.0, -1.0]))
        if data.draw(st.booleans()):
            seen = observation(id_, data.draw(st.integers(0, 3)), data.draw(st.sampled_from([None, 15.0])), (), 0, 0)
            cluster.apply(PeerObserved(1, (seen,), 0.0), 0.0)
        if data.draw(st.booleans()):
            endpoint.in_flight += 1
            cluster.done(Attempt(only(endpoint), route, 0.0), AttemptResult.BUSY, 0.0, 1.0)

    before = {id_: endpoint.picked_at for id_, endpoint in cluster.endpoints.items()}

    def take(*, carefully: bool) -> str:
        route.due = float("-inf") if carefully else route.due
        attempt = cluster.choose(route, 0.0, lambda: number)
        assert isinstance(attempt, Attempt)
        assert attempt.endpoint.picked_at == 0.0
        attempt.endpoint.in_flight -= 1
        attempt.endpoint.picked_at = before[attempt.endpoint.id]
        return attempt.endpoint.id

    route.expire()
    take(carefully=True)  # makes the table
    open_ = len(route.drawn)
    draw = cluster.explain(route, 0.0, lambda: number).draw
    assert draw is not None
    assert take(carefully=True) == draw.winner
    assert (route.due > 0.0) is (open_ > 0)
    assert take(carefully=False) == draw.winner


@given(MEMBERS)
def test_every_candidate_has_a_share(members: list[Member]) -> None:
    found = shares(cluster_of(reports(members), members))
    assert all(share > 0 for share in found.values())
    assert abs(sum(found.values()) - 1) < 1e-9


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.integers(1, 1 << 30), st.integers(0, 1000))
def test_a_table_of_hands_holds_the_weights_up_to_rounding(weights: list[float], seed: int, turn: int) -> None:
    candidates = [object() for _ in weights]
    picker = HandPicker(cast("list[Choosable]", candidates), weights, turn)
    size, total = len(weights), sum(weights)
    for place in range(4):
        counts = Counter[object](hand[place] for hand in picker.hands)
        for candidate, weight in zip(candidates, weights, strict=True):
            expected = weight / total if total > 0 else 1 / size
            assert abs(counts[candidate] - expected * picker.size) < 2
    assert picker.draw(random.Random(seed).random) in picker.hands


@settings(max_examples=50)
@given(st.lists(st.floats(0.01, 1e6), min_size=1, max_size=300), st.floats(0.01, 1))
def test_quantiles_are_off_by_at_most_the_relative_error(values: list[float], ratio: float) -> None:
    buckets = LogBuckets(0.05)
    sketch = SketchWindow(buckets, 60.0, 6, 0.0)
    sketch.add(((buckets.index(value), 1) for value in values), 0.0)
    estimate = sketch.quantiles((ratio,))
    assert estimate is not None
    rank = max(0, -int(-ratio * len(values) // 1) - 1)
    exact = sorted(values)[min(rank, len(values) - 1)]
    assert abs(estimate[0] - exact) <= exact * 0.05 * (1 + 1e-9)


@settings(max_examples=30)
@given(st.integers(0, 1 << 30))
def test_the_same_seed_and_events_give_the_same_decisions(seed: int) -> None:
    def drive() -> list[str]:
        rng = random.Random(seed)
        cluster = Cluster(Policies(), [ModelPolicy("m")], 0.0, rng=rng.random)
        now, out = 0.0, []
        for step in range(120):
            now += 0.05
            if step % 10 == 0:
                cluster.apply(EndpointSeen(record(f"e{rng.randrange(5)}", warmth=rng.random()), now), now)
            route = cluster.route("m")
            assert route is not None
            attempt = cluster.choose(route, now, rng.random)
            if isinstance(attempt, Attempt):
                out.append(attempt.endpoint.id)
                result = rng.choice([AttemptResult.SUCCESS, AttemptResult.SUCCESS, AttemptResult.RESET])
                cluster.done(attempt, result, now + rng.random() / 50)
            else:
                out.append(attempt.detail)
        return out

    assert drive() == drive()
