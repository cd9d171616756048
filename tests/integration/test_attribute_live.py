"""``warmroute attribute --follow``: a live split, with a recorder in front of a sidecar in front of a worker."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.sidecar_process import sidecar_process
from tests.support.worker_process import WorkerProcess, echo_body

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EACH = 10


@contextmanager
def command(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run one that says on standard error that it has begun; yields it with what it said."""
    argv = [sys.executable, "-m", "sidecar.cli.main", *arguments]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        yield process, process.stderr.readline()
    finally:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=30)[0]


def ask(port: int) -> None:
    """Ask for the model in its split, so many times."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    for _ in range(EACH):
        connection.request("POST", "/v2/models/m/infer", json.dumps(echo_body()))
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200
    connection.close()


def lines(*paths: Path) -> int:
    return sum(path.read_text().count("\n") for path in paths if path.exists())


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_split_is_attributed_while_its_logs_are_rotated(tmp_path: Path) -> None:
    log, moved, trace = tmp_path / "requests.jsonl", tmp_path / "moved.jsonl", tmp_path / "trace.jsonl"
    for version in ("1", "2"):
        (tmp_path / "models" / "m" / version).mkdir(parents=True)
    flags = (
        "--engine",
        "deterministic",
        "--models",
        str(tmp_path / "models"),
        "--versions",
        "all",
        "--service-ms",
        "2",
    )
    with WorkerProcess(*flags, "--request-log", str(log)) as worker:
        endpoints = [{"url": worker.listening(), "models": ["m@1", "m@2"]}]
        for version in ("1", "2"):
            worker.event("model.warm", model="m", version=version)
        split = [{"version": "1", "weight": 1}, {"version": "2", "weight": 1}]
        model = {"name": "m", "default": True, "versions": {"serve": "split", "split": split}}
        with (
            sidecar_process(tmp_path, {"endpoints": endpoints, "models": [model]}) as sidecar,
            command("record", "--listen", "127.0.0.1:0", "--to", f"http://{sidecar.listen}", "--out", str(trace)) as (
                _,
                recording,
            ),
            command("attribute", "--follow", str(trace), str(log), "--json") as (following, said),
        ):
            assert said == "joining what comes; Ctrl-C ends it\n"
            port = int(recording.partition(";")[0].rpartition(":")[2])
            ask(port)
            until(lambda: lines(log) == EACH)
            log.rename(moved)
            ask(port)
            until(lambda: lines(log, moved, trace) == 4 * EACH + 1)
            report: dict[str, Any] = json.loads(ended(following))
            assert following.returncode == 0
    assert (report["by"], report["joined"], report["offered"]) == ("version", 2 * EACH, 4 * EACH)
    assert not any(
        report[name] for name in ("attempts", "waiting", "orphans", "repeated", "lost", "unreadable", "missing")
    )
    rows = report["rows"]
    assert set(rows) == {"m@1", "m@2"}
    assert sum(row["joined"] for row in rows.values()) == 2 * EACH
    for row in rows.values():
        assert (row["failed"], row["unmatched"]) == (0, {})
        assert 2.0 * 0.98 <= row["run_ms"]["p50"] <= row["worker_ms"]["p99"] <= 1.05 * row["caller_ms"]["p99"]
