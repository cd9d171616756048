"""What is wrong with a configuration: where, which field, which value, and what to do about it."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from router.urls import masked_url

Path = tuple[str | int, ...]

_SECRET = re.compile(r"password|secret|token", re.IGNORECASE)
_LEAST_PREFIX = 3
_SHOWN_CHARACTERS = 120
_SHOWN_VALUE = 2 * _SHOWN_CHARACTERS  # leaves room for quotes and escapes
_SHOWN_PROBLEMS = 100


@dataclass(frozen=True, slots=True)
class Where:
    """A place a value came from: a file with line and column (counted from 1), a variable or a flag."""

    name: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.name}:{self.line}:{self.column}" if self.line else self.name


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to correct. ``value`` is already fit to be shown: short, without passwords. As text it is one line."""

    where: Where
    path: str
    value: str
    remedy: str

    def __str__(self) -> str:
        parts = (str(self.where), _shortened(self.path), _shortened(self.value, _SHOWN_VALUE), self.remedy)
        text = ": ".join(part for part in parts if part)
        if text.isprintable():
            return text
        return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class SettingsError(ValueError):
    """A configuration that cannot be used; ``problems`` holds everything found. As text: a line each, of the first."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(dict.fromkeys(problems))  # two looks may find the same
        lines = [str(problem) for problem in self.problems[:_SHOWN_PROBLEMS]]
        if len(self.problems) > _SHOWN_PROBLEMS:
            lines.append(f"and {len(self.problems) - _SHOWN_PROBLEMS} more")
        super().__init__("\n".join(lines))


def dotted(path: Path) -> str:
    """Return ``path`` as people write it: ``listeners[0].processes``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return which of ``known`` was probably meant by ``name``."""
    names = list(known)
    matches = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if not matches and len(name) >= _LEAST_PREFIX:
        matches = [one for one in names if one.startswith(name)]
    return matches[0] if matches else None


def may_be_secret(name: str) -> bool:
    """Say whether what stands under ``name`` (or on a line with it) may be a secret, which errors must not repeat."""
    return bool(_SECRET.search(name))


def shown(value: object) -> str:
    """Render a value for an error: text in double quotes, shortened and without passwords."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(_shortened(masked_url(value)), ensure_ascii=not value.isprintable())
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    try:
        return _shortened(str(value))
    except ValueError:  # more digits than int() may print
        return "a very large number"


def _shortened(text: str, characters: int = _SHOWN_CHARACTERS) -> str:
    return text if len(text) <= characters else text[:characters] + "…"
