"""Joins two halves of requests by id. Pure: halves come in the order in which they became known, with that moment.

A half whose other half does not come within ``wait_s`` moves to a queue of compensation, where it may still be joined,
until its deadline or until the queue has no room for it. Every half that was offered is counted once: in a join, as an
orphan, or as a repetition.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

CLOCK_S: Final = 0.05
WAIT_S: Final = 0.3
DEADLINE_S: Final = 30.0
MAX_WAITING: Final = 100_000


class Side(StrEnum):
    """Whose half it is."""

    CALLER = "caller"
    WORKER = "worker"


class Orphan(StrEnum):
    """Why a half was never joined."""

    DEADLINE = "deadline"
    """Its other half did not come in time."""
    ROOM = "room"
    """It had waited longest when there was no room for another one."""
    CLOCK = "clock"
    """Its other half came, and says that it was at another time: an id that was used twice, or clocks that differ."""
    END = "end"
    """Still waiting when there was no more to come."""


@dataclass(frozen=True, slots=True)
class Half:
    """One side of a request. ``began_s`` is of that side's clock, ``who`` the worker."""

    side: Side
    request_id: str
    began_s: float
    took_s: float
    who: str = ""
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Joined:
    """Both halves of one request. ``late``: one of them had waited for longer than it should."""

    caller: Half
    worker: Half
    late: bool


def fits(caller: Half, worker: Half, clock_s: float) -> bool:
    """Return whether a worker's time lies within its caller's, where their clocks differ by at most ``clock_s``."""
    begins = worker.began_s >= caller.began_s - clock_s
    return begins and worker.began_s + worker.took_s <= caller.began_s + caller.took_s + clock_s


@dataclass(slots=True)
class Join:
    """Joins halves. ``take`` hears of each join. At most ``max_waiting`` wait in each place, and as many ids of settled
    requests are kept, by which repetitions are known.
    """

    take: Callable[[Joined], None]
    clock_s: float = CLOCK_S
    wait_s: float = WAIT_S
    deadline_s: float = DEADLINE_S
    max_waiting: int = MAX_WAITING
    offered: int = 0
    joined: int = 0
    late: int = 0
    """Of those joined."""
    orphans: Counter[tuple[Side, Orphan]] = field(default_factory=Counter)
    repeated: Counter[Side] = field(default_factory=Counter)
    """Halves of requests that had one on that side: of workers, executions beyond the first."""
    _fresh: OrderedDict[str, tuple[Half, float]] = field(default_factory=OrderedDict)
    _queue: OrderedDict[str, tuple[Half, float]] = field(default_factory=OrderedDict)
    _settled: OrderedDict[str, frozenset[Side]] = field(default_factory=OrderedDict)

    @property
    def waiting(self) -> int:
        """Halves that may still be joined."""
        return len(self._fresh) + len(self._queue)

    def offer(self, half: Half, now_s: float) -> None:
        """Take a half that became known now; ``now_s`` never decreases."""
        self.advance(now_s)
        self.offered += 1
        name = half.request_id
        if name in self._settled:
            sides = self._settled[name]
            if half.side in sides:
                self.repeated[half.side] += 1
            else:  # the other half was given up
                self.orphans[half.side, Orphan.DEADLINE] += 1
                self._settled[name] = sides | {half.side}
            return
        known = self._fresh.get(name) or self._queue.get(name)
        if known is None:
            self._fresh[name] = (half, now_s)
            if len(self._fresh) > self.max_waiting:
                self._compensate()
            return
        other, since_s = known
        if other.side is half.side:
            self.repeated[half.side] += 1
            return
        self._fresh.pop(name, None)
        self._queue.pop(name, None)
        self._settle(name, frozenset(Side))
        caller, worker = (half, other) if half.side is Side.CALLER else (other, half)
        if not fits(caller, worker, self.clock_s):
            for side in Side:
                self.orphans[side, Orphan.CLOCK] += 1
            return
        late = now_s - since_s > self.wait_s
        self.joined += 1
        self.late += late
        self.take(Joined(caller, worker, late))

    def advance(self, now_s: float) -> None:
        """Move what has waited too long, and give up what is past its deadline."""
        while self._fresh and now_s - next(iter(self._fresh.values()))[1] > self.wait_s:
            self._compensate()
        while self._queue and now_s - next(iter(self._queue.values()))[1] > self.deadline_s:
            self._give_up(Orphan.DEADLINE)

    def close(self) -> None:
        """No more comes: what still waits has no other half."""
        for name, (half, _) in (*self._fresh.items(), *self._queue.items()):
            self.orphans[half.side, Orphan.END] += 1
            self._settle(name, frozenset({half.side}))
        self._fresh.clear()
        self._queue.clear()

    def _compensate(self) -> None:
        name, waiting = self._fresh.popitem(last=False)
        if len(self._queue) >= self.max_waiting:
            self._give_up(Orphan.ROOM)
        self._queue[name] = waiting

    def _give_up(self, why: Orphan) -> None:
        name, (half, _) = self._queue.popitem(last=False)
        self.orphans[half.side, why] += 1
        self._settle(name, frozenset({half.side}))

    def _settle(self, name: str, sides: frozenset[Side]) -> None:
        self._settled[name] = sides
        if len(self._settled) > self.max_waiting:
            self._settled.popitem(last=False)
