"""The body of an inference request over HTTP: read, checked against the model, and turned into arrays.

Tensors stand in the JSON object, or behind it as bytes (the binary tensor extension). Without any JSON the whole body
is the one input of the model.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from worker.datatypes import Datatype
from worker.serving.binary import decode_binary, string
from worker.serving.errors import RequestError
from worker.serving.fit import (
    MAX_PARAMETERS,
    MAX_TENSORS,
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
    listed,
    requested,
)
from worker.serving.tensors import decode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from worker.engines import Array, LoadedModel, Parameters, TensorSpec

HEADER_LENGTH = "Inference-Header-Content-Length"
"""Header of a request or answer with binary tensors: how many bytes of JSON stand before them."""

Dim = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_WHOLE = re.compile(r"[0-9]{1,15}")
MAX_OBJECTS = 2 + 4 * MAX_TENSORS
"""JSON objects of the largest request: itself, as many inputs and outputs, and the parameters of each."""
MAX_MEMBERS = 8 * (1 + 2 * MAX_TENSORS) + MAX_PARAMETERS * (1 + 2 * MAX_TENSORS)
"""Members of them all: some of each object's own, and its parameters."""
_SMALL_BYTES = 64 << 10
_BESIDES_OBJECTS = bytes(byte for byte in range(256) if byte not in b'"{:')


class _Input(msgspec.Struct, frozen=True):
    name: str | msgspec.UnsetType = msgspec.UNSET
    shape: list[Dim] | msgspec.UnsetType = msgspec.UNSET
    datatype: str | msgspec.UnsetType = msgspec.UNSET
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    parameters: dict[str, msgspec.Raw] | None = None


class _Output(msgspec.Struct, frozen=True):
    name: str | msgspec.UnsetType = msgspec.UNSET
    parameters: dict[str, msgspec.Raw] | None = None


class _Body(msgspec.Struct, frozen=True):
    id: str | None = None
    parameters: dict[str, msgspec.Raw] | None = None
    inputs: list[_Input] | msgspec.UnsetType = msgspec.UNSET
    outputs: list[_Output] | None = None


_DECODER = msgspec.json.Decoder(_Body)


def header_length(values: Sequence[str]) -> int | None:
    """Return how many bytes of JSON a body begins with, from its headers of that name; None: all of it is JSON.

    Raises:
        RequestError: it is no number, or there twice.
    """
    if not values:
        return None
    if len(values) > 1:
        raise RequestError(f"header {HEADER_LENGTH}: there {len(values)} times")
    text = values[0]
    if not _WHOLE.fullmatch(text):
        raise RequestError(f"header {HEADER_LENGTH}: {text[:64]!r}: expected the number of bytes of JSON in the body")
    return int(text)


class _Binary:
    """The bytes behind the JSON object, which inputs take in their order."""

    def __init__(self, data: memoryview | None) -> None:
        self._data = data
        self._taken = 0

    def take(self, name: str, size: object) -> memoryview:
        where = f"input {name!r}: parameter 'binary_data_size'"
        if self._data is None:
            raise RequestError(f"{where}: the request has no header {HEADER_LENGTH}")
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise RequestError(f"{where} is {repr(size)[:64]}, expected a number of bytes")
        left = len(self._data) - self._taken
        if size > left:
            raise RequestError(f"{where} is {size}, {left} bytes of the body are left")
        start, self._taken = self._taken, self._taken + size
        return self._data[start : self._taken]

    def check_all_taken(self) -> None:
        left = 0 if self._data is None else len(self._data) - self._taken
        if left:
            raise RequestError(
                f"inference request: {left} bytes behind the inputs' binary data; add a binary_data_size"
            )


def parse(body: bytearray | memoryview, model: LoadedModel, json_bytes: int | None = None) -> InferRequest:
    """Read ``body`` as an inference request for ``model``. Arrays may share its memory.

    ``json_bytes``: as many are JSON, the others binary tensors; None: all are JSON; 0: none is.

    Raises:
        RequestError: it is not JSON, not a request, or does not fit the model; the text says what and where.
    """
    view = memoryview(body)
    if json_bytes is None:
        return _parse(view, _Binary(None), model)
    if json_bytes > len(view):
        raise RequestError(f"header {HEADER_LENGTH}: {json_bytes}, but the body has {len(view)} bytes")
    if json_bytes == 0:
        return _parse_raw(view, model)
    return _parse(view[:json_bytes], _Binary(view[json_bytes:]), model)


def _check_size(text: memoryview) -> None:
    """Refuse what has more objects or members than a request can have: to build millions would hold the interpreter.

    Strings are looked into only where they could matter; a tensor's data has neither outside of strings.
    """
    if len(text) <= _SMALL_BYTES:
        return
    raw = bytes(text)
    if raw.count(b"{") > MAX_OBJECTS or raw.count(b":") > MAX_MEMBERS:
        bare = raw.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _BESIDES_OBJECTS)
        outside = b"".join(bare.replace(b'""', b"").split(b'"')[::2])  # a pair takes nobody from inside to outside
        for count, most, what in (
            (outside.count(b"{"), MAX_OBJECTS, "objects"),
            (outside.count(b":"), MAX_MEMBERS, "members of objects"),
        ):
            if count > most:
                raise RequestError(f"inference request: {count} JSON {what}, at most {most}")


def _parameters(where: str, given: Mapping[str, msgspec.Raw] | None) -> Parameters:
    """Read parameters, without building what cannot be one."""
    if not given:
        return {}
    if len(given) > MAX_PARAMETERS:
        return check_parameters(where, given)
    return check_parameters(
        where, {name: None if bytes(memoryview(raw)[:1]) in b"[{" else _decoded(raw) for name, raw in given.items()}
    )


def _decoded(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError as error:  # a number that is none was passed over before, unread
        raise RequestError(f"inference request: the body is not JSON: {error}") from None


def _parse(text: memoryview, binary: _Binary, model: LoadedModel) -> InferRequest:
    _check_size(text)
    try:
        raw = _DECODER.decode(text)
    except msgspec.ValidationError as error:
        raise RequestError(f"inference request: {error}") from None
    except msgspec.DecodeError as error:
        raise RequestError(f"inference request: the body is not JSON: {error}") from None
    except RecursionError:
        raise RequestError("inference request: the body is nested too deep") from None
    check_id(raw.id)
    parameters = _parameters("inference request", raw.parameters)
    all_binary = flag("inference request", "binary_data_output", parameters)
    parameters.pop("binary_data_output", None)
    arrays = _inputs(raw.inputs, model.inputs, binary)
    binary.check_all_taken()
    return InferRequest(raw.id, arrays, _outputs(raw.outputs, model.outputs, all_binary=all_binary), parameters)


def _inputs(given: list[_Input] | msgspec.UnsetType, specs: Sequence[TensorSpec], binary: _Binary) -> dict[str, Array]:
    if isinstance(given, msgspec.UnsetType):
        raise RequestError(f"inference request: 'inputs' is missing; the model takes {listed(specs)}")
    check_count("inputs", len(given))
    named = Named("input", specs)
    arrays: dict[str, Array] = {}
    for index, tensor in enumerate(given):
        spec = named.take(_name(f"inputs[{index}]", tensor.name))
        arrays[spec.name] = _array(spec, tensor, binary)
    check_complete(specs, arrays)
    return arrays


def _name(where: str, name: str | msgspec.UnsetType) -> str:
    if isinstance(name, msgspec.UnsetType):
        raise RequestError(f"inference request: {where}: 'name' is missing")
    return name


def _array(spec: TensorSpec, tensor: _Input, binary: _Binary) -> Array:
    where = f"input {spec.name!r}"
    parameters = _parameters(where, tensor.parameters)
    if isinstance(tensor.datatype, msgspec.UnsetType):
        raise RequestError(f"{where}: 'datatype' is missing; {expected(spec)}")
    if isinstance(tensor.shape, msgspec.UnsetType):
        raise RequestError(f"{where}: 'shape' is missing; {expected(spec)}")
    shape = check_shape(spec, tensor.datatype, tensor.shape)
    if "binary_data_size" in parameters:
        if not isinstance(tensor.data, msgspec.UnsetType):
            raise RequestError(f"{where}: 'data' and parameter 'binary_data_size' exclude each other")
        return decode_binary(spec.name, spec.datatype, shape, binary.take(spec.name, parameters["binary_data_size"]))
    if isinstance(tensor.data, msgspec.UnsetType):
        raise RequestError(f"{where}: 'data' is missing; {expected(spec)}")
    return decode(spec.name, spec.datatype, shape, tensor.data)


def _outputs(
    given: list[_Output] | None, specs: Sequence[TensorSpec], *, all_binary: bool
) -> tuple[RequestedOutput, ...]:
    if not given:
        return tuple(RequestedOutput(spec, binary=all_binary) for spec in specs)
    check_count("outputs", len(given))
    named = Named("output", specs)
    outputs = []
    for index, output in enumerate(given):
        spec = named.take(_name(f"outputs[{index}]", output.name))
        parameters = _parameters(f"output {spec.name!r}", output.parameters)
        outputs.append(requested(spec, parameters, binary=all_binary))
    return tuple(outputs)


def _parse_raw(body: memoryview, model: LoadedModel) -> InferRequest:
    """Read a body without JSON as the model's one input, shaped by its length; all outputs are binary."""
    if len(model.inputs) != 1:
        raise RequestError(
            f"header {HEADER_LENGTH}: 0 is for models with one input; this one has {listed(model.inputs)}"
        )
    spec = model.inputs[0]
    array = _whole(spec, body)
    return InferRequest(None, {spec.name: array}, tuple(RequestedOutput(o, binary=True) for o in model.outputs), {})


def _whole(spec: TensorSpec, body: memoryview) -> Array:
    where = f"input {spec.name!r}: a body without JSON"
    varying = spec.shape.count(-1)
    if spec.datatype is Datatype.BYTES:
        shape = tuple(1 if dim == -1 else dim for dim in spec.shape)
        if any(dim != 1 for dim in shape):
            raise RequestError(f"{where} is one element; {expected(spec)}")
        return np.array([string(bytes(body))], dtype=np.object_).reshape(shape)
    if varying > 1:
        raise RequestError(f"{where} has one shape only where one dimension varies at most; {expected(spec)}")
    step = math.prod(dim for dim in spec.shape if dim != -1) * spec.datatype.item_bytes
    if step == 0 or len(body) % step or (not varying and len(body) != step):
        times = "a multiple of " if varying else ""
        raise RequestError(f"{where} has {len(body)} bytes, expected {times}{step}; {expected(spec)}")
    shape = tuple(len(body) // step if dim == -1 else dim for dim in spec.shape)
    return decode_binary(spec.name, spec.datatype, shape, body)
