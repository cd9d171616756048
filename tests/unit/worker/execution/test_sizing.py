from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.worker_parts import ReadableLog
from worker.execution import Executor
from worker.execution.pool import Pool
from worker.execution.sizing import LENT_S, MOST_LENT, Change, Reading, Sizer, score, target

IDLE = Reading(waiting=0, cpu_ratio=0.0, busy=0, ran_s=0.0, ran=0)
HOT = replace(IDLE, cpu_ratio=0.9, busy=4)
CROWDED = replace(IDLE, waiting=900, cpu_ratio=0.5, busy=4)


@pytest.mark.parametrize(
    ("waiting", "cpu_ratio", "size", "expected_score", "expected_target"),
    [
        (0, 0.5, 8, 0.3, 8),
        (0, 0.75, 8, 0.45, 9),  # 8.6
        (800, 0.0, 8, 0.32, 9),  # 8.08
        (1000, 1.0, 8, 1.0, 11),  # 10.8
        (1000, 1.0, 40, 1.0, 54),
        (4000, 1.0, 8, 2.2, 16),  # 15.6
        (0, 0.0, 8, 0.0, 6),  # 6.8
        (0, 0.0, 4, 0.0, 3),  # 3.4
        (0, 0.0, 1, 0.0, 0),
    ],
)
def test_the_law(waiting: int, cpu_ratio: float, size: int, expected_score: float, expected_target: int) -> None:
    assert score(waiting, cpu_ratio) == pytest.approx(expected_score)
    assert target(size, score(waiting, cpu_ratio)) == expected_target


def follow(
    sizer: Sizer, readings: list[Reading], start: float = 0.0, *, ending: bool = True
) -> list[tuple[float, int, int, str]]:
    """Give a sizer one reading each second; returns when what changed. ``ending``: short runs end all the time."""
    changes = []
    for second, reading in enumerate(readings, 1):
        if ending:
            reading = replace(reading, ran=int(start) + second, ran_s=0.1 * (start + second))
        change = sizer.observe(reading, start + second)
        if change is not None:
            changes.append((start + second, change.size, change.lent, change.why))
    return changes


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([HOT] * 13, [(6.0, 5, 0, "the processors are busy"), (12.0, 6, 0, "the processors are busy")]),
        ([HOT] * 5 + [IDLE] * 3 + [HOT] * 6, [(14.0, 5, 0, "the processors are busy")]),
        ([HOT] * 4 + [IDLE] * 2 + [HOT] * 5, []),
        ([replace(HOT, cpu_ratio=0.74)] * 30, []),
        ([replace(CROWDED, busy=1)] * 7, [(6.0, 5, 0, "many wait")]),
        ([replace(CROWDED, waiting=799, busy=1)] * 30, []),
        ([IDLE] * 30, []),
    ],
    ids=["hot", "an idle sample between", "two in a row", "under", "crowded", "not crowded", "idle at the least"],
)
def test_three_samples_in_a_row_are_needed(
    readings: list[Reading], expected: list[tuple[float, int, int, str]]
) -> None:
    assert follow(Sizer(4, 16, 0.0), readings) == expected


def test_long_runs_ask_the_law_too_also_where_none_ends() -> None:
    ended = [replace(IDLE, cpu_ratio=0.7, busy=4, ran_s=2.0 * second, ran=second) for second in range(1, 20)]
    assert follow(Sizer(4, 16, 0.0), ended, ending=False) == [(15.0, 5, 0, "runs are long")]
    hung = [replace(IDLE, cpu_ratio=0.7, busy=4)] * 19
    assert follow(Sizer(4, 16, 0.0), hung, ending=False) == [(15.0, 5, 0, "runs are long")]
    short = [replace(IDLE, cpu_ratio=0.7, busy=4, ran_s=1.1 * second, ran=second) for second in range(1, 60)]
    assert follow(Sizer(4, 16, 0.0), short, ending=False) == []


def test_it_shrinks_in_the_calm_to_what_it_began_with_and_takes_no_thread_that_runs() -> None:
    sizer = Sizer(4, 16, 0.0)
    sizer.size = 12
    changes = follow(sizer, [replace(IDLE, busy=1)] * 60)
    assert [size for _, size, *_ in changes] == [10, 8, 6, 5, 4]
    assert {why for *_, why in changes} == {"it is calm"}
    sizer.size = 12
    assert follow(sizer, [replace(IDLE, busy=6)] * 30, 100.0) == [], "half of them run"
    # Long runs on idle processors: the law says less, and all of them run.
    assert follow(sizer, [replace(IDLE, busy=12)] * 30, 200.0, ending=False) == []


BUSY = replace(IDLE, waiting=2, cpu_ratio=0.4, busy=4)


def test_up_to_three_are_lent_for_a_minute_and_then_none_for_another() -> None:
    sizer = Sizer(4, 16, 0.0)
    seconds = [BUSY] * 199
    lent = "nearly all run and some wait: lent"
    assert follow(sizer, seconds)[:1] == [(2.0, 4, 2, lent)]
    sizer = Sizer(4, 16, 0.0)
    crowd = [replace(one, waiting=9, busy=7) for one in seconds]
    back = "what was lent is given back"
    assert follow(sizer, crowd) == [(2.0, 4, 3, lent), (62.0, 4, 0, back), (122.0, 4, 3, lent), (182.0, 4, 0, back)]


@pytest.mark.parametrize("reading", [replace(BUSY, waiting=0), replace(BUSY, busy=3)])
def test_none_is_lent_where_nobody_waits_or_threads_are_left(reading: Reading) -> None:
    assert follow(Sizer(4, 16, 0.0), [reading] * 40) == []


readings = st.builds(
    Reading,
    waiting=st.integers(0, 2000),
    cpu_ratio=st.floats(0, 1),
    busy=st.integers(0, 40),
    ran_s=st.just(0.0),
    ran=st.integers(0, 1),
)


SIXTEENTHS = st.integers(1, 90 * 16).map(lambda number: number / 16)
"""Seconds whose sums are exact: what is compared here are differences of them."""


@given(
    least=st.integers(1, 8),
    more=st.integers(1, 32),
    steps=st.lists(st.tuples(readings, SIXTEENTHS), max_size=80),
)
def test_it_keeps_its_bounds_and_says_every_change(least: int, more: int, steps: list[tuple[Reading, float]]) -> None:
    sizer, now, lent_at = Sizer(least, least + more, 0.0), 0.0, -1000.0
    for reading, step in steps:
        now += step
        size, lent = sizer.size, sizer.lent
        change = sizer.observe(reading, now)
        assert least <= sizer.size <= least + more
        assert 0 <= sizer.lent <= MOST_LENT
        assert (change is None) == ((size, lent) == (sizer.size, sizer.lent))
        if change is not None:
            assert isinstance(change, Change)
            assert change.why
            if sizer.size < size:
                assert sizer.size >= min(size, reading.busy)
        if sizer.lent > lent == 0:
            assert now - lent_at >= 2 * LENT_S
            lent_at = now
        if sizer.lent:
            assert now - lent_at < LENT_S or lent == 0


def test_the_pool_does_what_the_law_says_and_tells() -> None:
    async def scenario() -> None:
        now, log = 100.0, ReadableLog()
        executor = Executor(2, 10, lambda: now)
        pool = Pool(executor, 4, 8, lambda: 0.8, log)
        assert (executor.threads, pool.facts()["size"]) == (4, 4)
        for _ in range(6):
            now += 1.0
            pool.look()
        assert (executor.threads, pool.size, pool.grown) == (5, 5, 1)
        (event,) = log.events("pool.resized")
        expected = {"from": 4, "to": 5, "lent": 0, "score": 0.48, "why": "the processors are busy", "waiting": 0}
        assert expected.items() <= event.items()
        (decision,) = pool.facts()["decisions"]
        assert {"at_s": 106.0, **expected}.items() <= decision.items()
        executor.close()

    asyncio.run(scenario())
