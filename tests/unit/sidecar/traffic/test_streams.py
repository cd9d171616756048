"""The open loop's connection over HTTP/2, frame by frame: what is sent, and how each request ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.http2 import frames
from sidecar.http2.frames import PREFACE, Code
from sidecar.http2.sending import Flusher
from sidecar.traffic.lines import Answer
from sidecar.traffic.requests import Timed
from sidecar.traffic.samples import Ended
from sidecar.traffic.streams import MOST_STREAMS, StreamConnection
from tests.support.fake_transport import FakeTransport
from tests.support.grpc_by_hand import GrpcLoop, Peer, message

CALL = Timed(0.0, "POST", "/w.W/Echo", (("X-Tenant", " a"), ("TE", "gzip")), message(b"ask"), call=True)
OK_HEAD = [(b":status", b"200"), (b"content-type", b"application/grpc"), (b"x-request-id", b"id")]


class Asked:
    """A call, and what it heard."""

    def __init__(self, request: Timed) -> None:
        self.request = request
        self.request_id = "id"
        self.first_byte_at: float | None = None
        self.sends = 0
        self.answer: Answer | None = None
        self.ended: tuple[Ended, str] | None = None

    def sending(self) -> None:
        self.sends += 1

    def answered(self, answer: Answer) -> None:
        self.answer = answer

    @property
    def answers(self) -> int:
        return self.answer is not None

    def failed(self, ended: Ended, error: str, answer: Answer) -> None:
        self.answer, self.ended = answer, (ended, error)


class Bench:
    """One connection, its server by hand, and an owner that remembers."""

    def __init__(self, *, secure: bool = False, chosen: str | None = None) -> None:
        self.loop = GrpcLoop()
        self.now = 5.0
        self.idle = 0
        self.lost = 0
        owner: Any = SimpleNamespace(idle=lambda _: self._idle(), gone=lambda _: self._gone(), unasked=lambda: None)
        flusher = Flusher(self.loop, lambda: self.now)  # type: ignore[arg-type]
        self.line = StreamConnection(owner, lambda: self.now, flusher, self.loop.call_later, "a.test", secure=secure)
        self.transport = FakeTransport()
        if secure:
            tls = SimpleNamespace(selected_alpn_protocol=lambda: chosen)
            self.transport.get_extra_info = lambda name, default=None: tls if name == "ssl_object" else default  # type: ignore[method-assign]
        self.server = Peer(self.line, self.transport, self.loop)

    def _idle(self) -> None:
        self.idle += 1

    def _gone(self) -> None:
        self.lost += 1

    def ask(self, request: Timed = CALL) -> Asked:
        asked = Asked(request)
        self.line.take(asked)
        self.loop.run_soon()
        return asked

    def stand(self, settings: dict[int, int] | None = None) -> None:
        self.line.connection_made(self.transport)
        self.server.send(frames.settings_frame(settings or {}))
        self.server.take()


@pytest.fixture
def bench() -> Any:
    made = Bench()
    yield made
    assert made.loop.errors == []
    assert made.transport.late == b""
    made.loop.close()


def test_requests_wait_until_the_connection_stands(bench: Bench) -> None:
    call = bench.ask()
    bench.ask(Timed(0.0, "PUT", "/x", (("Host", "h.test"), ("Content-Type", "text/plain")), b"body"))
    bare = bench.ask(Timed(0.0, target="/y"))
    assert call.sends == 0
    bench.line.connection_made(bench.transport)
    bench.loop.run_soon()
    assert bench.transport.written.startswith(PREFACE)
    assert call.sends == 1
    seen = bench.server.take()
    heads = [one for one in seen if one.kind == frames.HEADERS]
    assert [one.end for one in heads] == [False, False, True]
    assert heads[0].fields == [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/w.W/Echo"),
        (b":authority", b"a.test"),
        (b"x-tenant", b"a"),
        (b"x-request-id", b"id"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    ]
    assert heads[1].fields[3:] == [
        (b":authority", b"h.test"),
        (b"content-type", b"text/plain"),
        (b"x-request-id", b"id"),
        (b"content-length", b"4"),
    ]
    assert [(one.stream, one.payload, one.end) for one in seen if one.kind == frames.DATA] == [
        (1, CALL.body, True),
        (3, b"body", True),
    ]
    assert bare.sends == 1


def test_a_call_s_end_is_in_its_trailers(bench: Bench) -> None:
    bench.stand()
    good, bad = bench.ask(), bench.ask()
    bench.now = 7.0
    bench.server.head(3, [*OK_HEAD, (b"grpc-status", b"5"), (b"grpc-message", b"no%20such")], end=True)
    bench.server.head(1, OK_HEAD)
    bench.server.data(1, message(b"one"))
    bench.server.data(1, message(b"two"))
    assert good.answers == 0
    bench.server.head(1, [(b"grpc-status", b"0")], end=True)
    assert good.answer is not None
    assert bad.answer is not None
    assert (good.answer.status, good.answer.grpc_status, good.answer.body_bytes) == (200, 0, 16)
    assert (bad.answer.grpc_status, bad.answer.grpc_message) == (5, "no such")
    assert good.answer.fields(frozenset({"x-request-id"})) == {"x-request-id": "id"}
    assert good.first_byte_at == 7.0
    assert bench.line.idle_since == 7.0


def test_the_end_of_a_body_is_kept_as_far_as_it_is_asked_for(bench: Bench) -> None:
    bench.stand()
    asked = bench.ask(Timed(0.0, target="/sse", ends_with=b"[DONE]"))
    bench.server.head(1, [(b":status", b"103")])
    bench.server.head(1, [(b":status", b"200")])
    for piece in (b"data: [DO", b"N", b"E]"):
        bench.server.data(1, piece, end=piece == b"E]")
    assert asked.answer is not None
    assert (asked.answer.status, asked.answer.tail, asked.answer.grpc_status) == (200, b"[DONE]", None)


@pytest.mark.parametrize(
    ("ends", "ended"),
    [
        (lambda server: server.reset(1, Code.INTERNAL_ERROR), (Ended.CUT, "the stream was reset (INTERNAL_ERROR)")),
        (
            lambda server: server.send(frames.goaway_frame(0, Code.ENHANCE_YOUR_CALM)),
            (Ended.CUT, "the connection took no more (ENHANCE_YOUR_CALM)"),
        ),
        (lambda server: server.head(1, [(b"x", b"y")]), (Ended.WRONG, "a head without a status")),
        (lambda server: server.send(b"HTTP/1.1 400 Bad"), (Ended.CUT, "a frame of 4740180 bytes, at most 16384")),
        (
            lambda server: (server.head(1, [(b":status", b"200")]), server.send(b"HTTP/1.1 400 Bad")),
            (Ended.WRONG, "a frame of 4740180 bytes, at most 16384"),
        ),
        (lambda server: server.protocol.connection_lost(None), (Ended.CUT, "closed")),
        (lambda server: server.protocol.connection_lost(OSError()), (Ended.CUT, "OSError")),
    ],
)
def test_a_request_that_gets_no_whole_answer(bench: Bench, ends: Any, ended: tuple[Ended, str]) -> None:
    bench.stand()
    asked = bench.ask()
    ends(bench.server)
    assert asked.ended == ended


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ((b"HTTP/1.1 400 Bad Request\r\n\r\n",), "it answered in HTTP/1.1"),
        ((b"HT", b"TP/1.0", b" 505 No\r\n\r\n"), "it answered in HTTP/1.0"),
        ((b"HTTPS is not spoken here",), "a frame of 4740180 bytes, at most 16384"),
    ],
)
def test_to_a_server_that_speaks_no_http2_there_is_no_connection(
    bench: Bench, pieces: tuple[bytes, ...], why: str
) -> None:
    asked = bench.ask()
    bench.server.protocol.connection_made(bench.server.transport)
    for piece in pieces:
        bench.server.send(piece)
    assert asked.ended == (Ended.NO_HTTP2, why)
    assert not bench.line.room


def test_letting_go_of_a_call_resets_its_stream_alone(bench: Bench) -> None:
    bench.stand()
    left, kept = bench.ask(), bench.ask()
    bench.server.take()
    bench.server.head(1, OK_HEAD)
    bench.server.data(1, b"12345")
    assert bench.line.leave(left).body_bytes == 5
    bench.loop.run_soon()
    only = bench.server.only(frames.RST_STREAM)
    assert (only.stream, only.code) == (1, Code.CANCEL)
    bench.server.data(1, b"late")
    bench.server.head(3, [*OK_HEAD, (b"grpc-status", b"0")], end=True)
    assert left.answers == 0
    assert kept.answer is not None


def test_room_is_what_the_server_says(bench: Bench) -> None:
    bench.line.connection_made(bench.transport)
    for _ in range(MOST_STREAMS):
        assert bench.line.room
        bench.ask()
    assert not bench.line.room
    bench.server.send(frames.settings_frame({frames.MAX_CONCURRENT_STREAMS: 1}))
    for stream in range(1, 2 * MOST_STREAMS - 1, 2):
        assert bench.idle == 0
        bench.server.head(stream, [*OK_HEAD, (b"grpc-status", b"0")], end=True)
    bench.server.head(2 * MOST_STREAMS - 1, [*OK_HEAD, (b"grpc-status", b"0")], end=True)
    assert bench.idle
    assert bench.line.room


def test_windows_are_kept(bench: Bench) -> None:
    bench.stand()
    body = message(b"x" * 100_000)
    asked = bench.ask(Timed(0.0, "POST", "/w.W/Echo", body=body, call=True))
    sent = b"".join(one.payload for one in bench.server.got(frames.DATA))
    assert len(sent) == frames.WINDOW
    bench.server.send(frames.window_update(0, 1 << 20) + frames.window_update(1, 1 << 20))
    rest = bench.server.got(frames.DATA)
    assert sent + b"".join(one.payload for one in rest) == body
    assert rest[-1].end
    bench.server.head(1, OK_HEAD)
    for _ in range(40):
        bench.server.data(1, b"y" * 10_000)
    assert asked.answers == 0
    given = [one.code for one in bench.server.got(frames.WINDOW_UPDATE) if one.stream == 1]
    assert sum(given) > 300_000
    bench.server.head(1, [(b"grpc-status", b"0")], end=True)
    assert asked.answer is not None


def test_messages_follow_at_their_moments(bench: Bench) -> None:
    bench.stand()
    parts = ((0.5, message(b"b")), (1.0, message(b"c")))
    asked = bench.ask(Timed(0.0, "POST", "/w.W/Talk", body=message(b"a"), parts=parts, call=True))
    assert [(one.payload, one.end) for one in bench.server.got(frames.DATA)] == [(message(b"a"), False)]
    bench.loop.fire()
    bench.loop.run_soon()
    assert [(one.payload, one.end) for one in bench.server.got(frames.DATA)] == [
        (message(b"b"), False),
        (message(b"c"), True),
    ]
    bench.server.head(1, [*OK_HEAD, (b"grpc-status", b"0")], end=True)
    assert asked.answers == 1


@pytest.mark.parametrize("by", ["answer", "leave", "reset", "drop"])
def test_what_is_over_sends_nothing_more(bench: Bench, by: str) -> None:
    bench.stand()
    asked = bench.ask(Timed(0.0, "POST", "/w.W/Talk", parts=((0.5, message(b"b")),), call=True))
    assert not bench.server.only(frames.HEADERS).end
    if by == "answer":
        bench.server.head(1, [*OK_HEAD, (b"grpc-status", b"8")], end=True)
    elif by == "leave":
        bench.line.leave(asked)
    elif by == "reset":
        bench.server.reset(1)
    else:
        bench.line.drop()
    bench.loop.fire()
    bench.loop.run_soon()
    assert bench.server.got(frames.DATA) == []


def test_an_answer_before_the_end_of_the_request_stops_it(bench: Bench) -> None:
    bench.stand()
    asked = bench.ask(Timed(0.0, "POST", "/w.W/Echo", body=b"x" * 100_000, call=True))
    bench.server.take()
    bench.server.head(1, [*OK_HEAD, (b"grpc-status", b"8")], end=True)
    assert bench.server.only(frames.RST_STREAM).code == Code.NO_ERROR
    assert asked.answer is not None
    assert asked.answer.grpc_status == 8


def test_a_connection_that_goes_away_takes_no_more_and_closes_behind_its_last(bench: Bench) -> None:
    bench.stand()
    asked = bench.ask()
    bench.server.send(frames.goaway_frame(frames.MAX_STREAM, Code.NO_ERROR))
    assert not bench.line.room
    assert asked.ended is None
    bench.server.head(1, [*OK_HEAD, (b"grpc-status", b"0")], end=True)
    assert asked.answer is not None
    assert bench.transport.closing


@pytest.mark.parametrize(("chosen", "error"), [("h2", None), ("http/1.1", "h2 (ALPN)"), (None, "h2 (ALPN)")])
def test_over_tls_the_server_has_to_choose_it(chosen: str | None, error: str | None) -> None:
    bench = Bench(secure=True, chosen=chosen)
    asked = bench.ask()
    bench.line.connection_made(bench.transport)
    bench.loop.run_soon()
    assert asked.sends == (error is None)
    if error is not None:
        assert asked.ended is not None
        assert asked.ended[0] is Ended.NO_HTTP2
        assert asked.ended[1].endswith(f"did not choose {error}")
        assert not bench.line.room
    bench.loop.close()
