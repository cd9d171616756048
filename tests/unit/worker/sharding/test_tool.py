"""``warmroute models``: what it prints, and what it says of mistakes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.tensors import arrays, write_safetensors
from worker.loading.sums import read_sums
from worker.sharding.__main__ import main
from worker.sharding.manifest import read_manifest


def test_a_model_is_split_by_name_version_or_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for version in ("2", "10"):
        write_safetensors(tmp_path / "m" / version / "model.safetensors", arrays())
    assert main(["shard", "m", "--models", str(tmp_path), "--shards", "4"]) == 0
    assert not (tmp_path / "m" / "2" / "manifest.json").exists()
    assert "4 shards of 5 tensors, 4 of them split; the largest shard reads" in capsys.readouterr().out
    assert main(["shard", "m@2", "--models", str(tmp_path), "--shards", "2"]) == 0
    assert read_manifest(tmp_path / "m" / "2").shards == 2
    assert main(["shard", str(tmp_path / "m" / "2"), "--cost", "4:1:1", "--cost", "2:9:9"]) == 0
    assert read_manifest(tmp_path / "m" / "2").shards == 4


def test_rules_are_read_from_a_file(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "m" / "1" / "model.safetensors", arrays(heads=66))
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules: [{match: q_proj, dim: 0, pad: true}]")
    assert main(["shard", "m", "--models", str(tmp_path), "--shards", "4", "--rules", str(rules)]) == 0
    assert read_manifest(tmp_path / "m" / "1").tensors[0].padded == 68


def test_a_number_of_shards_is_recommended(capsys: pytest.CaptureFixture[str]) -> None:
    costs = ["--cost", "4:8.2:42.1", "--cost", "16:24.7:13.5", "--cost", "64:68.9:5.1"]
    assert main(["choose-shards", *costs]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "recommended: 16 shards"
    assert main(["choose-shards", "--flops", "1e12", "--rtt-ms", "10"]) == 0
    assert capsys.readouterr().out == "recommended: 31 shards\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["shard", "gone", "--shards", "2"], "gone: no such model; name one of"),
        (["shard", "m@3", "--shards", "2"], "m: no version 3; there are 1"),
        (["shard", "empty", "--shards", "2"], "empty: holds no version; add"),
        (["shard", "m", "--shards", "1"], "1 shards: must lie between 2 and 256"),
        (["shard", "m", "--shards", "2", "--rules", "gone.yaml"], "gone.yaml: No such file"),
        (["shard", "m", "--shards", "2", "--rules", "bad.yaml"], "bad.yaml: Object missing required field `rules`"),
        (
            ["shard", "models/m", "--shards", "2"],
            "models/m: is a model's directory, not a version's directory; name one, such as models/m/1",
        ),
        (
            ["prefetch", "models/m"],
            "models/m: is a model's directory, not a version's directory; name one, such as models/m/1",
        ),
        (
            ["prefetch", "models"],
            "models: is a model repository, not a version's directory; name one, such as models/m/1",
        ),
        (["prefetch", "gone"], "gone: No such file or directory"),
    ],
)
def test_mistakes_are_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_safetensors(tmp_path / "models" / "m" / "1" / "model.safetensors", arrays())
    (tmp_path / "models" / "empty").mkdir()
    Path("bad.yaml").write_text("{}")
    assert main(arguments) == 1
    said = capsys.readouterr()
    assert text in said.err
    assert said.out == ""
    assert not list(tmp_path.rglob("manifest.json"))


@pytest.mark.parametrize("cost", ["", "4:1", "4:nan:1", "4:1:inf", "-4:1:1", "4:1e308:1", f"4:{'9' * 400}:1", "९:1:1"])
def test_a_cost_that_is_none_is_told(cost: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["choose-shards", f"--cost={cost}"])
    assert end.value.code == 2
    assert "must be like 16:24.7:13.5, of at most nine digits each" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["nan", "inf", "0", "-1", "1e309", "x"])
@pytest.mark.parametrize(
    ("command", "flag", "most"),
    [
        (["choose-shards"], "--flops", "1e+24"),
        (["choose-shards", "--flops", "1e9"], "--rtt-ms", "60000"),
        (["shard", "m"], "--flops", "1e+24"),
    ],
)
def test_a_number_that_makes_no_sense_is_told_with_its_flag(
    command: list[str], flag: str, most: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([*command, f"{flag}={number}"])
    assert end.value.code == 2
    said = f"argument {flag}: '{number}': expected a number above 0, up to {most}\n"
    assert capsys.readouterr().err.endswith(said)


def test_what_a_version_hashes_to_is_written_down_and_then_held_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version = tmp_path / "m" / "1"
    (version / "parts").mkdir(parents=True)
    files = {"model.onnx": b"graph", "parts/weights 1.bin": b"weights", "model.yaml": b"{}", ".hidden": b"x"}
    for name, content in files.items():
        (version / name).write_bytes(content)
    sums = version / "SHA256SUMS"
    assert main(["sums", str(version)]) == 0
    assert capsys.readouterr().out == f"{sums}: 2 files, 12 bytes\n"
    listed = [(hashlib.sha256(files[name]).hexdigest(), name) for name in ("model.onnx", "parts/weights 1.bin")]
    assert sums.read_text() == "".join(f"{sha256}  {name}\n" for sha256, name in listed)
    assert read_sums(version, {})["model.onnx"].sha256 == listed[0][0]
    with sums.open("a") as file:
        file.write(f"{hashlib.sha256(b'{}').hexdigest()}  model.yaml\n")
    assert main(["sums", str(version)]) == 0
    assert capsys.readouterr().out == f"{sums}: 3 files, all as it says\n"

    (version / "model.onnx").write_bytes(b"grapi")
    kept = sums.read_bytes()
    assert main(["sums", str(version)]) == 1
    assert f"{version}/model.onnx: its SHA-256 is " in capsys.readouterr().err
    (version / "model.onnx").write_bytes(b"graph")
    (version / "labels.txt").write_bytes(b"a")
    assert main(["sums", str(version)]) == 1
    said = f"error: {version}/labels.txt: {sums} has no line for it; add one, or write it anew with --replace\n"
    assert capsys.readouterr().err == said
    (version / "labels.txt").unlink()
    (version / "parts" / "weights 1.bin").unlink()
    assert main(["sums", str(version)]) == 1
    assert "weights 1.bin: No such file or directory; " in capsys.readouterr().err
    assert sums.read_bytes() == kept, "what was written down is not changed without a word"

    assert main(["sums", "--replace", str(version)]) == 0
    assert sums.read_text() == f"{listed[0][0]}  model.onnx\n"
    assert sorted(path.name for path in version.iterdir()) == [
        ".hidden",
        "SHA256SUMS",
        "model.onnx",
        "model.yaml",
        "parts",
    ]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda place: None, "/m/1: No such file or directory"),
        (lambda place: place.mkdir(parents=True), "/m/1: holds no files; name a version's directory"),
        (lambda place: (place / "2").mkdir(parents=True), "/m/1: is a model's directory, not a version's directory"),
        (
            lambda place: write(place / "a\nb", b""),
            "no line of SHA256SUMS can hold this name; give the file another one",
        ),
        (lambda place: write(place / "SHA256SUMS", b"x"), "/m/1: holds no files"),
        (
            lambda place: [write(place / name, b"x") for name in ("SHA256SUMS", "a")],
            "SHA256SUMS: line 1: 'x': expected SHA-256, two spaces, name",
        ),
    ],
)
def test_what_cannot_be_written_down(
    make: Callable[[Path], object], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "m" / "1"
    make(place)
    assert main(["sums", str(place)]) == 1
    assert text in capsys.readouterr().err


def write(path: Path, content: bytes) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.write_bytes(content)
