from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from tests.support.worker_parts import ReadableLog, shipped_model
from worker.engines import Cancellation, EngineError
from worker.engines.onnx_options import LOADER_THREADS, Libraries, OnnxOptions, read_options, session_options
from worker.engines.onnx_runtime import TINY_MODEL, OnnxRuntimeEngine
from worker.engines.registry import EngineSettings
from worker.stages import Stages
from worker.store import ModelFiles, scan

DIRECTORY = Path("/m/1")


def files(directory: Path = DIRECTORY, **options: Any) -> ModelFiles:
    return ModelFiles("m", "1", directory, directory / "model.onnx", options=options)


def load(directory: Path, libraries: Path | None = None, **options: Any) -> Any:
    engine = OnnxRuntimeEngine(EngineSettings(ReadableLog(), libraries=libraries))
    return engine.load(files(directory, **options), Cancellation(), Stages())


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"providers": [{"name": "X", "device": 1}]}, ": Object contains unknown field `device` - at `$.providers[0]`"),
        ({"providers": ["X", {"name": "X"}]}, ".providers: 'X' is there twice; name each once"),
        ({"graph": "some"}, ": Invalid enum value 'some' - at `$.graph`"),
        (
            {"two_phase": "on", "deterministic": True},
            ": two_phase: 'on' and deterministic: true exclude each other: the two sessions round differently",
        ),
    ],
)
def test_what_is_wrong_names_file_and_field(options: dict[str, Any], error: str) -> None:
    with pytest.raises(EngineError) as caught:
        read_options(files(**options))
    assert str(caught.value) == f"/m/1/model.yaml: engine{error}"


@pytest.mark.parametrize(
    ("text", "meant"), [("on", "on"), ("off", "off"), ('"on"', "on"), ("'off'", "off"), ("auto", "auto")]
)
def test_two_phase_is_what_model_yaml_says_quoted_or_not(tmp_path: Path, text: str, meant: str) -> None:
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").touch()
    (version / "model.yaml").write_text(f"engine: {{two_phase: {text}}}\n")
    (found,) = scan(tmp_path, ["m"], "model.onnx")
    assert read_options(found).two_phase == meant


def made(threads: int = 3, **options: Any) -> ort.SessionOptions:
    one = files(**options)
    return session_options(one, read_options(one), Libraries(None), threads, 4, {})


def entry(options: ort.SessionOptions, name: str) -> str:
    try:
        return str(options.get_session_config_entry(name))
    except RuntimeError:
        return ""


def test_threads_level_and_entries() -> None:
    plain = made(session={"session.intra_op.allow_spinning": "1"})
    assert plain.intra_op_num_threads == 3
    assert plain.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    assert entry(plain, "session.intra_op.allow_spinning") == "1", "the model's own word counts"
    assert entry(plain, LOADER_THREADS) == ""
    pinned = made(deterministic=True)
    assert (pinned.intra_op_num_threads, pinned.use_deterministic_compute) == (1, True)
    assert pinned.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    assert made(deterministic=True, graph="basic").graph_optimization_level == (
        ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    )


def test_external_data_comes_to_a_gpu_over_several_threads() -> None:
    assert entry(made(providers=["CUDAExecutionProvider"]), LOADER_THREADS) == "4"
    own = made(providers=[{"name": "CUDAExecutionProvider"}], session={LOADER_THREADS: "2"})
    assert entry(own, LOADER_THREADS) == "2"


def test_the_entry_for_external_data_does_no_harm_on_the_cpu(tmp_path: Path) -> None:
    model = load(shipped_model("mul_1", tmp_path), session={LOADER_THREADS: "4"})
    assert model.run({"X": np.ones((3, 2), np.float32)}, ["Y"], {}, Cancellation())[0].tolist() == [
        [1, 2],
        [3, 4],
        [5, 6],
    ]


def test_what_is_pinned_is_told(tmp_path: Path) -> None:
    pinned = {
        "providers": ["CPUExecutionProvider"],
        "seed": 0,
        "threads": 1,
        "graph": "extended",
        "deterministic_compute": True,
        "two_phase": "off",
    }
    environment: dict[str, str] = {}
    engine = OnnxRuntimeEngine(EngineSettings(ReadableLog(), environment=environment))
    model = engine.load(files(shipped_model("mul_1", tmp_path), deterministic=True), Cancellation(), Stages())
    assert model.facts()["deterministic"] == pinned
    assert environment == {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    assert OnnxOptions(deterministic=True, providers=("CUDAExecutionProvider",)).pins()["use_tf32"] == "0"
    assert OnnxOptions().pins() == {}


def test_providers_with_options_take_part(tmp_path: Path) -> None:
    directory = shipped_model("mul_1", tmp_path)
    model = load(directory, providers=[{"name": "CPUExecutionProvider", "options": {"use_arena": False}}])
    assert model.facts() == {"providers": ["CPUExecutionProvider"]}


def test_a_provider_that_this_build_does_not_have(tmp_path: Path) -> None:
    directory = shipped_model("mul_1", tmp_path)
    with pytest.raises(EngineError) as caught:
        load(directory, providers=["OpenVINOExecutionProvider"])
    assert str(caught.value).startswith(
        f"{directory}/model.yaml: engine.providers: 'OpenVINOExecutionProvider' is not in this ONNX Runtime; it has "
    )


def test_a_provider_by_its_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a plug-in's: known to ONNX Runtime by device only. The CPU's own stands in for it."""
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["AzureExecutionProvider"])
    model = load(shipped_model("mul_1", tmp_path))
    assert model.device == "CPUExecutionProvider"
    assert model.run({"X": np.zeros((3, 2), np.float32)}, ["Y"], {}, Cancellation())[0].shape == (3, 2)


# --- native libraries -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A custom operator library that registers nothing."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    directory = tmp_path_factory.mktemp("libraries")
    (directory / "ops.c").write_text("void *RegisterCustomOps(void *options, const void *api) { return 0; }\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", directory / "libops.so", directory / "ops.c"], check=True)
    return directory / "libops.so"


def test_a_custom_operator_library_is_registered(library: Path, tmp_path: Path) -> None:
    model = load(shipped_model("mul_1", tmp_path), library.parent, custom_ops=["libops.so"])
    assert model.device == "CPUExecutionProvider"


def test_a_library_that_is_no_provider_library(library: Path, tmp_path: Path) -> None:
    plugins = [{"name": "Mine", "library": "libops.so"}]
    with pytest.raises(EngineError, match=f"^{library}: .*CreateEpFactories"):
        load(shipped_model("mul_1", tmp_path), library.parent, plugins=plugins)


@pytest.mark.parametrize("field", ["custom_ops", "plugins"])
def test_libraries_come_from_one_directory_only(field: str, tmp_path: Path) -> None:
    directory = shipped_model("mul_1", tmp_path)
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    (tmp_path / "outside.so").touch()
    where = f"{directory}/model.yaml: engine.{field}: "

    def named(name: str) -> list[Any]:
        return [name] if field == "custom_ops" else [{"name": "Mine", "library": name}]

    with pytest.raises(EngineError) as caught:
        load(directory, None, **{field: named("a.so")})
    assert str(caught.value) == (f"{where}'a.so': native libraries are refused; start the worker with --libraries DIR")
    for name in ("a.so", "../outside.so", str(tmp_path / "outside.so")):
        with pytest.raises(EngineError) as caught:
            load(directory, libraries, **{field: named(name)})
        assert str(caught.value) == f"{where}{name!r}: no such file in {libraries} (--libraries)"


# --- devices ----------------------------------------------------------------------------------------------------


def test_the_tiny_model_is_one() -> None:
    session = ort.InferenceSession(TINY_MODEL)
    assert session.run(None, {"x": np.full(1, 7, np.float32)})[0].tolist() == [7.0]


def test_a_driver_that_fails_is_the_models_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])

    def driver() -> None:
        raise EngineError("NVIDIA driver: cuInit: no CUDA-capable device is detected (CUDA error 100)")

    engine = OnnxRuntimeEngine(EngineSettings(ReadableLog()), driver)
    directory = shipped_model("mul_1", tmp_path)
    on_gpu = files(directory, providers=["CUDAExecutionProvider"])
    for call in (lambda: engine.initialize([on_gpu]), lambda: engine.load(on_gpu, Cancellation(), Stages())):
        with pytest.raises(EngineError, match=r"^NVIDIA driver: cuInit: no CUDA-capable device is detected"):
            call()
    engine.initialize([files(directory), files(directory, graph="no such")])
    assert engine.load(files(directory), Cancellation(), Stages()).device == "CPUExecutionProvider"
    assert engine.memory() is None
