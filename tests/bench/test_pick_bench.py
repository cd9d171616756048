from __future__ import annotations

import pytest

from tests.bench import pick_bench


def test_a_choice_costs_the_same_at_two_and_at_a_thousand_endpoints() -> None:
    """Generous bounds: they catch a choice that looks at every endpoint (1 ms and more), not a slow machine."""
    few, many = (pick_bench.measure(size, calls=3000, rounds=5) for size in (2, 1000))
    assert many.choose_us < 3 * few.choose_us + 1
    assert many.choose_and_done_us < 3 * few.choose_and_done_us + 1
    assert many.choose_us < 50


def test_the_table_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pick_bench, "SIZES", (2,))
    pick_bench.main()
    title, row = capsys.readouterr().out.splitlines()
    assert title.startswith("one choice: ")
    assert row.split()[0] == "2"
    assert all(float(number) > 0 for number in row.split()[1:])
