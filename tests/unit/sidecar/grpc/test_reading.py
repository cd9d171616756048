"""What is read of a ModelInferRequest's start: the same as protobuf reads, and never more than is bounded."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from warmroute_pb.v1 import open_inference_pb2 as wire

from sidecar.grpc.matching import PREFIX_BYTES
from sidecar.grpc.reading import Beginning, read_beginning
from tests.support.grpc_by_hand import message

TEXT = st.text(max_size=30)
VALUES = st.one_of(
    st.builds(lambda text: wire.InferParameter(string_param=text), TEXT),
    st.builds(lambda whole: wire.InferParameter(int64_param=whole), st.integers(-(1 << 63), (1 << 63) - 1)),
    st.builds(lambda whole: wire.InferParameter(uint64_param=whole), st.integers(0, (1 << 64) - 1)),
    st.builds(lambda flag: wire.InferParameter(bool_param=flag), st.booleans()),
    st.builds(lambda real: wire.InferParameter(double_param=real), st.floats(allow_nan=False)),
)
SHAPES = st.lists(st.integers(-1, 1 << 40), max_size=4)


@st.composite
def requests(draw: st.DrawFn) -> wire.ModelInferRequest:
    request = wire.ModelInferRequest(model_name=draw(TEXT), model_version=draw(TEXT), id=draw(TEXT))
    for name, value in draw(st.dictionaries(TEXT, VALUES, max_size=4)).items():
        request.parameters[name].CopyFrom(value)
    for shape in draw(st.lists(SHAPES, max_size=2)):
        tensor = request.inputs.add(name=draw(TEXT), datatype="FP32", shape=shape)
        tensor.contents.fp32_contents.extend([0.0] * draw(st.integers(0, 20)))
    request.raw_input_contents.extend(draw(st.lists(st.binary(max_size=40), max_size=2)))
    return request


def expected(request: wire.ModelInferRequest) -> tuple[int, bytes, dict[bytes, bytes]]:
    shape = request.inputs[0].shape if request.inputs else []
    parameters = {}
    for name, value in request.parameters.items():
        kind = value.WhichOneof("parameter_choice")
        text = value.string_param if kind == "string_param" else ""
        if kind in ("int64_param", "uint64_param"):
            text = str(getattr(value, kind))
        parameters[name.encode()] = text.encode()
    return (shape[0] if shape and shape[0] >= 0 else -1), request.id.encode(), parameters


def found(beginning: Beginning | None) -> tuple[int, bytes, dict[bytes, bytes]]:
    assert beginning is not None
    return beginning.batch, beginning.id, beginning.parameters


@given(requests())
def test_it_reads_what_protobuf_reads(request: wire.ModelInferRequest) -> None:
    body = request.SerializeToString()
    if len(body) <= PREFIX_BYTES:
        assert found(read_beginning(message(body), b"", whole=True)) == expected(request)


@given(requests(), st.data())
def test_as_it_comes_it_says_the_same_or_that_more_has_to_come(
    request: wire.ModelInferRequest, data: st.DataObject
) -> None:
    whole = message(request.SerializeToString())
    here = read_beginning(whole[: data.draw(st.integers(0, len(whole)))], b"", whole=False)
    if here is not None:
        assert found(here) == expected(request)
        assert here.length == len(whole) - 5


@given(st.binary(max_size=300))
def test_no_bytes_break_it(data: bytes) -> None:
    assert read_beginning(message(data), b"", whole=True) is not None
    read_beginning(data, b"", whole=False)


def infer(*, id_: str = "", shape: tuple[int, ...] = (3, 4), raw: int = 0) -> bytes:
    request = wire.ModelInferRequest(model_name="m", id=id_)
    request.inputs.add(name="x", datatype="FP32", shape=shape)
    if raw:
        request.raw_input_contents.append(bytes(raw))
    data: bytes = request.SerializeToString()
    return data


def test_of_a_long_message_only_the_start_is_needed() -> None:
    whole = message(infer(raw=1 << 20))
    here = read_beginning(whole[:PREFIX_BYTES], b"", whole=False)
    assert here is not None
    assert (here.batch, here.length) == (3, len(whole) - 5)


def test_what_stands_behind_the_first_bytes_is_not_looked_at() -> None:
    whole = message(infer(id_="y" * PREFIX_BYTES))
    here = read_beginning(whole, b"", whole=True)
    assert here is not None
    assert (here.batch, here.id) == (-1, b"")


@pytest.mark.parametrize(("encoding", "pack"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress)])
def test_a_packed_message_is_unpacked_that_far(encoding: bytes, pack: object) -> None:
    packed = gzip.compress if pack is gzip.compress else zlib.compress
    whole = message(packed(infer(raw=5000)), compressed=True)
    here = read_beginning(whole, encoding, whole=True)
    assert here is not None
    assert here.batch == 3
    other = read_beginning(whole, b"zstd", whole=True)
    assert other is not None
    assert other.batch == -1


@pytest.mark.parametrize(
    ("member", "key"), [(b"id", b"i"), (b"parameters.a", b"x"), (b"parameters.n", b"-7"), (b"parameters.z", None)]
)
def test_keys(member: bytes, key: bytes | None) -> None:
    request = wire.ModelInferRequest(model_name="m", id="i")
    request.parameters["a"].string_param = "x"
    request.parameters["n"].int64_param = -7
    here = read_beginning(message(request.SerializeToString()), b"", whole=True)
    assert here is not None
    assert here.key(member) == key


def test_an_unpacked_shape_counts_too() -> None:
    body = b"\x0a\x01m" + b"\x2a\x05" + b"\x18\x09" + b"\x18\x02" + b"\x00"
    here = read_beginning(message(body), b"", whole=True)
    assert here is not None
    assert here.batch == 9
