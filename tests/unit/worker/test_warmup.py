from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.support.worker_parts import DoublingModel, X
from worker.datatypes import Datatype
from worker.engines import Cancellation, EngineError, GivenUpError, TensorSpec
from worker.store import Fill, ModelFiles, ShapeClass
from worker.warmup import DEFAULT_CLASS, WarmupError, shape_classes, warm_up

if TYPE_CHECKING:
    from worker.engines import Array


def test_the_default_is_batch_1_of_zeros() -> None:
    model = DoublingModel(inputs=(X, TensorSpec("s", Datatype.BYTES, (2, -1))))
    proven: list[ShapeClass] = []
    warm_up(model, shape_classes(ModelFiles("m", "1")), Cancellation(), proven.append)
    assert proven == [DEFAULT_CLASS]
    ((ran),) = model.ran
    assert ran["x"].tolist() == [[0.0, 0.0]]
    assert ran["x"].dtype == np.float32
    assert ran["s"].tolist() == [[""], [""]]


def test_every_declared_class_is_run_in_order() -> None:
    model = DoublingModel()
    classes = (ShapeClass("one", {"x": (1, 2)}), ShapeClass("four", {"x": (4, 2)}))
    proven: list[str] = []
    warm_up(model, classes, Cancellation(), lambda shape_class: proven.append(shape_class.name))
    assert proven == ["one", "four"]
    assert [ran["x"].shape for ran in model.ran] == [(1, 2), (4, 2)]


@pytest.mark.parametrize(
    ("shapes", "error"),
    [
        ({"z": (1,)}, "warm-up 'c': input 'z' is not the model's; it has x"),
        ({"x": (1, 3)}, "warm-up 'c': input 'x': expected shape [-1, 2], given [1, 3]"),
        ({"x": (2,)}, "warm-up 'c': input 'x': expected shape [-1, 2], given [2]"),
    ],
)
def test_a_class_that_does_not_fit_the_model(shapes: dict[str, tuple[int, ...]], error: str) -> None:
    model = DoublingModel()
    with pytest.raises(WarmupError) as caught:
        warm_up(model, (ShapeClass("c", shapes),), Cancellation(), lambda _: None)
    assert str(caught.value) == error
    assert model.ran == []


@pytest.mark.parametrize("fill", ["zeros", "ones", "random"])
def test_a_class_that_no_memory_holds_is_named(fill: Fill) -> None:
    with pytest.raises(WarmupError) as caught:
        warm_up(DoublingModel(), (ShapeClass("c", {"x": (1 << 62, 2)}, fill=fill),), Cancellation(), lambda _: None)
    text = str(caught.value)
    assert text.startswith(f"warm-up 'c': input 'x': shape [{1 << 62}, 2] is too big: ")
    assert text.endswith("; name a smaller one, of a size that callers send")


def test_a_run_that_no_memory_holds_is_named() -> None:
    class Huge(DoublingModel):
        def run(self, *_: object) -> list[Array]:
            raise MemoryError("too many")

    with pytest.raises(WarmupError, match=r"^warm-up run 'c' failed: out of memory: too many$"):
        warm_up(Huge(), (ShapeClass("c"),), Cancellation(), lambda _: None)


def test_a_failing_run_proves_nothing_and_stops() -> None:
    model = DoublingModel(error=EngineError("out of memory"))
    proven: list[ShapeClass] = []
    with pytest.raises(WarmupError, match=r"^warm-up run 'a' failed: out of memory$"):
        warm_up(model, (ShapeClass("a"), ShapeClass("b")), Cancellation(), proven.append)
    assert proven == []
    assert len(model.ran) == 1


def test_a_run_that_was_given_up_is_no_failure_of_the_model() -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    with pytest.raises(GivenUpError):
        warm_up(DoublingModel(error=GivenUpError("x")), (ShapeClass("a"),), cancellation, lambda _: None)
