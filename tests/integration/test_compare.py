"""``warmroute compare`` as a command, against two origins of which one is slower, or fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sidecar.cli.main import main
from tests.support.http_origin import Handler, HttpOrigin

SLOW_S = 0.02


class Quick(Handler):
    def get(self) -> None:
        self.answer(b"")


class Slow(Handler):
    def get(self) -> None:
        time.sleep(SLOW_S)
        self.answer(b"")


class Failing(Handler):
    def get(self) -> None:
        self.answer(b"", 503)


def trace(tmp_path: Path, requests: int = 81) -> Path:
    file = tmp_path / "trace.jsonl"
    lines = ['{"warmroute_trace": 1}', *(json.dumps({"at_s": number / 500}) for number in range(requests))]
    file.write_text("\n".join(lines) + "\n")
    return file


def test_both_targets_are_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rounds = ["--rounds", "8", "--json"]
    with HttpOrigin(Quick) as quick, HttpOrigin(Slow) as slow:
        pids = ["--pid-a", str(os.getpid()), "--pid-b", str(os.getpid())]
        code = main(["compare", quick.url, slow.url, str(trace(tmp_path)), *rounds, *pids])
    report = json.loads(capsys.readouterr().out)
    judged = {one["figure"]: one for one in report["judged"]}
    assert (report["rounds"], report["complete"]) == (8, True)
    assert [target["requests"] for target in report["targets"]] == [72, 72]
    assert judged["P50"]["b"] >= 1000 * SLOW_S  # whether it shows is a matter of what else the machine does
    low, high = judged["P50"]["difference"]
    assert judged["P50"]["verdict"] == ("higher" if low > 0 else "lower" if high < 0 else "open")
    assert (judged["P99"]["verdict"], judged["errors"]["verdict"]) == ("unknown", "open")
    assert code == any(one["verdict"] == "higher" for one in report["judged"])
    assert judged["CPU a request"]["a"] > 0


class Dying(Handler):
    """Answers the first 45 requests, the round that warms up and four of eight, and fails all others."""

    answered = 0

    def get(self) -> None:
        Dying.answered += 1
        self.answer(b"", 200 if Dying.answered <= 45 else 503)


def test_failures_are_told_and_a_table_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with HttpOrigin(Quick) as quick, HttpOrigin(Failing) as failing:
        assert main(["compare", quick.url, failing.url, str(trace(tmp_path)), "--rounds", "8"]) == 1
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert f"A: {quick.url}, 72 requests, none failed" in lines
    assert f"B: {failing.url}, 72 requests, 72 failed (100.0%): 72 status 503" in lines
    errors = next(line for line in lines if line.startswith("errors %"))
    assert "100.000" in errors
    assert errors.endswith("0 of 72 failed at A, 72 of 72 at B: B is higher")
    assert any(line.endswith("cannot be told: 0 answers at one of them, 20 are needed") for line in lines)
    assert "P50 and P99 are of requests that did not fail: 72 at A, 0 at B." in lines
    assert lines[-1] == "Ends with 1: errors: B is higher; every request to B failed in rounds 1 to 8"


def test_a_target_that_dies_halfway_is_worse_also_where_shares_may_be_chance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with HttpOrigin(Quick) as quick, HttpOrigin(Dying) as dying:
        assert main(["compare", quick.url, dying.url, str(trace(tmp_path)), "--rounds", "8"]) == 1
    text = capsys.readouterr().out
    told = "0 of 72 failed at A, 36 of 72 at B: may be chance in 8 rounds; more of them would tell (--rounds)"
    assert told in text
    assert "P50 and P99 are of requests that did not fail: 72 at A, 36 at B." in text
    assert text.rstrip().endswith("Ends with 1: every request to B failed in rounds 5 to 8")


def test_fewer_failures_are_no_harm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with HttpOrigin(Quick) as quick, HttpOrigin(Failing) as failing:
        assert main(["compare", failing.url, quick.url, str(trace(tmp_path)), "--rounds", "8", "--json"]) == 0
    judged = {one["figure"]: one["verdict"] for one in json.loads(capsys.readouterr().out)["judged"]}
    assert judged["errors"] == "lower"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ["http://h:1", "ftp://h:1", "TRACE"],
            "B: address 'ftp://h:1': must be http://HOST:PORT, https://HOST:PORT, grpc://HOST:PORT, ",
        ),
        (["http://h:1", "http://h:2", "TRACE", "--rounds", "81"], "81 requests are too few for 81 rounds (--rounds)"),
        (["http://h:1", "http://h:2", "TRACE", "--pid-a", "1"], "--pid-a and --pid-b: CPU is compared where both"),
        (
            ["http://h:1", "http://h:2", "TRACE", "--pid-a", "1", "--pid-b", "999999999"],
            "--pid-b 999999999: there is no such process",
        ),
    ],
)
def test_wrong_use_sends_nothing(
    tmp_path: Path, arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(trace(tmp_path))
    assert main(["compare", *(file if word == "TRACE" else word for word in arguments)]) == 2
    assert error in capsys.readouterr().err


def test_ctrl_c_counts_whole_rounds(tmp_path: Path) -> None:
    arrived = threading.Event()

    class Holding(Handler):
        def get(self) -> None:
            arrived.set()
            self.answer(b"")

    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(['{"warmroute_trace": 1}', *(f'{{"at_s": {60 * number}}}' for number in range(20))]))
    with HttpOrigin(Holding) as origin:
        argv = [sys.executable, "-m", "sidecar.cli.main", "compare", origin.url, origin.url, str(file), "--rounds", "8"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            assert arrived.wait(30)
            process.send_signal(signal.SIGINT)
            text = process.communicate(timeout=30)[0]
    assert process.returncode == 130
    assert "interrupted: rounds that were whole are counted" in text
    assert "cannot be told: 0 blocks, 8 are needed" in text
