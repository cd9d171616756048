"""What a tap hears of an HTTP/2 connection, in whatever pieces it comes: requests, gRPC calls, and how they ended."""

from __future__ import annotations

import base64
from itertools import pairwise
from typing import Any

import hpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.http2 import frames
from sidecar.http2.frames import PREFACE, Code, frame, headers_frames, reset_frame, settings_frame
from sidecar.traffic.messages import framed
from sidecar.traffic.recording.either import MOST_EARLY_BYTES, EitherTap
from sidecar.traffic.recording.noting import Terms
from sidecar.traffic.recording.redaction import Redaction
from sidecar.traffic.requests import Timed
from sidecar.traffic.samples import Ended
from sidecar.traffic.traces.recorded import KEY, Message, Recorded, read
from sidecar.traffic.traces.trace import TraceError

Pair = tuple[bytes, bytes]


class Side:
    """Bytes of one direction."""

    def __init__(self, first: bytes = b"") -> None:
        self.data = first
        self._encoder = hpack.Encoder()

    def head(self, stream: int, *fields: Pair, end: bool = False) -> Side:
        self.data += headers_frames(stream, self._encoder.encode(list(fields)), end=end)
        return self

    def body(self, stream: int, data: bytes, *, end: bool = False) -> Side:
        self.data += frame(frames.DATA, frames.END_STREAM if end else 0, stream, data)
        return self

    def reset(self, stream: int) -> Side:
        self.data += reset_frame(stream, Code.CANCEL)
        return self


def asking() -> Side:
    return Side(PREFACE + settings_frame({}))


def head(path: bytes, *more: Pair, method: bytes = b"POST", call: bool = True) -> list[Pair]:
    fields = [(b":method", method), (b":scheme", b"http"), (b":path", path), (b":authority", b"h"), *more]
    return [*fields, (b"content-type", b"application/grpc"), (b"te", b"trailers")] if call else fields


OK_HEAD = [(b":status", b"200"), (b"content-type", b"application/grpc")]
DONE = (b"grpc-status", b"0")


def tapped(**more: Any) -> tuple[EitherTap, Terms, list[Recorded]]:
    taken: list[Recorded] = []
    terms = Terms(lambda: 0.5, lambda told: taken.append(told.recorded()), **more)
    return EitherTap(terms), terms, taken


def hear(tap: EitherTap, asked: Side, told: Side, *, early: bool = False) -> None:
    if early:
        tap.from_server(settings_frame({}), 0.5)
    tap.from_caller(asked.data, 1.0)
    tap.from_server(told.data, 2.0)


def calls() -> tuple[Side, Side]:
    """Return both directions of a call, a stream of messages, a request that is none, and a failed call."""
    asked = asking().head(
        1, *head(b"/s.S/One", (b"x-request-id", b"id-1"), (b"authorization", b"s3cret"), (b"a-bin", b"\0\1\2"))
    )
    asked.head(3, *head(b"/s.S/Many")).body(1, framed(b"ask"), end=True)
    asked.body(3, framed(b"a") + framed(b"bb", compressed=True)[:3]).body(3, framed(b"bb", compressed=True)[3:])
    asked.head(5, *head(b"/plain?key=k", (b"a", b"1"), method=b"PUT", call=False)).body(5, b"text", end=True)
    asked.body(3, b"", end=True).head(7, *head(b"/s.S/Fails"), end=True)
    told = Side(settings_frame({})).head(1, *OK_HEAD, (b"x-request-id", b"id-1")).body(1, framed(b"told"))
    told.head(5, (b":status", b"103")).head(5, (b":status", b"503"), end=True).head(1, DONE, end=True)
    told.head(3, *OK_HEAD).body(3, framed(b"one") + framed(b"")).body(3, framed(b"three")).head(3, DONE, end=True)
    told.head(7, *OK_HEAD, (b"grpc-status", b"5"), (b"x-request-id", b"made"), end=True)
    return asked, told


@given(st.lists(st.integers(1, 500)), st.lists(st.integers(1, 500)))
def test_pieces_change_nothing(asked_cuts: list[int], told_cuts: list[int]) -> None:
    asked, told = calls()
    tap, terms, taken = tapped()
    for data, cuts, to in ((asked.data, asked_cuts, tap.from_caller), (told.data, told_cuts, tap.from_server)):
        places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
        for begin, end in pairwise(places):
            to(data[begin:end], 1.0)
    assert not tap.under_way
    assert terms.held_bytes == 0
    assert [
        (one.protocol, one.target, one.ended, one.status, one.grpc_status, one.answer_messages) for one in taken
    ] == [
        ("h2", "/plain?key=x", Ended.STATUS_5XX, 503, None, 0),
        ("grpc", "/s.S/One", Ended.OK, 200, 0, 1),
        ("grpc", "/s.S/Many", Ended.OK, 200, 0, 3),
        ("grpc", "/s.S/Fails", Ended.GRPC_STATUS, 200, 5, 0),
    ]
    plain, one, many, fails = taken
    assert (plain.method, plain.body, plain.headers) == ("PUT", "text", (("a", "1"),))
    assert (one.headers, one.request_id) == ((("a-bin", "AQI="), ("content-type", "application/grpc")), "id-1")
    assert one.messages == (Message(base64.b64encode(b"ask").decode()),)
    assert many.messages == (Message("YQ=="), Message("YmI=", compressed=True))
    assert (fails.messages, fails.request_id) == ((), "made")


@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 400), st.integers(0, 400))
def test_nothing_that_peers_say_breaks_it(asked: bytes, told: bytes, asked_at: int, told_at: int) -> None:
    tap, terms, _ = tapped()
    by_caller, by_server = calls()
    tap.from_caller(by_caller.data[:asked_at] + asked, 1.0)
    tap.from_server(by_server.data[:told_at] + told, 2.0)
    tap.from_caller(by_caller.data[asked_at:], 3.0)
    tap.from_server(by_server.data[told_at:], 4.0)
    tap.server_left(5.0)
    assert terms.held_bytes == 0


def test_what_a_server_says_first_waits_for_its_caller() -> None:
    tap, _, taken = tapped()
    hear(tap, *calls(), early=True)
    assert len(taken) == 4


def test_moments_of_a_call() -> None:
    tap, _, taken = tapped()
    asked = asking().head(1, *head(b"/s.S/One")).body(1, framed(b"ask"), end=True)
    tap.from_caller(asked.data, 1.0)
    told = Side()
    tap.from_server(told.head(1, *OK_HEAD).data, 1.5)
    tap.from_server(Side().head(1, DONE, end=True).data, 4.0)
    assert [(one.at_s, one.first_byte_s, one.took_s) for one in taken] == [(1.0, 0.5, 3.0)]


def test_moments_of_messages() -> None:
    tap, _, taken = tapped()
    first = asking().head(1, *head(b"/s.S/Talk")).body(1, framed(b"a") + framed(b"")[:2]).data
    tap.from_caller(first, 1.0)
    tap.from_caller(Side().body(1, framed(b"")[2:] + framed(b"b")).data, 1.25)
    tap.from_caller(Side().body(1, framed(b"c"), end=True).data, 3.0)
    tap.from_server(Side().head(1, *OK_HEAD, DONE, end=True).data, 4.0)
    assert [one.after_s for one in taken[0].messages] == [0.0, 0.25, 0.25, 2.0]
    lines = [f'{{"{KEY}": 1}}'.encode(), msgspec.json.encode(taken[0])]
    trace = read("t", lines)
    (asked,) = trace.make()
    assert (asked.body, asked.parts) == (framed(b"a"), ((0.25, framed(b"")), (0.25, framed(b"b")), (2.0, framed(b"c"))))
    (faster,) = trace.at(2.0)
    assert [after_s for after_s, _ in faster.parts] == [0.125, 0.125, 1.0]


@pytest.mark.parametrize(
    ("by", "ended", "hung_up_s"),
    [
        ("caller's reset", Ended.HUNG_UP, 2.0),
        ("server's reset", Ended.CUT, None),
        ("caller's end", Ended.HUNG_UP, 2.0),
        ("server's end", Ended.CUT, None),
        ("no status", Ended.FALSE_END, None),
    ],
)
def test_a_call_without_a_whole_answer(by: str, ended: Ended, hung_up_s: float | None) -> None:
    tap, terms, taken = tapped()
    hear(tap, asking().head(1, *head(b"/s.S/One")).body(1, framed(b"ask"), end=True), Side().head(1, *OK_HEAD))
    assert tap.under_way
    if by == "caller's reset":
        tap.from_caller(Side().reset(1).data, 3.0)
    elif by == "server's reset":
        tap.from_server(Side().reset(1).data, 3.0)
    elif by == "no status":
        tap.from_server(Side().body(1, framed(b"half"), end=True).data, 3.0)
    elif by == "caller's end":
        tap.caller_left(3.0)
    tap.server_left(4.0)
    assert [(one.ended, one.hung_up_s) for one in taken] == [(ended, hung_up_s)]
    assert terms.held_bytes == 0


def test_an_answer_before_the_request_s_end_leaves_its_messages_out() -> None:
    tap, _, taken = tapped()
    hear(tap, asking().head(1, *head(b"/s.S/One")).body(1, framed(b"ask")), Side().head(1, *OK_HEAD, DONE, end=True))
    tap.from_caller(Side().body(1, b"more", end=True).data, 3.0)
    assert [(one.ended, one.no_body, one.messages) for one in taken] == [(Ended.OK, "not sent whole", ())]


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        ({"max_body_bytes": 7}, "over 7 bytes"),
        ({"redaction": Redaction(fields=(("a",),))}, "fields are to be redacted, and it is not JSON"),
    ],
)
def test_messages_are_left_out(terms: dict[str, Any], why: str) -> None:
    tap, _, taken = tapped(**terms)
    hear(
        tap,
        asking().head(1, *head(b"/s.S/One")).body(1, framed(b"ask"), end=True),
        Side().head(1, *OK_HEAD, DONE, end=True),
    )
    assert [(one.no_body, one.messages, one.body_bytes) for one in taken] == [(why, (), 8)]


@pytest.mark.parametrize(
    "data",
    [
        frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xff\xff\xff\xff"),
        frame(frames.DATA, frames.PADDED, 1, b"\xff"),
        b"\xff\xff\xff\0\0\0\0\0\1",
    ],
)
def test_what_cannot_be_read_is_not_recorded(data: bytes) -> None:
    tap, terms, taken = tapped()
    tap.from_caller(asking().head(1, *head(b"/s.S/One")).data + data, 1.0)
    tap.from_server(Side().head(1, *OK_HEAD, DONE, end=True).data, 2.0)
    tap.server_left(3.0)
    assert (taken, terms.unreadable, terms.held_bytes) == ([], 1, 0)


def test_a_server_that_talks_to_nobody_is_not_listened_to() -> None:
    tap, terms, taken = tapped()
    tap.from_server(b"x" * (MOST_EARLY_BYTES + 1), 1.0)
    tap.from_caller(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", 2.0)
    tap.server_left(3.0)
    assert (taken, terms.unreadable) == ([], 1)


def test_http_1_is_told_from_a_preface() -> None:
    for cut in (1, 3, 20):
        tap, _, taken = tapped()
        asked = b"PROPFIND / HTTP/1.1\r\nHost: h\r\n\r\n"
        tap.from_caller(asked[:cut], 1.0)
        tap.from_caller(asked[cut:], 1.0)
        tap.from_server(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 2.0)
        assert [(one.method, one.protocol) for one in taken] == [("PROPFIND", "")]


def test_what_is_recorded_is_read_again() -> None:
    tap, _, taken = tapped()
    hear(tap, *calls())
    lines = [f'{{"{KEY}": 1}}'.encode(), *(msgspec.json.encode(one) for one in taken)]
    requests = {one.target: one for one in read("t", lines).make()}
    assert requests["/s.S/One"].body == framed(b"ask")
    assert requests["/s.S/Many"].body == framed(b"a") + framed(b"bb", compressed=True)
    assert [target for target, one in requests.items() if not one.call] == ["/plain?key=x"]
    assert requests["/s.S/Fails"].recorded is Ended.GRPC_STATUS
    trace = read("t", lines)
    assert trace.only(calls=True).requests == 3
    plain = trace.only(calls=False)
    assert (plain.requests, plain.duration_s, plain.left_out.total()) == (1, 0.0, 3)
    assert [one.at_s for one in plain.make()] == [0.0]


def test_a_flow_goes_with_all_of_it_or_not_at_all() -> None:
    lines = [
        b'{"warmroute_trace": 1}',
        b'{"at_s": 1, "protocol": "grpc", "target": "/s.S/A", "flow": "f"}',
        b'{"at_s": 2, "target": "/b", "flow": "f", "think_s": 1}',
        b'{"at_s": 3, "protocol": "grpc", "target": "/s.S/C"}',
    ]
    (only,) = read("t", lines).only(calls=True).make()
    assert only == Timed(0.0, "POST", "/s.S/C", call=True)
    assert read("t", lines).only(calls=True).left_out.total() == 2


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b'{"at_s": 0, "messages": [{}]}', 't:2: messages without "protocol": "grpc"'),
        (
            b'{"at_s": 0, "protocol": "grpc", "body": "x"}',
            "t:2: a gRPC call is a POST, and has messages in place of a body",
        ),
        (b'{"at_s": 0, "protocol": "grpc", "messages": [{"base64": "?"}]}', "t:2: messages: base64: "),
        (
            b'{"at_s": 0, "protocol": "grpc", "messages": [{"after_s": 1}, {}]}',
            "t:2: messages: after_s: 0.0 must be from 0 to 1e9 seconds, and not before the last one",
        ),
        (b'{"at_s": 0, "protocol": "grpc", "flow": "f", "take": {"a": "b"}}', "t:2: take and fill are of JSON, which"),
        (b'{"at_s": 0, "protocol": "spdy"}', "t:2: Invalid enum value 'spdy'"),
    ],
)
def test_a_call_that_is_none(line: bytes, error: str) -> None:
    with pytest.raises(TraceError) as raised:
        read("t", [b'{"warmroute_trace": 1}', line])
    assert str(raised.value).startswith(error)
