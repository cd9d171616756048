"""Where tensors stand in files of weights, and what is said of files that are not as they should be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.tensors import arrays, write_onnx, write_safetensors
from worker.bench import onnx_writing
from worker.sharding import ShardError, onnx_file, safetensors
from worker.sharding.tensors import TensorInfo


def at_its_place(tensor: TensorInfo) -> np.ndarray[Any, Any]:
    data = tensor.file.read_bytes()[tensor.offset : tensor.offset + tensor.bytes]
    return np.frombuffer(data, np.float32).reshape(tensor.shape)


@pytest.mark.parametrize("kind", ["safetensors", "onnx", "onnx beside"])
def test_every_tensor_is_found_where_it_stands(tmp_path: Path, kind: str) -> None:
    wanted = arrays()
    if kind == "safetensors":
        write_safetensors(tmp_path / "model.safetensors", wanted)
        found = safetensors.read_tensors(tmp_path / "model.safetensors")
    else:
        write_onnx(tmp_path / "model.onnx", wanted, "model.data" if kind == "onnx beside" else None)
        found = onnx_file.read_tensors(tmp_path / "model.onnx")
    assert [tensor.name for tensor in found] == list(wanted)
    for tensor in found:
        assert tensor.dtype == "F32"
        assert (at_its_place(tensor) == wanted[tensor.name]).all()


def test_no_weight_is_read(tmp_path: Path) -> None:
    head = json.dumps({"w": {"dtype": "F32", "shape": [1 << 34], "data_offsets": [0, 1 << 36]}}).encode()
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(8 + len(head) + (1 << 36))  # 64 GiB that take no room
    (found,) = safetensors.read_tensors(path)
    assert found.bytes == 1 << 36


def head_of(**entries: Any) -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + bytes(16)


FOUR = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "no safetensors file, or cut"),
        (b"\xff" * 16, "no safetensors file, or cut"),
        ((20).to_bytes(8, "little") + b"{" * 20, "head: JSON is malformed"),
        (head_of(w=[]), "head: Expected `object`"),
        (head_of(w={**FOUR, "dtype": "F7"}), "tensor 'w': datatype 'F7': known: BOOL"),
        (head_of(w={**FOUR, "shape": [5]}), r"tensor 'w': F32 \[5\] does not take bytes 0 to 16"),
        (head_of(w={**FOUR, "shape": [-4]}), "does not take bytes"),
        (head_of(w={**FOUR, "data_offsets": [4, 20]}), "ends at byte .*: it was cut"),
        (head_of(w={**FOUR, "data_offsets": [-16, 0]}), "it was cut"),
        (head_of(w=FOUR, v=FOUR), "tensors 'w' and 'v' overlap"),
    ],
)
def test_a_safetensors_file_that_is_none_is_refused(tmp_path: Path, data: bytes, text: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(ShardError, match=text):
        safetensors.read_tensors(path)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (b"", "cannot mmap an empty file"),
        (b"\x3a\x05ab", "the file was cut"),
        (b"\x3b", "no field of protobuf"),
        (b"\xff" * 11, "no number of protobuf"),
        ([onnx_writing.tensor("w", onnx_writing.FLOAT, (5,), bytes(16))], r"'w': F32 \[5\] takes 20 bytes, it has 16"),
        ([onnx_writing.tensor("w", 8, (4,), bytes(16))], "'w': datatype 8 cannot be split"),
        ([onnx_writing.external_tensor("w", 1, (4,), "w.data", 0, 16)], "w.data: No such file"),
        ([onnx_writing.external_tensor("w", 1, (4,), "../w.data", 0, 16)], "is outside of"),
        (
            [onnx_writing.external_tensor("w", 1, (4,), "short", 4, 16)],
            "16 bytes from 4 of short .8 bytes.: 16 are needed",
        ),
        (
            [onnx_writing.external_tensor("w", 1, (4,), "short", 0, 8)],
            "8 bytes from 0 of short .8 bytes.: 16 are needed",
        ),
    ],
)
def test_an_onnx_file_that_is_none_is_refused(tmp_path: Path, written: bytes | list[bytes], text: str) -> None:
    (tmp_path / "short").write_bytes(bytes(8))
    path = tmp_path / "model.onnx"
    path.write_bytes(written if isinstance(written, bytes) else onnx_writing.model("m", [], written, [], []))
    with pytest.raises(ShardError, match=text):
        onnx_file.read_tensors(path)
