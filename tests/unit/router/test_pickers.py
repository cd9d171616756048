from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, cast

import pytest

from router.pickers import LEAST_HANDS, HandPicker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.protocols import Choosable


def picker(weights: Sequence[float], turn: int = 1) -> HandPicker:
    """Return one over the numbers from 0 up."""
    return HandPicker(cast("Sequence[Choosable]", range(len(weights))), weights, turn)


def places(weights: Sequence[float], turns: int) -> list[Counter[object]]:
    """Return how often each is in the first, second, third and fourth place of a hand, over so many tables."""
    counts: list[Counter[object]] = [Counter() for _ in range(4)]
    for turn in range(1, turns + 1):
        for hand in picker(weights, turn).hands:
            for count, one in zip(counts, hand, strict=True):
                count[one] += 1
    return counts


@pytest.mark.parametrize(
    "weights",
    [[1.0], [1.0, 1.0], [0.0, 1.0], [3.0, 1.0, 0.5], [1e-9, 1e9], [0.1] * 7 + [5.0], [float(w) for w in range(50)]],
)
def test_each_place_of_a_hand_follows_the_weights_over_the_tables_of_a_route(weights: list[float]) -> None:
    total = sum(weights)
    expected = [weight / total for weight in weights]
    for counts in places(weights, 200):
        drawn = counts.total()
        assert [counts[index] / drawn for index in range(len(weights))] == pytest.approx(expected, abs=0.002)


def test_in_one_table_each_place_is_off_by_the_rounding_alone() -> None:
    weights = [5.0, 3.0, 2.0, 0.1]
    for turn in range(1, 50):
        made = picker(weights, turn)
        for place in range(4):
            counts = Counter[object](hand[place] for hand in made.hands)
            for index, weight in enumerate(weights):
                assert abs(counts[index] - weight / sum(weights) * made.size) < 2


def test_who_weighs_least_is_drawn_as_often_as_that_in_the_long_run() -> None:
    """1 in 1,000 of the weight is a quarter of a place in a table of 256, of which few candidates get every fourth."""
    weights = [999.0, 1.0]
    assert any(1 not in set[object](hand) for hand in picker(weights).hands)
    drawn = sum(count[1] for count in places(weights, 3000))
    assert drawn / (3000 * 4 * LEAST_HANDS) == pytest.approx(0.001, rel=0.05)


def test_no_weight_at_all_draws_evenly() -> None:
    for counts in places([0.0] * 4, 1):
        assert sorted(counts.values()) == [LEAST_HANDS / 4] * 4


@pytest.mark.parametrize(
    ("count", "least"), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 2), (8, 3), (12, 3), (64, 4), (1000, 4)]
)
def test_a_hand_seldom_has_one_twice_where_there_are_others(count: int, least: int) -> None:
    for turn in (1, 2, 3):
        assert min(len(set(hand)) for hand in picker([1.0] * count, turn).hands) >= least


@pytest.mark.parametrize("weights", [[0.3, 0.45, 0.25], [0.26, 0.24, 0.25, 0.25], [0.32, 0.32, 0.32, 0.04]])
def test_of_a_few_whoever_has_a_quarter_of_the_weights_is_in_every_hand(weights: list[float]) -> None:
    for turn in range(1, 50):
        hands = picker(weights, turn).hands
        for index, weight in enumerate(weights):
            inside = sum(index in set[object](hand) for hand in hands) / len(hands)
            assert inside == 1 if weight > 0.255 else inside >= 4 * weight - 0.07


def test_everybody_meets_everybody() -> None:
    """So there are no groups that load never moves between."""
    met: Counter[tuple[object, object]] = Counter()
    for turn in range(1, 40):
        for hand in picker([1.0] * 8, turn).hands:
            met.update({(one, other) for one in hand for other in hand if one != other})
    assert len(met) == 8 * 7
    assert min(met.values()) > 0.25 * max(met.values())


@pytest.mark.parametrize(("count", "size"), [(1, 64), (2, 64), (64, 64), (65, 128), (1000, 1024), (4096, 4096)])
def test_a_table_has_as_many_hands_as_candidates_at_least(count: int, size: int) -> None:
    made = picker([1.0] * count)
    assert made.size == len(made.hands) == size
    assert {*(one for hand in made.hands for one in hand)} == set[object](range(count))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 1000, 4096])
def test_the_ends_of_the_random_number_stay_inside(count: int) -> None:
    made = picker([1.0] * count)
    assert made.draw(lambda: 0.0) == made.hands[0]
    assert made.draw(lambda: 1 - 2**-53) == made.hands[-1]


def test_the_same_turn_makes_the_same_table_and_the_next_another() -> None:
    weights = [1.0, 2.0, 3.0]
    assert picker(weights, 7).hands == picker(weights, 7).hands
    assert picker(weights, 7).hands != picker(weights, 8).hands
    first, second = random.Random(5), random.Random(5)
    made = picker(weights)
    assert [made.draw(first.random) for _ in range(50)] == [made.draw(second.random) for _ in range(50)]
