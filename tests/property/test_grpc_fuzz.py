"""Whatever callers and workers say, in whatever order: nothing crashes, buffers stay bounded, all is counted."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from router.model import EndpointSeen, Replica
from router.policy import LadderPolicy, MirrorPolicy, ModelPolicy, Policies, ServePolicy, ServeRule, ShapePolicy
from sidecar.http1.ladders import Ladders
from sidecar.http2 import frames
from sidecar.http2.frames import PREFACE, WINDOW, frame
from sidecar.settings import (
    Admission,
    Cache,
    FallbackOn,
    Limits,
    Model,
    ModelAdmission,
    StaticAnswer,
    StaticCall,
    Timeouts,
)
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


MESSAGES = st.sampled_from([message(infer(b"m")), message(infer(b"m")), message(b"y" * 9000), message(b"x") * 2])
TURN = st.tuples(st.just("turn"), st.sampled_from(["o0", "o1", "both"]), st.booleans())
ASKED = st.sampled_from([b"/inference.GRPCInferenceService/ModelInfer"] * 3 + [b"/test.Echo/Unary"])
ASK = st.tuples(st.just("ask"), ASKED, MESSAGES, st.integers(1, 20_000))
SERVE = st.tuples(
    st.just("serve"), st.sampled_from([b"0", b"0", b"14", b"8"]), MESSAGES, st.sampled_from([3, 3, 3, 0, 1, 2])
)
NEEDED = st.one_of(ASK, ASK, SERVE, SERVE, TURN, ACTIONS.map(tuple))  # mapped: one choice among these
BY_SHAPE = ShapePolicy("x-shape", (("small", 10), ("large", 10_000)), (("small", 1),))
MIRRORED = ServePolicy(ServeRule.ANY, mirror=MirrorPolicy("2", most=2, timeout_s=1.0))
CACHE = Cache(calls=("/inference.GRPCInferenceService/ModelInfer", "/test.Echo/Unary"))
STATIC = StaticAnswer(call=StaticCall(message=b64encode(b"declared").decode()))


def ask(bench: GrpcBench, path: bytes, body: bytes, cut: int) -> None:
    """Make a call as clients do, in two pieces where ``cut`` is in its data."""
    if bench.caller.ended():
        bench.caller = bench.connect()
    stream = bench.caller.protocol.last_id + 2 - (bench.caller.protocol.last_id == 0)  # type: ignore[attr-defined]
    bench.caller.head(stream, call_fields(path))
    for data in filter(None, (body[:cut], body[cut:])):
        bench.caller.data(stream, data, end=data is body[cut:] or cut >= len(body))


def serve(bench: GrpcBench, status: bytes, body: bytes, parts: int) -> None:
    """Have the workers answer what is asked of them: heads, messages and statuses, as many of these as ``parts``."""
    for worker in [peer for peer in bench.loop.workers if peer in bench.live]:
        for stream in list(worker.protocol.streams):  # type: ignore[attr-defined]
            if parts == 0:
                head = [(b":status", b"200"), (b"content-type", b"application/grpc"), (b"grpc-status", status)]
                worker.head(stream, head, end=True)
            if parts > 0:
                worker.head(stream, [(b":status", b"200"), (b"content-type", b"application/grpc")])
            if parts > 1:
                worker.data(stream, body)
            if parts > 2:
                worker.head(stream, [(b"grpc-status", status)], end=True)


@settings(max_examples=150)
@given(
    st.lists(NEEDED, min_size=8, max_size=40),
    st.booleans(),
    st.sets(st.sampled_from(["cache", "fallback", "static", "mirror", "shapes", "gate"])),
    st.sampled_from(["", "o0", "both"]),
    st.booleans(),
)
def test_nor_where_calls_need_more_than_a_pick(
    actions: list[tuple[object, ...]], idempotent: bool, needs: set[str], leaves: str, alone: bool
) -> None:
    limits = Limits(body_bytes=50_000, replay_bytes=10_000, head_bytes=1024, fields=20)
    timeouts = Timeouts(stream_idle_s=5.0, response_head_s=3.0, client_body_idle_s=2.0, keep_alive_s=8.0)
    model = Model(
        name="m",
        idempotent=idempotent,
        cache=Cache(calls=("/inference.GRPCInferenceService/ModelInfer", "/test.Echo/Unary"))
        if "cache" in needs
        else None,
        fallback=("n",) if "fallback" in needs else (),
        static_answer=STATIC if "static" in needs else None,
        fallback_on=tuple(FallbackOn),
        admission=ModelAdmission(requests=1 if "gate" in needs else None),
    )
    policy = ModelPolicy(
        "m",
        default=True,
        idempotent=idempotent,
        serve=MIRRORED if "mirror" in needs else ServePolicy(ServeRule.ANY),
        shapes=BY_SHAPE if "shapes" in needs else None,
    )
    with grpc_bench(limits=limits, timeouts=timeouts) as bench:
        ladder = LadderPolicy(hold_s=1.0, trial_s=0.0, successes=1)
        bench.plane.ladders = Ladders((model,), ladder, bench.plane.page, bench.now, Admission())
        bench.plane.admission.configure(Admission(), (model,))
        both, other = (Replica("m", "1"), Replica("m", "2")), Replica("n")
        held = {"o0": both, "o1": (other,)} if alone else {"o0": both[:1], "o1": (both[1], other)}
        for name, replicas in held.items():
            record = replace(bench.cluster.endpoints[name].record, replicas=replicas)
            bench.cluster.apply(EndpointSeen(record, bench.now), bench.now)
        bench.cluster.configure(Policies(), [policy, ModelPolicy("n")], bench.now)
        asked = ("ask", b"/inference.GRPCInferenceService/ModelInfer", message(infer(b"m")), 20_000)
        well: list[tuple[object, ...]] = [asked, ("serve", b"0", message(b"good"), 3), ("turn", leaves, True), asked]
        well.append(("serve", b"0", message(b"good"), 3))
        for action in well + actions if leaves else actions:
            match action:
                case ("turn", str(name), bool(away)):
                    for endpoint in list(bench.cluster.endpoints.values()):
                        if name in (endpoint.id, "both"):
                            record = replace(endpoint.record, draining=away)
                            bench.cluster.apply(EndpointSeen(record, bench.now), bench.now)
                case ("ask", bytes(path), bytes(body), int(cut)):
                    ask(bench, path, body, cut)
                case ("serve", bytes(status), bytes(body), int(parts)):
                    serve(bench, status, body, parts)
                case _:
                    act(bench, action)
            bench.check_windows()
            calls = [one.call for each in bench.grpc.connections for one in each.streams.values()]
            assert bench.grpc.gathered_bytes == sum(one._course.gathered for one in calls if one._course is not None)
            assert len(bench.plane.copies) == sum(bench.plane.copying.values()) <= 2
        bench.pass_time(1.0)
        for peer in [bench.caller, *bench.callers]:
            peer.protocol.connection_lost(None)
        for peer in list(bench.live):
            peer.protocol.connection_lost(None)
        bench.loop.fire()
        assert bench.grpc.gathered_bytes == 0
        assert not bench.plane.copies


@settings(max_examples=150)
@given(st.lists(st.one_of(st.binary(max_size=64), FRAMES), max_size=12), st.booleans())
def test_raw_bytes_from_a_stranger(pieces: list[bytes], preface: bool) -> None:
    with grpc_bench() as bench:
        peer = bench.connect(preface=False)
        for piece in [PREFACE] * preface + pieces:
            peer.send(piece)
        bench.pass_time(30.0)
        peer.protocol.connection_lost(None)
