"""How many threads execute: the law by which a pool grows and shrinks. Pure; the time is an argument.

::

    score  = 0.4 · waiting / 1000 + 0.6 · processor load
    target = size · (1 + 0.5 · (score - 0.3))

The law is only asked when three samples in a row say so: each 2 s whether 800 requests wait or the processors are 75%
busy, each 5 s whether runs took 1.2 s on average. As nothing in that ever takes threads away again when the load goes,
three calm samples in a row (nobody waits, less than half of the threads run, and the score says less) ask it too. It
never takes a thread that runs.

Where more than 80% of the threads run and somebody waits, up to three more are lent, at once and for 60 s, and none for
the 60 s after that: a burst passes meanwhile, and what lasts is the law's business.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

LOAD_EVERY_S: Final = 2.0
RUNS_EVERY_S: Final = 5.0
MANY_WAIT: Final = 800
BUSY_RATIO: Final = 0.75
LONG_RUN_S: Final = 1.2
IN_A_ROW: Final = 3
LEND_ABOVE_RATIO: Final = 0.8
MOST_LENT: Final = 3
LENT_S: Final = 60.0
_FULL_QUEUE: Final = 1000
_PAR: Final = 0.3


@dataclass(frozen=True, slots=True)
class Reading:
    """What the pool does now. ``ran_s`` and ``ran`` are totals: how long runs took that have ended, and how many.

    ``cpu_ratio`` is the load of the processors, in [0, 1].
    """

    waiting: int
    cpu_ratio: float
    busy: int
    ran_s: float
    ran: int


@dataclass(frozen=True, slots=True)
class Change:
    """The pool has another size from now on, and so many threads of others beside it."""

    size: int
    lent: int
    why: str
    score: float


def score(waiting: int, cpu_ratio: float) -> float:
    """Return how loaded a pool is: 0.3 where its size is right."""
    return 0.4 * waiting / _FULL_QUEUE + 0.6 * cpu_ratio


def target(size: int, value: float) -> int:
    """Return what size a pool of ``size`` should have at that score: one more or less at least where it moves."""
    wanted = size * (1 + 0.5 * (value - _PAR))
    return math.ceil(wanted) if wanted > size else math.floor(wanted)


class Sizer:
    """Follows one pool: is given a reading now and then, and says what changes."""

    def __init__(self, least: int, most: int, now: float) -> None:
        """The pool begins with ``least`` threads. ``now``: monotonic seconds."""
        self.least = least
        self.most = most
        self.size = least
        self.lent = 0
        self._load_at = now + LOAD_EVERY_S
        self._runs_at = now + RUNS_EVERY_S
        self._ran = (0.0, 0)
        self._loaded = self._calm = self._long = 0
        self._lent_until = 0.0
        self._no_loan_before = now

    def observe(self, reading: Reading, now: float) -> Change | None:
        """Take a reading, where one is due; returns what changes now, or None."""
        before = (self.size, self.lent)
        value = score(reading.waiting, reading.cpu_ratio)
        reasons = []
        if self.lent and now >= self._lent_until:
            self.lent, self._no_loan_before = 0, now + LENT_S
            reasons.append("what was lent is given back")
        due = ""
        if now >= self._load_at:
            self._load_at = now + LOAD_EVERY_S
            due = self._load(reading, value)
            if self._lend(reading, now):
                reasons.append("nearly all run and some wait: lent")
        if now >= self._runs_at:
            self._runs_at = now + RUNS_EVERY_S
            due = self._runs(reading) or due
        if due:
            self._loaded = self._calm = self._long = 0
            size = max(self.least, min(self.most, target(self.size, value)))
            # What runs is not to wait for its thread, nor are threads to leave that are wanted at once again.
            self.size = size if size >= self.size else max(size, min(self.size, reading.busy))
            if self.size != before[0]:
                reasons.append(due)
        if before == (self.size, self.lent):
            return None
        return Change(self.size, self.lent, "; ".join(reasons), round(value, 3))

    def _load(self, reading: Reading, value: float) -> str:
        loaded = reading.waiting >= MANY_WAIT or reading.cpu_ratio >= BUSY_RATIO
        calm = reading.waiting == 0 and 2 * reading.busy < self.size and value < _PAR
        self._loaded = self._loaded + 1 if loaded else 0
        self._calm = self._calm + 1 if calm else 0
        if self._loaded >= IN_A_ROW:
            return "many wait" if reading.waiting >= MANY_WAIT else "the processors are busy"
        return "it is calm" if self._calm >= IN_A_ROW else ""

    def _runs(self, reading: Reading) -> str:
        ran_s, ran = reading.ran_s - self._ran[0], reading.ran - self._ran[1]
        self._ran = (reading.ran_s, reading.ran)
        # Where runs are under way and none has ended since the last sample, they take longer than that.
        long = ran_s / ran >= LONG_RUN_S if ran else reading.busy > 0
        self._long = self._long + 1 if long else 0
        return "runs are long" if self._long >= IN_A_ROW else ""

    def _lend(self, reading: Reading, now: float) -> bool:
        if not reading.waiting or self.lent == MOST_LENT or now < self._no_loan_before:
            return False
        if reading.busy <= LEND_ABOVE_RATIO * (self.size + self.lent):
            return False
        if not self.lent:
            self._lent_until = now + LENT_S
        self.lent = min(MOST_LENT, self.lent + reading.waiting)
        return True
