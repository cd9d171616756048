"""Prefix affinity: what a prompt's beginning is, whom it leads to, and that nobody is overloaded by it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from math import ceil

import pytest

from router.affinity import HASH_BYTES, HOLDERS, MOST_UNTOLD, Affinity, blocks_of
from router.model import EndpointHeld, PeerObserved, PrefixesSeen, Replica
from router.outcomes import AttemptResult
from router.policy import AffinityPolicy, BalancerName, ModelPolicy, Policies, PolicyError, ShardMode, ShardPolicy
from router.routes import Attempt
from tests.support.fleet import Driven, observation, record

POLICY = AffinityPolicy(block_bytes=4, blocks=4, least_blocks=2)
MODEL = ModelPolicy("m", affinity=POLICY)


def fleet(ids: str = "abcd", policy: AffinityPolicy = POLICY, **fields: object) -> Driven:
    driven = Driven(models=[replace(MODEL, affinity=policy, **fields)])  # type: ignore[arg-type]
    driven.seen(*(record(id_) for id_ in ids))
    return driven


def ask(driven: Driven, prompt: bytes, policy: AffinityPolicy = POLICY) -> Attempt:
    picked = driven.cluster.choose(driven.route(), driven.now, driven.rng, None, blocks_of(prompt, policy))
    assert isinstance(picked, Attempt)
    return picked


def end(driven: Driven, *attempts: Attempt) -> None:
    for attempt in attempts:
        driven.done(attempt, AttemptResult.CANCELLED)


def went(driven: Driven, prompt: bytes) -> str:
    attempt = ask(driven, prompt)
    end(driven, attempt)
    return attempt.endpoint.id


@pytest.mark.parametrize(
    ("prompt", "blocks"),
    [(b"", 0), (b"abcdefg", 0), (b"abcdefgh", 2), (b"abcdefghi", 2), (b"x" * 16, 4), (b"x" * 1000, 4)],
)
def test_whole_blocks_count_from_the_beginning(prompt: bytes, blocks: int) -> None:
    found = blocks_of(prompt, POLICY)
    assert len(found or b"") == blocks * HASH_BYTES


def test_each_block_says_all_before_it() -> None:
    one, other = blocks_of(b"aaaabbbbcccc", POLICY), blocks_of(b"aaaaXbbbcccc", POLICY)
    assert one is not None
    assert other is not None
    assert one[:8] == other[:8]
    assert one[8:16] != other[8:16]
    assert one[16:] != other[16:]
    assert blocks_of(b"aaaabbbb", POLICY) == one[:16]


def test_a_prompt_goes_where_its_beginning_went() -> None:
    driven = fleet()
    for conversation in range(20):
        prompt = b"%08d: a conversation" % conversation
        first = went(driven, prompt)
        assert {went(driven, prompt + b"and so on %d" % turn) for turn in range(10)} == {first}
    assert driven.cluster.affinity.take() == (200, 0, 20)
    assert driven.cluster.affinity.take() == (0, 0, 0)


def test_the_longest_beginning_counts() -> None:
    driven = fleet("ab")
    a = went(driven, b"sameSAME00001111")
    b = "b" if a == "a" else "a"
    route = driven.route()
    assert isinstance(route.balancer, Affinity)
    key = blocks_of(b"sameSAMEelse2222", POLICY)
    assert key is not None
    route.balancer.learn([(key, b, "a")])
    assert went(driven, b"sameSAME00009999") == a
    assert went(driven, b"sameSAMEelse9999") == b
    assert went(driven, b"sameSAMExxxx") == b, "of both, the one that saw it last"


def test_a_short_common_beginning_is_none() -> None:
    driven = fleet()
    assert len({went(driven, b"same%04d" % number) for number in range(40)}) > 1


def test_who_is_out_full_or_tried_is_passed_over() -> None:
    driven = fleet()
    prompt = b"a long beginning"
    first = went(driven, prompt)
    driven.apply(EndpointHeld(first, held=True, at=driven.now))
    second = went(driven, prompt)
    assert second != first
    driven.apply(EndpointHeld(first, held=False, at=driven.now))
    driven.wait(0.2, heard="abcd")
    assert went(driven, prompt) == second, "it saw it last"
    attempt = ask(driven, prompt)
    again = driven.cluster.choose(driven.route(), driven.now, driven.rng, attempt.endpoint, blocks_of(prompt, POLICY))
    assert isinstance(again, Attempt)
    assert again.endpoint.id == first, "it has seen it, too"
    end(driven, attempt, again)


def test_a_successor_under_the_same_id_has_seen_nothing() -> None:
    driven = fleet("ab")
    prompt = b"a long beginning"
    first = went(driven, prompt)
    driven.seen(record(first, epoch="b"))
    driven.wait(0.2, heard="ab")
    driven.cluster.affinity.take()
    went(driven, prompt)
    assert driven.cluster.affinity.take() == (0, 0, 1)


def test_nobody_gets_more_than_its_bound_for_a_prompt_s_sake() -> None:
    """Nine in ten requests have one beginning; each lasts for 40 others."""
    driven = fleet("abcdefgh")
    draw = random.Random(7).random
    running: list[Attempt] = []
    for number in range(4000):
        loads = {id_: one.in_flight for id_, one in driven.cluster.endpoints.items()}
        bound = ceil(POLICY.load_factor * (sum(loads.values()) + 1) / len(loads))
        prompt = b"the hot one %03d" % (number % 7) if draw() < 0.9 else b"rare %05d ......" % number
        attempt = ask(driven, prompt)
        hits, declined, _ = driven.cluster.affinity.take()
        if hits:
            assert loads[attempt.endpoint.id] + 1 <= bound
        elif declined:
            assert max(loads.values()) + 1 > bound
        running.append(attempt)
        if len(running) > 40:
            end(driven, running.pop(int(draw() * len(running))))
    loads = {id_: one.in_flight for id_, one in driven.cluster.endpoints.items()}
    assert max(loads.values()) <= 2 * sum(loads.values()) / len(loads)
    end(driven, *running)


def test_what_siblings_had_a_second_ago_declines_nothing() -> None:
    driven = fleet()
    id_ = went(driven, b"conversation")
    driven.apply(PeerObserved(1, (observation(id_, 3, None, (), 0, 0),), driven.now))
    assert {went(driven, b"conversation") for _ in range(5)} == {id_}
    assert driven.cluster.affinity.take() == (5, 0, 1)


def test_hits_rise_with_affinity_and_load_stays_even() -> None:
    """Conversations of skewed popularity: how often the endpoint has seen the beginning, with affinity and without."""

    def play(*, affinity: bool) -> tuple[float, Counter[str]]:
        driven = fleet("abcdefgh")
        if not affinity:
            driven.cluster.configure(Policies(), [ModelPolicy("m")], driven.now)
        draw = random.Random(3)
        seen: set[tuple[str, int]] = set()
        hits = 0
        counts: Counter[str] = Counter()
        running: list[Attempt] = []
        for _ in range(3000):
            conversation = int(400 * draw.random() ** 2)  # a few are had again and again
            attempt = ask(driven, b"%08d: a conversation" % conversation)
            place = (attempt.endpoint.id, conversation)
            hits += place in seen
            seen.add(place)
            counts[attempt.endpoint.id] += 1
            running.append(attempt)
            if len(running) > 24:
                end(driven, running.pop(draw.randrange(len(running))))
        return hits / 3000, counts

    with_it, loads = play(affinity=True)
    without, _ = play(affinity=False)
    assert with_it > without + 0.2
    assert max(loads.values()) < 1.25 * 3000 / 8


def test_what_is_remembered_is_bounded_and_the_oldest_ends_go_first() -> None:
    policy = replace(POLICY, remembered=8)
    driven = fleet(policy=policy)
    went(driven, b"1111222233334444")
    went(driven, b"aaaabbbbccccdddd")
    driven.cluster.affinity.take()
    went(driven, b"xxxxyyyy")  # takes the place of the first one's longest ends
    assert driven.cluster.affinity.take() == (0, 0, 1)
    went(driven, b"11112222....")
    assert driven.cluster.affinity.take() == (1, 0, 0)
    route = driven.route()
    assert isinstance(route.balancer, Affinity)
    assert len(route.balancer._known) == 8
    for number in range(10):
        route.balancer.learn([(blocks_of(b"aaaabbbb", POLICY) or b"", f"e{number}", "")])
    assert {len(holders) for holders in route.balancer._known.values()} <= set(range(1, HOLDERS + 1))


def test_siblings_hear_of_what_is_new() -> None:
    one, other = fleet(), fleet()
    prompt = b"a long beginning"
    first = went(one, prompt)
    (event,) = one.cluster.take_prefixes()
    key = blocks_of(prompt, POLICY)
    assert event == PrefixesSeen("m", "", "http", None, ((key, first, "a"),))  # type: ignore[arg-type]
    went(one, prompt)
    assert one.cluster.take_prefixes() == []
    other.apply(event)
    assert {went(other, prompt) for _ in range(10)} == {first}
    assert other.cluster.take_prefixes() == [], "they know already"
    for number in range(MOST_UNTOLD + 20):
        went(one, b"%08d: a beginning" % number)
    (event,) = one.cluster.take_prefixes()
    assert len(event.seen) == MOST_UNTOLD
    for odd in (replace(event, model="x"), replace(event, shard=3), replace(event, seen=((b"x", "a", "a"),))):
        other.apply(odd)


def test_affinity_is_explained_and_explaining_changes_nothing() -> None:
    driven = fleet()
    prompt = b"a long beginning"
    first = went(driven, prompt)
    driven.cluster.take_prefixes()
    driven.cluster.affinity.take()
    key = blocks_of(prompt + b"....", POLICY)
    explained = driven.cluster.explain(driven.route(), driven.now, driven.rng, key)
    assert explained.law.startswith("an endpoint that has seen the prompt's beginning, below its bound; else weight = ")
    row = explained.rows[0]
    assert (row.endpoint, row.share) == (first, 1.0)
    terms = {term.name: term.raw for term in row.terms}
    assert (terms["prefix"], terms["in_flight"], terms["bound"]) == (4, 0, 1)
    assert explained.draw is not None
    assert explained.draw.why == "it has seen 4 of 4 blocks of the prompt; 1 in flight with this one, at most 1"
    unseen = driven.cluster.explain(driven.route(), driven.now, driven.rng, blocks_of(b"something else", POLICY))
    assert unseen.rows[0].share == 0.25
    assert driven.cluster.explain(driven.route(), driven.now, driven.rng).rows[0].share == 0.25
    assert driven.cluster.affinity.take() == (0, 0, 0)
    assert driven.cluster.take_prefixes() == []


@pytest.mark.parametrize("name", [name for name in BalancerName if name is not BalancerName.KEYED])
def test_it_goes_with_any_balancer(name: BalancerName) -> None:
    driven = fleet(balancer=name)
    assert {went(driven, b"a long beginning") for _ in range(10)} < set("abcd")
    assert driven.route().balancer.name == name.value


def test_each_shard_has_its_own() -> None:
    driven = Driven(models=[replace(MODEL, shards=ShardPolicy(ShardMode.KEYED, 2))])
    for number, id_ in enumerate("abcd"):
        driven.seen(record(id_, replicas=(Replica("m", "1", shard=number % 2, shard_count=2),)))
    key = blocks_of(b"a long beginning", POLICY)
    for route in driven.route().shards:
        for _ in range(5):
            attempt = driven.cluster.choose(route, driven.now, driven.rng, None, key)
            assert isinstance(attempt, Attempt)
            end(driven, attempt)
    assert driven.cluster.affinity.take() == (8, 0, 2)
    assert {(event.shard, len(event.seen)) for event in driven.cluster.take_prefixes()} == {(0, 1), (1, 1)}


def test_requests_of_a_shape_class_know_what_all_know() -> None:
    driven = fleet()
    key = blocks_of(b"a long beginning", POLICY)
    first = went(driven, b"a long beginning")
    driven.cluster.take_prefixes()
    shaped = driven.cluster.shaped_route(driven.route(), "b1", driven.now)
    picked = driven.cluster.choose(shaped, driven.now, driven.rng, None, key)
    assert isinstance(picked, Attempt)
    assert picked.endpoint.id == first
    end(driven, picked)
    other = driven.cluster.choose(shaped, driven.now, driven.rng, None, blocks_of(b"another beginning", POLICY))
    assert isinstance(other, Attempt)
    end(driven, other)
    (event,) = driven.cluster.take_prefixes()
    assert [id_ for _, id_, _ in event.seen] == [other.endpoint.id]
    assert went(driven, b"another beginning") == other.endpoint.id


def test_another_configuration_begins_anew_and_none_costs_nothing() -> None:
    driven = fleet()
    went(driven, b"a long beginning")
    before = driven.route().balancer
    driven.cluster.configure(Policies(), [MODEL], driven.now)
    assert driven.route().balancer is before
    driven.cluster.configure(Policies(), [ModelPolicy("m")], driven.now)
    assert driven.route().table is None
    driven.attempt()
    assert driven.route().table is not None
    assert driven.cluster.take_prefixes() == []


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"block_bytes": 0}, "affinity.block_bytes: 0: must be between 1 and 65536"),
        ({"blocks": 257}, "affinity.blocks: 257: must be between 1 and 256"),
        ({"blocks": 4, "least_blocks": 5}, "affinity.least_blocks: 5: must be between 1 and blocks (4)"),
        ({"load_factor": 0.5}, "affinity.load_factor: 0.5: must be 1 or more"),
        ({"remembered": 0}, "affinity.remembered: 0: must be between 1 and 1048576"),
        ({"body_bytes": 0}, "affinity.body_bytes: 0: must be between 1 and 67108864"),
        ({"input": ""}, "affinity.input: '': must be the name of an input, 1 to 128 characters"),
    ],
)
def test_policies_that_make_no_sense(fields: dict[str, object], text: str) -> None:
    with pytest.raises(PolicyError) as refused:
        AffinityPolicy(**fields)  # type: ignore[arg-type]
    assert str(refused.value) == text
