"""Workers that break HTTP/2, or are there no more: each is left, and its calls end as they should."""

from __future__ import annotations

import pytest

from sidecar.http2 import frames
from sidecar.http2.connection import (
    NOISE_BURST,
)
from sidecar.http2.frames import Code, frame
from sidecar.settings import Limits
from tests.support.grpc_by_hand import GrpcBench, Peer, goaway, grpc_bench, setting

H, D = frames.HEADERS, frames.DATA

ALL = frames.END_HEADERS | frames.END_STREAM


def worker_says(bench: GrpcBench, data: bytes) -> Peer:
    worker = bench.call(1)
    worker.take()
    worker.send(data)
    return worker


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(H, ALL, 3, b"\x88"), Code.PROTOCOL_ERROR),
        (frame(H, ALL, 2, b"\x88"), Code.PROTOCOL_ERROR),
        (frame(frames.PUSH_PROMISE, 4, 1, b"\0\0\0\x02\x82"), Code.PROTOCOL_ERROR),
        (setting(frames.ENABLE_PUSH, 1), Code.PROTOCOL_ERROR),
        (frame(D, 0, 9, b"x"), Code.PROTOCOL_ERROR),
        (frame(frames.PING, 0, 0, bytes(8)) * (NOISE_BURST + 1), Code.ENHANCE_YOUR_CALM),
    ],
)
def test_a_worker_that_breaks_the_protocol_is_left(data: bytes, code: Code) -> None:
    with grpc_bench() as bench:
        worker = worker_says(bench, data)
        assert goaway(worker) is code
        end = bench.caller.only(H)
        assert end.value(b"warmroute-outcome") == b"upstream_protocol"
        assert bench.results == {"protocol": 1}
        bench.answer(bench.call(3))
        assert bench.outcomes == {"ok": 1, "upstream_protocol": 1}


def test_a_worker_s_head_over_the_limits() -> None:
    with grpc_bench(limits=Limits(head_bytes=1024)) as bench:
        worker = bench.call(1)
        worker.head(1, [(b":status", b"200"), (b"x-large", b"v" * 2000)])
        assert bench.caller.only(H).value(b"warmroute-outcome") == b"upstream_protocol"
        assert [one.code for one in worker.got(frames.RST_STREAM)] == [Code.PROTOCOL_ERROR]


def test_a_worker_that_is_there_no_more_is_found_out_by_a_ping() -> None:
    with grpc_bench() as bench:
        dead = bench.call(1, b"x", (b"grpc-timeout", b"2S"))
        bench.pass_time(2.0)
        assert bench.outcomes == {"deadline_exceeded": 1}
        assert bench.results == {"overdue": 1}  # which alone says nothing of the worker
        assert len(dead.got(frames.PING)) == 1
        bench.call(3)
        bench.pass_time(2.5)
        assert dead.transport.aborted
        dead.protocol.connection_lost(None)
        bench.loop.run_soon()
        assert bench.results == {"overdue": 1, "reset": 1}
        assert bench.shared, "it is in quarantine"
        assert "did not answer a ping" in dict(bench.caller.got(H)[-1].fields)[b"grpc-message"].decode()


def test_a_worker_that_answers_the_ping_stays_and_is_not_asked_again_soon() -> None:
    with grpc_bench() as bench:
        slow = bench.call(1, b"x", (b"grpc-timeout", b"2S"))
        bench.pass_time(2.0)
        (ping,) = slow.got(frames.PING)
        slow.send(frame(frames.PING, frames.ACK, 0, ping.payload))
        bench.pass_time(3.0)
        assert bench.call(3, b"x", (b"grpc-timeout", b"2S")) is slow
        bench.pass_time(2.0)
        assert slow.got(frames.PING) == []
        assert not slow.transport.aborted


def test_interim_answers_are_passed_over_but_not_without_end() -> None:
    with grpc_bench() as bench:
        worker = bench.call(1)
        worker.head(1, [(b":status", b"103")])
        bench.answer(worker)
        assert bench.outcomes == {"ok": 1}
        bench.call(3)
        worker.head(3, [(b":status", b"100")], end=True)
        bench.call(5)
        worker.head(5, [(b":status", b"101")])
        assert bench.outcomes == {"ok": 1, "upstream_protocol": 2}
        bench.call(7)
        worker.head(7, [(b":status", b"200"), (b"grpc-status", b"0"), (b"grpc-status", b"13")], end=True)
        bench.call(9)
        worker.head(9, [(b":status", b"200"), (b":status", b"200"), (b"grpc-status", b"0")], end=True)
        assert bench.outcomes == {"ok": 1, "upstream_protocol": 4}
        bench.call(11)
        worker.send(worker.head_bytes(11, [(b":status", b"103")]) * 2 * NOISE_BURST)
        assert goaway(worker) is Code.ENHANCE_YOUR_CALM
        assert bench.outcomes == {"ok": 1, "upstream_protocol": 5}
