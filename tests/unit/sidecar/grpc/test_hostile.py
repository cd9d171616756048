"""Peers that break HTTP/2, or use it to hurt: each ends as RFC 9113 says, and costs no more than its own connection."""

from __future__ import annotations

import struct
from unittest import mock

import pytest

from sidecar.http1.forwarding import ListenerRules
from sidecar.http2 import frames
from sidecar.http2.connection import (
    CONNECTION_WINDOW,
    NOISE_BURST,
    Connection,
)
from sidecar.http2.frames import PREFACE, WINDOW, Code, frame
from sidecar.http2.sending import MOST_UNSENT_BYTES, STUCK_S
from sidecar.http2.stream import Stream
from sidecar.settings import Limits, Timeouts
from sidecar.telemetry.page import Scalar
from tests.support.grpc_by_hand import INFER, METHOD, GrpcBench, Peer, call_fields, grpc_bench, message

H, D = frames.HEADERS, frames.DATA
ALL = frames.END_HEADERS | frames.END_STREAM


def goaway(peer: Peer) -> Code | None:
    """Return the code with which the connection was ended, None where it lives."""
    last = peer.got(frames.GOAWAY)
    return Code(last[-1].code) if last else None


def setting(key: int, value: int) -> bytes:
    return frames.settings_frame({key: value})


BROKEN: dict[str, tuple[bytes, Code]] = {
    "data on stream 0": (frame(D, 0, 0, b"x"), Code.PROTOCOL_ERROR),
    "data on an idle stream": (frame(D, 0, 5, b"x"), Code.PROTOCOL_ERROR),
    "data on an even stream": (frame(D, 0, 2, b"x"), Code.PROTOCOL_ERROR),
    "headers on stream 0": (frame(H, ALL, 0, b"\x82"), Code.PROTOCOL_ERROR),
    "headers on an even stream": (frame(H, ALL, 2, b"\x82"), Code.PROTOCOL_ERROR),
    "padding over the frame": (frame(H, ALL | frames.PADDED, 1, b"\x05\x82"), Code.PROTOCOL_ERROR),
    "padding without its length": (frame(H, ALL | frames.PADDED, 1, b""), Code.PROTOCOL_ERROR),
    "priority cut short": (frame(H, ALL | frames.WITH_PRIORITY, 1, b"\0\0"), Code.FRAME_SIZE_ERROR),
    "continuation alone": (frame(frames.CONTINUATION, 4, 1, b"\x82"), Code.PROTOCOL_ERROR),
    "a block interrupted": (frame(H, 1, 1, b"\x82") + frame(frames.PING, 0, 0, bytes(8)), Code.PROTOCOL_ERROR),
    "a block continued elsewhere": (
        frame(H, 1, 1, b"\x82") + frame(frames.CONTINUATION, 4, 3, b"\x84"),
        Code.PROTOCOL_ERROR,
    ),
    "a block that cannot be read": (frame(H, ALL, 1, b"\xff\xff\xff\xff\xff\xff"), Code.COMPRESSION_ERROR),
    "a push promise": (frame(frames.PUSH_PROMISE, 4, 1, b"\0\0\0\x02\x82"), Code.PROTOCOL_ERROR),
    "reset of stream 0": (frames.reset_frame(0, 8), Code.PROTOCOL_ERROR),
    "reset of an idle stream": (frames.reset_frame(7, 8), Code.PROTOCOL_ERROR),
    "reset of 3 bytes": (frame(frames.RST_STREAM, 0, 1, b"\0\0\0"), Code.FRAME_SIZE_ERROR),
    "window of an idle stream": (frames.window_update(9, 1), Code.PROTOCOL_ERROR),
    "window by 0": (frames.window_update(0, 0), Code.PROTOCOL_ERROR),
    "window of 3 bytes": (frame(frames.WINDOW_UPDATE, 0, 0, b"\0\0\1"), Code.FRAME_SIZE_ERROR),
    "window too large": (frames.window_update(0, frames.MAX_WINDOW), Code.FLOW_CONTROL_ERROR),
    "settings on a stream": (frame(frames.SETTINGS, 0, 1, b""), Code.PROTOCOL_ERROR),
    "settings of 5 bytes": (frame(frames.SETTINGS, 0, 0, bytes(5)), Code.FRAME_SIZE_ERROR),
    "settings acknowledged with more": (frame(frames.SETTINGS, 1, 0, bytes(6)), Code.FRAME_SIZE_ERROR),
    "settings: push 2": (setting(frames.ENABLE_PUSH, 2), Code.PROTOCOL_ERROR),
    "settings: window": (setting(frames.INITIAL_WINDOW_SIZE, 1 << 31), Code.FLOW_CONTROL_ERROR),
    "settings: frame too small": (setting(frames.MAX_FRAME_SIZE, 16383), Code.PROTOCOL_ERROR),
    "settings: frame too large": (setting(frames.MAX_FRAME_SIZE, 1 << 24), Code.PROTOCOL_ERROR),
    "ping on a stream": (frame(frames.PING, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
    "ping of 7 bytes": (frame(frames.PING, 0, 0, bytes(7)), Code.FRAME_SIZE_ERROR),
    "goaway on a stream": (frame(frames.GOAWAY, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
    "goaway of 7 bytes": (frame(frames.GOAWAY, 0, 0, bytes(7)), Code.FRAME_SIZE_ERROR),
    "priority on stream 0": (frame(frames.PRIORITY, 0, 0, bytes(5)), Code.PROTOCOL_ERROR),
    "priority of 4 bytes": (frame(frames.PRIORITY, 0, 1, bytes(4)), Code.FRAME_SIZE_ERROR),
    "a frame too large": (struct.pack(">HBBBL", 64, 1, D, 0, 1), Code.FRAME_SIZE_ERROR),
    "pings without end": (frame(frames.PING, 0, 0, bytes(8)) * (NOISE_BURST + 1), Code.ENHANCE_YOUR_CALM),
    "settings without end": (setting(frames.ENABLE_PUSH, 0) * (NOISE_BURST + 1), Code.ENHANCE_YOUR_CALM),
    "settings of many entries": (
        frame(frames.SETTINGS, 0, 0, (b"\0\4\0\0\0\1" + b"\0\4\0\0\0\2") * 501),
        Code.ENHANCE_YOUR_CALM,
    ),
    "windows that nobody needs": (frames.window_update(0, 1) * (NOISE_BURST + 100), Code.ENHANCE_YOUR_CALM),
    "unknown frames without end": (frame(0xFA, 0, 0, b"") * (NOISE_BURST + 1), Code.ENHANCE_YOUR_CALM),
    "priorities without end": (frame(frames.PRIORITY, 0, 1, bytes(5)) * (NOISE_BURST + 1), Code.ENHANCE_YOUR_CALM),
    "continuations without end": (
        frame(H, 1, 1, b"\x82") + frame(frames.CONTINUATION, 0, 1, b"") * (NOISE_BURST + 1),
        Code.ENHANCE_YOUR_CALM,
    ),
    "a block without end": (
        frame(H, 1, 1, b"\x82" * 16384) + frame(frames.CONTINUATION, 0, 1, b"\x82" * 16384) * 4,
        Code.ENHANCE_YOUR_CALM,
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_the_protocol_ends_the_connection(name: str) -> None:
    data, code = BROKEN[name]
    with grpc_bench() as bench:
        bench.caller.send(data)
        assert goaway(bench.caller) is code
        assert bench.caller.transport.half_closed
        assert bench.plane.words[bench.plane.page.scalar(Scalar.REJECTED_MESSAGES_TOTAL)] == 1
        bench.caller.send(frame(D, 0, 1, b"x" * 100))  # what follows is thrown away
        assert bench.caller.transport.late == b""


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", PREFACE[:-1] + b"x", b"\x16\x03\x01", PREFACE * 2])
def test_what_is_not_http2_is_told_so(garbage: bytes) -> None:
    with grpc_bench() as bench:
        peer = bench.connect(preface=False)
        peer.send(garbage)
        assert goaway(peer) in (Code.PROTOCOL_ERROR, Code.FRAME_SIZE_ERROR)


@pytest.mark.parametrize("first", [b"", PREFACE[:10], PREFACE])
def test_a_preface_that_does_not_come_is_not_waited_for(first: bytes) -> None:
    with grpc_bench(timeouts=Timeouts(client_head_s=2.0)) as bench:
        peer = bench.connect(preface=False)
        if first:
            peer.send(first)
        bench.pass_time(2.5)
        assert goaway(peer) is Code.PROTOCOL_ERROR
        bench.pass_time(2.5)
        assert peer.transport.aborted


def test_a_header_block_has_its_own_time_whatever_the_connection_s_age() -> None:
    """In two reads with a sweep between them it is fine; stopped in its middle it ends the connection."""
    with grpc_bench(timeouts=Timeouts(client_head_s=2.0, keep_alive_s=5.0, response_head_s=60.0)) as bench:
        worker = bench.call(1)
        bench.pass_time(20.0)
        for stream, rest_comes in ((3, True), (5, False)):
            head = bench.caller.head_bytes(stream, call_fields(b"/t/M", (b"big", b"~" * 20_000)))
            bench.caller.send(head[: 16_384 + 9])
            bench.pass_time(1.75)
            assert bench.caller.got(frames.GOAWAY) == []
            if rest_comes:
                bench.caller.send(head[16_384 + 9 :])
                bench.caller.data(stream, message(), end=True)
                bench.answer(worker, stream)
        bench.pass_time(0.5)
        assert goaway(bench.caller) is Code.PROTOCOL_ERROR
        assert bench.outcomes == {"ok": 1, "client_abort": 1}
        bench.pass_time(2.5)
        assert bench.caller.transport.aborted


def test_frames_before_settings_are_refused() -> None:
    with grpc_bench() as bench:
        peer = bench.connect(preface=False)
        peer.send(PREFACE + frame(frames.PING, 0, 0, bytes(8)))
        assert goaway(peer) is Code.PROTOCOL_ERROR


BAD_HEADS: dict[str, list[tuple[bytes, bytes]]] = {
    "upper case": [*call_fields(), (b"X-Upper", b"1")],
    "an empty name": [*call_fields(), (b"", b"1")],
    "a line end": [*call_fields(), (b"x-a", b"1\r\nx-b: 2")],
    "a zero": [*call_fields(), (b"x-a", b"\0")],
    "a blank before": [*call_fields(), (b"x-a", b" 1")],
    "connection": [*call_fields(), (b"connection", b"close")],
    "transfer-encoding": [*call_fields(), (b"transfer-encoding", b"chunked")],
    "te": [(n, b"gzip" if n == b"te" else v) for n, v in call_fields()],
    "no path": [field for field in call_fields() if field[0] != b":path"],
    "an empty path": [(n, b"" if n == b":path" else v) for n, v in call_fields()],
    "no scheme": [field for field in call_fields() if field[0] != b":scheme"],
    "no method": [field for field in call_fields() if field[0] != b":method"],
    "two paths": [(b":path", b"/a"), *call_fields()],
    "a status": [(b":status", b"200"), *call_fields()],
    "an unknown pseudo-header": [(b":protocol", b"websocket"), *call_fields()],
    "a late pseudo-header": [*call_fields()[1:], (b":method", b"POST")],
    "two hosts": [*call_fields()[:3], *call_fields()[4:], (b"host", b"a.test"), (b"host", b"a.test")],
    "a host beside another authority": [*call_fields(), (b"host", b"b.test")],
    "an authority that is none": [(n, b"a b" if n == b":authority" else v) for n, v in call_fields()],
    "a scheme that is none": [(n, b"ftp" if n == b":scheme" else v) for n, v in call_fields()],
}


@pytest.mark.parametrize("name", BAD_HEADS)
def test_a_malformed_head_resets_its_stream_alone(name: str) -> None:
    with grpc_bench() as bench:
        bench.caller.head(1, BAD_HEADS[name], end=True)
        assert [(one.stream, one.code) for one in bench.caller.got(frames.RST_STREAM)] == [(1, Code.PROTOCOL_ERROR)]
        assert bench.outcomes == {}
        bench.answer(bench.call(3))
        assert bench.outcomes == {"ok": 1}


@pytest.mark.parametrize(
    "more",
    [[(b"x-large", b"v" * 5000)], [(b"x-many", b"%d" % number) for number in range(20)]],
    ids=["large", "many fields"],
)
def test_a_head_over_the_limits(more: list[tuple[bytes, bytes]]) -> None:
    with grpc_bench(limits=Limits(head_bytes=4096, fields=20)) as bench:
        bench.caller.head(1, [*call_fields(), *more[:1]] if len(more) == 1 else [*call_fields(), *more], end=True)
        seen = bench.caller.take()
        if any(one.kind == frames.GOAWAY for one in seen):
            return  # in more than one frame it is not even read
        (end,) = [one for one in seen if one.kind == H]
        assert (end.value(b"grpc-status"), end.value(b"warmroute-outcome")) == (b"8", b"head_too_large")
        bench.answer(bench.call(3))


def test_too_many_calls_at_once_are_refused_and_the_others_go_on() -> None:
    with grpc_bench() as bench:
        for number in range(101):
            bench.caller.head(1 + 2 * number, call_fields())
        assert [(one.stream, one.code) for one in bench.caller.got(frames.RST_STREAM)] == [(201, Code.REFUSED_STREAM)]
        assert bench.in_flight == 100
        bench.caller.protocol.connection_lost(None)


def at_once(bench: GrpcBench, stream: int, *more: tuple[bytes, bytes]) -> None:
    """Make a call and give it up in one read."""
    head = bench.caller.head_bytes(stream, call_fields(METHOD, *more))
    bench.caller.send(head + frames.reset_frame(stream, Code.CANCEL))


def refused(bench: GrpcBench) -> int:
    """Return how many streams were refused, which is what the metric says."""
    count = sum(one.code == Code.REFUSED_STREAM for one in bench.caller.got(frames.RST_STREAM))
    assert bench.plane.words[bench.plane.page.scalar(Scalar.GRPC_REFUSED_TOTAL)] == count
    return count


def test_rapid_resets_are_refused_and_then_end_the_connection() -> None:
    with grpc_bench() as bench:
        number = 0
        while not bench.caller.transport.half_closed and number < 10_000:
            at_once(bench, 1 + 2 * number)
            number += 1
        assert len(bench.opened) == 10 * 100 + 1, "what 100 calls of 100 ms come to in a second"
        assert number == len(bench.opened) + NOISE_BURST, "its settings are one frame of them"
        assert goaway(bench.caller) is Code.ENHANCE_YOUR_CALM
        assert bench.in_flight == 0
        assert bench.plane.words[bench.plane.page.scalar(Scalar.GRPC_REFUSED_TOTAL)] == NOISE_BURST


def test_what_a_caller_sets_or_sends_to_have_its_calls_ended_is_as_a_reset() -> None:
    with grpc_bench(limits=Limits(early_resets_per_s=50)) as bench:
        for number in range(40):
            stream = 1 + 4 * number
            bench.caller.head(stream, call_fields(METHOD, (b"grpc-timeout", b"1n")))
            bench.loop.fire()
            bench.caller.head(stream + 2, call_fields())
            bench.caller.data(stream + 2, b"\0\xff\xff\xff\xff")
        assert bench.outcomes == {"deadline_exceeded": 26, "body_too_large": 25}
        assert not bench.caller.transport.half_closed


def test_while_streams_are_refused_others_go_on_and_a_while_later_none_is() -> None:
    with grpc_bench(limits=Limits(early_resets_per_s=50)) as bench:
        worker = bench.call(1)
        for number in range(60):
            at_once(bench, 3 + 2 * number)
        assert refused(bench) == 9
        bench.answer(worker)
        assert bench.outcomes == {"ok": 1, "client_abort": 51}
        bench.pass_time(0.25)
        bench.answer(bench.call(301), 1 + 2 * 52)  # on the same connection, behind the 52 that were taken on
        assert bench.outcomes["ok"] == 2


def test_calls_whose_deadline_passes_as_a_worker_stands_still_are_no_noise() -> None:
    """Ninety at once, each given up by its caller after 0.2 s: fifteen times as many as may be given up early."""
    with grpc_bench(limits=Limits(early_resets_per_s=90)) as bench:
        stream = 1
        for _ in range(15):
            for _ in range(90):
                bench.caller.head(stream, call_fields(METHOD, (b"grpc-timeout", b"200m")))
                stream += 2
            bench.now += 0.1999
            for number in range(90):
                bench.caller.reset(stream - 2 - 2 * number)
        assert refused(bench) == 0
        assert bench.outcomes == {"client_abort": 15 * 90}
        assert not bench.caller.transport.half_closed


def test_a_reset_weighs_what_was_left_of_the_time() -> None:
    with grpc_bench(limits=Limits(early_resets_per_s=50)) as bench:
        for number in range(100):
            bench.caller.head(1 + 2 * number, call_fields())
            bench.now += 0.075
            bench.caller.reset(1 + 2 * number)
        assert refused(bench) == 0
        for number in range(100, 150):
            at_once(bench, 1 + 2 * number)
        assert refused(bench) == 50 - 26


def test_resets_that_cross_answers_are_no_noise_but_resets_of_nothing_are() -> None:
    with grpc_bench(limits=Limits(early_resets_per_s=1)) as bench:
        for number in range(NOISE_BURST + 200):
            stream = 1 + 2 * number
            worker = bench.call(stream)
            worker.head(stream, [(b":status", b"200"), (b"grpc-status", b"0")], end=True)
            bench.caller.reset(stream)
        assert refused(bench) == 0
        assert bench.outcomes == {"ok": NOISE_BURST + 200}
        bench.caller.send(frames.reset_frame(1, Code.CANCEL) * (NOISE_BURST + 1))
        assert goaway(bench.caller) is Code.ENHANCE_YOUR_CALM


def test_an_answer_that_has_begun_may_be_given_up_at_once() -> None:
    with grpc_bench(limits=Limits(early_resets_per_s=1)) as bench:
        for number in range(20):
            stream = 1 + 2 * number
            bench.call(stream).head(stream, [(b":status", b"200")])
            bench.caller.reset(stream)
        assert refused(bench) == 0


def test_a_trusted_proxy_in_front_carries_many_callers() -> None:
    with grpc_bench(limits=Limits(early_resets_per_s=20)) as bench:
        bench.caller = bench.connect(address="10.1.2.3", rules=ListenerRules(trusted_networks=("10.0.0.0/8",)))
        for number in range(210):
            at_once(bench, 1 + 2 * number)
        assert refused(bench) == 210 - 201


@pytest.mark.parametrize("end", [True, False])
def test_data_behind_a_stream_s_end(end: bool) -> None:
    with grpc_bench() as bench:
        worker = bench.call(1)
        bench.caller.data(1, b"more", end=end)
        assert [(one.stream, one.code) for one in bench.caller.got(frames.RST_STREAM)] == [(1, Code.STREAM_CLOSED)]
        assert worker.got(frames.RST_STREAM)
        bench.answer(bench.call(3), 3)
        bench.caller.take()
        bench.caller.data(3, b"more")
        assert [(one.stream, one.code) for one in bench.caller.got(frames.RST_STREAM)] == [(3, Code.STREAM_CLOSED)]
        bench.caller.head(3, call_fields())
        assert goaway(bench.caller) is Code.STREAM_CLOSED


def test_stream_ids_only_rise() -> None:
    with grpc_bench() as bench:
        bench.answer(bench.call(5))
        bench.caller.take()
        bench.caller.head(3, call_fields())
        assert goaway(bench.caller) is Code.STREAM_CLOSED


def test_a_call_that_is_refused_is_read_no_further() -> None:
    with grpc_bench(default=False) as bench:
        bench.caller.head(1, call_fields(INFER))
        part = b"\0\0\0\0\0" * 3000
        for _ in range(WINDOW // len(part) + 1):
            bench.caller.data(1, part)
        assert [(one.stream, one.code) for one in bench.caller.got(frames.RST_STREAM)] == [(1, Code.NO_ERROR)]
        assert bench.outcomes == {"no_route": 1}


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
