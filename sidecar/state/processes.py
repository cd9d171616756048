"""The data processes, as the control process knows them: which speak, and over which limits are divided."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.telemetry.logs import get_log

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router.model import Evidence
    from sidecar.channel import Listening
    from sidecar.state.roster import Guarded

SPEAKS_S = 3.0
"""A data process that said nothing for this long is not up (it speaks once a second)."""

_log = get_log("keeper")


class DataProcess:
    """What the control process knows of one data process: its last hello, its listeners, when it last spoke.

    ``guards`` is what is ejected there, ``guards_named`` the part of a new list of it that has come in so far; the same
    of ``trials``, how those of breakers go that are half open there.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.pid = 0
        self.epoch = ""
        self.hellos = 0
        self.listeners: dict[str, Listening] = {}
        self.guards: set[Guarded] = set()
        self.guards_named: set[Guarded] = set()
        self.trials: dict[Guarded, tuple[int, Evidence]] = {}
        self.trials_named: dict[Guarded, tuple[int, Evidence]] = {}
        self.spoke_at: float | None = None

    def speaks(self, now: float) -> bool:
        """Whether it has been heard just now."""
        return self.spoke_at is not None and now - self.spoke_at <= SPEAKS_S


class Living:
    """Over which data processes limits are divided: those that run and speak."""

    def __init__(self, processes: Sequence[DataProcess], runs: Callable[[int], bool], began_at: float) -> None:
        """``runs`` says whether a process lives."""
        self.indices: tuple[int, ...] = ()
        """Of those processes; none while that is not known yet."""
        self._processes = processes
        self._runs = runs
        self._began_at = began_at

    def look(self, now: float) -> bool:
        """Find out again; return whether it changed. Not before each had its time to be heard."""
        heard = all(process.spoke_at is not None for process in self._processes)
        if not heard and now - self._began_at <= SPEAKS_S:
            return False
        alive = tuple(
            process.index
            for process in self._processes
            if process.speaks(now) and (not process.pid or self._runs(process.pid))
        )
        if alive == self.indices:
            return False
        self.indices = alive
        if len(self._processes) > 1:
            _log.info("limits.divided", data_processes=alive)
        return True
