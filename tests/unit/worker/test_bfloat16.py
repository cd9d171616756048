"""BF16 and BYTES through ONNX Runtime: bit patterns stay as they are, and bytes that are no text are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.worker_parts import ReadableLog
from worker.datatypes import Datatype
from worker.engines import Cancellation, EngineError, InputError, TensorSpec
from worker.engines.registry import EngineSettings, make_engine
from worker.stages import Stages
from worker.store import ModelFiles

FLOAT, STRING, BFLOAT16 = 1, 8, 16


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, data: bytes | int) -> bytes:
    if isinstance(data, int):
        return varint(number << 3) + varint(data)
    return varint(number << 3 | 2) + varint(len(data)) + data


def tensor(name: bytes, kind: int) -> bytes:
    return field(1, name) + field(2, field(1, field(1, kind) + field(2, field(1, field(2, b"N")))))


def loaded(
    directory: Path, operator: bytes, takes: int, gives: int, attribute: bytes = b"", named: bytes = b"x"
) -> Any:
    """Load a model of one operator, from ``x`` to ``y``, both of one dimension that varies."""
    node = field(1, named) + field(2, b"y") + field(4, operator) + attribute
    graph = field(1, node) + field(2, b"g") + field(11, tensor(named, takes)) + field(12, tensor(b"y", gives))
    path = directory / "model.onnx"
    path.write_bytes(field(1, 8) + field(7, graph) + field(8, field(2, 17)))
    engine = make_engine("onnxruntime", EngineSettings(ReadableLog()))
    return engine.load(ModelFiles("m", "1", directory, path), Cancellation(), Stages())


def test_bit_patterns_pass_as_they_are(tmp_path: Path) -> None:
    model = loaded(tmp_path, b"Identity", BFLOAT16, BFLOAT16)
    assert model.inputs == (TensorSpec("x", Datatype.BF16, (-1,)),)
    given = np.array([0x3F80, 0xFFFF, 0x0001], dtype=np.uint16)
    (got,) = model.run({"x": given}, ["y"], {}, Cancellation())
    assert (got.dtype, got.tolist()) == (np.uint16, given.tolist())
    (none,) = model.run({"x": given[:0]}, ["y"], {}, Cancellation())
    assert none.shape == (0,)


def test_they_are_the_numbers_that_they_mean(tmp_path: Path) -> None:
    to_float = field(5, field(1, b"to") + field(3, FLOAT) + field(20, 2))
    model = loaded(tmp_path, b"Cast", BFLOAT16, FLOAT, to_float)
    (got,) = model.run({"x": np.array([0x3F80, 0xC040], dtype=np.uint16)}, ["y"], {}, Cancellation())
    assert (got.dtype, got.tolist()) == (np.float32, [1.0, -3.0])


def test_strings_go_in_beside_bit_patterns(tmp_path: Path) -> None:
    nodes = b"".join(
        field(1, field(1, a) + field(2, b) + field(4, b"Identity")) for a, b in ((b"x", b"y"), (b"s", b"t"))
    )
    takes = field(11, tensor(b"x", BFLOAT16)) + field(11, tensor(b"s", STRING))
    gives = field(12, tensor(b"y", BFLOAT16)) + field(12, tensor(b"t", STRING))
    path = tmp_path / "model.onnx"
    path.write_bytes(field(1, 8) + field(7, nodes + field(2, b"g") + takes + gives) + field(8, field(2, 17)))
    engine = make_engine("onnxruntime", EngineSettings(ReadableLog()))
    model = engine.load(ModelFiles("m", "1", tmp_path, path), Cancellation(), Stages())
    bits = np.array([0x3F80, 1], dtype=np.uint16)
    for texts in (["ä", "", "b" * 300], []):
        inputs = {"x": bits, "s": np.array(texts, dtype=object)}
        same, said = model.run(inputs, ["y", "t"], {}, Cancellation())
        assert (same.tolist(), said.tolist()) == (bits.tolist(), texts)
    with pytest.raises(InputError, match="BYTES must be UTF-8"):
        model.run({"x": bits, "s": np.array(["\udcff"], dtype=object)}, ["y", "t"], {}, Cancellation())


def test_strings_must_be_text(tmp_path: Path) -> None:
    model = loaded(tmp_path, b"Identity", STRING, STRING)
    (got,) = model.run({"x": np.array(["ä", ""], dtype=object)}, ["y"], {}, Cancellation())
    assert got.tolist() == ["ä", ""]
    with pytest.raises(EngineError) as caught:
        loaded(tmp_path, b"Identity", STRING, STRING, named=b"a\xff")
    said = r"an input or output is named 'a\xff', which is no UTF-8; name it anew"
    assert str(caught.value) == f"{tmp_path}/model.onnx: {said}"
    with pytest.raises(InputError, match="BYTES must be UTF-8 for ONNX Runtime"):
        model.run({"x": np.array(["\udcff"], dtype=object)}, ["y"], {}, Cancellation())
