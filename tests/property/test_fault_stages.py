"""Stages of faults: what only holds back loses and swaps nothing, however bytes come; readers follow any split."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sidecar.faults.framing import AnswerReader
from sidecar.faults.kind import Plan
from sidecar.faults.kinds import KINDS
from sidecar.faults.rules import FaultRule
from sidecar.faults.stages import End, Pipe

GENTLE = (
    {"kind": "delay", "delay_ms": 30.0, "jitter_ms": 20.0, "direction": "response"},
    {"kind": "first_byte", "delay_ms": 1500.0},
    {"kind": "slow_close", "delay_ms": 70.0},
    {"kind": "slicing", "piece_bytes": 3, "delay_ms": 10.0},
    {"kind": "bandwidth", "bytes_per_s": 1000.0},
)
ANSWERS = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n6\r\n world\r\n0\r\na: b\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\nhello world",
)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    """Return ``data`` in pieces."""
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(places)]


@given(
    st.lists(st.sampled_from(GENTLE), max_size=4),
    st.sampled_from(ANSWERS) | st.binary(min_size=1, max_size=200),
    st.lists(st.integers(0, 300), max_size=6),
    st.lists(st.floats(0, 2), max_size=8),
)
def test_what_holds_back_loses_nothing_and_keeps_the_order(
    faults: list[dict[str, object]], data: bytes, cuts: list[int], gaps: list[float]
) -> None:
    plan = Plan(lambda: 0.5)
    for fields in faults:
        rule = FaultRule(id="f", ratio=1.0, until=1.0, **fields)  # type: ignore[arg-type]
        KINDS[rule.kind].plan(rule, plan)
    pipe = Pipe(plan.response)
    now, last = 0.0, 0.0
    out: list[bytes] = []
    for index, piece in enumerate(split(data, cuts)):
        now += gaps[index] if index < len(gaps) else 0.0
        for passed in pipe.data(piece, now):
            assert passed.at >= max(now, last) - 1e-9
            assert passed.end is End.NONE
            last = passed.at
            out.append(passed.data)
    assert b"".join(out) == data
    (end,) = pipe.ends(now)
    assert (end.data, end.end) == (b"", End.ENDS)
    assert end.at >= last


@given(st.sampled_from(ANSWERS), st.lists(st.integers(0, 300), max_size=8))
def test_a_reader_finds_the_same_body_however_it_is_split(data: bytes, cuts: list[int]) -> None:
    reader = AnswerReader()
    parts = [part for piece in split(data, cuts) for part in reader.read(piece)]
    assert b"".join(part for part, _ in parts) == data
    assert b"".join(part for part, body in parts if body) == b"hello world"
    assert reader.done is (data is not ANSWERS[2])


@given(st.binary(max_size=200), st.lists(st.integers(0, 300), max_size=8), st.booleans(), st.booleans())
def test_a_reader_takes_anything(data: bytes, cuts: list[int], bodiless: bool, request: bool) -> None:
    reader = AnswerReader(bodiless=bodiless, request=request)
    for start in (b"", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"):
        whole = start + data
        assert b"".join(part for piece in split(whole, cuts) for part, _ in reader.read(piece)) == whole
