"""Calls go to replicas that are proven for their shape class, and by keys that stand in their message."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from warmroute_pb.v1 import open_inference_pb2 as wire

from router.model import EndpointSeen, Replica
from router.policy import BalancerName, KeyPolicy, ModelPolicy, Policies, ShapePolicy, ShardMode, ShardPolicy
from sidecar.grpc.phases import GATHERING
from sidecar.http2 import frames
from tests.support.grpc_by_hand import INFER, METHOD, GrpcBench, call_fields, grpc_bench, message

STREAM_INFER = INFER.replace(b"ModelInfer", b"ModelStreamInfer")
SHAPES = ShapePolicy("x-shape", (("small", 100), ("large", None)), (("small", 1), ("large", 32)))
INVALID_ARGUMENT = b"3"


def infer(batch: int = 1, *, id_: str = "", raw: int = 0, **parameters: str) -> bytes:
    request = wire.ModelInferRequest(model_name="m", id=id_)
    for name, value in parameters.items():
        request.parameters[name].string_param = value
    request.inputs.add(name="x", datatype="FP32", shape=[batch, 4])
    if raw:
        request.raw_input_contents.append(bytes(raw))
    data: bytes = request.SerializeToString()
    return data


def set_up(bench: GrpcBench, model: ModelPolicy, *held: Replica) -> None:
    for endpoint, replica in zip(list(bench.cluster.endpoints.values()), held, strict=True):
        bench.cluster.apply(EndpointSeen(replace(endpoint.record, replicas=(replica,)), bench.now), bench.now)
    bench.cluster.configure(Policies(), [model], bench.now)


def shaped(bench: GrpcBench, policy: ShapePolicy = SHAPES) -> None:
    """o0 is proven for small ones, o1 for large ones."""
    proven: tuple[dict[str, float], ...] = ({"small": 1.0, "large": 0.0}, {"small": 0.0, "large": 1.0})
    held = [Replica("m", warmth=tuple(sorted(one.items()))) for one in proven]
    set_up(bench, ModelPolicy("m", default=True, shapes=policy), *held)


def went_to(bench: GrpcBench) -> str:
    """Return the endpoint that has the call, and have it answered."""
    (name,) = [id_ for id_, endpoint in bench.cluster.endpoints.items() if endpoint.in_flight]
    for worker in bench.loop.workers:
        for head in worker.got(frames.HEADERS):
            bench.answer(worker, head.stream)
    assert bench.in_flight == 0
    return name


@pytest.mark.parametrize("path", [INFER, STREAM_INFER])
@pytest.mark.parametrize(("batch", "to"), [(1, "o0"), (2, "o1"), (32, "o1"), (0, "o0"), (33, "o0")])
def test_a_call_goes_to_a_replica_proven_for_its_batch(path: bytes, batch: int, to: str) -> None:
    with grpc_bench() as bench:  # 33 is of no class: the first one, as these draws go
        shaped(bench)
        bench.call(1, infer(batch), path=path)
        assert went_to(bench) == to


def test_its_metadata_name_it_first_and_its_length_last() -> None:
    with grpc_bench() as bench:
        shaped(bench)
        bench.call(1, infer(1), (b"x-shape", b"large"), path=INFER)
        assert went_to(bench) == "o1"
        bench.call(3, infer(32), (b"x-shape", b"other"), path=INFER)
        assert went_to(bench) == "o0"
        bench.call(5, b"x", (b"x-shape", b"large"), path=METHOD)
        assert went_to(bench) == "o1"
        shaped(bench, ShapePolicy(None, (("small", 100), ("large", 100_000))))
        bench.call(7, infer(32, raw=50), path=INFER)
        assert went_to(bench) == "o0"
        bench.call(9, infer(1, raw=101), path=INFER)
        assert went_to(bench) == "o1"
        bench.call(11, b"x" * 101, path=METHOD)
        assert went_to(bench) == "o0"


def test_only_the_start_of_a_long_message_is_waited_for() -> None:
    whole = message(infer(32, raw=300_000))
    with grpc_bench() as bench:
        shaped(bench)
        bench.caller.head(1, call_fields(INFER))
        bench.caller.data(1, whole[:12])
        (call,) = bench.opened
        assert call.phase == GATHERING
        bench.caller.data(1, whole[12:60])
        assert bench.cluster.endpoints["o1"].in_flight == 1
        bench.check_windows()
        assert bench.grpc.gathered_bytes == 0
        sent = 60
        while sent < len(whole):
            part = whole[sent : sent + 16384]
            sent += len(part)
            bench.caller.data(1, part, end=sent == len(whole))
            bench.worker.send(frames.window_update(0, len(part)) + frames.window_update(1, len(part)))
        assert went_to(bench) == "o1"
        data = b"".join(one.payload for one in bench.worker.take() if one.kind == frames.DATA)
        assert data == b""  # taken above
        assert bench.outcomes == {"ok": 1}


def keyed(bench: GrpcBench, json: str) -> None:
    policy = ModelPolicy("m", default=True, key=KeyPolicy(json=json), shards=ShardPolicy(ShardMode.KEYED, 2))
    set_up(bench, policy, Replica("m", shard=0, shard_count=2), Replica("m", shard=1, shard_count=2))


@pytest.mark.parametrize(
    ("json", "made"),
    [("id", lambda key: {"id_": key}), ("parameters.tenant", lambda key: {"tenant": key})],
    ids=["id", "parameter"],
)
def test_the_key_of_a_shard_stands_in_the_message_as_it_does_in_json(json: str, made: Any) -> None:
    with grpc_bench() as bench:
        keyed(bench, json)
        route = bench.cluster.route("m", "", "grpc")
        assert route is not None
        seen = set()
        for number in range(12):
            key = f"k{number}"
            bench.call(2 * number + 1, infer(**made(key)), path=INFER)
            shard = bench.cluster.shard_route(route, key.encode()).shard
            assert went_to(bench) == f"o{shard}"
            seen.add(shard)
        assert seen == {0, 1}


@pytest.mark.parametrize(("path", "body"), [(INFER, infer()), (METHOD, b"x")])
def test_a_call_without_its_key_is_refused_and_says_where_it_belongs(path: bytes, body: bytes) -> None:
    with grpc_bench() as bench:
        keyed(bench, "parameters.tenant")
        bench.caller.head(1, call_fields(path))
        bench.caller.data(1, message(body), end=True)
        fields = dict(bench.caller.got(frames.HEADERS)[-1].fields)
        assert fields[b"grpc-status"] == INVALID_ARGUMENT
        assert fields[b"grpc-message"].startswith(b"malformed or ambiguous call: ")
        assert fields[b"grpc-message"].endswith(b"a call has its key in the message of ModelInfer")


def test_a_balancer_goes_by_such_a_key_too() -> None:
    with grpc_bench() as bench:
        policy = ModelPolicy("m", default=True, balancer=BalancerName.KEYED, key=KeyPolicy(json="id"))
        set_up(bench, policy, Replica("m"), Replica("m"))
        first = []
        for turn in range(2):
            for number in range(12):
                bench.call(2 * (12 * turn + number) + 1, infer(id_=f"k{number}"), path=INFER)
                first.append(went_to(bench))
        assert first[:12] == first[12:]
        assert set(first) == {"o0", "o1"}
