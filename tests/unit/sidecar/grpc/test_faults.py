"""Injected faults over gRPC, frame by frame: which calls are struck, how, and what is counted."""

from __future__ import annotations

import pytest

from sidecar.faults.injector import Injector
from sidecar.faults.rules import FaultRule
from sidecar.http1.forwarding import ListenerRules
from sidecar.http2 import frames
from sidecar.settings import Timeouts
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
        inject(bench, "reset", endpoint="o0")
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


def test_kinds_that_need_bytes_leave_calls_alone() -> None:
    with grpc_bench() as bench:
        inject(bench, "truncate")
        bench.answer(bench.call())
        assert bench.outcomes == {"ok": 1}
        assert scalar(bench, Scalar.FAULTS_INJECTED_TOTAL) == 0


@pytest.mark.parametrize(("address", "struck"), [("10.1.2.3", True), ("192.0.2.1", False)])
def test_a_believed_caller_asks_for_a_fault(address: str, struck: bool) -> None:
    with grpc_bench() as bench:
        injector = bench.plane.faults = Injector(bench.plane)
        injector.headers = True
        bench.caller = bench.connect(rules=ListenerRules(trusted_networks=("10.0.0.0/8",)), address=address)
        ask(bench, 1, (b"x-envoy-fault-abort-grpc-request", b"8"))
        if struck:
            assert bench.caller.only(frames.HEADERS).value(b"grpc-status") == b"8"
        else:
            bench.answer(bench.worker)
        assert bench.outcomes == ({"fault": 1} if struck else {"ok": 1})
