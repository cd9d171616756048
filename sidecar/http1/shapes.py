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
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from sidecar.http1.head import MAX_ID_BYTES, Head

if TYPE_CHECKING:
    from collections.abc import Callable

H = TypeVar("H", bound=Head)

MAX_BYTES: Final = 2048
"""Longer heads have no shape: expressions stay small."""
MAX_VARYING: Final = 8
"""Heads with more values that may differ have none either."""
MAX_SHAPES: Final = 256
"""Shapes that one process shares out; over it the list begins anew, and connections keep the one they have."""
LEARN_AT: Final = 8
"""Heads that a connection reads in full, since its last shape was learned, before another one is."""
MAX_LEARNED: Final = 4
"""Shapes that a connection knows at a time, for it may carry several kinds of message; the one used last goes first."""
PATIENCE: Final = 64
TRY_EVERY: Final = 8
"""After so many heads in a row that had none of the shapes only each of so many is held against them."""
LEARN_AGAIN_S: Final = 1.0
LEARN_AGAIN_MOST_S: Final = 60.0
"""How soon after one shape a connection learns the next: at first, then twice as late each time, up to the most. One
that has learned none for the most begins anew."""
LEARN_EVERY_S: Final = 0.1
LEARN_AT_ONCE: Final = 4
"""Making an expression takes half a millisecond to two: callers whose heads have ever new shapes must not buy many. One
may be made in this time, and so many at once where none was made for long."""

_FIELD: Final = re.compile(
    rb"\r\n(content-length|x-request-id|traceparent|x-forwarded-for|date): ([^\r]*)", re.IGNORECASE
)
_ID: Final = rb"[!-~]{1,%d}" % MAX_ID_BYTES
_VALUES: Final = {
    b"content-length": rb"(?P<length>[0-9]{1,18})",
    b"x-request-id": rb"(?P<id>%b)" % _ID,
    b"traceparent": rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}",
    b"x-forwarded-for": rb"[0-9A-Fa-f.:]{1,64}(?:, ?[0-9A-Fa-f.:]{1,64}){0,15}",
    b"date": rb"[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT",
}


def shape_of(raw: bytes) -> bytes | None:
    """Return the expression for heads of ``raw``'s shape, which was read and found good; None where it has none.

    Its groups, where it has them, are ``length``, the Content-Length, and ``id``, the x-request-id.
    """
    if len(raw) > MAX_BYTES:
        return None
    out = []
    position = 0
    named: set[bytes] = set()
    for field in _FIELD.finditer(raw):
        name = field[1].lower()
        value = _VALUES[name]
        if name in named and name == b"x-request-id":  # the first of several ids is the one that counts
            value = _ID
        named.add(name)
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


class Learned(Generic[H]):
    """The shapes that one connection's heads were seen to have, each with a head that has it."""

    __slots__ = ("_again_s", "_full_reads", "_known", "_learn_at", "_misses")

    def __init__(self) -> None:
        self._known: list[tuple[bytes, H]] = []  # the one that fitted last comes first
        self._full_reads = 0
        self._misses = 0
        self._learn_at = float("-inf")
        self._again_s = LEARN_AGAIN_S

    def find(self, raw: bytes, method: bytes = b"") -> H | None:
        """Return a head that has become that of ``raw``; None where none has its shape."""
        if self._misses > PATIENCE and self._misses % TRY_EVERY:
            return None
        known = self._known
        for position in range(len(known)):
            its_method, head = known[position]
            if its_method == method and head.becomes(raw):
                if position:
                    known.insert(0, known.pop(position))
                self._misses = 0
                return head
        return None

    def read_in_full(
        self, head: H, shapes: Shapes, clock: Callable[[], float], most_bytes: int, method: bytes = b""
    ) -> bool:
        """Count a head that had none of the shapes; True where it was learned now: it is the first then.

        ``most_bytes`` is the limit of a head; ``method`` that of the request which a response answers: its reading
        depends on it.
        """
        self._full_reads += 1
        self._misses += 1
        if self._full_reads < LEARN_AT:
            return False
        now = clock()
        if now < self._learn_at or not head.fits(head.raw):
            return False
        self._full_reads = 0
        if now - self._learn_at > LEARN_AGAIN_MOST_S:
            self._again_s = LEARN_AGAIN_S
        self._learn_at = now + self._again_s
        self._again_s = min(2 * self._again_s, LEARN_AGAIN_MOST_S)
        shape = shapes.learn(head.raw, now)
        if shape is None:
            return False
        head.learn(shape, most_bytes)
        self._known.insert(0, (method, head))
        del self._known[MAX_LEARNED:]
        return True
