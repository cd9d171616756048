"""Injected faults over gRPC, frame by frame: which calls are struck, how, and what is counted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.faults.injector import Injector
from sidecar.faults.kinds import KINDS
from sidecar.faults.rules import FaultRule
from sidecar.http1.forwarding import ListenerRules
from sidecar.http2 import frames
from sidecar.settings import Admission, Tenant, Timeouts, Trust
from sidecar.telemetry.page import Page, Scalar
from tests.support.grpc_by_hand import METHOD, GrpcBench, call_fields, grpc_bench, message, status


def inject(bench: GrpcBench, kind: str, **fields: object) -> Injector:
    rule = FaultRule(**({"id": "f", "kind": kind, "ratio": 1.0, "until": 1e9} | fields))  # type: ignore[arg-type]
    made = bench.plane.faults = Injector(bench.plane)
    made.put((rule,))
    return made


def ask(bench: GrpcBench, stream: int = 1, *more: tuple[bytes, bytes]) -> None:
    bench.caller.head(stream, call_fields(METHOD, *more))
    bench.caller.data(stream, message(b"ask"), end=True)


def scalar(bench: GrpcBench, member: Scalar) -> int:
    return int(bench.plane.words[Page.scalar(member)])


@pytest.mark.parametrize(("fields", "code"), [({}, 14), ({"status": 404}, 12), ({"grpc_status": 9}, 9)])
def test_a_call_is_aborted_and_nobody_asked(fields: dict[str, object], code: int) -> None:
    with grpc_bench() as bench:
        injector = inject(bench, "abort", **fields)
        ask(bench)
        end = bench.caller.only(frames.HEADERS)
        assert (end.value(b"grpc-status"), end.value(b"grpc-message")) == (b"%d" % code, b"injected fault f")
        assert bench.loop.workers == []
        assert bench.outcomes == {"fault": 1}
        assert injector.under_way == {}
        assert scalar(bench, Scalar.FAULTS_ABORT_TOTAL) == scalar(bench, Scalar.FAULTS_INJECTED_TOTAL) == 1


def test_a_call_is_late() -> None:
    with grpc_bench() as bench:
        injector = inject(bench, "delay", delay_ms=200.0)
        ask(bench)
        assert bench.loop.workers == []
        bench.now += 0.2
        bench.loop.fire()
        bench.answer(bench.worker)
        assert (bench.results, bench.outcomes) == ({"success": 1}, {"ok": 1})
        assert injector.under_way == {}
        assert scalar(bench, Scalar.FAULTS_FAILED_TOTAL) == 0
        (route,) = bench.cluster.endpoints["o0"].candidates.values()
        assert route.latency.ewma_ms == pytest.approx(200, rel=0.5)  # it is the endpoint's time


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_reset_call_is_tried_again_where_that_is_safe(idempotent: bool) -> None:
    with grpc_bench(idempotent=idempotent) as bench:
        inject(bench, "reset", direction="request", endpoint="o0")
        ask(bench)
        bench.now += 0.01
        bench.loop.fire()
        if idempotent:
            bench.answer(bench.worker)
            assert (bench.results, bench.outcomes) == ({"reset": 1, "success": 1}, {"ok": 1})
        else:
            end = bench.caller.only(frames.HEADERS)
            assert end.value(b"warmroute-outcome") == b"upstream_reset"
            assert b"injected fault f" in end.value(b"grpc-message")
            assert (bench.results, bench.outcomes) == ({"reset": 1}, {"fault": 1})
        assert scalar(bench, Scalar.FAULTS_FAILED_TOTAL) == 1


def test_a_call_that_is_lost_ends_with_its_times() -> None:
    with grpc_bench(timeouts=Timeouts(response_head_s=1.0)) as bench:
        injector = inject(bench, "black_hole")
        ask(bench)
        bench.pass_time(1.5)
        assert status(bench.caller)[1] == "upstream_timeout"
        assert (bench.results, bench.outcomes) == ({"head_timeout": 1}, {"fault": 1})
        assert injector.under_way == {}


def test_a_caller_that_leaves_takes_its_fault_along() -> None:
    with grpc_bench() as bench:
        injector = inject(bench, "delay", delay_ms=5000.0)
        ask(bench)
        assert len(injector.under_way) == 1
        bench.caller.reset(1)
        assert injector.under_way == {}
        assert bench.outcomes == {"client_abort": 1}


ASK = message(b"ask")
TOLD = message(b"answer")


def told(bench: GrpcBench, stream: int = 1) -> tuple[bytes, int | None]:
    """Return the bytes of the answer that the caller got, and its status where it has one."""
    seen = [one for one in bench.caller.take() if one.stream == stream]
    data = b"".join(one.payload for one in seen if one.kind == frames.DATA)
    ends = [one for one in seen if one.kind == frames.HEADERS and one.end]
    return data, int(ends[0].value(b"grpc-status")) if ends else None


def asked(bench: GrpcBench, stream: int = 1) -> list[bytes]:
    """Return the DATA that the worker got."""
    return [one.payload for one in bench.worker.got(frames.DATA) if one.stream == stream]


@pytest.mark.parametrize(
    ("kind", "fields", "got", "results"),
    [
        ("reset", {}, (b"", 14), {"reset": 1}),
        ("reset", {"after_bytes": 7}, (TOLD[:7], 14), {"cut": 1}),
        ("truncate", {"after_bytes": 2}, (TOLD[:7], 14), {"cut": 1}),
        ("cut_stream", {"after_events": 1}, (TOLD, 14), {"cut": 1}),
        ("corrupt", {}, (TOLD[:5] + b"\x9enswer", 0), {"success": 1}),
        ("slicing", {"piece_bytes": 1}, (TOLD, 0), {"success": 1}),
    ],
)
def test_an_answer_is_harmed(
    kind: str, fields: dict[str, object], got: tuple[bytes, int], results: dict[str, int]
) -> None:
    with grpc_bench() as bench:
        injector = inject(bench, kind, direction="response", **fields)
        ask(bench)
        bench.answer(bench.worker, body=b"answer")
        assert told(bench) == got
        assert bench.results == results
        assert bench.outcomes == ({"ok": 1} if got[1] == 0 else {"fault": 1})
        assert injector.under_way == {}
        assert scalar(bench, Scalar.FAULTS_FAILED_TOTAL) == (got[1] != 0)


@pytest.mark.parametrize(
    ("kind", "fields", "got"),
    [
        ("corrupt", {}, [ASK[:5] + b"\x9esk", b""]),
        ("slicing", {"piece_bytes": 3}, [ASK[:3], ASK[3:6], ASK[6:], b""]),
    ],
)
def test_a_request_is_harmed(kind: str, fields: dict[str, object], got: list[bytes]) -> None:
    with grpc_bench() as bench:
        inject(bench, kind, direction="request", **fields)
        ask(bench)
        assert asked(bench) == got
        bench.answer(bench.worker)
        assert bench.outcomes == {"ok": 1}


@pytest.mark.parametrize("kind", ["reset", "black_hole"])
def test_a_request_breaks_off_in_its_middle(kind: str) -> None:
    with grpc_bench(timeouts=Timeouts(response_head_s=1.0)) as bench:
        inject(bench, kind, direction="request", after_bytes=6)
        ask(bench)
        bench.pass_time(1.5)
        seen = bench.worker.take()
        assert b"".join(one.payload for one in seen if one.kind == frames.DATA) == ASK[:6]
        assert [one.code for one in seen if one.kind == frames.RST_STREAM] == [frames.Code.CANCEL]
        assert bench.outcomes == {"fault": 1}
        assert bench.results == ({"reset": 1} if kind == "reset" else {"head_timeout": 1})


@pytest.mark.parametrize(("kind", "late"), [("delay", b""), ("first_byte", b""), ("slow_close", TOLD)])
def test_an_answer_is_late(kind: str, late: bytes) -> None:
    with grpc_bench() as bench:
        inject(bench, kind, direction="response", delay_ms=300.0)
        ask(bench)
        bench.answer(bench.worker, body=b"answer")
        assert told(bench) == (late, None)
        bench.now += 0.2
        bench.loop.fire()
        assert told(bench) == (b"", None)
        bench.now += 0.2
        bench.loop.fire()
        assert told(bench) == (TOLD.removeprefix(late), 0)
        assert bench.outcomes == {"ok": 1}


def test_a_narrow_way_gives_windows_back_as_bytes_pass() -> None:
    with grpc_bench() as bench:
        inject(bench, "bandwidth", direction="request", bytes_per_s=100_000.0)
        bench.caller.head(1, call_fields(METHOD))
        big = message(b"x" * 60_000)
        for start in range(0, len(big), 16_000):
            bench.caller.data(1, big[start : start + 16_000], end=start + 16_000 >= len(big))
        bench.check_windows()
        first = len(b"".join(asked(bench)))
        assert first < 8_000
        for _ in range(8):
            bench.now += 0.1
            bench.loop.fire()
            bench.check_windows()
        assert first + len(b"".join(asked(bench))) == len(big)
        bench.answer(bench.worker)
        assert bench.outcomes == {"ok": 1}


def test_lost_bytes_of_a_request_are_given_back_as_window() -> None:
    with grpc_bench() as bench:
        inject(bench, "black_hole", direction="request", after_bytes=5)
        bench.caller.head(1, call_fields(METHOD))
        for _ in range(8):
            bench.caller.data(1, message(b"x" * 16_000))
        updates = [one for one in bench.caller.got(frames.WINDOW_UPDATE) if one.stream == 1]
        assert sum(one.code for one in updates) > 90_000
        assert len(b"".join(asked(bench))) == 5
        bench.caller.reset(1)


def test_lost_bytes_of_an_answer_are_given_back_as_window() -> None:
    with grpc_bench() as bench:
        inject(bench, "black_hole", direction="response", after_bytes=5)
        bench.caller.head(1, call_fields(METHOD))
        bench.caller.data(1, ASK, end=True)
        bench.worker.head(1, [(b":status", b"200"), (b"content-type", b"application/grpc")])
        for _ in range(8):
            bench.worker.data(1, b"x" * 16_000)
        updates = [one for one in bench.worker.got(frames.WINDOW_UPDATE) if one.stream == 1]
        assert sum(one.code for one in updates) > 90_000
        assert told(bench) == (b"xxxxx", None)
        bench.caller.reset(1)
        assert bench.worker.only(frames.RST_STREAM).code == frames.Code.CANCEL
        assert bench.outcomes == {"client_abort": 1}


def test_other_calls_of_the_connection_are_left_alone() -> None:
    with grpc_bench() as bench:
        inject(bench, "cut_stream", after_events=1, header="x-drill")
        ask(bench, 1, (b"x-drill", b"1"))
        ask(bench, 3)
        assert len(bench.loop.workers) == 1
        worker = bench.worker
        for stream in (1, 3):
            worker.head(stream, [(b":status", b"200"), (b"content-type", b"application/grpc")])
            worker.data(stream, TOLD)
        assert [(one.stream, one.code) for one in worker.got(frames.RST_STREAM)] == [(1, frames.Code.CANCEL)]
        worker.data(3, TOLD)
        worker.head(3, [(b"grpc-status", b"0")], end=True)
        seen = bench.caller.take()
        ends = {one.stream: one.value(b"grpc-status") for one in seen if one.kind == frames.HEADERS and one.end}
        assert ends == {1: b"14", 3: b"0"}
        assert b"".join(one.payload for one in seen if one.kind == frames.DATA and one.stream == 3) == TOLD * 2
        assert bench.outcomes == {"fault": 1, "ok": 1}


@pytest.mark.parametrize(("scope", "struck"), [("blue", True), ("red", False)])
def test_a_tenant_is_told_by_its_metadata(scope: str, struck: bool) -> None:
    with grpc_bench() as bench:
        bench.plane.admission.configure(Admission(tenant=Tenant(header="x-tenant"), trust=Trust.ANYBODY), ())
        inject(bench, "abort", tenant=scope, grpc_status=8)
        ask(bench, 1, (b"x-tenant", b"blue"))
        if not struck:
            bench.answer(bench.worker)
        assert told(bench)[1] == (8 if struck else 0)


def test_faults_act_together_in_their_order() -> None:
    with grpc_bench() as bench:
        injector = bench.plane.faults = Injector(bench.plane)
        more = {"ratio": 1.0, "until": 1e9}
        injector.put(
            (
                FaultRule(id="a", kind="delay", delay_ms=100.0, **more),  # type: ignore[arg-type]
                FaultRule(id="b", kind="abort", grpc_status=8, **more),  # type: ignore[arg-type]
            )
        )
        ask(bench)
        assert told(bench) == (b"", None)
        bench.now += 0.1
        bench.loop.fire()
        assert told(bench) == (b"", 8)
        assert bench.outcomes == {"fault": 1}


def test_an_answer_without_a_body_is_late_too() -> None:
    with grpc_bench() as bench:
        inject(bench, "first_byte", delay_ms=300.0)
        ask(bench)
        fields = [(b":status", b"200"), (b"content-type", b"application/grpc"), (b"grpc-status", b"5")]
        bench.worker.head(1, fields, end=True)
        assert told(bench) == (b"", None)
        bench.now += 0.3
        bench.loop.fire()
        assert told(bench) == (b"", 5)


def test_a_lost_connection_is_heard_of_behind_what_is_held_back() -> None:
    with grpc_bench() as bench:
        inject(bench, "delay", direction="response", delay_ms=300.0)
        ask(bench)
        worker = bench.worker
        worker.head(1, [(b":status", b"200"), (b"content-type", b"application/grpc")])
        worker.data(1, TOLD)
        worker.protocol.connection_lost(None)
        assert told(bench) == (b"", None)
        bench.now += 0.3
        bench.loop.fire()
        assert told(bench) == (TOLD, 14)
        assert bench.results == {"cut": 1}


def test_a_refused_connection_is_no_matter_of_the_fault() -> None:
    with grpc_bench() as bench:
        bench.loop.refuse = 2
        inject(bench, "slicing", piece_bytes=10)
        ask(bench)
        bench.now += 0.01
        bench.loop.fire()
        assert bench.results == {"connect_refused": 2}
        assert bench.outcomes == {"fault": 1}


def test_a_call_that_was_not_looked_at_meets_its_fault_on_the_next_connection() -> None:
    with grpc_bench() as bench:
        inject(bench, "corrupt", direction="response")
        ask(bench)
        first = bench.worker
        first.send(frames.goaway_frame(0, frames.Code.NO_ERROR))
        assert bench.worker is not first
        bench.answer(bench.worker, body=b"answer")
        assert told(bench) == (TOLD[:5] + b"\x9enswer", 0)
        assert scalar(bench, Scalar.FAULTS_INJECTED_TOTAL) == 1


FIELDS = [(b"x-envoy-fault-abort-grpc-request", b"8"), (b"warmroute-fault", b"abort; grpc_status=8")]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(("address", "struck"), [("10.1.2.3", True), ("192.0.2.1", False)])
def test_a_believed_caller_asks_for_a_fault(field: tuple[bytes, bytes], address: str, struck: bool) -> None:
    with grpc_bench() as bench:
        injector = bench.plane.faults = Injector(bench.plane)
        injector.headers = True
        bench.caller = bench.connect(rules=ListenerRules(trusted_networks=("10.0.0.0/8",)), address=address)
        ask(bench, 1, field)
        if struck:
            assert bench.caller.only(frames.HEADERS).value(b"grpc-status") == b"8"
        else:
            bench.answer(bench.worker)
        assert bench.outcomes == ({"fault": 1} if struck else {"ok": 1})


@pytest.mark.parametrize(
    ("field", "got"),
    [
        ((b"warmroute-fault", b"truncate; after_bytes=3"), (TOLD[:8], 14)),
        ((b"warmroute-fault", b"corrupt; every_bytes=4"), (TOLD[:5] + b"\x9ensw\x9ar", 0)),
        ((b"warmroute-fault", b"explode"), (TOLD, 0)),
        ((b"x-envoy-fault-throughput-response", b"100000"), (TOLD, 0)),
    ],
)
def test_any_kind_may_be_asked_for_in_metadata(field: tuple[bytes, bytes], got: tuple[bytes, int]) -> None:
    with grpc_bench() as bench:
        injector = bench.plane.faults = Injector(bench.plane)
        injector.headers = True
        bench.caller = bench.connect(rules=ListenerRules(trusted_networks=("10.0.0.0/8",)), address="10.1.2.3")
        ask(bench, 1, field)
        bench.answer(bench.worker, body=b"answer")
        bench.now += 0.1
        bench.loop.fire()
        assert told(bench) == got


KINDS_OF_FAULTS = st.one_of(
    st.tuples(st.just("delay"), st.fixed_dictionaries({"delay_ms": st.sampled_from([1.0, 300.0])})),
    st.tuples(st.just("abort"), st.just({})),
    *(
        st.tuples(st.just(kind), st.fixed_dictionaries({"after_bytes": st.sampled_from([0, 3, 20, 40_000])}))
        for kind in ("reset", "black_hole", "truncate")
    ),
    st.tuples(st.just("bandwidth"), st.just({"bytes_per_s": 50_000.0})),
    st.tuples(st.just("slicing"), st.fixed_dictionaries({"piece_bytes": st.sampled_from([1, 9, 9000])})),
    st.tuples(st.just("corrupt"), st.just({"every_bytes": 7})),
    st.tuples(st.just("cut_stream"), st.fixed_dictionaries({"after_events": st.integers(0, 2)})),
    *(st.tuples(st.just(kind), st.just({"delay_ms": 100.0})) for kind in ("first_byte", "slow_close")),
)
STEPS = st.sampled_from(
    [
        "data",
        "much",
        "end",
        "head",
        "answer",
        "much answer",
        "status",
        "reset",
        "worker reset",
        "goaway",
        "lost",
        "time",
    ]
)


@settings(max_examples=150)
@given(st.lists(st.tuples(KINDS_OF_FAULTS, st.booleans()), min_size=1, max_size=3), st.lists(STEPS, max_size=14))
def test_whatever_happens_meanwhile_windows_add_up_and_every_call_ends_once(
    faults: list[tuple[tuple[str, dict[str, float]], bool]], steps: list[str]
) -> None:
    with grpc_bench(idempotent=True, timeouts=Timeouts(response_head_s=2.0, stream_idle_s=4.0)) as bench:
        injector = bench.plane.faults = Injector(bench.plane)
        rules = [
            FaultRule(id="f", ratio=1.0, until=1e9, kind=kind, direction=direction, **fields)  # type: ignore[arg-type]
            for (kind, fields), asks in faults
            if (direction := "request" if asks else "response") in KINDS[kind].directions
        ]
        injector.put(rules)
        bench.caller.head(1, call_fields(METHOD))
        open_, answering = True, False
        for step in steps:
            workers = [one for one in bench.loop.workers if one in bench.live and not one.transport.closing]
            worker = workers[-1] if workers else None
            held: Any = None if worker is None else worker.protocol
            stream = max(held.streams, default=0) if held is not None else 0
            if step in ("data", "much", "end") and open_:
                bench.caller.data(1, message(b"x" * (12_000 if step == "much" else 5)), end=step == "end")
                open_ = step != "end"
            elif step == "reset":
                bench.caller.reset(1)
                open_ = False
            elif step == "time":
                bench.pass_time(0.5)
                bench.loop.fire()
            elif worker is not None and stream and not held.streams[stream].remote_done:
                if step == "head" and not answering:
                    worker.head(stream, [(b":status", b"200"), (b"content-type", b"application/grpc")])
                    answering = True
                elif step in ("answer", "much answer") and answering:
                    worker.data(stream, message(b"y" * (12_000 if step == "much answer" else 5)))
                elif step == "status" and answering:
                    worker.head(stream, [(b"grpc-status", b"0")], end=True)
                elif step == "worker reset":
                    worker.reset(stream)
                    answering = False
                elif step == "goaway":
                    worker.send(frames.goaway_frame(0, frames.Code.NO_ERROR))
                    answering = False
                elif step == "lost":
                    bench.live.discard(worker)
                    worker.protocol.connection_lost(None)
                    answering = False
            bench.check_windows()
        bench.caller.reset(1)
        bench.pass_time(6.0)
        bench.loop.fire()
        assert injector.under_way == {}
