"""A sidecar that listens on a Unix socket, in front of a worker on one."""

from __future__ import annotations

import asyncio
import signal
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.support.basics import Worker, run_basics
from tests.support.product import WARMROUTE
from tests.support.sidecar_process import ROOT
from tests.support.sidecars import Process

pytestmark = [pytest.mark.acceptance, pytest.mark.beside, pytest.mark.timeout(60)]


def test_the_basics_over_unix_sockets(tmp_path: Path) -> None:
    path = tmp_path / "in.sock"
    mode = []

    def settings(address: str) -> dict[str, Any]:
        listener = {"address": f"unix:{path}", "unix_mode": "0600", "processes": 2}
        return {"listeners": [listener], "models": [{"name": "m", "default": True, "endpoints": [address]}]}

    async def connect(address: str) -> Any:
        assert address == f"unix:{path}"
        mode.append(stat.S_IMODE(path.stat().st_mode))
        return await asyncio.open_unix_connection(path)

    sidecar = run_basics(tmp_path, lambda: Worker(str(tmp_path / "w.sock")), settings, connect)
    assert set(mode) == {0o600}
    assert not path.exists(), "the file goes with the sidecar"
    opened = sidecar.process.await_event("listener.open")
    assert (opened["sockets"], opened["fastopen_asked"]) == (2, 0)


def test_without_a_file_over_what_a_killed_one_left(tmp_path: Path) -> None:
    path = tmp_path / "in.sock"
    with socket.socket(socket.AF_UNIX) as dead:  # nobody answers on its file
        dead.bind(str(path))
    flags = ["--listen", f"unix:{path}", "--to", f"unix:{tmp_path}/w.sock", "--processes", "1"]
    command = [WARMROUTE, "sidecar", *flags, "--admin", "127.0.0.1:0", "--log-format", "json"]
    with Process(command, tmp_path / "sidecar.log", cwd=ROOT) as process:
        process.await_event("process.accepting")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
        process.send(signal.SIGTERM)
        assert process.wait() == 0
    assert not path.exists()
