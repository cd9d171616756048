"""The faults that a drill has in force.

A drill that is killed leaves none for long: the sidecar's are on a short lease, those of processes have a keeper.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from sidecar.cli.outcome import EXIT_UNREACHABLE
from sidecar.drills.aside import aside
from sidecar.drills.faulting import OfProcess, endpoint_of, of_process, pid_of, process_fault, rule, told
from sidecar.drills.place import LEASE_S, RENEW_S, PlaceError
from sidecar.drills.record import FaultSpan
from sidecar.faults.processes import FaultKeeper, ProcessFaultError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.drills.place import Place
    from sidecar.faults.processes import KeptFault
    from sidecar.up.announce import Places

KILL = "kill"
THERE_S = 0.2
"""How often it is looked whether a process that was killed is there again."""
MAX_ID = 64
"""Longest id of a fault that a sidecar takes."""
END_TRIES = 5
END_PAUSE_S = 0.5


class Faults:
    """Begins, prolongs and ends faults. ``now`` is seconds since the drill began; ``places`` tells of its own fleet."""

    def __init__(self, place: Place, drill: str, now: Callable[[], float], places: Callable[[], Places] | None) -> None:
        self._place = place
        self._places = places
        self._prefix = f"drill-{drill}-"
        self._now = now
        self._held: dict[str, tuple[dict[str, Any], float]] = {}
        self._kept: dict[str, KeptFault] = {}
        self._killed: dict[str, tuple[str, int]] = {}
        self._keeper: FaultKeeper | None = None
        self._refusals: dict[str, PlaceError] = {}
        self.spans: list[FaultSpan] = []
        self.left: list[str] = []
        """What could not be ended, in words."""

    @property
    def in_force(self) -> list[str]:
        """The ids of the faults in force."""
        return list(self._held)

    async def begin(self, fault: dict[str, Any]) -> None:
        """Put a fault in force.

        Raises:
            PlaceError: it is refused.
        """
        id_, for_s = str(fault["id"]), float(fault["for_s"])
        begin = self._now()
        self._held[id_] = (fault, begin + for_s)  # before it is there: whatever happens now, it will be ended
        self.spans.append(FaultSpan(id_, str(fault["kind"]), endpoint_of(fault), begin, begin, told(fault)))
        if of_process(fault):
            await aside(self._begin_of_process, id_, fault)
        else:
            await self._place.put_fault(rule(self._named(id_), fault, min(LEASE_S, for_s)))

    async def end(self, id_: str) -> None:
        """End a fault before its time; nothing where it has ended.

        Raises:
            PlaceError: it could not be ended now; it ends by itself all the same.
        """
        if id_ not in self._held:
            return
        if of_process(self._held[id_][0]):
            kept = self._kept.get(id_)
            if kept is not None:
                try:
                    await aside(kept.end)
                except ProcessFaultError as error:
                    raise PlaceError(str(error)) from None
        else:
            await self._place.remove_fault(self._named(id_))
        self._ended(id_)

    async def keep(self) -> None:
        """Prolong the sidecar's faults in force, each up to its own end, and note what has ended, until cancelled."""
        while True:
            await asyncio.sleep(RENEW_S)
            for id_, (fault, until) in list(self._held.items()):
                left_s = until - self._now()
                if left_s <= 0:
                    self._ended(id_, until)
                elif not of_process(fault) and left_s > LEASE_S - RENEW_S and id_ in self._held:
                    with suppress(PlaceError):  # it may be starting again; the next turn tries it again
                        await self._place.put_fault(rule(self._named(id_), fault, min(LEASE_S, left_s)))

    async def end_all(self) -> None:
        """End all of them, together; what is still held after it, or when it is cancelled, could not be ended."""
        closing = None
        try:
            await asyncio.gather(*(self._end_surely(id_) for id_ in list(self._held)))
        finally:  # cancelled, too: the keeper ends what it keeps, whether or not somebody waits
            if self._keeper is not None:
                closing = aside(self._keeper.close)
        if closing is not None:
            try:
                await closing
            except ProcessFaultError as error:
                self.left.append(f"faults of processes: {error}")

    def give_up(self) -> None:
        """Note which faults could not be ended, and why, in :attr:`left`."""
        for id_, (fault, _) in list(self._held.items()):
            refusal = self._refusals.get(id_)
            if refusal is not None and refusal.code == EXIT_UNREACHABLE:
                gone = f"what it had ends by itself within {LEASE_S:g} s, or with the process"
                self.left.append(f"fault {id_}: the sidecar is not reachable: {gone}")
            else:
                why = refusal or "nobody said in time that it is ended"
                by = "its keeper ends it" if of_process(fault) else f"it ends by itself within {LEASE_S:g} s"
                self.left.append(f"fault {id_}: {why}; {by}")
            self._ended(id_)

    async def _end_surely(self, id_: str) -> None:
        for _ in range(END_TRIES):
            try:
                await self.end(id_)
            except PlaceError as error:
                self._refusals[id_] = error
                await asyncio.sleep(END_PAUSE_S)
            else:
                return

    async def watch_killed(self) -> None:
        """Note when each process that a fault killed is there again, until cancelled."""
        while True:
            await asyncio.sleep(THERE_S)
            if self._killed and self._places is not None:
                with suppress(OSError, msgspec.DecodeError):  # the ready file is being written, or the fleet is gone
                    self._note_there(self._places())

    def _note_there(self, places: Places) -> None:
        for id_, (process, killed) in list(self._killed.items()):
            if pid_of(process, places) not in {None, killed}:
                del self._killed[id_]
                number = max(number for number, span in enumerate(self.spans) if span.id == id_)
                self.spans[number] = replace(self.spans[number], there_again=self._now())

    def _begin_of_process(self, id_: str, fault: dict[str, Any]) -> None:
        if self._places is None:
            raise PlaceError(f"fault {id_}: only processes that the drill started itself are touched")
        if self._keeper is None:
            self._keeper = FaultKeeper()
        try:
            struck = process_fault(msgspec.convert(fault, OfProcess), self._places())
            self._kept[id_] = self._keeper.begin(struck)
            if struck.kind == KILL:
                self._killed[id_] = (str(fault["process"]), struck.pid)
        except (ProcessFaultError, OSError) as error:  # the ready file is gone where the fleet is
            raise PlaceError(f"fault {id_}: {error}") from None

    def _named(self, id_: str) -> str:
        """Return what the sidecar calls a fault: too long names are cut, and stay each their own."""
        whole = self._prefix + id_
        return whole if len(whole) <= MAX_ID else f"{whole[: MAX_ID - 13]}-{sha256(whole.encode()).hexdigest()[:12]}"

    def _ended(self, id_: str, at: float | None = None) -> None:
        self._held.pop(id_, None)
        self._kept.pop(id_, None)
        moment = self._now() if at is None else min(at, self._now())
        for number, span in enumerate(self.spans):
            if span.id == id_ and span.end == span.begin:
                self.spans[number] = replace(span, end=moment)
