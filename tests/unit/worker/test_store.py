from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.models import NO_FILE, put_no_file
from worker.control import Source
from worker.store import ModelFiles, ShapeClass, StoreError, Versions, choose, scan

KNOWN = (
    "; known fields: labels, warmup, engine, files, load, depends_on, deadline_s, max_requests, batching"
    " (see docs/worker.md)"
)


def put(root: Path, name: str, version: str, description: str | None = None, **files: str) -> Path:
    directory = root / name / version
    directory.mkdir(parents=True)
    (directory / "model.onnx").write_bytes(b"onnx")
    if description is not None:
        (directory / "model.yaml").write_text(description)
    for file_name, text in files.items():
        (directory / f"{file_name}.txt").write_text(text)
    return directory


def test_serves_the_highest_version_of_every_model(tmp_path: Path) -> None:
    put(tmp_path, "b", "2")
    put(tmp_path, "b", "10")
    put(tmp_path, "a", "1")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "b" / ".tmp-3").mkdir()
    found = scan(tmp_path, (), "model.onnx")
    assert [(files.name, files.version) for files in found] == [("a", "1"), ("b", "10")]
    assert found[1].model_file == tmp_path / "b" / "10" / "model.onnx"


@pytest.mark.parametrize(
    ("versions", "description", "served"),
    [
        (Versions(), None, ["10"]),
        (Versions(2), None, ["10", "9"]),
        (Versions(5), None, ["10", "9", "1"]),
        (Versions(0), None, ["10", "9", "1"]),
        (Versions(named=("1", "9")), None, ["9", "1"]),
        (Versions(), "versions: all", ["10", "9", "1"]),
        (Versions(0), "versions: {latest: 1}", ["10"]),
        (Versions(), "versions: [1, 10, 1]", ["10", "1"]),
        (Versions(0), "versions: null", ["10", "9", "1"]),
        (Versions(2), "", ["10", "9"]),
    ],
)
def test_which_versions_of_a_model_are_served(
    tmp_path: Path, versions: Versions, description: str | None, served: list[str]
) -> None:
    for version in ("9", "10", "1"):
        put(tmp_path, "m", version)
    if description is not None:
        (tmp_path / "m" / "model.yaml").write_text(description)
    assert [files.version for files in scan(tmp_path, (), "model.onnx", versions)] == served


KNOWN_OF_MODEL = "; known fields: versions, lazy, idle_unload_s (see docs/worker.md)"


@pytest.mark.parametrize(
    ("versions", "description", "error"),
    [
        (Versions(named=("2",)), None, "--versions: version 2 of model 'm': no such directory {root}/m/2"),
        (
            Versions(),
            "versions: [3]",
            "{root}/m/model.yaml: versions: version 3 of model 'm': no such directory {root}/m/3",
        ),
        (
            Versions(),
            "versions: {latest: 0}",
            "{root}/m/model.yaml: Expected `int` >= 1 - at `$.versions.latest`" + KNOWN_OF_MODEL,
        ),
        (
            Versions(),
            "versions: some",
            "{root}/m/model.yaml: Invalid enum value 'some' - at `$.versions`" + KNOWN_OF_MODEL,
        ),
        (
            Versions(),
            "version: 1",
            "{root}/m/model.yaml: Object contains unknown field `version`" + KNOWN_OF_MODEL,
        ),
    ],
)
def test_a_wrong_choice_of_versions_is_refused(
    tmp_path: Path, versions: Versions, description: str | None, error: str
) -> None:
    put(tmp_path, "m", "1")
    if description is not None:
        (tmp_path / "m" / "model.yaml").write_text(description)
    with pytest.raises(StoreError) as caught:
        scan(tmp_path, (), "model.onnx", versions)
    assert str(caught.value) == error.format(root=tmp_path)


def test_serves_what_is_named_in_that_order_and_once(tmp_path: Path) -> None:
    for name in "abc":
        put(tmp_path, name, "1")
    assert [files.name for files in scan(tmp_path, ("c", "a", "c"), "model.onnx")] == ["c", "a"]


def test_reads_the_description(tmp_path: Path) -> None:
    text = "labels: names.txt\nwarmup:\n- {name: batch-1, shapes: {x: [1, 2]}}\n- {name: big}\nengine: {a: 1}\n"
    put(tmp_path, "m", "1", text, names="cat\ndog\n")
    (files,) = scan(tmp_path, (), "model.onnx")
    assert files.labels == ("cat", "dog")
    assert files.warmup == (ShapeClass("batch-1", {"x": (1, 2)}), ShapeClass("big"))
    assert files.options == {"a": 1}


def test_an_engine_without_files_needs_no_directory(tmp_path: Path) -> None:
    assert scan(None, ("m",), None) == [ModelFiles("m", "1")]
    assert scan(tmp_path, ("m",), None) == [ModelFiles("m", "1")]


@pytest.mark.parametrize(
    ("description", "error"),
    [
        (
            "label: x",
            "Object contains unknown field `label`" + KNOWN,
        ),
        (
            "warmup: [{name: a, shapes: {x: [0]}}]",
            "Expected `int` >= 1 - at `$.warmup[0].shapes[...][0]`" + KNOWN,
        ),
        ("files: {../x: " + "ab" * 32 + "}", "files: '../x': name a file of this version, relative to its directory"),
        (
            "files: {x: abc}",
            "Expected `str` matching regex '^[0-9a-f]{64}$' - at `$.files[...]`" + KNOWN,
        ),
        ("warmup: [{name: a}, {name: a}]", "warmup: 'a' is there twice; give each shape class a name of its own"),
        ("labels: none.txt", "labels: 'none.txt': no such file beside it; name a text file with one label a line"),
        ("labels: ../../x", "labels: '../../x': no such file beside it; name a text file with one label a line"),
        (
            "load: {strategy: fast}",
            "Invalid enum value 'fast' - at `$.load.strategy`" + KNOWN,
        ),
        ("[1", "not valid YAML: while parsing a flow sequence"),
        ("load: {}\nlabels: 2026-13-45", "line 2: '2026-13-45' is read as !!timestamp, and is none; put it in quotes"),
        ("labels: 2026-12-01", "labels: '2026-12-01' is read as a date; put it in quotes"),
        (
            "max_requests: " + "1" * 5000,
            f"line 1: '{'1' * 64}...' is read as !!int, and is none; put it in quotes",
        ),
        ("labels: !!int ''", "line 1: '' is read as !!int, and is none; put it in quotes"),
        ("labels: !!bool x", "line 1: 'x' is read as !!bool, and is none; put it in quotes"),
        ("engine: " + "[" * 5000 + "]" * 5000, "nested too deep; at most 32 levels"),
        (
            "engine: " + "[" * 40 + "]" * 40,
            "engine.0: nested over 32 levels deep; does an alias hold itself?",
        ),
        (
            "engine: &a {inputs: *a}",
            "engine.inputs: nested over 32 levels deep; does an alias hold itself?",
        ),
        ("engine: {session: {~: 1}}", "engine.session: key None: a key is text; put it in quotes"),
        ("1: x", "key 1: a key is text; put it in quotes"),
        (
            'engine: {session: "\\ud800"}',
            "engine.session: '\\ud800': half of a surrogate pair is no text",
        ),
        (
            "engine: {"
            + ", ".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9) if n else 'x'}]" for n in range(9))
            + "}",
            "over 100000 values, those of aliases counted each time; use fewer",
        ),
        ("x: " + "y" * (1 << 20), "over 1048576 bytes; is it the right file?"),
    ],
)
def test_a_wrong_description_names_file_field_and_remedy(tmp_path: Path, description: str, error: str) -> None:
    directory = put(tmp_path, "m", "1", description)
    (tmp_path / "x").write_text("outside")
    with pytest.raises(StoreError) as caught:
        scan(tmp_path, (), "model.onnx")
    assert str(caught.value).splitlines()[0] == f"{directory}/model.yaml: {error}"


@pytest.mark.parametrize("what", ["directory", "pipe", "link"])
@pytest.mark.parametrize("place", ["m/1", "m"])
def test_a_description_that_is_no_file_is_not_passed_over(tmp_path: Path, place: str, what: str) -> None:
    put(tmp_path, "m", "1")
    path = tmp_path / place / "model.yaml"
    put_no_file(path, what)
    with pytest.raises(StoreError) as caught:
        scan(tmp_path, (), "model.onnx")
    if (place, what) == ("m", "directory"):
        assert str(caught.value).startswith(f"{path}: version 'model.yaml': ")
    else:
        assert str(caught.value) == f"{path}: {NO_FILE}"


def test_a_description_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    directory = put(tmp_path, "m", "1")
    (directory / "model.yaml").write_bytes(b"labels: caf\xe9.txt")
    with pytest.raises(StoreError, match=r"m/1/model\.yaml: not valid YAML: 'utf-8' codec can't decode byte 0xe9"):
        scan(tmp_path, (), None)


@pytest.mark.parametrize(
    ("place", "error"),
    [
        (b"m/1/caf\xe9.txt", "m/1/caf\\udce9.txt: its name is not UTF-8; rename the file, or take it away"),
        (b"m/1/caf\xe9/x", "m/1/caf\\udce9: its name is not UTF-8; rename the file, or take it away"),
        (
            b"m/caf\xe9/x",
            "m/caf\\udce9: version 'caf\\udce9': a version is a number from 1 to 999999999, without leading zeros",
        ),
        (b"caf\xe9/1/x", "caf\\udce9: name 'caf\\udce9': use 1 to 128 of A-Z a-z 0-9 . _ : -"),
    ],
)
def test_a_name_that_is_no_utf8_is_refused_by_name(tmp_path: Path, place: bytes, error: str) -> None:
    path = tmp_path / os.fsdecode(place)
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(StoreError) as caught:
        scan(tmp_path, (), None)
    assert str(caught.value) == f"{tmp_path}/{error}"


@pytest.mark.parametrize("method", ["is_dir", "iterdir", "is_file", "open"])
@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (
            PermissionError(13, "Permission denied", "/far/m"),
            "/far/m: Permission denied; let the worker's user read it",
        ),
        (OSError(116, "Stale file handle"), "Stale file handle; is all of it there?"),
    ],
)
def test_whatever_cannot_be_looked_at_is_an_error_of_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, refusal: OSError, said: str
) -> None:
    put(tmp_path, "m", "1", "max_requests: 1")
    source = Source(tmp_path, (), None, Versions())

    def refuse(*_: object, **__: object) -> None:
        raise refusal

    monkeypatch.setattr(Path, method, refuse)
    with pytest.raises(StoreError) as caught:
        _ = [source.choose(name) for name in source.listed()]
    assert str(caught.value).endswith(said)


def test_whatever_else_goes_wrong_with_a_model_is_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = put(tmp_path, "m", "1", "depends_on: ['file:///x']")

    def break_down(_: str) -> None:
        raise KeyError("x")

    monkeypatch.setattr("worker.store.parse", break_down)
    with pytest.raises(StoreError) as caught:
        choose(tmp_path, "m", None, Versions())
    assert str(caught.value) == f"{directory.parent}: cannot be read: KeyError: 'x'"


def test_an_empty_label_file_is_refused(tmp_path: Path) -> None:
    directory = put(tmp_path, "m", "1", "labels: l.txt", l="")
    with pytest.raises(StoreError) as caught:
        scan(tmp_path, (), "model.onnx")
    assert str(caught.value) == f"{directory}/l.txt: 0 lines; a label file has 1 to 1048576, one label a line"


def test_what_is_missing_is_said_with_its_remedy(tmp_path: Path) -> None:
    root = tmp_path / "models"
    root.mkdir()

    def refusal(names: tuple[str, ...]) -> str:
        with pytest.raises(StoreError) as caught:
            scan(root, names, "model.onnx")
        return str(caught.value)

    assert refusal(()) == f"{root}: holds no model; add NAME/VERSION/model.onnx"
    assert refusal(("m",)) == f"{root}/m: no such model; add m/1/model.onnx or take --model m away"
    (root / "m").mkdir()
    assert refusal(("m",)) == f"{root}/m: holds no version; add m/1/model.onnx"
    (root / "m" / "1").mkdir()
    assert refusal(()) == (
        f"{root}/m/1/model.onnx: no such file; the engine loads model.onnx from a version's directory"
    )
    (root / "m" / "v2").mkdir()
    assert refusal(()) == f"{root}/m/v2: version 'v2': a version is a number from 1 to 999999999, without leading zeros"
    (root / "bad name").mkdir()
    assert refusal(()).endswith("name 'bad name': use 1 to 128 of A-Z a-z 0-9 . _ : -")
    assert refusal(("..",)) == "model name '..': use 1 to 128 of A-Z a-z 0-9 . _ : -"


@pytest.mark.parametrize(
    ("root", "names", "file_name", "error"),
    [
        (None, (), None, "no model: give --models DIR, or name one with --model NAME"),
        (None, ("m",), "model.onnx", "no model repository: give --models DIR with NAME/VERSION/model.onnx in it"),
        (
            Path("/nonexistent"),
            (),
            "model.onnx",
            "/nonexistent: not a directory; give --models the directory that holds NAME/VERSION/",
        ),
    ],
)
def test_no_repository(root: Path | None, names: tuple[str, ...], file_name: str | None, error: str) -> None:
    with pytest.raises(StoreError) as caught:
        scan(root, names, file_name)
    assert str(caught.value) == error
