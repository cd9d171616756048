"""Calls that name no version: divided over those of a split, by a key in their metadata."""

from __future__ import annotations

from dataclasses import replace

from router.model import EndpointSeen, Replica
from router.policy import ModelPolicy, Policies, ServePolicy, ServeRule, VersionShare
from sidecar.grpc.health import serving
from sidecar.http2 import frames
from tests.support.grpc_by_hand import METHOD, GrpcBench, call_fields, grpc_bench, message

SPLIT = ServePolicy(ServeRule.SPLIT, shares=(VersionShare("1", 50), VersionShare("2", 50)), header="x-user")


def serve(bench: GrpcBench, policy: ServePolicy, *versions: str) -> None:
    """Have the workers hold these versions, each one."""
    for endpoint, version in zip(list(bench.cluster.endpoints.values()), versions, strict=True):
        record = replace(endpoint.record, replicas=(Replica("m", version),))
        bench.cluster.apply(EndpointSeen(record, bench.now), bench.now)
    bench.cluster.configure(Policies(), [ModelPolicy("m", default=True, serve=policy)], bench.now)


def asked(bench: GrpcBench, stream: int, *fields: tuple[bytes, bytes]) -> str:
    """Make a call and have it answered; return the endpoint that got it."""
    bench.call(stream, b"x", *fields)
    (name,) = [id_ for id_, endpoint in bench.cluster.endpoints.items() if endpoint.in_flight]
    for worker in bench.loop.workers:
        for head in worker.got(frames.HEADERS):
            bench.answer(worker, head.stream)
    return name


def test_calls_are_divided_by_their_key() -> None:
    with grpc_bench() as bench:
        serve(bench, SPLIT, "1", "2")
        first = [asked(bench, 2 * number + 1, (b"x-user", b"u%d" % number)) for number in range(16)]
        assert set(first) == set(bench.cluster.endpoints)
        again = [asked(bench, 2 * number + 101, (b"x-user", b"u%d" % number)) for number in range(16)]
        assert again == first
        assert bench.outcomes == {"ok": 32}
        assert serving(bench.grpc, "m", bench.now) == 1


def test_latest_and_one_version_hold_for_calls_too() -> None:
    with grpc_bench() as bench:
        serve(bench, ServePolicy(ServeRule.LATEST), "9", "10")
        newest = list(bench.cluster.endpoints)[1]
        assert {asked(bench, 2 * number + 1) for number in range(8)} == {newest}


def test_a_call_that_a_dead_version_never_began_goes_to_another() -> None:
    with grpc_bench() as bench:
        serve(bench, SPLIT, "1", "2")
        route = bench.cluster.route("m", "", "grpc")
        assert route is not None
        first, second = bench.cluster.endpoints
        keys = [b"u%d" % number for number in range(20)]
        rng = bench.plane.rng
        key = next(key for key in keys if bench.cluster.version_of(route, bench.now, rng, key).version == "2")
        bench.loop.refuse = 1
        bench.caller.head(1, call_fields(METHOD, (b"x-user", key)))
        bench.caller.data(1, message(b"x"), end=True)
        bench.now += 0.01
        bench.loop.fire()
        assert bench.cluster.endpoints[first].in_flight == 1
        bench.answer(bench.worker)
        assert bench.cluster.endpoints[second].quarantine.active
        assert asked(bench, 3, (b"x-user", key)) == first
        bench.now = bench.cluster.endpoints[second].quarantine.until
        assert asked(bench, 5, (b"x-user", key)) == second
        assert bench.outcomes == {"ok": 3}
