"""An answer as the cache sees it: whether it may be kept, what of its head is, for how long, and how it is told again.

Sources: RFC 9111 (3, 3.1, 4.2, 5.1, 5.2.2), RFC 9211 (Cache-Status), RFC 9110 (7.6.1).
"""

from __future__ import annotations

import re
from typing import Final

from sidecar.cache.terms import Refused, Terms

CACHE_STATUS: Final = b"Cache-Status: warmroute; "
DEGRADED: Final = b"warmroute-degraded: "
_CONTENT_TYPE: Final = re.compile(rb"\r\ncontent-type:[ \t]*([^\r]*)", re.IGNORECASE)
_STREAMS: Final = (b"text/event-stream", b"application/x-ndjson", b"application/jsonl", b"multipart/x-mixed-replace")
_NOT_SHARED: Final = re.compile(rb"(?:^|,)[ \t]*(?:no-store|no-cache|private)[ \t]*(?:[,=]|$)")
_MAX_AGE: Final = re.compile(rb"(?:^|,)[ \t]*(s-maxage|max-age)=\"?([0-9]{1,9})")
_OF_ONE_ANSWER: Final = frozenset(
    {
        b"age",
        b"cache-status",
        b"connection",
        b"content-length",
        b"endpoint-load-metrics",
        b"endpoint-load-metrics-bin",
        b"endpoint-load-metrics-json",
        b"keep-alive",
        b"proxy-authenticate",
        b"retry-after",
        b"server-timing",
        b"te",
        b"traceparent",
        b"tracestate",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"via",
        b"x-request-id",
    }
)
"""Fields of an answer that are true of one exchange only, or of its connection; said anew, or not at all."""


class Kept:
    """An answer that is kept: its status line and fields as they are told again, its body, and since when.

    ``head`` begins with the status line and ends with a line's end. Times are monotonic seconds; ``age_s`` is how old
    it was by its own word when it came.
    """

    __slots__ = ("age_s", "body", "head", "stored_at", "ttl_s")

    def __init__(self, head: bytes, body: bytes, stored_at: float, ttl_s: float, age_s: int = 0) -> None:
        self.head: Final = head
        self.body: Final = body
        self.stored_at: Final = stored_at
        self.ttl_s: Final = ttl_s
        self.age_s: Final = age_s

    @property
    def size_bytes(self) -> int:
        """What it counts for."""
        return len(self.head) + len(self.body) + ENTRY_BYTES

    def fresh(self, now: float) -> bool:
        """Return whether it may still be told."""
        return now - self.stored_at < self.ttl_s

    def tell(self, now: float, request_id: bytes, *, close: bool, detail: bytes = b"") -> bytes:
        """Return the whole answer to another request, byte for byte but for the fields that are of this one."""
        age = self.age_s + max(0, int(now - self.stored_at))
        left = max(0, int(self.stored_at + self.ttl_s - now))
        return b"".join(
            (
                self.head,
                b"Content-Length: %d\r\n" % len(self.body),
                b"Age: %d\r\n" % age,
                CACHE_STATUS,
                b"hit; ttl=%d%s\r\n" % (left, detail),
                DEGRADED,
                b"cache\r\n",
                b"x-request-id: ",
                request_id,
                b"\r\nvia: 1.1 warmroute\r\n",
                b"Connection: close\r\n\r\n" if close else b"\r\n",
                self.body,
            )
        )


MOST_AGE_S: Final = 1 << 31
"""What is taken for an age that is longer (RFC 9111 1.2.2)."""
_AGE_DIGITS: Final = 10
ENTRY_BYTES: Final = 512
"""What an entry takes beside its bytes: key, objects, places in two queues."""


def judge(status: int, forward: bytes, length: int, terms: Terms) -> Refused | None:
    """Say from its head why an answer is not kept; None where it may be, once it came whole.

    Args:
        status: its status.
        forward: its head as it is passed on, without the empty line.
        length: of its body in bytes; negative where that is not known.
        terms: the model's.
    """
    if status not in terms.statuses:
        return Refused.STATUS
    if not terms.streams and (length < 0 or _is_stream(forward)):
        return Refused.STREAM
    if len(forward) + length > terms.max_entry_bytes:
        return Refused.SIZE
    for line in forward.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if forbids(name.lower(), value, terms.keyed):
            return Refused.ANSWER_CONTROL
    return None


def forbids(name: bytes, value: bytes, keyed: frozenset[bytes]) -> bool:
    """Return whether a field of an answer, its name in lower case, forbids that it is kept for others."""
    if name == b"set-cookie":
        return True
    if name == b"cache-control":
        return _NOT_SHARED.search(value.lower()) is not None
    if name == b"vary":
        return not {one.strip(b" \t").lower() for one in value.split(b",")} <= keyed
    return False


def of_one_answer(name: bytes) -> bool:
    """Return whether a field of an answer, its name in lower case, is true of one exchange only, or ours to say."""
    return name in _OF_ONE_ANSWER or name.startswith(b"warmroute-")


class Life:
    """How old an answer is by its own word, and how long it may be told by that and the model's terms, in seconds."""

    __slots__ = ("_most_s", "_shared", "age_s", "ttl_s")

    def __init__(self, terms: Terms) -> None:
        self.age_s = 0
        self.ttl_s = self._most_s = terms.ttl_s
        self._shared = False

    def hear(self, name: bytes, value: bytes) -> None:
        """Learn of one field, its name in lower case."""
        if name == b"age" and (digits := value.strip(b" \t")).isdigit():
            self.age_s = min(int(digits), MOST_AGE_S) if len(digits) <= _AGE_DIGITS else MOST_AGE_S
        elif name == b"cache-control":
            for which, seconds in _MAX_AGE.findall(value.lower()):
                if which == b"s-maxage" or not self._shared:  # RFC 9111 5.2.2.10: it counts, where both stand
                    self._shared = self._shared or which == b"s-maxage"
                    self.ttl_s = min(self._most_s, float(seconds))


def kept(forward: bytes, body: bytes, now: float, terms: Terms) -> Kept | Refused:
    """Return an answer as it is kept, or why not after all: it is too long, or at its end already."""
    lines = forward.split(b"\r\n")
    out = [b"HTTP/1.1" + lines[0][8:]]
    life = Life(terms)
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        name = name.lower()
        life.hear(name, value)
        if line and not of_one_answer(name):
            out.append(line)
    return as_kept(b"\r\n".join(out) + b"\r\n", body, now, life, terms)


def as_kept(head: bytes, body: bytes, now: float, life: Life, terms: Terms) -> Kept | Refused:
    """Return an answer as it is kept from now on, or why not: it is too long, or at its end already."""
    if len(head) + len(body) > terms.max_entry_bytes:
        return Refused.SIZE
    if life.ttl_s <= life.age_s:
        return Refused.ANSWER_CONTROL
    return Kept(head, body, now, life.ttl_s - life.age_s, life.age_s)


def kept_elsewhere(
    head: bytes, body: bytes, age_s: int, since: float, now: float, terms: Terms, most_bytes: int
) -> Kept | Refused:
    """Return an answer that somebody else kept, held to all that one of our own is held to; or why it is not told.

    Args:
        head: as it was kept, from its status line to the last line's end.
        body: the body.
        age_s: how old it was by its own word when it came there.
        since: when it came there, on the clock of ``now``.
        now: the time.
        terms: the model's, in force here now.
        most_bytes: head and body may have so many.
    """
    status = head[9:12]
    if len(head) + len(body) > most_bytes:
        return Refused.SIZE
    refused = judge(int(status) if status.isdigit() else 0, head[:-2], len(body), terms)
    if refused is not None:
        return refused
    answer = kept(b"%sAge: %d" % (head, age_s), body, since, terms)
    if isinstance(answer, Kept):
        if answer.head != head:  # fields of one exchange, of a connection's framing, or of ours: nobody kept these
            return Refused.ANSWER_CONTROL
        if not answer.fresh(now):
            return Refused.ANSWER_CONTROL
    return answer


def _is_stream(forward: bytes) -> bool:
    kind = _CONTENT_TYPE.search(forward)
    return kind is not None and kind[1].lower().startswith(_STREAMS)
