"""YAML to a tree of values that know where they were written.

Read from parser events, not through PyYAML's constructor: so depth and size stay bounded whatever aliases do, nothing
recurses, and duplicate keys are seen. Scalars follow the YAML 1.2 core schema: ``on``, ``no`` and ``1:30`` are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol

import yaml

from router.urls import masked_url
from sidecar.config.problems import Problem, SettingsError, Where, dotted, may_be_secret, shown

MAX_BYTES = 1 << 20
MAX_DEPTH = 16
MAX_NODES = 50_000

_INT = re.compile(r"[-+]?[0-9]+\Z|0x[0-9a-fA-F]+\Z|0o[0-7]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_NOT_FINITE = re.compile(r"([-+]?)\.(inf|Inf|INF)\Z|\.(nan|NaN|NAN)\Z")
_MAX_DIGITS = 64  # longer ones are text: no field takes such a number
_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= dict.fromkeys(("true", "True", "TRUE"), True) | dict.fromkeys(("false", "False", "FALSE"), False)

Scalar = None | bool | int | float | str


class Mark(Protocol):
    """A position as PyYAML counts it, from 0."""

    line: int
    column: int


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A value and the place it was written. Never changed once made, so an alias may share it."""

    value: Scalar | list[Node] | dict[str, Member]
    where: Where
    text: str = ""  # as written, of a scalar

    @property
    def shown(self) -> str:
        """The value as errors show it: numbers as written, all else as :func:`shown` renders it."""
        number = isinstance(self.value, int | float) and not isinstance(self.value, bool)
        return masked_url(self.text) if number and self.text else shown(self.value)


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A mapping's entry: where the key stands, and the value."""

    where: Where
    node: Node


def node_of(value: object, where: Where) -> Node:
    """Make a tree of ``value`` (as ``json.loads`` would return it), all of it from ``where``."""
    if isinstance(value, dict):
        return Node({str(key): Member(where, node_of(item, where)) for key, item in value.items()}, where)
    if isinstance(value, list | tuple):
        return Node([node_of(item, where) for item in value], where)
    if value is None or isinstance(value, bool | int | float | str):
        return Node(value, where)
    raise TypeError(f"not a configuration value: {value!r}")


def scalar(text: str) -> Scalar:
    """Resolve a plain scalar by the YAML 1.2 core schema."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _MAX_DIGITS:
        return text
    if _INT.match(text):
        return int(text, 0) if text.startswith(("0x", "0o")) else int(text)
    if _FLOAT.match(text):
        return float(text)
    special = _NOT_FINITE.match(text)
    if special:
        return float("nan") if special[3] else float(special[1] + "inf")
    return text


def written(value: object) -> str:
    """Return plain values as YAML that :func:`parse` reads as the same ones: text that looks like another is quoted."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Writes by the core schema of YAML 1.2; PyYAML itself goes by 1.1, for which 1e9 is text."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if scalar(text) == text else "'")


_Dumper.add_representer(str, _text)


def decode(data: bytes, name: str) -> str:
    """Return the text of a file.

    :raises SettingsError: it is longer than ``MAX_BYTES`` or not UTF-8.
    """
    if len(data) > MAX_BYTES:
        raise SettingsError([Problem(Where(name), "", f"more than {MAX_BYTES} bytes", "split or shorten the file")])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        column = error.start - before.rfind(b"\n")
        where = Where(name, line, column)
        raise SettingsError([Problem(where, "", f"byte 0x{data[error.start]:02x}", "save the file as UTF-8")]) from None


def parse(text: str, name: str, *, where: Where | None = None) -> tuple[Node, list[Problem]]:
    """Read one YAML document; return its tree and problems that did not stop the reading (duplicate keys).

    ``where``, when given, is the place of all of it (a variable or a flag has no lines).

    :raises SettingsError: not YAML, or YAML that configuration does not use (tags, merge keys, several documents).
    """
    builder = _Builder(name, where)
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = " ".join(filter(None, (error.context, error.problem)))
        raise SettingsError([_not_yaml(text, builder.at(mark), reason)]) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = where or Where(name, before.count("\n") + 1, error.position - before.rfind("\n"))
        code = ord(error.character) if isinstance(error.character, str | bytes) else error.character
        raise SettingsError(
            [Problem(place, "", f"character U+{code:04X}", "not allowed in YAML: remove or escape it")]
        ) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # PyYAML lets some through unwrapped, as chr() of an escape beyond Unicode; its position is unknown then
        if isinstance(error, SettingsError):
            raise
        raise SettingsError([_not_yaml(text, where or Where(name, builder.line, 1), f"near here, {error}")]) from None
    root = builder.root if builder.root is not None else Node(None, where or Where(name, 1, 1))
    return root, builder.problems


_REMEDIES: Final = (
    ("character '\\t'", "indent with spaces, not tabs"),
    ("scanning a quoted scalar", "close the quote"),
    ("escape", "in double quotes a backslash begins an escape: double it, or use single quotes"),
    ("that cannot start any token", "put the text in quotes"),
    (
        "mapping values are not allowed here",
        "put text that holds a colon and a space in quotes, or indent it as a field",
    ),
    ("flow sequence", "close each [ with a ], with commas between the items"),
    ("flow mapping", "close each { with a }, with commas between the fields"),
    ("flow node", "close each [ and { that was opened"),
    ("scanning an alias", "put text that begins with * in quotes"),
    ("scanning an anchor", "put text that begins with & in quotes"),
    ("expected <block end>", "indent fields and items of one level alike"),
)
"""What to do, by what PyYAML's reason holds; the first that fits."""


def _not_yaml(text: str, where: Where, reason: str) -> Problem:
    remedy = next((remedy for sign, remedy in _REMEDIES if sign in reason), "check quotes, brackets and indentation")
    told = f"not valid YAML: {reason}: {remedy}"
    lines = text.splitlines()
    if not where.line:
        return Problem(where, "", "***" if may_be_secret(where.name) else shown(text), told)
    line = lines[where.line - 1].strip() if 0 < where.line <= len(lines) else ""
    return Problem(where, "", "***" if may_be_secret(line) else shown(line) if line else "", told)


@dataclass(slots=True)
class _Frame:
    """A collection that is being read."""

    node: Node
    anchor: str | None
    size: int = 1
    key: str | None = None
    key_where: Where | None = None


class _Builder:
    """Builds the tree, event by event."""

    def __init__(self, name: str, where: Where | None) -> None:
        self.root: Node | None = None
        self.problems: list[Problem] = []
        self.line = 1
        self._name = name
        self._where = where
        self._stack: list[_Frame] = []
        self._anchors: dict[str, tuple[Node, int] | None] = {}
        self._documents = 0

    def at(self, mark: Mark | None) -> Where:
        """Return the place of ``mark``."""
        if self._where is not None:
            return self._where
        return Where(self._name, mark.line + 1, mark.column + 1) if mark else Where(self._name)

    def take(self, event: yaml.Event) -> None:
        """Take the next event."""
        if event.start_mark is not None:
            self.line = event.start_mark.line + 1
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                self._refuse(event, "a second document", "a file holds one document: remove what follows ---")
        elif isinstance(event, yaml.ScalarEvent):
            self._check_tag(event)
            value = scalar(event.value) if event.style is None else event.value
            node = Node(value, self.at(event.start_mark), event.value)
            if event.anchor:
                self._anchors[event.anchor] = (node, 1)
            self._add(event, node, 1)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._open(event)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            frame = self._stack.pop()
            if frame.anchor:
                self._anchors[frame.anchor] = (frame.node, frame.size)
            self._add(event, frame.node, frame.size)
        elif isinstance(event, yaml.AliasEvent):
            known = self._anchors.get(event.anchor or "")
            if known is None:
                self._refuse(event, f"*{event.anchor}", "no such anchor before this line: define it or write it out")
            self._add(event, *known)

    def _open(self, event: yaml.MappingStartEvent | yaml.SequenceStartEvent) -> None:
        self._check_tag(event)
        frame = self._stack[-1] if self._stack else None
        if frame is not None and isinstance(frame.node.value, dict) and frame.key is None:
            self._refuse(event, "a collection as a key", "field names are plain text")
        if len(self._stack) >= MAX_DEPTH:
            self._refuse(event, "", f"nested deeper than {MAX_DEPTH} levels: no field of the schema is")
        if event.anchor:
            self._anchors[event.anchor] = None
        mapping = isinstance(event, yaml.MappingStartEvent)
        self._stack.append(_Frame(Node({} if mapping else [], self.at(event.start_mark)), event.anchor))

    def _add(self, event: yaml.Event, node: Node, size: int) -> None:
        if not self._stack:
            self.root = node
            return
        frame = self._stack[-1]
        frame.size += size
        if frame.size > MAX_NODES:
            self._refuse(event, "", f"more than {MAX_NODES} values, aliases expanded: shorten the file")
        if isinstance(frame.node.value, list):
            frame.node.value.append(node)
        elif isinstance(frame.node.value, dict):
            if frame.key is None:
                self._take_key(event, frame, node)
            else:
                self._put(frame, frame.node.value, node)

    def _take_key(self, event: yaml.Event, frame: _Frame, node: Node) -> None:
        if not isinstance(event, yaml.ScalarEvent) or not isinstance(node.value, str):
            self._refuse(event, node.shown, "not a field name: field names are plain text")
        if node.value == "<<" and event.style is None:
            self._refuse(event, "<<", "merge keys are not supported: write the fields out")
        frame.key, frame.key_where = node.value, self.at(event.start_mark)

    def _put(self, frame: _Frame, members: dict[str, Member], node: Node) -> None:
        key, where = frame.key, frame.key_where
        if key is None or where is None:
            raise AssertionError("a value without its key")
        first = members.get(key)
        if first is None:
            members[key] = Member(where, node)
        else:
            path = dotted(tuple(self._path()))
            known = f"first on line {first.where.line}" if first.where.line else "twice in one value"
            self.problems.append(Problem(where, path, node.shown, f"given twice, {known}: remove one"))
        frame.key = None

    def _path(self) -> Iterator[str | int]:
        for frame in self._stack:
            if isinstance(frame.node.value, list):
                yield len(frame.node.value)
            elif frame.key is not None:
                yield frame.key

    def _check_tag(self, event: yaml.NodeEvent) -> None:
        tag = getattr(event, "tag", None)
        if tag is not None:
            self._refuse(
                event,
                str(tag).replace("tag:yaml.org,2002:", "!!"),
                "tags are not supported: write the value without one",
            )

    def _refuse(self, event: yaml.Event, value: str, remedy: str) -> NoReturn:
        raise SettingsError(
            [*self.problems, Problem(self.at(event.start_mark), dotted(tuple(self._path())), value, remedy)]
        )
