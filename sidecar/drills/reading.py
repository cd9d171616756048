"""A drill's file to a :class:`Drill`, or everything that is wrong with it, each with line and remedy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sidecar.config.document import Member, Node, decode, node_of, parse
from sidecar.config.load import in_order, placed, read
from sidecar.config.problems import Problem, SettingsError, dotted
from sidecar.config.semantics import Finding
from sidecar.config.structure import conform
from sidecar.drills.examine import examine
from sidecar.drills.faulting import read_fault
from sidecar.drills.overlaps import overlaps
from sidecar.drills.scenario import Drill, named
from sidecar.drills.versions import unknown_versions
from sidecar.up.settings import checked

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

_EMPTY = 'the file is empty; a drill starts with "version: 1", a name, a title, phases and objectives'


def load_drill(path: str | os.PathLike[str]) -> Drill:
    """Return the drill in the file at ``path``, beside which its ``models_dir`` is.

    :raises SettingsError: it cannot be used; it holds every problem found.
    """
    name = str(path)
    root, drill = _parsed(read(path, "name a drill that exists and can be read"), name)
    if drill.start is None:
        return drill
    said = drill.start.up.models_dir
    models_dir = None if said is None else Path(path).parent / said
    if models_dir is not None and not models_dir.is_dir():
        where = ("start", "up", "models_dir")
        raise SettingsError([placed(root, drill, Finding(where, f"there is no directory {models_dir}: name one"))])
    problems = [placed(root, drill, finding) for finding in unknown_versions(drill, models_dir)]
    if problems:
        raise SettingsError(in_order(problems))
    if models_dir is None:
        return drill
    up = msgspec.structs.replace(drill.start.up, models_dir=str(models_dir))
    return msgspec.structs.replace(drill, start=msgspec.structs.replace(drill.start, up=up))


def parse_drill(data: bytes, name: str) -> Drill:
    """Do as :func:`load_drill` with the content of a file that errors call ``name``.

    :raises SettingsError: it cannot be used; it holds every problem found.
    """
    return _parsed(data, name)[1]


def _parsed(data: bytes, name: str) -> tuple[Node, Drill]:
    root, problems = parse(decode(data, name), name)
    drill, found = conform(root, Drill, _EMPTY)
    problems += found
    if drill is None or problems:
        raise SettingsError(in_order([*problems, *_configs(root)]))
    drill = named(drill)
    drill, problems = _faults(root, drill)
    if problems:
        raise SettingsError(in_order([*problems, *_configs(root)]))
    problems = [placed(root, drill, finding) for finding in (*examine(drill), *overlaps(drill))]
    problems += _configs(root)
    if problems:
        raise SettingsError(in_order(problems))
    return root, drill


def _faults(root: Node, drill: Drill) -> tuple[Drill, list[Problem]]:
    """Return ``drill`` with its faults' defaults written out, and what is wrong with them."""
    problems: list[Problem] = []
    phases = list(drill.phases)
    for number, phase in enumerate(drill.phases):
        node = at(root, "phases", number, "fault")
        if node is None or phase.fault is None:
            continue
        fault, found = read_fault(node, ("phases", number, "fault"), phase.name)
        problems += found
        if fault is not None:
            phases[number] = msgspec.structs.replace(phase, fault=fault)
    return msgspec.structs.replace(drill, phases=tuple(phases)), problems


def _configs(root: Node) -> Iterator[Problem]:
    """Yield what is wrong with the sidecar's configuration, as shipped and in each variant of it."""
    if at(root, "start", "up") is None:
        return
    shipped = _with_stand_ins(at(root, "start", "up", "config") or Node({}, root.where), at(root, "start", "streams"))
    short = at(root, "short", "config")
    without = at(root, "without")
    found: dict[Problem, None] = {}
    features = list(without.value) if without is not None and isinstance(without.value, dict) else []
    for below in (shipped, _over(shipped, short)):
        for feature in ("", *features):
            top = at(root, "without", feature, "config") if feature else None
            found |= dict.fromkeys(_config(_over(below, top)))
    yield from found


def _with_stand_ins(config: Node, streams: Node | None) -> Node:
    """Return the configuration with an endpoint as the drill's stand-ins will be; their model must be there."""
    model = at(streams, "model")
    if streams is None or model is None or not isinstance(model.value, str) or not isinstance(config.value, dict):
        return config
    one = node_of({"url": "http://127.0.0.1:1", "models": [model.value], "name": "stream-1"}, model.where)
    own = at(config, "endpoints")
    rest = own.value if own is not None and isinstance(own.value, list) else []
    return Node({**config.value, "endpoints": Member(streams.where, Node([*rest, one], streams.where))}, config.where)


def _config(node: Node) -> Iterator[Problem]:
    if not isinstance(node.value, dict):
        return  # the schema has said so
    own = False
    for name in ("listeners", "admin", "state"):
        if name in node.value:
            own = True
            member = node.value[name]
            remedy = "warmroute up decides this itself: leave it out"
            yield Problem(member.where, f"config.{name}", member.node.shown, remedy)
    if own:
        return
    try:
        checked(node, [])
    except SettingsError as error:
        for problem in error.problems:
            yield _below(problem, ("config",))


def _over(below: Node, above: Node | None) -> Node:
    """Lay one mapping over another: mappings go together, all else is replaced."""
    if above is None or not isinstance(above.value, dict) or not isinstance(below.value, dict):
        return below if above is None else above
    members = dict(below.value)
    for name, member in above.value.items():
        under = members.get(name)
        both = under is not None and isinstance(under.node.value, dict) and isinstance(member.node.value, dict)
        members[name] = Member(member.where, _over(under.node, member.node)) if under is not None and both else member
    return Node(members, below.where)


def at(node: Node | None, *steps: str | int) -> Node | None:
    """Return what stands at ``steps`` below ``node``; None where nothing does."""
    for step in steps:
        value = node.value if node is not None else None
        if isinstance(value, list) and isinstance(step, int) and step < len(value):
            node = value[step]
        elif isinstance(value, dict) and isinstance(step, str) and step in value:
            node = value[step].node
        else:
            return None
    return node


def _below(problem: Problem, path: tuple[str | int, ...]) -> Problem:
    whole = ".".join(filter(None, (dotted(path), problem.path)))
    return Problem(problem.where, whole, problem.value, problem.remedy)
