"""BF16 in and out of ONNX Runtime, whose Python interface passes arrays of numpy's types only.

Arrays carry the bit patterns as UINT16 (:data:`worker.datatypes.NUMPY`); what a session takes and gives are its own
values, made of and copied into such arrays. Sessions without BF16 do not come here.
"""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime as ort

from worker.datatypes import Datatype

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from worker.engines import Array, TensorSpec

_ONNX_BFLOAT16 = 16  # onnx.TensorProto.DataType


def any_bfloat16(specs: Sequence[TensorSpec]) -> bool:
    """Return whether one of the tensors is BF16."""
    return any(spec.datatype is Datatype.BF16 for spec in specs)


def run_values(
    session: ort.InferenceSession,
    specs: Sequence[TensorSpec],
    outputs: Sequence[str],
    inputs: Mapping[str, Array],
    options: ort.RunOptions,
) -> list[Array]:
    """Run ``session`` as its own ``run`` does; ``specs`` are those of its inputs."""
    datatypes = {spec.name: spec.datatype for spec in specs}
    values = {name: _value(datatypes[name], array) for name, array in inputs.items()}
    return [_array(value) for value in session.run_with_ort_values(list(outputs), values, options)]


def _value(datatype: Datatype, array: Array) -> ort.OrtValue:
    if datatype is Datatype.BF16:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.ascontiguousarray(array), _ONNX_BFLOAT16)
    return ort.OrtValue.ortvalue_from_numpy(array)


def _array(value: ort.OrtValue) -> Array:
    if value.data_type() != "tensor(bfloat16)":
        return np.asarray(value.numpy())
    shape = tuple(value.shape())
    array: Array = np.empty(shape, dtype=np.uint16)
    if math.prod(shape):
        ctypes.memmove(array.ctypes.data, value.data_ptr(), array.nbytes)
    return array
