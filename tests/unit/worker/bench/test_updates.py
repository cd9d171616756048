"""The bench of updates: its table, and one real run of each way on a small model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from worker.bench.__main__ import main
from worker.bench.model import find_model
from worker.bench.synthetic import write_model
from worker.bench.updates import WAYS, Update, report
from worker.bench.worker_start import WorkerStart


def test_each_way_is_measured_and_only_the_hot_one_refuses_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared: list[Path] = []

    class Noted(WorkerStart):
        def __init__(self, flags: Sequence[str], shapes: Mapping[str, tuple[int, ...]]) -> None:
            shared.append(Path(flags[flags.index("--shm-dir") + 1]))
            assert shared[-1].is_dir()
            super().__init__(flags, shapes)

    monkeypatch.setattr("worker.bench.updates.WorkerStart", Noted)
    directory = tmp_path / "m" / "1"
    write_model(directory, 1 << 18)
    out = tmp_path / "updates.json"
    assert main(["updates", str(directory), "--rounds", "1", "--span-s", "0.1", "--json", str(out)]) == 0
    said = json.loads(out.read_text())
    updates = {one["way"]: one for one in said["updates"]}
    assert tuple(updates) == WAYS
    assert updates["full"]["refused"] > 0
    assert updates["lazy"]["refused"] > 0
    assert updates["hot"]["refused"] == 0
    for one in updates.values():
        assert 0 < one["silence_s"] <= one["seconds"]
        assert one["peak_bytes"] >= one["resident_bytes"] > 1 << 20
    assert "| hot " in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == ["1"], "its repositories are gone"
    assert len(shared) == len(WAYS)
    assert not any(place.exists() for place in shared), "and what its workers keep in memory"


def test_the_table_has_medians_by_way(tmp_path: Path) -> None:
    write_model(tmp_path / "1", 1 << 18)
    model = find_model(tmp_path / "1")
    updates = [
        Update("hot", seconds, 0.002, 0, 0.003, 0.004, 100_000_000, 150_000_000, 101_000_000)
        for seconds in (0.01, 0.02, 0.9)
    ]
    cells = [cell.strip() for cell in report(model, updates, 2).splitlines()[-1].split("|")[1:-1]]
    assert cells == ["hot", "20.0", "2.0", "0", "3.0", "4.0", "100", "150", "101"]


def test_what_is_no_model_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["updates", "x"]) == 2
    said = "error: x: no model.onnx there; give a version's directory, as models/synthetic/1\n"
    assert capsys.readouterr().err == said
