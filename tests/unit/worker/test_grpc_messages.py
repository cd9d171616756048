"""Inference requests and answers as protobuf messages: what fits, and every refusal with its text."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from warmroute_pb.v1 import open_inference_pb2 as oip

from tests.support.worker_parts import EchoingModel
from worker.datatypes import NUMPY, Datatype
from worker.engines import TensorSpec
from worker.serving.errors import RequestError
from worker.serving.grpc.messages import CONTENTS, decode, in_stream, read, write
from worker.store import ModelFiles

F = TensorSpec("f", Datatype.FP32, (-1, 2))
I8 = TensorSpec("i", Datatype.INT8, (-1,))
S = TensorSpec("s", Datatype.BYTES, (-1,))
B = TensorSpec("b", Datatype.BF16, (-1,))
FILES = ModelFiles("m", "3", labels=("cat", "dog"))
WIDE = TensorSpec("f", Datatype.FP32, (-1, -1))
F2 = struct.pack("<2f", 1, 2.5)


def request(
    *tensors: tuple[str, str, tuple[int, ...], dict[str, Any]], raw: tuple[bytes, ...] = (), **fields: Any
) -> oip.ModelInferRequest:
    message = oip.ModelInferRequest(model_name="m", raw_input_contents=raw, **fields)
    for name, datatype, shape, contents in tensors:
        tensor = message.inputs.add(name=name, datatype=datatype, shape=shape)
        if contents:
            tensor.contents.CopyFrom(oip.InferTensorContents(**contents))
    return message


def fp32(**contents: Any) -> tuple[str, str, tuple[int, ...], dict[str, Any]]:
    return ("f", "FP32", (1, 2), contents)


def model(*specs: TensorSpec) -> EchoingModel:
    return EchoingModel(inputs=specs, outputs=specs)


def asked(**parameters: Any) -> oip.ModelInferRequest:
    message = request(fp32(fp32_contents=[1, 2]))
    output = message.outputs.add(name="f")
    for name, value in parameters.items():
        output.parameters[name].CopyFrom(oip.InferParameter(**value))
    return message


MALFORMED: dict[str, tuple[tuple[TensorSpec, ...], oip.ModelInferRequest, str]] = {
    "no inputs": ((F,), request(), "input 'f': missing; expected FP32 [-1, 2]"),
    "unknown input": (
        (F,),
        request(("g", "FP32", (1, 2), {})),
        "input 'g': the model has none of this name; it has 'f' FP32 [-1, 2]",
    ),
    "twice": ((F,), request(fp32(fp32_contents=[1, 2]), fp32()), "input 'f': there twice"),
    "no name": ((F,), request(("", "FP32", (1, 2), {})), "inference request: inputs[0]: 'name' is missing"),
    "no datatype": (
        (F,),
        request(("f", "", (1, 2), {})),
        "input 'f': 'datatype' is missing; expected FP32 [-1, 2]",
    ),
    "another datatype": (
        (F,),
        request(("f", "FP64", (1, 2), {})),
        "input 'f': expected FP32 [-1, 2], given FP64 [1, 2]",
    ),
    "another shape": (
        (F,),
        request(("f", "FP32", (2,), {})),
        "input 'f': expected FP32 [-1, 2], given FP32 [2]",
    ),
    "negative": (
        (F,),
        request(("f", "FP32", (-1, 2), {})),
        "input 'f': shape [-1, 2] has a negative dimension; expected FP32 [-1, 2]",
    ),
    "no data": ((F,), request(fp32()), "input 'f': shape [1, 2] takes 2 elements, contents.fp32_contents has 0"),
    "another field": (
        (F,),
        request(fp32(fp64_contents=[1, 2])),
        "input 'f': FP32 goes into contents.fp32_contents, given contents.fp64_contents",
    ),
    "two fields": (
        (F,),
        request(fp32(fp32_contents=[1, 2], int_contents=[1])),
        "input 'f': FP32 goes into contents.fp32_contents, given contents.int_contents",
    ),
    "too large for its type": (
        (I8,),
        request(("i", "INT8", (2,), {"int_contents": [1, 128]})),
        "input 'i': contents.int_contents[1] is 128, INT8 takes -128 to 127",
    ),
    "BF16 typed": (
        (B,),
        request(("b", "BF16", (1,), {"uint_contents": [1]})),
        "input 'b': BF16 has no typed contents; send it in raw_input_contents",
    ),
    "raw for fewer": (
        (F, I8),
        request(fp32(), ("i", "INT8", (1,), {}), raw=(F2,)),
        "inference request: 1 raw_input_contents for 2 inputs without 'contents'",
    ),
    "raw and typed": (
        (F,),
        request(fp32(fp32_contents=[1, 2]), raw=(F2,)),
        "inference request: 1 raw_input_contents for 0 inputs without 'contents'",
    ),
    "raw of another length": (
        (F,),
        request(fp32(), raw=(b"123",)),
        "input 'f': FP32 of shape [1, 2] takes 8 bytes, given 3",
    ),
    "a huge shape of nothing, raw": (
        (WIDE,),
        request(("f", "FP32", (0, 2**62), {}), raw=(b"",)),
        f"input 'f': shape [0, {2**62}] is empty, and its other dimensions multiply to {2**62}, at most {1 << 26}",
    ),
    "a huge shape of nothing, typed": (
        (WIDE,),
        request(("f", "FP32", (2**40, 0), {})),
        f"input 'f': shape [{2**40}, 0] is empty, and its other dimensions multiply to {2**40}, at most {1 << 26}",
    ),
    "unknown output": (
        (F,),
        request(fp32(fp32_contents=[1, 2]), outputs=[oip.ModelInferRequest.InferRequestedOutputTensor(name="z")]),
        "output 'z': the model has none of this name; it has 'f' FP32 [-1, 2]",
    ),
    "classes no count": (
        (F,),
        asked(classification={"int64_param": 0}),
        "output 'f': parameter 'classification' is 0, expected a count from 1 to 10000",
    ),
    "a parameter without a value": (
        (F,),
        asked(p={}),
        "output 'f': parameter 'p': expected a boolean, a number or a string",
    ),
    "id too long": (
        (F,),
        request(fp32(fp32_contents=[1, 2]), id="x" * 1025),
        "inference request: 'id' has 1025 characters, at most 1024",
    ),
}


@pytest.mark.parametrize(("specs", "message", "error"), MALFORMED.values(), ids=MALFORMED.keys())
def test_what_does_not_fit(specs: tuple[TensorSpec, ...], message: oip.ModelInferRequest, error: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(decode(message.SerializeToString()), model(*specs))
    assert (str(caught.value), caught.value.status) == (error, 400)


def test_bytes_that_are_no_message() -> None:
    with pytest.raises(RequestError, match="the message is no ModelInferRequest"):
        decode(b"\xff\xff")


def test_classes_of_nothing() -> None:
    got = read(asked(classification={"int64_param": 2}), model(WIDE))
    with pytest.raises(RequestError, match=r"output 'f': shape \[1, 0\] holds no scores to classify by") as refused:
        write(FILES, got, [np.empty((1, 0), np.float32)])
    assert refused.value.status == 400


VALUES: dict[Datatype, list[Any]] = {
    Datatype.BOOL: [True, False],
    Datatype.BYTES: [b"\xff\x00", "ä".encode()],
    **{kind: [-1, 1] for kind in (Datatype.INT8, Datatype.INT16, Datatype.INT32, Datatype.INT64)},
    **{kind: [0, 200] for kind in (Datatype.UINT8, Datatype.UINT16, Datatype.UINT32, Datatype.UINT64)},
    **{kind: [0.5, -2.0] for kind in (Datatype.FP32, Datatype.FP64)},
}


@pytest.mark.parametrize("datatype", CONTENTS)
def test_typed_contents_come_back_typed(datatype: Datatype) -> None:
    spec = TensorSpec("t", datatype, (-1,))
    field = CONTENTS[datatype]
    got = read(request(("t", datatype.value, (2,), {field: VALUES[datatype]}), id="7"), model(spec))
    assert got.inputs["t"].dtype == NUMPY[datatype]
    answer = oip.ModelInferResponse.FromString(write(FILES, got, [got.inputs["t"]]))
    assert (answer.model_name, answer.model_version, answer.id) == ("m", "3", "7")
    (output,) = answer.outputs
    assert (output.name, output.datatype, list(output.shape)) == ("t", datatype.value, [2])
    assert list(getattr(output.contents, field)) == VALUES[datatype]
    assert not answer.raw_output_contents


@pytest.mark.parametrize("datatype", [kind for kind in Datatype if kind is not Datatype.BYTES])
def test_raw_contents_come_back_raw(datatype: Datatype) -> None:
    spec = TensorSpec("t", datatype, (-1,))
    data = bytes((0, 1)) * datatype.item_bytes
    got = read(request(("t", datatype.value, (2,), {}), raw=(data,)), model(spec))
    answer = oip.ModelInferResponse.FromString(write(FILES, got, [got.inputs["t"]]))
    assert list(answer.raw_output_contents) == [data]
    assert not answer.outputs[0].HasField("contents")


def test_what_has_no_typed_form_makes_all_of_the_answer_raw() -> None:
    got = read(request(fp32(fp32_contents=[1, 2.5])), EchoingModel(inputs=(F,), outputs=(F, B)))
    answer = oip.ModelInferResponse.FromString(
        write(FILES, got, [got.inputs["f"], np.array([0x3F80], dtype=np.uint16)])
    )
    assert list(answer.raw_output_contents) == [F2, b"\x80\x3f"]


def test_classes_and_parameters() -> None:
    message = asked(classification={"int64_param": 1})
    message.parameters["service_ms"].double_param = 1.5
    message.parameters["binary_data_output"].bool_param = True
    got = read(message, model(F))
    assert got.parameters == {"service_ms": 1.5}
    answer = oip.ModelInferResponse.FromString(write(FILES, got, [got.inputs["f"]]))
    assert list(answer.raw_output_contents) == [b"\x0e\0\0\x002.000000:1:dog"]


def test_raw_contents_are_for_the_inputs_without_typed_ones() -> None:
    message = request(("b", "BF16", (1,), {}), fp32(fp32_contents=[1, 2.5]), ("i", "INT8", (1,), {}), raw=(b"ab", b"c"))
    got = read(message, EchoingModel(inputs=(F, I8, B), outputs=(F,)))
    assert (got.inputs["b"].tolist(), got.inputs["i"].tolist()) == ([0x6261], [99])
    assert got.inputs["f"].tolist() == [[1.0, 2.5]]
    assert got.outputs[0].binary


@pytest.mark.parametrize("size", [0, 1, 127, 128, 20_000])
def test_an_answer_in_a_stream(size: int) -> None:
    answer = oip.ModelInferResponse(id="x" * size)
    wrapped = oip.ModelStreamInferResponse.FromString(in_stream(answer.SerializeToString()))
    answer.parameters["triton_final_response"].bool_param = True
    assert (wrapped.infer_response, wrapped.error_message) == (answer, "")
