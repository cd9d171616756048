from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.worker_parts import DoublingModel
from worker.bench.execution import load
from worker.bench.onnx_writing import model, node, tensor, value_info
from worker.datatypes import Datatype
from worker.engines import Cancellation, EngineError, GivenUpError, TensorSpec
from worker.execution import binding
from worker.execution.buffers import ALIGNED_BYTES, FIRST_BLOCKS, LARGEST_BYTES, LEAST_BYTES, Buffers
from worker.execution.joining import join

if TYPE_CHECKING:
    from collections.abc import Mapping

    from worker.engines import Array

BYTE = np.dtype(np.uint8)
FP32 = np.dtype(np.float32)
MIB = 1 << 20


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def test_it_begins_with_blocks_of_the_smallest_size_and_refills_by_batches() -> None:
    buffers = Buffers(4 * MIB)
    assert buffers.held_bytes == FIRST_BLOCKS * LEAST_BYTES
    kept = [buffers.array((LEAST_BYTES,), BYTE) for _ in range(FIRST_BLOCKS)]
    assert (buffers.hits, buffers.misses, buffers.lent) == (FIRST_BLOCKS, 0, FIRST_BLOCKS)
    kept.append(buffers.array((1,), BYTE))
    assert (buffers.misses, buffers.held_bytes) == (1, 2 * FIRST_BLOCKS * LEAST_BYTES)
    assert len({address(array) for array in kept}) == len(kept)
    assert all(address(array) % ALIGNED_BYTES == 0 for array in kept)


def test_a_block_comes_back_when_all_that_shares_its_memory_is_gone() -> None:
    buffers = Buffers(4 * MIB)
    array = buffers.array((100, 10), FP32)
    first = address(array)
    part: Any = array[50:, 2:4].reshape(-1)
    view = array.data[10:]
    shared = np.frombuffer(view, np.float32)
    del array
    assert buffers.lent == 1
    del part, view
    assert buffers.lent == 1
    del shared
    assert buffers.lent == 0
    assert address(buffers.array((7,), BYTE)) == first, "the last that came back is the next, and still in the caches"


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((0, 5), FP32), ((3,), np.dtype(np.object_)), ((LARGEST_BYTES + 1,), BYTE)],
    ids=["empty", "objects", "too large"],
)
def test_some_arrays_are_made_as_ever(shape: tuple[int, ...], dtype: Any) -> None:
    buffers = Buffers(1 << 40)
    array = buffers.array(shape, dtype)
    assert (array.shape, array.dtype, buffers.lent) == (shape, dtype, 0)


def test_over_the_limit_arrays_have_memory_of_their_own() -> None:
    buffers = Buffers(MIB)
    kept = [buffers.array((MIB // 4,), BYTE) for _ in range(10)]
    assert buffers.held_bytes <= MIB
    assert (buffers.lent, buffers.misses, len(kept)) == (2, 9, 10)
    del kept
    assert buffers.lent == 0


@given(st.lists(st.tuples(st.integers(1, 300_000), st.booleans()), max_size=40))
@settings(max_examples=40)
def test_arrays_never_share_memory_and_the_limit_holds(steps: list[tuple[int, bool]]) -> None:
    buffers = Buffers(2 * MIB)
    kept: list[tuple[int, Any]] = []
    for number, (size, drop) in enumerate(steps):
        array = buffers.array((size,), BYTE)
        array[:] = number % 251
        kept.append((number % 251, array))
        if drop:
            kept.pop(len(kept) // 2)
        del array
        assert buffers.held_bytes <= 2 * MIB
    assert all((array == value).all() for value, array in kept)
    kept.clear()
    gc.collect()
    assert buffers.lent == 0


def test_many_threads_share_them() -> None:
    buffers = Buffers(2 * MIB)
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(300):
            array = buffers.array((100 + 50 * turn,), BYTE)
            array[:] = number
            if not (array == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (wrong, buffers.lent) == ([], 0)


def test_joined_inputs_lie_in_them() -> None:
    buffers = Buffers(MIB)
    joined = join([{"x": np.ones((1, 2), FP32)}, {"x": np.zeros((2, 2), FP32)}], buffers.array)
    assert buffers.lent == 1
    assert joined["x"].tolist() == [[1, 1], [0, 0], [0, 0]]


class IntoModel(DoublingModel):
    """Writes into what it is given; ``refusal`` is raised instead."""

    def __init__(self, refusal: Exception | None = None, columns: int = 4 * MIB) -> None:
        super().__init__(outputs=(TensorSpec("y", Datatype.FP32, (-1, columns)),))
        self.refusal = refusal
        self.into: list[tuple[int, ...]] = []

    def run_into(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], cancellation: Cancellation) -> None:
        self.into.append(outputs["y"].shape)
        if self.refusal is not None:
            raise self.refusal
        outputs["y"][...] = 3


def bound(model: DoublingModel, buffers: Buffers, cancellation: Cancellation) -> Any:
    return binding.run(model, buffers, {"x": np.ones((1, 2), FP32)}, ["y"], {}, cancellation)[0]


def test_outputs_that_are_large_and_known_are_written_where_they_are_wanted() -> None:
    buffers, model = Buffers(64 * MIB), IntoModel()
    assert bound(model, buffers, Cancellation())[0, 0] == 3
    assert (model.into, model.ran) == ([(1, 4 * MIB)], [])
    small = IntoModel(columns=1000)
    assert bound(small, buffers, Cancellation())[0, 0] == 2
    assert small.into == []
    plain = DoublingModel()
    assert bound(plain, buffers, Cancellation())[0, 0] == 2


def test_a_model_that_cannot_is_run_as_ever_and_not_asked_again() -> None:
    buffers, model = Buffers(64 * MIB), IntoModel(EngineError("an output of another shape"))
    for _ in range(2):
        assert bound(model, buffers, Cancellation())[0, 0] == 2
    assert (len(model.into), len(model.ran)) == (1, 2)
    given_up = Cancellation()
    given_up.cancel()
    with pytest.raises(GivenUpError):
        bound(IntoModel(GivenUpError("x")), buffers, given_up)


@pytest.mark.parametrize(
    ("shape", "inputs", "expected"),
    [
        ((-1, 3), {"x": (2, 5)}, {"y": (2, 3)}),
        ((-1,), {"x": (2, 5), "w": (2,)}, {"y": (2,)}),
        ((-1, 3), {"x": (2, 5), "w": (1,)}, None),
        ((-1, -1), {"x": (2, 5)}, None),
        ((2, 3), {"x": (2, 5)}, None),
        ((), {"x": (2, 5)}, None),
        ((-1, 3), {"x": ()}, None),
    ],
)
def test_which_shapes_are_known(shape: Any, inputs: Any, expected: Any) -> None:
    specs = [TensorSpec("y", Datatype.FP32, shape)]
    arrays = {name: np.zeros(dims, FP32) for name, dims in inputs.items()}
    assert binding.output_shapes(specs, ["y"], arrays) == expected
    assert binding.output_shapes([TensorSpec("y", Datatype.BYTES, shape)], ["y"], arrays) is None


def test_onnx_runtime_writes_into_them() -> None:
    buffers = Buffers(64 * MIB)
    columns = binding.BIND_FROM_BYTES // 4
    with load(columns) as loaded:
        x = np.arange(columns, dtype=FP32).reshape(1, -1)
        (y,) = binding.run(loaded, buffers, {"x": x}, ["y"], {}, Cancellation())
        assert buffers.lent == 1, "it was written there"
        assert np.array_equal(y, 2 * x)
        assert loaded not in buffers.unfit


def test_what_onnx_runtime_finds_to_be_of_another_shape_is_run_as_ever(tmp_path: Path) -> None:
    columns = binding.BIND_FROM_BYTES // 4
    infos = [[value_info(name, 1, [rows, columns])] for name, rows in (("x", "rows"), ("y", "kept"))]
    keep_none = tensor("keep", 9, [1], b"\0")
    file = tmp_path / "model.onnx"
    file.write_bytes(model("none", [node("Compress", ["x", "keep"], "y", axis=0)], [keep_none], *infos))
    with load(columns, file) as loaded:
        buffers = Buffers(64 * MIB)
        x = np.ones((1, columns), FP32)
        (y,) = binding.run(loaded, buffers, {"x": x}, ["y"], {}, Cancellation())
        assert y.shape == (0, columns)
        assert loaded in buffers.unfit
        del y
        gc.collect()
        assert buffers.lent == 0
