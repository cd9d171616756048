"""gRPC calls and their answers as the cache sees them: what tells calls apart, what is kept, and how it is told."""

from __future__ import annotations

import msgspec
import pytest

from sidecar.cache.asking import Asked
from sidecar.cache.calls import asked_of_call, is_one_message, kept_call, kept_call_elsewhere, told_call
from sidecar.cache.keeping import Kept, kept_elsewhere
from sidecar.cache.terms import Refused, Terms
from sidecar.settings import MODEL_INFER, Admission, Cache
from sidecar.state.answers import Record, record_of
from tests.support.grpc_by_hand import HeadFields, call_fields, message

PATH = MODEL_INFER.encode()
TERMS = Terms(Cache(), Admission())
OWN = Terms(Cache(tenant_header="x-org", calls=(MODEL_INFER, "/a.B/C")), Admission())
INITIAL: HeadFields = [(b":status", b"200"), (b"content-type", b"application/grpc"), (b"x-model", b"m")]
TRAILERS: HeadFields = [(b"grpc-status", b"0"), (b"grpc-message", b""), (b"x-end", b"e")]
BODY = message(b"answer")


def key(*more: tuple[bytes, bytes], path: bytes = PATH, terms: Terms = TERMS, body: bytes = BODY) -> bytes | Refused:
    asked = asked_of_call(path, call_fields(path, *more), terms, trusted=False, identity=b"")
    return asked.keys("m", ("1",), body)[0] if isinstance(asked, Asked) else asked


@pytest.mark.parametrize(
    "other",
    [
        key((b"grpc-encoding", b"gzip")),
        key((b"grpc-accept-encoding", b"gzip")),
        key(body=message(b"answer", compressed=True)),
        key(body=message(b"another")),
        key((b"x-org", b"1"), terms=OWN),
        key((b"x-org", b"2"), terms=OWN),
        key((b"x-org", b"1"), path=b"/a.B/C", terms=OWN),
    ],
)
def test_what_changes_an_answer_is_another_key(other: bytes | Refused) -> None:
    assert isinstance(other, bytes)
    assert other != key()


def test_tenants_have_keys_of_their_own() -> None:
    assert key((b"x-org", b"1"), terms=OWN) != key((b"x-org", b"2"), terms=OWN)
    assert key((b"x-org", b"1"), terms=OWN) == key((b"x-org", b"1"), (b"user-agent", b"z"), terms=OWN)


@pytest.mark.parametrize(
    ("why", "more", "path", "terms"),
    [
        (Refused.PATH, (), b"/a.B/C", TERMS),
        (Refused.CREDENTIALS, ((b"authorization", b"x"),), PATH, TERMS),
        (Refused.REQUEST_CONTROL, ((b"cache-control", b"no-store"),), PATH, TERMS),
        (Refused.NO_TENANT, (), PATH, OWN),
        (Refused.NO_TENANT, ((b"x-org", b"1"), (b"x-org", b"2")), PATH, OWN),
    ],
)
def test_calls_that_have_no_key(why: Refused, more: tuple[tuple[bytes, bytes], ...], path: bytes, terms: Terms) -> None:
    assert key(*more, path=path, terms=terms) is why


@pytest.mark.parametrize(
    ("data", "one"),
    [(BODY, True), (message(b""), True), (b"", False), (BODY[:-1], False), (BODY + b"x", False), (BODY * 2, False)],
)
def test_one_message(data: bytes, one: bool) -> None:
    assert is_one_message(data) is one


def keep(initial: HeadFields = INITIAL, body: bytes = BODY, trailers: HeadFields = TRAILERS) -> Kept | Refused:
    return kept_call(initial, body, trailers, 100.0, TERMS)


@pytest.mark.parametrize(
    ("why", "found"),
    [
        (Refused.STATUS, keep(trailers=[(b"grpc-status", b"5")])),
        (Refused.STATUS, keep(trailers=[])),
        (Refused.STATUS, keep(trailers=[*TRAILERS, *TRAILERS])),
        (Refused.STATUS, keep(initial=[*INITIAL, *TRAILERS])),
        (Refused.STREAM, keep(body=BODY * 2)),
        (Refused.STREAM, keep(body=b"")),
        (Refused.ANSWER_CONTROL, keep(initial=[*INITIAL, (b"cache-control", b"private")])),
        (Refused.ANSWER_CONTROL, keep(trailers=[*TRAILERS, (b"set-cookie", b"a=b")])),
        (Refused.ANSWER_CONTROL, keep(initial=[*INITIAL, (b"cache-control", b"max-age=0")])),
        (Refused.SIZE, keep(body=message(bytes(262144)))),
    ],
)
def test_what_is_not_kept(why: Refused, found: Kept | Refused) -> None:
    assert found is why


def test_an_answer_is_told_with_its_metadata_and_trailers_but_for_those_of_one_exchange() -> None:
    ours: HeadFields = [(b"x-request-id", b"old"), (b"warmroute-outcome", b"x"), (b"endpoint-load-metrics", b"{}")]
    answer = keep([*INITIAL, *ours, (b"cache-control", b"max-age=60"), (b"age", b"5")], BODY, [*TRAILERS, *ours])
    assert isinstance(answer, Kept)
    initial, body, trailers = told_call(answer, 130.5, b"new")
    assert initial == [
        *INITIAL,
        (b"cache-control", b"max-age=60"),
        (b"age", b"35"),
        (b"cache-status", b"warmroute; hit; ttl=24"),
        (b"warmroute-degraded", b"cache"),
        (b"x-request-id", b"new"),
    ]
    assert (body, trailers) == (BODY, TRAILERS)


def read(head: bytes, body: bytes = BODY, *, now: float = 110.0, most: int = 65536) -> Kept | Refused:
    return kept_call_elsewhere(head, body, 3, 100.0, now, TERMS, most)


def test_what_somebody_else_kept_is_held_to_the_terms_in_force() -> None:
    answer = keep()
    assert isinstance(answer, Kept)
    found = read(answer.head)
    assert isinstance(found, Kept)
    assert (found.head, found.body, found.age_s) == (answer.head, answer.body, 3)
    assert read(answer.head, now=800.0) is Refused.ANSWER_CONTROL
    assert read(answer.head, most=20) is Refused.SIZE
    assert read(answer.head, BODY * 2) is Refused.STREAM
    for bad in (
        b"HTTP/1.1 200 OK\r\na: b\r\n",
        b"gRPC\r\na: b\r\n",
        answer.head.replace(b"x-model", b"X-Model"),
        answer.head.replace(b"x-model: m", b":status: 100"),
        answer.head.replace(b"x-model: m", b"x-request-id: m"),
        answer.head.replace(b"x-model: m", b"x-model:  m"),
    ):
        assert read(bad) is Refused.ANSWER_CONTROL, bad
    assert read(answer.head.replace(b"status: 0", b"status: 7")) is Refused.STATUS


def test_neither_protocol_reads_what_the_other_kept() -> None:
    answer = keep()
    assert isinstance(answer, Kept)
    assert isinstance(kept_elsewhere(answer.head, BODY, 0, 100.0, 101.0, TERMS, 65536), Refused)


def test_the_store_takes_it_and_nothing_that_is_none() -> None:
    answer = keep()
    assert isinstance(answer, Kept)

    def stored(head: bytes) -> Record | None:
        return record_of(msgspec.msgpack.encode(Record(1, head, BODY, 1000, 0)))

    assert stored(answer.head) is not None
    assert stored(answer.head[:-1]) is None
    assert stored(answer.head + b"\r\n") is None
    assert stored(answer.head.replace(b"gRPC", b"grpc")) is None
