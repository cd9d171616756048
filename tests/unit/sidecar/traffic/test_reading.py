"""One answer read in whatever pieces it comes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.traffic.reading import HEAD_BYTES, Reading, UnreadableError

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Kept: a\r\nx-kept: b \r\n\r\n"
CHUNKED += b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nT: 1\r\n\r\n"
SIZED = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nX-Kept: b\r\n\r\nabcde"


@given(st.sampled_from([CHUNKED, SIZED]), st.lists(st.integers(1, 150)), st.integers(0, 7))
def test_pieces_change_nothing(answer: bytes, cuts: list[int], tail_bytes: int) -> None:
    reading = Reading("GET", tail_bytes)
    places = sorted({0, len(answer), *(cut for cut in cuts if cut < len(answer))})
    ends = [reading.feed(answer[a:b]) for a, b in pairwise(places)]
    assert ends == [False] * (len(ends) - 1) + [True]
    assert (reading.body_bytes, reading.tail, reading.rest) == (5, b"abcde"[5 - min(5, tail_bytes) :], b"")
    assert reading.fields(frozenset({"x-kept"})) == {"x-kept": "b"}


def test_what_comes_behind_is_told() -> None:
    for answer in (CHUNKED, SIZED):
        reading = Reading("GET")
        assert reading.feed(answer + b"HTTP/1.1 200")
        assert reading.rest == b"HTTP/1.1 200"


def test_the_end_of_the_connection_ends_what_has_no_length() -> None:
    reading = Reading("GET", 4)
    assert not reading.closed()
    assert not reading.feed(b"HTTP/1.1 200 OK\r\n\r\nabc")
    assert not reading.feed(b"def")
    assert reading.closed()
    assert (reading.status, reading.body_bytes, reading.tail) == (200, 6, b"cdef")
    cut = Reading("GET")
    cut.feed(SIZED[:-1])
    assert not cut.closed()


def test_an_answer_to_head_has_no_body() -> None:
    assert Reading("HEAD").feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "Expected HTTP/"),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
            "a 101 that nobody asked for",
        ),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", "broken chunked framing"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * HEAD_BYTES, f"a head of more than {HEAD_BYTES} bytes"),
    ],
)
def test_what_is_no_answer(answer: bytes, why: str) -> None:
    with pytest.raises(UnreadableError, match=why):
        Reading("GET").feed(answer)
