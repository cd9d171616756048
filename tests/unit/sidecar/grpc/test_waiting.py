"""Calls that wait for room, or for a replica."""

from __future__ import annotations

from dataclasses import replace

from router.admission import Refusal
from router.model import EndpointRecord, EndpointSeen, Replica, State
from router.policy import ModelPolicy, OnNoCandidate, Policies
from sidecar.grpc.statuses import Status
from sidecar.http1.forwarding import ListenerRules
from sidecar.http2 import frames
from sidecar.http2.frames import Code
from sidecar.settings import Admission, Model, ModelAdmission, Priority, Tenant, Wait
from sidecar.telemetry.page import MODEL_QUEUE_NOW, MODEL_TURNED_AWAY, REFUSAL_WORDS
from tests.support.grpc_by_hand import GrpcBench, Peer, call_fields, grpc_bench, message

M = ModelPolicy("m", default=True)
PATIENT = Admission(queue_wait_s=60.0)


def one_each(bench: GrpcBench, admission: Admission = PATIENT, *, model: ModelPolicy = M) -> None:
    """Let each worker have one call at a time."""
    bench.cluster.configure(Policies(requests_per_endpoint=1), (model, ModelPolicy("n")), bench.now)
    bench.plane.admission.configure(admission, (Model(name="m"),))


def waiting(bench: GrpcBench) -> int:
    return sum(int(bench.plane.words[row + MODEL_QUEUE_NOW]) for _, row in bench.plane.page.models())


def turned_away(bench: GrpcBench, kind: int = 0) -> dict[Refusal, int]:
    counts = dict.fromkeys(Refusal, 0)
    for _, row in bench.plane.page.models():
        for index, refusal in enumerate(Refusal):
            counts[refusal] += int(bench.plane.words[row + MODEL_TURNED_AWAY + kind * REFUSAL_WORDS + index])
    return {refusal: count for refusal, count in counts.items() if count}


def status(peer: Peer) -> tuple[int, bytes]:
    head = peer.got(frames.HEADERS)[-1]
    return int(head.value(b"grpc-status")), head.value(b"warmroute-outcome")


def fill(bench: GrpcBench) -> tuple[Peer, Peer]:
    """Occupy both workers with calls 1 and 3."""
    return bench.call(1), bench.call(3)


def test_a_call_waits_until_another_has_ended() -> None:
    with grpc_bench() as bench:
        one_each(bench)
        first, second = fill(bench)
        assert first is not second
        bench.call(5, b"waits")
        assert waiting(bench) == 1
        assert bench.in_flight == 2
        bench.answer(first, 1)
        bench.loop.run_soon()
        assert waiting(bench) == 0
        assert bench.in_flight == 2
        assert first.got(frames.DATA)[-1].payload.endswith(b"waits")
        bench.answer(second, 1)
        bench.answer(first, 3)
        assert bench.outcomes == {"ok": 3}


def test_a_retry_waits_for_room() -> None:
    with grpc_bench(idempotent=True) as bench:
        one_each(bench, model=replace(M, idempotent=True))
        first, second = fill(bench)
        second.reset(1, Code.INTERNAL_ERROR)
        bench.call(5)
        bench.now += 0.01
        bench.loop.fire()
        assert waiting(bench) == 1
        bench.answer(first, 1)
        bench.loop.run_soon()
        assert (waiting(bench), bench.in_flight) == (0, 2)
        for worker, stream in ((first, 3), (second, 3)):
            bench.answer(worker, stream)
        assert bench.outcomes == {"ok": 3}


def test_a_retry_whose_turn_does_not_come_says_how_it_failed() -> None:
    with grpc_bench(idempotent=True) as bench:
        one_each(bench, Admission(queue_wait_s=0.05), model=replace(M, idempotent=True))
        first, second = fill(bench)
        second.reset(1, Code.INTERNAL_ERROR)
        bench.call(5)
        bench.now += 0.01
        bench.loop.fire()
        bench.caller.take()
        bench.now += 0.05
        bench.loop.fire()
        assert status(bench.caller) == (Status.INTERNAL, b"upstream_protocol")
        assert turned_away(bench) == {Refusal.TIMEOUT: 1}
        bench.answer(first, 1)
        bench.answer(second, 3)


def test_the_longest_wait() -> None:
    with grpc_bench() as bench:
        one_each(bench, Admission(queue_wait_s=0.05))
        first, second = fill(bench)
        bench.call(5)
        bench.caller.take()
        bench.now += 0.05
        bench.loop.fire()
        assert status(bench.caller) == (Status.UNAVAILABLE, b"overloaded")
        assert turned_away(bench) == {Refusal.TIMEOUT: 1}
        bench.answer(first, 1)
        bench.answer(second, 1)


def test_a_deadline_in_the_queue() -> None:
    with grpc_bench() as bench:
        one_each(bench)
        first, second = fill(bench)
        bench.call(5, b"x", (b"grpc-timeout", b"100m"))
        assert waiting(bench) == 1
        bench.caller.take()
        bench.now += 0.1
        bench.loop.fire()
        assert status(bench.caller) == (Status.DEADLINE_EXCEEDED, b"deadline_exceeded")
        assert turned_away(bench) == {Refusal.DEADLINE: 1}
        bench.answer(first, 1)
        bench.answer(second, 1)


def test_a_caller_that_gives_up_leaves_the_queue() -> None:
    with grpc_bench() as bench:
        one_each(bench)
        first, second = fill(bench)
        bench.call(5)
        bench.caller.reset(5)
        assert waiting(bench) == 0
        assert turned_away(bench) == {Refusal.LEFT: 1}
        bench.answer(first, 1)
        bench.answer(second, 1)
        assert bench.outcomes == {"ok": 2, "client_abort": 1}


def test_classes_and_tenants_of_calls() -> None:
    admission = Admission(
        queue_wait_s=60, queue_requests=1, priority=Priority(classes={"gold": 1}), tenant=Tenant(header="x-tenant")
    )
    with grpc_bench() as bench:
        one_each(bench, admission)
        bench.caller = bench.connect(rules=ListenerRules(trusted_networks=("10.0.0.0/8",)), address="10.0.0.1")
        first, second = fill(bench)
        bench.call(5)
        bench.caller.take()
        bench.call(7, b"gold", (b"warmroute-priority", b"gold"), (b"x-tenant", b"t"))
        assert status(bench.caller) == (Status.UNAVAILABLE, b"overloaded")
        assert turned_away(bench) == {Refusal.DISPLACED: 1}
        bench.answer(first, 1)
        bench.loop.run_soon()
        assert first.got(frames.DATA)[-1].payload.endswith(b"gold")
        bench.answer(first, 3)
        bench.answer(second, 1)


def test_a_models_own_limit_counts_calls() -> None:
    with grpc_bench() as bench:
        limited = (Model(name="m", admission=ModelAdmission(requests=1)),)
        bench.plane.admission.configure(PATIENT, limited)
        bench.cluster.configure(Policies(), (M, ModelPolicy("n")), bench.now)
        worker = bench.call(1)
        bench.call(3, b"waits")
        assert (bench.in_flight, waiting(bench)) == (1, 1)
        bench.answer(worker, 1)
        bench.loop.run_soon()
        assert (bench.in_flight, waiting(bench)) == (1, 0)
        bench.caller.reset(3)
        bench.loop.run_soon()
        worker = bench.call(5)
        assert bench.in_flight == 1  # its place was given back
        bench.answer(worker, max(one.stream for one in worker.got(frames.HEADERS)))
        bench.plane.admission.configure(
            Admission(queue_wait_s=0), (Model(name="m", admission=ModelAdmission(requests=1)),)
        )
        worker = bench.call(7)
        bench.caller.take()
        bench.call(9)
        assert status(bench.caller) == (Status.UNAVAILABLE, b"overloaded")
        bench.answer(worker, max(one.stream for one in worker.got(frames.HEADERS)))


def test_a_call_waits_for_a_replica_for_longer_than_for_an_answer() -> None:
    with grpc_bench() as bench:
        model = replace(M, on_no_candidate=OnNoCandidate.WAIT)
        one_each(bench, model=model)
        bench.plane.admission.configure(PATIENT, (Model(name="m", wait=Wait(max_s=3600)),))
        for name in ("o0", "o1"):
            replicas = (Replica("m", state=State.COLD),)
            record = EndpointRecord(name, "grpc://a.test:1", protocol="grpc", replicas=replicas, static=True)
            bench.cluster.apply(EndpointSeen(record, bench.now), bench.now)
        bench.caller.head(1, call_fields())
        bench.caller.data(1, message(b"x"), end=True)
        assert waiting(bench) == 1
        bench.pass_time(400.0, step_s=5.0)  # response_head_s is 30, stream_idle_s 300
        assert waiting(bench) == 1
        record = EndpointRecord("o0", "grpc://a.test:1", protocol="grpc", replicas=(Replica("m"),), static=True)
        bench.cluster.apply(EndpointSeen(record, bench.now), bench.now)
        bench.plane.admission.tick(bench.now)
        bench.loop.run_soon()
        assert bench.in_flight == 1
        bench.answer(bench.worker)
        assert bench.outcomes == {"ok": 1}
