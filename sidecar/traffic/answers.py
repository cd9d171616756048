"""Values of one answer that the next request of its flow is made of. Pure.

A request may ``take`` values from its answer, by paths into the JSON body, and one after it in the flow may be
``fill``ed with them where it says ``${NAME}``.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from sidecar.traffic.requests import check

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sidecar.traffic.requests import Timed

MAX_ANSWER_BYTES: Final = 1 << 20
"""Nothing is taken from a longer one."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_PLACE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]{0,63})\}")
_PLACE_BYTES: Final = re.compile(rb"\$\{([A-Za-z_][A-Za-z0-9_]{0,63})\}")


class UnfilledError(Exception):
    """A request cannot be made; the message says what it lacks."""


def wrong_name(names: Iterable[str]) -> str:
    """Return the first of ``names`` that is none, or nothing."""
    return next((name for name in names if not _NAME.fullmatch(name)), "")


def needs(request: Timed) -> set[str]:
    """Return the names that a request says."""
    texts = [request.target, *(value for _, value in request.headers)]
    return {name for text in texts for name in _PLACE.findall(text)} | {
        name.decode() for name in _PLACE_BYTES.findall(request.body)
    }


def taken(request: Timed, answer: bytes, answer_bytes: int) -> dict[str, Any]:
    """Return the values that a request takes from an answer of so many bytes; those that are not there are left out."""
    if answer_bytes > MAX_ANSWER_BYTES:
        return {}
    try:
        content = json.loads(answer)
    except (ValueError, RecursionError):
        return {}
    found = {}
    for name, path in request.take:
        value = content
        for part in path:
            if isinstance(value, dict) and part in value:
                value = value[part]
            elif isinstance(value, list) and part.isascii() and part.isdecimal() and int(part) < len(value):
                value = value[int(part)]
            else:
                break
        else:
            found[name] = value
    return found


def filled(request: Timed, values: Mapping[str, Any]) -> Timed:
    """Return a request with values in their places: in a body as they stand in a JSON text, texts without their quotes;
    in a target with escapes.

    Raises:
        UnfilledError: a value is not there, or cannot stand where it would.
    """
    missing = sorted(needs(request) - set(values))
    if missing:
        raise UnfilledError(f"no answer before it in its flow had {', '.join(missing)}")
    in_json = {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}
    bare = {name: text[1:-1] if isinstance(values[name], str) else text for name, text in in_json.items()}
    plain = {name: value if isinstance(value, str) else in_json[name] for name, value in values.items()}
    made = replace(
        request,
        target=_PLACE.sub(lambda match: quote(plain[match[1]], safe="", errors="replace"), request.target),
        headers=tuple((name, _PLACE.sub(lambda match: plain[match[1]], text)) for name, text in request.headers),
        body=_PLACE_BYTES.sub(lambda match: bare[match[1].decode()].encode("utf-8", "replace"), request.body),
    )
    wrong = check(made)
    if wrong:
        raise UnfilledError(f"made of what an answer had: {wrong}")
    return made
