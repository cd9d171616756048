from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools.fetch_demo_model import FetchError, fetch, remove
from worker.store import scan

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[3]
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
    assert (tmp_path / "magika" / "1" / "source.txt").read_text().startswith("demo==2\n")
    assert [path.name for path in (tmp_path / "magika").iterdir()] == ["1"]  # no scratch is left behind


def mine(version: Path) -> None:
    version.mkdir(parents=True)
    (version / "model.onnx").write_text("weights of a user")


def mine_with_a_source(version: Path) -> None:
    mine(version)
    (version / "source.txt").write_text("where I have them from\n")


def edited(version: Path) -> None:
    fetch(version.parents[1], lock_of(version.parents[2], "demo==1"), wheel_with(CONFIG, "m/models/v3"))
    (version / "model.yaml").write_text("labels: labels.txt\nengine: {}\n")


def added_to(version: Path) -> None:
    fetch(version.parents[1], lock_of(version.parents[2], "demo==1"), wheel_with(CONFIG, "m/models/v3"))
    (version / "notes.txt").write_text("mine")


def linked(version: Path) -> None:
    mine(version.parents[2] / "elsewhere")
    version.parent.mkdir(parents=True)
    version.symlink_to(version.parents[2] / "elsewhere")


def tree(directory: Path) -> dict[str, str]:
    return {str(path.relative_to(directory)): path.read_text() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("make", [mine, mine_with_a_source, edited, added_to, linked])
def test_what_is_not_as_it_was_put_there_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], None]
) -> None:
    version = tmp_path / "models" / "magika" / "1"
    make(version)
    before = tree(tmp_path / "models"), tree(tmp_path)
    fetch(tmp_path / "models", lock_of(tmp_path, "demo==2"), wheel_with(CONFIG, "m/models/v3"))
    remove(tmp_path / "models")
    assert tree(tmp_path / "models") == before[0]
    assert version.exists()
    left = f"{version} is not, or not any more, as this tool puts it there: left as it is\n"
    assert capsys.readouterr().err == left * 2


def test_it_removes_what_it_put_there_and_nothing_else(tmp_path: Path) -> None:
    models = tmp_path / "models"
    fetch(models, lock_of(tmp_path, "demo==1"), wheel_with(CONFIG, "m/models/v3"))
    mine(models / "other" / "1")
    remove(models)
    assert tree(models) == {"other/1/model.onnx": "weights of a user"}
    shutil.rmtree(models / "other")
    remove(models)
    assert not models.exists()
    remove(models)


def test_make_clean_leaves_the_models_to_the_tool() -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    done = subprocess.run(
        ["make", "--dry-run", "clean", "MODELS=precious"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    naming = [line for line in done.stdout.splitlines() if "precious" in line]
    assert [line.split(maxsplit=1)[1] for line in naming] == ["tools/fetch_demo_model.py --models precious --remove"]


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
