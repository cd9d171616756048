"""Alarms over a worker's own process: tasks that pile up, and memory that grows and is never given back.

The judgements are functions over samples; the watch takes a sample every ten seconds, which costs microseconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from worker.log import EventLog

EVERY_S = 10.0
SAMPLES = 30
"""As many are looked at: five minutes."""
MOST_TASKS = 5000
RISES = 3
"""Tasks rise where each of so many samples in a row has more than the one before it."""
LEAST_GROWTH_BYTES = 64 << 20
LEAST_GROWTH_RATIO = 0.1
RELEASE_RATIO = 0.1
"""Memory was released where it fell by this part of what it had grown by."""


class Alarm(StrEnum):
    """What can be wrong."""

    TASKS = "tasks"
    HEAP = "heap"


class Sample(NamedTuple):
    """What the process had at one moment. ``models`` is equal as long as the same models are held in the same way."""

    tasks: int
    heap_bytes: int | None
    models: Hashable = None


def tasks_pile_up(samples: Sequence[Sample]) -> bool:
    """Return whether there are over :data:`MOST_TASKS` tasks, and more of them in each of the last samples."""
    last = [sample.tasks for sample in samples][-RISES - 1 :]
    return len(last) > RISES and last[-1] > MOST_TASKS and all(a < b for a, b in pairwise(last))


def heap_grows(samples: Sequence[Sample]) -> bool:
    """Return whether memory grew by much over all of a full window, in all of its thirds, and was never released.

    A model that was loaded is one step and no growth, and where models come or go there is nothing to compare.
    """
    heap = [sample.heap_bytes for sample in samples if sample.heap_bytes is not None]
    if len(heap) < SAMPLES or len({sample.models for sample in samples}) > 1:
        return False
    growth = heap[-1] - heap[0]
    if growth < max(LEAST_GROWTH_BYTES, LEAST_GROWTH_RATIO * heap[0]):
        return False
    third = len(heap) // 3
    lowest = [min(heap[:third]), min(heap[third : 2 * third]), min(heap[2 * third :])]
    if not lowest[0] < lowest[1] < lowest[2]:
        return False
    most = heap[0]
    for size in heap:
        most = max(most, size)
        if most - size > RELEASE_RATIO * growth:
            return False
    return True


@dataclass(frozen=True, slots=True)
class Change:
    """An alarm that was raised, or is over. ``value`` is what it was judged by: tasks, or bytes."""

    alarm: Alarm
    raised: bool
    value: int


class Alarms:
    """Which alarms are raised, by the samples of the last minutes.

    One is over when its cause is: fewer tasks than the limit, half of the growth given back, or other models held.
    """

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=SAMPLES)
        self._heap_over: int | None = None
        self._raised: dict[Alarm, None] = {}

    @property
    def raised(self) -> tuple[Alarm, ...]:
        """Those that are raised now."""
        return tuple(self._raised)

    def look(self, sample: Sample) -> list[Change]:
        """Judge with one more sample; returns what changed."""
        if self._samples and self._samples[-1].models != sample.models:
            self._samples.clear()
        self._samples.append(sample)
        changes = []
        for alarm, value, wrong, over in (
            (Alarm.TASKS, sample.tasks, tasks_pile_up(self._samples), sample.tasks <= MOST_TASKS),
            (Alarm.HEAP, sample.heap_bytes or 0, heap_grows(self._samples), self._heap_fell(sample)),
        ):
            if alarm not in self._raised and wrong:
                self._raised[alarm] = None
                if alarm is Alarm.HEAP:
                    self._heap_over = (value + (self._samples[0].heap_bytes or 0)) // 2
                changes.append(Change(alarm, True, value))
            elif alarm in self._raised and over:
                del self._raised[alarm]
                changes.append(Change(alarm, False, value))
        return changes

    def _heap_fell(self, sample: Sample) -> bool:
        fell = self._heap_over is not None and sample.heap_bytes is not None and sample.heap_bytes <= self._heap_over
        return fell or len(self._samples) == 1


class AlarmWatch:
    """Takes samples of this process, and tells of alarms in the log."""

    def __init__(self, alarms: Alarms, models: Callable[[], Hashable], log: EventLog) -> None:
        """``models`` returns what is equal as long as the same models are held in the same way."""
        self._alarms = alarms
        self._models = models
        self._log = log

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(EVERY_S)

    def look(self) -> None:
        """Take one sample."""
        for change in self._alarms.look(Sample(len(asyncio.all_tasks()), heap_bytes(), self._models())):
            if change.raised:
                remedy = "look at /debug/tasks" if change.alarm is Alarm.TASKS else "look at /debug/memory"
                self._log.warning("alarm.raised", alarm=change.alarm.value, value=change.value, remedy=remedy)
            else:
                self._log.info("alarm.over", alarm=change.alarm.value, value=change.value)


def heap_bytes(status: Path = Path("/proc/self/status")) -> int | None:
    """Return this process's memory that is its own and no file's (``RssAnon``, proc_pid_status(5)); None: not known."""
    try:
        for line in status.read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None
