"""The cold-start bench: which rows there are, what is made of the samples, and one real run on a small model."""

from __future__ import annotations

import argparse
import gzip
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import zstandard

from worker.bench.__main__ import main
from worker.bench.coldstart import _caches, _shape, chosen
from worker.bench.contenders import (
    ALL,
    DEFAULT,
    HOT,
    LOADED,
    MEASURES,
    NOTHING,
    PLAIN,
    SHARED,
    STANDBY,
    Change,
    Measure,
    available,
    contenders,
    strategies,
)
from worker.bench.model import ModelError, PlainFiles, Repository, find_model
from worker.bench.plot import draw
from worker.bench.results import REST, BesideSample, Machine, Results, quantile
from worker.bench.runs import read_runs
from worker.bench.samples import Sample, Steady
from worker.bench.synthetic import write_model
from worker.bench.tables import report, table
from worker.flags import make_parser
from worker.loading import StrategyName

SMALL = 1 << 18


def sample(row: str, cache: str, answer_s: float, **stages: float) -> Sample:
    return Sample(row, cache, 0, answer_s, 0.02, answer_s, 9_000_000_000, stages, 0.0, 1.0, 400_000_000, 50_000_000)


def results(*samples: Sample, steady: tuple[Steady, ...] = (), beside: tuple[BesideSample, ...] = ()) -> Results:
    machine = Machine(2, "a processor", 8_000_000_000, "6.18", "3.11", "1.32")
    return Results(
        1,
        machine,
        "m@1",
        335_000_000,
        "x [1, 16]",
        "cpu",
        2,
        2,
        1,
        "fadvise",
        list(samples),
        list(steady),
        list(beside),
    )


FOUND = results(
    sample(PLAIN, "cold", 1.0, imports=0.2, create=0.7, first_answer=0.1),
    sample(PLAIN, "cold", 1.2, imports=0.2, create=0.9, first_answer=0.1),
    sample(ALL, "cold", 0.2, imports=0.01, page_in=0.1, first_answer=0.05),
    sample(ALL, "cold", 0.24, imports=0.01, page_in=0.14, first_answer=0.05),
    sample(PLAIN, "warm", 0.6, imports=0.2, create=0.3, first_answer=0.1),
    sample(ALL, "warm", 0.1, imports=0.01, create=0.2, first_answer=0.05),
    steady=(Steady(ALL, 0, 8.0, 1.5, 30.0, 0.03, 0.05, 1, 2, 3, None),),
    beside=(BesideSample(ALL, 0.004, 0.009),),
)


def test_rows_are_the_plain_session_every_strategy_each_measure_and_all_of_them() -> None:
    one = Measure("one", Change(("--one",)), Change(description={"engine": {"one": "off"}}))
    two = Measure("two", Change(description={"engine": {"two": "on"}}, zygote=True), Change(("--no-two",)))
    rows = {row.name: row.change for row in contenders((one, two), ("mmap",), ("CUDA",))}
    assert list(rows) == [PLAIN, NOTHING, DEFAULT, "load: mmap", "one", "two", SHARED.name, ALL, HOT, STANDBY, LOADED]
    device = {"providers": ["CUDA"]}
    assert rows[PLAIN] is None
    assert rows[DEFAULT] == Change((), {"engine": device})
    assert rows["load: mmap"] == Change(("--load", "mmap"), {"engine": device})
    assert rows[NOTHING] == Change(("--no-two",), {"engine": {**device, "one": "off"}})
    assert rows["one"] == Change(("--no-two", "--one"), {"engine": {**device, "one": "off"}})
    assert rows["two"] == Change(("--no-two",), {"engine": {**device, "one": "off", "two": "on"}}, zygote=True)
    assert rows[ALL] == Change(("--one",), {"engine": {**device, "two": "on"}}, zygote=True)
    assert rows[HOT] == rows[ALL].with_also(SHARED.on)
    assert rows[STANDBY] == rows[ALL].with_also(Change(("--model-control", "explicit"), standby=True))
    assert rows[LOADED] == rows[ALL].with_also(Change(("--standby",), in_line=True))


def test_strategies_are_those_of_the_worker() -> None:
    assert set(strategies()) == {name.value for name in StrategyName} - {"auto", "stream"}


def test_every_flag_of_a_row_is_one_of_the_worker() -> None:
    for row in contenders(available(MEASURES), strategies()):
        if row.change is not None:
            make_parser().parse_args(["--models", "m", *(flag.format(kept="x", id="x") for flag in row.change.flags)])


def test_a_measure_that_the_worker_does_not_have_takes_no_part() -> None:
    known = Measure("known", Change(("--load", "auto")))
    assert available((known, Measure("unknown", Change(("--warp", "9"))))) == [known]


def test_rows_can_be_chosen_by_name() -> None:
    rows = contenders(MEASURES, strategies())
    assert chosen(rows, None) == rows
    assert [row.name for row in chosen(rows, f"{ALL}, zygote")] == [PLAIN, "zygote", ALL]
    with pytest.raises(ValueError, match=r"--strategies: 'warp': there is no such row; there are: plain session, no"):
        chosen(rows, "warp")


def test_figures_are_medians() -> None:
    assert FOUND.answer_s(ALL, "cold") == pytest.approx(0.22)
    assert FOUND.times_lower(ALL, "cold") == pytest.approx(1.1 / 0.22)
    assert FOUND.times_lower(ALL, "hot") is None
    assert FOUND.stages(ALL, "cold") == pytest.approx(
        {"imports": 0.01, "page_in": 0.12, "first_answer": 0.05, REST: 0.04}
    )
    assert FOUND.stages(PLAIN, "warm") == pytest.approx({"imports": 0.2, "create": 0.3, "first_answer": 0.1}, abs=1e-9)
    assert quantile([3.0, 1.0, 2.0], 0.95) == 3.0


def test_a_report_has_every_table() -> None:
    text = report(FOUND)
    assert "m@1: 335 MB, asked with x [1, 16], on cpu; 2 rounds after 1 warm-ups" in text
    assert "its files dropped by fadvise" in text
    assert "| all together  |   220 |   240 | 5.0 × |  100 | 100 | 6.0 × |" in text
    assert "| plain session |     200 |       – |    800 |          100 |    – |" in text
    assert "| all together |          8.0 |          1.50 |      30.0 |" in text
    assert "| all together |       4.0 |              9.0 |" in text


def test_a_table_lines_up() -> None:
    assert table(["", "a"], [["x", "1"], ["long", "22,000"]]).splitlines() == [
        "|      |      a |",
        "| ---- | -----: |",
        "| x    |      1 |",
        "| long | 22,000 |",
    ]


def test_a_plot_is_one_file_with_a_bar_for_each_row_and_cache() -> None:
    text = draw(FOUND)
    tree = ElementTree.fromstring(text)
    words = [element.text for element in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert words.count(PLAIN) == words.count(ALL) == 2
    assert "220 ms (5.0 × lower)" in words
    assert not any("href" in key for element in tree.iter() for key in element.attrib)
    bars: dict[int, float] = {}
    for element in tree.iter("{http://www.w3.org/2000/svg}rect"):
        if element.get("height") == "13":
            y = int(element.attrib["y"])
            bars[y] = bars.get(y, 0.0) + float(element.attrib["width"])
    plain_cold, all_cold, plain_warm, all_warm = bars.values()
    assert plain_cold / all_cold == pytest.approx(5.0, rel=0.01)
    assert plain_warm / all_warm == pytest.approx(6.0, rel=0.01), "stages that overlap are drawn in proportion"


def test_a_model_is_found_by_its_version_its_name_or_its_file(tmp_path: Path) -> None:
    for version in ("1", "2", "10"):
        write_model(tmp_path / "s" / version, SMALL)
    (tmp_path / "s" / "10" / "model.yaml").write_text("warmup: [{name: a, shapes: {tokens: [1, 4]}}]\nengine: {x: 1}\n")
    assert find_model(tmp_path / "s" / "2").directory.name == "2"
    assert find_model(tmp_path / "s" / "2" / "model.onnx").directory.name == "2"
    highest = find_model(tmp_path / "s")
    assert highest.directory.name == "10"
    assert highest.shapes == {"tokens": (1, 4)}
    assert find_model(tmp_path / "s", {"tokens": (2, 8)}).shapes == {"tokens": (2, 8)}
    with pytest.raises(ModelError, match=r"no model\.onnx there; give a version's directory"):
        find_model(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("text", "error"), [("warmup: [1]", "warmup"), ("[", "not valid YAML"), ("- a", "expected fields")]
)
def test_a_description_that_cannot_be_read_is_told(text: str, error: str, tmp_path: Path) -> None:
    write_model(tmp_path, SMALL)
    (tmp_path / "model.yaml").write_text(text)
    with pytest.raises(ModelError, match=f"model.yaml: {error}"):
        find_model(tmp_path)


def test_a_repository_links_the_files_and_changes_the_description(tmp_path: Path) -> None:
    write_model(tmp_path / "1", SMALL)
    (tmp_path / "1" / "model.yaml").write_text("engine: {a: 1, b: 2}\n")
    model = find_model(tmp_path / "1")
    with Repository(model, {"engine": {"b": 3}}) as repository:
        version = repository.root / "benched" / "1"
        assert (version / "model.onnx.data").samefile(tmp_path / "1" / "model.onnx.data")
        assert (version / "model.yaml").read_text() == "engine:\n  a: 1\n  b: 3\n"
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


@pytest.mark.parametrize("text", ["tokens", "tokens=", "tokens=1x", "tokens=0x1", "tokens=axb"])
def test_what_is_no_shape(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected INPUT=1x16"):
        _shape(text)


def test_what_is_a_shape_and_a_cache() -> None:
    assert _shape("tokens=1x16") == ("tokens", (1, 16))
    assert _caches("warm,cold,warm") == ("warm", "cold")
    with pytest.raises(argparse.ArgumentTypeError, match="expected some of cold,warm"):
        _caches("lukewarm")


def test_a_real_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.bench.beside.QUIET_S", 0.2)
    write_model(tmp_path / "s" / "1", SMALL)
    arguments = ["coldstart", str(tmp_path / "s"), "--strategies", ALL, "--rounds", "1"]
    arguments += ["--warm-ups", "0", "--caches", "warm", "--steady-s", "0.2", "--shape", "tokens=1x4"]
    assert main([*arguments, "--json", str(tmp_path / "b.json"), "--plot", str(tmp_path / "b.svg")]) == 0
    out, err = capsys.readouterr()
    assert f"| {ALL} " in out
    assert re.search(r"\[1/\d, ", err)
    found: dict[str, Any] = json.loads((tmp_path / "b.json").read_text())
    samples = {one["row"]: one for one in found["samples"]}
    assert list(samples) == [PLAIN, ALL]
    assert found["shapes"] == "tokens [1, 4]"
    for one in samples.values():
        assert 0 < one["first_access_s"] <= one["answer_s"]
        assert one["cached_before"] == one["cached_after"] == 1.0
        assert one["peak_bytes"] > one["anonymous_bytes"] > 1 << 20
    assert {"imports", "open", "create", "warm_up", "first_answer"} <= set(samples[ALL]["stages"])
    assert {one["row"] for one in found["steady"]} == {PLAIN, ALL}
    assert all(one["after_rps"] > 1 for one in found["steady"])
    assert next(one for one in found["steady"] if one["row"] == ALL)["swap_s"] > 0, "two phases are on"
    assert {one["row"] for one in found["beside"]} == {PLAIN, ALL}
    assert ElementTree.parse(tmp_path / "b.svg").getroot().tag.endswith("svg")
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["1"], "nothing is left behind"


@pytest.mark.parametrize(
    ("suffix", "packed"), [(".gz", ("model.onnx", "model.onnx.data")), (".zst", ("model.onnx.data",))]
)
def test_a_packed_model_is_unpacked_by_every_row(
    suffix: str, packed: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version = tmp_path / "s" / "1"
    write_model(version, SMALL, levels=4)
    for name in packed:
        pack(version / name, suffix)
    before = {path.name: path.read_bytes() for path in version.iterdir()}
    arguments = ["coldstart", str(tmp_path / "s"), "--strategies", DEFAULT, "--rounds", "1", "--warm-ups", "0"]
    arguments += ["--caches", "warm", "--steady-s", "0.05", "--no-beside", "--json", str(tmp_path / "b.json")]
    assert main([*arguments, "--runs", str(tmp_path / "runs")]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^s@1: 0 MB packed \([6-9][0-9]% saved\), asked with", out)
    assert re.search(r"^\| +\| imports \| decompress \|", out, re.MULTILINE)
    found = json.loads((tmp_path / "b.json").read_text())
    assert [one["row"] for one in found["samples"]] == [PLAIN, DEFAULT]
    assert all(one["stages"]["decompress"] > 0 for one in found["samples"])
    assert sum(found["samples"][0]["stages"].values()) == pytest.approx(found["samples"][0]["answer_s"])
    assert found["steady"][0]["after_rps"] > 0, "the plain session goes on"
    (run,) = read_runs(tmp_path / "runs")
    assert run.saved_percent == found["saved_percent"] > 60
    assert {path.name: path.read_bytes() for path in version.iterdir()} == before
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["1"], "nothing is left behind"


def test_what_a_plain_session_unpacks_lies_beside_what_is_linked(tmp_path: Path) -> None:
    write_model(tmp_path / "1", SMALL)
    plain = find_model(tmp_path / "1")
    as_it_lies = PlainFiles(plain)
    assert (as_it_lies.file, as_it_lies.unpacks) == (plain.file, {})
    pack(tmp_path / "1" / "model.onnx.data", ".gz")
    files = PlainFiles(find_model(tmp_path / "1"))
    assert files.file.samefile(tmp_path / "1" / "model.onnx")
    ((stored, place),) = files.unpacks.items()
    assert stored == str(tmp_path / "1" / "model.onnx.data.gz")
    Path(place).write_text("unpacked")
    files.clear()
    files.clear()
    assert [path.name for path in files.file.parent.iterdir()] == ["model.onnx"], "links stay for the next start"
    files.close()
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


def test_a_model_that_is_packed_and_plain_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path, SMALL)
    kept = (tmp_path / "model.onnx").read_bytes()
    pack(tmp_path / "model.onnx", ".gz")
    (tmp_path / "model.onnx").write_bytes(kept)
    with pytest.raises(
        ModelError, match=r"model\.onnx: is there packed and plain, or packed twice; take all but one away"
    ):
        find_model(tmp_path)


def test_a_packing_whose_library_is_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path, SMALL)
    pack(tmp_path / "model.onnx", ".zst")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(
        ModelError, match=r"model\.onnx\.zst: it needs the library zstandard; install warmroute\[zstd\]"
    ):
        find_model(tmp_path)


def pack(path: Path, suffix: str) -> None:
    """Put a packed file into the place of a plain one."""
    data = path.read_bytes()
    packed = gzip.compress(data) if suffix == ".gz" else zstandard.ZstdCompressor().compress(data)
    path.with_name(path.name + suffix).write_bytes(packed)
    path.unlink()


def test_a_bench_that_is_told_to_end_leaves_nothing_behind(tmp_path: Path) -> None:
    write_model(tmp_path / "s" / "1", SMALL)
    argv = [sys.executable, "-P", "-m", "worker.bench", "coldstart", str(tmp_path / "s"), "--keep-libraries"]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as bench:
        assert bench.stderr is not None
        assert "[1/" in bench.stderr.readline()
        bench.send_signal(signal.SIGTERM)
        assert bench.wait(30) == 143
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["1"]
    assert not list(Path("/dev/shm").glob(f"warmroute-bench-{bench.pid}*"))


def test_a_start_that_fails_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path / "s" / "1", SMALL)
    (tmp_path / "s" / "1" / "model.yaml").write_text("engine: {nonsense: 1}\n")
    arguments = ["coldstart", str(tmp_path / "s"), "--strategies", DEFAULT, "--rounds", "1", "--warm-ups", "0"]
    assert main([*arguments, "--caches", "warm"]) == 1
    assert "unknown field `nonsense`" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["1"]


def test_without_a_gpu_its_bench_is_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path, SMALL)
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert main(["coldstart", str(tmp_path), "--device", "cuda"]) == 0
    assert capsys.readouterr().out == "skipped: no NVIDIA device here\n"


def test_wrong_usage_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coldstart", str(tmp_path)]) == 2
    assert "no model.onnx there" in capsys.readouterr().err
    assert main(["coldstart", str(tmp_path), "--list"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == PLAIN
