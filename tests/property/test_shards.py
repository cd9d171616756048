"""Shards for any keys and any changes: what adding one moves, and that no incomplete group is ever picked."""

from __future__ import annotations

from math import sqrt

from hypothesis import given, settings
from hypothesis import strategies as st

from router.groups import ShardMap
from router.model import EndpointHeld, Replica, State
from router.outcomes import AttemptResult
from router.policy import ModelPolicy, ShardMode, ShardPolicy
from router.routes import Attempt
from tests.support.fleet import Driven, record

KEYS = 1000


@settings(max_examples=30)
@given(count=st.integers(1, 24), salt=st.integers(0, 10**6))
def test_one_shard_more_takes_its_part_of_the_keys_and_moves_no_other(count: int, salt: int) -> None:
    before, after = ShardMap(count), ShardMap(count + 1)
    keys = [b"%d/%d" % (salt, number) for number in range(KEYS)]
    moved = [key for key in keys if before.shard_of(key) != after.shard_of(key)]
    assert all(after.shard_of(key) == count for key in moved)
    part = KEYS / (count + 1)
    assert abs(len(moved) - part) <= 6 * sqrt(part)  # more than six standard deviations: once in a billion


@settings(max_examples=30)
@given(count=st.integers(2, 24), salt=st.integers(0, 10**6))
def test_keys_spread_evenly(count: int, salt: int) -> None:
    shards = ShardMap(count)
    found = [shards.shard_of(b"%d/%d" % (salt, number)) for number in range(KEYS)]
    part = KEYS / count
    assert all(abs(found.count(shard) - part) <= 7 * sqrt(part) for shard in range(count))


SHARDS = 3
PLACES = st.tuples(
    st.integers(0, SHARDS - 1),
    st.sampled_from(["g", "h"]),
    st.integers(0, 1),
    st.sampled_from([State.WARM, State.WARM, State.WARM, State.LOADING, State.DRAINING]),
)
"""Shard, group, generation and state that an endpoint reports."""
BEGIN = [[(number % SHARDS, "gh"[number // SHARDS], 0, State.WARM)] for number in range(2 * SHARDS)]
"""Two complete groups."""
HELD = PLACES.map(lambda one: [one]) | st.lists(PLACES, max_size=3, unique_by=lambda one: one[0])
STEP = st.tuples(st.integers(0, 2 * SHARDS), st.none() | st.booleans() | HELD | st.sampled_from(BEGIN))
"""An endpoint, and what becomes of it: gone, held or not, or what it holds."""


def complete(held: dict[str, list[tuple[int, str, int, State]]], out: set[str], group: str, generation: int) -> bool:
    """Say from scratch whether one group can answer: each shard at one fit endpoint, the entry's warm once at all."""
    for shard in range(SHARDS):
        there = [
            (id_, state)
            for id_, places in held.items()
            for place, name, of, state in places
            if (place, name, of) == (shard, group, generation) and len(places) < SHARDS
        ]
        fit = [id_ for id_, state in there if state is State.WARM and id_ not in out]
        warm = [id_ for id_, state in there if state is State.WARM]
        if len(fit) != 1 or (shard == 0 and len(warm) != 1):
            return False
    return True


@given(steps=st.lists(STEP, min_size=2, max_size=20))
def test_who_is_picked_belongs_to_a_group_that_is_complete(steps: list[tuple[int, object]]) -> None:
    driven = Driven(models=[ModelPolicy("m", shards=ShardPolicy(ShardMode.TENSOR, SHARDS))])
    held: dict[str, list[tuple[int, str, int, State]]] = {}
    out: set[str] = set()
    for number, change in (*enumerate(BEGIN), *steps):
        id_ = f"e{number}"
        if change is None:
            driven.gone(id_)
            held.pop(id_, None)
        elif isinstance(change, bool):
            driven.apply(EndpointHeld(id_, held=change, at=driven.now))
            (out.add if change else out.discard)(id_)
        else:
            assert isinstance(change, list)
            held[id_] = change
            replicas = tuple(
                Replica("m", "1", shard, SHARDS, state, generation=generation, group=group)
                for shard, group, generation, state in change
            )
            driven.seen(record(id_, replicas=replicas))
        expected = {
            id_
            for id_, places in held.items()
            for shard, group, generation, state in places
            if len(places) < SHARDS
            and (shard, state) == (0, State.WARM)
            and id_ not in out
            and complete(held, out, group, generation)
        }
        expected |= {  # a group by themselves
            id_
            for id_, places in held.items()
            if len(places) == SHARDS
            and id_ not in out
            and {(generation, state) for _, _, generation, state in places} <= {(0, State.WARM), (1, State.WARM)}
            and len({generation for _, _, generation, _ in places}) == 1
        }
        route = driven.cluster.route("m")
        assert route is not None
        rows = driven.cluster.explain(route, driven.now, driven.rng).rows
        assert {row.endpoint for row in rows if row.reason is None} == expected
        picked = driven.choose(route=route)
        assert isinstance(picked, Attempt) is bool(expected)
        if isinstance(picked, Attempt):
            assert picked.endpoint.id in expected
            driven.done(picked, AttemptResult.CANCELLED)
