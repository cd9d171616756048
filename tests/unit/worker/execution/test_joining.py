from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.worker_parts import DoublingModel, X, Y
from worker.datatypes import Datatype
from worker.engines import Cancellation, EngineError, TensorSpec
from worker.execution.joining import (
    NEVER,
    Arrival,
    NotRowsError,
    Step,
    check_signature,
    join,
    kind,
    latest_begin,
    next_step,
    split,
)
from worker.execution.proof import check_batching
from worker.store import Batching, ModelFiles, ShapeClass

TERMS = Batching(max_size=4, max_delay_ms=10)


def at(*arrivals: tuple[int, float] | tuple[int, float, float]) -> list[Arrival]:
    return [Arrival(one[0], one[1], one[2] if len(one) > 2 else NEVER) for one in arrivals]


@pytest.mark.parametrize(
    ("waiting", "now", "expected"),
    [
        ([], 0.0, Step(0, full=False, again_at=NEVER)),
        (at((1, 1.0)), 1.0, Step(0, full=False, again_at=1.01)),
        (at((1, 1.0)), 1.01, Step(1, full=False, again_at=NEVER)),
        (at((1, 1.0), (2, 1.005)), 1.005, Step(0, full=False, again_at=1.01)),
        (at((1, 1.0), (2, 1.005)), 1.02, Step(2, full=False, again_at=NEVER)),
        (at((1, 1.0), (3, 1.0)), 1.0, Step(2, full=True, again_at=NEVER)),
        (at((3, 1.0), (2, 1.0)), 1.0, Step(1, full=True, again_at=NEVER)),
        (at((4, 1.0)), 1.0, Step(1, full=True, again_at=NEVER)),
        (at((1, 1.0), (1, 1.0, 1.004)), 1.0, Step(0, full=False, again_at=1.004)),
        (at((1, 1.0), (1, 1.0, 1.004)), 1.004, Step(2, full=False, again_at=NEVER)),
    ],
)
def test_what_begins_when(waiting: list[Arrival], now: float, expected: Step) -> None:
    assert next_step(waiting, TERMS, now) == expected


@pytest.mark.parametrize(
    ("deadline", "run_s", "expected"),
    [
        (None, 1.0, NEVER),
        (20.0, 0.0, 17.5),
        (20.0, 2.0, 15.5),
        (20.0, 9.0, 10.0),
        (10.01, 0.0, 10.005),
        (10.003, 0.0, 10.0),
        (9.0, 0.0, 10.0),
    ],
)
def test_when_one_must_begin_at_the_latest(deadline: float | None, run_s: float, expected: float) -> None:
    assert latest_begin(10.0, deadline, run_s) == pytest.approx(expected)


def test_without_a_delay_what_waits_begins_at_once() -> None:
    assert next_step(at((1, 1.0)), Batching(max_size=4), 1.0) == Step(1, full=False, again_at=NEVER)


arrivals = st.lists(
    st.tuples(st.integers(1, 8), st.floats(0, 0.05), st.one_of(st.none(), st.floats(0, 0.05))), max_size=30
)


@given(arrivals, st.integers(8, 16), st.floats(0, 30))
def test_batches_are_no_larger_than_may_be_and_nobody_waits_too_long(
    sizes: list[tuple[int, float, float | None]], max_size: int, delay_ms: float
) -> None:
    """Run the law as the loop does: it is asked when something comes, and when it said that it wants to be."""
    terms = Batching(max_size, delay_ms)
    now, coming = 0.0, []
    for rows, gap, patience in sizes:
        now += gap
        coming.append(Arrival(rows, now, NEVER if patience is None else now + patience))
    waiting: list[Arrival] = []
    begun: list[Arrival] = []
    again = NEVER
    while coming or waiting:
        now = min(coming[0].at if coming else NEVER, again)
        while coming and coming[0].at <= now:
            waiting.append(coming.pop(0))
        while (step := next_step(waiting, terms, now)).count:
            batch, waiting = waiting[: step.count], waiting[step.count :]
            assert sum(one.rows for one in batch) <= max_size
            for one in batch:
                assert now <= min(one.at + terms.max_delay_ms / 1000, one.latest) + 1e-9
            begun += batch
        again = step.again_at
        assert (again == NEVER) == (not waiting)
        assert again > now or not waiting
    assert [one.at for one in begun] == sorted(one.at for one in begun)
    assert len(begun) == len(sizes)


def array(*shape: int, dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)


BASE = kind({"x": array(2, 3)}, ["y"], {})


@pytest.mark.parametrize(
    ("inputs", "outputs", "parameters", "together"),
    [
        ({"x": array(5, 3)}, ["y"], {}, True),
        ({"x": array(2, 4)}, ["y"], {}, False),
        ({"x": array(2, 3, dtype=np.float64)}, ["y"], {}, False),
        ({"x": array(2, 3)}, ["z"], {}, False),
        ({"x": array(2, 3)}, ["y"], {"p": 1}, False),
        ({"w": array(2, 3)}, ["y"], {}, False),
    ],
)
def test_what_may_run_together(inputs: Any, outputs: Any, parameters: Any, together: bool) -> None:
    found = kind(inputs, outputs, parameters)
    assert BASE is not None
    assert found is not None
    assert (found[0] == BASE[0]) is together
    assert found[1] == inputs[next(iter(inputs))].shape[0]


@pytest.mark.parametrize(
    ("inputs", "parameters"),
    [
        ({}, {}),
        ({"x": np.float32(1).reshape(())}, {}),
        ({"x": array(0, 3)}, {}),
        ({"x": array(2, 3), "w": array(1, 3)}, {}),
        ({"x": array(2, 3)}, {"sequence_id": 7}),
        ({"x": array(2, 3)}, {"sequence_start": True}),
    ],
    ids=["no input", "scalar", "no row", "other rows", "sequence", "start"],
)
def test_what_runs_alone(inputs: Any, parameters: Any) -> None:
    assert kind(inputs, ["y"], parameters) is None


def test_parameters_that_are_equal_and_not_the_same_are_told_apart() -> None:
    kinds = [kind({"x": array(1, 1)}, ["y"], {"p": value}) for value in (1, 1.0, True, "1")]
    assert len({found[0] for found in kinds if found is not None}) == 4


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.sampled_from([np.int64, np.float32, np.object_]))
def test_what_was_joined_comes_apart_as_it_was(rows: list[int], dtype: Any) -> None:
    requests = [
        {"x": np.arange(10 * n, 10 * n + 2 * size).reshape(size, 2).astype(dtype)} for n, size in enumerate(rows)
    ]
    joined = join(requests)
    parts = split([joined["x"], joined["x"][:, 0]], rows)
    for request, (whole, first) in zip(requests, parts, strict=True):
        assert np.array_equal(whole, request["x"])
        assert whole.dtype == request["x"].dtype
        assert np.array_equal(first, request["x"][:, 0])


@pytest.mark.parametrize("output", [array(2, 3), np.float32(1).reshape(())])
def test_an_output_without_a_row_for_each_does_not_come_apart(output: Any) -> None:
    with pytest.raises(NotRowsError, match=r"^an output of shape .* for 3 rows$"):
        split([array(3, 1), output], [1, 2])


@pytest.mark.parametrize(
    ("specs", "text"),
    [
        (
            {"inputs": (X, TensorSpec("w", Datatype.INT8, (1, -1)))},
            "input 'w' INT8 [1, -1]",
        ),
        (
            {"outputs": (TensorSpec("y", Datatype.FP32, ()),)},
            "output 'y' FP32 []",
        ),
    ],
)
def test_only_models_whose_first_dimension_varies_can_be_batched(specs: Any, text: str) -> None:
    check_signature(DoublingModel(), "here")
    with pytest.raises(EngineError) as refused:
        check_signature(DoublingModel(**specs), "model.yaml: batching")
    assert str(refused.value) == (
        f"model.yaml: batching: {text} has no first dimension that varies, along which requests could be joined;"
        " export the model with one, or take batching away"
    )


class SummingModel(DoublingModel):
    def compute(self, values: Any) -> Any:
        return values.sum(axis=0, keepdims=True)


def test_a_model_that_gives_no_row_for_each_is_found_out() -> None:
    files = ModelFiles("m", "1", warmup=(ShapeClass("two", {"x": (2, 2)}),), batching=TERMS)
    model = DoublingModel()
    check_batching(model, files, Cancellation())
    assert [one["x"].shape for one in model.ran] == [(2, 2), (2, 2), (4, 2)]
    with pytest.raises(EngineError) as refused:
        check_batching(SummingModel(), files, Cancellation())
    assert str(refused.value) == (
        "None/model.yaml: batching: two requests of shape class 'two', joined, gave an output of shape [1, 2] for 4"
        " rows; only models that give one row for each they take can be batched; take batching away"
    )
    assert Y.shape[0] == -1


class MixingModel(DoublingModel):
    """Softmax over the rows: as many come back, and each depends on all."""

    def compute(self, values: Any) -> Any:
        powers = np.exp(values.astype(np.float32))
        return powers / powers.sum(axis=0, keepdims=True)


class PickyMixingModel(MixingModel):
    def compute(self, values: Any) -> Any:
        if len(values) == 1 and values.any():
            raise EngineError("only zeros")
        return super().compute(values)


class RandomModel(DoublingModel):
    rng = np.random.default_rng(7)

    def compute(self, values: Any) -> Any:
        return self.rng.random(values.shape).astype(np.float32)


class NearlyModel(DoublingModel):
    """Sums in another order where there are more rows, and knows no number beside."""

    def compute(self, values: Any) -> Any:
        return np.asarray(values * 2 + 1e-4 * len(values) + np.array([1, np.nan], np.float32), np.float32)


@pytest.mark.parametrize("model", [MixingModel(), PickyMixingModel()], ids=["mixing", "picky"])
def test_a_model_whose_rows_depend_on_each_other_is_found_out(model: DoublingModel) -> None:
    with pytest.raises(EngineError) as refused:
        check_batching(model, ModelFiles("m", "1", batching=TERMS), Cancellation())
    text = str(refused.value)
    assert text.startswith(
        "None/model.yaml: batching: two requests of shape class 'batch-1', joined, gave output 'y'[0, 0] 0."
    )
    assert text.endswith(
        " where it is 1.0 alone; only models of which each row of an answer depends on its own row of the inputs can be"
        " batched; take batching away"
    )


@pytest.mark.parametrize("kind", [Datatype.BF16, Datatype.FP16, Datatype.INT64, Datatype.BOOL, Datatype.BYTES])
def test_each_datatype_is_compared(kind: Datatype) -> None:
    spec = TensorSpec("x", kind, (-1, 2))

    class Rolling(DoublingModel):
        def compute(self, values: Any) -> Any:
            return np.roll(values, 1, axis=0) if self.rolling else values

        rolling = False

    model = Rolling((spec,), (TensorSpec("y", kind, (-1, 2)),))
    files = ModelFiles("m", "1", batching=TERMS)
    check_batching(model, files, Cancellation())
    model.rolling = True
    if kind is Datatype.BYTES:  # there are no other texts to be sure of
        check_batching(model, files, Cancellation())
        return
    with pytest.raises(EngineError, match=r"'y'\[0, 0\] \S+ where it is \S+ alone; only models"):
        check_batching(model, files, Cancellation())


@pytest.mark.parametrize("model", [RandomModel(), NearlyModel()], ids=["random", "nearly"])
def test_what_says_nothing_of_other_rows_is_no_reason(model: DoublingModel) -> None:
    check_batching(model, ModelFiles("m", "1", batching=TERMS), Cancellation())
