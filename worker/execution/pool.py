"""Keeps the size of the executor's pool of threads: reads how it does, asks the law, and does what that says."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from worker.execution.sizing import Reading, Sizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker.execution.executor import Executor
    from worker.log import EventLog

EVERY_S: Final = 1.0
"""Readings are taken so often; the law's own times are multiples of it."""
REMEMBERED: Final = 16


class Pool:
    """An executor's pool that grows and shrinks. Used on the event loop only."""

    def __init__(
        self, executor: Executor, least: int, most: int, cpu_load: Callable[[], float | None], log: EventLog
    ) -> None:
        """``least`` and ``most``: its size, without what is lent. ``cpu_load``: asked by this alone."""
        self._executor = executor
        self._cpu_load = cpu_load
        self._log = log
        self._sizer = Sizer(least, most, executor.now)
        self._decisions: deque[dict[str, Any]] = deque(maxlen=REMEMBERED)
        self.grown = self.shrunk = self.loans = 0
        """How often it did."""
        executor.resize(least)

    @property
    def size(self) -> int:
        """How many threads are its own."""
        return self._sizer.size

    @property
    def lent(self) -> int:
        """How many it has beside them for a while."""
        return self._sizer.lent

    async def run(self) -> None:
        """Follow the executor; never ends by itself."""
        while True:
            await asyncio.sleep(EVERY_S)
            self.look()

    def look(self) -> None:
        """Take a reading, and do what the law says."""
        executor, sizer = self._executor, self._sizer
        cpu_ratio = self._cpu_load() or 0.0
        size, lent = sizer.size, sizer.lent
        reading = Reading(executor.queue_depth, cpu_ratio, executor.busy, executor.ran_s, executor.ran)
        change = sizer.observe(reading, executor.now)
        if change is None:
            return
        self.grown += change.size > size
        self.shrunk += change.size < size
        self.loans += change.lent > lent and not lent
        executor.resize(change.size + change.lent)
        decision = {
            "from": size,
            "to": change.size,
            "lent": change.lent,
            "score": change.score,
            "why": change.why,
            "waiting": reading.waiting,
            "busy": reading.busy,
            "cpu": round(cpu_ratio, 3),
        }
        self._decisions.append({"at_s": round(executor.now, 3), **decision})
        self._log.info("pool.resized", **decision)

    def facts(self) -> dict[str, Any]:
        """Return its size, bounds and last decisions, for ``/stats``."""
        return {
            **self._executor.facts(),
            "size": self.size,
            "lent": self.lent,
            "least": self._sizer.least,
            "most": self._sizer.most,
            "grown": self.grown,
            "shrunk": self.shrunk,
            "loans": self.loans,
            "decisions": list(self._decisions),
        }
