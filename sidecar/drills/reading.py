"""A drill's file to a :class:`Drill`, or everything that is wrong with it, each with line and remedy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sidecar.config.document import Member, Node, decode, parse
from sidecar.config.load import in_order, placed, read
from sidecar.config.problems import Problem, SettingsError, dotted
from sidecar.config.structure import conform
from sidecar.drills.examine import examine
from sidecar.drills.faulting import read_fault
from sidecar.drills.scenario import Drill, Start, named
from sidecar.up.settings import checked

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

_EMPTY = 'the file is empty; a drill starts with "version: 1", a name, a title, phases and objectives'


def load_drill(path: str | os.PathLike[str]) -> Drill:
    """Return the drill in the file at ``path``, beside which its ``models_dir`` is.

    :raises SettingsError: it cannot be used; it holds every problem found.
    """
    drill = parse_drill(read(path, "name a drill that exists and can be read"), str(path))
    if drill.start is None or drill.start.up.models_dir is None:
        return drill
    models_dir = str(Path(path).parent / drill.start.up.models_dir)
    up = msgspec.structs.replace(drill.start.up, models_dir=models_dir)
    return msgspec.structs.replace(drill, start=Start(up=up))


def parse_drill(data: bytes, name: str) -> Drill:
    """Do as :func:`load_drill` with the content of a file that errors call ``name``.

    :raises SettingsError: it cannot be used; it holds every problem found.
    """
    root, problems = parse(decode(data, name), name)
    drill, found = conform(root, Drill, _EMPTY)
    problems += found
    if drill is None or problems:
        raise SettingsError(in_order([*problems, *_configs(root)]))
    drill = named(drill)
    drill, problems = _faults(root, drill)
    if problems:
        raise SettingsError(in_order([*problems, *_configs(root)]))
    problems = [placed(root, drill, finding) for finding in examine(drill)]
    problems += _configs(root)
    if problems:
        raise SettingsError(in_order(problems))
    return drill


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
    shipped = at(root, "start", "up", "config") or Node({}, root.where)
    short = at(root, "short", "config")
    without = at(root, "without")
    found: dict[Problem, None] = {}
    features = list(without.value) if without is not None and isinstance(without.value, dict) else []
    for below in (shipped, _over(shipped, short)):
        for feature in ("", *features):
            top = at(root, "without", feature, "config") if feature else None
            found |= dict.fromkeys(_config(_over(below, top)))
    yield from found


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
