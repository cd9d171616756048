"""The body of an answer over HTTP: a JSON object, and behind it the outputs that were asked for as bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from worker import json_text
from worker.datatypes import Datatype, datatype_of
from worker.serving.binary import encode_binary
from worker.serving.classification import classify
from worker.serving.errors import RequestError
from worker.serving.tensors import encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker.engines import Array
    from worker.serving.fit import InferRequest, RequestedOutput
    from worker.store import ModelFiles


@dataclass(frozen=True, slots=True)
class Answer:
    """``json_bytes``: as many of the body are JSON, the others binary tensors; None: all are JSON."""

    body: bytes | bytearray
    json_bytes: int | None


def answered(output: RequestedOutput, array: Array, labels: tuple[str, ...]) -> tuple[Datatype, Array]:
    """Return an output as it was asked for: what the engine gave, or its best classes.

    Raises:
        KeyError: the array is of a type that the protocol has no name for.
        RequestError: classes were asked for, and there are none.
    """
    if output.classes:
        if not array.ndim or not array.shape[-1]:
            raise RequestError(f"output {output.spec.name!r}: shape {list(array.shape)} holds no scores to classify by")
        return Datatype.BYTES, classify(array, output.classes, labels)
    return datatype_of(output.spec.datatype, array.dtype), array


def write(files: ModelFiles, request: InferRequest, arrays: Sequence[Array]) -> Answer:
    """Encode the ``arrays`` that the model of ``files`` gave for the outputs of ``request``.

    Raises:
        RequestError: an output was asked for as JSON, which has no form for it.
    """
    answer: dict[str, Any] = {"model_name": files.name, "model_version": files.version}
    if request.id is not None:
        answer["id"] = request.id
    tensors: list[dict[str, Any]] = []
    binary: list[memoryview | bytearray] = []
    for output, given in zip(request.outputs, arrays, strict=True):
        datatype, array = answered(output, given, files.labels)
        if output.binary:
            data = encode_binary(datatype, array)
            binary.append(data)
            tensors.append(
                {
                    "name": output.spec.name,
                    "shape": list(array.shape),
                    "datatype": datatype.value,
                    "parameters": {"binary_data_size": len(data)},
                }
            )
        else:
            tensors.append(encode(output.spec.name, datatype, array))
    answer["outputs"] = tensors
    text = json_text.encode(answer)
    return Answer(b"".join((text, *binary)), len(text)) if binary else Answer(text, None)
