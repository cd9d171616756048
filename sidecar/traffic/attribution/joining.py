"""Joins two halves of requests by id. Pure: halves come in the order in which they became known, with that moment.

A request has one half of its caller's and one of a worker's for each attempt: retries and hedges make several. The one
that is joined is the one whose answer the caller got; the others are told of as attempts. What does not find its other
half within ``wait_s`` moves to a queue of compensation, where it may still be joined, until its deadline or until the
queue has no room for it. Every half that was offered is counted once: in a join, as an attempt, as an orphan, or as a
repetition.
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
MAX_ATTEMPTS: Final = 16
"""Workers' halves of one request that are kept to choose from; more are attempts, unseen."""


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
    """One side of a request. ``began_s`` is of that side's clock.

    ``who``: the worker; of a caller's half the worker whose answer it got, empty where that is not known. ``label``:
    the model version that executed. ``key`` tells one worker's half from another one of the same request. ``queue_s``,
    ``run_s``: what its worker says of ``took_s``.
    """

    side: Side
    request_id: str
    began_s: float
    took_s: float
    who: str = ""
    failed: bool = False
    label: str = ""
    attempt: int = 1
    key: str = ""
    queue_s: float | None = None
    run_s: float | None = None

    @property
    def ended_s(self) -> float:
        """When it was over, by its own clock."""
        return self.began_s + self.took_s

    @property
    def own(self) -> tuple[str, str, float]:
        """What no two workers' halves of one request have in common: a line that is read twice is one."""
        return (self.who, self.key, 0.0 if self.key else self.began_s)


@dataclass(frozen=True, slots=True)
class Joined:
    """Both halves of one request. ``late``: one of them had waited for longer than it should."""

    caller: Half
    worker: Half
    late: bool


def fits(caller: Half, worker: Half, clock_s: float) -> bool:
    """Return whether a worker's time lies within its caller's, where their clocks differ by at most ``clock_s``."""
    begins = worker.began_s >= caller.began_s - clock_s
    return begins and worker.ended_s <= caller.ended_s + clock_s


def apart_s(caller: Half, worker: Half) -> float:
    """Return by how much a worker's clock is ahead at least (above 0), or behind (below 0); 0: nothing says it is."""
    ahead_s, behind_s = worker.ended_s - caller.ended_s, caller.began_s - worker.began_s
    return ahead_s if ahead_s > max(behind_s, 0.0) else -behind_s if behind_s > 0.0 else 0.0


@dataclass(slots=True)
class _Waiting:
    since_s: float
    caller: Half | None = None
    workers: list[Half] = field(default_factory=list)

    def answerers(self) -> list[Half]:
        """Return the workers' halves that may have made the caller's answer."""
        if self.caller is None or not self.caller.who:
            return self.workers
        return [half for half in self.workers if half.who == self.caller.who]


@dataclass(slots=True)
class _Settled:
    caller: bool
    joined: bool
    workers: frozenset[tuple[str, str, float]]


@dataclass(slots=True)
class Join:
    """Joins halves. At most ``max_waiting`` requests wait in each place, and as many settled ones are known, by which
    repetitions and later attempts are told.

    ``take`` hears of each join, ``other`` of each further attempt's half of a request that was joined, ``lone`` of each
    orphan with the half that it had and did not fit.
    """

    take: Callable[[Joined], None]
    other: Callable[[Half], None] = lambda _: None
    lone: Callable[[Half, Orphan, Half | None], None] = lambda _, __, ___: None
    clock_s: float = CLOCK_S
    wait_s: float = WAIT_S
    deadline_s: float = DEADLINE_S
    max_waiting: int = MAX_WAITING
    offered: int = 0
    joined: int = 0
    late: int = 0
    """Of those joined."""
    attempts: int = 0
    """Workers' halves of requests that were joined with another one's."""
    orphans: Counter[tuple[Side, Orphan]] = field(default_factory=Counter)
    repeated: Counter[Side] = field(default_factory=Counter)
    """Callers' halves of an id that had one, and workers' halves that had come before."""
    _fresh: OrderedDict[str, _Waiting] = field(default_factory=OrderedDict)
    _queue: OrderedDict[str, _Waiting] = field(default_factory=OrderedDict)
    _settled: OrderedDict[str, _Settled] = field(default_factory=OrderedDict)

    @property
    def waiting(self) -> int:
        """Requests that may still be joined."""
        return len(self._fresh) + len(self._queue)

    def offer(self, half: Half, now_s: float) -> None:
        """Take a half that became known now; ``now_s`` never decreases."""
        self.advance(now_s)
        self.offered += 1
        name = half.request_id
        settled = self._settled.get(name)
        if settled is not None:
            self._afterwards(half, settled)
            return
        waiting = self._fresh.get(name)
        queued = waiting is None and name in self._queue
        if queued:
            waiting = self._queue[name]
        if waiting is None:
            waiting = self._fresh[name] = _Waiting(now_s)
        if half.side is Side.CALLER:
            if waiting.caller is not None:
                self.repeated[Side.CALLER] += 1
                return
            waiting.caller = half
        elif any(half.own == known.own for known in waiting.workers):
            self.repeated[Side.WORKER] += 1
            return
        else:
            waiting.workers.append(half)
            if len(waiting.workers) > MAX_ATTEMPTS:
                self._another(waiting.workers.pop(0))
        if waiting.caller is not None and (queued or self._certain(waiting)) and waiting.answerers():
            self._meet(name, waiting, late=now_s - waiting.since_s > self.wait_s)
        elif len(self._fresh) > self.max_waiting:
            self._compensate()

    def advance(self, now_s: float) -> None:
        """Move what has waited too long, and give up what is past its deadline."""
        while self._fresh and now_s - next(iter(self._fresh.values())).since_s > self.wait_s:
            self._compensate()
        while self._queue and now_s - next(iter(self._queue.values())).since_s > self.deadline_s:
            self._give_up(Orphan.DEADLINE)

    def close(self) -> None:
        """No more comes: what still waits has no other half."""
        for name, waiting in list(self._fresh.items()):
            if waiting.caller is not None and waiting.answerers():
                self._meet(name, waiting, late=False)
        self._queue.update(self._fresh)
        self._fresh.clear()
        while self._queue:
            self._give_up(Orphan.END)

    def _certain(self, waiting: _Waiting) -> bool:
        """Return whether no other attempt's half can have made the caller's answer: then nothing is waited for."""
        caller = waiting.caller
        if caller is None or not caller.who:
            return False
        return any(half.failed == caller.failed and fits(caller, half, self.clock_s) for half in waiting.answerers())

    def _meet(self, name: str, waiting: _Waiting, *, late: bool) -> None:
        """Both sides are there: join the caller's half with the attempt that answered it."""
        caller = waiting.caller
        assert caller is not None  # noqa: S101 (for the type checker)

        def rank(half: Half) -> tuple[bool, bool, int, float]:
            return (fits(caller, half, self.clock_s), half.failed == caller.failed, half.attempt, half.ended_s)

        worker = max(waiting.answerers(), key=rank)
        self._forget(name)
        joined = fits(caller, worker, self.clock_s)
        self._settle(name, waiting, joined=joined)
        for half in waiting.workers:
            if half is not worker:
                self._another(half)
        if not joined:
            self._orphan(caller, Orphan.CLOCK, worker)
            self._orphan(worker, Orphan.CLOCK, caller)
            return
        self.joined += 1
        self.late += late
        self.take(Joined(caller, worker, late))

    def _afterwards(self, half: Half, settled: _Settled) -> None:
        """Count a half of a request that was settled before it came."""
        if half.side is Side.CALLER:
            if settled.caller:
                self.repeated[Side.CALLER] += 1
            else:
                settled.caller = True
                self._orphan(half, Orphan.DEADLINE)
        elif half.own in settled.workers:
            self.repeated[Side.WORKER] += 1
        else:
            if len(settled.workers) < MAX_ATTEMPTS:
                settled.workers |= {half.own}
            if settled.joined:
                self._another(half)
            else:
                self._orphan(half, Orphan.DEADLINE)

    def _another(self, half: Half) -> None:
        self.attempts += 1
        self.other(half)

    def _orphan(self, half: Half, why: Orphan, beside: Half | None = None) -> None:
        self.orphans[half.side, why] += 1
        self.lone(half, why, beside)

    def _compensate(self) -> None:
        name, waiting = next(iter(self._fresh.items()))
        if waiting.caller is not None and waiting.answerers():
            self._meet(name, waiting, late=False)
            return
        del self._fresh[name]
        if len(self._queue) >= self.max_waiting:
            self._give_up(Orphan.ROOM)
        self._queue[name] = waiting

    def _give_up(self, why: Orphan) -> None:
        name, waiting = self._queue.popitem(last=False)
        self._settle(name, waiting, joined=False)
        for half in ([] if waiting.caller is None else [waiting.caller]) + waiting.workers:
            self._orphan(half, why)

    def _forget(self, name: str) -> None:
        self._fresh.pop(name, None)
        self._queue.pop(name, None)

    def _settle(self, name: str, waiting: _Waiting, *, joined: bool) -> None:
        workers = frozenset(half.own for half in waiting.workers)
        self._settled[name] = _Settled(waiting.caller is not None, joined, workers)
        if len(self._settled) > self.max_waiting:
            self._settled.popitem(last=False)
