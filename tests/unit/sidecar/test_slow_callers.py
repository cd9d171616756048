"""How slow a caller may be, and how old its connection: by hand, with time that stands still until told."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import msgspec
import pytest

from router.outcomes import AttemptResult
from sidecar.http1.caller import LAME_DUCK_S, LINGER_BYTES, LINGER_S
from sidecar.telemetry.page import Scalar
from sidecar.upstreams.connection import UpstreamConnection
from tests.support.by_hand import Bench, bench
from tests.support.fake_transport import FakeTransport
from tests.support.wires import CHUNKED, answer, chunk, request

START = 1000.0
GRACE_S = 10.0
READ_GRACE_S = 60.0
RATE = 240
ANNOUNCED = b"f4240\r\n"
"""The size line of one large chunk."""
BEGUN = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"


@pytest.fixture
def by_hand() -> Iterator[Bench]:
    with bench() as made:
        made.now = START
        made.plane.body_bytes = 1 << 30
        made.connection.connection_made(made.transport)
        yield made


def at(by_hand: Bench, seconds: float) -> None:
    """Let time pass to ``seconds`` after the start, and look at every deadline once."""
    by_hand.now = START + seconds
    by_hand.plane.sweep(by_hand.now)


def begin_body(by_hand: Bench, *, chunked: bool) -> None:
    framing = CHUNKED if chunked else b"Content-Length: 1000000"
    by_hand.connection.data_received(request(b"POST / HTTP/1.1", framing))
    if chunked:
        by_hand.connection.data_received(ANNOUNCED)


def send(by_hand: Bench, size: int) -> None:
    by_hand.connection.data_received(b"x" * size)


def told(by_hand: Bench) -> bytes:
    """Return the status line of what the caller was answered, or nothing."""
    return by_hand.transport.written.partition(b"\r\n")[0]


def closed(by_hand: Bench) -> bool:
    return by_hand.transport.closing


def cut(by_hand: Bench) -> bool:
    return by_hand.transport.aborted


# --- bodies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_trickles_is_told_408_after_the_grace(by_hand: Bench, chunked: bool) -> None:
    begin_body(by_hand, chunked=chunked)
    send(by_hand, 1)
    at(by_hand, 0)
    for second in range(1, int(GRACE_S)):
        send(by_hand, RATE - 1)
        at(by_hand, second)
        assert told(by_hand) == b""
    send(by_hand, RATE - 1)
    at(by_hand, GRACE_S)
    assert told(by_hand) == b"HTTP/1.1 408 Request Timeout"
    came = 2391 + len(ANNOUNCED) * chunked
    assert b"%d bytes of the body in 10 s, at least 240 a second" % came in by_hand.transport.written
    by_hand.connection.connection_lost(None)
    by_hand.check_rest()
    assert (by_hand.outcomes(), by_hand.results()) == (1, 1)


def test_announcing_a_chunk_is_not_sending_it(by_hand: Bench) -> None:
    begin_body(by_hand, chunked=True)
    at(by_hand, 0)
    for second in range(1, int(GRACE_S) + 1):
        by_hand.connection.data_received(b"x")
        at(by_hand, second)
    assert told(by_hand) == b"HTTP/1.1 408 Request Timeout"


def test_small_chunks_are_not_slow(by_hand: Bench) -> None:
    by_hand.connection.data_received(request(b"POST / HTTP/1.1", CHUNKED))
    for second in range(1, 40):
        by_hand.connection.data_received(chunk(b"x") * (RATE // len(chunk(b"x"))))
        at(by_hand, second)
    assert told(by_hand) == b""


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_at_the_rate_may_take_as_long_as_it_does(by_hand: Bench, chunked: bool) -> None:
    begin_body(by_hand, chunked=chunked)
    for second in range(1, 200):
        send(by_hand, RATE)
        at(by_hand, second)
    assert told(by_hand) == b""


def test_a_body_byte_by_byte_in_chunks_is_judged_by_all_that_is_sent(by_hand: Bench) -> None:
    begin_body(by_hand, chunked=True)
    for second in range(60):
        for _ in range(60):  # 60 bytes of data a second, 360 with their framing
            for piece in (b"1\r", b"\nx\r", b"\n"):
                by_hand.connection.data_received(piece)
        at(by_hand, second)
    assert told(by_hand) == b""


def test_who_waits_for_leave_to_send_is_not_slow_meanwhile(by_hand: Bench) -> None:
    by_hand.connection.data_received(request(b"POST / HTTP/1.1", b"Content-Length: 9000", b"Expect: 100-continue"))
    at(by_hand, 20)
    by_hand.busy[0].data_received(b"HTTP/1.1 100 Continue\r\n\r\n")
    by_hand.transport.written = b""
    for second in range(21, 31):
        send(by_hand, RATE + 10)
        at(by_hand, second)
    assert told(by_hand) == b""


def test_a_burst_at_first_does_not_buy_hours(by_hand: Bench) -> None:
    begin_body(by_hand, chunked=False)
    send(by_hand, 500_000)
    for second in range(1, 61):
        send(by_hand, 1)
        at(by_hand, second)
        if told(by_hand):
            break
    assert told(by_hand) == b"HTTP/1.1 408 Request Timeout"
    assert 30 + GRACE_S <= second <= 30 + GRACE_S + 1  # the pause that is allowed, and the grace


def test_a_worker_that_does_not_read_is_not_the_caller_s_fault(by_hand: Bench) -> None:
    begin_body(by_hand, chunked=False)
    (worker,) = by_hand.busy
    send(by_hand, 5000)
    at(by_hand, 1)
    worker.pause_writing()
    at(by_hand, 20)
    worker.resume_writing()
    send(by_hand, 10)
    at(by_hand, 21)  # 5,010 bytes in 21 s
    assert told(by_hand) == b""
    for second in range(22, 60):
        send(by_hand, 1)
        at(by_hand, second)
        if told(by_hand):
            break
    assert second > 21 + GRACE_S
    assert told(by_hand) == b"HTTP/1.1 408 Request Timeout"


# --- answers --------------------------------------------------------------------------------------------------------


def unread(by_hand: Bench, size: int) -> UpstreamConnection:
    """Begin an answer that piles up."""
    by_hand.connection.data_received(request())
    (worker,) = by_hand.busy
    worker.data_received(BEGUN + b"x" * 1000)
    by_hand.transport.unsent_bytes = size
    by_hand.connection.pause_writing()
    at(by_hand, 0.0)
    return worker


def test_a_caller_that_does_not_take_what_waits_is_cut(by_hand: Bench) -> None:
    worker = unread(by_hand, 100_000)
    at(by_hand, READ_GRACE_S - 0.1)
    assert not cut(by_hand)
    by_hand.transport.unsent_bytes -= int(RATE * READ_GRACE_S) - 1
    at(by_hand, READ_GRACE_S)
    assert cut(by_hand)
    assert worker.transport.is_closing()
    by_hand.connection.connection_lost(None)
    by_hand.check_rest()
    assert by_hand.plane.words[by_hand.plane.page.scalar(Scalar.SLOW_READERS_TOTAL)] == 1
    assert (by_hand.outcomes(), by_hand.results()) == (1, 1)
    assert not by_hand.plane.unread


def test_a_caller_that_takes_enough_may_be_slow(by_hand: Bench) -> None:
    """Longer than a stream may idle, too: it is not idle."""
    unread(by_hand, 1_000_000)
    for window in range(1, 60):
        by_hand.transport.unsent_bytes -= int(RATE * READ_GRACE_S)
        at(by_hand, window * READ_GRACE_S)
    assert not closed(by_hand)


def test_who_takes_something_now_and_then_is_not_idle_meanwhile(by_hand: Bench) -> None:
    """A kernel that says nothing for minutes is judged by its own time, and by no shorter one."""
    by_hand.plane.limits = msgspec.structs.replace(by_hand.plane.limits, read_grace_s=3600.0)
    unread(by_hand, 1_000_000)
    idle_s = by_hand.plane.timeouts.stream_idle_s
    for turn in range(1, 8):
        by_hand.transport.unsent_bytes -= 1
        at(by_hand, turn * (idle_s - 10.0))
        at(by_hand, turn * (idle_s - 10.0) + 0.25)
    assert not closed(by_hand)
    at(by_hand, 8 * (idle_s - 10.0) + 20.0)
    assert cut(by_hand)


def test_a_stream_that_has_nothing_to_send_is_not_slow(by_hand: Bench) -> None:
    unread(by_hand, 100_000)
    by_hand.transport.unsent_bytes = 0
    by_hand.connection.resume_writing()
    at(by_hand, 4 * READ_GRACE_S)
    assert not closed(by_hand)


def test_what_is_written_meanwhile_is_not_held_against_the_caller(by_hand: Bench) -> None:
    unread(by_hand, 10_000)
    by_hand.transport.unsent_bytes = 90_000
    at(by_hand, READ_GRACE_S)
    by_hand.transport.unsent_bytes = 70_000
    at(by_hand, 2 * READ_GRACE_S)
    assert not cut(by_hand)


def test_one_that_asks_and_never_reads_is_cut_between_requests_too(by_hand: Bench) -> None:
    by_hand.connection.data_received(request())
    by_hand.transport.unsent_bytes = 100_000
    by_hand.connection.pause_writing()
    by_hand.busy[0].data_received(answer(b"x"))
    at(by_hand, 0.0)
    at(by_hand, READ_GRACE_S)
    assert cut(by_hand)
    by_hand.connection.connection_lost(None)
    by_hand.check_rest()
    assert by_hand.outcomes() == 1


@pytest.mark.parametrize("reads", [False, True])
def test_at_the_end_of_the_grace_period_nobody_is_waited_for_who_does_not_read(by_hand: Bench, reads: bool) -> None:
    unread(by_hand, 100_000)
    if reads:
        by_hand.transport.unsent_bytes = 0
        by_hand.connection.resume_writing()
    by_hand.connection.cut_for_drain()
    assert closed(by_hand)
    assert cut(by_hand) is not reads


def test_an_answer_that_was_cut_has_its_time_to_arrive_and_no_more(by_hand: Bench) -> None:
    unread(by_hand, 100_000)
    by_hand.connection.resume_writing()
    by_hand.transport.unsent_bytes = 1000  # under the mark, and no byte of it taken
    by_hand.connection.cut_for_drain()
    at(by_hand, LINGER_S)
    at(by_hand, LINGER_S + READ_GRACE_S - 1)
    assert not cut(by_hand)
    at(by_hand, LINGER_S + READ_GRACE_S)
    assert cut(by_hand)


# --- what waits behind an end ----------------------------------------------------------------------------------------

WAITING = 50_000


def answered_last(by_hand: Bench) -> None:
    by_hand.connection.data_received(request(b"GET / HTTP/1.1", b"Connection: close"))
    by_hand.transport.unsent_bytes = WAITING
    by_hand.busy[0].data_received(answer(b"x"))


def idle_for_too_long(by_hand: Bench) -> None:
    ask(by_hand)
    by_hand.transport.unsent_bytes = WAITING
    by_hand.connection.deadline = START
    at(by_hand, 0)


def shut_by_the_caller(by_hand: Bench) -> None:
    ask(by_hand)
    by_hand.transport.unsent_bytes = WAITING
    assert by_hand.connection.eof_received()


def shut_by_the_caller_behind_the_last_answer(by_hand: Bench) -> None:
    answered_last(by_hand)
    assert by_hand.connection.eof_received()


def cut_in_the_middle(by_hand: Bench) -> None:
    unread(by_hand, WAITING)
    by_hand.connection._write_paused = False
    by_hand.connection.cut_for_drain()


ENDS = [
    answered_last,
    idle_for_too_long,
    shut_by_the_caller,
    shut_by_the_caller_behind_the_last_answer,
    cut_in_the_middle,
]


def slow_readers(by_hand: Bench) -> int:
    return by_hand.plane.words[by_hand.plane.page.scalar(Scalar.SLOW_READERS_TOTAL)]


@pytest.mark.parametrize("end", ENDS)
def test_who_takes_nothing_behind_an_end_is_counted_until_it_is_reset(
    by_hand: Bench, end: Callable[[Bench], None]
) -> None:
    end(by_hand)
    assert by_hand.transport.half_closed
    for seconds in (LINGER_S, LINGER_S + READ_GRACE_S - 0.1):
        at(by_hand, seconds)
        assert not closed(by_hand)
    assert by_hand.connection in by_hand.plane.connections
    at(by_hand, LINGER_S + READ_GRACE_S)
    assert cut(by_hand)
    assert slow_readers(by_hand) == 1
    by_hand.connection.connection_lost(None)
    by_hand.check_rest()
    assert not by_hand.plane.unread
    assert by_hand.outcomes() == 1


@pytest.mark.parametrize("rate", [RATE, 0])
@pytest.mark.parametrize("end", ENDS)
def test_who_takes_it_slowly_behind_an_end_gets_all_of_it(
    by_hand: Bench, end: Callable[[Bench], None], rate: int
) -> None:
    by_hand.plane.limits = msgspec.structs.replace(by_hand.plane.limits, read_rate_bytes_per_s=rate)
    end(by_hand)
    at(by_hand, LINGER_S)
    taken = int(rate * READ_GRACE_S) or 1
    for turn in range(1, 4):
        by_hand.transport.unsent_bytes -= taken
        by_hand.connection.resume_writing()
        at(by_hand, LINGER_S + turn * READ_GRACE_S)
        assert not closed(by_hand)
    by_hand.transport.unsent_bytes = 0
    at(by_hand, LINGER_S + 3 * READ_GRACE_S + 0.25)
    assert closed(by_hand)
    assert slow_readers(by_hand) == 0


def test_who_sends_on_and_takes_nothing_is_reset(by_hand: Bench) -> None:
    answered_last(by_hand)
    by_hand.connection.data_received(b"x" * (LINGER_BYTES + 1))
    assert cut(by_hand)


@pytest.mark.parametrize("refused", [False, True])
def test_a_kernel_is_left_the_rest_with_a_limit(by_hand: Bench, refused: bool) -> None:
    """Whether a connection is closed at once, or after the time that a refused caller has to read why."""
    if refused:
        by_hand.connection.data_received(b"nonsense\r\n\r\n")
        assert not closed(by_hand)
        at(by_hand, LINGER_S)
    else:
        by_hand.connection.data_received(request(b"GET / HTTP/1.1", b"Connection: close"))
        by_hand.busy[0].data_received(answer(b"x"))
    assert closed(by_hand)
    limit = (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(READ_GRACE_S * 1000))
    assert by_hand.transport.options == [limit]


# --- age ------------------------------------------------------------------------------------------------------------


def flush_at(by_hand: Bench, seconds: float) -> None:
    by_hand.now = START + seconds
    by_hand.plane.flush(by_hand.now)


def aged(by_hand: Bench) -> int:
    return by_hand.plane.words[by_hand.plane.page.scalar(Scalar.CONNECTIONS_AGED_TOTAL)]


def ask(by_hand: Bench) -> bytes:
    by_hand.transport.written = b""
    by_hand.connection.data_received(request())
    (worker,) = by_hand.busy
    worker.data_received(answer(b"x"))
    return by_hand.transport.written


def test_after_its_age_the_next_answer_is_the_last(by_hand: Bench) -> None:
    assert b"Connection" not in ask(by_hand)
    flush_at(by_hand, 0.9 * 3600 - 1)
    assert b"Connection" not in ask(by_hand)
    flush_at(by_hand, 3600)
    assert not closed(by_hand)  # a request may be on its way
    assert b"Connection: close\r\n" in ask(by_hand)
    assert closed(by_hand)
    assert aged(by_hand) == 1


def test_an_idle_connection_is_closed_a_moment_after_its_age(by_hand: Bench) -> None:
    by_hand.now = START + 3590
    ask(by_hand)
    flush_at(by_hand, 3600)
    flush_at(by_hand, 3600)
    at(by_hand, 3600 + LAME_DUCK_S - 0.1)
    assert not closed(by_hand)
    at(by_hand, 3600 + LAME_DUCK_S)
    assert closed(by_hand)
    assert aged(by_hand) == 1


def test_an_answer_that_began_is_never_cut_for_age(by_hand: Bench) -> None:
    by_hand.connection.data_received(request())
    (worker,) = by_hand.busy
    worker.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na")
    for hour in (1, 2, 3):
        flush_at(by_hand, 3600 * hour)
        by_hand.connection.active = True
        at(by_hand, 3600 * hour)
    worker.data_received(b"bc")
    assert by_hand.transport.written.endswith(b"abc")
    assert not closed(by_hand)  # its end was announced as usual: the one after it is the last
    assert b"Connection: close\r\n" in ask(by_hand)


@pytest.mark.parametrize("asks", [False, True])
def test_one_that_was_answered_as_its_age_came_may_ask_once_more_at_once(by_hand: Bench, asks: bool) -> None:
    by_hand.connection.data_received(request())
    (worker,) = by_hand.busy
    worker.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na")
    flush_at(by_hand, 3600)
    by_hand.now = START + 3700
    worker.data_received(b"bc")
    at(by_hand, 3700 + LAME_DUCK_S - 0.1)
    assert not closed(by_hand)
    if asks:
        by_hand.connection.data_received(request())
        at(by_hand, 3700 + LAME_DUCK_S)
        assert not closed(by_hand)
        by_hand.busy[0].data_received(answer(b"x"))
        assert b"Connection: close\r\n" in by_hand.transport.written
    else:
        at(by_hand, 3700 + LAME_DUCK_S)
    assert closed(by_hand)


def test_one_that_waits_for_its_answer_is_told_with_it(by_hand: Bench) -> None:
    by_hand.connection.data_received(request())
    (worker,) = by_hand.busy
    flush_at(by_hand, 3600)
    worker.data_received(answer(b"x"))
    assert b"Connection: close\r\n" in by_hand.transport.written
    assert closed(by_hand)


@pytest.mark.parametrize("busy", [False, True])
def test_an_upstream_connection_past_its_age_takes_no_further_request(by_hand: Bench, busy: bool) -> None:
    pool = by_hand.cluster.endpoints["o0"].shell
    pool._age_s = 60.0
    connection = UpstreamConnection(pool)
    transport = FakeTransport()
    connection.connection_made(transport)
    pool.release(connection, by_hand.now)
    by_hand.now = START + 50
    pool.expire(by_hand.now)
    assert pool.pooled == 1
    if busy:
        assert pool.checkout(by_hand.now) is connection
        connection.begin(by_hand.connection, b"GET")
        by_hand.connection.request_done = True
        by_hand.now = START + 61
        pool.expire(by_hand.now)
        assert not transport.closing
        connection.data_received(answer(b"x"))
    else:
        by_hand.now = START + 61
        pool.expire(by_hand.now)
    assert transport.closing
    assert pool.pooled == 0
    assert not pool.open_connections


@pytest.mark.parametrize("whole", [False, True])
def test_an_answer_that_stands_still_as_its_request_does_is_not_the_worker_s_fault(by_hand: Bench, whole: bool) -> None:
    """A worker that answers as it reads may be waiting for more of the request."""
    begin_body(by_hand, chunked=True)
    (worker,) = by_hand.busy
    if whole:
        send(by_hand, 1_000_000)
        by_hand.connection.data_received(b"\r\n0\r\n\r\n")
    worker.data_received(BEGUN + b"x" * 1000)
    at(by_hand, 0.0)
    at(by_hand, by_hand.plane.timeouts.stream_idle_s + 1.0)
    assert closed(by_hand)
    by_hand.connection.connection_lost(None)
    by_hand.check_rest()
    by_hand.plane.settle(by_hand.now)
    words, rows = by_hand.plane.words, [row for _, row in by_hand.plane.page.endpoints()]
    counted = {result for row in rows for index, result in enumerate(AttemptResult) if words[row + index]}
    assert counted == {AttemptResult.STREAM_IDLE if whole else AttemptResult.CANCELLED}
