"""``warmroute attribute``: two files joined, and every line of them counted once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sidecar.cli.main import main

BEGAN = "2026-11-30T00:00:00+00:00"
EPOCH = 1_795_996_800.0


def files(tmp_path: Path, callers: list[dict[str, object]], workers: list[dict[str, object]]) -> list[str]:
    trace, log = tmp_path / "trace.jsonl", tmp_path / "workers.jsonl"
    lines: list[dict[str, object]] = [{"warmroute_trace": 1, "began": BEGAN}, *callers]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    log.write_text("".join(json.dumps(line) + "\n" for line in workers))
    return [str(trace), str(log)]


def caller(name: str, at_s: float, took_s: float, ended: str = "ok") -> dict[str, object]:
    return {"at_s": at_s, "request_id": name, "took_s": took_s, "ended": ended}


def worker(name: str, at_s: float, took_s: float, who: str) -> dict[str, object]:
    return {"request_id": name, "at": EPOCH + at_s, "took_s": took_s, "worker": who, "level": "info"}


def test_time_is_told_for_each_worker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    callers: list[dict[str, object]] = [
        caller("a", 1.0, 0.1),
        caller("b", 2.0, 0.2, "status_5xx"),
        caller("retried", 3.0, 0.3),
        caller("cached", 4.0, 0.1),
        caller("reused", 5.0, 0.1),
        {"at_s": 6.0},
    ]
    workers = [
        worker("a", 0.97, 0.09, "w0"),
        worker("b", 2.05, 0.1, "w1"),
        worker("retried", 3.0, 0.05, "w0"),
        worker("retried", 3.1, 0.1, "w1"),
        worker("reused", 9.0, 0.1, "w0"),
        worker("elsewhere", 9.0, 0.1, "w0"),
    ]
    assert main(["attribute", *files(tmp_path, callers, workers), "--json", "--by", "worker"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["offered"] == 11
    assert (report["joined"], report["late"]) == (3, 0)
    assert report["orphans"] == {
        "caller: clock": 1,
        "caller: end": 1,
        "worker: clock": 1,
        "worker: end": 1,
    }
    assert (report["repeated"], report["attempts"]) == ({}, 1)
    rows = report["rows"]
    assert [(who, one["requests"], one["joined"], one["failed"]) for who, one in rows.items()] == [
        ("w0", 3, 1, 0),
        ("w1", 2, 2, 1),  # the retry answered, and not the attempt before it
    ]
    assert rows["w0"]["attempts"] == {"count": 1, "failed": 0}
    assert rows["w0"]["unmatched"] == {"clock": 1, "end": 1}
    assert rows["w1"]["error_interval"] == pytest.approx([0.0945, 0.9055], abs=1e-3)
    assert report["clocks"] == {"w0": {"count": 1, "least_s": 4.0, "most_s": 4.0}}
    assert rows["w0"]["between_ms"]["p50"] == pytest.approx(10.0, rel=0.02)


def test_a_table_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = {**worker("a", 1.0, 0.04, "w0"), "model": "m", "version": "2"}
    assert main(["attribute", *files(tmp_path, [caller("a", 1.0, 0.1)], [named])]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].split("  ")[0] == "version"
    assert out[1].split() == ["m@2", "1", "1", "0", "0.000", "0.000", "to", "79.345"]
    assert out[2].split() == ["caller"] * 3 + ["worker"] * 2 + ["between"] * 2
    name, *times = out[4].split()
    assert name == "m@2"
    assert [float(text) for text in times] == pytest.approx([100, 100, 100, 40, 40, 60, 60], rel=0.02)
    assert out[5] == "1 joined, 0 of them late"
    assert max(len(line) for line in out) <= 80


def test_nothing_joined_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attribute", *files(tmp_path, [caller("a", 1.0, 0.1)], [worker("b", 1.0, 0.1, "w0")])]) == 1
    out = capsys.readouterr().out
    assert "callers without a worker's half, end: 1" in out
    assert "(not named): without the caller's half, end: 1" in out


@pytest.mark.parametrize(
    ("callers", "workers", "error"),
    [
        ("{}", "", "callers:1: Object missing required field `warmroute_trace`"),
        ('{"warmroute_trace": 1}', "", "callers:1: began: '' is no date, and moments need one"),
        (f'{{"warmroute_trace": 1, "began": "{BEGAN}"}}\n[]', "", "callers:2: Expected `object`, got `array`"),
        (f'{{"warmroute_trace": 1, "began": "{BEGAN}"}}', '{"at": -1}', "workers:1: "),
        (f'{{"warmroute_trace": 1, "began": "{BEGAN}"}}', None, "workers: No such file or directory"),
    ],
)
def test_bad_files_are_named(
    tmp_path: Path, callers: str, workers: str | None, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "callers").write_text(callers)
    if workers is not None:
        (tmp_path / "workers").write_text(workers)
    assert main(["attribute", str(tmp_path / "callers"), str(tmp_path / "workers")]) == 2
    assert error in capsys.readouterr().err
