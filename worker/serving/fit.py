"""What an inference request must be, to fit its model: the checks and texts that every surface shares."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from worker.serving.classification import requested_classes
from worker.serving.errors import RequestError
from worker.serving.tensors import MAX_RANK, check_fit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from worker.engines import Array, Parameters, TensorSpec

MAX_TENSORS = 256
MAX_PARAMETERS = 64
MAX_ID_CHARS = 1024
MAX_EMPTY = 1 << 26
"""What the other dimensions of a shape with a 0 multiply to at most: no data bounds them, and what is computed of
nothing may be as large as they are."""


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output to be answered. ``classes``: as that many best classes; 0: as it is. ``binary``: as bytes."""

    spec: TensorSpec
    classes: int = 0
    binary: bool = False


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request that fits the model."""

    id: str | None
    inputs: dict[str, Array]
    outputs: tuple[RequestedOutput, ...]
    parameters: Parameters


def check_id(text: str | None) -> None:
    """Do nothing where ``text`` may be a request's id.

    Raises:
        RequestError: it is too long.
    """
    if text is not None and len(text) > MAX_ID_CHARS:
        raise RequestError(f"inference request: 'id' has {len(text)} characters, at most {MAX_ID_CHARS}")


def check_count(kind: str, count: int) -> None:
    """Do nothing where a request may have ``count`` of ``kind``, which is ``inputs`` or ``outputs``.

    Raises:
        RequestError: they are too many.
    """
    if count > MAX_TENSORS:
        raise RequestError(f"inference request: {count} {kind}, at most {MAX_TENSORS}")


class Named:
    """The tensors of a model by name, of which a request names each once at most."""

    def __init__(self, kind: str, specs: Sequence[TensorSpec]) -> None:
        """``kind``: ``input`` or ``output``, as errors call it."""
        self._kind = kind
        self._known = {spec.name: spec for spec in specs}
        self._taken: set[str] = set()

    def take(self, name: str) -> TensorSpec:
        """Return the tensor that a request calls ``name``.

        Raises:
            RequestError: the model has none, or the request named it before.
        """
        spec = self._known.get(name)
        if spec is None:
            has = listed(self._known.values())
            raise RequestError(f"{self._kind} {name[:128]!r}: the model has none of this name; it has {has}")
        if name in self._taken:
            raise RequestError(f"{self._kind} {name!r}: there twice")
        self._taken.add(name)
        return spec


def check_shape(spec: TensorSpec, datatype: str, given: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of an input that fits ``spec``.

    Raises:
        RequestError: it does not fit.
    """
    if len(given) > MAX_RANK:
        raise RequestError(
            f"input {spec.name!r}: shape of {len(given)} dimensions, at most {MAX_RANK}; {expected(spec)}"
        )
    shape = tuple(given)
    if any(dim < 0 for dim in shape):
        raise RequestError(f"input {spec.name!r}: shape {list(shape)} has a negative dimension; {expected(spec)}")
    check_fit(spec, datatype, shape)
    others = math.prod(dim for dim in shape if dim) if 0 in shape else 0
    if others > MAX_EMPTY:
        raise RequestError(
            f"input {spec.name!r}: shape {list(shape)} is empty, and its other dimensions multiply to {others}, "
            f"at most {MAX_EMPTY}"
        )
    return shape


def check_complete(specs: Iterable[TensorSpec], arrays: Mapping[str, Array]) -> None:
    """Do nothing where ``arrays`` has every input of the model.

    Raises:
        RequestError: one is missing.
    """
    missing = next((spec for spec in specs if spec.name not in arrays), None)
    if missing is not None:
        raise RequestError(f"input {missing.name!r}: missing; {expected(missing)}")


def requested(spec: TensorSpec, parameters: Parameters, *, binary: bool) -> RequestedOutput:
    """Return an output as its ``parameters`` ask for it; ``binary`` where they do not say.

    Raises:
        RequestError: a parameter is not a value of its kind.
    """
    classes = requested_classes(spec, parameters["classification"]) if "classification" in parameters else 0
    return RequestedOutput(spec, classes, flag(f"output {spec.name!r}", "binary_data", parameters, absent=binary))


def flag(where: str, name: str, parameters: Parameters, *, absent: bool = False) -> bool:
    """Return a parameter that is true or false, or ``absent`` where it is not there.

    Raises:
        RequestError: it is something else.
    """
    value = parameters.get(name, absent)
    if not isinstance(value, bool):
        raise RequestError(f"{where}: parameter {name!r} is {_short(value)}, expected true or false")
    return value


def check_parameters(where: str, given: Mapping[str, Any] | None) -> Parameters:
    """Return a copy of the parameters of a request or tensor.

    Raises:
        RequestError: they are too many, or one is not a scalar.
    """
    if not given:
        return {}
    if len(given) > MAX_PARAMETERS:
        raise RequestError(f"{where}: {len(given)} parameters, at most {MAX_PARAMETERS}")
    for name, value in given.items():
        if not isinstance(value, bool | int | float | str):
            raise RequestError(f"{where}: parameter {name[:128]!r}: expected a boolean, a number or a string")
    return dict(given)


def expected(spec: TensorSpec) -> str:
    """Return the end of an error's text: what the tensor must be."""
    return f"expected {spec.datatype.value} {list(spec.shape)}"


def listed(specs: Iterable[TensorSpec]) -> str:
    """Return tensors as errors name them."""
    return ", ".join(f"{spec.name!r} {spec.datatype.value} {list(spec.shape)}" for spec in specs)


def _short(value: object) -> str:
    return repr(value)[:64]
