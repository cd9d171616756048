"""Weights that a session is given instead of finding them itself: the slices of a shard, and copies in shared memory.

ONNX Runtime maps each weight that lies outside of the model's file by itself, where the kernel happens to have room.
A huge page of a file can be mapped as one only at an address that is a multiple of its size, and of files in shared
memory the kernel does not see to that: each 64 KiB then cost a fault of their own in the first run. So the file is
mapped here, once, at such an address, and the session is given its weights there.

Only a graph that is not optimised any more is given weights by name. Where ONNX Runtime optimises, it computes with
the bytes that the files have, and may put a changed weight (one that is transposed, say) under the old one's name: it
would then use what it was given in its place, and answer wrongly without a word.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime as ort

from worker.engines.onnx_graph import GraphError, external_tensors
from worker.loading import LoadError
from worker.loading.mapping import Mapping as FileMapping
from worker.paths import within

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from worker.engines import Array
    from worker.engines.onnx_graph import External
    from worker.store import ModelFiles

LEAST_BYTES = 64 << 10
"""Smaller weights are left to ONNX Runtime: a fault brings as much in by itself."""
_DTYPES = {
    1: "<f4", 2: "u1", 3: "i1", 4: "<u2", 5: "<i2", 6: "<i4", 7: "<i8", 9: "?", 10: "<f2", 11: "<f8", 12: "<u4",
    13: "<u8",
}  # fmt: skip
"""``TensorProto.DataType``, as far as numpy has the type."""


class Weights:
    """What a session is given, by name. What it uses must not be closed before it is gone."""

    def __init__(self, values: Mapping[str, ort.OrtValue], mappings: Mapping[str, FileMapping] | None = None) -> None:
        self.values = values
        self._mappings = mappings or {}

    def close(self) -> None:
        """Let go of them."""
        self.values = {}
        for mapping in self._mappings.values():
            mapping.close()
        self._mappings = {}


NONE = Weights({})


def shard_weights(files: ModelFiles) -> Weights:
    """Return what a shard's graph gets for its initializers: the slices as they are mapped, not copied."""
    if files.shard is None or files.shard.weights is None:
        return NONE
    return Weights(
        {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in files.shard.weights.arrays.items()}
    )


def aligned_weights(graph: bytes, directory: Path) -> Weights:
    """Return the weights of an optimised ``graph`` that lie in files of ``directory``, as those are mapped here.

    Without what cannot be given: of a type that numpy does not have, or not as its file says. ONNX Runtime looks for
    that itself, and says what is wrong with it.
    """
    values: dict[str, ort.OrtValue] = {}
    mappings: dict[str, FileMapping] = {}
    try:
        for name, place in external_tensors(graph).items():
            dtype = _DTYPES.get(place.kind)
            if dtype is None or place.length < LEAST_BYTES or within(place.location) is None:
                continue
            if place.location not in mappings:
                mappings[place.location] = FileMapping(directory / place.location, aligned=True)
            array = _array(mappings[place.location], place, np.dtype(dtype))
            if array is not None:
                values[name] = ort.OrtValue.ortvalue_from_numpy(array)
    except (GraphError, LoadError, MemoryError):
        values = {}
    weights = Weights(values, mappings)
    if not values:
        weights.close()
    return weights


def _array(mapping: FileMapping, place: External, dtype: np.dtype[np.generic]) -> Array | None:
    """Return a weight where it is mapped; None where that cannot be."""
    count = 1
    for dim in place.dims:
        count *= dim
    fits = place.offset >= 0 and place.offset + place.length <= mapping.size_bytes
    if not fits or count * dtype.itemsize != place.length or place.offset % dtype.itemsize:
        return None
    held = (ctypes.c_char * place.length).from_address(mapping.address + place.offset)
    array: Array = np.frombuffer(memoryview(held), dtype).reshape(place.dims)
    array.flags.writeable = False
    return array
