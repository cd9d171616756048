from __future__ import annotations

import pytest

from router.policy import BalancerName
from tests.bench import pick_bench


def test_a_choice_costs_the_same_at_two_and_at_a_thousand_endpoints() -> None:
    """Generous bounds: they catch a choice that looks at every endpoint (1 ms and more), not a slow machine."""
    few, many = (pick_bench.measure(size, calls=3000, rounds=5) for size in (2, 1000))
    assert many.choose_us < 3 * few.choose_us + 1
    assert many.choose_and_done_us < 3 * few.choose_and_done_us + 1
    assert many.choose_us < 50


@pytest.mark.parametrize("name", ["round_robin", "random", "two_choice", "peak_ewma"])
def test_so_it_does_with_a_balancer_that_does_not_look_at_all(name: str) -> None:
    few, many = (pick_bench.measure_balancer(BalancerName(name), size) for size in (2, 1000))
    assert many < 3 * few + 5


def test_the_table_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pick_bench, "SIZES", (2,))
    pick_bench.main()
    title, row, others, costs = capsys.readouterr().out.splitlines()
    assert title.startswith("one choice: ")
    assert row.split()[0] == "2"
    assert all(float(number) > 0 for number in row.split()[1:])
    assert others.endswith("round_robin random least_request two_choice peak_ewma keyed")
    assert all(float(number) > 0 for number in costs.split())
    assert len(costs.split()) == 7
