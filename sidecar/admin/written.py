"""Answers in JSON that are written a row at a time: all of one at once might hold a loop up for seconds."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_INDENT = b"  "


@dataclass(frozen=True, slots=True)
class Rows:
    """An array whose members are made as they are written; None among them says that a turn of work is over."""

    members: Iterable[object | None]


def spread(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as they are, to be written one by one."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def write(document: object) -> Iterator[bytes | None]:
    """Yield ``document`` as JSON for a person's eyes too, in pieces, and None where a turn of work is over.

    A dictionary that holds :class:`Rows` is written value by value, anything else at once.
    """
    yield from _written(document, 0)
    yield b"\n"


def _written(value: object, depth: int) -> Iterator[bytes | None]:
    if isinstance(value, Rows):
        yield from _row_by_row(value.members, depth)
    elif isinstance(value, dict) and any(isinstance(inner, Rows) for inner in value.values()):
        between = b"{"
        for name, inner in value.items():
            yield between + _line(depth + 1) + msgspec.json.encode(name) + b": "
            yield from _written(inner, depth + 1)
            between = b","
        yield _line(depth) + b"}"
    else:
        text = msgspec.json.format(msgspec.json.encode(value), indent=len(_INDENT))
        yield text.replace(b"\n", _line(depth)) if depth else text  # within a string, JSON has no line break as such


def _row_by_row(members: Iterable[object | None], depth: int) -> Iterator[bytes | None]:
    between = b"["
    for member in members:
        if member is None:
            yield None
            continue
        yield between + _line(depth + 1)
        yield from _written(member, depth + 1)
        between = b","
    yield b"[]" if between == b"[" else _line(depth) + b"]"


def _line(depth: int) -> bytes:
    return b"\n" + _INDENT * depth
