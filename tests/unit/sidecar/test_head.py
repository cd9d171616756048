"""Heads: what is taken, what is refused with which outcome, and what goes on upstream or downstream."""

from __future__ import annotations

import pytest

from router.outcomes import Outcome
from sidecar.http1.forwarding import Peer
from sidecar.http1.head import CHUNKED, UNTIL_CLOSE, HeadError
from sidecar.http1.parsing import hopeless, parse_request, parse_response, without_fields

HOST = b"Host: a.test\r\n"


def request(*lines: bytes, line: bytes = b"POST /p?q=1 HTTP/1.1", host: bytes = HOST) -> bytes:
    return line + b"\r\n" + host + b"".join(field + b"\r\n" for field in lines) + b"\r\n"


def response(*lines: bytes, line: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return line + b"\r\n" + b"".join(field + b"\r\n" for field in lines) + b"\r\n"


def test_a_plain_request_passes_byte_for_byte() -> None:
    raw = request(b"Content-Length: 5", b"X-Name: caf\xe9", b"x-MiXed:  two  spaces ")
    head = parse_request(raw)
    assert (head.method, head.target, head.minor, head.length) == (b"POST", b"/p?q=1", 1, 5)
    assert head.keep_alive
    assert head.forward + b"\r\n" == raw


@pytest.mark.parametrize(
    ("raw", "outcome", "detail"),
    [
        (request(b"Content-Length: +5"), Outcome.BAD_REQUEST, "Content-Length"),
        (request(b"Content-Length: 5", b"Content-Length: 5"), Outcome.BAD_REQUEST, ""),
        (request(b"Content-Length: 5, 5"), Outcome.BAD_REQUEST, ""),
        (request(b"Content-Length: " + b"9" * 19), Outcome.BAD_REQUEST, ""),
        (request(b"Content-Length:"), Outcome.BAD_REQUEST, ""),
        (request(b"Transfer-Encoding: chunked", b"Content-Length: 5"), Outcome.BAD_REQUEST, ""),
        (request(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"), Outcome.BAD_REQUEST, ""),
        (request(b"Transfer-Encoding: xchunked"), Outcome.BAD_REQUEST, ""),
        (request(b"Transfer-Encoding: gzip, chunked"), Outcome.NOT_IMPLEMENTED, "gzip, chunked"),
        (request(b"Transfer-Encoding: chunked", line=b"POST / HTTP/1.0"), Outcome.BAD_REQUEST, "HTTP/1.0"),
        (request(b"Transfer-Encoding : chunked"), Outcome.BAD_REQUEST, ""),
        (request(host=b""), Outcome.BAD_REQUEST, "Host missing"),
        (request(host=HOST + HOST), Outcome.BAD_REQUEST, "Host more than once"),
        (request(host=b"Host: a b\r\n"), Outcome.BAD_REQUEST, "Host is not a host"),
        (request(host=b"Host: a@b\r\n"), Outcome.BAD_REQUEST, "Host is not a host"),
        (request(b"X: a\r\n folded"), Outcome.BAD_REQUEST, ""),
        (request(b"X: a\nY: b"), Outcome.BAD_REQUEST, ""),
        (request(b"X: a\rY: b"), Outcome.BAD_REQUEST, ""),
        (request(b"X: a\x00b"), Outcome.BAD_REQUEST, ""),
        (request(b"X(: a"), Outcome.BAD_REQUEST, ""),
        (request(b"Expect: x"), Outcome.EXPECTATION_FAILED, "unknown expectation"),
        (request(line=b"GET / HTTP/2.0"), Outcome.HTTP_VERSION, "HTTP/2.0"),
        (request(line=b"GET / HTTP/1.2"), Outcome.HTTP_VERSION, "HTTP/1.2"),
        (request(line=b"GET  / HTTP/1.1"), Outcome.BAD_REQUEST, "request line"),
        (request(line=b"GET / HTTP/1.1 "), Outcome.BAD_REQUEST, "request line"),
        (request(line=b"GET\t/\tHTTP/1.1"), Outcome.BAD_REQUEST, ""),
        (request(line=b"GET /a#b HTTP/1.1"), Outcome.BAD_REQUEST, ""),
        (request(line=b"GET a HTTP/1.1"), Outcome.BAD_REQUEST, ""),
        (request(line=b"GET http://u@h/ HTTP/1.1"), Outcome.BAD_REQUEST, ""),
        (request(line=b"CONNECT a:1 HTTP/1.1"), Outcome.NOT_IMPLEMENTED, ""),
        (request(line=b"FROBNICATE / HTTP/1.1"), Outcome.NOT_IMPLEMENTED, "unknown method"),
        (request(line=b"G\x01T / HTTP/1.1"), Outcome.BAD_REQUEST, ""),
        (request(line=b"GET /" + b"a" * 16384 + b" HTTP/1.1"), Outcome.TARGET_TOO_LONG, ""),
        (request(*[b"X: 1"] * 100), Outcome.HEAD_TOO_LARGE, "100 header fields"),
    ],
)
def test_a_request_with_two_readings_is_refused(raw: bytes, outcome: Outcome, detail: str) -> None:
    with pytest.raises(HeadError) as caught:
        parse_request(raw)
    assert caught.value.outcome is outcome
    assert detail in caught.value.detail
    assert caught.value.detail


def test_hop_by_hop_fields_and_those_that_connection_names_are_stripped() -> None:
    head = parse_request(
        request(
            b"Connection: keep-alive, X-Hop",
            b"X-Hop: 1",
            b"x-hop: 2",
            b"TE: trailers",
            b"Trailer: X",
            b"Upgrade: foo",
            b"Proxy-Connection: x",
            b"Proxy-Authorization: y",
            b"Keep-Alive: timeout=1",
            b"X-Kept: 1",
        )
    )
    assert head.forward == b"POST /p?q=1 HTTP/1.1\r\n" + HOST + b"X-Kept: 1\r\n"


def test_an_upgrade_is_passed_on_with_both_fields() -> None:
    fields = (b"Connection: X-Hop, UPGRADE", b"X-Hop: 1", b"Upgrade: Echo/2,  WebSocket ", b"uPgrade: x")
    head = parse_request(request(*fields, b"TE: trailers", line=b"GET / HTTP/1.1"))
    assert head.upgrade == [b"echo/2", b"websocket", b"x"]
    assert head.forward.endswith(HOST + b"Connection: Upgrade\r\nUpgrade: Echo/2,  WebSocket, x\r\n")
    head = parse_request(request(b"Connection: X-Hop, upgrade", b"X-Hop: 1", b"Upgrade: x"))
    assert (head.upgrade, head.forward) == ([], b"POST /p?q=1 HTTP/1.1\r\n" + HOST)


def test_a_switch_is_passed_on_with_both_fields_and_no_framing() -> None:
    fields = (b"Connection: keep-alive, upgrade", b"UPGRADE: WebSocket", b"Content-Length: 5", b"X: 1")
    head = parse_response(response(*fields, line=b"HTTP/1.1 101 Switching"), b"GET")
    assert (head.status, head.length, head.upgrade) == (101, 0, [b"websocket"])
    assert head.forward == b"HTTP/1.1 101 Switching\r\nX: 1\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n"


def test_connection_cannot_name_away_what_frames_or_routes() -> None:
    head = parse_request(request(b"Connection: close, Host, Transfer-Encoding", b"Transfer-Encoding: chunked"))
    assert head.length == CHUNKED
    assert not head.keep_alive
    assert b"Transfer-Encoding: chunked" in head.forward
    assert HOST in head.forward


@pytest.mark.parametrize(
    ("line", "lines", "keep"),
    [
        (b"GET / HTTP/1.1", [], True),
        (b"GET / HTTP/1.1", [b"Connection: close"], False),
        (b"GET / HTTP/1.1", [b"Connection: x, CLOSE"], False),
        (b"GET / HTTP/1.0", [], False),
        (b"GET / HTTP/1.0", [b"Connection: Keep-Alive"], True),
        (b"GET / HTTP/1.0", [b"Connection: keep-alive, close"], False),
    ],
)
def test_keep_alive(line: bytes, lines: list[bytes], keep: bool) -> None:
    assert parse_request(request(*lines, line=line)).keep_alive is keep


@pytest.mark.parametrize(
    ("raw", "target", "forward"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", b"/", b"GET / HTTP/1.1\r\nHost: localhost\r\n"),
        (b"GET / HTTP/1.0\r\nHost: h\r\n\r\n", b"/", b"GET / HTTP/1.1\r\nHost: h\r\n"),
        (
            b"GET http://b.test:1/x?y HTTP/1.1\r\nHost: a.test\r\nA: 1\r\n\r\n",
            b"/x?y",
            b"GET /x?y HTTP/1.1\r\nHost: b.test:1\r\nA: 1\r\n",
        ),
        (b"GET http://b.test HTTP/1.1\r\nHost: a\r\n\r\n", b"/", b"GET / HTTP/1.1\r\nHost: b.test\r\n"),
        (b"GET http://b?q HTTP/1.1\r\nHost: a\r\n\r\n", b"/?q", b"GET /?q HTTP/1.1\r\nHost: b\r\n"),
        (b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", b"*", b"OPTIONS * HTTP/1.1\r\nHost: a\r\n"),
    ],
)
def test_old_and_absolute_requests_become_one_form(raw: bytes, target: bytes, forward: bytes) -> None:
    head = parse_request(raw)
    assert head.target == target
    assert head.forward == forward


def test_request_id_and_traceparent_are_seen() -> None:
    head = parse_request(request(b"X-Request-ID: abc ", b"traceparent: 00-1-2-00"))
    assert head.has_traceparent
    assert head.has_request_id
    assert head.request_id() == b"abc"
    assert parse_request(request()).request_id() == b""


@pytest.mark.parametrize(
    ("raw", "method", "status", "length", "keep"),
    [
        (response(b"Content-Length: 5"), b"GET", 200, 5, True),
        (response(b"Transfer-Encoding: Chunked"), b"GET", 200, CHUNKED, True),
        (response(), b"GET", 200, UNTIL_CLOSE, True),
        (response(b"Content-Length: 5"), b"HEAD", 200, 0, True),
        (response(b"Transfer-Encoding: chunked"), b"HEAD", 200, 0, True),
        (response(b"Content-Length: 1234", line=b"HTTP/1.1 304 Not Modified"), b"GET", 304, 0, True),
        (response(line=b"HTTP/1.1 204 No Content"), b"GET", 204, 0, True),
        (response(b"Connection: close", b"Content-Length: 1"), b"GET", 200, 1, False),
        (response(b"Content-Length: 1", line=b"HTTP/1.0 200 OK"), b"GET", 200, 1, False),
        (response(b"Connection: keep-alive", b"Content-Length: 1", line=b"HTTP/1.0 200 OK"), b"GET", 200, 1, True),
        (response(b"Content-Length: 0", line=b"HTTP/1.1 200"), b"GET", 200, 0, True),
    ],
)
def test_response_framing(raw: bytes, method: bytes, status: int, length: int, keep: bool) -> None:
    head = parse_response(raw, method)
    assert (head.status, head.length, head.keep_alive) == (status, length, keep)
    assert head.forward.startswith(b"HTTP/1.1 ")


@pytest.mark.parametrize(
    "raw",
    [
        response(b"Content-Length: 5", b"Content-Length: 5"),
        response(b"Content-Length: -1"),
        response(b"Content-Length: 18446744073709551621"),
        response(b"Transfer-Encoding: chunked", b"Content-Length: 5"),
        response(b"Transfer-Encoding: gzip"),
        response(b"Transfer-Encoding: chunked", line=b"HTTP/1.0 200 OK"),
        response(line=b"HTTP/2 200 OK"),
        response(line=b"ICY 200 OK"),
        response(line=b"HTTP/1.1 2x0 OK"),
        response(line=b"HTTP/1.1 2000 OK"),
        response(line=b"HTTP/1.1 200 O\x00K"),
        response(line=b"HTTP/1.1 101 Switching"),
        response(b"Upgrade: x", line=b"HTTP/1.1 101 Switching"),
        response(b"Upgrade: x", b"Connection: upgrade", line=b"HTTP/1.0 101 Switching"),
        response(b"Upgrade: x y", b"Connection: upgrade", line=b"HTTP/1.1 101 Switching"),
        response(b"X: a\r\n b"),
        response(b"X: a\rSet-Cookie: evil=1"),
        response(b"X : a"),
        response(*[b"X: 1"] * 1001),
    ],
)
def test_a_response_with_two_readings_is_refused(raw: bytes) -> None:
    with pytest.raises(HeadError) as caught:
        parse_response(raw, b"GET")
    assert caught.value.outcome is Outcome.UPSTREAM_PROTOCOL


def test_response_hop_by_hop_fields_are_stripped() -> None:
    head = parse_response(
        response(b"Connection: X-Hop", b"X-Hop: 1", b"Keep-Alive: timeout=5", b"Trailer: T", b"Content-Length: 1"),
        b"GET",
    )
    assert head.forward == b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n"


def test_no_length_survives_on_a_204() -> None:
    head = parse_response(response(b"Transfer-Encoding: chunked", line=b"HTTP/1.1 204 No Content"), b"GET")
    assert head.forward == b"HTTP/1.1 204 No Content\r\n"


def test_what_can_never_become_a_head_is_told_early() -> None:
    for good in (b"", b"\r", b"G", b"GET", b"GET /", b"POST / HTTP/1.1\r\nA: b"):
        assert hopeless(good) is None
    assert hopeless(b"\x16\x03\x01") == "not an HTTP request"
    assert hopeless(b"GET / HTTP/1.1\nHost: a\n\n") == "bare LF"


def test_without_fields_keeps_the_first_line_and_order() -> None:
    assert without_fields(b"X\r\nA: 1\r\nB: 2\r\na: 3\r\n", (b"a",)) == b"X\r\nB: 2\r\n"


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ([], b""),
        ([b"X-Model: Llama@2 "], b"Llama@2"),
        ([b"x-model:m"], b"m"),
        ([b"X-MODEL:\t m\t"], b"m"),
        ([b"X-Model:"], b""),
        ([b"X-Models: no", b"A: x-model: no"], b""),
        ([b"Connection: x-model", b"X-Model: m"], b"m"),
    ],
)
def test_a_field_names_the_model(fields: list[bytes], asked: bytes) -> None:
    head = parse_request(request(*fields), peer=Peer(model_header="X-Model"))
    assert head.asked == asked
    assert head.key == b"/p?q=1" + (b"\0" + asked if asked else b"")
    assert parse_request(request(*fields)).asked == b""


def test_two_fields_that_name_a_model_are_refused() -> None:
    with pytest.raises(HeadError, match="x-model more than once"):
        parse_request(request(b"X-Model: m", b"x-model: m"), peer=Peer(model_header="X-Model"))
