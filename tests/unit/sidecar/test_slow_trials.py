"""A caller that takes its time keeps nobody from a worker that has come back: by hand, with time that stands still."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from router.breaker import GuardState
from router.model import BreakerRule, Evidence
from sidecar.http1.downstream import DownstreamConnection
from sidecar.http2.frames import Code
from tests.support.by_hand import Bench, bench
from tests.support.fake_transport import FakeTransport
from tests.support.fleet import only
from tests.support.grpc_by_hand import call_fields, grpc_bench, message, status
from tests.support.wires import CHUNKED, answer, chunk, request

ASK = request()
LARGE = request(b"POST / HTTP/1.1", b"Content-Length: 60")
UPLOADS = [
    LARGE,
    LARGE + b"x" * 30,
    request(b"POST / HTTP/1.1", b"Content-Length: 60", b"Expect: 100-continue"),
    request(b"POST / HTTP/1.1", CHUNKED),
    request(b"POST / HTTP/1.1", CHUNKED) + chunk(b"x" * 30),
]


@pytest.fixture
def by_hand() -> Iterator[Bench]:
    """Return a bench whose second worker is held out, and whose first one is half back: its back-off is over."""
    with bench() as made:
        made.cluster.endpoints["o1"].held = True
        made.cluster._fleet.judge(made.cluster.endpoints["o1"], made.now)
        made.loop.refusals = 1
        ask(made)
        made.now = 2.0
        assert made.cluster.endpoints["o0"].quarantine.active
        yield made


def connect(by_hand: Bench) -> tuple[DownstreamConnection, FakeTransport]:
    connection, transport = DownstreamConnection(by_hand.plane), FakeTransport()
    connection.connection_made(transport)
    return connection, transport


def ask(by_hand: Bench, data: bytes = ASK) -> FakeTransport:
    """Send a request on a connection of its own, and return what that was answered on."""
    connection, transport = connect(by_hand)
    connection.data_received(data)
    by_hand.loop.run()
    return transport


def say(by_hand: Bench, data: bytes, worker: int = -1) -> None:
    by_hand.busy[worker].data_received(data)


def out(by_hand: Bench) -> bool:
    return by_hand.cluster.endpoints["o0"].quarantine.active


@pytest.mark.parametrize("upload", UPLOADS)
def test_an_upload_that_does_not_go_on_leaves_the_probe_to_others(by_hand: Bench, upload: bytes) -> None:
    waiting = [ask(by_hand, upload) for _ in range(12)]
    assert all(transport.written == b"" for transport in waiting)
    assert ask(by_hand).written == b""  # it is the probe now
    assert ask(by_hand).written.startswith(b"HTTP/1.1 503 ")
    for connection in list(by_hand.busy):
        if b"GET / " in connection.transport.written:  # type: ignore[attr-defined]
            connection.data_received(answer(b"hi"))
    assert not out(by_hand)
    assert ask(by_hand).written == b""


@pytest.mark.parametrize("upload", UPLOADS)
def test_an_upload_that_has_come_to_its_end_is_the_probe(by_hand: Bench, upload: bytes) -> None:
    connection, transport = connect(by_hand)
    connection.data_received(upload)
    by_hand.loop.run()
    if CHUNKED in upload:
        connection.data_received(b"0\r\n\r\n")
    else:
        connection.data_received(b"x" * (60 - len(upload.partition(b"\r\n\r\n")[2])))
    assert ask(by_hand).written.startswith(b"HTTP/1.1 503 ")
    say(by_hand, answer(b"hi"))
    assert transport.written.endswith(b"hi")
    assert not out(by_hand)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n",
    ],
)
def test_a_head_that_is_no_failure_ends_a_quarantine(by_hand: Bench, head: bytes) -> None:
    transport = ask(by_hand)
    assert transport.written == b""
    say(by_hand, head)
    assert transport.written.startswith(head[:12])
    assert not out(by_hand)
    assert ask(by_hand).written == b""


def test_a_head_that_is_a_failure_does_not(by_hand: Bench) -> None:
    ask(by_hand)
    say(by_hand, b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 100000\r\n\r\n" + b"x" * 5000)
    assert out(by_hand)
    assert by_hand.cluster.endpoints["o0"].quarantine.level == 2


def test_streams_that_begin_well_close_a_breaker_and_uploads_take_none_of_its_trials(by_hand: Bench) -> None:
    ask(by_hand)
    say(by_hand, answer())
    assert not out(by_hand)
    candidate = only(by_hand.cluster.endpoints["o0"])
    breaker = candidate.breaker
    breaker.peer_opened(3.0, by_hand.now, BreakerRule.GENERAL, Evidence(20, 20, 0, 0))
    by_hand.cluster._fleet.judge(candidate.endpoint, by_hand.now)
    by_hand.now = 3.0
    for _ in range(20):
        ask(by_hand, LARGE)
    assert (breaker.state, breaker.trials, breaker.lent) == (GuardState.HALF_OPEN, 0, 20)
    for number in range(6):
        before = by_hand.busy
        ask(by_hand)
        (asked,) = [one for one in by_hand.busy if one not in before]
        asked.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
        assert (breaker.state is GuardState.CLOSED) is (number == 5)


# --- gRPC ------------------------------------------------------------------------------------------------------------


def test_a_call_that_stays_open_leaves_the_probe_to_others_and_its_first_message_ends_the_quarantine() -> None:
    with grpc_bench() as made:
        for endpoint in made.cluster.endpoints.values():
            endpoint.held = endpoint.id == "o1"
            made.cluster._fleet.judge(endpoint, made.now)
        made.loop.refuse = 1
        made.caller.head(1, call_fields())
        made.caller.data(1, message(b"ask"), end=True)
        made.loop.fire()
        assert status(made.caller) == (14, "connect_failed")
        made.now += 2.0
        quarantine = made.cluster.endpoints["o0"].quarantine
        for stream in (3, 5, 7):
            made.caller.head(stream, call_fields())
            made.caller.data(stream, message(b"more to come"))
        assert (quarantine.state, quarantine.trials, quarantine.lent) == (GuardState.HALF_OPEN, 0, 3)
        made.caller.data(7, b"", end=True)
        assert (quarantine.trials, quarantine.lent) == (1, 2)
        worker = made.worker
        worker.head(3, [(b":status", b"200"), (b"content-type", b"application/grpc")])
        assert quarantine.state is GuardState.HALF_OPEN
        worker.data(3, message(b"hi"))
        assert not quarantine.active
        for stream in (3, 5, 7):
            made.caller.reset(stream, Code.CANCEL)
        assert not quarantine.active
        made.answer(made.call(9), 7)
        assert status(made.caller, 9) == (0, "")
