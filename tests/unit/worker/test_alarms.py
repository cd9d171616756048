"""Alarms over the worker's own process: what raises them, what does not, and when they are over."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.worker_parts import ReadableLog
from worker.alarms import SAMPLES, Alarm, Alarms, AlarmWatch, Change, Sample, heap_bytes, heap_grows, tasks_pile_up

MIB = 1 << 20


@pytest.mark.parametrize(
    ("tasks", "raised"),
    [
        ([10, 20, 30, 40], False),
        ([4000, 4500, 5000, 5001], True),
        ([4000, 4500, 5000, 5000], False),
        ([9000, 9000, 9000, 9000], False),
        ([6000, 5000, 5500, 5600], False),
        ([6000, 5000, 5500, 5600, 5700], True),
        ([6000, 7000, 8000], False),
        ([], False),
    ],
)
def test_tasks(tasks: list[int], raised: bool) -> None:
    assert tasks_pile_up([Sample(count, 0) for count in tasks]) is raised


def steps(*heights_and_lengths: tuple[int, int]) -> list[int]:
    return [height for height, length in heights_and_lengths for _ in range(length)]


GROWING = [100 + 4 * index for index in range(SAMPLES)]


@pytest.mark.parametrize(
    ("mebibytes", "raised"),
    [
        (GROWING, True),
        (GROWING[:-1], False),  # not a full window
        ([100 + index for index in range(SAMPLES)], False),  # 29 MiB: not much
        ([2000 + 3 * index for index in range(SAMPLES)], False),  # 87 MiB, but no tenth of what there was
        ([size - 3 * (index % 2) for index, size in enumerate(GROWING)], True),  # breathes a little
        ([100 + 4 * (index % 10) + index for index in range(SAMPLES)], False),  # a sawtooth: it is given back
        (steps((100, 12), (500, SAMPLES - 12)), False),  # one step
        (steps((100, 10), (500, SAMPLES - 10)), False),  # one, at the end of a third
        ([*GROWING[:-1], 150], False),  # released at last
        ([500 - 4 * index for index in range(SAMPLES)], False),
    ],
)
def test_heap(mebibytes: list[int], raised: bool) -> None:
    assert heap_grows([Sample(0, size * MIB) for size in mebibytes]) is raised


def test_a_heap_that_is_not_known_and_one_of_other_models() -> None:
    assert not heap_grows([Sample(0, None)] * SAMPLES)
    assert not heap_grows([Sample(0, size * MIB, models=index > 10) for index, size in enumerate(GROWING)])


def test_an_alarm_is_raised_once_and_over_once() -> None:
    alarms = Alarms()
    changes = [alarms.look(Sample(tasks, None)) for tasks in (4998, 4999, 5000, 5001, 5002, 5001, 5000, 4000)]
    assert [change for one in changes for change in one] == [
        Change(Alarm.TASKS, True, 5001),
        Change(Alarm.TASKS, False, 5000),
    ]
    assert alarms.raised == ()


def test_a_heap_alarm_is_over_where_half_came_back_or_other_models_are_held() -> None:
    def grown() -> Alarms:
        alarms = Alarms()
        for size in GROWING:
            alarms.look(Sample(0, size * MIB))
        assert alarms.raised == (Alarm.HEAP,)
        assert alarms.look(Sample(0, 250 * MIB)) == []
        return alarms

    alarms = grown()
    assert alarms.look(Sample(0, 158 * MIB)) == [Change(Alarm.HEAP, False, 158 * MIB)]
    assert grown().look(Sample(0, 250 * MIB, models="others")) == [Change(Alarm.HEAP, False, 250 * MIB)]


def test_the_watch_tells_the_log() -> None:
    log, alarms = ReadableLog(), Alarms()
    watch = AlarmWatch(alarms, lambda: None, log)
    for tasks in (5001, 5002, 5003):
        alarms.look(Sample(tasks, None))

    async def scenario() -> None:
        waiting = [asyncio.create_task(asyncio.sleep(60)) for _ in range(5004)]
        watch.look()
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        watch.look()

    asyncio.run(scenario())
    (raised,), (over,) = log.events("alarm.raised"), log.events("alarm.over")
    assert (raised["alarm"], raised["value"], raised["level"]) == ("tasks", 5005, "warning")
    assert (over["alarm"], over["value"]) == ("tasks", 1)


def test_memory_of_its_own(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("VmRSS:\t  300 kB\nRssAnon:\t     200 kB\n")
    assert heap_bytes(status) == 200 * 1024
    assert heap_bytes(tmp_path / "none") is None
    assert heap_bytes() is not None
