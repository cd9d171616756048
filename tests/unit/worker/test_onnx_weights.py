from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.worker_parts import ReadableLog
from worker.bench import onnx_writing
from worker.bench.synthetic import write_model
from worker.engines import Cancellation
from worker.engines.model_cache import ModelCache
from worker.engines.onnx_cache import OptimisedGraphs
from worker.engines.onnx_runtime import OnnxRuntimeEngine
from worker.engines.onnx_weights import LEAST_BYTES, aligned_weights
from worker.engines.registry import EngineSettings
from worker.loading.mapping import huge_bytes
from worker.loading.own_memory import FileId, mapped_areas, move
from worker.sharding.reading import ShardWeights
from worker.stages import Stages
from worker.store import HeldShard, ModelFiles

SIDE = 256
SIZE = SIDE * SIDE * 4
FLOAT8 = 17


def graph_of(*tensors: bytes) -> bytes:
    return onnx_writing.model("g", [], tensors, [], [])


def weight(
    name: str, offset: int = 0, kind: int = onnx_writing.FLOAT, dims: tuple[int, ...] = (SIDE, SIDE), **more: Any
) -> bytes:
    location = more.get("location", "data")
    return onnx_writing.external_tensor(name, kind, dims, location, offset, more.get("length", SIZE))


def test_weights_are_those_of_the_file(tmp_path: Path) -> None:
    content = os.urandom(2 * SIZE)
    (tmp_path / "data").write_bytes(content)
    found = aligned_weights(graph_of(weight("a"), weight("b", SIZE)), tmp_path)
    wanted = np.frombuffer(content, np.float32).reshape(2, SIDE, SIDE)
    for number, name in enumerate("ab"):
        assert found.values[name].numpy().tobytes() == wanted[number].tobytes()
        assert found.values[name].shape() == [SIDE, SIDE]
    found.close()
    assert found.values == {}


@pytest.mark.parametrize(
    "tensor",
    [
        weight("other length", dims=(SIDE, SIDE + 1)),
        weight("behind the end", SIZE + 4),
        weight("odd place", 2),
        weight("outside", location="../data"),
        weight("no such file", location="none"),
        weight("no such type", kind=FLOAT8, dims=(SIZE,)),
        weight("small", dims=(LEAST_BYTES // 4 - 1,), length=LEAST_BYTES - 4),
    ],
)
def test_what_cannot_be_given_is_left_to_the_engine(tmp_path: Path, tensor: bytes) -> None:
    directory = tmp_path / "version"
    directory.mkdir()
    for path in (directory / "data", tmp_path / "data"):
        path.write_bytes(bytes(2 * SIZE))
    assert aligned_weights(graph_of(tensor), directory).values == {}


def test_what_is_no_graph_gives_nothing(tmp_path: Path) -> None:
    assert aligned_weights(b"\xff" * 11, tmp_path).values == {}


def test_a_copy_in_shared_memory_is_mapped_where_huge_pages_can_be_and_answers_the_same(tmp_path: Path) -> None:
    directory = tmp_path / "m" / "1"
    directory.mkdir(parents=True)
    write_model(directory, max(4 << 20, 2 * huge_bytes()))
    status = (directory / "model.onnx.data").stat()
    file = FileId(status.st_dev, status.st_ino)

    def areas() -> list[Any]:
        return mapped_areas({file: directory / "model.onnx.data"}).get(file, [])

    log = ReadableLog()
    graphs = OptimisedGraphs(ModelCache(tmp_path / "cache", 1 << 20, log), log, settle_s=0.0)
    engine = OnnxRuntimeEngine(EngineSettings(log), graphs=graphs)
    files = ModelFiles("m", "1", directory, directory / "model.onnx", options={"two_phase": "on"}, content_hash="h")

    def load(files: ModelFiles) -> Any:
        model = engine.load(files, Cancellation(), Stages())
        graphs.wait(30)
        return model

    def answer(model: Any) -> Any:
        return model.run({"tokens": np.arange(8, dtype=np.int64).reshape(1, 8)}, ["pooled"], {}, Cancellation())[0]

    load(files).unload()  # it has the graph kept
    plain = load(files)
    wanted = answer(plain)
    plain.unload()
    assert areas() == []
    shared = load(dataclasses.replace(files, in_shared_memory=True))
    assert shared.facts()["optimised"] == "kept"
    if huge_bytes():
        whole = [area for area in areas() if area.size_bytes >= status.st_size // 4096 * 4096]
        assert [area.start % huge_bytes() for area in whole] == [0]
    assert np.array_equal(answer(shared), wanted)
    shared.detach()  # as the guard of the files does where somebody is to write to them
    assert move(file, directory / "model.onnx.data") > 0
    (directory / "model.onnx.data").write_bytes(b"")
    assert np.array_equal(answer(shared), wanted)
    shared.unload()
    assert areas() == []
    assert log.events("model_cache.dropped") == []


FLIP = {"perm": [1, 0]}


@pytest.mark.parametrize("two_phase", ["auto", "on", "off"])
@pytest.mark.parametrize(
    "nodes",
    [
        # Transposes are pushed through the addition, and its weight is transposed in its place.
        [
            onnx_writing.node("Transpose", ["x"], "a", **FLIP),
            onnx_writing.node("Add", ["a", "w"], "b"),
            onnx_writing.node("Transpose", ["b"], "y", **FLIP),
        ],
        # The transposed weight is computed while the session is made.
        [onnx_writing.node("Transpose", ["w"], "a", **FLIP), onnx_writing.node("Add", ["x", "a"], "y")],
    ],
)
def test_a_shard_answers_with_its_slices_whatever_could_be_optimised(
    tmp_path: Path, nodes: list[bytes], two_phase: str
) -> None:
    w = np.arange(9, dtype=np.float32).reshape(3, 3)
    (tmp_path / "data").write_bytes(bytes(w.nbytes))
    info = [onnx_writing.value_info(name, onnx_writing.FLOAT, (3, 3)) for name in "xy"]
    weights = [onnx_writing.external_tensor("w", onnx_writing.FLOAT, (3, 3), "data", 0, w.nbytes)]
    (tmp_path / "model.onnx").write_bytes(onnx_writing.model("g", nodes, weights, info[:1], info[1:]))
    held = HeldShard(0, 2, weights=ShardWeights({"w": w}, (), "h"))
    files = ModelFiles("m", "1", tmp_path, tmp_path / "model.onnx", options={"two_phase": two_phase}, shard=held)
    model = OnnxRuntimeEngine(EngineSettings(ReadableLog())).load(files, Cancellation(), Stages())
    x = np.full((3, 3), 10, np.float32)
    assert np.array_equal(model.run({"x": x}, ["y"], {}, Cancellation())[0], x + w.T)
    model.unload()
