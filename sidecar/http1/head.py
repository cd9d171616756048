"""What is kept of the head of an HTTP/1.1 message, and how it becomes that of the next one, which is nearly alike.

The strict reading is in ``parsing``; which heads are alike in ``shapes``.
"""

from __future__ import annotations

import re
from typing import Final

from router.outcomes import Outcome
from sidecar.http1.forwarding import Continuation, Peer

CHUNKED: Final = -1
"""Value of ``length`` for a chunked body."""
UNTIL_CLOSE: Final = -2
"""Value of ``length`` for a response body that ends with its connection."""

MAX_LENGTH_DIGITS: Final = 18
MAX_ID_BYTES: Final = 128
"""Longer request ids are read in full each time."""

KEEP_ALIVE: Final = b"\r\nConnection: keep-alive"
"""The usual spelling of what is cut out of a head that is passed on."""
_RETRY_AFTER: Final = re.compile(
    rb"(?:[0-9]+"
    rb"|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT"
    rb"|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day, [0-9]{2}-[A-Z][a-z]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT"
    rb"|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [ 0-9][0-9] [0-9]{2}:[0-9]{2}:[0-9]{2} [0-9]{4})[ \t]*",
    re.IGNORECASE,
)
"""Seconds, or a date in one of the three forms of RFC 9110 5.6.7. Anything else asks for nothing."""
_OVERDUE: Final = b"\r\nwarmroute-deadline: caller\r\n"
_VISIBLE: Final = bytes(range(0x21, 0x7F))
_NONE: Final = 0
_ALIVE: Final = 1
_CONTINUED: Final = 2
"""Edits between what was read and what is passed on: none, KEEP_ALIVE cut out, a trusted peer's chain continued."""


class HeadError(Exception):
    """A head that has no one good reading. ``outcome`` says how it is answered, ``detail`` what is wrong with it."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome
        self.detail = detail


class Head:
    """What the two kinds share: what is passed on, without the final empty line, and the body's length.

    ``length`` is in bytes, 0 for none, CHUNKED, or UNTIL_CLOSE.
    """

    __slots__ = (
        "_aft",
        "_before",
        "_behind",
        "_edit",
        "_fore",
        "_id",
        "_id_at",
        "_id_group",
        "_left",
        "_length_group",
        "_length_text",
        "_most",
        "_most_bytes",
        "_raw",
        "_shape",
        "forward",
        "length",
    )

    _edit: int  # how ``forward`` comes from what was read
    _shape: re.Pattern[bytes]  # these are of a head whose shape was learned
    _most_bytes: int
    _id_group: int
    _length_group: int
    _length_text: bytes
    _before: bytes  # what is around the request id, read and passed on, where that is all that will differ
    _behind: bytes
    _id: bytes
    _id_at: int  # where the id begins, how many bytes are left behind it, and where these end at the latest
    _left: int
    _most: int
    _fore: bytes
    _aft: bytes
    _raw: bytes  # what was read, while ``_before`` is empty
    forward: bytes
    length: int

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._before = b""

    @property
    def raw(self) -> bytes:
        """The head as it was read."""
        return self._before + self._id + self._behind if self._before else self._raw

    def fits(self, raw: bytes) -> bool:
        """Return whether it is passed on as it came in ``raw``, or with no more than a usual edit."""
        plain = raw[:-2]
        self._edit = _NONE if self.forward == plain else _ALIVE
        return self._edit == _NONE or self.forward == plain.replace(KEEP_ALIVE, b"", 1)

    def learn(self, shape: re.Pattern[bytes], most_bytes: int) -> None:
        """Keep the shape of the head that was read, and which :meth:`fits`; ``most_bytes`` is the limit of a head."""
        self._shape = shape
        self._most_bytes = most_bytes
        self._id_group = shape.groupindex.get("id", 0)
        self._length_group = shape.groupindex.get("length", 0)
        self._length_text = b""

    def again(self, data: bytes) -> int:
        """Become the head that ``data`` begins with, where nothing but the request id differs; return its length, or 0.

        Most heads on a connection are such: only what is around the id has to be compared.
        """
        before = self._before
        if not before:
            raw = self._raw
            return len(raw) if data.startswith(raw) else 0
        if data.startswith(before):
            start = self._id_at
            end = data.find(self._behind, start, self._most)
            id_ = data[start:end]
            if end > start and not id_.translate(None, _VISIBLE):
                self._id = id_
                self.forward = self._fore + id_ + self._aft
                return end + self._left
        return 0

    def becomes(self, raw: bytes) -> bool:
        """Become the head of ``raw`` where that has the learned shape; False, and nothing, where it has another."""
        found = self._shape.fullmatch(raw)
        if found is None:
            return False
        self._raw = raw
        forward = raw[:-2]
        if self._edit:
            forward = forward.replace(KEEP_ALIVE, b"", 1) if self._edit == _ALIVE else self._continued(forward)
        self.forward = forward
        if self._length_group:
            text = found[self._length_group]
            if text != self._length_text:
                self._length_text = text
                self.length = int(text)
                self._before = b""  # it would be that of another length
                return True
        if self._id_group and self._edit != _CONTINUED:
            self._aim(raw, found)
        return True

    def _aim(self, raw: bytes, found: re.Match[bytes]) -> None:
        start, end = found.span(self._id_group)
        self._before = fore = raw[:start]
        self._id = raw[start:end]
        self._behind = raw[end:]
        self._id_at = start
        self._left = len(raw) - end
        self._most = min(start + MAX_ID_BYTES + self._left, self._most_bytes)
        aft = raw[end:-2]
        if self._edit == _ALIVE:
            fore = fore.replace(KEEP_ALIVE, b"", 1)
            if len(fore) == start:
                aft = aft.replace(KEEP_ALIVE, b"", 1)
        self._fore, self._aft = fore, aft

    def _continued(self, forward: bytes) -> bytes:
        return forward


class RequestHead(Head):
    """What a proxy needs of a request head.

    ``end`` is what a first attempt's head ends with, ``attempt`` the number of that attempt: over 1 where a proxy
    before this one counted. ``asked`` is the model that a field of the head names, ``key`` what decides where it goes.
    """

    __slots__ = (
        "_continuation",
        "asked",
        "attempt",
        "end",
        "has_request_id",
        "has_traceparent",
        "keep_alive",
        "key",
        "method",
        "minor",
        "peer",
        "target",
        "timeout_ms",
        "upgrade",
    )

    asked: bytes
    attempt: int
    end: bytes
    key: bytes
    peer: Peer
    method: bytes
    target: bytes
    minor: int
    keep_alive: bool
    has_request_id: bool
    has_traceparent: bool
    timeout_ms: int  # x-request-timeout-ms, which is not passed on as it is; -1 where there is none
    upgrade: list[bytes]  # protocols that may be switched to, in lower case; they are passed on

    _continuation: Continuation

    def fits(self, raw: bytes) -> bool:
        """Return the same; a trusted peer's chain may be continued besides.

        One that asks for an upgrade never does: whether that is granted depends on the length, which varies.
        """
        if self.upgrade:
            return False
        if Head.fits(self, raw):
            return True
        if not self.peer.trusted:
            return False
        self._edit = _CONTINUED
        self._continuation = Continuation(raw, self.peer)
        return self.forward == self._continued(raw[:-2])

    def _continued(self, forward: bytes) -> bytes:
        return self._continuation.of(forward)

    def request_id(self) -> bytes:
        """Return the caller's x-request-id, or nothing."""
        if not self.has_request_id:
            return b""
        if self._before:
            return self._id
        raw = self._raw
        start = raw.lower().find(b"\r\nx-request-id:") + 15
        return raw[start : raw.find(b"\r\n", start)].strip(b" \t")


NO_HEAD: Final = RequestHead(b"")
"""Stands where there was no request yet; nothing is to be read of it."""


class ResponseHead(Head):
    """What a proxy needs of a response head."""

    __slots__ = ("has_request_id", "keep_alive", "retry_after", "status", "upgrade")

    status: int
    keep_alive: bool
    has_request_id: bool
    retry_after: bytes  # as it came; nothing where there was none
    upgrade: list[bytes]  # of a 101: what is spoken from here on, in lower case

    @property
    def busy(self) -> bool:
        """True for back-pressure: 429, or 503 with a Retry-After that can be read (RFC 9110 10.2.3)."""
        return self.status == 429 or (self.status == 503 and _RETRY_AFTER.fullmatch(self.retry_after) is not None)

    @property
    def overdue(self) -> bool:
        """True for a 504 of which the worker says that the time which the request gave was over."""
        return self.status == 504 and _OVERDUE in self.forward.lower()

    @property
    def retry_after_s(self) -> float | None:
        """Retry-After in seconds, None where there is none or it is a date (RFC 9110 10.2.3)."""
        value = self.retry_after.rstrip(b" \t")
        return float(value) if value.isdigit() and len(value) <= MAX_LENGTH_DIGITS else None


NO_ANSWER: Final = ResponseHead(b"")
"""The same of answers."""
