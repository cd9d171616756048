"""The body of an inference request: read, checked against the model, and turned into arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from worker.serving.classification import requested_classes
from worker.serving.errors import RequestError
from worker.serving.tensors import MAX_RANK, check_fit, decode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker.engines import Array, LoadedModel, Parameters, TensorSpec

MAX_TENSORS = 256
MAX_PARAMETERS = 64
MAX_ID_CHARS = 1024
NO_BINARY = "the binary tensor extension is not supported; send 'data' as JSON"

Dim = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Input(msgspec.Struct, frozen=True):
    name: str | msgspec.UnsetType = msgspec.UNSET
    shape: list[Dim] | msgspec.UnsetType = msgspec.UNSET
    datatype: str | msgspec.UnsetType = msgspec.UNSET
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    parameters: dict[str, Any] | None = None


class _Output(msgspec.Struct, frozen=True):
    name: str | msgspec.UnsetType = msgspec.UNSET
    parameters: dict[str, Any] | None = None


class _Body(msgspec.Struct, frozen=True):
    id: str | None = None
    parameters: dict[str, Any] | None = None
    inputs: list[_Input] | msgspec.UnsetType = msgspec.UNSET
    outputs: list[_Output] | None = None


_DECODER = msgspec.json.Decoder(_Body)


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output to be answered. ``classes``: as that many best classes; 0: as it is."""

    name: str
    classes: int = 0


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request that fits the model."""

    id: str | None
    inputs: dict[str, Array]
    outputs: tuple[RequestedOutput, ...]
    parameters: Parameters


def parse(body: bytes | bytearray, model: LoadedModel) -> InferRequest:
    """Read ``body`` as an inference request for ``model``.

    Raises:
        RequestError: it is not JSON, not a request, or does not fit the model; the text says what and where.
    """
    try:
        raw = _DECODER.decode(body)
    except msgspec.ValidationError as error:
        raise RequestError(f"inference request: {error}") from None
    except msgspec.DecodeError as error:
        raise RequestError(f"inference request: the body is not JSON: {error}") from None
    except RecursionError:
        raise RequestError("inference request: the body is nested too deep") from None
    if raw.id is not None and len(raw.id) > MAX_ID_CHARS:
        raise RequestError(f"inference request: 'id' has {len(raw.id)} characters, at most {MAX_ID_CHARS}")
    parameters = _parameters("inference request", raw.parameters)
    if parameters.pop("binary_data_output", False):
        raise RequestError(f"inference request: parameter 'binary_data_output': {NO_BINARY}")
    return InferRequest(raw.id, _inputs(raw.inputs, model.inputs), _outputs(raw.outputs, model.outputs), parameters)


def _inputs(given: list[_Input] | msgspec.UnsetType, specs: Sequence[TensorSpec]) -> dict[str, Array]:
    if isinstance(given, msgspec.UnsetType):
        raise RequestError(f"inference request: 'inputs' is missing; the model takes {_listed(specs)}")
    if len(given) > MAX_TENSORS:
        raise RequestError(f"inference request: {len(given)} inputs, at most {MAX_TENSORS}")
    known = {spec.name: spec for spec in specs}
    arrays: dict[str, Array] = {}
    for index, tensor in enumerate(given):
        spec = _spec(f"inputs[{index}]", "input", tensor.name, known, arrays)
        arrays[spec.name] = _array(spec, tensor)
    missing = next((spec for spec in specs if spec.name not in arrays), None)
    if missing is not None:
        raise RequestError(f"input {missing.name!r}: missing; expected {missing.datatype.value} {list(missing.shape)}")
    return arrays


def _spec(
    where: str,
    kind: str,
    name: str | msgspec.UnsetType,
    known: dict[str, TensorSpec],
    taken: dict[str, Any],
) -> TensorSpec:
    if isinstance(name, msgspec.UnsetType):
        raise RequestError(f"inference request: {where}: 'name' is missing")
    spec = known.get(name)
    if spec is None:
        raise RequestError(f"{kind} {name[:128]!r}: the model has none of this name; it has {_listed(known.values())}")
    if name in taken:
        raise RequestError(f"{kind} {name!r}: there twice")
    return spec


def _array(spec: TensorSpec, tensor: _Input) -> Array:
    where = f"input {spec.name!r}"
    expected = f"expected {spec.datatype.value} {list(spec.shape)}"
    parameters = _parameters(where, tensor.parameters)
    if "binary_data_size" in parameters:
        raise RequestError(f"{where}: parameter 'binary_data_size': {NO_BINARY}")
    if isinstance(tensor.datatype, msgspec.UnsetType):
        raise RequestError(f"{where}: 'datatype' is missing; {expected}")
    if isinstance(tensor.shape, msgspec.UnsetType):
        raise RequestError(f"{where}: 'shape' is missing; {expected}")
    if len(tensor.shape) > MAX_RANK:
        raise RequestError(f"{where}: shape of {len(tensor.shape)} dimensions, at most {MAX_RANK}; {expected}")
    shape = tuple(tensor.shape)
    if any(dim < 0 for dim in shape):
        raise RequestError(f"{where}: shape {list(shape)} has a negative dimension; {expected}")
    check_fit(spec, tensor.datatype, shape)
    if isinstance(tensor.data, msgspec.UnsetType):
        raise RequestError(f"{where}: 'data' is missing; {expected}")
    return decode(spec.name, spec.datatype, shape, tensor.data)


def _outputs(given: list[_Output] | None, specs: Sequence[TensorSpec]) -> tuple[RequestedOutput, ...]:
    if not given:
        return tuple(RequestedOutput(spec.name) for spec in specs)
    if len(given) > MAX_TENSORS:
        raise RequestError(f"inference request: {len(given)} outputs, at most {MAX_TENSORS}")
    known = {spec.name: spec for spec in specs}
    outputs: dict[str, RequestedOutput] = {}
    for index, output in enumerate(given):
        spec = _spec(f"outputs[{index}]", "output", output.name, known, outputs)
        parameters = _parameters(f"output {spec.name!r}", output.parameters)
        if parameters.get("binary_data"):
            raise RequestError(f"output {spec.name!r}: parameter 'binary_data': {NO_BINARY}")
        classes = requested_classes(spec, parameters["classification"]) if "classification" in parameters else 0
        outputs[spec.name] = RequestedOutput(spec.name, classes)
    return tuple(outputs.values())


def _parameters(where: str, given: dict[str, Any] | None) -> Parameters:
    if not given:
        return {}
    if len(given) > MAX_PARAMETERS:
        raise RequestError(f"{where}: {len(given)} parameters, at most {MAX_PARAMETERS}")
    for name, value in given.items():
        if not isinstance(value, bool | int | float | str):
            raise RequestError(f"{where}: parameter {name[:128]!r}: expected a boolean, a number or a string")
    return dict(given)


def _listed(specs: Any) -> str:
    return ", ".join(f"{spec.name!r} {spec.datatype.value} {list(spec.shape)}" for spec in specs)
