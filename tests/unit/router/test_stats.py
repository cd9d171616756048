from __future__ import annotations

import pytest

from router.stats import LEAST_MS, MOST_MS, LogBuckets, RecentMean, SketchWindow, SlidingCounts, median

BUCKETS = LogBuckets(0.05)


def window(now: float = 0.0) -> SketchWindow:
    return SketchWindow(BUCKETS, 60.0, 6, now)


def pairs(*values: float) -> list[tuple[int, int]]:
    return [(BUCKETS.index(value), 1) for value in values]


@pytest.mark.parametrize("value", [LEAST_MS, 0.01, 0.9, 1.0, 1.1, 12.5, 1e3, 59_999.0, MOST_MS])
def test_a_bucket_stands_for_its_values_within_the_relative_error(value: float) -> None:
    assert BUCKETS.value(BUCKETS.index(value)) == pytest.approx(value, rel=0.05 + 1e-9)


def test_values_outside_the_range_are_clamped() -> None:
    assert BUCKETS.index(0.0) == BUCKETS.index(-1.0) == BUCKETS.index(LEAST_MS)
    assert BUCKETS.index(1e300) == BUCKETS.index(MOST_MS)


def test_quantiles_are_those_of_the_values() -> None:
    sketch = window()
    sketch.add(pairs(*[float(v) for v in range(1, 1001)]), 1.0)
    values = sketch.quantiles((0.0, 0.5, 0.95, 1.0))
    assert values is not None
    assert values == pytest.approx([1, 500, 950, 1000], rel=0.06)
    assert sketch.total == 1000


def test_nothing_measured_has_no_quantile() -> None:
    assert window().quantiles((0.5,)) is None


def test_merging_two_sketches_is_sketching_both() -> None:
    both, left = window(), window()
    both.add(pairs(1.0, 5.0, 9.0, 400.0), 1.0)
    left.add(pairs(1.0, 9.0), 1.0)
    left.add(pairs(5.0, 400.0), 1.0)
    assert left.quantiles((0.1, 0.5, 0.9)) == both.quantiles((0.1, 0.5, 0.9))


def test_counts_below_one_are_left_out() -> None:
    sketch = window()
    sketch.add([(3, 0), (4, -2), (5, 1)], 1.0)
    assert sketch.total == 1


def test_slots_expire_whole_after_the_window() -> None:
    sketch = window()
    sketch.add(pairs(100.0), 5.0)
    sketch.add(pairs(1.0, 1.0), 15.0)
    assert not sketch.advance(59.9)
    assert sketch.total == 3
    assert sketch.advance(60.0)  # the first slot covered 0 to 10 s
    assert sketch.total == 2
    assert sketch.quantiles((1.0,)) == pytest.approx([1.0], rel=0.051)
    assert sketch.advance(70.0)
    assert sketch.quantiles((1.0,)) is None


def test_a_gap_longer_than_the_window_empties_it_and_it_goes_on() -> None:
    sketch = window()
    sketch.add(pairs(7.0), 1.0)
    sketch.add(pairs(9.0), 10_000.0)
    assert sketch.total == 1
    assert not sketch.advance(10_049.0)
    assert sketch.advance(10_060.1)


def test_sliding_counts_forget_slot_by_slot() -> None:
    counts = SlidingCounts(10.0, 0.0)
    counts.add(3, 1, 0.5)
    counts.add(0, 2, 5.5)
    assert counts.totals(9.9) == (3, 3)
    assert counts.totals(10.0) == (0, 2)
    assert counts.totals(15.0) == (0, 0)


def test_sliding_counts_never_count_what_is_older_than_the_window() -> None:
    counts = SlidingCounts(1.0, 0.0)
    for step in range(300):
        now = step * 0.07
        counts.add(1, 0, now)
        yes, no = counts.totals(now)
        assert no == 0
        assert yes <= 1.0 / 0.07 + 1
        assert counts.ends > now


def test_sliding_counts_survive_a_long_gap_and_clearing() -> None:
    counts = SlidingCounts(10.0, 0.0)
    counts.add(5, 5, 1.0)
    assert counts.totals(1e6) == (0, 0)
    counts.add(1, 0, 1e6)
    assert counts.totals(1e6 + 8.9) == (1, 0)
    counts.clear(1e6 + 9)
    assert counts.totals(1e6 + 9) == (0, 0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([], None), ([None, None], None), ([3.0], 3.0), ([9.0, None, 1.0, 2.0], 2.0), ([4.0, 1.0, 2.0, None, 3.0], 2.5)],
)
def test_median_is_of_the_known(values: list[float | None], expected: float | None) -> None:
    assert median(values) == expected


def test_a_bucket_that_loses_some_of_its_counts_keeps_the_rest() -> None:
    sketch = window()
    sketch.add([(5, 2)], 1.0)
    sketch.add([(5, 3)], 11.0)
    sketch.advance(60.0)
    assert sketch.total == 3
    assert sketch.quantiles((0.5,)) == [BUCKETS.value(5)]


def test_a_recent_mean_forgets_what_is_older_than_its_window() -> None:
    recent = RecentMean(60.0)
    assert recent.take(10.0, 5, 0.0) is None
    assert recent.take(16.0, 8, 10.0) == 2.0
    for second in range(20, 80, 10):
        assert recent.take(16.0, 8, float(second)) in (2.0, None)
    assert recent.take(16.0, 8, 90.0) is None
    assert recent.take(17.0, 10, 100.0) == 0.5
