"""WebSockets pass: the cases of ``ws/`` through a real sidecar, and through two of them one behind the other."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.support.certificates import Authority, write
from tests.support.sidecar_process import SidecarProcess, free_port, sidecar_process
from tests.support.sidecars import until

if TYPE_CHECKING:
    from collections.abc import Iterator

HARNESS = Path(__file__).with_name("ws")
CASES = 21

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def origin() -> Iterator[str]:
    """Run the echo server; return its HOST:PORT."""
    port = free_port()
    argv = [sys.executable, str(HARNESS / "ws_origin.py"), str(port)]
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as process:
        try:

            def listens() -> bool:
                with socket.socket() as sock:
                    return sock.connect_ex(("127.0.0.1", port)) == 0

            until(listens, "the echo server")
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


@contextmanager
def before(directory: Path, address: str, scheme: str = "http", **more: Any) -> Iterator[SidecarProcess]:
    """Run a sidecar in front of ``address``, with ``more`` settings."""
    directory.mkdir()
    settings: dict[str, Any] = {
        "models": [{"name": "default", "default": True, "endpoints": [f"{scheme}://{address}"]}],
        "timeouts": {"drain_s": 1},
        **more,
    }
    with sidecar_process(directory, settings) as sidecar:
        yield sidecar


def check(target: str) -> None:
    argv = [sys.executable, str(HARNESS / "ws_check.py"), target]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False, env={"IDLE": "1"})
    assert done.stdout.splitlines()[-1] == f"{CASES} passed, 0 failed", done.stdout


def test_websockets_pass_a_sidecar(tmp_path: Path, origin: str) -> None:
    with before(tmp_path / "one", origin) as sidecar:
        check(sidecar.listen)
        tunnels = 'warmroute_tunnels{process="0"} 0'
        until(lambda: tunnels in sidecar.read("/metrics")[1].decode(), "no tunnel is left")
        assert sidecar.stop() == 0


def test_websockets_pass_over_tls(tmp_path: Path, origin: str) -> None:
    authority = Authority()
    cert_file, key_file = authority.issue("127.0.0.1").write(tmp_path, "server")
    ca_file = write(tmp_path / "ca.pem", authority.pem)
    tls = {"cert_file": cert_file, "key_file": key_file}
    ports = free_port(), free_port()
    listeners = [[{"address": f"127.0.0.1:{port}", "processes": 1, "tls": tls}] for port in ports]
    behind = before(tmp_path / "inner", origin, listeners=listeners[0])
    front = before(
        tmp_path / "outer", f"127.0.0.1:{ports[0]}", "https", listeners=listeners[1], upstream_tls={"ca_file": ca_file}
    )
    with behind, front:
        address = f"wss://127.0.0.1:{ports[1]}/"
        with connect(address, ssl=authority.client(), max_size=None, close_timeout=2) as socket_:
            for size in (0, 1, 70_000, 1 << 20):
                socket_.send(bytes(size))
                assert socket_.recv(timeout=5) == bytes(size)
            socket_.close(4002)
        with connect(address + "close", ssl=authority.client()) as socket_, pytest.raises(ConnectionClosed) as closed:
            socket_.recv(timeout=5)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4001


def test_websockets_pass_two_sidecars(tmp_path: Path, origin: str) -> None:
    with before(tmp_path / "inner", origin) as inner, before(tmp_path / "outer", inner.listen) as outer:
        check(outer.listen)
