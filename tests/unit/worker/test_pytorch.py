"""PyTorch's engines, where PyTorch is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'warmroute[torch]'")

from tests.support.worker_parts import ReadableLog  # noqa: E402
from worker.datatypes import Datatype  # noqa: E402
from worker.engines import Cancellation, EngineError, GivenUpError, InputError, TensorSpec  # noqa: E402
from worker.engines.registry import EngineSettings, make_engine  # noqa: E402
from worker.stages import Stages  # noqa: E402
from worker.store import ModelFiles  # noqa: E402

OPTIONS = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
}


class Doubling(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.full((2,), 2.0))

    def forward(self, x: Any) -> Any:
        return x * self.factor


@pytest.fixture(autouse=True)
def _as_before() -> Any:
    yield
    torch.use_deterministic_algorithms(False)


def write(kind: str, directory: Path) -> None:
    if kind == "torchscript":
        torch.jit.trace(Doubling(), torch.ones(3, 2)).save(str(directory / "model.pt"))
    else:
        batch = torch.export.Dim("batch")
        program = torch.export.export(Doubling(), (torch.ones(3, 2),), dynamic_shapes={"x": {0: batch}})
        torch.export.save(program, str(directory / "model.pt2"))


def load(kind: str, directory: Path, **options: Any) -> Any:
    name = "model.pt" if kind == "torchscript" else "model.pt2"
    files = ModelFiles("m", "1", directory, directory / name, options={**OPTIONS, **options})
    return make_engine(kind, EngineSettings(ReadableLog())).load(files, Cancellation(), Stages())


def run(model: Any, x: Any) -> Any:
    return model.run({"x": np.array(x, np.float32)}, ["y"], {}, Cancellation())[0].tolist()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["torchscript", "torchexport"])
def test_a_module_is_described_and_run(kind: str, tmp_path: Path) -> None:
    write(kind, tmp_path)
    model = load(kind, tmp_path)
    assert model.inputs == (TensorSpec("x", Datatype.FP32, (-1, 2)),)
    assert model.device == "cpu"
    assert run(model, [[1, 2], [3, 4]]) == [[2, 4], [6, 8]]
    with pytest.raises(InputError):
        run(model, [[1, 2, 3]])
    cancelled = Cancellation()
    cancelled.cancel()
    with pytest.raises(GivenUpError):
        model.run({"x": np.ones((1, 2), np.float32)}, ["y"], {}, cancelled)
    model.unload()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_outputs_come_in_the_order_asked_for(tmp_path: Path) -> None:
    class Two(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x + 1, x + 2

    torch.jit.trace(Two(), torch.ones(3, 2)).save(str(tmp_path / "model.pt"))
    outputs = [{"name": name, "datatype": "FP32", "shape": [-1, 2]} for name in ("a", "b")]
    model = load("torchscript", tmp_path, outputs=outputs)
    b, a = model.run({"x": np.zeros((1, 2), np.float32)}, ["b", "a"], {}, Cancellation())
    assert (a.tolist(), b.tolist()) == ([[1, 1]], [[2, 2]])
    with pytest.raises(EngineError, match=r"^it gave 2 values \(Tensor, Tensor\), not 1 tensors$"):
        run(load("torchscript", tmp_path), [[1, 2]])


def test_an_exported_programs_weights_are_mapped(tmp_path: Path) -> None:
    write("torchexport", tmp_path)
    torch.save({"factor": torch.full((2,), 5.0)}, tmp_path / "weights.pt")
    assert run(load("torchexport", tmp_path, weights="weights.pt"), [[1, 2]]) == [[5, 10]]
    with pytest.raises(EngineError, match=r"engine.weights: '../weights.pt': no such file beside it$"):
        load("torchexport", tmp_path, weights="../weights.pt")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_pinned_is_told(tmp_path: Path) -> None:
    write("torchscript", tmp_path)
    pinned = load("torchscript", tmp_path, deterministic=True).facts()["deterministic"]
    assert (pinned["seed"], pinned["threads"], pinned["deterministic_algorithms"]) == (0, 1, True)
    assert torch.are_deterministic_algorithms_enabled()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"device": "tpu"}, "Expected `str` matching regex"),
        ({"inputs": []}, "Expected `array` of length >= 1"),
        ({"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1]}]}, "'x': PyTorch computes with no BYTES"),
        ({"outputs": OPTIONS["outputs"] * 2}, "outputs: 'y' is there twice"),
    ],
)
def test_wrong_options(tmp_path: Path, options: dict[str, Any], error: str) -> None:
    write("torchscript", tmp_path)
    with pytest.raises(EngineError, match=f"^{tmp_path}/model.yaml: engine.*{error}"):
        load("torchscript", tmp_path, **options)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_output_that_is_not_what_was_said(tmp_path: Path) -> None:
    write("torchscript", tmp_path)
    model = load("torchscript", tmp_path, outputs=[{"name": "y", "datatype": "FP64", "shape": [-1, 2]}])
    with pytest.raises(EngineError, match=r"^output 'y': float32; model.yaml says FP64$"):
        run(model, [[1, 2]])


@pytest.mark.parametrize("kind", ["torchscript", "torchexport"])
def test_what_is_no_module(kind: str, tmp_path: Path) -> None:
    name = "model.pt" if kind == "torchscript" else "model.pt2"
    (tmp_path / name).write_bytes(b"no module")
    with pytest.raises(EngineError, match=f"^{tmp_path}/{name}: "):
        load(kind, tmp_path)
