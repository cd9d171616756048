from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.worker_parts import ReadableLog, shipped_model
from worker.datatypes import Datatype
from worker.engines import Cancellation, EngineError, GivenUpError, InputError, TensorSpec
from worker.engines.deterministic import DeterministicModel
from worker.engines.registry import ENGINES, EngineSettings, make_engine
from worker.stages import Stages
from worker.store import ModelFiles


def deterministic(load_s: float = 0.0, service_s: float = 0.0, **options: Any) -> DeterministicModel:
    engine = make_engine("deterministic", EngineSettings(ReadableLog(), load_s=load_s, service_s=service_s))
    model = engine.load(ModelFiles("m", "1", options=options), Cancellation(), Stages())
    assert isinstance(model, DeterministicModel)
    return model


def onnx(directory: Path, **options: Any) -> Any:
    files = ModelFiles("m", "1", directory, directory / "model.onnx", options=options)
    return make_engine("onnxruntime", EngineSettings(ReadableLog())).load(files, Cancellation(), Stages())


def test_the_registry_knows_every_engine_and_refuses_others() -> None:
    assert sorted(ENGINES) == ["deterministic", "onnxruntime", "torchexport", "torchscript"]
    with pytest.raises(EngineError) as caught:
        make_engine("tensorrt", EngineSettings(ReadableLog()))
    known = "onnxruntime, deterministic, torchscript, torchexport"
    assert str(caught.value) == f"engine 'tensorrt': there is none; known: {known}"
    assert ENGINES["onnxruntime"].concurrency(6) == 6
    assert ENGINES["deterministic"].concurrency(6) == 64


# --- deterministic ----------------------------------------------------------------------------------------------


def test_outputs_echo_inputs_and_executions_are_counted() -> None:
    model = deterministic(
        inputs=[
            {"name": "a", "datatype": "INT8", "shape": [-1]},
            {"name": "b", "datatype": "BYTES", "shape": [1]},
        ]
    )
    assert model.outputs == (TensorSpec("OUTPUT0", Datatype.INT8, (-1,)), TensorSpec("OUTPUT1", Datatype.BYTES, (1,)))
    a, b = np.array([1, 2], np.int8), np.array(["x"], np.object_)
    out = model.run({"a": a, "b": b}, ["OUTPUT1", "OUTPUT0"], {}, Cancellation())
    assert [array.tolist() for array in out] == [["x"], [1, 2]]
    assert model.executions == 1


def test_a_run_lasts_its_service_time_and_can_be_given_up() -> None:
    model = deterministic(service_s=60.0)
    cancellation = Cancellation()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            model.run({"INPUT0": np.zeros((1, 1), np.float32)}, ["OUTPUT0"], {}, cancellation)
        except GivenUpError as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    cancellation.cancel()
    thread.join(10)
    assert len(failures) == 1
    model.run({"INPUT0": np.zeros((1, 1), np.float32)}, ["OUTPUT0"], {"service_ms": 0}, Cancellation())
    assert model.executions == 2


@pytest.mark.parametrize("value", ["5", True, -1, 600_001])
def test_a_service_time_that_is_none(value: Any) -> None:
    with pytest.raises(InputError, match=r"^parameter 'service_ms': .*: expected a number from 0 to 600000$"):
        deterministic().run({}, [], {"service_ms": value}, Cancellation())


def test_a_load_can_be_given_up() -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    with pytest.raises(GivenUpError):
        make_engine("deterministic", EngineSettings(ReadableLog(), load_s=60)).load(
            ModelFiles("m", "1"), cancellation, Stages()
        )


def test_wrong_options_name_the_file() -> None:
    with pytest.raises(EngineError, match=r"model.yaml: engine: Object contains unknown field `input`$"):
        deterministic(input=[])


# --- ONNX Runtime -----------------------------------------------------------------------------------------------


def test_a_real_model_is_described_and_run(tmp_path: Path) -> None:
    model = onnx(shipped_model("mul_1", tmp_path))
    assert model.inputs == (TensorSpec("X", Datatype.FP32, (3, 2)),)
    assert model.outputs == (TensorSpec("Y", Datatype.FP32, (3, 2)),)
    assert (model.platform, model.device) == ("onnxruntime_onnx", "CPUExecutionProvider")
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    (y,) = model.run({"X": x}, ["Y"], {}, Cancellation())
    assert y.tolist() == [[0.0, 2.0], [6.0, 12.0], [20.0, 30.0]]
    model.unload()


def test_an_output_without_a_datatype_is_refused_at_load(tmp_path: Path) -> None:
    with pytest.raises(EngineError) as caught:
        onnx(shipped_model("logreg_iris", tmp_path))
    assert str(caught.value) == (
        "output 'probabilities': type seq(map(int64,tensor(float))) has no datatype in the protocol"
    )


def test_what_is_no_model_is_refused_with_its_path(tmp_path: Path) -> None:
    directory = shipped_model("mul_1", tmp_path)
    (directory / "model.onnx").write_bytes(b"not a model")
    with pytest.raises(EngineError, match=f"^{directory}/model.onnx: .*Protobuf parsing failed"):
        onnx(directory)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"providers": []}, "Expected `array` of length >= 1 - at `$.providers`"),
        ({"threads": 4}, "Object contains unknown field `threads`"),
    ],
)
def test_wrong_engine_options_name_the_file(tmp_path: Path, options: dict[str, Any], error: str) -> None:
    directory = shipped_model("mul_1", tmp_path)
    with pytest.raises(EngineError) as caught:
        onnx(directory, **options)
    assert str(caught.value) == f"{directory}/model.yaml: engine: {error}"


def test_a_provider_that_takes_no_part_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="NoSuchProvider"):
        onnx(shipped_model("mul_1", tmp_path), providers=["NoSuchProvider", "CPUExecutionProvider"])


def test_a_shape_that_the_graph_refuses_is_the_callers_fault(tmp_path: Path) -> None:
    model = onnx(shipped_model("mul_1", tmp_path))
    with pytest.raises(InputError, match="Got invalid dimensions for input: X"):
        model.run({"X": np.zeros((4, 2), np.float32)}, ["Y"], {}, Cancellation())


def test_a_run_that_was_given_up_before_it_began(tmp_path: Path) -> None:
    model = onnx(shipped_model("mul_1", tmp_path))
    cancellation = Cancellation()
    cancellation.cancel()
    with pytest.raises(GivenUpError):
        model.run({"X": np.zeros((3, 2), np.float32)}, ["Y"], {}, cancellation)
