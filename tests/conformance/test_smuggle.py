"""No message with two readings passes: raw HTTP/1.1 cases against a real sidecar with a recording origin behind it.

The harness under ``smuggle/`` judges from the bytes that its origin received. MUST cases may not fail; what warmroute
decides in the cases that leave a choice (SHOULD, POLICY) stands in docs/http.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.sidecar_process import free_port, sidecar_process

HARNESS = Path(__file__).with_name("smuggle")
CASES: dict[str, dict[str, Any]] = {
    case["id"]: case for case in map(json.loads, (HARNESS / "corpus.jsonl").read_text().splitlines())
}

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(420)]


def judge(directory: Path, *options: str, timeouts: dict[str, float] | None = None) -> list[dict[str, Any]]:
    """Run the harness against a sidecar of its own and return its verdict on each case."""
    origin, results = free_port(), directory / "results.json"
    settings = {
        "models": [{"name": "default", "default": True, "endpoints": [f"http://127.0.0.1:{origin}"]}],
        # a broken answer is the case's own doing: the next case must find the origin in
        "policies": {"quarantine": {"base_s": 0.001, "max_s": 0.001}, "breaker": {"minimum_calls": 1_000_000}},
        "timeouts": {"drain_s": 1, **(timeouts or {})},
    }
    with sidecar_process(directory, settings) as sidecar:
        argv = [sys.executable, str(HARNESS / "smuggle_check.py"), "--target", sidecar.listen]
        argv += ["--origin", f"127.0.0.1:{origin}", "--json", str(results), *options]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=400, check=False)
        assert results.exists(), f"no verdicts: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        assert sidecar.stop() == 0
    verdicts: list[dict[str, Any]] = json.loads(results.read_text())
    return verdicts


def failed(verdicts: list[dict[str, Any]], *levels: str) -> list[str]:
    """Return the failed cases of ``levels``, each with what was found."""
    return [
        f"{row['id']} ({row['level']}): {'; '.join(row['fail'])}"
        for row in verdicts
        if row["verdict"] == "FAIL" and row["level"] in levels
    ]


@pytest.mark.parametrize("options", [(), ("--fragment", "5")], ids=["whole", "in pieces of 5 bytes"])
def test_no_must_case_fails(tmp_path: Path, options: tuple[str, ...]) -> None:
    verdicts = judge(tmp_path, *options)
    assert {row["id"] for row in verdicts} == {name for name, case in CASES.items() if case["kind"] != "slow"}
    assert failed(verdicts, "MUST") == []


def test_slow_clients_are_cut(tmp_path: Path) -> None:
    timeouts = {"client_head_s": 2.0, "client_body_idle_s": 2.0, "keep_alive_s": 3.0}
    verdicts = judge(tmp_path, "--slow", "--only", "slow", "--slow-limit", "15", timeouts=timeouts)
    assert {row["id"] for row in verdicts} == {name for name, case in CASES.items() if case["kind"] == "slow"}
    assert failed(verdicts, "MUST", "SHOULD", "POLICY") == []
