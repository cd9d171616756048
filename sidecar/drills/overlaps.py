"""Faults of a drill that would be in force at the same time, and cannot be. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sidecar.config.semantics import Finding
from sidecar.drills.faulting import of_a_store, of_process
from sidecar.drills.scenario import shortened
from sidecar.faults.processes import MAX_FAULTS
from sidecar.faults.processes.fault import Reach, in_the_way
from sidecar.faults.processes.kinds import KINDS as PROCESS_KINDS
from sidecar.settings.faults import Fault, Faults

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.drills.scenario import Drill

MARGIN_S = 0.25
"""A fault with less of its time left than this may have ended."""


class _Live(NamedTuple):
    id: str
    fault: dict[str, Any]
    until: float
    process: str
    """The process that it strikes; "" where it is not one of a process, or that is gone."""

    @property
    def told(self) -> str:
        return f'{self.fault["kind"]} ("{self.id}")'


class _Starting(NamedTuple):
    """A process that is started again."""

    after: _Live
    at: float


def overlaps(drill: Drill) -> Iterator[Finding]:
    """Yield which faults must be refused as the drill runs, in its whole form or the short one.

    What is expected may come at once or never: a fault counts as in force where it is however long that takes.
    """
    found = {finding: None for form in (drill, shortened(drill)) for finding in _overlaps(form)}
    yield from found


def _overlaps(drill: Drill) -> Iterator[Finding]:
    most, rules = _most(drill), _rules(drill)
    at = 0.0
    live: list[_Live] = []
    starting: dict[str, _Starting] = {}
    for number, phase in enumerate(drill.phases):
        live = [one for one in live if one.until > at + MARGIN_S]
        if phase.wait is not None:
            at += phase.wait.for_s
        elif phase.expect is not None:
            at += phase.expect.within_s
        elif phase.end is not None:
            for one in live:
                if one.id == phase.end.fault and _ends_it(one):
                    starting[one.process] = _Starting(one, at)
            live = [one for one in live if one.id != phase.end.fault]
        elif phase.fault is not None:
            until = at + float(phase.fault["for_s"])
            new = _Live(str(phase.fault["id"]), phase.fault, until, str(phase.fault.get("process", "")))
            path = ("phases", number, "fault")
            if of_process(new.fault):
                yield from _of_process(path, new, live)
                before = starting.get(new.process)
                if before is not None and before.at >= at:
                    yield Finding(
                        (*path, "process"),
                        f"is only being started again then, after {before.after.told}: wait until it is there",
                    )
                if _ends_it(new):  # what struck it before is gone with it
                    live = [one._replace(process="") if one.process == new.process else one for one in live]
                if PROCESS_KINDS[new.fault["kind"]].LASTS:
                    live.append(new)
                else:
                    starting[new.process] = _Starting(new, at)
                continue
            others = sum(not of_process(one.fault) for one in live) + sum(until > at + MARGIN_S for until in rules)
            if most is not None and others >= most:
                had = f"{others} faults are in force then already: end one before, or " if most else ""
                yield Finding((*path, "kind"), f"{had}raise start.up.config.faults.most ({most})")
            live.append(new)


def _ends_it(one: _Live) -> bool:
    """Whether a fault ends its process, so that it is another one later."""
    return bool(one.process) and PROCESS_KINDS[one.fault["kind"]].LEAVES is Reach.NOTHING


def _of_process(path: tuple[str | int, ...], new: _Live, live: list[_Live]) -> Iterator[Finding]:
    """Look at what is in force of processes as ``new`` begins, by the keeper's own rule."""
    others = [one for one in live if of_process(one.fault)]
    if len(others) >= MAX_FAULTS:
        yield Finding((*path, "kind"), f"{MAX_FAULTS} faults of processes are in force then already: end one before")
    for one in others:
        if one.process != new.process:
            continue
        act, other = (PROCESS_KINDS[fault["kind"]] for fault in (new.fault, one.fault))
        if in_the_way(act, other, by_url=of_a_store(new.fault)):
            yield Finding(
                (*path, "process"), f"{one.told} is in force there then: end it before, or wait until it has ended"
            )


def _rules(drill: Drill) -> list[float]:
    """Return until when each fault of the fleet's own configuration is in force for sure, seconds of the drill.

    They begin with the sidecar, which may have taken ``ready_s`` to be ready, and as long to hear of all its workers.
    """
    if drill.start is None:
        return []
    faults = drill.start.up.config.get("faults")
    said = faults.get("rules") if isinstance(faults, dict) else None
    times = [one.get("for_s", Fault.for_s) for one in said if isinstance(one, dict)] if isinstance(said, list) else []
    return [time - 2 * drill.start.up.ready_s for time in times if isinstance(time, int | float)]


def _most(drill: Drill) -> int | None:
    """Return how many faults the sidecar injects at once; None where it is not the drill's own."""
    if drill.start is None:
        return None
    faults = drill.start.up.config.get("faults")
    said = faults.get("most") if isinstance(faults, dict) else None
    return said if isinstance(said, int) else Faults().most
