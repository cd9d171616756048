from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.models import NO_FILE, put_no_file
from tests.support.worker_parts import DoublingModel, EchoingModel, EmptyLoader, FixedEngine
from worker.building import Builder, BuildError
from worker.datatypes import Datatype
from worker.engines import Cancellation, TensorSpec
from worker.expectation import ExpectationError, check_expected
from worker.memory import HostMemory
from worker.paths import NotAFileError
from worker.stages import Stages
from worker.store import ModelFiles

save: Any = np.savez
ASKED = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2.5]}
RIGHT = {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [2, 5]}


class PinnedModel(DoublingModel):
    """One whose engine was told to be deterministic."""

    def facts(self) -> Mapping[str, Any]:
        return {"deterministic": {"threads": 1}}


def check(directory: Path, model: DoublingModel | None = None, **said: Any) -> None:
    (directory / "expect.json").write_text(json.dumps(said))
    check_expected(model or DoublingModel(), ModelFiles("m", "1", directory), Cancellation())


def test_nothing_is_compared_where_nothing_is_stored(tmp_path: Path) -> None:
    model = DoublingModel()
    check_expected(model, ModelFiles("m", "1", tmp_path), Cancellation())
    check_expected(model, ModelFiles("m", "1"), Cancellation())
    assert model.ran == []


def test_the_right_answer_passes(tmp_path: Path) -> None:
    model = DoublingModel()
    check(tmp_path, model, inputs=[ASKED], outputs=[RIGHT])
    assert [sorted(run) for run in model.ran] == [["x"]]


def test_a_wrong_answer_is_told_with_both_values(tmp_path: Path) -> None:
    with pytest.raises(ExpectationError) as caught:
        check(tmp_path, inputs=[ASKED], outputs=[{**RIGHT, "data": [2, 5.5]}])
    assert str(caught.value) == (
        f"{tmp_path}/expect.json: output 'y'[0, 1]: expected 5.5, got 5.0;"
        " 1 of 2 values differ by more than 1e-05 + 0.001 of the expected"
    )


def test_what_is_pinned_is_compared_to_the_bit(tmp_path: Path) -> None:
    nearly = {**RIGHT, "data": [2, 5.0001]}
    check(tmp_path, inputs=[ASKED], outputs=[nearly])
    with pytest.raises(ExpectationError, match=r"expected 5\.000100135803223, got 5\.0; 1 of 2 values differ$"):
        check(tmp_path, PinnedModel(), inputs=[ASKED], outputs=[nearly])
    check(tmp_path, PinnedModel(), inputs=[ASKED], outputs=[nearly], rtol=0.01)


def test_values_that_are_no_numbers(tmp_path: Path) -> None:
    spec = TensorSpec("s", Datatype.BYTES, (-1,))
    model = EchoingModel((spec,), (TensorSpec("t", Datatype.BYTES, (-1,)),))
    tensor = {"datatype": "BYTES", "shape": [2], "data": ["a", "b"]}
    check(tmp_path, model, inputs=[{"name": "s", **tensor}], outputs=[{"name": "t", **tensor}])
    with pytest.raises(ExpectationError, match=r"output 't'\[1\]: expected c, got b; 1 of 2 values differ$"):
        check(tmp_path, model, inputs=[{"name": "s", **tensor}], outputs=[{"name": "t", **tensor, "data": ["a", "c"]}])


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"inputs": [ASKED], "outputs": []}, "Expected `array` of length >= 1 - at `$.outputs`"),
        ({"outputs": [RIGHT]}, "input 'x' is missing"),
        ({"inputs": [{**ASKED, "name": "z"}], "outputs": [RIGHT]}, "input 'z' is not the model's; it has x"),
        ({"inputs": [ASKED], "outputs": [{**RIGHT, "name": "z"}]}, "output 'z' is not the model's; it has y"),
        ({"inputs": [ASKED], "outputs": [{**RIGHT, "shape": [3]}]}, "cannot reshape array of size 2 into shape (3,)"),
        (
            {"inputs": [ASKED], "outputs": [{**RIGHT, "shape": [2]}]},
            "output 'y': expected float32 [2], got float32 [1, 2]",
        ),
        (
            {"inputs": [ASKED], "outputs": [{**RIGHT, "datatype": "FP64"}]},
            "output 'y': expected float64 [1, 2], got float32 [1, 2]",
        ),
    ],
)
def test_what_cannot_be_compared(tmp_path: Path, said: dict[str, Any], error: str) -> None:
    with pytest.raises(ExpectationError) as caught:
        check(tmp_path, **said)
    assert str(caught.value) == f"{tmp_path}/expect.json: {error}"


@pytest.mark.parametrize("what", ["directory", "pipe", "link"])
@pytest.mark.parametrize("name", ["expect.json", "expect.npz"])
def test_an_answer_that_is_no_file_is_not_passed_over(tmp_path: Path, name: str, what: str) -> None:
    put_no_file(tmp_path / name, what)
    with pytest.raises(NotAFileError) as caught:
        check_expected(DoublingModel(), ModelFiles("m", "1", tmp_path), Cancellation())
    assert f"{caught.value.filename}: {caught.value.strerror}" == f"{tmp_path / name}: {NO_FILE}"


def test_a_model_that_answers_wrongly_never_serves(tmp_path: Path) -> None:
    (tmp_path / "expect.json").write_text(json.dumps({"inputs": [ASKED], "outputs": [{**RIGHT, "data": [2, 9]}]}))
    model = DoublingModel()
    builder = Builder(FixedEngine(model), EmptyLoader(), HostMemory())
    files = ModelFiles("m", "1", tmp_path)

    async def build() -> None:
        await builder.build(files, Cancellation(), Stages(), lambda *_: None, lambda: None, lambda _: None)

    with pytest.raises(BuildError, match=r"expect.json: output 'y'\[0, 1\]: expected 9\.0, got 5\.0; 1 of 2 values"):
        asyncio.run(build())
    assert model.closed


def test_arrays(tmp_path: Path) -> None:
    files = ModelFiles("m", "1", tmp_path)
    x = np.array([[1, np.nan]], np.float32)
    save(tmp_path / "expect.npz", **{"input:x": x, "output:y": x * 2})
    check_expected(DoublingModel(), files, Cancellation())
    save(tmp_path / "expect.npz", **{"input:x": x, "output:y": x})
    with pytest.raises(ExpectationError, match=r"expect.npz: output 'y'\[0, 0\]: expected 1\.0, got 2\.0;"):
        check_expected(DoublingModel(), files, Cancellation())
    for arrays, error in (({"x": x}, "array 'x': name arrays"), ({"input:x": x}, "no array output:NAME")):
        save(tmp_path / "expect.npz", **arrays)
        with pytest.raises(ExpectationError, match=error):
            check_expected(DoublingModel(), files, Cancellation())
    (tmp_path / "expect.npz").write_bytes(b"no archive")
    with pytest.raises(ExpectationError, match=f"^{tmp_path}/expect.npz: "):
        check_expected(DoublingModel(), files, Cancellation())
