"""Windows that are overrun, tiny, shut or opened in crumbs: each holds its own stream or connection, nobody else."""

from __future__ import annotations

from unittest import mock

import pytest

from sidecar.http2 import frames
from sidecar.http2.connection import (
    CONNECTION_WINDOW,
    NOISE_BURST,
    Connection,
)
from sidecar.http2.frames import WINDOW, Code, frame
from sidecar.http2.sending import MOST_UNSENT_BYTES, STUCK_S
from sidecar.http2.stream import Stream
from tests.support.grpc_by_hand import call_fields, goaway, grpc_bench, message, setting

H, D = frames.HEADERS, frames.DATA

ALL = frames.END_HEADERS | frames.END_STREAM


def test_a_caller_over_its_stream_s_window() -> None:
    with grpc_bench() as bench:
        bench.loop.settings = {frames.INITIAL_WINDOW_SIZE: 0}
        bench.caller.head(1, call_fields())
        left = WINDOW
        while left:
            size = min(left, 16384)
            bench.caller.data(1, b"\0" * size)
            left -= size
        assert bench.buffered() <= WINDOW
        bench.caller.take()
        bench.caller.data(1, b"\0")
        assert [one.code for one in bench.caller.got(frames.RST_STREAM)] == [Code.FLOW_CONTROL_ERROR]
        assert bench.worker.got(frames.RST_STREAM)


def test_a_caller_over_its_connection_s_window() -> None:
    with grpc_bench() as bench:
        bench.loop.settings = {frames.INITIAL_WINDOW_SIZE: 0}
        connection = bench.caller.protocol
        connection._receive_window = 10  # type: ignore[attr-defined]
        bench.caller.head(1, call_fields())
        bench.caller.data(1, b"x" * 11)
        assert goaway(bench.caller) is Code.FLOW_CONTROL_ERROR


def test_whoever_is_slow_stops_the_other_side_and_nobody_else() -> None:
    with grpc_bench() as bench:
        slow = bench.caller
        worker = bench.call(1)
        worker.take()
        worker.head(1, [(b":status", b"200")])
        slow.protocol.pause_writing()
        sent = 0
        while not worker.transport.closing and sent + 16384 <= WINDOW:
            worker.data(1, b"\0" * 16384)
            sent += 16384
        assert worker.got(frames.WINDOW_UPDATE) == []  # no window is given back for what waits
        assert bench.buffered() == sent
        bench.caller = bench.connect()
        bench.answer(bench.call(1), 3)  # on the same connection to the worker
        assert bench.outcomes == {"ok": 1}
        slow.protocol.resume_writing()
        bench.loop.run_soon()
        assert bench.buffered() == 0
        assert [one.stream for one in worker.got(frames.WINDOW_UPDATE)] == [1]
        worker.head(1, [(b"grpc-status", b"0")], end=True)
        assert sum(len(one.payload) for one in slow.got(frames.DATA)) == sent


def test_a_connection_s_window_is_given_back_as_bytes_arrive() -> None:
    with grpc_bench() as bench:
        bench.loop.settings = {frames.INITIAL_WINDOW_SIZE: 1 << 20}
        sent = 0
        stream = 1
        while sent < CONNECTION_WINDOW:
            bench.caller.head(stream, call_fields())
            for _ in range(3):
                bench.caller.data(stream, b"\0" * 16384)
                sent += 16384
            stream += 2
        updates = [one for one in bench.caller.got(frames.WINDOW_UPDATE) if one.stream == 0]
        assert len(updates) == 2
        bench.caller.protocol.connection_lost(None)


def test_tiny_windows_are_served_byte_by_byte() -> None:
    with grpc_bench() as bench:
        caller = bench.caller = bench.connect(settings={frames.INITIAL_WINDOW_SIZE: 1})
        worker = bench.call(1)
        bench.answer(worker, body=b"xyz")
        for _ in range(7):
            caller.send(frames.window_update(1, 1))
        seen = caller.take()
        assert b"".join(one.payload for one in seen if one.kind == D) == message(b"xyz")
        assert seen[-1].end
        assert bench.outcomes == {"ok": 1}


def test_a_smaller_initial_window_holds_what_is_under_way() -> None:
    with grpc_bench() as bench:
        caller = bench.caller
        worker = bench.call(1)
        worker.head(1, [(b":status", b"200")])
        worker.data(1, message(b"x" * 995))
        caller.send(setting(frames.INITIAL_WINDOW_SIZE, 100))  # now 900 under zero
        worker.data(1, b"y" * 50)
        assert sum(len(one.payload) for one in caller.got(D)) == 1000
        caller.send(frames.window_update(1, 901))
        assert [one.payload for one in caller.got(D)] == [b"y"]
        caller.send(setting(frames.INITIAL_WINDOW_SIZE, 1000))
        assert [one.payload for one in caller.got(D)] == [b"y" * 49]
        worker.head(1, [(b"grpc-status", b"0")], end=True)


def test_a_caller_that_sends_calls_but_reads_no_answers_is_read_no_further_and_left() -> None:
    with grpc_bench(default=False) as bench:
        caller = bench.caller
        caller.protocol.pause_writing()
        caller.transport.unsent_bytes = MOST_UNSENT_BYTES + 1
        caller.head(1, call_fields(), end=True)
        paused = caller.transport.reading
        caller.protocol.resume_writing()
        assert (paused, caller.transport.reading) == (False, True)
        caller.protocol.pause_writing()
        caller.head(3, call_fields(), end=True)
        bench.pass_time(STUCK_S + 0.5)
        assert caller.transport.aborted


@pytest.mark.parametrize("connected", [True, False])
def test_a_byte_a_frame_costs_little(connected: bool) -> None:
    with grpc_bench() as bench:
        bench.loop.settings = {frames.INITIAL_WINDOW_SIZE: 0} if connected else {frames.MAX_CONCURRENT_STREAMS: 0}
        bench.caller.head(1, call_fields())
        bench.caller.send(frame(D, 0, 1, b"\0") * 60_000)
        (call,) = bench.opened
        waiting = call.up.waiting if call.up is not None else call._seen
        assert waiting is not None
        assert sum(map(len, waiting)) == 60_000
        assert len(waiting) < 100
        bench.caller.reset(1)


def test_windows_that_grow_in_small_steps_are_used_once_for_a_read() -> None:
    with grpc_bench() as bench:
        bench.caller.send(setting(frames.INITIAL_WINDOW_SIZE, 0))
        pumped = 0

        def pump(self: Connection, stream: Stream) -> int:
            nonlocal pumped
            pumped += 1
            return real(self, stream)

        real = Connection._pump
        for stream in range(1, 101, 2):
            bench.answer(bench.call(stream), stream, b"z" * 995)
        bench.caller.take()
        with mock.patch.object(Connection, "_pump", pump):
            bench.caller.send(frames.window_update(0, 1) * 500)
            assert pumped == 0, "each waits for its own window"
            bench.caller.send(b"".join(frames.window_update(stream, 1) for stream in (1, 3) * 200))
            assert pumped == 2
            sizes = [len(one.payload) for one in bench.caller.got(D)]
            assert sizes == [200, 200]
            pumped = 0
            bench.caller.send(frame(frames.SETTINGS, 0, 0, b"".join(b"\0\4" + bytes((0, 0, 4, n)) for n in range(50))))
            assert pumped == 50
        assert sum(len(one.payload) for one in bench.caller.got(D)) == 50 * 1000 - 400
        assert bench.outcomes == {"ok": 50}


def test_windows_that_grow_as_bytes_are_taken_are_no_noise() -> None:
    with grpc_bench() as bench:
        worker = bench.call(1)
        worker.head(1, [(b":status", b"200"), (b"content-type", b"application/grpc")])
        for _ in range(3 * NOISE_BURST):
            worker.data(1, message(b"t"))
            bench.caller.send(frames.window_update(0, 6) + frames.window_update(1, 6))
            bench.grpc.flush()  # what is counted once a second is another account
        worker.head(1, [(b"grpc-status", b"0")], end=True)
        bench.pass_time(1.0)
        assert bench.outcomes == {"ok": 1}
        assert goaway(bench.caller) is None
