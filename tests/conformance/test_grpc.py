"""Real gRPC clients and servers (grpcio) do not notice the sidecar between them: after gRPC's own interop tests."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.product import running
from tests.support.sidecar_process import free_port
from tests.support.sidecars import Process, until

if TYPE_CHECKING:
    from collections.abc import Iterator

HARNESS = Path(__file__).with_name("grpc")
CASES = 25

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]


@contextmanager
def origin(directory: Path) -> Iterator[int]:
    """Run the harness's server; yield its port."""
    port, out = free_port(), directory / "origin.log"
    command = [sys.executable, str(HARNESS / "grpc_origin.py"), str(port), str(directory / "state.json")]
    with out.open("wb") as stdout, Process(command, directory / "origin.err", stdout=stdout) as process:
        until(lambda: "grpc origin on" in out.read_text() or process.popen.poll() is not None, "the origin listens")
        assert process.popen.poll() is None, out.read_text()
        yield port


@pytest.mark.parametrize("processes", [1, 2])
def test_every_case_passes(tmp_path: Path, processes: int) -> None:
    with origin(tmp_path) as port:
        settings = {
            "listeners": [{"address": "127.0.0.1:0", "protocol": "grpc", "processes": processes}],
            "models": [{"name": "default", "default": True, "endpoints": [f"grpc://127.0.0.1:{port}"]}],
        }
        with running(tmp_path, settings=settings, processes=processes) as sidecar:
            command = [sys.executable, str(HARNESS / "grpc_check.py"), sidecar.listen, str(tmp_path / "state.json")]
            done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
            assert re.findall(r"^FAIL .*$", done.stdout, re.MULTILINE) == [], done.stderr
            assert f"{CASES} passed, 0 failed" in done.stdout
            until(lambda: sidecar.metric("warmroute_requests_in_flight") == 0, "nothing in flight")
            assert sidecar.metric("warmroute_requests_total", outcome="internal") == 0
