"""Small ONNX models that are written where a test needs them."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

from worker.bench.onnx_writing import FLOAT, model, node, tensor, value_info

WIDTH = 768


def put_product(directory: Path, factor: float, width: int = WIDTH) -> Path:
    """Write a model that gives its input times a matrix of ``factor`` into ``directory``, whole at once.

    Its matrix takes ``4 * width**2`` bytes: 2.25 MiB. Returns the model's file.
    """
    directory.mkdir(parents=True, exist_ok=True)
    matrix = tensor("w", FLOAT, [width, width], struct.pack("<f", factor) * (width * width))
    shapes = [[value_info(name, FLOAT, ["n", width])] for name in ("x", "y")]
    whole = model("product", [node("MatMul", ["x", "w"], "y")], [matrix], *shapes)
    (directory / ".model.onnx").write_bytes(whole)
    return (directory / ".model.onnx").rename(directory / "model.onnx")


def product_body(width: int = WIDTH) -> dict[str, Any]:
    """Return a request whose answer is ``width`` times the factor, in every place."""
    return {"inputs": [{"name": "x", "shape": [1, width], "datatype": "FP32", "data": [1.0] * width}]}


NO_FILE = "there, and no file; put the file in its place, or take it away"
"""What is said of what :func:`put_no_file` put there."""


def put_no_file(path: Path, what: str) -> None:
    """Put a ``directory``, a ``pipe`` or a ``link`` to nothing where a file may be."""
    if what == "directory":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path.with_name("nowhere"))
