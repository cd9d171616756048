"""Real gRPC clients and servers (grpcio) do not notice the sidecar between them: after gRPC's own interop tests."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.certificates import Authority, write
from tests.support.product import Sidecar, running
from tests.support.sidecar_process import free_port
from tests.support.sidecars import Process, until

if TYPE_CHECKING:
    from collections.abc import Iterator

HARNESS = Path(__file__).with_name("grpc")
CASES = 25

pytestmark = pytest.mark.timeout(120)


@contextmanager
def origin(directory: Path) -> Iterator[int]:
    """Run the harness's server; yield its port."""
    port, out = free_port(), directory / "origin.log"
    command = [sys.executable, str(HARNESS / "grpc_origin.py"), str(port), str(directory / "state.json")]
    with out.open("wb") as stdout, Process(command, directory / "origin.err", stdout=stdout) as process:
        until(lambda: "grpc origin on" in out.read_text() or process.popen.poll() is not None, "the origin listens")
        assert process.popen.poll() is None, out.read_text()
        yield port


def judge(directory: Path, sidecar: Sidecar) -> None:
    """Run every case against a sidecar; all must pass, and leave nothing behind."""
    command = [sys.executable, str(HARNESS / "grpc_check.py"), sidecar.listen, str(directory / "state.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert re.findall(r"^FAIL .*$", done.stdout, re.MULTILINE) == [], done.stderr
    assert f"{CASES} passed, 0 failed" in done.stdout
    until(lambda: sidecar.metric("warmroute_requests_in_flight") == 0, "nothing in flight")
    assert sidecar.metric("warmroute_requests_total", outcome="internal") == 0


def settings(address: str, **listener: object) -> dict[str, Any]:
    return {
        "listeners": [{"address": "127.0.0.1:0", "protocol": "grpc", "processes": 2, **listener}],
        "models": [{"name": "default", "default": True, "probe": {}, "endpoints": [address]}],
    }


def test_every_case_passes(tmp_path: Path) -> None:
    with (
        origin(tmp_path) as port,
        running(tmp_path, settings=settings(f"grpc://127.0.0.1:{port}")) as sidecar,
    ):
        judge(tmp_path, sidecar)


def test_every_case_passes_over_tls(tmp_path: Path) -> None:
    """Two in a row: the harness speaks no TLS, so the first one speaks it with the second."""
    authority = Authority()
    ca_file = write(tmp_path / "ca.pem", authority.pem)
    cert_file, key_file = authority.issue("127.0.0.1").write(tmp_path, "far")
    tls = {"cert_file": cert_file, "key_file": key_file}
    for name in ("near", "far"):
        (tmp_path / name).mkdir()
    with (
        origin(tmp_path) as port,
        running(tmp_path / "far", settings=settings(f"grpc://127.0.0.1:{port}", tls=tls)) as far,
        running(
            tmp_path / "near",
            settings=settings(f"grpcs://{far.listen}", processes=1) | {"upstream_tls": {"ca_file": ca_file}},
            processes=1,
        ) as near,
    ):
        judge(tmp_path, near)
        assert far.metric("warmroute_requests_total", outcome="ok") > CASES
