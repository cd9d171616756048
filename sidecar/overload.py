"""The guard of one data process: before memory, descriptors or its loop's time run out, new work is refused.

It measures twice a second and has the plane act on what changed. What the levels are is decided in
:mod:`router.overload`; docs/limits.md says what a caller sees of them.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from router.overload import Level, Resource, level_after
from sidecar.meters import Meters, max_files, memory_bytes
from sidecar.telemetry.logs import get_log
from sidecar.telemetry.page import OVERLOAD_NOW, Scalar

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.http1.plane import Plane
    from sidecar.settings import Overload

SAMPLE_S = 0.5
LATE_TICKS = 4
"""The loop counts as late by the least lateness of so many ticks: one long callback is not overload."""
LEAST_MEMORY_BYTES = 96 << 20
"""A share of memory that was not configured is never less: a process needs about 40 MiB to stand idle."""
MEMORY_SHARE = 0.8
"""Of what the container or machine has; the rest is for the control process, the supervisor and the kernel."""
TRIM_S = 10.0
_SPARE_FILES = 32
"""Descriptors for what is neither a caller's nor a worker's: files that are read again, names that are looked up."""

_UNITS = {
    Resource.MEMORY: "bytes of memory",
    Resource.DESCRIPTORS: "descriptors",
    Resource.LOOP: "seconds behind",
}


class Use(NamedTuple):
    """What is used of a resource, and what there is."""

    used: float
    most: float

    @property
    def ratio(self) -> float:
        """Used of what there is; 0 where that is not limited."""
        return self.used / self.most if self.most else 0.0


class Guard:
    """Measures, decides and has the plane act. ``processes`` share the memory."""

    def __init__(
        self,
        plane: Plane,
        settings: Overload,
        processes: int,
        *,
        meters: Meters | None = None,
        files: Callable[[], int] = max_files,
        memory: Callable[[], int] = memory_bytes,
    ) -> None:
        self._plane = plane
        self._log = get_log("overload")
        self._meters = meters or Meters()
        self._processes = processes
        self._memory = memory
        self._max_files = files()
        self._levels = dict.fromkeys(Resource, Level.NORMAL)
        self._lateness: deque[float] = deque([0.0] * LATE_TICKS, maxlen=LATE_TICKS)
        self._due = 0.0
        self._trim_due = 0.0
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
        self._settings = settings
        self._most_memory = 0
        self._left = -1  # descriptors for connections; not known yet
        self.configure(settings)

    def configure(self, settings: Overload) -> None:
        """Go by these settings from now on."""
        self._settings = settings
        share = int(self._memory() * MEMORY_SHARE / self._processes)
        self._most_memory = settings.memory_bytes or max(LEAST_MEMORY_BYTES, share)
        self._plane.memory_bytes = self._most_memory
        if self._left >= 0:
            self._offer()

    def begin(self) -> None:
        """Say what there is, before the first connection: at most half of the descriptors left go to callers.

        The other half is kept for the connections to workers: what was accepted can be carried.
        """
        self._left = max(0, self._max_files - self._meters.open_files() - _SPARE_FILES)
        callers = self._offer()
        wanted = self._plane.limits.connections
        few = callers < wanted
        note = {"remedy": f"raise the limit on open files to {2 * wanted + 512}"} if few else {}
        (self._log.warning if few else self._log.info)(
            "overload.limits",
            memory_bytes=self._most_memory,
            descriptors=self._max_files,
            connections=min(callers, wanted),
            connections_asked=wanted,
            **note,
        )

    def _offer(self) -> int:
        reserve = min(self._settings.reserve_connections, self._left // 8)
        callers = max(1, (self._left - 2 * reserve) // 2)
        self._plane.offer(callers, reserve)
        return callers

    def ticked(self, late_s: float, now: float) -> None:
        """The loop's tick came ``late_s`` late; measure where that is due."""
        self._lateness.append(late_s)
        if now >= self._due:
            self._due = now + SAMPLE_S
            self._measure(now)

    def _measure(self, now: float) -> None:
        lag_s = self._settings.loop_lag_s
        uses = {
            Resource.MEMORY: Use(self._meters.resident_bytes(), self._most_memory),
            Resource.DESCRIPTORS: Use(self._meters.open_files(), self._max_files),
            Resource.LOOP: Use(min(self._lateness), lag_s or 0.0),
        }
        settings = self._settings
        plane = self._plane
        for name, use in uses.items():
            before = self._levels[name]
            level = level_after(before, use.ratio, settings.soft_ratio, settings.hard_ratio)
            if level is not before:
                self._changed(name, before, level, use)
        plane.gauge(Scalar.RESIDENT_BYTES_NOW, int(uses[Resource.MEMORY].used))
        plane.gauge(Scalar.OPEN_FILES_NOW, int(uses[Resource.DESCRIPTORS].used))
        plane.gauge(Scalar.MEMORY_LIMIT_BYTES_NOW, self._most_memory)
        plane.gauge(Scalar.MAX_FILES_NOW, self._max_files)
        plane.gauge(Scalar.TASKS_NOW, len(asyncio.all_tasks(plane.loop)))
        self._act(uses, now)

    def _changed(self, name: Resource, before: Level, level: Level, use: Use) -> None:
        self._levels[name] = level
        self._plane.gauge(OVERLOAD_NOW[name], int(level))
        log = self._log.warning if level > before else self._log.info
        log(
            "overload.changed",
            resource=name.value,
            before=before.name.lower(),
            after=level.name.lower(),
            used=round(use.used, 3),
            most=round(use.most, 3),
        )

    def _act(self, uses: dict[Resource, Use], now: float) -> None:
        plane = self._plane
        levels = self._levels
        if max(levels[Resource.MEMORY], levels[Resource.DESCRIPTORS]):  # to close connections gives a late loop no time
            plane.tighten(now)
            if levels[Resource.MEMORY] and now >= self._trim_due:
                self._trim_due = now + TRIM_S
                gc.collect()
                if self._trim is not None:
                    self._trim(0)
        elif plane.tight:
            plane.relax()
        out = [name for name in Resource if levels[name] is Level.HARD]
        if out:
            use = uses[out[0]]
            amount = f"{use.used:.0f}" if use.most >= 100 else f"{use.used:.2f}"
            plane.refuse(f"{amount} of {use.most:.16g} {_UNITS[out[0]]}")
        elif plane.refusing:
            plane.refuse("")
