"""Callers that begin and end calls to hurt: they are refused, then left, and cost nobody else a call."""

from __future__ import annotations

from sidecar.http1.forwarding import ListenerRules
from sidecar.http2 import frames
from sidecar.http2.connection import (
    NOISE_BURST,
)
from sidecar.http2.frames import Code
from sidecar.settings import Limits
from sidecar.telemetry.page import Scalar
from tests.support.grpc_by_hand import METHOD, GrpcBench, call_fields, goaway, grpc_bench

H, D = frames.HEADERS, frames.DATA

ALL = frames.END_HEADERS | frames.END_STREAM


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
