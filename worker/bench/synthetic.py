"""Synthetic transformers of any size: real matrix products on made-up weights, the same for the same size and seed.

A model takes ``tokens`` (INT64, [batch, sequence]) and gives ``pooled`` (FP32, [batch, hidden]). Between them stand an
embedding and layers of attention and an MLP, 12·hidden² weights each. The weights lie in ``model.onnx.data``
beside ``model.onnx``, each at an offset that is a multiple of a page, in the order in which the graph comes to them.
"""

from __future__ import annotations

import math
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from worker.bench import onnx_writing as onnx

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MODEL_FILE: Final = "model.onnx"
DATA_FILE: Final = "model.onnx.data"
LEAST_BYTES: Final = 1 << 18
MOST_BYTES: Final = 1 << 40
MOST_LEVELS: Final = 1 << 24
"""More values a float between 0 and 1 does not tell apart."""
_PAGE_BYTES: Final = 4096
_LEAST_LAYERS: Final = 4
_LEAST_VOCABULARY: Final = 256
_HEAD: Final = 64
_WEIGHT_BYTES: Final = 4


class SyntheticError(Exception):
    """The model cannot be written; the text says why and what helps."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a synthetic model is made of."""

    hidden: int
    layers: int
    vocabulary: int

    @property
    def parameters(self) -> int:
        """How many weights it has, those of its layer normalisations included."""
        return self.vocabulary * self.hidden + self.layers * (12 * self.hidden**2 + 4 * self.hidden) + 2 * self.hidden


def shape_of(size_bytes: int) -> Shape:
    """Return the shape whose weights take ``size_bytes``, to within one row of its embedding.

    The widest hidden size (a power of two) that still leaves four layers; what is left over becomes vocabulary.

    Raises:
        SyntheticError: less than 256 KiB or more than 1 TiB.
    """
    if not LEAST_BYTES <= size_bytes <= MOST_BYTES:
        raise SyntheticError(f"size {size_bytes} bytes: expected {LEAST_BYTES} to {MOST_BYTES}")
    hidden = 16
    while _layers(2 * hidden, size_bytes) >= _LEAST_LAYERS:
        hidden *= 2
    layers = _layers(hidden, size_bytes)
    rest = size_bytes - layers * _layer_bytes(hidden)
    return Shape(hidden, layers, rest // (hidden * _WEIGHT_BYTES))


def _layer_bytes(hidden: int) -> int:
    return 12 * hidden**2 * _WEIGHT_BYTES


def _layers(hidden: int, size_bytes: int) -> int:
    return (size_bytes - _LEAST_VOCABULARY * hidden * _WEIGHT_BYTES) // _layer_bytes(hidden)


def write_model(
    directory: Path,
    size_bytes: int,
    *,
    seed: int = 0,
    levels: int = 0,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Shape:
    """Write ``model.onnx`` and ``model.onnx.data`` into ``directory``, which is made where it is missing.

    ``levels``: round the weights to so many values, which makes them compressible; 0 leaves them as they are drawn.
    ``progress`` hears bytes written and bytes in all. No more than one weight matrix is in memory at a time.

    Raises:
        SyntheticError: there is a model already, or no room for it.
    """
    shape = shape_of(size_bytes)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / MODEL_FILE
    if path.exists():
        raise SyntheticError(f"{path}: exists already; name another directory, or remove it first")
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < size_bytes * 1.05:
        raise SyntheticError(f"{directory}: {free_bytes} bytes free, {size_bytes} needed; make room or name another")
    building = directory / f".{DATA_FILE}.{os.getpid()}"
    try:
        with building.open("wb") as file:
            graph = _Graph(file, np.random.default_rng(seed), levels, shape, progress)
            encoded = graph.build()
        building.replace(directory / DATA_FILE)
    finally:
        building.unlink(missing_ok=True)
    path.write_bytes(encoded)
    return shape


class _Graph:
    """Writes weights as it adds the nodes that use them."""

    def __init__(
        self,
        file: Any,
        rng: np.random.Generator,
        levels: int,
        shape: Shape,
        progress: Callable[[int, int], None],
    ) -> None:
        self._file = file
        self._rng = rng
        self._levels = levels
        self._shape = shape
        self._progress = progress
        self._written_bytes = 0
        self._total_bytes = shape.vocabulary * shape.hidden * _WEIGHT_BYTES + shape.layers * _layer_bytes(shape.hidden)
        self._nodes: list[bytes] = []
        self._initializers: list[bytes] = []

    def build(self) -> bytes:
        """Write all weights and return the model."""
        hidden = self._shape.hidden
        head = min(_HEAD, hidden)
        self._hold("split", np.array([0, 0, hidden // head, head], np.int64))
        self._hold("join", np.array([0, 0, hidden], np.int64))
        self._hold("scale", np.array(1 / math.sqrt(head), np.float32))
        self._hold("root", np.array(math.sqrt(2), np.float32))
        self._hold("one", np.array(1, np.float32))
        self._hold("half", np.array(0.5, np.float32))
        self._weight("embedding", self._shape.vocabulary, hidden)
        x = self._node("Gather", ["embedding", "tokens"], "embedded")
        for layer in range(self._shape.layers):
            x = self._attention(f"layers.{layer}.attention", x)
            x = self._mlp(f"layers.{layer}.mlp", x)
        x = self._normal("final", x)
        self._node("ReduceMean", [x], "pooled", axes=[1], keepdims=0)
        return onnx.model(
            "synthetic",
            self._nodes,
            self._initializers,
            [onnx.value_info("tokens", onnx.INT64, ["batch", "sequence"])],
            [onnx.value_info("pooled", onnx.FLOAT, ["batch", hidden])],
        )

    def _attention(self, name: str, x: str) -> str:
        normal = self._normal(name, x)
        heads = {}
        for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
            product = self._product(f"{name}.{part}", normal, self._shape.hidden, self._shape.hidden)
            split = self._node("Reshape", [product, "split"], f"{product}.split")
            heads[part] = self._node("Transpose", [split], f"{product}.heads", perm=order)
        scores = self._node("MatMul", [heads["query"], heads["key"]], f"{name}.scores")
        scaled = self._node("Mul", [scores, "scale"], f"{name}.scaled")
        shares = self._node("Softmax", [scaled], f"{name}.shares", axis=-1)
        mixed = self._node("MatMul", [shares, heads["value"]], f"{name}.mixed")
        turned = self._node("Transpose", [mixed], f"{name}.turned", perm=[0, 2, 1, 3])
        joined = self._node("Reshape", [turned, "join"], f"{name}.joined")
        out = self._product(f"{name}.output", joined, self._shape.hidden, self._shape.hidden)
        return self._node("Add", [x, out], f"{name}.sum")

    def _mlp(self, name: str, x: str) -> str:
        up = self._product(f"{name}.up", self._normal(name, x), self._shape.hidden, 4 * self._shape.hidden)
        rooted = self._node("Div", [up, "root"], f"{name}.rooted")
        erf = self._node("Erf", [rooted], f"{name}.erf")
        raised = self._node("Add", [erf, "one"], f"{name}.raised")
        gated = self._node("Mul", [up, raised], f"{name}.gated")
        active = self._node("Mul", [gated, "half"], f"{name}.active")
        down = self._product(f"{name}.down", active, 4 * self._shape.hidden, self._shape.hidden)
        return self._node("Add", [x, down], f"{name}.sum")

    def _normal(self, name: str, x: str) -> str:
        hidden = self._shape.hidden
        self._hold(f"{name}.norm.weight", np.ones(hidden, np.float32))
        self._hold(f"{name}.norm.bias", np.zeros(hidden, np.float32))
        return self._node(
            "LayerNormalization", [x, f"{name}.norm.weight", f"{name}.norm.bias"], f"{name}.normal", axis=-1
        )

    def _product(self, name: str, x: str, rows: int, columns: int) -> str:
        self._weight(f"{name}.weight", rows, columns)
        return self._node("MatMul", [x, f"{name}.weight"], f"{name}.product")

    def _node(self, kind: str, inputs: list[str], output: str, **attributes: int | float | list[int]) -> str:
        self._nodes.append(onnx.node(kind, inputs, output, **attributes))
        return output

    def _hold(self, name: str, values: np.ndarray[Any, np.dtype[Any]]) -> None:
        kind = onnx.INT64 if values.dtype == np.int64 else onnx.FLOAT
        self._initializers.append(onnx.tensor(name, kind, values.shape, values.tobytes()))

    def _weight(self, name: str, rows: int, columns: int) -> None:
        """Draw a matrix from ±√(3 / rows), so that what goes through it keeps its variance, and write it."""
        values = self._rng.random((rows, columns), np.float32)
        if self._levels:
            np.floor(values * self._levels, out=values)
            values /= self._levels
        values -= 0.5
        values *= 2 * math.sqrt(3 / rows)
        offset = -(-self._file.tell() // _PAGE_BYTES) * _PAGE_BYTES
        self._file.seek(offset)
        self._file.write(values.data)
        self._initializers.append(
            onnx.external_tensor(name, onnx.FLOAT, values.shape, DATA_FILE, offset, values.nbytes)
        )
        self._written_bytes += values.nbytes
        self._progress(self._written_bytes, self._total_bytes)
