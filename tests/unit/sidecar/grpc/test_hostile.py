"""Peers that break HTTP/2: each ends as RFC 9113 says, and costs no more than its own connection."""

from __future__ import annotations

import struct

import pytest

from sidecar.http2 import frames
from sidecar.http2.connection import (
    NOISE_BURST,
)
from sidecar.http2.frames import PREFACE, WINDOW, Code, frame
from sidecar.settings import Limits, Timeouts
from sidecar.telemetry.page import Scalar
from tests.support.grpc_by_hand import INFER, call_fields, goaway, grpc_bench, message, setting

H, D = frames.HEADERS, frames.DATA

ALL = frames.END_HEADERS | frames.END_STREAM

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
        bench.caller.head(1, call_fields(INFER.replace(b"ModelInfer", b"ModelStreamInfer")))
        part = b"\0\0\0\0\0" * 3000
        for _ in range(WINDOW // len(part) + 1):
            bench.caller.data(1, part)
        assert [(one.stream, one.code) for one in bench.caller.got(frames.RST_STREAM)] == [(1, Code.NO_ERROR)]
        assert bench.outcomes == {"no_route": 1}
