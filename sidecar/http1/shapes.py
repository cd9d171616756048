"""The shape of a head: all its bytes but the values that usually differ from one message to the next.

A connection's peer sends the same head again and again, save for a length, an id or a date. Once such a head has been
read strictly, another that is equal byte for byte outside those values, and whose values are what they must be, has the
same reading; it need not be worked out again. A shape is a regular expression that says just that.

What may differ: ``Content-Length`` (digits), ``x-request-id`` (visible ASCII), ``traceparent`` (its own form),
``X-Forwarded-For`` (addresses; only heads of trusted peers that have one have a shape), ``Date`` (IMF-fixdate). None of
these can end a line or begin another field.
"""

from __future__ import annotations

import re
from typing import Final

MAX_BYTES: Final = 2048
"""Longer heads have no shape: expressions stay small."""
MAX_VARYING: Final = 8
"""Heads with more values that may differ have none either."""
MAX_SHAPES: Final = 256
"""Shapes that one process shares out; over it the list begins anew, and connections keep the one they have."""
LEARN_AT: Final = 8
"""Heads that a connection reads in full before its shape is learned; each further time takes eight times as many."""
FORGET_AT: Final = 16
"""Heads read in full since a shape was learned after which it is given up: it is not that of most of them."""
LEARN_EVERY_S: Final = 0.1
LEARN_AT_ONCE: Final = 4
"""Making an expression takes half a millisecond to two: callers whose heads have ever new shapes must not buy many. One
may be made in this time, and so many at once where none was made for long."""

_FIELD: Final = re.compile(
    rb"\r\n(content-length|x-request-id|traceparent|x-forwarded-for|date): ([^\r]*)", re.IGNORECASE
)
_VALUES: Final = {
    b"content-length": rb"([0-9]{1,18})",
    b"x-request-id": rb"[!-~]{1,128}",
    b"traceparent": rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}",
    b"x-forwarded-for": rb"[0-9A-Fa-f.:]{1,64}(?:, ?[0-9A-Fa-f.:]{1,64}){0,15}",
    b"date": rb"[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT",
}


def shape_of(raw: bytes) -> bytes | None:
    """Return the expression for heads of ``raw``'s shape, which was read and found good; None where it has none.

    Its one group, where there is one, is the Content-Length.
    """
    if len(raw) > MAX_BYTES:
        return None
    out = []
    position = 0
    for field in _FIELD.finditer(raw):
        value = _VALUES[field[1].lower()]
        if re.fullmatch(value, field[2]):
            out += [re.escape(raw[position : field.start(2)]), value]
            position = field.end(2)
    if not 0 < len(out) <= 2 * MAX_VARYING:
        return None
    return b"".join(out) + re.escape(raw[position:])


class Shapes:
    """The shapes that one process has learned."""

    __slots__ = ("_known", "_next")

    def __init__(self) -> None:
        self._known: dict[bytes, re.Pattern[bytes]] = {}
        self._next = float("-inf")

    def learn(self, raw: bytes, now: float) -> re.Pattern[bytes] | None:
        """Return the expression for heads like ``raw``, or None where there is none or too many were made just now."""
        shape = shape_of(raw)
        if shape is None:
            return None
        known = self._known.get(shape)
        if known is None and now >= self._next:
            self._next = max(self._next, now - LEARN_AT_ONCE * LEARN_EVERY_S) + LEARN_EVERY_S
            if len(self._known) >= MAX_SHAPES:
                self._known.clear()
            known = self._known[shape] = re.compile(shape)
        return known
