"""BF16 in and out of ONNX Runtime, whose Python interface passes arrays of numpy's types only.

Arrays carry the bit patterns as UINT16 (:data:`worker.datatypes.NUMPY`); what a session takes and gives are its own
values, made of and copied into such arrays. Strings become such a value only as another session gives them: one of a
constant, made for them. Sessions without BF16 do not come here.
"""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime as ort

from worker.datatypes import Datatype
from worker.engines.onnx_graph import bytes_field, encoded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from worker.engines import Array, TensorSpec

_ONNX_STRING, _ONNX_BFLOAT16 = 8, 16  # onnx.TensorProto.DataType


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
    if datatype is Datatype.BYTES:
        return _strings(array)
    return ort.OrtValue.ortvalue_from_numpy(array)


def _strings(array: Array) -> ort.OrtValue:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(_constant(array), sess_options=options, providers=["CPUExecutionProvider"])
    return session.run_with_ort_values(["s"], {})[0]


def _constant(array: Array) -> bytes:
    """Return the ONNX model of one operator that gives ``array``, of strings, as its output ``s``."""

    def number(place: int, value: int) -> bytes:
        return encoded(place << 3) + encoded(value)

    dims = b"".join(number(1, dim) for dim in array.shape)
    strings = b"".join(bytes_field(6, str(element).encode()) for element in array.ravel().tolist())
    value = bytes_field(1, b"value") + bytes_field(5, dims + number(2, _ONNX_STRING) + strings) + number(20, 4)
    node = bytes_field(2, b"s") + bytes_field(4, b"Constant") + bytes_field(5, value)
    output = bytes_field(1, b"s") + bytes_field(2, bytes_field(1, number(1, _ONNX_STRING)))
    graph = bytes_field(1, node) + bytes_field(2, b"strings") + bytes_field(12, output)
    return number(1, 8) + bytes_field(7, graph) + bytes_field(8, number(2, 17))


def _array(value: ort.OrtValue) -> Array:
    if value.data_type() != "tensor(bfloat16)":
        return np.asarray(value.numpy())
    shape = tuple(value.shape())
    array: Array = np.empty(shape, dtype=np.uint16)
    if math.prod(shape):
        ctypes.memmove(array.ctypes.data, value.data_ptr(), array.nbytes)
    return array
