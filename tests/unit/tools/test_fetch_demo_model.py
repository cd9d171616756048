from __future__ import annotations

import json
import zipfile
from typing import TYPE_CHECKING

import pytest

from tools.fetch_demo_model import FetchError, fetch
from worker.store import scan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CONFIG = {"target_labels_space": ["python", "zip"], "beg_size": 1024, "end_size": 1024}


def lock_of(directory: Path, pin: str) -> Path:
    path = directory / "demo.lock"
    path.write_text(f"{pin} \\\n    --hash=sha256:00\n")
    return path


def wheel_with(config: object, *models: str) -> Callable[[Path, Path], Path]:
    def download(lock: Path, directory: Path) -> Path:
        wheel = directory / "demo.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for number, model in enumerate(models):
                archive.writestr(f"{model}/model.onnx", f"weights {number}")
                archive.writestr(f"{model}/config.min.json", json.dumps(config))
        return wheel

    return download


def test_the_worker_reads_what_it_writes(tmp_path: Path) -> None:
    fetch(tmp_path, lock_of(tmp_path, "demo==1"), wheel_with(CONFIG, "m/models/v3"))
    (model,) = scan(tmp_path, ["magika"], "model.onnx")
    assert (model.name, model.version, model.labels) == ("magika", "1", ("python", "zip"))
    assert model.model_file is not None
    assert model.model_file.read_text() == "weights 0"
    assert [shape_class.shapes for shape_class in model.warmup] == [{"bytes": (1, 2048)}, {"bytes": (8, 2048)}]


def test_it_downloads_only_what_is_not_there(tmp_path: Path) -> None:
    calls: list[Path] = []
    real = wheel_with(CONFIG, "m/models/v3")

    def download(lock: Path, directory: Path) -> Path:
        calls.append(lock)
        return real(lock, directory)

    for pin in ("demo==1", "demo==1", "demo==2"):
        fetch(tmp_path, lock_of(tmp_path, pin), download)
    assert len(calls) == 2
    assert (tmp_path / "magika" / "1" / "source.txt").read_text() == "demo==2\n"
    assert [path.name for path in (tmp_path / "magika").iterdir()] == ["1"]  # no scratch is left behind


@pytest.mark.parametrize(
    ("config", "models", "message"),
    [
        (CONFIG, (), "holds 0 files model.onnx, expected one"),
        (CONFIG, ("a", "b"), "holds 2 files model.onnx, expected one"),
        ({}, ("a",), "config.min.json is not as expected: KeyError('target_labels_space')"),
        (CONFIG | {"end_size": 1}, ("a",), "its input is 1025 long, expected 2048"),
    ],
)
def test_another_layout_is_refused_and_leaves_nothing(
    tmp_path: Path, config: object, models: tuple[str, ...], message: str
) -> None:
    with pytest.raises(FetchError) as caught:
        fetch(tmp_path, lock_of(tmp_path, "demo==1"), wheel_with(config, *models))
    assert message in str(caught.value)
    assert list((tmp_path / "magika").iterdir()) == []
