"""A real ``warmroute sidecar``, for tests that judge the whole product from outside."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.sidecars import Process, until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    """Return a loopback port that was free a moment ago, for programs that cannot choose their own."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@dataclass(frozen=True)
class SidecarProcess:
    """A running sidecar. ``listen`` and ``admin`` are HOST:PORT."""

    process: Process
    listen: str
    admin: str

    def read(self, path: str) -> tuple[int, bytes]:
        """GET ``path`` from the admin address; return status and body, or 0 where it does not answer."""
        connection = http.client.HTTPConnection(self.admin, timeout=20)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:  # it may end in the midst of an answer
            return 0, str(error).encode()
        finally:
            connection.close()

    def stop(self) -> int:
        """Ask it to drain, and return its exit code."""
        self.process.send(signal.SIGTERM)
        return self.process.wait()


@contextmanager
def sidecar_process(directory: Path, settings: Mapping[str, Any]) -> Iterator[SidecarProcess]:
    """Run a sidecar with ``settings`` (less version, listener and admin address, chosen here) until the block ends.

    Yields once ``/readyz`` says 200.

    Raises:
        AssertionError: it ended, or was not ready in time.
    """
    listen, admin = (f"127.0.0.1:{free_port()}" for _ in range(2))
    config = {"version": 1, "listeners": [{"address": listen, "processes": 1}], "admin": {"address": admin}, **settings}
    path = directory / "warmroute.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    environ = {name: value for name, value in os.environ.items() if not name.startswith("WARMROUTE")}
    command = [str(Path(sys.executable).with_name("warmroute")), "sidecar", "--config", str(path)]
    with Process(command, directory / "sidecar.log", env=environ, cwd=ROOT) as process:
        running = SidecarProcess(process, listen, admin)

        def ready() -> bool:
            assert process.popen.poll() is None, f"it ended with {process.popen.returncode}"
            return running.read("/readyz")[0] == 200

        until(ready, "ready")
        yield running
