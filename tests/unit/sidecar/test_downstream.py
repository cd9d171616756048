"""A caller's connection by hand: how it ends, what it holds back, and what it does when others are closing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import msgspec
import pytest

from router.model import EndpointGone, GoneReason
from router.policy import ModelPolicy, Policies, RetryPolicy
from sidecar.http1.caller import LINGER_BYTES, LINGER_S
from sidecar.http1.downstream import DownstreamConnection
from sidecar.http1.plane import SMALL_BYTES
from sidecar.settings import Limits
from sidecar.telemetry.page import Scalar
from sidecar.upstreams.connection import UpstreamConnection
from tests.support.by_hand import SMALL, Bench, bench
from tests.support.fake_transport import FakeTransport
from tests.support.wires import answer, post, request

READ_GRACE_S = 60.0
BAD = b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"


@pytest.fixture
def by_hand() -> Iterator[Bench]:
    with bench() as made:
        yield made


def sweep_at(by_hand: Bench, now: float) -> None:
    by_hand.now = now
    by_hand.plane.sweep(now)


def reads(side: Bench | UpstreamConnection) -> bool:
    transport = side.transport
    assert isinstance(transport, FakeTransport)
    return transport.reading


@pytest.mark.parametrize("asked", [b"", b"GET / HTTP/1.1\r\nHo", request(b"GET / HTTP/1.1")])
@pytest.mark.parametrize("broken", [False, True])
def test_a_caller_that_leaves_unread_ends_what_is_in_hand(by_hand: Bench, asked: bytes, broken: bool) -> None:
    down, transport = by_hand.connection, by_hand.transport
    if asked:
        down.data_received(asked)
    in_hand = down.busy
    down.left(broken=broken)
    assert transport.closing is (in_hand or broken)
    assert by_hand.busy == []
    if not transport.closing:  # its end is found when it is read again
        down.eof_received()
    down.connection_lost(None)
    by_hand.check_rest()
    assert by_hand.outcomes() == in_hand


@pytest.mark.parametrize(("size", "count", "turns"), [(1, 1000, True), (100, 50, False)])
def test_tiny_chunks_are_read_in_turns_with_others(by_hand: Bench, size: int, count: int, turns: bool) -> None:
    down = by_hand.connection
    by_hand.plane.body_bytes = down.gate = 1 << 20
    down.data_received(request(b"POST / HTTP/1.1", b"Transfer-Encoding: chunked"))
    assert len(by_hand.busy) == 1
    piece = (b"%x\r\n" % size + b"x" * size + b"\r\n") * count
    down.data_received(piece)
    assert reads(by_hand) is not turns
    by_hand.loop.run()
    assert reads(by_hand)
    down.data_received(piece)
    by_hand.busy[0].pause_writing()  # a worker that is full holds it back whatever turn it is
    by_hand.loop.run()
    assert not reads(by_hand)
    by_hand.busy[0].resume_writing()
    assert reads(by_hand)


def test_a_connection_with_a_request_behind_the_last_one_is_not_idle(by_hand: Bench) -> None:
    down = by_hand.connection
    down.data_received(request() + request(b"GET /second HTTP/1.1"))
    by_hand.busy[0].data_received(answer(b"first"))
    down.close_if_idle()
    assert not by_hand.transport.closing
    by_hand.loop.run()
    by_hand.busy[0].data_received(answer(b"second"))
    assert by_hand.transport.written.endswith(b"second")
    down.close_if_idle()
    assert by_hand.transport.closing


@pytest.mark.parametrize("begin", [b'{"model":"m","x":["', b'{"x":["'], ids=["named", "not yet"])
@pytest.mark.parametrize(("size", "turns"), [(1000, False), (100_000, True)])
def test_a_body_that_is_looked_at_is_read_in_turns_with_others(
    by_hand: Bench, begin: bytes, size: int, turns: bool
) -> None:
    down = by_hand.connection
    by_hand.plane.body_bytes = down.gate = 1 << 30
    head = request(b"POST /v1/x HTTP/1.1", b"Content-Type: application/json", b"Content-Length: 1000000")
    down.data_received(head + begin)
    for _ in range(3):
        down.data_received(b"x" * size)
        assert reads(by_hand) is not turns
        by_hand.loop.run()
        assert reads(by_hand)
    down.data_received(b'"],"model":"m","y":"' + b"x" * size)
    assert len(by_hand.busy) == 1
    by_hand.busy[0].pause_writing()
    by_hand.loop.run()
    assert not reads(by_hand)
    by_hand.busy[0].resume_writing()
    assert reads(by_hand)
    assert by_hand.plane.limits.model_prefix_bytes > 4 * size
    rest = 1_000_000 - len(begin) - 4 * size - 20
    down.data_received(b"x" * (rest - 2) + b'"}')
    by_hand.loop.run()
    by_hand.busy[0].data_received(answer(b""))
    assert (reads(by_hand), down.idle) == (True, True)


@pytest.mark.parametrize(
    ("tight", "most", "memory_bytes"), [(False, 1 << 20, 1 << 30), (True, 1 << 20, 1 << 30), (False, 1 << 28, 4 << 20)]
)
def test_bodies_that_name_no_model_yet_share_a_bound(by_hand: Bench, tight: bool, most: int, memory_bytes: int) -> None:
    down, plane = by_hand.connection, by_hand.plane
    other = DownstreamConnection(plane)
    transport = FakeTransport()
    other.connection_made(transport)
    plane.limits = msgspec.structs.replace(plane.limits, model_prefixes_bytes=most)
    plane.memory_bytes = memory_bytes
    plane.body_bytes = down.gate = other.gate = 1 << 30
    plane.tight = tight
    head = request(b"POST /v1/x HTTP/1.1", b"Content-Type: application/json", b"Content-Length: 10000000")
    for connection in (down, other):
        connection.data_received(head + b'{"x":"')
        connection.data_received(b"x" * 60_000)
    assert by_hand.transport.written == transport.written == b""
    pieces = 0
    while not by_hand.transport.written:
        down.data_received(b"x" * 50_000)
        by_hand.loop.run()
        pieces += 1
    assert by_hand.transport.written.startswith(b"HTTP/1.1 503 ")
    assert b"warmroute-outcome: overloaded" in by_hand.transport.written
    assert b"(1048576 may be: limits.model_prefixes_bytes, or a quarter of" in by_hand.transport.written
    assert pieces == 1 if tight else 15 < pieces < 22
    assert plane.connections >= {other}
    assert transport.written == b""
    other.connection_lost(None)


def test_a_body_behind_a_pipelined_one_is_read_on_until_it_names_its_model(by_hand: Bench) -> None:
    down, plane = by_hand.connection, by_hand.plane
    plane.body_bytes = down.gate = 1 << 30
    fields = (b"Content-Type: application/json", b"Content-Length: 100000")
    first = post(b'{"model":"m"}', b"Content-Type: application/json", target=b"/v1/x")
    down.data_received(first)
    down.data_received(request(b"POST /v1/x HTTP/1.1", *fields) + b'{"x":"' + b"x" * 50_000)
    assert not reads(by_hand)  # over limits.pipelined
    by_hand.busy[0].data_received(answer(b"first"))
    by_hand.loop.run()
    assert reads(by_hand)


def test_a_refusal_of_head_has_no_body(by_hand: Bench) -> None:
    by_hand.connection.data_received(BAD.replace(b"GET", b"HEAD"))
    assert by_hand.transport.written.startswith(b"HTTP/1.1 400 ")
    assert by_hand.transport.written.endswith(b"\r\n\r\n")


def test_after_a_refusal_input_is_thrown_away_for_a_moment(by_hand: Bench) -> None:
    down, transport = by_hand.connection, by_hand.transport
    down.data_received(BAD + b"whatever follows")
    assert transport.written.startswith(b"HTTP/1.1 400 ")
    assert transport.half_closed
    answered = transport.written
    down.data_received(request())  # no request any more
    sweep_at(by_hand, LINGER_S - 0.1)
    assert not transport.closing
    sweep_at(by_hand, LINGER_S)
    assert transport.aborted
    assert transport.written == answered
    down.connection_lost(None)
    by_hand.check_rest()
    assert by_hand.outcomes() == 1


def test_nobody_can_feed_a_lingering_connection_for_ever(by_hand: Bench) -> None:
    by_hand.connection.data_received(BAD)
    by_hand.connection.data_received(b"x" * LINGER_BYTES)
    assert not by_hand.transport.aborted
    by_hand.connection.data_received(b"x")
    assert by_hand.transport.aborted


def test_a_closing_connection_waits_for_a_reader_that_is_fast_enough_and_for_no_other(by_hand: Bench) -> None:
    transport = by_hand.transport
    by_hand.connection.data_received(request(b"GET / HTTP/1.1", b"Connection: close"))
    (worker,) = by_hand.busy
    worker.data_received(answer(b"x"))
    assert transport.closing
    least = int(by_hand.plane.limits.read_rate_bytes_per_s * READ_GRACE_S)
    transport.unsent_bytes = 3 * least
    sweep_at(by_hand, LINGER_S)
    assert not transport.aborted
    transport.unsent_bytes = 2 * least
    sweep_at(by_hand, LINGER_S + READ_GRACE_S)
    assert not transport.aborted
    transport.unsent_bytes = least + 1
    sweep_at(by_hand, LINGER_S + 2 * READ_GRACE_S - 0.1)
    assert not transport.aborted
    sweep_at(by_hand, LINGER_S + 2 * READ_GRACE_S)
    assert transport.aborted


def test_a_caller_that_left_is_not_waited_for_longer_than_any_other(by_hand: Bench) -> None:
    by_hand.connection.data_received(request())
    (worker,) = by_hand.busy
    worker.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx")
    by_hand.plane.sweep(by_hand.now)  # the stream may idle for minutes now
    assert not by_hand.connection.eof_received()
    by_hand.transport.unsent_bytes = 1000
    sweep_at(by_hand, LINGER_S)
    sweep_at(by_hand, LINGER_S + READ_GRACE_S)
    assert by_hand.transport.aborted


@pytest.mark.parametrize(
    ("sent", "answered", "outcomes"),
    [
        (b"", b"", 0),
        (b"GET / HT", b"", 0),
        (request(), b"", 1),
        (post(b"hello")[:-2], b"", 1),
        (request(), b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", 1),
        (request(), answer(b"whole"), 1),
    ],
)
@pytest.mark.parametrize("end", ["eof", "lost"])
def test_an_end_is_settled_once_in_every_phase(
    by_hand: Bench, sent: bytes, answered: bytes, outcomes: int, end: str
) -> None:
    if sent:
        by_hand.connection.data_received(sent)
    if answered:
        by_hand.busy[0].data_received(answered)
    if end == "eof":
        assert not by_hand.connection.eof_received()
    by_hand.connection.connection_lost(None)
    by_hand.check_rest()
    assert by_hand.outcomes() == outcomes


@pytest.mark.parametrize(
    "sent", [request(), post(b"hello")[:-2], request(b"POST / HTTP/1.0", b"Content-Length: 5") + b"he"]
)
@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"])
def test_a_worker_that_fails_while_the_caller_s_connection_closes(by_hand: Bench, sent: bytes, begun: bytes) -> None:
    """A write failed: the loop closes the connection, but has not said so yet."""
    by_hand.connection.data_received(sent)
    (worker,) = by_hand.busy
    if begun:
        worker.data_received(begun)
    by_hand.transport.abort()
    worker.pause_writing()
    worker.resume_writing()
    worker.connection_lost(ConnectionResetError())
    by_hand.loop.run()
    by_hand.connection.connection_lost(ConnectionResetError())
    by_hand.loop.run()
    assert by_hand.loop.errors == []
    assert by_hand.busy == []
    assert by_hand.outcomes() == 1


def test_answers_of_our_own_stop_while_the_caller_does_not_read(by_hand: Bench) -> None:
    down = by_hand.connection
    burst = request(b"GET /v2/models/m/versions/9 HTTP/1.1") * 3
    down.pause_writing()
    assert not reads(by_hand)
    down.resume_writing()
    assert reads(by_hand)
    down.data_received(burst)
    down.pause_writing()
    by_hand.loop.run()
    assert by_hand.transport.written.count(b"HTTP/1.1 404 ") == 1
    down.resume_writing()
    by_hand.loop.run()
    assert by_hand.transport.written.count(b"HTTP/1.1 404 ") == 3
    down.connection_lost(None)
    by_hand.check_rest()


@pytest.mark.parametrize("full_first", [True, False])
def test_a_full_side_pauses_the_other_and_lets_it_go_on(by_hand: Bench, full_first: bool) -> None:
    down = by_hand.connection
    if full_first:
        down.pause_writing()
        down.resume_writing()
    down.data_received(post(b"hello")[:-2])
    (worker,) = by_hand.busy
    worker.pause_writing()
    assert not reads(by_hand)
    worker.resume_writing()
    assert reads(by_hand)
    down.data_received(b"lo")
    worker.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx")
    down.pause_writing()
    assert not reads(worker)
    down.resume_writing()
    assert reads(worker)
    down.pause_writing()
    worker.data_received(b"12345678")
    assert reads(worker)  # pooled: it is read, or what comes unasked would not be seen
    down.connection_lost(None)
    by_hand.check_rest()


def test_a_worker_that_has_yet_to_read_its_request_is_not_pooled(by_hand: Bench) -> None:
    by_hand.connection.data_received(post(b"hello"))
    (worker,) = by_hand.busy
    worker.pause_writing()
    worker.data_received(answer(b"early"))
    assert worker.transport.is_closing()
    assert by_hand.outcomes() == 1


def test_what_is_said_here_counts_as_sent(by_hand: Bench) -> None:
    by_hand.connection.data_received(BAD)
    assert by_hand.plane.words[by_hand.plane.page.scalar(Scalar.SENT_BYTES)] == len(by_hand.transport.written)


def test_a_caller_held_back_for_one_worker_is_read_again_for_the_next(by_hand: Bench) -> None:
    down = by_hand.connection
    down.data_received(post(b"hello")[:-2])
    (first,) = by_hand.busy
    first.pause_writing()
    assert not reads(by_hand)
    first.connection_lost(ConnectionResetError())
    by_hand.loop.run()  # the back-off
    (second,) = by_hand.busy
    assert reads(by_hand)
    down.data_received(b"lo")
    assert isinstance(second.transport, FakeTransport)
    assert second.transport.written.endswith(b"\r\n\r\nhello")
    second.data_received(answer(b"x"))
    down.connection_lost(None)
    by_hand.check_rest()


@pytest.mark.parametrize("failures", [1, 2])
def test_the_rest_of_a_body_that_comes_before_a_retry_goes_with_it(by_hand: Bench, failures: int) -> None:
    """The first retry is due at once, the second after a back-off: the worker's time begins when it is over."""
    down, plane = by_hand.connection, by_hand.plane
    models = (ModelPolicy("m", idempotent=True, default=True),)
    retry = RetryPolicy(attempts=3, backoff_min_ms=20.0)
    plane.cluster.configure(Policies(retry=retry), models, by_hand.now)
    down.data_received(post(b"hello")[:-4])
    for _ in range(failures - 1):
        by_hand.busy[0].connection_lost(ConnectionResetError())
        by_hand.loop.run()
    by_hand.now = 1.0
    by_hand.busy[0].connection_lost(ConnectionResetError())
    assert by_hand.busy == []
    down.data_received(b"ello")
    assert by_hand.transport.written == b""
    held_s = down.deadline - by_hand.now - plane.timeouts.response_head_s
    assert (held_s == 0.0) if failures == 1 else (0.02 <= held_s <= retry.backoff_max_ms / 1000)
    by_hand.loop.run()
    (asked,) = by_hand.busy
    assert isinstance(asked.transport, FakeTransport)
    assert asked.transport.written.endswith(b"\r\n\r\nhello")
    asked.data_received(answer(b"x"))
    assert by_hand.transport.written[:13] == b"HTTP/1.1 200 "
    down.connection_lost(None)
    by_hand.check_rest()


@pytest.mark.parametrize(("sizes", "attempts"), [((8, 8), 2), ((8, 9), 1), ((17, 1), 1)])
def test_a_body_is_sent_again_while_all_of_it_is_kept(by_hand: Bench, sizes: tuple[int, ...], attempts: int) -> None:
    down = by_hand.connection  # 16 bytes are kept
    down.data_received(request(b"POST / HTTP/1.1", b"Content-Length: 20") + b"x" * sizes[0])
    for size in sizes[1:]:
        down.data_received(b"x" * size)
    by_hand.busy[0].connection_lost(ConnectionResetError())
    by_hand.loop.run()
    assert by_hand.attempts == attempts
    assert by_hand.transport.written[:13] == (b"" if attempts == 2 else b"HTTP/1.1 502 ")
    down.connection_lost(None)
    by_hand.check_rest()


def test_a_connection_that_stood_for_an_instant_too_long_is_not_counted_for_ever(by_hand: Bench) -> None:
    """Its time ran out in the very turn of the loop in which it was made: uvloop then closes it and tells nobody."""

    async def too_late(new: Callable[[], asyncio.Protocol], host: str, port: int) -> None:
        new().connection_made(FakeTransport())
        raise TimeoutError

    by_hand.loop.create_connection = too_late  # type: ignore[assignment,method-assign]
    by_hand.connection.data_received(request())
    by_hand.loop.run()
    assert by_hand.transport.written.startswith(b"HTTP/1.1 504 ")
    assert not any(endpoint.shell.open_connections for endpoint in by_hand.cluster.endpoints.values())
    by_hand.connection.connection_lost(None)
    by_hand.check_rest()


@pytest.mark.parametrize("size", [SMALL_BYTES, SMALL_BYTES + 1])
@pytest.mark.parametrize("idempotent", [True, False])
def test_a_body_that_nobody_will_send_again_is_not_kept(idempotent: bool, size: int) -> None:
    limits = Limits(body_bytes=1 << 20, replay_bytes=2 * SMALL_BYTES)
    with bench(limits, idempotent=idempotent) as by_hand:
        down = by_hand.connection
        for half in (request(b"POST / HTTP/1.1", b"Content-Length: %d" % (2 * size)) + b"x" * size, b"x" * size):
            down.data_received(half)
            (worker,) = by_hand.busy
            kept = len(down._seen)
            assert kept <= (2 * SMALL_BYTES if idempotent else SMALL_BYTES)
        assert kept == (2 * size if idempotent and size == SMALL_BYTES else 0)
        worker.data_received(answer(b"x"))
        down.connection_lost(None)
        by_hand.check_rest()


def test_where_memory_is_short_nothing_that_was_sent_is_kept(by_hand: Bench) -> None:
    down = by_hand.connection
    down.data_received(post(b"hello"))
    (worker,) = by_hand.busy
    assert down._seen == b"hello"
    by_hand.plane.tighten(by_hand.now)
    assert down._seen == b""
    worker.connection_lost(None)  # so it cannot be sent again
    assert b" 502 " in by_hand.transport.written
    down.connection_lost(None)
    by_hand.check_rest()


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * (SMALL.head_bytes - 32), b""),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * SMALL.head_bytes, b"431"),
        (b"GET /" + b"x" * SMALL.head_bytes, b"414"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 400 + b"\ny", b"400"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 400 + b"\ry", b"400"),
    ],
)
@pytest.mark.parametrize("piece", [1, 7, 300])
def test_a_head_in_pieces_is_refused_as_soon_as_a_whole_one_would_be(
    by_hand: Bench, line: bytes, status: bytes, piece: int
) -> None:
    down, transport = by_hand.connection, by_hand.transport
    at = 0
    while at < len(line) and not transport.written:
        down.data_received(line[at : at + piece])
        at += piece
    assert transport.written.startswith(b"HTTP/1.1 " + status if status else b"")
    assert bool(transport.written) is bool(status)
    if not status:
        down.data_received(b"\r\n\r\n")
        (worker,) = by_hand.busy
        worker.data_received(answer(b"x"))
        assert transport.written.startswith(b"HTTP/1.1 200 ")
    down.connection_lost(None)
    by_hand.check_rest()


@pytest.mark.parametrize("begun", [b"HTTP/1.1 200 OK\r\n\x00\r\n", b"HTTP/1.1 200 OK\r\nX: \x7f", b"HTTP/1.1 2\n"])
def test_a_head_of_a_worker_that_can_become_none_is_not_waited_for(by_hand: Bench, begun: bytes) -> None:
    by_hand.connection.data_received(request())
    (worker,) = by_hand.busy
    worker.data_received(begun)
    assert worker.transport.is_closing()
    assert by_hand.busy == []


def test_bytes_of_an_answer_count_though_its_endpoint_left(by_hand: Bench) -> None:
    def sent() -> int:
        by_hand.plane.flush(by_hand.now)
        return int(by_hand.plane.words[by_hand.plane.page.scalar(Scalar.SENT_BYTES)])

    by_hand.connection.data_received(request())
    (worker,) = by_hand.busy
    begun = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n1234"
    worker.data_received(begun)
    for endpoint in list(by_hand.cluster.endpoints.values()):
        by_hand.cluster.apply(EndpointGone(endpoint.id, GoneReason.DEREGISTERED, by_hand.now), by_hand.now)
    by_hand.plane.bury()
    assert sent() == len(begun)
    worker.data_received(b"56789")
    assert sent() == len(begun) + 5
    assert by_hand.plane._leaving == [] or by_hand.plane._leaving[0].open_connections
