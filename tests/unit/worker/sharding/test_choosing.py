from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.sharding import ShardError
from worker.sharding.choosing import Cost, choose_shards, pareto, shards_for, table

MEASURED = (Cost(64, 68.9, 5.1), Cost(4, 8.2, 42.1), Cost(16, 24.7, 13.5))


def test_the_lowest_total_is_chosen() -> None:
    assert choose_shards(MEASURED) == 16


def test_the_table_has_every_cost_its_total_and_the_choice() -> None:
    rows = pareto((*MEASURED, Cost(8, 30.0, 50.0)))
    assert table(rows).splitlines() == [
        "shards  communication ms  compute ms  total ms",
        "     4               8.2        42.1      50.3",
        "     8              30.0        50.0      80.0  dominated",
        "    16              24.7        13.5      38.2  chosen",
        "    64              68.9         5.1      74.0",
    ]


def test_of_equal_totals_fewer_shards_are_taken_and_equal_costs_dominate_nobody() -> None:
    rows = pareto((Cost(8, 10.0, 10.0), Cost(4, 10.0, 10.0)))
    assert [(row.cost.shards, row.dominated, row.chosen) for row in rows] == [(4, False, True), (8, False, False)]


@pytest.mark.parametrize(
    ("flops", "rtt_ms", "shards"),
    [
        (1e9, 10.0, 4),
        (1e12, 10.0, 31),
        (2e12, 5.0, 64),
        (1e13, 10.0, 64),
        (1.6e11, 20.0, 6),
        (3.6e10, 3.0, 20),
        (1.0, 1e9, 4),
    ],
)
def test_without_measurements_work_and_round_trip_decide(flops: float, rtt_ms: float, shards: int) -> None:
    assert shards_for(flops, rtt_ms) == shards


@pytest.mark.parametrize(
    ("flops", "rtt_ms", "shards"),
    [(1e300, 1e-300, 64), (1e308, 5e-324, 64), (5e-324, 1e308, 4), (1e308, 1e308, 4), (1e12, 5e-324, 64)],
)
def test_numbers_that_nobody_measures_have_an_answer_too(flops: float, rtt_ms: float, shards: int) -> None:
    assert shards_for(flops, rtt_ms) == shards


@given(st.floats(1e6, 1e16), st.floats(0.001, 1000))
def test_it_lies_between_4_and_64_and_grows_with_the_work(flops: float, rtt_ms: float) -> None:
    shards = shards_for(flops, rtt_ms)
    assert 4 <= shards <= 64
    assert shards_for(flops * 4, rtt_ms) >= shards >= shards_for(flops, rtt_ms * 4)


@pytest.mark.parametrize(("flops", "rtt_ms"), [(0.0, 1.0), (-1.0, 1.0), (math.nan, 1.0), (1e12, 0.0), (1e12, math.inf)])
def test_nonsense_is_refused(flops: float, rtt_ms: float) -> None:
    with pytest.raises(ShardError, match="must be a number above 0"):
        shards_for(flops, rtt_ms)


@pytest.mark.parametrize(
    ("costs", "text"),
    [
        ((), "no costs"),
        ((Cost(4, 1.0, 1.0), Cost(4, 2.0, 1.0)), "4 shards: must be 1 or more, and given once"),
        ((Cost(0, 1.0, 1.0),), "0 shards: must be 1 or more"),
        ((Cost(4, math.nan, 1.0),), "4 shards: nan ms: must be a number from 0"),
        ((Cost(4, 1.0, -1.0),), "4 shards: -1.0 ms: must be a number from 0"),
    ],
)
def test_costs_that_are_none_are_refused(costs: tuple[Cost, ...], text: str) -> None:
    with pytest.raises(ShardError, match=text):
        choose_shards(costs)
