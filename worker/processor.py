"""How busy a worker's processors are: the signal that it reports for the router's ``cpu_load`` term."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from worker.memory import control_groups

if TYPE_CHECKING:
    from collections.abc import Callable

LEAST_S = 0.5
"""Over less time nothing is measured; what was measured last stands."""


class CpuLoad:
    """The part of the processor time that this process might have used, and did, since it was last asked; in [0, 1]."""

    def __init__(self, cores: float, clock: Callable[[], float], used_s: Callable[[], float]) -> None:
        """``cores``: how many it may use. ``clock``: monotonic seconds. ``used_s``: of all of its threads."""
        self._cores = cores
        self._clock = clock
        self._used_s = used_s
        self._at = clock()
        self._used_at = used_s()
        self._load: float | None = None

    def read(self) -> float | None:
        """Return the load; None for the first half second."""
        now = self._clock()
        elapsed_s = now - self._at
        if elapsed_s >= LEAST_S:
            used = self._used_s()
            self._load = min(1.0, max(0.0, (used - self._used_at) / (elapsed_s * self._cores)))
            self._at, self._used_at = now, used
        return self._load


def usable_cores(cores: int, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> float:
    """Return how many of ``cores`` the control groups (version 2) of this process leave it, by their ``cpu.max``."""
    usable = float(cores)
    for group in control_groups(proc, groups):
        try:
            quota, period = (group / "cpu.max").read_text().split()
            if quota != "max" and int(quota) > 0 and int(period) > 0:
                usable = min(usable, int(quota) / int(period))
        except (OSError, ValueError):
            continue
    return usable
