"""How each balancer picks, what an explanation says of it, and that it changes without losing anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from router import keyed
from router.balancers import balancer_for
from router.balancing import Warm
from router.cluster import Cluster
from router.explain import Explanation
from router.fits import Anyone
from router.keyed import Keyed, hash_of
from router.model import EndpointHeld, EndpointSeen, PeerObserved, StoreChanged, StoreMode
from router.outcomes import AttemptResult
from router.pickers import mixed
from router.policy import BalancerName, KeyPolicy, ModelPolicy, Policies
from router.protocols import Choosable, Rng
from router.routes import Attempt
from tests.support.fleet import Driven, observation, only, record


def driven(name: BalancerName, *ids: str, policies: Policies | None = None) -> Driven:
    key = KeyPolicy(header="x-key") if name is BalancerName.KEYED else None
    made = Driven(policies=policies, models=[ModelPolicy("m", balancer=name, key=key)])
    made.seen(*(record(id_) for id_ in ids))
    return made


def load(made: Driven, **loads: int) -> None:
    for id_, count in loads.items():
        made.cluster.endpoints[id_].in_flight = count


def explain(made: Driven, *numbers: float, key: bytes | None = None) -> Explanation:
    rng: Iterator[float] = iter(numbers)
    return made.cluster.explain(made.route(), made.now, rng.__next__, key)


def why(explanation: Explanation) -> tuple[tuple[str, ...], str, str]:
    draw = explanation.draw
    assert draw is not None
    return draw.drawn, draw.winner, draw.why


@pytest.mark.parametrize("name", list(BalancerName))
def test_each_has_its_name_and_says_what_it_goes_by(name: BalancerName) -> None:
    made = balancer_for(ModelPolicy("m", balancer=name))
    assert made.name == made.twin().name == name
    assert made.goes_by
    made.arrange([], [])
    assert made.pick(Anyone(), lambda: 0.0, None) is None
    assert made.pick(Anyone(), lambda: 0.0, b"key") is None
    assert made.sample(Anyone(), lambda: 0.0, b"key") is None
    assert (made.shares(None), made.shares(b"key"), made.measures(None), made.measures(b"key")) == ([], [], [], [])


def test_only_the_default_has_a_table_to_draw_of_by_hand() -> None:
    for name in BalancerName:
        made = driven(name, "a", "b")
        made.attempt()
        assert (made.route().table is not None) is (name is BalancerName.WARM)


def test_turns() -> None:
    made = driven(BalancerName.ROUND_ROBIN, "a", "b", "c")
    explanation = explain(made, 0.4)
    assert explanation.law == "round_robin: each in its turn, in order of endpoint id"
    assert why(explanation) == (("b",), "b", "drawn, as it is the first")
    assert explanation.rows[0].terms == ()
    first = made.attempt().endpoint.id
    then = {"a": "b", "b": "c", "c": "a"}[first]
    explanation = explain(made)
    assert why(explanation) == ((then,), then, "the next in turn")
    turns = {row.endpoint: row.terms[0] for row in explanation.rows}
    assert {id_: term.raw for id_, term in turns.items()}[then] == 1.0
    term = turns[first]
    assert (term.name, term.unit, term.raw) == ("turn", "place", 3.0)
    assert (term.score, term.coefficient, term.contribution, term.unknown) == (None, None, None, False)
    assert [(row.weight, row.freshness, row.ramp, row.share) for row in explanation.rows] == [(1, 1, 1, 1 / 3)] * 3
    assert made.attempt().endpoint.id == then  # the explanations took nobody's turn


def test_at_random() -> None:
    made = driven(BalancerName.RANDOM, "a", "b")
    assert why(explain(made, 0.6)) == (("b",), "b", "drawn at random")
    assert explain(made, 0.6).law == "random: one at random, each as likely"


def test_the_fewest_in_flight() -> None:
    made = driven(BalancerName.LEAST_REQUEST, "a", "b", "c")
    load(made, a=2, b=1, c=1)
    made.apply(PeerObserved(1, (observation("b", 3, None, (), 0, 0),), made.now))
    explanation = explain(made, 0.9)
    assert why(explanation) == (("c",), "c", "the fewest in flight: 1")
    assert [(row.endpoint, row.share, row.terms[0].raw) for row in explanation.rows] == [
        ("c", 1.0, 1.0),
        ("a", 0.0, 2.0),
        ("b", 0.0, 4.0),
    ]
    load(made, c=2)
    assert why(explain(made, 0.9)) == (("c",), "c", "the fewest in flight: 2, as 1 more: drawn of them")
    assert [row.share for row in explain(made, 0.9).rows] == [0.5, 0.5, 0.0]


def test_two_by_what_is_in_flight() -> None:
    made = driven(BalancerName.TWO_CHOICE, "a", "b", "c")
    load(made, a=2, b=1, c=2)
    assert why(explain(made, 0.1, 0.5)) == (
        ("a", "b"),
        "b",
        "the one with fewer in flight wins; a: 3 in flight with this one; b: 2 in flight with this one",
    )
    # whoever was drawn first is not drawn again
    assert why(explain(made, 0.9, 0.9, 0.95, 0.0)) == (
        ("c", "a"),
        "c",
        (
            "the first drawn wins: the other has no fewer in flight; "
            "c: 3 in flight with this one; a: 3 in flight with this one"
        ),
    )
    assert [term.name for term in explain(made, 0.1, 0.5).rows[0].terms] == ["in_flight"]


def test_two_of_one() -> None:
    made = driven(BalancerName.TWO_CHOICE, "a")
    assert why(explain(made, 0.5)) == (("a",), "a", "nobody else was drawn; a: 1 in flight with this one")
    assert made.attempt().endpoint.id == "a"


def test_two_by_wait() -> None:
    made = driven(BalancerName.PEAK_EWMA, "a", "b", "c")
    for id_, ms in (("a", 10.0), ("b", 30.0)):
        only(made.cluster.endpoints[id_]).latency.ewma_ms = ms
    load(made, a=3)
    explanation = explain(made, 0.0, 0.5)
    assert why(explanation) == (
        ("a", "b"),
        "b",
        (
            "the lowest expected wait wins; a: 10 ms x 4 in flight with this one = 40 ms; "
            "b: 30 ms x 1 in flight with this one = 30 ms"
        ),
    )
    waits = {row.endpoint: row.terms[0] for row in explanation.rows}
    assert {id_: (term.name, term.unit, term.raw) for id_, term in waits.items()} == {
        "a": ("expected_wait", "ms", 40.0),
        "b": ("expected_wait", "ms", 30.0),
        "c": ("expected_wait", "ms", 20.0),  # unknown: the median
    }


def test_by_key() -> None:
    made = driven(BalancerName.KEYED, "a", "b", "c")
    order = sorted("abc", key=lambda id_: mixed(hash_of(b"k") ^ hash_of(id_.encode())), reverse=True)
    first, second, third = order
    explanation = explain(made, key=b"k")
    assert explanation.law == "keyed: the first endpoint of those that the key ranks that is below its bound"
    text = "number 1 of those that the key ranks; 1 in flight with this one, at most 1"
    assert why(explanation) == ((first,), first, text)
    assert [row.share for row in explanation.rows] == [1.0, 0.0, 0.0]
    load(made, **{first: 2})
    explanation = explain(made, key=b"k")
    text = "number 2 of those that the key ranks; 1 in flight with this one, at most 2"
    assert why(explanation) == ((second,), second, text)
    terms = {row.endpoint: [(term.name, term.raw) for term in row.terms] for row in explanation.rows}
    assert terms == {
        first: [("rank", 1.0), ("in_flight", 2.0), ("bound", 2.0), ("own_in_flight", 2.0), ("own_bound", 2.0)],
        second: [("rank", 2.0), ("in_flight", 0.0), ("bound", 2.0), ("own_in_flight", 0.0), ("own_bound", 2.0)],
        third: [("rank", 3.0), ("in_flight", 0.0), ("bound", 2.0), ("own_in_flight", 0.0), ("own_bound", 2.0)],
    }


def siblings(made: Driven, **loads: int) -> None:
    made.apply(
        PeerObserved(1, tuple(observation(id_, count, None, (), 0, 0) for id_, count in loads.items()), made.now)
    )


def test_what_siblings_had_a_second_ago_takes_no_key_s_room_away() -> None:
    made = driven(BalancerName.KEYED, "a", "b", "c")
    first, *_ = sorted("abc", key=lambda id_: mixed(hash_of(b"k") ^ hash_of(id_.encode())), reverse=True)
    siblings(made, **{first: 9})
    picked = made.cluster.choose(made.route(), made.now, made.rng, None, b"k")
    assert isinstance(picked, Attempt)
    assert picked.endpoint.id == first
    load(made, **{first: 1, "a" if first != "a" else "b": 4})
    explanation = explain(made, key=b"k")
    text = "number 1 of those that the key ranks; 2 in flight of the process that decides with this one, at most 3"
    assert why(explanation) == ((first,), first, text)


def test_what_siblings_have_elsewhere_gives_a_key_room() -> None:
    """Many here, but few among all: with many processes each has so little in flight that its mean says nothing."""
    made = driven(BalancerName.KEYED, "a", "b", "c")
    order = sorted("abc", key=lambda id_: mixed(hash_of(b"k") ^ hash_of(id_.encode())), reverse=True)
    siblings(made, **dict.fromkeys(order[1:], 4))
    load(made, **{order[0]: 3})
    text = "number 1 of those that the key ranks; 4 in flight with this one, at most 5"
    assert why(explain(made, key=b"k")) == ((order[0],), order[0], text)
    load(made, **{order[0]: 7})  # too many here and among all
    assert why(explain(made, key=b"k"))[1] == order[1]


def test_without_a_key_the_law_is_the_default_one() -> None:
    made = driven(BalancerName.KEYED, "a", "b")
    explanation = explain(made, 0.1, 0.9)
    assert explanation.balancer == "keyed"
    assert explanation.law.startswith("without a key: weight = freshness x ramp x (0.4 x warmth")
    assert [term.name for term in explanation.rows[0].terms] == ["warmth", "free_memory", "speed"]
    assert why(explanation)[2].startswith(
        "the first drawn wins: no other's expected wait is lower by more than a tenth; "
    )
    made.apply(StoreChanged(StoreMode.UNIFORM, made.now))
    assert explain(made, 0.1, 0.9).law == "without a key: weight = 1 for each (nothing known to go by)"


def test_where_nobody_who_is_left_is_below_the_bound_the_key_s_first_choice_takes_it() -> None:
    made = driven(BalancerName.KEYED, "a", "b")
    first = made.cluster.choose(made.route(), made.now, made.rng, None, b"k")
    assert isinstance(first, Attempt)
    (other,) = {"a", "b"} - {first.endpoint.id}
    made.apply(EndpointHeld(other, True, made.now))  # and the table still has it
    load(made, **{first.endpoint.id: 7, other: 0})
    again = made.cluster.choose(made.route(), made.now, made.rng, None, b"k")
    assert isinstance(again, Attempt)
    assert again.endpoint is first.endpoint
    made.apply(EndpointHeld(other, False, made.now))
    made.route().expire()
    made.attempt()
    again = made.cluster.choose(made.route(), made.now, made.rng, made.cluster.endpoints[other], b"k")
    assert isinstance(again, Attempt)
    assert again.endpoint is first.endpoint


def test_a_pool_without_a_connection_left_has_the_key_s_next_choice_asked() -> None:
    made = driven(BalancerName.KEYED, "a", "b", "c")
    picked = [made.cluster.choose(made.route(), made.now, made.rng, None, b"k")]
    for _ in range(2):
        before = picked[-1]
        assert isinstance(before, Attempt)
        picked.append(made.cluster.choose_again(before, made.now, made.rng, None, b"k"))
    order = sorted("abc", key=lambda id_: mixed(hash_of(b"k") ^ hash_of(id_.encode())), reverse=True)
    assert [one.endpoint.id for one in picked if isinstance(one, Attempt)] == order


def test_what_is_remembered_of_keys_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed, "KEPT_PLACES", 40)
    made = driven(BalancerName.KEYED, *(f"e{index}" for index in range(9)))
    balancer = made.route().balancer
    assert isinstance(balancer, Keyed)
    for number in range(50):
        attempt = made.cluster.choose(made.route(), made.now, made.rng, None, b"%d" % number)
        assert isinstance(attempt, Attempt)
        if number % 3:
            made.done(attempt, AttemptResult.CANCELLED)
        assert sum(map(len, balancer._known.values())) <= balancer._kept <= 40
    assert balancer._known
    made.seen(record("new"))
    made.route().expire()
    made.attempt()
    assert (balancer._known, balancer._kept) == ({}, 0)


def test_the_mixer_is_the_one_that_it_says() -> None:
    """SplitMix64 begun at 0 and at 1234567, whose first numbers are published with it."""
    golden = 0x9E3779B97F4A7C15
    assert [mixed(golden * step & (1 << 64) - 1) for step in (1, 2, 3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]
    assert mixed(1234567 + golden & (1 << 64) - 1) == 6457827717110365317


@pytest.mark.parametrize("name", list(BalancerName))
def test_those_that_pushed_back_are_picked_where_nobody_else_is_left(name: BalancerName) -> None:
    made = driven(name, "a", "b")
    for id_ in "ab":
        made.done(made.to(id_), AttemptResult.BUSY, retry_after_s=5.0)
    assert {made.attempt().endpoint.id for _ in range(40)} == {"a", "b"}
    assert explain(made, 0.1, 0.9).law.endswith("; all that are left pushed back, so they are picked all the same")


@pytest.mark.parametrize("name", list(BalancerName))
def test_a_probe_comes_before_every_balancer_and_a_hedge_asks_it(name: BalancerName) -> None:
    key = KeyPolicy(last_segment=True) if name is BalancerName.KEYED else None
    made = Driven(models=[ModelPolicy("m", idempotent=True, hedge=True, balancer=name, key=key)])
    made.seen(record("a"), record("b"), record("c"))
    first = made.attempt()
    hedge = made.cluster.hedge(
        first, answered=False, replayable=True, tries=1, left_s=9.0, now=made.now, rng=made.rng, key=b"k"
    )
    assert isinstance(hedge, Attempt)
    assert hedge.endpoint is not first.endpoint
    made.done(hedge, AttemptResult.SUCCESS)
    made.done(first, AttemptResult.CONNECT_REFUSED)
    assert first.endpoint.id not in {made.attempt().endpoint.id for _ in range(30)}
    made.wait(1.5, heard="abc")
    probe = made.attempt()
    assert (probe.endpoint, probe.probe) == (first.endpoint, True)


def test_half_open_trials_are_counted_whoever_picks() -> None:
    made = driven(BalancerName.RANDOM, "a", "b")
    breaker = only(made.cluster.endpoints["a"]).breaker
    breaker.peer_opened(made.now + 1, made.now)
    made.apply(EndpointSeen(record("a"), made.now))
    made.wait(1.5, heard="ab")
    trials = [attempt for attempt in (made.attempt() for _ in range(60)) if attempt.endpoint.id == "a"]
    assert len(trials) == 10 == breaker.trials
    assert all(attempt.permits for attempt in trials)


def test_a_change_of_the_balancer_takes_effect_at_once_and_keeps_what_is_in_flight() -> None:
    made = driven(BalancerName.WARM, "a", "b", "c")
    running = [made.attempt() for _ in range(5)]
    for name in (BalancerName.ROUND_ROBIN, BalancerName.KEYED, BalancerName.LEAST_REQUEST, BalancerName.WARM):
        policy = ModelPolicy("m", balancer=name, key=KeyPolicy(header="k") if name is BalancerName.KEYED else None)
        made.cluster.configure(Policies(), [policy], made.now)
        assert sum(endpoint.in_flight for endpoint in made.cluster.endpoints.values()) == len(running)
        running.append(made.attempt())
        for route in (made.route(), made.route(version="1")):
            assert route.balancer.name == route.busy_balancer.name == name
    before = made.route().balancer
    made.cluster.configure(Policies(requests_per_endpoint=9), [ModelPolicy("m", idempotent=True)], made.now)
    assert made.route().balancer is before
    made.cluster.configure(Policies(), [], made.now)
    assert made.route().balancer.name == "warm"
    for attempt in running:
        made.done(attempt, AttemptResult.SUCCESS)
    assert not any(endpoint.in_flight for endpoint in made.cluster.endpoints.values())


def test_turns_outlast_a_change_of_something_else() -> None:
    made = driven(BalancerName.ROUND_ROBIN, "a", "b", "c")
    order = []
    for number in range(6):
        order.append(made.attempt().endpoint.id)
        policy = ModelPolicy("m", balancer=BalancerName.ROUND_ROBIN, idempotent=number % 2 == 0)
        made.cluster.configure(Policies(), [policy], made.now)
    assert sorted(order[:3]) == sorted(order[3:]) == ["a", "b", "c"]
    assert order[:3] == order[3:]


class Last:
    def __init__(self, candidates: Sequence[Choosable], weights: Sequence[float], turn: int) -> None:
        self._last = candidates[-1]

    def draw(self, rng: Rng) -> list[Choosable]:
        return [self._last]


def test_a_picker_of_one_s_own_is_asked_wherever_weights_decide() -> None:
    for name in (BalancerName.WARM, BalancerName.KEYED):
        made = Cluster(Policies(), [ModelPolicy("m", balancer=name)], 1.0, picker=Last)
        for id_ in "abc":
            made.apply(EndpointSeen(record(id_), 1.0), 1.0)
        route = made.route("m")
        assert route is not None
        for _ in range(3):
            attempt = made.choose(route, 1.0, lambda: 0.0)
            assert isinstance(attempt, Attempt)
            assert attempt.endpoint.id == "c"
    assert isinstance(balancer_for(ModelPolicy("m")), Warm)
