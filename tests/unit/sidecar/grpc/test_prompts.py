"""Prefix affinity over gRPC: what of a message is its prompt, and that calls go by it as requests do."""

from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from warmroute_pb.v1 import open_inference_pb2 as wire

from router.affinity import blocks_of
from router.model import EndpointSeen, PrefixesSeen, Replica, State
from router.policy import AffinityPolicy, KeyPolicy, LadderPolicy, ModelPolicy, Policies, ShardMode, ShardPolicy
from sidecar.grpc.phases import GATHERING, WAITING
from sidecar.grpc.prompts import MOST_FIELDS, PromptReader
from sidecar.http1.ladders import Ladders
from sidecar.http2 import frames
from sidecar.settings import Admission, Model
from sidecar.telemetry.page import Scalar
from tests.support.grpc_by_hand import INFER, METHOD, GrpcBench, call_fields, grpc_bench, message
from tests.unit.sidecar.grpc.test_classes import went_to

if TYPE_CHECKING:
    from collections.abc import Callable

STREAM_INFER = INFER.replace(b"ModelInfer", b"ModelStreamInfer")
POLICY = AffinityPolicy(block_bytes=8, blocks=4, least_blocks=1, body_bytes=4096)
PROMPT = b"0123456789abcdef the rest of a prompt that is longer than its blocks"
Request = wire.ModelInferRequest


def add(
    request: Request,
    name: str = "text_input",
    *elements: bytes,
    raw: bool = False,
    datatype: str = "BYTES",
    region: str = "",
) -> None:
    tensor = request.inputs.add(name=name, datatype=datatype, shape=[len(elements)])
    if region:
        tensor.parameters["a"].bool_param = True
        tensor.parameters["shared_memory_region"].string_param = region
    elif raw:
        request.raw_input_contents.append(b"".join(struct.pack("<I", len(one)) + one for one in elements))
    else:
        tensor.contents.bytes_contents.extend(elements)


def asked(*elements: bytes, raw: bool = False, name: str = "text_input", datatype: str = "BYTES") -> Request:
    request = Request(model_name="m")
    add(request, name, *(elements or (PROMPT,)), raw=raw, datatype=datatype)
    return request


def found(data: bytes, encoding: bytes = b"", policy: AffinityPolicy = POLICY) -> bytes | None:
    reader = PromptReader(policy)
    assert reader.take([data], len(data), encoding, whole=True)
    return reader.blocks


def among_others(*, raw: bool) -> Request:
    """A request as to a server of language models: other inputs on both sides, outputs, parameters of its own."""
    request = Request(model_name="m", model_version="1", id="7")
    request.parameters["priority"].int64_param = 1
    add(request, "image", bytes(300), raw=raw)
    add(request, "in_shared_memory", region="a")
    add(request, "text_input", PROMPT, b"another one", raw=raw)
    add(request, "sampling_parameters", b"{}", raw=raw)
    request.outputs.add(name="text_output")
    return request


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("make", [asked, among_others])
def test_it_is_the_first_element_of_the_input_of_that_name(make: Callable[..., Request], *, raw: bool) -> None:
    assert found(message(make(raw=raw).SerializeToString())) == blocks_of(PROMPT, POLICY)


def test_its_name_is_configured() -> None:
    policy = replace(POLICY, input="anfrage-ä")
    data = message(asked(raw=True, name="anfrage-ä").SerializeToString())
    assert found(data, policy=policy) == blocks_of(PROMPT, POLICY)
    assert found(data) is None


def broken(kind: str) -> Request:
    """A message that protobuf reads, and that has no prompt."""
    request = asked(raw="raw" in kind)
    tensor = request.inputs[0]
    match kind:
        case "another type" | "another type, raw":
            tensor.datatype = "FP32"
        case "numbers":
            tensor.contents.Clear()
            tensor.contents.fp32_contents.extend([1.0] * 8)
        case "no contents":
            tensor.contents.Clear()
        case "no elements, raw":
            request.raw_input_contents[0] = b""
        case "a length cut short, raw":
            request.raw_input_contents[0] = b"\x01\0"
        case "an element cut short, raw":
            request.raw_input_contents[0] = struct.pack("<I", 100) + PROMPT
        case "too few raw contents, raw":
            request.raw_input_contents.pop()
        case "in shared memory, raw":
            tensor.parameters["shared_memory_region"].string_param = "a"
        case "another name":
            tensor.name = "text_inputs"
        case "short":
            tensor.contents.bytes_contents[0] = b"0123456"
        case "empty":
            tensor.contents.bytes_contents[0] = b""
        case "nothing":
            request.Clear()
    return request


KINDS = (
    "another type", "another type, raw", "numbers", "no contents", "no elements, raw", "a length cut short, raw",
    "an element cut short, raw", "too few raw contents, raw", "in shared memory, raw", "another name", "short", "empty",
    "nothing",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_prompt(kind: str) -> None:
    assert found(message(broken(kind).SerializeToString())) is None


@given(st.binary(max_size=300))
def test_no_bytes_break_it(data: bytes) -> None:
    found(message(data))
    found(data)
    reader = PromptReader(POLICY)
    reader.take([data], len(data), b"", whole=False)


@given(raw=st.booleans(), cut=st.integers(0, 1 << 20), flip=st.binary(min_size=1, max_size=1))
def test_a_message_that_was_damaged_has_a_prompt_or_none(*, raw: bool, cut: int, flip: bytes) -> None:
    whole = bytearray(message(among_others(raw=raw).SerializeToString()))
    whole[cut % len(whole)] = flip[0]
    found(bytes(whole))
    found(bytes(whole[: cut % len(whole)]))


@given(
    raw=st.booleans(),
    cuts=st.lists(st.integers(0, 1000), max_size=8),
    behind=st.sampled_from([b"", message(b"x"), b"\xff" * 40]),
)
def test_in_any_pieces_it_is_found_as_soon_as_it_is_there(*, raw: bool, cuts: list[int], behind: bytes) -> None:
    data = message(among_others(raw=raw).SerializeToString()) + behind
    last = data.index(PROMPT) + POLICY.block_bytes * POLICY.blocks
    reader = PromptReader(POLICY)
    seen: list[bytes] = []
    size = 0
    for cut in sorted({*cuts, last, len(data)}):
        if cut > size:
            seen.append(data[size:cut])
            size = cut
            assert reader.take(seen, size, b"", whole=False) == (size >= last)
    assert reader.blocks == blocks_of(PROMPT, POLICY)


def test_a_byte_at_a_time_is_no_more_work_than_a_frame_at_a_time() -> None:
    data = message(among_others(raw=True).SerializeToString())
    reader = PromptReader(POLICY)
    seen: list[bytes] = []
    joined = 0
    for at in range(len(data)):
        seen.append(data[at : at + 1])
        before = len(seen)
        if reader.take(seen, at + 1, b"", whole=False):
            break
        joined += len(seen) < before
    assert reader.blocks == blocks_of(PROMPT, POLICY)
    assert joined < 60  # fields, and where they end


def test_a_long_message_is_not_waited_for() -> None:
    head = message(asked(PROMPT + bytes(POLICY.body_bytes)).SerializeToString())
    reader = PromptReader(POLICY)
    assert reader.take([head[:5]], 5, b"", whole=False)
    assert reader.blocks is None


@pytest.mark.parametrize("inner", [False, True])
def test_of_many_small_fields_no_more_are_read_than_are_bounded(*, inner: bool) -> None:
    prompt = asked().SerializeToString()[3:]
    for many, expected in ((MOST_FIELDS - 8, blocks_of(PROMPT, POLICY)), (MOST_FIELDS, None)):
        fields = b"\x18\x01" * many
        before = b"\x2a" + bytes((len(fields) & 0x7F | 0x80, len(fields) >> 7)) + fields if inner else fields
        assert found(message(before + prompt)) == expected


@pytest.mark.parametrize(("encoding", "pack"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress)])
def test_a_packed_message_is_unpacked_once_it_is_whole(encoding: bytes, pack: Callable[[bytes], bytes]) -> None:
    data = message(pack(among_others(raw=True).SerializeToString()), compressed=True)
    reader = PromptReader(POLICY)
    assert not reader.take([data[:-1]], len(data) - 1, encoding, whole=False)
    assert reader.take([data], len(data), encoding, whole=False)
    assert reader.blocks == blocks_of(PROMPT, POLICY)
    other = PromptReader(POLICY)
    assert other.take([data[:5]], 5, b"zstd", whole=False)
    assert other.blocks is None
    assert found(message(b"\x1f\x8b no such thing", compressed=True), encoding) is None
    bomb = asked()
    add(bomb, "image", bytes(1 << 20))  # of which no more than body_bytes is unpacked
    assert found(message(pack(bomb.SerializeToString()), compressed=True), encoding) == blocks_of(PROMPT, POLICY)
    assert found(message(pack(asked(bytes(1 << 20)).SerializeToString()), compressed=True), encoding) is None
    late = Request(parameters={"x": wire.InferParameter(string_param="y" * 5000)})
    add(late, "text_input", PROMPT)
    assert found(message(pack(late.SerializeToString()), compressed=True), encoding) is None


# --- calls -----------------------------------------------------------------------------------------------------------

MODEL = ModelPolicy("m", default=True, affinity=POLICY)


def set_up(bench: GrpcBench, *models: ModelPolicy) -> None:
    bench.cluster.configure(Policies(), list(models), bench.now)


def totals(bench: GrpcBench) -> list[int]:
    bench.plane.flush(bench.now)
    members = (Scalar.AFFINITY_HITS_TOTAL, Scalar.AFFINITY_DECLINED_TOTAL, Scalar.AFFINITY_UNSEEN_TOTAL)
    return [int(bench.plane.words[bench.plane.page.scalar(member)]) for member in members]


def ask(bench: GrpcBench, stream: int, request: Request, path: bytes = INFER) -> str:
    bench.call(stream, request.SerializeToString(), path=path)
    return went_to(bench)


def learn(bench: GrpcBench, model: str, prompt: bytes, id_: str) -> None:
    """Have an endpoint known to have seen a prompt."""
    blocks = blocks_of(prompt, POLICY)
    assert blocks is not None
    epoch = bench.cluster.endpoints[id_].epoch
    bench.cluster.apply(PrefixesSeen(model, "", "grpc", None, ((blocks, id_, epoch),)), bench.now)


@pytest.mark.parametrize("path", [INFER, STREAM_INFER])
@pytest.mark.parametrize("raw", [False, True])
def test_calls_go_where_the_beginning_of_their_prompt_was_seen(path: bytes, *, raw: bool) -> None:
    with grpc_bench() as bench:
        set_up(bench, MODEL)
        learn(bench, "m", PROMPT, "o1")
        assert ask(bench, 1, asked(raw=raw), path) == "o1"
        assert ask(bench, 3, asked(PROMPT[:16] + b"which goes on otherwise", raw=raw), path) == "o1"
        assert ask(bench, 5, asked(b"another" + PROMPT, raw=raw), path) == "o0"  # the first drawn, in these tests
        assert totals(bench) == [2, 0, 1]
        assert ask(bench, 7, broken("another type, raw" if raw else "numbers"), path) == "o0"
        bench.call(9, asked(raw=raw).SerializeToString(), path=METHOD)
        assert went_to(bench) == "o0"
        assert totals(bench) == [2, 0, 1]


def test_of_a_long_prompt_no_more_is_waited_for_than_counts() -> None:
    with grpc_bench() as bench:
        set_up(bench, replace(MODEL, affinity=replace(POLICY, body_bytes=1 << 20)))
        learn(bench, "m", PROMPT, "o1")
        whole = message(asked(PROMPT + bytes(100_000), raw=True).SerializeToString())
        last = whole.index(PROMPT) + POLICY.block_bytes * POLICY.blocks
        bench.caller.head(1, call_fields(INFER))
        bench.caller.data(1, whole[:20])
        bench.caller.data(1, whole[20 : last - 1])
        (call,) = bench.opened
        assert (call.phase, bench.in_flight) == (GATHERING, 0)
        bench.check_windows()
        bench.caller.data(1, whole[last - 1 : last])
        assert (call.phase, bench.cluster.endpoints["o1"].in_flight) == (WAITING, 1)
        bench.check_windows()
        assert bench.grpc.gathered_bytes == 0
        for at in range(last, len(whole), 16384):
            part = whole[at : at + 16384]
            bench.caller.data(1, part, end=at + len(part) == len(whole))
            bench.worker.send(frames.window_update(0, len(part)) + frames.window_update(1, len(part)))
        went = b"".join(one.payload for one in bench.worker.take() if one.kind == frames.DATA)
        assert went == whole
        bench.answer(bench.worker)


def test_nobody_gets_more_calls_for_a_prompts_sake_than_its_share() -> None:
    with grpc_bench() as bench:
        set_up(bench, MODEL)
        learn(bench, "m", PROMPT, "o1")
        for stream in (1, 3, 5):
            bench.call(stream, asked().SerializeToString(), path=INFER)
        assert [bench.cluster.endpoints[id_].in_flight for id_ in ("o0", "o1")] == [1, 2]
        assert totals(bench) == [2, 1, 0]
        for worker in bench.loop.workers:
            for head in worker.got(frames.HEADERS):
                bench.answer(worker, head.stream)


def test_a_key_says_which_shard_has_a_call_and_its_prompt_who_of_that() -> None:
    with grpc_bench() as bench:
        split = ShardPolicy(ShardMode.KEYED, 2)
        set_up(bench, replace(MODEL, shards=split, key=KeyPolicy(json="id")))
        for shard, endpoint in enumerate(list(bench.cluster.endpoints.values())):
            held = (Replica("m", shard=shard, shard_count=2),)
            bench.cluster.apply(EndpointSeen(replace(endpoint.record, replicas=held), bench.now), bench.now)
        route = bench.cluster.route("m", "", "grpc")
        assert route is not None
        for stream in (1, 3, 5, 7):
            request = asked()
            request.id = f"user {stream}"
            assert ask(bench, stream, request) == f"o{bench.cluster.shard_route(route, request.id.encode()).shard}"
        hits, declined, unseen = totals(bench)
        assert (hits + unseen, declined) == (4, 0)
        assert unseen <= 2


@pytest.mark.parametrize("own", [None, replace(POLICY, input="other")])
def test_a_fallback_has_its_own_prompts(own: AffinityPolicy | None) -> None:
    """Nobody serves m any more: what answers instead goes by the prompt, where m does not or has another."""
    with grpc_bench() as bench:
        set_up(bench, ModelPolicy("m", default=True, affinity=own), ModelPolicy("n", affinity=POLICY))
        for id_, draining in (("o0", False), ("o1", False)):
            record = bench.cluster.endpoints[id_].record
            replicas = (Replica("m", state=State.COLD), Replica("n"))
            bench.cluster.apply(
                EndpointSeen(replace(record, replicas=replicas, draining=draining), bench.now), bench.now
            )
        model = Model(name="m", fallback=("n",))
        bench.plane.ladders = Ladders((model,), LadderPolicy(), bench.plane.page, bench.now, Admission())
        learn(bench, "n", PROMPT, "o1")
        assert ask(bench, 1, asked(raw=True)) == "o1"
        assert totals(bench)[0] == 1
