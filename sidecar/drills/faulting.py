"""What a drill's ``fault`` may say: one that the sidecar injects, or one of a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from sidecar.config.problems import Problem, dotted, nearest
from sidecar.config.structure import conform
from sidecar.drills.scenario import Name, Seconds
from sidecar.faults.checking import problems as wrong_with
from sidecar.faults.kinds import KINDS
from sidecar.faults.processes.fault import ProcessFault, ProcessFaultError, checked
from sidecar.faults.processes.kinds import KINDS as PROCESS_KINDS
from sidecar.faults.signals.terms import TERMS
from sidecar.settings.base import Base
from sidecar.settings.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sidecar.config.document import Node
    from sidecar.config.problems import Path
    from sidecar.up.announce import Places

_OF_STORES = "store_"
"""How kinds begin that strike the state store as such, by its address."""
_NO_FAULT = "a fault is a mapping with its kind"


class OfProcess(Base, frozen=True):
    """A fault of a process of the drill's own fleet, ended by a keeper whatever becomes of the drill.

    ``process`` is ``worker-N``, ``redis``, ``control`` or ``data-N``.
    """

    kind: str
    process: Annotated[str, Meta(description="worker-1, redis, control or data-0")]
    id: Name | None = None
    for_s: Seconds = 60.0
    share: Annotated[float, Meta(ge=0.02, le=0.95)] | None = None
    headroom_mb: Annotated[float, Meta(ge=0, le=1 << 20)] | None = None


def read_fault(node: Node, path: Path, name: str) -> tuple[dict[str, Any] | None, list[Problem]]:
    """Return the fault that ``node`` describes, with its defaults and an id (else ``name``), or what is wrong."""
    members = node.value if isinstance(node.value, dict) else {}
    kind = members["kind"].node if "kind" in members else None
    if kind is not None and kind.value not in kinds():
        meant = nearest(kind.value, kinds()) if isinstance(kind.value, str) else None
        hint = f'; did you mean "{meant}"?' if meant else ""
        remedy = f"must be one of: {', '.join(kinds())}{hint}"
        return None, [Problem(kind.where, dotted((*path, "kind")), kind.shown, remedy)]
    shape: type[Fault | OfProcess] = OfProcess if kind is not None and kind.value in PROCESS_KINDS else Fault
    fault, problems = conform(node, shape, _NO_FAULT)
    if fault is None:
        whole = dotted(path)
        return None, [
            Problem(one.where, ".".join(filter(None, (whole, one.path))), one.value, one.remedy) for one in problems
        ]
    if isinstance(fault, OfProcess):
        try:
            checked(process_fault(fault), PROCESS_KINDS)
        except ProcessFaultError as error:
            return None, [Problem(node.where, dotted(path), node.shown, str(error))]
    else:
        wrong = [_placed(node, path, field, remedy) for field, remedy in wrong_with(fault)]
        if wrong:
            return None, wrong
    made: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(fault, id=fault.id or name))
    return made, []


def _placed(node: Node, path: Path, field: str, remedy: str) -> Problem:
    """Give a problem its place: that of the field, or of the fault where the field is not written."""
    members = node.value if isinstance(node.value, dict) else {}
    if field in members:
        member = members[field]
        return Problem(member.node.where, dotted((*path, field)), member.node.shown, remedy)
    return Problem(node.where, dotted((*path, field)), "missing", remedy)


def process_fault(fault: OfProcess, places: Places | None = None) -> ProcessFault:
    """Return what the keeper is told of a fault in a fleet that is at ``places``.

    Raises:
        ProcessFaultError: the fleet has no such process.
    """
    pid, url = 0, ""
    if places is not None and fault.kind.startswith(_OF_STORES):
        url = f"unix://{places.redis_socket}"
    elif places is not None:
        found = pid_of(fault.process, places)
        if found is None:
            raise ProcessFaultError(f"the fleet has no process {fault.process}")
        pid = found
    return ProcessFault(
        fault.kind, pid=pid, url=url, for_s=fault.for_s, share=fault.share, headroom_mb=fault.headroom_mb
    )


def kinds() -> list[str]:
    """Return the names of all kinds of faults."""
    return sorted([*KINDS, *TERMS, *PROCESS_KINDS])


def of_process(fault: Mapping[str, Any]) -> bool:
    """Whether a fault is one of a process, and not injected by the sidecar."""
    return fault["kind"] in PROCESS_KINDS


def of_a_store(fault: Mapping[str, Any]) -> bool:
    """Whether a fault strikes the state store as such, which its address names."""
    return str(fault["kind"]).startswith(_OF_STORES)


def endpoint_of(fault: Mapping[str, Any]) -> str:
    """Return the endpoint that a fault strikes, "" where it is not one."""
    process = str(fault.get("process", ""))
    return process if process.startswith("worker-") else str(fault.get("endpoint", ""))


def pid_of(process: str, places: Places) -> int | None:
    """Return the process id of a fleet's process by its name; None where there is none of this name."""
    named: dict[str, int | None] = {worker.id: worker.pid for worker in places.workers}
    named |= {f"data-{number}": pid for number, pid in enumerate(places.data_pids)}
    named |= {"redis": places.redis_pid, "control": places.control_pid}
    return named.get(process)


def rule(id_: str, fault: Mapping[str, Any], lease_s: float) -> dict[str, Any]:
    """Return what ``POST /faults`` is told so that ``fault`` is in force for ``lease_s``."""
    return {name: value for name, value in fault.items() if value is not None} | {"id": id_, "for_s": lease_s}


def told(fault: Mapping[str, Any]) -> str:
    """Return a fault in words: its kind and what was said of it."""
    passed = {"id", "kind", "for_s"}
    parts = [f"{name} {value}" for name, value in fault.items() if name not in passed and value not in ("", None)]
    return ", ".join([str(fault["kind"]), *parts])
