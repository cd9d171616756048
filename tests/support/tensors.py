"""Files of weights, written for tests: safetensors, and ONNX with its weights inside and beside it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from worker.bench import onnx_writing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def arrays(heads: int = 64, width: int = 32, inner: int = 90, seed: int = 1) -> dict[str, np.ndarray[Any, Any]]:
    """Return the weights of a small layer: split on 0, on 1 with padding for 4 shards, and whole."""
    rng = np.random.default_rng(seed)
    shapes = {
        "h.0.attn.q_proj.weight": (heads, width),
        "h.0.attn.q_proj.bias": (heads,),
        "h.0.mlp.up_proj.weight": (width, inner),
        "h.0.mlp.up_proj.bias": (inner,),
        "h.0.ln.weight": (width,),
    }
    return {name: rng.random(shape, np.float32) for name, shape in shapes.items()}


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray[Any, Any]], pad: int = 8) -> None:
    """Write ``tensors`` (FP32), the head padded to ``pad`` bytes as the format's own writer does."""
    at, head = 0, {}
    for name, array in tensors.items():
        head[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps({"__metadata__": {"format": "pt"}, **head}).encode()
    text += b" " * (-len(text) % pad)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for array in tensors.values()))


def write_onnx(path: Path, tensors: Mapping[str, np.ndarray[Any, Any]], outside: str | None = None) -> None:
    """Write a graph that gives its input back, with ``tensors`` as initializers; in the file ``outside`` if named."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if outside is not None:
        (path.parent / outside).write_bytes(b"".join(array.tobytes() for array in tensors.values()))
    at, written = 0, []
    for name, array in tensors.items():
        if outside is None:
            written.append(onnx_writing.tensor(name, onnx_writing.FLOAT, array.shape, array.tobytes()))
        else:
            written.append(
                onnx_writing.external_tensor(name, onnx_writing.FLOAT, array.shape, outside, at, array.nbytes)
            )
        at += array.nbytes
    value = [onnx_writing.value_info(name, onnx_writing.FLOAT, [2]) for name in ("x", "y")]
    node = onnx_writing.node("Identity", ["x"], "y")
    path.write_bytes(onnx_writing.model("m", [node], written, value[:1], value[1:]))
