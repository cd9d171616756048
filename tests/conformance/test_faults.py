"""What breaks behind or before a real sidecar: nothing is lost, doubled or mixed up, and memory stays bounded.

The harnesses under ``faults/`` judge: a ledger of what was asked, executed and answered, and pressure from clients that
do not read, do not stop sending, or open connections until there are none.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.sidecar_process import SidecarProcess, free_port, sidecar_process
from tests.support.sidecars import Process

HARNESS = Path(__file__).with_name("faults")

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]


def settings(*ports: int, **model: object) -> dict[str, Any]:
    endpoints = [f"http://127.0.0.1:{port}" for port in ports]
    return {
        "models": [{"name": "default", "default": True, "endpoints": endpoints, **model}],
        "timeouts": {"drain_s": 2},
    }


def ledger_under_kill(directory: Path, *, idempotent: bool) -> dict[str, Any]:
    """Kill one of two origins with SIGKILL two seconds into a load of six; return the ledgers' comparison."""
    ports = [free_port(), free_port()]
    script = [sys.executable, str(HARNESS / "ledger.py")]
    with ExitStack() as stack:
        origins = [
            stack.enter_context(
                Process(
                    [*script, "origin", "--listen", f"127.0.0.1:{port}", "--id", name, "--file", f"{name}.ledger"],
                    directory / f"{name}.log",
                    cwd=directory,
                )
            )
            for name, port in zip("AB", ports, strict=True)
        ]
        sidecar = stack.enter_context(sidecar_process(directory, settings(*ports, idempotent=idempotent)))
        ledgers = ",".join(str(directory / f"{name}.ledger") for name in "AB")
        argv = [*script, "load", "--target", sidecar.listen, "--origins", ledgers, "--seconds", "6", "--clients", "12"]
        argv += ["--fault", f"at=2;cmd=kill -9 {origins[0].pid}", *(["--idempotent"] if idempotent else [])]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert "rc 0" in done.stdout.partition("\n")[0], f"the fault was not injected: {done.stdout}{done.stderr}"
        assert sidecar.stop() == 0
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert report["requests"] > 150
    return report


NEVER = ("lost", "wrong", "hang", "clean_cut")


def test_an_idempotent_model_survives_the_death_of_a_worker(tmp_path: Path) -> None:
    report = ledger_under_kill(tmp_path, idempotent=True)
    assert {name: report[name] for name in NEVER} == dict.fromkeys(NEVER, 0)
    # only an answer that had begun may be cut, and with two origins that is one that was streaming
    unanswered = {outcome for outcome in report["outcomes"] if not outcome.endswith(" ok")}
    assert unanswered <= {"stream cut mid-body"}


def test_nothing_is_executed_twice_unless_declared_idempotent(tmp_path: Path) -> None:
    report = ledger_under_kill(tmp_path, idempotent=False)
    assert {name: report[name] for name in (*NEVER, "doubled", "get_retried")} == dict.fromkeys(
        (*NEVER, "doubled", "get_retried"), 0
    )
    # what was under way at the dead worker is answered 502 or cut, and nobody else's
    failed = sum(count for outcome, count in report["outcomes"].items() if not outcome.endswith(" ok"))
    assert failed <= 12
    assert report["bad_window_s"] < 1


def pressure(sidecar: SidecarProcess, origin: int, tests: str, *options: str) -> str:
    argv = [sys.executable, str(HARNESS / "pressure_check.py"), "--target", sidecar.listen, "--tests", tests]
    argv += ["--origin", f"127.0.0.1:{origin}", "--pids", str(sidecar.process.pid), *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=90, check=False)
    verdicts = [line for line in done.stdout.splitlines() if line.startswith(("PASS", "FAIL"))]
    assert len(verdicts) == len(tests.split(",")), done.stdout + done.stderr
    return "\n".join(verdicts)


def test_memory_is_bounded_whatever_clients_do(tmp_path: Path) -> None:
    origin = free_port()
    with sidecar_process(tmp_path, settings(origin)) as sidecar:
        verdicts = pressure(sidecar, origin, "slow_reader,slow_upload,many_idle")
        assert "FAIL" not in verdicts, verdicts
        assert sidecar.stop() == 0


def test_a_flood_of_connections_passes(tmp_path: Path) -> None:
    origin = free_port()
    config = settings(origin) | {"limits": {"connections": 1000}}
    with sidecar_process(tmp_path, config) as sidecar:
        verdicts = pressure(sidecar, origin, "fd_flood", "--flood", "1500")
        assert "FAIL" not in verdicts, verdicts
        assert sidecar.stop() == 0
