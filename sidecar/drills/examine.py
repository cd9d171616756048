"""What makes no sense about a drill that fits the schema. Pure, but for the certificates that a load names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from router.policy import MAX_SHARES
from sidecar.config.semantics import Finding
from sidecar.drills import reaching
from sidecar.drills.faulting import endpoint_of
from sidecar.drills.scenario import (
    ABORTING,
    MAX_OBJECTIVES,
    MAX_PHASES,
    OF_A_FAULT,
    OF_OWN_LOAD,
    SHARES,
    Act,
    Drill,
    Expect,
    Load,
    Measure,
    Objective,
    kind_of,
)
from sidecar.traffic.requests import TOKEN
from sidecar.up.engines import unknown_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.config.problems import Path
    from sidecar.drills.scenario import Do, Phase, Up

_VALUE = re.compile(r"[\t\x20-\x7e]*\Z")
_FEATURE = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_TARGET = re.compile(r"/[!\"$-~]*\Z")
_OURS = frozenset({"content-length", "transfer-encoding", "connection", "host", "x-request-id"})
_STEPS = "load, fault, end, do, wait, expect"


def examine(drill: Drill) -> Iterator[Finding]:
    """Yield everything about ``drill`` (with names for its phases) that cannot be meant."""
    if len(drill.phases) > MAX_PHASES:
        yield Finding(("phases",), f"has {len(drill.phases)} phases, at most {MAX_PHASES}: make it two drills")
    if len(drill.objectives) > MAX_OBJECTIVES:
        yield Finding(("objectives",), f"has {len(drill.objectives)}, at most {MAX_OBJECTIVES}: leave some out")
    yield from _phases(drill)
    for number, objective in enumerate(drill.objectives):
        for finding in _objective(drill, objective):
            yield Finding(("objectives", number, *finding.path), finding.remedy)
    for number, abort in enumerate(drill.abort):
        if abort.measure not in ABORTING:
            known = ", ".join(sorted(ABORTING))
            yield Finding(("abort", number, "measure"), f"cannot be told while the drill runs: one of {known}")
        elif abort.measure in SHARES and abort.above >= 1:
            yield Finding(("abort", number, "above"), "is a share, and none is above it: from 0 to less than 1")
    yield from _whole(drill)


def faults_of(drill: Drill) -> dict[str, Phase]:
    """Return the phases that begin faults, by the id of their fault."""
    return {str(phase.fault["id"]): phase for phase in drill.phases if phase.fault is not None and "id" in phase.fault}


def fault_meant(drill: Drill, objective: Objective) -> str:
    """Return the id of the fault that an objective is about: the one it names, or the drill's only one; else ""."""
    if objective.fault:
        return objective.fault
    known = list(faults_of(drill))
    return known[0] if len(known) == 1 else ""


def endpoint_meant(drill: Drill, objective: Objective) -> str:
    """Return the endpoint that an objective is about: the one it names, or that of its fault; else ""."""
    phase = faults_of(drill).get(fault_meant(drill, objective))
    return objective.endpoint or (endpoint_of(phase.fault) if phase and phase.fault else "")


def length_s(drill: Drill) -> float:
    """Return the longest time that a drill's phases can take, in seconds."""
    waits = sum(phase.wait.for_s for phase in drill.phases if phase.wait)
    return waits + sum(phase.expect.within_s for phase in drill.phases if phase.expect)


def _whole(drill: Drill) -> Iterator[Finding]:
    if length_s(drill) > drill.limit_s:
        yield Finding(("limit_s",), f"is less than the {length_s(drill):g} s that the phases may take: raise it")
    names = {phase.name for phase in drill.phases}
    for feature, off in drill.without.items():
        if not _FEATURE.match(feature):
            yield Finding(
                ("without", feature), "its name must have 1 to 64 letters, digits, dots, underscores or hyphens"
            )
        for number, name in enumerate(off.skip):
            if name not in names:
                yield Finding(("without", feature, "skip", number), f"no phase has this name: there {_are(names)}")
        if not off.skip and not off.config and off.worker_flags is None:
            yield Finding(("without", feature), "changes nothing: add config, worker_flags or skip")
    if drill.start is None:
        if drill.without:
            yield Finding(("without",), 'needs "start": only what a drill starts itself can be started otherwise')
        if drill.short.config or drill.short.worker_flags is not None:
            yield Finding(("short",), 'config and worker_flags need "start": leave them out')
        return
    if not any(phase.load for phase in drill.phases):
        yield Finding(("phases",), "no phase is a load, and nobody else sends to a sidecar of the drill's own: add one")
    yield from _engines(drill, drill.start.up)


def _engines(drill: Drill, up: Up) -> Iterator[Finding]:
    """Yield where an engine is named that there is not: by its field, or among the workers' flags."""
    if up.engine is not None and (wrong := unknown_engine(up.engine)):
        yield Finding(("start", "up", "engine"), wrong)
    places: list[tuple[Path, tuple[str, ...] | None]] = [
        (("start", "up"), up.worker_flags),
        (("short",), drill.short.worker_flags),
        *((("without", feature), off.worker_flags) for feature, off in drill.without.items()),
    ]
    for path, flags in places:
        for number, flag in enumerate(flags or ()):
            name = flag.partition("=")[2] if flag.startswith("--engine=") else ""
            if flag == "--engine" and number + 1 < len(flags or ()):
                number, name = number + 1, (flags or ())[number + 1]
            if name and (wrong := unknown_engine(name)):
                yield Finding((*path, "worker_flags", number), wrong)


def _phases(drill: Drill) -> Iterator[Finding]:
    names: dict[str, int] = {}
    begun: set[str] = set()
    for number, phase in enumerate(drill.phases):
        path = ("phases", number)
        steps = [name for name in _STEPS.split(", ") if getattr(phase, name) is not None]
        if len(steps) != 1:
            said = " and ".join(steps) or "nothing"
            yield Finding(path, f"says {said}: must say exactly one of {_STEPS}")
            continue
        if phase.name in names:
            yield Finding((*path, "name"), f"is that of phase {names[phase.name] + 1}, too: give each its own")
        names[phase.name] = number
        for finding in _step(drill, phase, begun):
            yield Finding((*path, kind_of(phase), *finding.path), finding.remedy)


def _step(drill: Drill, phase: Phase, begun: set[str]) -> Iterator[Finding]:
    if phase.fault is not None:
        yield from _fault(drill, phase, begun)
    elif phase.end is not None:
        if phase.end.fault not in begun:
            known = f"there {_are(begun)}" if begun else "none has begun"
            yield Finding(("fault",), f"no fault of this id is in force here: {known}")
        begun.discard(phase.end.fault)
    elif phase.load is not None:
        yield from _load(phase.load)
    elif phase.expect is not None:
        yield from _expect(drill, phase.expect)
    elif phase.do is not None:
        yield from _do(drill, phase.do)


def _fault(drill: Drill, phase: Phase, begun: set[str]) -> Iterator[Finding]:
    fault = phase.fault or {}
    id_ = str(fault.get("id", phase.name))
    if id_ in begun:
        yield Finding(("id",), f'"{id_}" is in force already: end it first, or give this one another id')
    begun.add(id_)
    process = str(fault.get("process", ""))
    if process:
        yield from _process(drill, fault, process)
    yield from _endpoint(drill, str(fault.get("endpoint", "")))
    yield from _model(drill, str(fault.get("model", "")))


def _process(drill: Drill, fault: dict[str, Any], process: str) -> Iterator[Finding]:
    if drill.start is None:
        yield Finding(("process",), 'needs "start": only processes that the drill started itself are touched')
        return
    up = drill.start.up
    known = [f"worker-{number}" for number in range(1, up.workers + 1)]
    known += ["redis", "control", *(f"data-{number}" for number in range(up.processes))]
    if process not in known:
        yield Finding(("process",), f"there {_are(known)}")
    elif fault["kind"].startswith("store_") and process != "redis":
        yield Finding(("process",), f"{fault['kind']} is for redis: name that")


def _endpoint(drill: Drill, endpoint: str) -> Iterator[Finding]:
    if drill.start is None or not endpoint:
        return
    known = drill.start.endpoints
    if endpoint not in known:
        yield Finding(("endpoint",), f"there {_are(known)}")


def _model(drill: Drill, model: str) -> Iterator[Finding]:
    """Look whether a fleet of the drill's own has a model; a route's name may have a version behind @."""
    if drill.start is None or not model:
        return
    known = drill.start.models
    if model.partition("@")[0] not in known:
        yield Finding(("model",), f"there {_are(known)}")


def _are(names: set[str] | list[str]) -> str:
    return f"{'is' if len(names) == 1 else 'are'} {', '.join(sorted(names))}"


def _load(load: Load) -> Iterator[Finding]:
    if not _TARGET.match(load.path):
        yield Finding(("path",), "must begin with / and hold no spaces and no #")
    if not TOKEN.fullmatch(load.method) or load.method == "CONNECT":
        yield Finding(("method",), "must be a method, as POST, other than CONNECT")
    for name, value in load.headers.items():
        if name.lower() in _OURS:
            yield Finding(("headers", name), "the drill sets this itself: leave it out")
        elif not TOKEN.fullmatch(name) or not _VALUE.match(value):
            yield Finding(("headers", name), "must be a field name with a value in printable ASCII")
    yield from reaching.problems(load)


_PARTS = ("share_at_most", "share_at_least", "weight_at_most", "weight_at_least")


def _expect(drill: Drill, expect: Expect) -> Iterator[Finding]:
    shares = [name for name in _PARTS if getattr(expect, name) is not None]
    single = (expect.being, expect.reason, expect.step, expect.picked, expect.store, expect.ready)
    if not shares and all(one is None for one in single):
        known = f"being, reason, step, picked, {', '.join(_PARTS)}, store or ready"
        yield Finding((), f"expects nothing: add {known}")
    for field, of_one in (("being", expect.being), ("reason", expect.reason)):
        if of_one is not None and not expect.endpoint:
            yield Finding((field,), "needs the endpoint that is meant: add it")
    if expect.endpoint and expect.being is None and expect.reason is None and not shares:
        yield Finding(("endpoint",), "needs being, reason or a share: say what is expected of it")
    if not expect.model:
        for field, given in (("step", expect.step), ("picked", expect.picked)):
            if given is not None:
                yield Finding((field,), "needs the model that is meant: add it")
    for field in shares:
        if field.startswith("weight") and not (expect.model and (expect.endpoint or expect.version)):
            yield Finding((field,), "needs a model and an endpoint or a version whose weight it is: add them")
        elif field.startswith("share") and not (expect.model and expect.endpoint):
            yield Finding(
                (field,), "needs a model and the endpoint whose share it is: add them (a version has weight_…)"
            )
    for part in ("share", "weight"):
        most, least = getattr(expect, f"{part}_at_most"), getattr(expect, f"{part}_at_least")
        if most is not None and least is not None and least > most:
            yield Finding((f"{part}_at_least",), f"is over {part}_at_most ({most:g}): nothing can be both")
    if expect.version and expect.weight_at_most is None and expect.weight_at_least is None:
        yield Finding(("version",), "needs weight_at_most or weight_at_least: only a version's weight is expected")
    yield from _endpoint(drill, expect.endpoint)
    yield from _model(drill, expect.model)


_TAKES = {
    Act.DRAIN: {"endpoint"},
    Act.RESUME: {"endpoint"},
    Act.SPLIT: {"model", "split"},
    Act.PROMOTE: {"model", "version"},
    Act.ROLLBACK: {"model", "version"},
    Act.RESET: {"model"},
}
"""What each act goes by."""


def _do(drill: Drill, do: Do) -> Iterator[Finding]:
    for field in ("endpoint", "model", "version", "split"):
        if getattr(do, field) and field not in _TAKES[do.act]:
            yield Finding((field,), f"must be left out: {do.act} does not go by it")
    if do.act in {Act.DRAIN, Act.RESUME}:
        if not do.endpoint:
            yield Finding(("act",), f"{do.act} needs an endpoint: add it")
        yield from _endpoint(drill, do.endpoint)
        return
    if not do.model:
        yield Finding(("act",), f"{do.act} needs a model: add it")
    yield from _model(drill, do.model)
    if do.act is Act.SPLIT and not do.split:
        yield Finding(("split",), 'needs versions with their weights, as {"1": 95, "2": 5}: add them')
    elif do.act is Act.SPLIT and not any(do.split.values()):
        yield Finding(("split",), "nobody would get any: give one a weight above 0")
    elif do.act is Act.SPLIT and len(do.split) > MAX_SHARES:
        yield Finding(("split",), f"must name at most {MAX_SHARES} versions")


def _objective(drill: Drill, objective: Objective) -> Iterator[Finding]:
    measure, most, least = objective.measure, objective.at_most, objective.at_least
    if most is None and least is None:
        yield Finding((), "sets no bound: add at_most or at_least")
    if most is not None and least is not None and least > most:
        yield Finding(("at_least",), f"is over at_most ({most:g}): nothing can be both")
    for field, bound in (("at_most", most), ("at_least", least)):
        if measure in SHARES and bound is not None and bound > 1:
            yield Finding((field,), "is a share: from 0 to 1")
    names = {phase.name for phase in drill.phases}
    for number, name in enumerate(objective.during):
        if name not in names:
            yield Finding(("during", number), f"no phase has this name: there {_are(names)}")
    own = any(phase.load for phase in drill.phases)
    if measure in OF_OWN_LOAD and not own:
        yield Finding(("measure",), "only a load of the drill's own can tell: add one, or leave this out")
    if measure is Measure.CLEAN_CUT and not any(phase.load and phase.load.ends_with for phase in drill.phases):
        yield Finding(("measure",), "goes by what a whole answer ends with: give a load its ends_with")
    whole = OF_A_FAULT | (OF_OWN_LOAD - {Measure.MAX_MS})
    if objective.during and measure in whole:
        yield Finding(("during",), f"{measure} is of the whole drill: leave it out")
    if objective.slow_ms is not None and measure is not Measure.RECOVER_S:
        yield Finding(("slow_ms",), "belongs to recover_s alone: leave it out")
    if measure in OF_A_FAULT:
        yield from _of_a_fault(drill, objective)


def _of_a_fault(drill: Drill, objective: Objective) -> Iterator[Finding]:
    known = faults_of(drill)
    meant = fault_meant(drill, objective)
    if not meant:
        if known:
            yield Finding(("fault",), f"which of the {len(known)} faults is meant? name one")
        else:
            yield Finding(("measure",), "is of a fault, and no phase begins one: add one, or leave this out")
    elif meant not in known:
        there = f"there {_are(list(known))}" if known else "no phase begins one"
        yield Finding(("fault",), f"no fault has this id: {there}")
    elif objective.measure is not Measure.RECOVER_S and not endpoint_meant(drill, objective):
        yield Finding(("endpoint",), f"the fault {meant} names none: say of which {objective.measure} is measured")
    yield from _endpoint(drill, objective.endpoint)
