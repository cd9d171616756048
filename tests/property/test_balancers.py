"""What every balancer must hold, and what each of them promises."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from math import ceil

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from router.cluster import Cluster
from router.endpoint import Endpoint
from router.model import EndpointHeld, EndpointSeen, PeerObserved, State
from router.outcomes import AttemptResult
from router.policy import BalancerName, KeyPolicy, ModelPolicy, Policies
from router.routes import Attempt, NoCandidate, Route
from tests.support.fleet import observation, only, record

NOW = 5.0
KEYED_POLICY = KeyPolicy(header="x-key")
LOADS = st.lists(st.integers(0, 6), min_size=1, max_size=9)
NUMBERS = st.floats(0, 1, exclude_max=True)
EACH = pytest.mark.parametrize("name", list(BalancerName))


def cluster_of(ids: list[str], name: BalancerName, *, factor: float = 1.25, most: int | None = None) -> Cluster:
    key = KeyPolicy(header="x-key", load_factor=factor) if name is BalancerName.KEYED else None
    made = Cluster(Policies(requests_per_endpoint=most), [ModelPolicy("m", balancer=name, key=key)], NOW)
    for id_ in ids:
        made.apply(EndpointSeen(record(id_), NOW), NOW)
    return made


def named(count: int) -> list[str]:
    return [f"e{index}" for index in range(count)]


def route_of(made: Cluster) -> Route:
    route = made.route("m")
    assert route is not None
    return route


def take(made: Cluster, rng: random.Random, key: bytes | None = None, tried: Endpoint | None = None) -> Attempt:
    picked = made.choose(route_of(made), NOW, rng.random, tried, key)
    assert isinstance(picked, Attempt), picked
    return picked


def where(made: Cluster, keys: list[bytes]) -> dict[bytes, str]:
    """Return which endpoint each key leads to with nothing in flight."""
    out = {}
    for key in keys:
        attempt = take(made, random.Random(1), key)
        out[key] = attempt.endpoint.id
        made.done(attempt, AttemptResult.CANCELLED, NOW)
    return out


@EACH
@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["open", "open", "open", "cold", "held", "refused", "busy", "full", "gone cold"]),
            st.integers(0, 2),
        ),
        min_size=1,
        max_size=7,
    ),
    st.booleans(),
    st.sampled_from([None, b"a", b"b", b"c"]),
    st.integers(0, 1 << 20),
)
def test_nobody_is_picked_who_may_not_be_and_every_place_is_given_back_once(
    name: BalancerName, members: list[tuple[str, int]], again: bool, key: bytes | None, seed: int
) -> None:
    made = cluster_of(named(len(members)), name, most=3)
    route, rng = route_of(made), random.Random(seed)
    made.done(take(made, rng, key), AttemptResult.CANCELLED, NOW)  # makes the table, before what follows
    for index, (fate, load) in enumerate(members):
        endpoint = made.endpoints[f"e{index}"]
        endpoint.in_flight = 3 if fate == "full" else load
        if fate == "held":
            made.apply(EndpointHeld(endpoint.id, True, NOW), NOW)
        elif fate in ("cold", "gone cold"):
            made.apply(EndpointSeen(record(endpoint.id, state=State.LOADING), NOW), NOW)
        elif fate in ("refused", "busy"):
            endpoint.in_flight += 1
            result = AttemptResult.CONNECT_REFUSED if fate == "refused" else AttemptResult.BUSY
            made.done(Attempt(only(endpoint), route, NOW), result, NOW + 1e-9)
    if again:
        route.expire()
    before = {id_: endpoint.in_flight for id_, endpoint in made.endpoints.items()}
    tried = made.endpoints["e0"] if rng.random() < 0.3 else None
    fit = {
        f"e{index}"
        for index, (fate, _) in enumerate(members)
        if fate == "open" and not (tried is not None and index == 0)
    }
    busy = {f"e{index}" for index, (fate, _) in enumerate(members) if fate == "busy" and (tried is None or index)}
    for _ in range(12):
        picked = made.choose(route, NOW + 0.001, rng.random, tried, key)
        if isinstance(picked, NoCandidate):
            assert not fit
            assert not busy
            return
        assert picked.endpoint.id in (fit or busy)
        assert picked.endpoint.in_flight == before[picked.endpoint.id] + 1
        made.done(picked, AttemptResult.CANCELLED, NOW + 0.001)
        made.done(picked, AttemptResult.CANCELLED, NOW + 0.001)
        assert {id_: endpoint.in_flight for id_, endpoint in made.endpoints.items()} == before


@EACH
@settings(max_examples=60)
@given(LOADS, st.data(), st.sampled_from([None, b"a", b"b"]), st.lists(NUMBERS, min_size=2, max_size=2), st.booleans())
def test_what_is_explained_is_what_is_done(
    name: BalancerName, loads: list[int], data: st.DataObject, key: bytes | None, numbers: list[float], carefully: bool
) -> None:
    made = cluster_of(named(len(loads)), name)
    route = route_of(made)
    for _ in range(data.draw(st.integers(1, 3))):
        made.done(take(made, random.Random(3), key), AttemptResult.CANCELLED, NOW)
    for endpoint, load in zip(made.endpoints.values(), loads, strict=True):
        only(endpoint).latency.ewma_ms = data.draw(st.sampled_from([0.0, 1.0, 7.5, 200.0]))
        seen = observation(endpoint.id, load, data.draw(st.sampled_from([None, 15.0])), (), 0, 0)
        made.apply(PeerObserved(1, (seen,), NOW), NOW)
        endpoint.in_flight = data.draw(st.integers(0, 2))
        endpoint.picked_at = data.draw(st.sampled_from([NOW - 2, NOW - 1]))
    route.expire()
    made.done(take(made, random.Random(4), key), AttemptResult.CANCELLED, NOW)  # makes the table
    explanation = made.explain(route, NOW, itertools.cycle(numbers).__next__, key)
    assert explanation.balancer == name
    assert sum(row.share for row in explanation.rows) == pytest.approx(1)
    assert explanation.draw is not None
    if carefully:
        route.due = float("-inf")
    picked = made.choose(route, NOW, itertools.cycle(numbers).__next__, None, key)
    assert isinstance(picked, Attempt)
    assert picked.endpoint.id == explanation.draw.winner
    assert {row.endpoint: row.share for row in explanation.rows}[picked.endpoint.id] > 0


@given(LOADS, st.integers(0, 1 << 20), st.integers(0, 30))
def test_least_request_picks_a_minimum(loads: list[int], seed: int, more: int) -> None:
    made = cluster_of(named(len(loads)), BalancerName.LEAST_REQUEST)
    rng = random.Random(seed)
    for endpoint, load in zip(made.endpoints.values(), loads, strict=True):
        seen = observation(endpoint.id, load // 2, None, (), 0, 0)
        made.apply(PeerObserved(1, (seen,), NOW), NOW)
        endpoint.in_flight = load - load // 2
    for _ in range(more):
        least = min(endpoint.in_flight + endpoint.peers_in_flight for endpoint in made.endpoints.values())
        endpoint = take(made, rng).endpoint
        assert endpoint.in_flight + endpoint.peers_in_flight == least + 1


@given(st.integers(1, 10), st.integers(1, 60), st.integers(0, 1 << 20))
def test_turns_are_even_whoever_is_slow(count: int, picks: int, seed: int) -> None:
    made = cluster_of(named(count), BalancerName.ROUND_ROBIN)
    rng = random.Random(seed)
    order = [take(made, rng).endpoint.id for _ in range(picks)]  # none of them ends
    counts = Counter(order)
    assert max(counts.values()) - min(counts[id_] for id_ in named(count)) <= 1
    for first, then in itertools.pairwise(order):
        assert then == f"e{(int(first[1:]) + 1) % count}"


@given(st.integers(2, 10), st.integers(0, 9), st.integers(0, 1 << 20))
def test_turns_go_on_behind_who_came_last_when_somebody_joins_or_leaves(count: int, at: int, seed: int) -> None:
    at %= count
    made = cluster_of(named(count), BalancerName.ROUND_ROBIN)
    rng = random.Random(seed)
    while take(made, rng).endpoint.id != f"e{at}":
        pass
    made.apply(EndpointHeld(f"e{at}", True, NOW), NOW)
    made.apply(EndpointSeen(record(f"e{at}x"), NOW), NOW)  # in order it stands right behind
    route_of(made).expire()
    assert take(made, rng).endpoint.id == f"e{at}x"
    assert take(made, rng).endpoint.id == f"e{(at + 1) % count}"


@pytest.mark.parametrize("name", [BalancerName.TWO_CHOICE, BalancerName.PEAK_EWMA])
@given(LOADS, st.integers(0, 1 << 20))
def test_the_worse_of_two_is_never_picked(name: BalancerName, loads: list[int], seed: int) -> None:
    """So the worst of all never is, where there is exactly one."""
    made = cluster_of(named(len(loads)), name)
    for endpoint, load in zip(made.endpoints.values(), loads, strict=True):
        only(endpoint).latency.ewma_ms = 5.0
        endpoint.in_flight = load
    assume(len(loads) > 1)
    assume(loads.count(max(loads)) == 1)
    worst = f"e{loads.index(max(loads))}"
    rng = random.Random(seed)
    for _ in range(20):
        attempt = take(made, rng)
        assert attempt.endpoint.id != worst
        made.done(attempt, AttemptResult.CANCELLED, NOW)


@pytest.mark.parametrize("name", [BalancerName.RANDOM, BalancerName.TWO_CHOICE, BalancerName.LEAST_REQUEST])
def test_where_all_are_alike_each_is_as_likely(name: BalancerName) -> None:
    made = cluster_of(named(5), name)
    rng = random.Random(9)
    counts: Counter[str] = Counter()
    for _ in range(5000):
        attempt = take(made, rng)
        counts[attempt.endpoint.id] += 1
        made.done(attempt, AttemptResult.CANCELLED, NOW)
    assert all(abs(count - 1000) < 5 * 29 for count in counts.values())  # five standard deviations
    assert len(counts) == 5


KEYS = st.lists(st.binary(min_size=1, max_size=12), min_size=1, max_size=40, unique=True)


@settings(max_examples=50)
@given(KEYS, st.sets(st.integers(0, 30), min_size=2, max_size=10), st.data())
def test_who_leaves_takes_its_own_keys_and_who_comes_gets_only_its_own(
    keys: list[bytes], numbers: set[int], data: st.DataObject
) -> None:
    ids = sorted(f"w{number}" for number in numbers)
    leaver = data.draw(st.sampled_from(ids))
    all_of_them = where(cluster_of(ids, BalancerName.KEYED), keys)
    without = where(cluster_of([id_ for id_ in ids if id_ != leaver], BalancerName.KEYED), keys)
    for key in keys:
        assert all_of_them[key] == (leaver if all_of_them[key] == leaver else without[key])
    changing = cluster_of(ids, BalancerName.KEYED)
    assert where(changing, keys) == all_of_them
    changing.apply(EndpointHeld(leaver, True, NOW), NOW)
    assert where(changing, keys) == without
    changing.apply(EndpointHeld(leaver, False, NOW), NOW)
    route_of(changing).expire()
    assert where(changing, keys) == all_of_them


def test_keys_spread_evenly_and_the_same_on_every_machine() -> None:
    keys = [b"session-%d" % number for number in range(4000)]
    found = where(cluster_of(named(8), BalancerName.KEYED), keys)
    counts = Counter(found.values())
    assert all(abs(count - 500) < 5 * 21 for count in counts.values())
    assert [found[key] for key in keys[:8]] == ["e5", "e7", "e0", "e3", "e4", "e4", "e6", "e3"]


@settings(max_examples=50)
@given(
    st.integers(1, 8),
    st.lists(st.integers(0, 5), min_size=1, max_size=60),
    st.sampled_from([1.0, 1.25, 2.0]),
    st.integers(0, 1 << 20),
)
def test_no_endpoint_takes_more_than_its_share_however_hot_a_key(
    count: int, numbers: list[int], factor: float, seed: int
) -> None:
    made = cluster_of(named(count), BalancerName.KEYED, factor=factor)
    rng = random.Random(seed)
    alone = where(made, [b"%d" % number for number in set(numbers)])
    running: list[Attempt] = []
    for number in numbers:
        key = b"%d" % number
        bound = ceil(factor * (len(running) + 1) / count)
        preferred = made.endpoints[alone[key]]
        has_room = preferred.in_flight + 1 <= bound
        attempt = take(made, rng, key)
        assert attempt.endpoint.in_flight <= bound
        assert (attempt.endpoint is preferred) is has_room
        running.append(attempt)
        if rng.random() < 0.3:
            made.done(running.pop(rng.randrange(len(running))), AttemptResult.CANCELLED, NOW)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.lists(NUMBERS, min_size=2, max_size=2))
def test_without_a_key_it_is_as_warm(loads: list[int], numbers: list[float]) -> None:
    picked = []
    for name in (BalancerName.KEYED, BalancerName.WARM):
        made = cluster_of(named(len(loads)), name)
        take(made, random.Random(1)).endpoint.in_flight -= 1
        for endpoint, load in zip(made.endpoints.values(), loads, strict=True):
            only(endpoint).latency.ewma_ms = 3.0
            endpoint.in_flight = load
        attempt = made.choose(route_of(made), NOW, itertools.cycle(numbers).__next__)
        assert isinstance(attempt, Attempt)
        picked.append(attempt.endpoint.id)
    assert picked[0] == picked[1]


@settings(max_examples=30)
@given(st.integers(2, 7), st.binary(min_size=1, max_size=8))
def test_a_retry_goes_to_the_key_s_next_choice(count: int, key: bytes) -> None:
    made = cluster_of(named(count), BalancerName.KEYED)
    first = take(made, random.Random(1), key)
    second = take(made, random.Random(2), key, first.endpoint)
    assert second.endpoint is not first.endpoint
    others = [id_ for id_ in named(count) if id_ != first.endpoint.id]
    assert second.endpoint.id == where(cluster_of(others, BalancerName.KEYED), [key])[key]
