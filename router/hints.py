"""Hints between sidecars: which breakers opened at one of them. Pure: what a message says, and what is refused of it.

    wr:{NS}:hints   channel: one JSON message by a sidecar with all its open breakers, when they change, and every
                    REPEAT_S while there are any

A hint opens nothing. Who hears one believes its own evidence sooner for a while (``BreakerPolicy.hint_s``), so a
sidecar that is wrong, or lies, costs another one nothing but half of its patience.
"""

from __future__ import annotations

import json
from typing import Final

from router.model import BreakersHinted, Hint

VERSION: Final = 1
REPEAT_S: Final = 10.0
"""How often open breakers are told again while nothing changes: for those that came later, or missed it."""
LEAST_S: Final = 1.0
"""How often a sidecar tells of changes at most."""
MAX_HINTS: Final = 64
"""Breakers told or taken of one sidecar at a time; of more, those that opened last."""
MAX_CHARS: Final = 16 * 1024
"""Longest message that is told or read."""
MAX_NAME_CHARS: Final = 512


class HintError(ValueError):
    """A message that is refused; ``reason`` is one of REASONS."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


MALFORMED: Final = "malformed"
OTHER_VERSION: Final = "version"
OVER_LIMIT: Final = "over_limit"
REASONS: Final = (MALFORMED, OTHER_VERSION, OVER_LIMIT)


def encode(own: str, hints: tuple[Hint, ...]) -> str:
    """Return the message of a sidecar with these breakers open, of which it names as many as fit."""
    hints = hints[:MAX_HINTS]
    while True:
        rows = [[one.id, one.epoch, one.model, one.version, one.shard] for one in hints]
        text = json.dumps({"v": VERSION, "from": own, "open": rows}, separators=(",", ":"))
        if len(text) <= MAX_CHARS or not hints:
            return text
        hints = hints[: len(hints) // 2]


def decode(payload: str | bytes, own: str, at: float) -> BreakersHinted | None:
    """Return what a message hints at; None for one's own.

    Raises:
        HintError: it makes no sense, is of another version, or over a limit.
    """
    if len(payload) > MAX_CHARS:
        raise HintError(OVER_LIMIT, f"{len(payload)} characters, at most {MAX_CHARS}")
    try:
        said = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise HintError(MALFORMED, f"no JSON: {error}") from None
    if not isinstance(said, dict):
        raise HintError(MALFORMED, "no JSON object")
    if type(said.get("v")) is not int or said["v"] != VERSION:  # True and 1.0 are equal to 1
        raise HintError(OTHER_VERSION, f"version {str(said.get('v'))[:32]!r}, not {VERSION}")
    name, rows = said.get("from"), said.get("open")
    if not isinstance(name, str) or not isinstance(rows, list):
        raise HintError(MALFORMED, "without a sender or a list")
    if name == own:
        return None
    if len(rows) > MAX_HINTS:
        raise HintError(OVER_LIMIT, f"{len(rows)} breakers, at most {MAX_HINTS}")
    return BreakersHinted(tuple(_hint(row) for row in rows), at)


def _hint(row: object) -> Hint:
    if not isinstance(row, list) or len(row) != 5:
        raise HintError(MALFORMED, "a breaker that is no list of five")
    id_, epoch, model, version, shard = row
    names = (id_, epoch, model, version)
    if not all(isinstance(name, str) and len(name) <= MAX_NAME_CHARS for name in names):
        raise HintError(MALFORMED, "a breaker whose names are no text")
    try:
        "".join(names).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can spell: no message can hold it
        raise HintError(MALFORMED, "a breaker whose names are no text") from None
    if type(shard) is not int or not -(1 << 31) <= shard < 1 << 31:
        raise HintError(MALFORMED, "a breaker whose shard is no number")
    return Hint(id_, epoch, model, version, shard)
