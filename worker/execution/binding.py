"""Runs into memory of the worker's own: outputs whose shape is known beforehand are written where they are wanted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from worker.datatypes import NUMPY, Datatype
from worker.engines import EngineError, WritesInto

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from worker.engines import Array, Cancellation, LoadedModel, Parameters, TensorSpec
    from worker.execution.buffers import Buffers

BIND_FROM_BYTES: Final = 8 << 20
"""Below that binding costs ONNX Runtime on a CPU more than it saves: 0.1 ms each time (docs/execution.md)."""


def output_shapes(
    specs: Sequence[TensorSpec], outputs: Sequence[str], inputs: Mapping[str, Array]
) -> dict[str, tuple[int, ...]] | None:
    """Return the shapes of ``outputs`` where they follow from the inputs: one row for each, and nothing else varies."""
    rows = {array.shape[0] if array.ndim else -1 for array in inputs.values()}
    if len(rows) != 1 or -1 in rows:
        return None
    (count,) = rows
    known = {spec.name: spec for spec in specs}
    shapes: dict[str, tuple[int, ...]] = {}
    for name in outputs:
        spec = known[name]
        if not spec.shape or spec.shape[0] != -1 or -1 in spec.shape[1:] or spec.datatype is Datatype.BYTES:
            return None
        shapes[name] = (count, *spec.shape[1:])
    return shapes


def run(
    model: LoadedModel,
    buffers: Buffers,
    inputs: Mapping[str, Array],
    outputs: Sequence[str],
    parameters: Parameters,
    cancellation: Cancellation,
) -> list[Array]:
    """Execute ``model`` into ``buffers`` where that is possible and worth it, or as ever.

    Raises:
        EngineError: the execution failed.
    """
    if isinstance(model, WritesInto) and model not in buffers.unfit:
        shapes = output_shapes(model.outputs, outputs, inputs)
        if shapes is not None:
            dtypes = {spec.name: NUMPY[spec.datatype] for spec in model.outputs}
            size_bytes = sum(math.prod(shape) * dtypes[name].itemsize for name, shape in shapes.items())
            if size_bytes >= BIND_FROM_BYTES:
                arrays = {name: buffers.array(shape, dtypes[name]) for name, shape in shapes.items()}
                try:
                    model.run_into(inputs, arrays, cancellation)
                except EngineError:
                    if cancellation.cancelled:
                        raise
                    # Perhaps its rows are not those of the inputs after all; what else it was shows again below.
                    buffers.unfit.add(model)
                else:
                    return list(arrays.values())
    return model.run(inputs, outputs, parameters, cancellation)
