"""Warm-up inputs: made, stored in files, and recorded from what callers asked."""

from __future__ import annotations

import errno
import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.worker_parts import DoublingModel, ReadableLog, X
from worker.datatypes import Datatype
from worker.engines import Cancellation, TensorSpec
from worker.recording import MAX_REQUEST_BYTES, Recorder, Recordings
from worker.store import ModelFiles, ShapeClass, StoreError, scan
from worker.warmup import WarmupError, warm_up


def run(shape_class: ShapeClass, *specs: TensorSpec) -> dict[str, np.ndarray[Any, Any]]:
    model = DoublingModel(inputs=specs or (X,))
    warm_up(model, (shape_class,), Cancellation(), lambda _: None)
    (ran,) = model.ran
    return dict(ran)


# --- made -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("datatype", [one for one in Datatype if one is not Datatype.BYTES])
def test_random_inputs_are_small_alike_at_each_start_and_of_every_type(datatype: Datatype) -> None:
    spec = TensorSpec("t", datatype, (-1, 64))
    one = run(ShapeClass("c", {"t": (4, 64)}, fill="random"), spec)["t"]
    assert (one == run(ShapeClass("c", {"t": (4, 64)}, fill="random"), spec)["t"]).all()
    assert (one != run(ShapeClass("d", {"t": (4, 64)}, fill="random"), spec)["t"]).any()
    assert len(set(one.ravel().tolist())) > 1
    if datatype is Datatype.BF16:
        one = (one.astype(np.uint32) << 16).view(np.float32)
    assert one.min() >= 0
    assert one.max() <= 1


@pytest.mark.parametrize("datatype", list(Datatype))
def test_ones_are_ones(datatype: Datatype) -> None:
    (one,) = run(ShapeClass("c", fill="ones"), TensorSpec("t", datatype, (-1,)))["t"].tolist()
    assert one == {Datatype.BYTES: "", Datatype.BF16: 0x3F80}.get(datatype, 1)


# --- stored -----------------------------------------------------------------------------------------------------------

REQUEST = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [3, 4.5]}], "id": "as it was sent"}


def test_inputs_are_read_from_json_and_npz(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(REQUEST))
    np.savez(tmp_path / "a.npz", x=np.array([[3, 4.5]], np.float32))
    for name in ("a.json", "a.npz"):
        assert run(ShapeClass("real", file=tmp_path / name))["x"].tolist() == [[3.0, 4.5]]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "Input data was truncated"),
        ('{"inputs": []}', "length >= 1"),
        ('{"x":' + "[" * 100_000, r"a\.json: nested too deep"),
        (json.dumps({"inputs": [{**REQUEST["inputs"][0], "data": [1]}]}), "cannot reshape"),  # type: ignore[dict-item]
        (json.dumps({"inputs": [{**REQUEST["inputs"][0], "shape": [2, 1]}]}), "expected shape"),  # type: ignore[dict-item]
        (json.dumps({"inputs": [{**REQUEST["inputs"][0], "datatype": "FP64"}]}), "expected float32, given float64"),  # type: ignore[dict-item]
        (json.dumps({"inputs": [{**REQUEST["inputs"][0], "name": "z"}]}), "'z' is not the model's; it has x"),  # type: ignore[dict-item]
    ],
    ids=["cut", "none", "deep", "shape", "rank", "datatype", "name"],
)
def test_what_does_not_fit_is_named(tmp_path: Path, content: str, text: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(WarmupError, match=f"warm-up 'real': .*{text}"):
        run(ShapeClass("real", file=tmp_path / "a.json"))


def test_a_missing_file_or_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(WarmupError, match=r"a.npz: .*No such file"):
        run(ShapeClass("real", file=tmp_path / "a.npz"))
    (tmp_path / "a.json").write_text(json.dumps(REQUEST))
    with pytest.raises(WarmupError, match=r"a.json: input 'y' is missing"):
        run(ShapeClass("real", file=tmp_path / "a.json"), X, TensorSpec("y", Datatype.FP32, (1,)))


def test_they_are_named_in_the_description(tmp_path: Path) -> None:
    directory = tmp_path / "m" / "1"
    (directory / "in").mkdir(parents=True)
    (directory / "in" / "a.json").write_text("{}")
    source = directory / "model.yaml"
    source.write_text("warmup: [{name: a, file: in/a.json}, {name: b, fill: random}]")
    (files,) = scan(tmp_path, (), None)
    assert files.warmup == (ShapeClass("a", file=directory / "in" / "a.json"), ShapeClass("b", fill="random"))
    revision = files.config_revision
    source.write_text("warmup: [{name: a, file: in/a.json}, {name: b}]")
    assert scan(tmp_path, (), None)[0].config_revision != revision
    for said, text in (
        ("{name: a, file: gone.json}", "file: 'gone.json': no such file beside it"),
        ("{name: a, file: ../1/in/a.json}", "no such file beside it"),
        ("{name: a, file: in/a.json, fill: ones}", "leave shapes and fill away"),
        ("{name: a, file: a.txt}", "warmup"),
        ("{name: a, fill: noise}", "fill"),
    ):
        source.write_text(f"warmup: [{said}]")
        with pytest.raises(StoreError, match=text):
            scan(tmp_path, (), None)


# --- recorded ---------------------------------------------------------------------------------------------------------

FILES = ModelFiles("m", "3")


def test_the_first_request_of_each_shape_proves_the_next_start(tmp_path: Path) -> None:
    log = ReadableLog()
    recorder = Recorder(tmp_path, 3, log)
    for rows, value in ((1, 5.0), (1, 6.0), (4, 7.0)):
        recorder.note(FILES, {"x": np.full((rows, 2), value, np.float32)})
    recordings = Recordings(tmp_path, log)
    again = recordings.of(FILES)
    assert [one.name for one in again.warmup] == ["batch-1-1", "batch-4-2"]
    assert [event["shape_class"] for event in log.events("warmup.recorded")] == ["batch-1-1", "batch-4-2"]
    assert run(again.warmup[0])["x"].tolist() == [[5.0, 5.0]]
    assert again.warmup[0].file is not None
    assert stat.S_IMODE(again.warmup[0].file.stat().st_mode) == 0o600
    assert recordings.of(ModelFiles("m", "4")).warmup == ()
    declared = ModelFiles("m", "3", warmup=(ShapeClass("mine"),))
    assert recordings.of(declared) is declared
    assert Recordings(None, log).of(FILES) is FILES


def test_a_recorded_file_that_cannot_be_read_is_passed_over_and_told_once(tmp_path: Path) -> None:
    log = ReadableLog()
    recorder = Recorder(tmp_path, 3, log)
    for rows in (1, 2):
        recorder.note(FILES, {"x": np.ones((rows, 2), np.float32)})
    broken = tmp_path / "m" / "3" / "batch-1-1.npz"
    whole = broken.read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    recordings = Recordings(tmp_path, log)
    for _ in range(2):
        assert [one.name for one in recordings.of(FILES).warmup] == ["batch-2-2"]
    (event,) = log.events("warmup.passed_over")
    assert (event["model"], event["version"], event["file"]) == ("m", "3", str(broken))
    assert event["error"]
    broken.write_bytes(whole)
    assert [one.name for one in recordings.of(FILES).warmup] == ["batch-1-1", "batch-2-2"]
    for path in (tmp_path / "m" / "3").iterdir():
        path.write_bytes(b"")
    assert recordings.of(FILES).warmup == (), "the default proves it then"


def test_what_is_kept_is_bounded_and_strings_are_not(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, 2, ReadableLog())
    recorder.note(FILES, {"s": np.full((1, 1), "secret", np.object_)})
    recorder.note(FILES, {"x": np.zeros(MAX_REQUEST_BYTES + 1, np.uint8)})
    assert not list(tmp_path.rglob("*"))
    for rows in range(1, 9):
        recorder.note(FILES, {"x": np.zeros((rows, 2), np.float32), "y": np.zeros(3, np.float32)})
    assert sorted(path.name for path in tmp_path.rglob("*.npz")) == ["recorded-1.npz", "recorded-2.npz"]


def test_what_other_processes_kept_counts(tmp_path: Path) -> None:
    for rows in (1, 2, 3):
        Recorder(tmp_path, 2, ReadableLog()).note(FILES, {"x": np.ones((rows, 2), np.float32)})
    kept = sorted(path.name for path in (tmp_path / "m" / "3").iterdir())
    assert kept == ["batch-1-1.npz", "batch-2-2.npz"]


def test_a_place_that_cannot_be_written_is_told_once(tmp_path: Path) -> None:
    log = ReadableLog()
    (tmp_path / "m").write_text("in the way")
    recorder = Recorder(tmp_path, 9, log)
    for rows in (1, 2):
        recorder.note(FILES, {"x": np.zeros((rows, 2), np.float32)})
    assert len(log.events("warmup.not_recorded")) == 1


def test_a_write_that_fails_is_told_with_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")  # of a write, which has no name

    log = ReadableLog()
    monkeypatch.setattr(np, "savez", full)
    Recorder(tmp_path, 9, log).note(FILES, {"x": np.zeros((1, 2), np.float32)})
    (event,) = log.events("warmup.not_recorded")
    assert event["error"] == f"{tmp_path}/m/3/batch-1-1.npz: No space left on device"
    assert list((tmp_path / "m" / "3").iterdir()) == []
