"""What a data process needs to stand idle, and what a thousand idle connections add."""

from __future__ import annotations

import re
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.chaos.churn import ORIGIN, REQUEST
from tests.support.product import running
from tests.support.sidecar_process import free_port
from tests.support.sidecars import Process, until

IDLE_MB = 40
THOUSAND_MB = 15


def pss_mb(pid: int) -> float:
    """Return the proportional set size: shared pages count in equal parts (proc(5))."""
    found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1000


@pytest.mark.timeout(60)
def test_idle_processes_and_idle_connections_are_small(tmp_path: Path) -> None:
    port = free_port()
    models = [{"name": "default", "default": True, "endpoints": [f"http://127.0.0.1:{port}"]}]
    with ExitStack() as stack:
        stack.enter_context(Process([sys.executable, str(ORIGIN), str(port)], tmp_path / "origin.log"))
        sidecar = stack.enter_context(running(tmp_path, settings={"models": models}, processes=1))
        pid = sidecar.process.child("data-0")
        idle = pss_mb(pid)
        assert idle <= IDLE_MB
        host, _, listen = sidecar.listen.rpartition(":")
        for number in range(1000):
            sock = stack.enter_context(socket.create_connection((host, int(listen)), timeout=5))
            for _ in range(5):  # heads that are learned, and differ
                sock.sendall(REQUEST % b"/ok?%d" % number)
                assert sock.recv(1000).startswith(b"HTTP/1.1 ")
        until(lambda: sidecar.metric("warmroute_connections") == 1000, "they stand")
        assert pss_mb(pid) - idle <= THOUSAND_MB
