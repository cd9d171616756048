"""Environment variables and flags, laid over what a file says.

``WARMROUTE__LIMITS__HEAD_BYTES=32768`` sets ``limits.head_bytes``: a double underscore separates the steps of the path,
items of lists are numbers from 0 (the number after the last one appends), and the value is YAML.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import inspect

from sidecar.config.document import Member, Node, node_of, parse
from sidecar.config.problems import Path, Problem, SettingsError, Where, dotted, may_be_secret, nearest, shown
from sidecar.config.schema import bare, schema

PREFIX = "WARMROUTE__"
EVERY = "*"
"""In the path of an :class:`Override`: each item of the list."""


@dataclass(frozen=True, slots=True)
class Override:
    """A value (as ``json.loads`` would return it) for a path, and the flag it came from."""

    path: Path
    value: object
    source: str


def lay_over(root: Node, environ: Mapping[str, str], overrides: Sequence[Override]) -> tuple[Node, list[Problem]]:
    """Return ``root`` with the environment's values and then ``overrides`` in it, and what was wrong with them."""
    problems: list[Problem] = []
    for path, name in _named(environ, problems):
        where = Where(f"environment variable {name}")
        try:
            node, found = parse(environ[name], where.name, where=where)
            problems += found
            root = _put(root, path, node, where)
        except SettingsError as error:
            problems += error.problems
        except _NoPlaceError as error:
            problems.append(Problem(where, dotted(path), shown(environ[name]), str(error)))
    for override in overrides:
        where = Where(override.source)
        try:
            root = _put(root, override.path, node_of(override.value, where), where)
        except _NoPlaceError as error:
            problems.append(Problem(where, dotted(override.path), shown(override.value), str(error)))
    return root, problems


def _named(environ: Mapping[str, str], problems: list[Problem]) -> list[tuple[Path, str]]:
    """Return the paths of all variables with the prefix, parents before children, items in order."""
    paths = []
    for name in sorted(environ):
        if name.startswith(PREFIX):
            try:
                paths.append((_path(name), name))
            except _NoPlaceError as error:
                value = "***" if may_be_secret(name) else shown(environ[name])
                problems.append(Problem(Where(f"environment variable {name}"), "", value, str(error)))
        elif (meant := _with_two(name)) is not None:
            value = "***" if may_be_secret(name) else shown(environ[name])
            remedy = f"has no effect; did you mean {meant}?"
            problems.append(Problem(Where(f"environment variable {name}"), "", value, remedy))
    return sorted(paths, key=lambda pair: [(isinstance(step, str), step) for step in pair[0]])


def _with_two(name: str) -> str | None:
    """Return the name that was meant where one underscore stands for two behind a section; None where it is not so."""
    kind = bare(schema())
    if not name.startswith("WARMROUTE_") or not isinstance(kind, inspect.StructType):
        return None
    words = name.removeprefix("WARMROUTE_")
    for field in kind.fields:
        if words.lower().startswith(f"{field.name}_"):
            section, rest = words[: len(field.name)], words[len(field.name) :].lstrip("_")
            return f"{PREFIX}{section}__{rest}" if rest else None
    return None


def _path(name: str) -> Path:
    """Return the path that a variable's name spells; its first unknown step names the nearest field instead."""
    kind: inspect.Type = schema()
    path: list[str | int] = []
    taken = PREFIX.removesuffix("__")
    for step in name.removeprefix(PREFIX).split("__"):
        kind = bare(kind)
        if isinstance(kind, inspect.StructType | inspect.DataclassType):
            field = next((one for one in kind.fields if one.name == step.lower()), None)
            if field is None:
                raise _NoPlaceError(f"no such field; {_nearest_variable(name, taken, kind)}")
            path.append(field.name)
            kind = field.type
        elif isinstance(kind, inspect.VarTupleType):
            if not (step.isascii() and step.isdigit() and len(step) < 5):
                raise _NoPlaceError(f'no such field; "{dotted(tuple(path))}" is a list: {taken}__0 is its first item')
            path.append(int(step))
            kind = kind.item_type
        elif isinstance(kind, inspect.DictType):
            path.append(step.lower())
            kind = kind.value_type
        else:
            raise _NoPlaceError(f'no such field; "{dotted(tuple(path))}" is a single value: did you mean {taken}?')
        taken += f"__{step}"
    return tuple(path)


def _nearest_variable(name: str, taken: str, kind: inspect.StructType | inspect.DataclassType) -> str:
    """Return a hint for ``name``, whose steps up to ``taken`` are known and lead to ``kind``."""
    step, separator, rest = name.removeprefix(f"{taken}__").partition("__")
    meant = nearest(step.lower(), [field.name for field in kind.fields])
    if meant:
        corrected = f"{taken}__{meant.upper()}{separator}{rest}"
        try:
            _path(corrected)
            return f"did you mean {corrected}?"
        except _NoPlaceError:
            pass  # a later step is wrong too
    elsewhere = {variable.rpartition("__")[2]: variable for variable in _variables(schema(), taken.split("__")[0])}
    meant = nearest(name.rpartition("__")[2].upper(), elsewhere)
    if meant:
        return f"did you mean {elsewhere[meant]}?"
    return f"known here: {', '.join(f'{taken}__{field.name.upper()}' for field in kind.fields)}"


def _variables(kind: inspect.Type, prefix: str) -> Iterator[str]:
    kind = bare(kind)
    if isinstance(kind, inspect.StructType | inspect.DataclassType):
        for field in kind.fields:
            yield from _variables(field.type, f"{prefix}__{field.name.upper()}")
    elif isinstance(kind, inspect.VarTupleType):
        yield prefix
        yield from _variables(kind.item_type, f"{prefix}__0")
    else:
        yield prefix


class _NoPlaceError(Exception):
    """There is no such place in the tree; the text says why."""


def _put(node: Node, path: Path, value: Node, where: Where) -> Node:
    """Return ``node`` with ``value`` at ``path``; what is missing on the way is made."""
    if not path:
        return value
    step, rest = path[0], path[1:]
    if step == EVERY or isinstance(step, int):
        return _put_item(node, step, rest, value, where)
    members = {} if node.value is None else node.value
    if not isinstance(members, dict):
        raise _NoPlaceError(f"has no place: {node.where} has {node.shown} where a mapping belongs")
    member = members.get(step)
    child = _put(member.node if member else Node(None, where), rest, value, where)
    return Node({**members, step: Member(member.where if member else where, child)}, node.where)


def _put_item(node: Node, step: str | int, rest: Path, value: Node, where: Where) -> Node:
    items = [] if node.value is None else node.value
    if not isinstance(items, list):
        raise _NoPlaceError(f"has no place: {node.where} has {node.shown} where a list belongs")
    if not isinstance(step, int):
        return Node([_put(item, rest, value, where) for item in items], node.where)
    if step > len(items):
        raise _NoPlaceError(f"the list has {len(items)} so far: the next item is number {len(items)}")
    items = [*items, Node(None, where)] if step == len(items) else list(items)
    items[step] = _put(items[step], rest, value, where)
    return Node(items, node.where)
