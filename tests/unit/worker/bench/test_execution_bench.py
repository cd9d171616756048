from __future__ import annotations

import random

import pytest

from worker.bench.__main__ import main
from worker.bench.queues import simulate
from worker.execution.queues import Order


@pytest.mark.parametrize("order", list(Order))
def test_what_each_order_does_under_overload(order: Order) -> None:
    outcomes = simulate(order, 1.2, 64, 8000, random.Random(1))
    greedy, modest, urgent = ({"p50": sorted(one.took_s)[len(one.took_s) // 2]} for one in outcomes.values())
    assert sum(len(one.took_s) + one.rejected for one in outcomes.values()) == 8000
    assert 0.1 < sum(one.rejected for one in outcomes.values()) / 8000 < 0.25
    assert (modest["p50"] < greedy["p50"] / 4) is (order is Order.FAIR)
    assert (urgent["p50"] < greedy["p50"] / 4) is (order is not Order.FIFO)


def test_a_queue_as_large_as_the_pool_turns_one_in_ten_away_at_seventy_percent() -> None:
    outcomes = simulate(Order.FIFO, 0.7, 2, 20_000, random.Random(1), threads=2)
    assert sum(one.rejected for one in outcomes.values()) / 20_000 == pytest.approx(0.1056, abs=0.01)


def test_the_tables_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["queues", "--requests", "1000"]) == 0
    assert main(["execution", "--sizes-kib", "4,9000", "--rounds", "1", "--round-s", "0.05"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in lines if line.startswith("| f")] == ["fifo"] * 3 + ["fair"] * 3
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "KiB" in line]
    assert [row[:2] for row in rows] == [
        [size, name] for size in ("4 KiB", "9,000 KiB") for name in ("none", "pool", "pool + buffers")
    ]
    assert all(float(row[2].replace(",", "")) > 0 for row in rows)
    assert [row[6].endswith("%") for row in rows] == [False, False, True] * 2


@pytest.mark.parametrize(
    "argv", [["execution", "--sizes-kib", "0"], ["execution", "--rounds", "0"], ["queues", "--load", "x"]]
)
def test_wrong_arguments_are_refused(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
