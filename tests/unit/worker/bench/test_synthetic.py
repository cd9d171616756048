"""Synthetic models: what is written is a model of the size asked for, the same each time."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime as ort
import pytest

from worker.bench.__main__ import main, size
from worker.bench.synthetic import Shape, SyntheticError, shape_of, write_model

SMALL = 1 << 18


@pytest.mark.parametrize(
    ("size_bytes", "shape"),
    [
        (SMALL, Shape(hidden=32, layers=4, vocabulary=512)),
        (335_000_000, Shape(hidden=1024, layers=6, vocabulary=8059)),
        (1_900_000_000, Shape(hidden=2048, layers=9, vocabulary=10749)),
    ],
)
def test_a_shape_has_the_size_asked_for(size_bytes: int, shape: Shape) -> None:
    assert shape_of(size_bytes) == shape
    assert shape.parameters * 4 == pytest.approx(size_bytes, rel=0.01)


@pytest.mark.parametrize("size_bytes", [0, SMALL - 1, (1 << 40) + 1])
def test_other_sizes_are_refused(size_bytes: int) -> None:
    with pytest.raises(SyntheticError, match=f"size {size_bytes} bytes: expected 262144 to 1099511627776"):
        shape_of(size_bytes)


def test_a_model_runs_and_is_the_same_each_time(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    write_model(tmp_path / "a", SMALL, progress=lambda done, total: told.append((done, total)))
    write_model(tmp_path / "b", SMALL)
    for name in ("model.onnx", "model.onnx.data"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert told[-1][0] == told[-1][1] <= (tmp_path / "a" / "model.onnx.data").stat().st_size
    session = ort.InferenceSession(str(tmp_path / "a" / "model.onnx"))
    (pooled,) = session.run(["pooled"], {"tokens": np.array([[1, 2, 3], [4, 5, 6]], np.int64)})
    assert pooled.shape == (2, 32)
    assert 0.5 < pooled.std() < 2  # neither vanished nor exploded on its way
    assert not np.allclose(pooled[0], pooled[1])


def test_rounded_weights_differ_by_seed_and_compress(tmp_path: Path) -> None:
    import zlib

    write_model(tmp_path / "a", SMALL)
    write_model(tmp_path / "b", SMALL, seed=1, levels=16)
    plain, rounded = ((tmp_path / name / "model.onnx.data").read_bytes() for name in "ab")
    assert len(zlib.compress(rounded, 1)) < 0.5 * len(rounded)
    assert len(zlib.compress(plain, 1)) > 0.8 * len(plain)


def test_a_model_is_not_overwritten(tmp_path: Path) -> None:
    write_model(tmp_path, SMALL)
    with pytest.raises(SyntheticError, match="exists already"):
        write_model(tmp_path, SMALL)


def test_a_full_disk_is_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(SyntheticError, match="1000 bytes free, 262144 needed"):
        write_model(tmp_path, SMALL)
    assert list(tmp_path.iterdir()) == []


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["model", "--size", "300KB", str(tmp_path / "1")]
    assert main(arguments) == 0
    assert "5 layers, hidden size 32" in capsys.readouterr().out
    assert main(arguments) == 1
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "count"), [("4096", 4096), ("335MB", 335_000_000), ("1.9gb", 1_900_000_000), ("4MiB", 4 << 20)]
)
def test_sizes(text: str, count: int) -> None:
    assert size(text) == count


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "3 parsecs", "1.2.3GB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a size"):
        size(text)
