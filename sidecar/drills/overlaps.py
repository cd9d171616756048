"""Faults of a drill that would be in force at the same time, and cannot be. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sidecar.config.semantics import Finding
from sidecar.drills.faulting import of_process
from sidecar.drills.scenario import shortened
from sidecar.faults.processes import MAX_FAULTS
from sidecar.faults.processes.kinds import KINDS as PROCESS_KINDS
from sidecar.faults.processes.stop import Stop
from sidecar.settings.faults import Faults

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.drills.scenario import Drill

MARGIN_S = 0.25
"""A fault with less of its time left than this may have ended."""


class _Live(NamedTuple):
    id: str
    fault: dict[str, Any]
    until: float

    @property
    def runs(self) -> str:
        """The process that it stops or lets run; "" where it does neither, and the process may be another one soon."""
        act = PROCESS_KINDS.get(self.fault["kind"])
        return str(self.fault["process"]) if act is not None and act.SUBJECT == Stop.SUBJECT else ""


def overlaps(drill: Drill) -> Iterator[Finding]:
    """Yield which faults must be refused as the drill runs, in its whole form or the short one.

    What is expected may come at once or never: a fault counts as in force where it is however long that takes.
    """
    found = {finding: None for form in (drill, shortened(drill)) for finding in _overlaps(form)}
    yield from found


def _overlaps(drill: Drill) -> Iterator[Finding]:
    most = _most(drill)
    at = 0.0
    live: list[_Live] = []
    for number, phase in enumerate(drill.phases):
        live = [one for one in live if one.until > at + MARGIN_S]
        if phase.wait is not None:
            at += phase.wait.for_s
        elif phase.expect is not None:
            at += phase.expect.within_s
        elif phase.end is not None:
            live = [one for one in live if one.id != phase.end.fault]
        elif phase.fault is not None:
            new = _Live(str(phase.fault["id"]), phase.fault, at + float(phase.fault["for_s"]))
            path = ("phases", number, "fault")
            if of_process(new.fault):
                yield from _of_process(path, new, live)
                if PROCESS_KINDS[new.fault["kind"]].LASTS:
                    live.append(new)
                continue
            others = sum(not of_process(one.fault) for one in live)
            if most is not None and others >= most:
                had = f"{others} faults are in force then already: end one before, or " if most else ""
                yield Finding((*path, "kind"), f"{had}raise start.up.config.faults.most ({most})")
            live.append(new)


def _of_process(path: tuple[str | int, ...], new: _Live, live: list[_Live]) -> Iterator[Finding]:
    """Look at what is in force of processes as ``new`` begins."""
    others = [one for one in live if of_process(one.fault)]
    if len(others) >= MAX_FAULTS:
        yield Finding((*path, "kind"), f"{MAX_FAULTS} faults of processes are in force then already: end one before")
    for one in others:
        if new.runs and one.runs == new.runs:
            yield Finding(
                (*path, "process"),
                f'{one.fault["kind"]} ("{one.id}") is in force there then: end it before, or wait until it has ended',
            )


def _most(drill: Drill) -> int | None:
    """Return how many faults the sidecar injects at once; None where it is not the drill's own."""
    if drill.start is None:
        return None
    faults = drill.start.up.config.get("faults")
    said = faults.get("most") if isinstance(faults, dict) else None
    return said if isinstance(said, int) else Faults().most
