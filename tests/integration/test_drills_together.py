"""``warmroute drill run --jobs``: several at once, each by its name, and none left whatever ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sidecars import Process, until

WARMROUTE = str(Path(sys.executable).with_name("warmroute"))
ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith("WARMROUTE")}

DRILL = """\
version: 1
name: NAME
title: Of NAME
start: {up: {workers: 1, worker_flags: FLAGS}}
phases:
  - {name: load, load: {path: /v2/models/drill/infer, rate_per_s: 10}}
  - {name: stays, wait: {for_s: 60}}
objectives:
  - {measure: error_ratio, at_most: 0}
"""
LOADING = '["--load-s", "60"]'


def files(directory: Path, **flags: str) -> list[str]:
    for name, given in flags.items():
        (directory / f"{name}.yaml").write_text(DRILL.replace("NAME", name).replace("FLAGS", given))
    return [str(directory / f"{name}.yaml") for name in flags]


def test_each_is_told_by_its_name_and_the_worst_counts(tmp_path: Path) -> None:
    names = files(tmp_path, one='["--no-such-flag"]', second='["--none-either"]')
    command = [WARMROUTE, "drill", "run", *names, "--jobs", "2", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, check=False, env=ENVIRON, timeout=100, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    lines = done.stdout.splitlines()
    assert {"one    | one: Of one", "second | second: Of second"} <= set(lines)
    assert lines[-2:] == ["could not begin one", "could not begin second"]
    told = done.stderr.splitlines()
    assert "one    | warmroute: one: warmroute up ended:" in [line.rstrip() for line in told]
    assert any(line.startswith("second | ") and "--none-either" in line for line in told)
    assert all(line.startswith(("one    |", "second |")) for line in told)


def test_those_that_start_nothing_have_one_sidecar_and_run_alone(tmp_path: Path) -> None:
    file = tmp_path / "watch.yaml"
    file.write_text(DRILL.replace("NAME", "watch").replace("start: {up: {workers: 1, worker_flags: FLAGS}}\n", ""))
    command = [WARMROUTE, "drill", "run", str(file), "--jobs", "2", "--target", "127.0.0.1:1"]
    done = subprocess.run(command, check=False, env=ENVIRON, timeout=30, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("watch.yaml: starts nothing: --jobs is for drills with fleets of their own\n")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_what_ends_them_ends_all(signum: signal.Signals, tmp_path: Path) -> None:
    names = files(tmp_path, one=LOADING, second=LOADING, third=LOADING)
    fleets, out = tmp_path / "tmp", tmp_path / "out"
    fleets.mkdir()
    command = [WARMROUTE, "drill", "run", *names, "--jobs", "2", "--out", str(tmp_path)]
    with out.open("wb") as stream:
        process = Process(command, tmp_path / "err", stdout=stream, env=ENVIRON | {"TMPDIR": str(fleets)})
    with process:
        until(lambda: len(list(fleets.glob("warmroute-drill-*"))) == 2, "two fleets start", within_s=60)
        process.send(signum)
        if signum is signal.SIGINT:
            until(lambda: "not run         third" in out.read_text(), "it is told what became of each", within_s=60)
            while process.popen.poll() is None:  # whoever is impatient changes nothing any more
                process.popen.send_signal(signum)
        process.wait(60)
    until(lambda: not list(fleets.iterdir()), "nothing is left of the fleets", within_s=40)
    if signum is signal.SIGINT:
        assert process.popen.returncode == 2, process.text()  # neither has begun
        assert out.read_text().splitlines()[-3:] == [
            "could not begin one",
            "could not begin second",
            "not run         third",
        ]
