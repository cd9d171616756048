"""Shapes of heads: a head of a known shape gets the reading that reading it in full would give, or none."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.http1.forwarding import Peer
from sidecar.http1.head import HeadError, RequestHead, ResponseHead, parse_request, parse_response
from sidecar.http1.shapes import LEARN_AT_ONCE, LEARN_EVERY_S, MAX_BYTES, MAX_SHAPES, Shapes, shape_of

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
    names = {name for kind in type(head).__mro__ for name in getattr(kind, "__slots__", ())} - {
        "_edit",
        "_continuation",
        "peer",
    }
    return {name: getattr(head, name) for name in names}


def matcher(raw: bytes) -> re.Pattern[bytes]:
    shape = shape_of(raw)
    assert shape is not None
    return re.compile(shape)


VALUES = st.one_of(st.binary(max_size=30), st.text("0123456789abcdefGM-_ :,", max_size=40).map(str.encode))


@given(VALUES, VALUES, VALUES)
def test_a_request_of_a_known_shape_is_read_as_in_full(length: bytes, id_: bytes, trace: bytes) -> None:
    known = parse_request(request())
    assert known.fits(known.raw)
    raw = request(length, id_, trace)
    found = matcher(request()).fullmatch(raw)
    if found is None:
        return
    known.like(raw, found)
    known.raw = raw
    assert reading(known) == reading(parse_request(raw))


PROXY = Peer("198.51.100.1", trusted=True)
CHAINS = st.one_of(
    VALUES,
    st.lists(st.one_of(st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map(str)), min_size=1, max_size=20).map(
        lambda chain: ", ".join(chain).encode()
    ),
)


@given(
    CHAINS, VALUES, st.sampled_from([b"", b"warmroute-attempt: 1\r\n", b"X-Forwarded-Proto: https\r\n"]), st.booleans()
)
def test_a_trusted_peer_s_chain_is_continued_as_reading_it_in_full_would(
    chain: bytes, id_: bytes, more: bytes, first: bool
) -> None:
    def with_chain(chain: bytes, id_: bytes) -> bytes:
        line = b"X-Forwarded-For: " + chain + b"\r\n"
        raw = request(id_=id_, more=line + more if first else more + line)
        return raw.replace(b"Connection: keep-alive\r\n", b"")

    known = parse_request(with_chain(b"203.0.113.9", b"one"), peer=PROXY)
    assert known.fits(known.raw)
    raw = with_chain(chain, id_)
    found = matcher(known.raw).fullmatch(raw)
    if found is None:
        return
    known.like(raw, found)
    known.raw = raw
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
    known = parse_request(request())
    found = matcher(request()).fullmatch(raw)
    assert found is not None
    assert known.fits(known.raw)
    known.like(raw, found)
    assert known.length == length
    assert known.forward == parse_request(raw).forward


@given(VALUES, VALUES, VALUES)
def test_a_response_of_a_known_shape_is_read_as_in_full(length: bytes, date: bytes, id_: bytes) -> None:
    first = response()
    known = parse_response(first, b"POST")
    assert known.fits(first)
    raw = response(length, date, id_)
    found = matcher(first).fullmatch(raw)
    if found is None:
        return
    known.like(raw, found)
    assert reading(known) == reading(parse_response(raw, b"POST"))


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
