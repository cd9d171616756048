"""What a drill's fleet needs of files, its models and their versions, is looked at before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.drills.reading import load_drill
from tests.support.drill_files import DELAY, DRAIN, OUT, changed, refused


def test_a_directory_of_models_must_be_there(tmp_path: Path) -> None:
    file = tmp_path / "d.yaml"
    file.write_text(changed("workers: 2", "workers: 2, models_dir: none"))
    there = tmp_path / "none"
    assert refused(file) == f'FILE:4:38: start.up.models_dir: "none": there is no directory {there}: name one'
    there.mkdir()
    drill = load_drill(file)
    assert drill.start is not None
    assert drill.start.up.models_dir == str(there)


VERSIONS = changed(DRAIN, "act: split, model: drill, split: {'2': 5}")


def test_versions_that_no_worker_will_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where the fleet looks for models that is told nothing else
    file = tmp_path / "d.yaml"
    file.write_text(VERSIONS)
    assert refused(file) == ("FILE:12:62: phases[6].do.split.2: 5: no worker will have version 2 of drill: there is 1")
    (tmp_path / "models" / "drill" / "2").mkdir(parents=True)
    load_drill(file)
    (tmp_path / "own" / "drill" / "10").mkdir(parents=True)
    (tmp_path / "own" / "drill" / "9").mkdir()
    file.write_text(VERSIONS.replace("workers: 2", "workers: 2, models_dir: own"))
    assert refused(file).endswith("no worker will have version 2 of drill: there are 9, 10")


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        (DRAIN, "act: promote, model: drill, version: '2'", "phases[6].do.version"),
        (DELAY, f"{DELAY}, model: drill, version: '2'", "phases[1].fault.version"),
        (OUT, "model: drill, version: '2', weight_at_most: 0.5", "phases[4].expect.version"),
    ],
)
def test_every_field_that_names_a_version_is_looked_at(
    old: str, new: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "d.yaml"
    file.write_text(changed(old, new))
    assert f'{path}: "2": no worker will have version 2 of drill: there is 1' in refused(file)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("workers: 2", "workers: 2, worker_flags: [--models, elsewhere]"),
        ("config: {models", "config: {endpoints: [{url: 'http://h:1', models: [drill]}], models"),
        ("workers: 2", "workers: 2, engine: torchscript"),
        ("model: drill, split", "model: chat, split"),
    ],
)
def test_versions_that_cannot_be_known_are_left_to_the_sidecar(
    old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "d.yaml"
    file.write_text(VERSIONS.replace(old, new, 1))
    load_drill(file)
