"""Whatever callers and workers say, in whatever order: nothing crashes, buffers stay bounded, all is counted."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.http2 import frames
from sidecar.http2.frames import PREFACE, WINDOW, frame
from sidecar.settings import Limits, Timeouts
from tests.support.grpc_by_hand import GrpcBench, Peer, call_fields, grpc_bench, infer, message

STREAMS = st.sampled_from([1, 1, 1, 3, 3, 5, 7, 2, 0, 99])
BODIES = st.sampled_from(
    [b"", message(b"x"), message(infer(b"n")), message(b"y" * 9000), message(b"z" * 70_000)[:16384], b"\0", b"\0\0\0\1"]
)
PATHS = st.sampled_from(
    [
        b"/test.Echo/Unary",
        b"/inference.GRPCInferenceService/ModelInfer",
        b"/grpc.health.v1.Health/Watch",
        b"/grpc.health.v1.Health/Check",
    ]
)
MORE = st.lists(
    st.sampled_from([(b"grpc-timeout", b"1m"), (b"grpc-timeout", b"9S"), (b"warmroute-model", b"n"), (b"X", b"y")]),
    max_size=2,
    unique=True,
)
STATUS = st.sampled_from([b"0", b"0", b"5", b"14", b"13", b"x"])

FRAMES = st.builds(
    frame,
    st.integers(0, 11),
    st.sampled_from([0, 1, 4, 5, 8, 13, 32, 37, 255]),
    STREAMS,
    st.one_of(
        st.binary(max_size=12), st.sampled_from([bytes(8), b"\0\0\0\1", b"\0\4\0\0\0\0", b"\0\4\0\1\0\0", b"\x82"])
    ),
)

ACTIONS = st.one_of(
    st.tuples(st.just("call"), STREAMS, PATHS, MORE, st.booleans()),
    st.tuples(st.just("data"), STREAMS, BODIES, st.booleans()),
    st.tuples(st.just("whole"), STREAMS, PATHS, BODIES),
    st.tuples(st.just("head"), STREAMS, st.booleans()),
    st.tuples(st.just("answer data"), STREAMS, BODIES, st.booleans()),
    st.tuples(st.just("trailers"), STREAMS, STATUS),
    st.tuples(st.just("reset"), st.booleans(), STREAMS, st.integers(0, 14)),
    st.tuples(st.just("window"), st.booleans(), STREAMS, st.integers(1, 1 << 20)),
    st.tuples(st.just("goaway"), st.booleans(), STREAMS),
    st.tuples(st.just("frame"), st.booleans(), FRAMES),
    st.tuples(st.just("bytes"), st.booleans(), st.binary(max_size=40)),
    st.tuples(st.just("full"), st.booleans(), st.booleans()),
    st.tuples(st.just("lost"), st.booleans()),
    st.tuples(st.just("stuck and refused"), STREAMS, PATHS, BODIES),
    st.tuples(st.just("time"), st.sampled_from([0.3, 0.3, 3.0, 12.0])),
    st.tuples(st.just("timers")),
    st.tuples(st.just("drain")),
)


def act(bench: GrpcBench, action: tuple[object, ...]) -> None:
    caller = bench.caller
    workers = [peer for peer in bench.loop.workers if peer in bench.live]
    match action:
        case ("call", int(stream), bytes(path), list(more), bool(end)):
            caller.head(stream, call_fields(path, *more), end=end)
        case ("data", int(stream), bytes(body), bool(end)):
            caller.data(stream, body, end=end)
        case ("whole", int(stream), bytes(path), bytes(body)):
            data = frame(frames.DATA, 1, stream, body)
            caller.send(caller.head_bytes(stream, call_fields(path)) + data)
        case ("stuck and refused", int(stream), bytes(path), bytes(body)):
            caller.head(stream, call_fields(path))
            calls = [one for connection in bench.grpc.connections for one in connection.streams.values() if one.call.up]
            for up in [one.call.up for one in calls]:
                up.connection.pause_writing()
            caller.data(stream, body)
            for up in [one.call.up for one in calls if one.call.up]:
                up.connection.data_received(frames.reset_frame(up.id, frames.Code.REFUSED_STREAM))
        case ("timers",):
            bench.now += 0.3
            bench.loop.fire()
        case ("time", float(seconds)):
            bench.pass_time(seconds)
        case ("drain",) if not bench.plane.draining:
            bench.plane.drain(bench.now)
            bench.loop.run_soon()
        case ("lost", True):
            caller.protocol.connection_lost(None)
            bench.caller = bench.connect()
        case (str(what), *rest):
            side: Peer | None = workers[-1] if workers else None
            if rest and isinstance(rest[0], bool) and what in ("reset", "window", "goaway", "frame", "bytes", "full"):
                side = caller if rest[0] else side
            if side is not None:
                _say(bench, side, what, rest)
    bench.loop.run_soon()


def _say(bench: GrpcBench, side: Peer, what: str, rest: list[object]) -> None:
    match what, *rest:
        case ("head", int(stream), bool(end)):
            side.head(stream, [(b":status", b"200"), (b"content-type", b"application/grpc")], end=end)
        case ("answer data", int(stream), bytes(body), bool(end)):
            side.data(stream, body, end=end)
        case ("trailers", int(stream), bytes(status)):
            side.head(stream, [(b"grpc-status", status)], end=True)
        case ("reset", bool(), int(stream), int(code)):
            side.reset(stream, code)
        case ("window", bool(), int(stream), int(by)):
            side.send(frames.window_update(stream, by))
        case ("goaway", bool(), int(stream)):
            side.send(frames.goaway_frame(stream, 0))
        case ("frame", bool(), bytes(data)) | ("bytes", bool(), bytes(data)):
            side.send(data)
        case ("full", bool(), bool(full)):
            if full:
                side.protocol.pause_writing()
            else:
                side.protocol.resume_writing()
        case ("lost", False):
            bench.live.discard(side)
            side.protocol.connection_lost(None)


@settings(max_examples=250)
@given(st.lists(ACTIONS, max_size=40), st.booleans(), st.booleans())
def test_nothing_that_is_said_breaks_anything(
    actions: list[tuple[object, ...]], default: bool, idempotent: bool
) -> None:
    limits = Limits(body_bytes=50_000, replay_bytes=10_000, head_bytes=1024, fields=20)
    timeouts = Timeouts(stream_idle_s=5.0, response_head_s=3.0, client_body_idle_s=2.0, keep_alive_s=8.0)
    with grpc_bench(limits=limits, timeouts=timeouts, default=default, idempotent=idempotent) as bench:
        for action in actions:
            act(bench, action)
            bench.check_windows()
            assert bench.buffered() <= 2 * 2 * (WINDOW + limits.replay_bytes) * (1 + bench.in_flight)
        bench.pass_time(1.0)
        for peer in [bench.caller, *bench.callers]:
            peer.protocol.connection_lost(None)
        for peer in list(bench.live):
            peer.protocol.connection_lost(None)
        bench.loop.fire()


@settings(max_examples=150)
@given(st.lists(st.one_of(st.binary(max_size=64), FRAMES), max_size=12), st.booleans())
def test_raw_bytes_from_a_stranger(pieces: list[bytes], preface: bool) -> None:
    with grpc_bench() as bench:
        peer = bench.connect(preface=False)
        for piece in [PREFACE] * preface + pieces:
            peer.send(piece)
        bench.pass_time(30.0)
        peer.protocol.connection_lost(None)
