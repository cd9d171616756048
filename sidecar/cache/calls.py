"""A gRPC call and its answer as the cache sees them: the same store, terms and keys as those of HTTP have.

A call is what its metadata and its messages are, framed as they came: so a compressed message is another one. Its
answer is kept where it is one message and the status OK; it is told with the metadata and the trailers that it had, but
for those of one exchange. What is kept begins with a line of its own, so that no request over HTTP can be told it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sidecar.cache.asking import Asked, asked_with
from sidecar.cache.keeping import Kept, Life, as_kept, forbids, of_one_answer
from sidecar.cache.terms import Refused, Terms

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

METHOD: Final = b"gRPC"
"""What stands in the key where HTTP has its method."""
MESSAGE_HEAD: Final = 5
_START: Final = b"gRPC\r\n"
_OK: Final = (b"grpc-status", b"0")
_LEFT_OUT: Final = frozenset({b":status", b"grpc-retry-pushback-ms"})

Fields = list[tuple[bytes, bytes]]


def asked_of_call(
    path: bytes, fields: Iterable[Sequence[bytes]], terms: Terms, *, trusted: bool, identity: bytes
) -> Asked | Refused:
    """Return what a call is to the cache, or why it is nothing to it.

    Args:
        path: its method, as it came.
        fields: its metadata as the worker hears them.
        terms: the model's.
        trusted: its caller's word counts in ``policies.admission``.
        identity: what stands for its caller's certificate, empty where it showed none.
    """
    if path not in terms.calls:
        return Refused.PATH
    return asked_with(METHOD, path, fields, terms.keyed_of_calls, terms, trusted=trusted, identity=identity)


def is_one_message(data: bytes) -> bool:
    """Return whether data are one whole message and nothing else."""
    return len(data) >= MESSAGE_HEAD and MESSAGE_HEAD + int.from_bytes(data[1:MESSAGE_HEAD], "big") == len(data)


def kept_call(
    initial: Iterable[Sequence[bytes]], body: bytes, trailers: Iterable[Sequence[bytes]], now: float, terms: Terms
) -> Kept | Refused:
    """Return an answer as it is kept, or why it is not.

    Args:
        initial: its initial metadata, as the caller got them.
        body: its messages, as they were framed.
        trailers: its trailers.
        now: the time.
        terms: the model's.
    """
    life = Life(terms)
    parts = [_START]
    ended = False
    for number, fields in enumerate((initial, trailers)):
        if number:
            parts.append(b"\r\n")
        for field in fields:
            name, value = field[0], field[1]
            if name == b"grpc-status":
                if number == 0 or ended or value != b"0":
                    return Refused.STATUS
                ended = True
            elif forbids(name, value, terms.keyed_of_calls):
                return Refused.ANSWER_CONTROL
            else:
                life.hear(name, value)
            if name not in _LEFT_OUT and not of_one_answer(name):
                parts.append(b"%s: %s\r\n" % (name, value))
    if not ended:
        return Refused.STATUS
    if not is_one_message(body):
        return Refused.STREAM
    return as_kept(b"".join(parts), body, now, life, terms)


def kept_call_elsewhere(
    head: bytes, body: bytes, age_s: int, since: float, now: float, terms: Terms, most_bytes: int
) -> Kept | Refused:
    """Return an answer that somebody else kept, held to all that one of our own is held to; or why it is not told.

    Args:
        head: as it was kept.
        body: the messages.
        age_s: how old it was by its own word when it came there.
        since: when it came there, on the clock of ``now``.
        now: the time.
        terms: the model's, in force here now.
        most_bytes: head and body may have so many.
    """
    if len(head) + len(body) > most_bytes:
        return Refused.SIZE
    parts = _parts_of(head)
    if parts is None:
        return Refused.ANSWER_CONTROL
    initial, trailers = parts
    answer = kept_call([*initial, (b"age", b"%d" % age_s)], body, trailers, since, terms)
    if isinstance(answer, Kept) and (answer.head != head or not answer.fresh(now)):
        return Refused.ANSWER_CONTROL
    return answer


def told_call(answer: Kept, now: float, request_id: bytes) -> tuple[Fields, bytes, Fields]:
    """Return the initial metadata, the messages and the trailers with which an answer is told to another call."""
    initial, trailers = _parts_of(answer.head) or ([], [_OK])
    age = answer.age_s + max(0, int(now - answer.stored_at))
    left = max(0, int(answer.stored_at + answer.ttl_s - now))
    told = [
        (b":status", b"200"),
        *initial,
        (b"age", b"%d" % age),
        (b"cache-status", b"warmroute; hit; ttl=%d" % left),
        (b"warmroute-degraded", b"cache"),
        (b"x-request-id", request_id),
    ]
    return told, answer.body, trailers


def _parts_of(head: bytes) -> tuple[Fields, Fields] | None:
    """Return the initial metadata and the trailers of a kept answer, None where that is none."""
    if not head.startswith(_START):
        return None
    parts: tuple[Fields, Fields] = ([], [])
    trailers = False
    for line in head[len(_START) :].removesuffix(b"\r\n").split(b"\r\n"):
        if not line and not trailers:
            trailers = True
            continue
        name, colon, value = line.partition(b": ")
        if not name or not colon or name != name.lower() or value != value.strip(b" \t"):
            return None
        parts[trailers].append((name, value))
    return parts if trailers else None
