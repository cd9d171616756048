"""A real ``warmroute sidecar`` in processes of its own, for tests that judge the whole product from outside."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parents[2]
START_S = 20.0
STOP_S = 20.0


def free_port() -> int:
    """Return a loopback port that was free a moment ago, for programs that cannot choose their own."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@dataclass(frozen=True)
class SidecarProcess:
    """A running sidecar. ``listen`` and ``admin`` are HOST:PORT."""

    process: subprocess.Popen[bytes]
    listen: str
    admin: str
    log: Path

    def tail(self) -> str:
        """Return the end of its log."""
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-30:])

    def read(self, path: str) -> tuple[int, bytes]:
        """GET ``path`` from the admin address; return status and body."""
        connection = http.client.HTTPConnection(self.admin, timeout=2)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def stop(self) -> int:
        """Ask it to drain, and return its exit code.

        Raises:
            AssertionError: it did not end in time.
        """
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the sidecar did not end within {STOP_S} s:\n{self.tail()}") from None


@contextmanager
def sidecar_process(directory: Path, settings: Mapping[str, Any]) -> Iterator[SidecarProcess]:
    """Run a sidecar with ``settings`` (less version, listener address and admin, chosen here) until the block ends.

    Yields once ``/readyz`` says 200. What is left of it at the end is killed.

    Raises:
        AssertionError: it ended, or was not ready within 20 s.
    """
    listen, admin = (f"127.0.0.1:{free_port()}" for _ in range(2))
    config = {"version": 1, "listeners": [{"address": listen, "processes": 1}], "admin": {"address": admin}, **settings}
    path, log = directory / "warmroute.yaml", directory / "sidecar.log"
    path.write_text(json.dumps(config))  # JSON is YAML
    environ = {name: value for name, value in os.environ.items() if not name.startswith("WARMROUTE")}
    argv = [str(Path(sys.executable).with_name("warmroute")), "sidecar", "--config", str(path)]
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environ, cwd=ROOT)
    running = SidecarProcess(process, listen, admin, log)
    try:
        _await_ready(running)
        yield running
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()  # its children follow: they ask the kernel for a signal when it dies
                process.wait()


def _await_ready(running: SidecarProcess) -> None:
    deadline = time.monotonic() + START_S
    seen: object = None
    while time.monotonic() < deadline:
        if running.process.poll() is not None:
            raise AssertionError(f"the sidecar ended with {running.process.returncode}:\n{running.tail()}")
        try:
            seen = running.read("/readyz")
            if seen[0] == 200:
                return
        except (OSError, http.client.HTTPException) as error:
            seen = error
        time.sleep(0.05)
    raise AssertionError(f"the sidecar was not ready within {START_S} s ({seen!r}):\n{running.tail()}")
