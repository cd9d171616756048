"""Shapes of heads: a head of a known shape gets the reading that reading it in full would give, or none."""

from __future__ import annotations

import re
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.http1.forwarding import Peer
from sidecar.http1.head import HeadError, RequestHead, ResponseHead
from sidecar.http1.parsing import parse_request, parse_response
from sidecar.http1.shapes import (
    LEARN_AGAIN_MOST_S,
    LEARN_AGAIN_S,
    LEARN_AT,
    LEARN_AT_ONCE,
    LEARN_EVERY_S,
    MAX_BYTES,
    MAX_LEARNED,
    MAX_SHAPES,
    PATIENCE,
    TRY_EVERY,
    Learned,
    Shapes,
    shape_of,
)

DATE = b"Sun, 29 Nov 2026 13:00:00 GMT"
TRACE = b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"


def request(length: bytes = b"5", id_: bytes = b"one", trace: bytes = TRACE, more: bytes = b"") -> bytes:
    return (
        b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a.test\r\nContent-Length: " + length + b"\r\nX-Request-ID: " + id_
        + b"\r\ntraceparent: " + trace + b"\r\nX-Same: same\r\nConnection: keep-alive\r\n" + more + b"\r\n"
    )  # fmt: skip


def response(length: bytes = b"5", date: bytes = DATE, id_: bytes = b"one") -> bytes:
    return (
        b"HTTP/1.1 200 OK\r\nDate: " + date + b"\r\nContent-Length: " + length + b"\r\nx-request-id: " + id_
        + b"\r\nConnection: keep-alive\r\n\r\n"
    )  # fmt: skip


def reading(head: RequestHead | ResponseHead) -> dict[str, object]:
    names = {name for kind in type(head).__mro__ for name in getattr(kind, "__slots__", ())} - {"peer"}
    return {name: getattr(head, name) for name in names if not name.startswith("_")} | {
        "raw": head.raw,
        "id": head.request_id() if isinstance(head, RequestHead) else b"",
    }


H = TypeVar("H", RequestHead, ResponseHead)


def learned(head: H, raw: bytes) -> H:
    assert head.fits(raw)
    head.learn(matcher(raw), 2 * MAX_BYTES)
    return head


def matcher(raw: bytes) -> re.Pattern[bytes]:
    shape = shape_of(raw)
    assert shape is not None
    return re.compile(shape)


BODY = b"\r\n\r\n{}"
VALUES = st.one_of(st.binary(max_size=30), st.text("0123456789abcdefGM-_ :,", max_size=40).map(str.encode))


USUAL = st.sampled_from([b"one", b"two", b"three", b"5f0c-%d" % 7])
LENGTHS = st.one_of(st.sampled_from([b"5", b"6", b"77"]), VALUES)


@given(st.lists(st.tuples(LENGTHS, st.one_of(USUAL, VALUES), st.just(TRACE) | VALUES), max_size=8))
def test_requests_of_a_known_shape_are_read_as_in_full(each: list[tuple[bytes, bytes, bytes]]) -> None:
    known = learned(parse_request(request()), request())
    for length, id_, trace in each:
        raw = request(length, id_, trace)
        end = known.again(raw + BODY)
        took = end > 0 or known.becomes(raw)
        assert took or matcher(request()).fullmatch(raw) is None
        if took:
            assert end in (0, len(raw))
            assert reading(known) == reading(parse_request(raw))


PROXY = Peer("198.51.100.1", trusted=True)
CHAINS = st.one_of(
    VALUES,
    st.lists(st.one_of(st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map(str)), min_size=1, max_size=20).map(
        lambda chain: ", ".join(chain).encode()
    ),
)


@given(
    CHAINS,
    st.one_of(USUAL, VALUES),
    st.sampled_from([b"", b"warmroute-attempt: 1\r\n", b"X-Forwarded-Proto: https\r\n"]),
    st.booleans(),
)
def test_a_trusted_peer_s_chain_is_continued_as_reading_it_in_full_would(
    chain: bytes, id_: bytes, more: bytes, first: bool
) -> None:
    def with_chain(chain: bytes, id_: bytes) -> bytes:
        line = b"X-Forwarded-For: " + chain + b"\r\n"
        raw = request(id_=id_, more=line + more if first else more + line)
        return raw.replace(b"Connection: keep-alive\r\n", b"")

    known = learned(parse_request(with_chain(b"203.0.113.9", b"one"), peer=PROXY), with_chain(b"203.0.113.9", b"one"))
    for raw in (with_chain(chain, id_), with_chain(chain, b"two"), with_chain(chain, b"one")):
        if known.again(raw + BODY) or known.becomes(raw):
            assert reading(known) == reading(parse_request(raw, peer=PROXY))


def test_where_more_is_rewritten_than_a_chain_there_is_no_shape() -> None:
    chain = b"X-Forwarded-For: 203.0.113.9\r\n"
    bare = request().replace(b"Connection: keep-alive\r\n", b"")[:-2]
    for more in (
        chain + chain,
        b"X-Forwarded-For:203.0.113.9\r\n",
        b"X-Forwarded-For: \r\n",
        b"X-Forwarded-For: 203.0.113.9 \r\n",
        b"Forwarded: for=a\r\n",
        b"warmroute-attempt: 2\r\n",
        chain + b"Connection: keep-alive\r\n",
    ):
        raw = bare + more + b"\r\n"
        assert not parse_request(raw, peer=PROXY).fits(raw), more
    raw = bare + chain + b"\r\n"
    assert parse_request(raw, peer=PROXY).fits(raw)
    assert not parse_request(raw, peer=Peer("198.51.100.1")).fits(raw)


@given(st.integers(0, 10**18 - 1), st.text("abcXYZ0189-_.~!", min_size=1, max_size=128))
def test_what_usually_differs_may_differ(length: int, id_: str) -> None:
    raw = request(b"%d" % length, id_.encode(), b"00-" + b"0" * 32 + b"-" + b"f" * 16 + b"-00")
    known = learned(parse_request(request()), request())
    assert known.becomes(raw)
    assert known.length == length
    assert known.forward == parse_request(raw).forward


@given(st.lists(st.tuples(LENGTHS, st.just(DATE) | VALUES, st.one_of(USUAL, VALUES)), max_size=8), st.booleans())
def test_responses_of_a_known_shape_are_read_as_in_full(each: list[tuple[bytes, bytes, bytes]], first: bool) -> None:
    def answer(length: bytes, date: bytes, id_: bytes) -> bytes:
        raw = response(length, date, id_)
        if first:  # what is cut out stands before the id
            raw = raw.replace(b"Connection: keep-alive\r\n", b"").replace(b"Date:", b"Connection: keep-alive\r\nDate:")
        return raw

    raw = answer(b"5", DATE, b"one")
    known = learned(parse_response(raw, b"POST"), raw)
    for values in each:
        raw = answer(*values)
        end = known.again(raw + BODY)
        took = end > 0 or known.becomes(raw)
        assert took or matcher(answer(b"5", DATE, b"one")).fullmatch(raw) is None
        if took:
            assert end in (0, len(raw))
            assert reading(known) == reading(parse_response(raw, b"POST"))


@pytest.mark.parametrize("length", [b"5", b"6", b"77"])
def test_the_length_is_that_of_the_head_whatever_came_before(length: bytes) -> None:
    def turned(length: bytes, id_: bytes) -> bytes:
        """Return an answer whose length stands behind its id."""
        return b"HTTP/1.1 200 OK\r\nX-Request-ID: %b\r\nContent-Length: %b\r\n\r\n" % (id_, length)

    for answer in (turned, lambda length, id_: response(length, DATE, id_)):
        first = answer(b"5", b"one")
        known = learned(parse_response(first, b"POST"), first)
        for number, one in enumerate((b"5", b"5", length, b"5", b"5", length, length, b"5")):
            raw = answer(one, b"id-%d" % number)
            assert known.again(raw) or known.becomes(raw)
            assert (known.length, known.forward) == (int(one), parse_response(raw, b"POST").forward)


@given(st.integers(0, 60), VALUES)
def test_what_is_not_whole_is_no_head_again(cut: int, id_: bytes) -> None:
    known = learned(parse_request(request()), request())
    assert known.becomes(request(id_=b"two"))
    assert known.becomes(request(id_=b"three"))
    raw = request(id_=id_)
    raw = raw[: max(0, len(raw) - 1 - cut)]
    assert known.again(raw) == 0
    assert known.again(request(id_=b"four")) == len(request(id_=b"four"))


def test_a_second_id_is_no_reason_to_fail() -> None:
    raw = request(more=b"X-Request-ID: other\r\nContent-Type: a\r\n").replace(b"Connection: keep-alive\r\n", b"")
    known = learned(parse_request(raw), raw)
    for other in (b"other", b"three", b"four"):
        raw = raw.replace(b"other", other)
        assert known.becomes(raw)
        assert known.forward == raw[:-2]


@pytest.mark.parametrize(
    "raw",
    [
        request(length=b"5 "),
        request(length=b""),
        request(length=b"-1"),
        request(length=b"1" * 19),
        request(length=b"5\r\nContent-Length: 6"),
        request(id_=b"a\r\nTransfer-Encoding: chunked"),
        request(id_=b"a\nb"),
        request(id_=b"a b"),
        request(id_=b""),
        request(id_=b"a" * 129),
        request(trace=TRACE + b"\r\nX: y"),
        request(more=b"X: y\r\n"),
        request().replace(b"same", b"SAME"),
        request().replace(b"/m/", b"/n/"),
        request() + b"x",
        request()[:-1],
    ],
)
def test_anything_else_is_another_shape(raw: bytes) -> None:
    assert matcher(request()).fullmatch(raw) is None


def test_values_that_are_not_of_their_kind_belong_to_the_shape() -> None:
    raw = request(id_=b"two words")
    assert matcher(raw).fullmatch(raw) is not None
    assert matcher(raw).fullmatch(request(id_=b"one")) is None


def test_no_shape_where_nothing_differs_or_the_head_is_long() -> None:
    assert shape_of(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n") is None
    assert shape_of(request(more=b"X: " + b"x" * MAX_BYTES + b"\r\n")) is None


def test_a_head_that_is_not_passed_on_as_it_came_fits_no_shape() -> None:
    for raw in (request(more=b"TE: trailers\r\n"), request().replace(b"keep-alive", b"close"), request(id_=b"")):
        assert not parse_request(raw).fits(raw)
    raw = request().replace(b"Connection: keep-alive\r\n", b"")
    assert parse_request(raw).fits(raw)


def test_an_upgrade_fits_no_shape_as_its_length_decides_on_it() -> None:
    raw = request(length=b"0", more=b"Connection: Upgrade\r\nUpgrade: websocket\r\n").replace(b"POST", b"GET")
    raw = raw.replace(b"Connection: keep-alive\r\n", b"")
    head = parse_request(raw)
    assert head.upgrade == [b"websocket"]
    assert head.forward == raw[:-2]
    assert not head.fits(raw)


def test_few_shapes_are_made_and_those_known_cost_nothing() -> None:
    shapes = Shapes()
    first = shapes.learn(request(), 0.0)
    assert first is not None
    made = [shapes.learn(request(more=b"Y: %d\r\n" % number), 0.0) is not None for number in range(40)]
    assert LEARN_AT_ONCE - 1 <= sum(made) + 1 <= LEARN_AT_ONCE + 1
    other = request(more=b"X: y\r\n")
    assert shapes.learn(other, 0.0) is None
    assert shapes.learn(request(id_=b"two"), 0.0) is first
    assert shapes.learn(other, 2 * LEARN_EVERY_S) is not None
    for number in range(MAX_SHAPES):
        shapes.learn(request(more=b"X: %d\r\n" % number), 10.0 + number)
    assert len(shapes._known) <= MAX_SHAPES


def test_the_shape_of_a_bad_head_is_never_asked_for() -> None:
    with pytest.raises(HeadError):
        parse_request(request(length=b"x"))


def test_a_connection_knows_several_shapes_and_learns_seldom() -> None:
    shapes, memory, now = Shapes(), Learned[RequestHead](), 100.0

    def read(raw: bytes) -> bool:
        """Read a head in full; True where its shape was learned."""
        return memory.read_in_full(parse_request(raw), shapes, lambda: now, 2 * MAX_BYTES)

    kinds = [request(more=b"Kind: %d\r\n" % kind) for kind in range(MAX_LEARNED + 1)]
    for kind, raw in enumerate(kinds):
        reads = [read(raw) for _ in range(LEARN_AT)]
        assert reads.index(True) == (0 if kind else LEARN_AT - 1)  # some were read in full before
        assert sum(reads) == 1
        if kind == 0:
            assert not any(read(kinds[1]) for _ in range(3 * LEARN_AT))  # too early for another one
        now += LEARN_AGAIN_S * 2**kind
    assert [memory.find(raw) is not None for raw in kinds] == [False, True, True, True, True]
    found = memory.find(kinds[1])
    assert found is not None
    assert found.raw == kinds[1]
    assert memory.find(kinds[1], b"HEAD") is None

    now += LEARN_AGAIN_MOST_S * 2  # and then it is as if none had been learned
    for raw in kinds[:2]:
        assert sum([read(raw) for _ in range(LEARN_AT)]) == 1
        now += LEARN_AGAIN_S


def test_a_longer_id_does_not_take_a_head_over_its_limit() -> None:
    raw = request()
    known = parse_request(raw)
    assert known.fits(raw)
    known.learn(matcher(raw), len(raw) + 3)
    for id_ in (b"two", b"six"):
        assert known.becomes(request(id_=id_))
    for more in range(8):
        longer = request(id_=b"x" * (3 + more))
        assert known.again(longer) == (len(longer) if more <= 3 else 0)


def test_where_nothing_fits_for_long_not_each_head_is_tried() -> None:
    shapes, memory = Shapes(), Learned[RequestHead]()
    for _ in range(LEARN_AT):
        learned_now = memory.read_in_full(parse_request(request()), shapes, lambda: 0.0, 2 * MAX_BYTES)
    assert learned_now
    other = parse_request(request(more=b"X: y\r\n"))
    for _ in range(PATIENCE):
        memory.read_in_full(other, shapes, lambda: 0.0, 2 * MAX_BYTES)
        assert memory.find(request()) is not None  # which shows that it still has patience
    for _ in range(PATIENCE + 1):
        memory.read_in_full(other, shapes, lambda: 0.0, 2 * MAX_BYTES)
    tried = 0
    while memory.find(request()) is None:
        memory.read_in_full(other, shapes, lambda: 0.0, 2 * MAX_BYTES)
        tried += 1
        assert tried < TRY_EVERY
    assert tried > 0
    assert memory.find(request()) is not None  # and patience is back


@pytest.mark.parametrize("first", [b" blanks", b"two words", b"x" * 129])
def test_a_first_id_of_another_form_is_not_passed_over_for_a_second(first: bytes) -> None:
    raw = b"GET / HTTP/1.1\r\nHost: a\r\nX-Request-Id: " + first + b"\r\nX-Request-Id: second\r\n\r\n"
    assert parse_request(raw).request_id() == first.strip(b" ")
    known = learned(parse_request(raw), raw)
    for other in (b"third", b"fourth", b"fifth"):
        raw = raw.replace(b"second", other)
        assert known.again(raw) or known.becomes(raw)
        assert known.request_id() == first.strip(b" ")
        raw = raw.replace(other, b"second")
