"""Requests that real clients sent (openai in Python and Node, tritonclient, kserve) arrive as they were sent.

``captures/replay_captures.py`` replays them and compares what a recording origin got: method, target and body byte for
byte, each end-to-end field unchanged. What is added is asked for here: nothing but the fields that docs/http.md names.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.sidecar_process import free_port, sidecar_process

HARNESS = Path(__file__).with_name("captures")
CAPTURES = 76
ADDED = {"traceparent", "via", "warmroute-attempt", "x-forwarded-for", "x-forwarded-proto", "x-request-id"}

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize(
    ("names", "options"),
    [
        pytest.param(["default"], [], id="one model takes all"),
        pytest.param(["default", "m"], [], id="bodies are looked at"),
        pytest.param(["default", "m"], ["--fragment", "7"], id="bodies are looked at, in pieces of 7 bytes"),
    ],
)
def test_real_clients_requests_arrive_as_they_were_sent(tmp_path: Path, names: list[str], options: list[str]) -> None:
    origin = free_port()
    settings: dict[str, Any] = {
        "models": [
            {"name": name, "default": name == "default", "endpoints": [f"http://127.0.0.1:{origin}"]} for name in names
        ],
        "timeouts": {"drain_s": 1},
    }
    with sidecar_process(tmp_path, settings) as sidecar:
        argv = [sys.executable, str(HARNESS / "replay_captures.py"), "--target", sidecar.listen]
        argv += ["--origin", f"127.0.0.1:{origin}", *options, "-v"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)
    lines = done.stdout.splitlines()
    assert lines, done.stderr[-2000:]
    assert lines[-1] == f"{CAPTURES} passed, 0 failed", done.stdout
    added = [set(ast.literal_eval(line.partition(": ")[2])) for line in lines if "added by the proxy" in line]
    assert len(added) == CAPTURES
    assert set().union(*added) == ADDED
