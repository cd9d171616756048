"""Compare a tree of values with the schema: every difference is found, each with the place it was written.

msgspec would stop at the first difference and knows no lines; so its own description of the schema is walked here, and
msgspec converts only what has passed. Dataclasses (the router's policies) judge themselves at construction.
"""

from __future__ import annotations

import math
import re
from typing import TypeVar

import msgspec
from msgspec import inspect

from router.policy import PolicyError
from sidecar.config.document import Node
from sidecar.config.problems import Path, Problem, dotted, may_be_secret, nearest
from sidecar.config.schema import Object, described
from sidecar.settings import Settings

S = TypeVar("S", bound=msgspec.Struct)
LINES = "lines"
"""True in a text field's ``extra`` where it may hold tabs and ends of lines."""


def compare(root: Node) -> tuple[Settings | None, list[Problem]]:
    """Return the settings that ``root`` describes, or None and everything that does not fit the schema."""
    return conform(root, Settings, _EMPTY)


def conform(root: Node, shape: type[S], empty: str) -> tuple[S | None, list[Problem]]:
    """Return what ``root`` describes as ``shape``, or None and everything that does not fit.

    ``empty`` is what to do about a file that holds nothing.
    """
    comparison = _Comparison(empty)
    value = comparison.of(root, described(shape), ())
    if comparison.problems:
        return None, comparison.problems
    try:
        return msgspec.convert(value, shape), []
    except msgspec.ValidationError as error:  # the walk above is meant to say it better, and first
        return None, [Problem(root.where, "", "", str(error))]


class _Comparison:
    """One walk over a tree. Where something does not fit, a problem is noted and None stands in for the value."""

    def __init__(self, empty: str) -> None:
        self.problems: list[Problem] = []
        self._empty = empty

    def of(self, node: Node, kind: inspect.Type, path: Path, meta: inspect.Metadata | None = None) -> object:
        """Return the plain value of ``node``, after noting what is wrong with it."""
        if isinstance(kind, inspect.Metadata):
            return self.of(node, kind.type, path, kind)
        if isinstance(kind, inspect.UnionType):
            if node.value is None and any(isinstance(one, inspect.NoneType) for one in kind.types):
                return None
            return self.of(node, next(one for one in kind.types if not isinstance(one, inspect.NoneType)), path, meta)
        if isinstance(kind, inspect.StructType | inspect.DataclassType):
            return self._object(node, kind, path)
        if isinstance(kind, inspect.VarTupleType):
            return self._list(node, kind, path)
        if isinstance(kind, inspect.DictType):
            return self._mapping(node, kind, path)
        if isinstance(kind, inspect.AnyType):
            return _plain(node)
        wrong = _wrong(node, kind, meta)
        if wrong:
            self._note(node, path, wrong)
            return None
        return node.value

    def _note(self, node: Node, path: Path, remedy: str) -> None:
        self.problems.append(Problem(node.where, dotted(path), node.shown, remedy))

    def _list(self, node: Node, kind: inspect.VarTupleType, path: Path) -> object:
        if not isinstance(node.value, list):
            if node.value is None:
                self._note(node, path, "must be a list; leave the field out for its default")
            else:
                self._note(node, path, "must be a list: start each item with a hyphen, or write [a, b]")
            return None
        if kind.min_length and len(node.value) < kind.min_length:
            self._note(node, path, "must hold at least one item")
        if kind.max_length is not None and len(node.value) > kind.max_length:
            self._note(node, path, f"must hold at most {kind.max_length} items")
        return [self.of(item, kind.item_type, (*path, index)) for index, item in enumerate(node.value)]

    def _mapping(self, node: Node, kind: inspect.DictType, path: Path) -> object:
        """Take a mapping whose names the schema does not know."""
        if not isinstance(node.value, dict):
            self._note(node, path, "must be a mapping of names to values; leave the field out for its default")
            return None
        return {name: self.of(member.node, kind.value_type, (*path, name)) for name, member in node.value.items()}

    def _object(self, node: Node, kind: Object, path: Path) -> object:
        members = node.value
        if not isinstance(members, dict):
            if node.value is None:
                remedy = "must be a mapping of fields; leave it out for its defaults" if path else self._empty
                self._note(node, path, remedy)
            else:
                self._note(node, path, f"must be a mapping with some of: {_names(kind)}")
            return None
        fields = {field.name: field for field in kind.fields}
        for name, member in members.items():
            if name not in fields:
                value = "***" if may_be_secret(name) else member.node.shown
                remedy = f"unknown field; {_suggestion(name, kind)}"
                self.problems.append(Problem(member.where, dotted((*path, name)), value, remedy))
        before = len(self.problems)
        values: dict[str, object] = {}
        for name, field in fields.items():
            if name in members:
                values[name] = self.of(members[name].node, field.type, (*path, name))
            elif field.required:
                self.problems.append(Problem(node.where, dotted((*path, name)), "missing", _addition(field)))
        if isinstance(kind, inspect.DataclassType) and len(self.problems) == before:
            self._construct(node, kind, values, path)
        return values

    def _construct(self, node: Node, kind: inspect.DataclassType, values: dict[str, object], path: Path) -> None:
        """Let a dataclass judge its values; it names the first bad one, so it is asked again without that."""
        values = dict(values)
        while True:
            try:
                kind.cls(**values)
            except PolicyError as error:
                steps = tuple(error.field.split(".")[1:])
                written = _at(node, steps)
                if written is not None:
                    problem = Problem(written.where, dotted((*path, *steps)), written.shown, error.remedy)
                else:  # about several fields together, or a default that another field's value excludes
                    problem = Problem(node.where, dotted(path), f"{steps[-1]} = {error.value}", error.remedy)
                self.problems.append(problem)
                if not _drop(values, steps):
                    return
            else:
                return


def _plain(node: Node) -> object:
    """Return a value of any form as it was written."""
    if isinstance(node.value, dict):
        return {name: _plain(member.node) for name, member in node.value.items()}
    if isinstance(node.value, list):
        return [_plain(item) for item in node.value]
    return node.value


def _at(node: Node, steps: tuple[str, ...]) -> Node | None:
    """Return what stands at ``steps`` below ``node``, None where nothing was written there."""
    for step in steps:
        if not isinstance(node.value, dict) or step not in node.value:
            return None
        node = node.value[step].node
    return node


def _drop(values: dict[str, object], steps: tuple[str, ...]) -> bool:
    """Leave out what stands at ``steps``; False where nothing does."""
    name, *rest = steps
    inner = values.get(name)
    if rest and isinstance(inner, dict):
        values[name] = inner = dict(inner)
        return _drop(inner, tuple(rest))
    return values.pop(name, None) is not None


_EMPTY = 'the file is empty; a configuration starts with "version: 1" and names at least one listener'


def _names(kind: Object) -> str:
    return ", ".join(field.name for field in kind.fields)


def _suggestion(name: str, kind: Object) -> str:
    meant = nearest(name, [field.name for field in kind.fields])
    return f'did you mean "{meant}"?' if meant else f"known here: {_names(kind)}"


def _addition(field: inspect.Field) -> str:
    text = ""
    if isinstance(field.type, inspect.Metadata) and field.type.extra_json_schema:
        text = f" ({field.type.extra_json_schema.get('description', '')})"
    return f'add "{field.name}"{text}'


def _wrong(node: Node, kind: inspect.Type, meta: inspect.Metadata | None) -> str:
    """Return what a scalar must be instead, or nothing where it fits."""
    value = node.value
    if isinstance(kind, inspect.IntType):
        if isinstance(value, bool) or not isinstance(value, int):
            return "must be a whole number"
        return _bounds(value, kind.ge, kind.gt, kind.le) or ("" if abs(value) < 1 << 63 else "must be below 2^63")
    if isinstance(kind, inspect.FloatType):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return "must be a number"
        if abs(value) > 1e300 or math.isnan(value):
            return "must be a finite number"
        return _bounds(value, kind.ge, kind.gt, kind.le)
    if isinstance(kind, inspect.BoolType):
        return "" if isinstance(value, bool) else "must be true or false"
    if isinstance(kind, inspect.EnumType):
        choices = [str(one.value) for one in kind.cls]
        if value in choices:
            return ""
        meant = nearest(value, choices) if isinstance(value, str) else None
        return f"must be one of: {', '.join(choices)}" + (f'; did you mean "{meant}"?' if meant else "")
    if isinstance(kind, inspect.StrType):
        if not isinstance(value, str):
            return "must be text" + ("" if isinstance(value, list | dict | None) else ": put it in quotes")
        allowed = "\t\n\r" if meta and (meta.extra or {}).get(LINES) else ""
        if any((one < " " and one not in allowed) or one == "\x7f" or "\ud800" <= one <= "\udfff" for one in value):
            return "must not hold control characters or halves of surrogate pairs"
        if kind.max_length is not None and len(value) > kind.max_length:
            return f"must have at most {kind.max_length} characters"
        if kind.pattern and not re.search(kind.pattern, value):
            return f"must be {(meta.extra or {}).get('form') or kind.pattern}" if meta else f"must match {kind.pattern}"
        return ""
    raise TypeError(f"the schema uses a type this walk does not know: {kind!r}")


def _bounds(value: float, ge: float | None, gt: float | None, le: float | None) -> str:
    if ge is not None and ge == le and value != ge:
        return f"must be {ge}"
    if ge is not None and value < ge:
        return f"must be at least {ge}"
    if gt is not None and not value > gt:
        return f"must be greater than {gt}"
    if le is not None and value > le:
        return f"must be at most {le}"
    return ""
