"""Inference requests and answers as protobuf messages: read, checked against the model, and written.

An input's tensor is its typed ``contents``, or the next of ``raw_input_contents``. Answers come typed where requests
did, but as bytes where a tensor has no typed form.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import numpy as np
from google.protobuf.message import DecodeError, Message
from warmroute_pb.v1 import open_inference_pb2 as oip

from worker.datatypes import NUMPY, Datatype
from worker.serving.answer import answered
from worker.serving.binary import decode_binary, encode_binary, raw_string, string
from worker.serving.errors import RequestError
from worker.serving.fit import (
    InferRequest,
    Named,
    RequestedOutput,
    check_complete,
    check_count,
    check_id,
    check_parameters,
    check_shape,
    expected,
    flag,
    requested,
)
from worker.serving.tensors import limits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from worker.engines import Array, LoadedModel, Parameters, TensorSpec
    from worker.store import ModelFiles

_Kind = TypeVar("_Kind", bound=Message)

CONTENTS: dict[Datatype, str] = {
    Datatype.BOOL: "bool_contents",
    Datatype.INT8: "int_contents",
    Datatype.INT16: "int_contents",
    Datatype.INT32: "int_contents",
    Datatype.INT64: "int64_contents",
    Datatype.UINT8: "uint_contents",
    Datatype.UINT16: "uint_contents",
    Datatype.UINT32: "uint_contents",
    Datatype.UINT64: "uint64_contents",
    Datatype.FP32: "fp32_contents",
    Datatype.FP64: "fp64_contents",
    Datatype.BYTES: "bytes_contents",
}
"""The field that carries a datatype; those of 16 bits have none."""
FINAL = "triton_final_response"
"""The parameter of a stream's answer that says whether it is the last one of its request."""
EMPTY_FINAL = "triton_enable_empty_final_response"
"""The parameter of a request that has a last answer sent even where it holds nothing. Here each one holds something."""
_CARRIERS: dict[str, np.dtype[Any]] = {
    "bool_contents": np.dtype(np.bool_),
    "int_contents": np.dtype(np.int32),
    "int64_contents": np.dtype(np.int64),
    "uint_contents": np.dtype(np.uint32),
    "uint64_contents": np.dtype(np.uint64),
    "fp32_contents": np.dtype(np.float32),
    "fp64_contents": np.dtype(np.float64),
    "bytes_contents": np.dtype(np.object_),
}


def decode(data: bytes) -> oip.ModelInferRequest:
    """Return the inference request that ``data`` holds.

    Raises:
        RequestError: it holds none.
    """
    try:
        return decode_as(oip.ModelInferRequest, data)
    except RequestError as error:
        raise RequestError(f"inference request: {error}") from None


def decode_as(kind: type[_Kind], data: bytes) -> _Kind:
    """Return the message of that ``kind`` that ``data`` holds.

    Raises:
        RequestError: it holds none.
    """
    try:
        return kind.FromString(data)
    except DecodeError:
        raise RequestError(f"the message is no {kind.DESCRIPTOR.name}") from None


async def received(kind: type[_Kind], data: bytes, context: grpc.aio.ServicerContext) -> _Kind:
    """Return the message of a call to a service that has no other errors of its own; ends the call where it is none."""
    try:
        return decode_as(kind, data)
    except RequestError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        raise


def read(message: oip.ModelInferRequest, model: LoadedModel) -> InferRequest:
    """Check a message against ``model`` and turn its tensors into arrays, which may share its memory.

    Raises:
        RequestError: it does not fit; the text says what and where.
    """
    check_id(message.id)
    parameters = request_parameters(message)
    raw = bool(message.raw_input_contents)
    as_bytes = flag("inference request", "binary_data_output", parameters, absent=raw)
    flag("inference request", EMPTY_FINAL, parameters)
    for name in ("binary_data_output", EMPTY_FINAL):
        parameters.pop(name, None)
    check_count("inputs", len(message.inputs))
    untyped = sum(not tensor.HasField("contents") for tensor in message.inputs)
    if raw and len(message.raw_input_contents) != untyped:
        given = len(message.raw_input_contents)
        raise RequestError(f"inference request: {given} raw_input_contents for {untyped} inputs without 'contents'")
    rest = iter(message.raw_input_contents)
    named = Named("input", model.inputs)
    arrays: dict[str, Array] = {}
    for index, tensor in enumerate(message.inputs):
        spec = named.take(_name(f"inputs[{index}]", tensor.name))
        where = f"input {spec.name!r}"
        _parameters(where, tensor.parameters)
        if not tensor.datatype:
            raise RequestError(f"{where}: 'datatype' is missing; {expected(spec)}")
        shape = check_shape(spec, tensor.datatype, tensor.shape)
        if raw and not tensor.HasField("contents"):
            arrays[spec.name] = decode_binary(spec.name, spec.datatype, shape, memoryview(next(rest)))
        else:
            arrays[spec.name] = _typed(spec, shape, tensor.contents)
    check_complete(model.inputs, arrays)
    return InferRequest(message.id or None, arrays, _outputs(message.outputs, model.outputs, as_bytes), parameters)


def request_parameters(message: oip.ModelInferRequest) -> Parameters:
    """Return the parameters of a request itself.

    Raises:
        RequestError: they are too many, or one is not a scalar.
    """
    return _parameters("inference request", message.parameters)


def _name(where: str, name: str) -> str:
    if not name:
        raise RequestError(f"inference request: {where}: 'name' is missing")
    return name


def _typed(spec: TensorSpec, shape: tuple[int, ...], contents: oip.InferTensorContents) -> Array:
    where, datatype = f"input {spec.name!r}", spec.datatype
    field = CONTENTS.get(datatype)
    if field is None:
        raise RequestError(f"{where}: {datatype.value} has no typed contents; send it in raw_input_contents")
    for other, _ in contents.ListFields():
        if other.name != field:
            raise RequestError(f"{where}: {datatype.value} goes into contents.{field}, given contents.{other.name}")
    values = getattr(contents, field)
    count, given = math.prod(shape), len(values)
    if given != count:
        raise RequestError(f"{where}: shape {list(shape)} takes {count} elements, contents.{field} has {given}")
    if datatype is Datatype.BYTES:
        array: Array = np.empty(count, dtype=np.object_)
        array[:] = [string(value) for value in values]
        return array.reshape(shape)
    array = np.fromiter(values, dtype=_CARRIERS[field], count=count)
    if NUMPY[datatype] != array.dtype:
        array = _narrowed(where, datatype, field, array)
    return array.reshape(shape)


def _narrowed(where: str, datatype: Datatype, field: str, array: Array) -> Array:
    low, high = limits(datatype)
    outside = (array < low) | (array > high)
    if outside.any():
        index = int(np.argmax(outside))
        raise RequestError(
            f"{where}: contents.{field}[{index}] is {int(array[index])}, {datatype.value} takes {low} to {high}"
        )
    return array.astype(NUMPY[datatype])


def _outputs(
    given: Sequence[oip.ModelInferRequest.InferRequestedOutputTensor],
    specs: Sequence[TensorSpec],
    as_bytes: bool,
) -> tuple[RequestedOutput, ...]:
    if not given:
        return tuple(RequestedOutput(spec, binary=as_bytes) for spec in specs)
    check_count("outputs", len(given))
    named = Named("output", specs)
    outputs = []
    for index, output in enumerate(given):
        spec = named.take(_name(f"outputs[{index}]", output.name))
        outputs.append(requested(spec, _parameters(f"output {spec.name!r}", output.parameters), binary=as_bytes))
    return tuple(outputs)


def _parameters(where: str, given: Mapping[str, oip.InferParameter]) -> Parameters:
    if not given:
        return {}
    values: dict[str, Any] = {}
    for name, parameter in given.items():
        choice = parameter.WhichOneof("parameter_choice")
        values[name] = None if choice is None else getattr(parameter, choice)
    return check_parameters(where, values)


def write(files: ModelFiles, request: InferRequest, arrays: Sequence[Array]) -> bytes:
    """Encode the ``arrays`` that the model of ``files`` gave for the outputs of ``request``, all in one way.

    Raises:
        KeyError: an array is of a type that the protocol has no name for.
    """
    answer = oip.ModelInferResponse(
        model_name=files.name, model_version=files.version, id=request.id if request.id is not None else ""
    )
    given = [answered(output, array, files.labels) for output, array in zip(request.outputs, arrays, strict=True)]
    as_bytes = any(output.binary for output in request.outputs) or any(kind not in CONTENTS for kind, _ in given)
    for output, (datatype, array) in zip(request.outputs, given, strict=True):
        tensor = answer.outputs.add(name=output.spec.name, datatype=datatype.value, shape=array.shape)
        if as_bytes:
            answer.raw_output_contents.append(bytes(encode_binary(datatype, array)))
        elif datatype is Datatype.BYTES:
            tensor.contents.bytes_contents.extend(raw_string(element) for element in array.ravel().tolist())
        else:
            getattr(tensor.contents, CONTENTS[datatype]).extend(array.ravel().tolist())
    return answer.SerializeToString()


def final(answer: oip.ModelInferResponse) -> oip.ModelInferResponse:
    """Mark ``answer`` as the last of its request; returns it."""
    answer.parameters[FINAL].bool_param = True
    return answer


_FINAL_BYTES = final(oip.ModelInferResponse()).SerializeToString()


def in_stream(answer: bytes) -> bytes:
    """Return a ``ModelInferResponse`` in bytes as a ``ModelStreamInferResponse``, marked as its request's last one.

    It is not read: it is field 2 of the other, and what is added to it in bytes is added to its fields.
    """
    length, size = bytearray(), len(answer) + len(_FINAL_BYTES)
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return b"".join((b"\x12", length, answer, _FINAL_BYTES))
