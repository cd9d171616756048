from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.state.embedded import EmbeddedRedis, EmbeddedRedisError, find_server


def ask(path: Path, command: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(5)
        sock.connect(str(path))
        sock.sendall(command + b"\r\n")
        return sock.recv(4096)


def test_starts_private_and_without_persistence_and_leaves_nothing(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path)
    try:
        assert server.start() == f"unix://{server.socket_path}"
        assert server.running
        assert ask(server.socket_path, b"CONFIG GET port").endswith(b"$1\r\n0\r\n")
        assert ask(server.socket_path, b"CONFIG GET save").endswith(b"$0\r\n\r\n")
        assert ask(server.socket_path, b"CONFIG GET appendonly").endswith(b"no\r\n")
        assert b"67108864" in ask(server.socket_path, b"CONFIG GET maxmemory")
        assert server.socket_path.stat().st_mode & 0o777 == 0o600
        assert server.start() == server.url, "starting twice changes nothing"
    finally:
        server.stop()
    assert server.pid is None
    assert list(tmp_path.iterdir()) == []


def test_comes_back_empty_after_it_was_killed(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path)
    try:
        server.start()
        ask(server.socket_path, b"SET a 1")
        first = server.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)  # dead, left for its owner to reap
        assert not server.running
        server.start()
        assert server.pid != first
        assert ask(server.socket_path, b"EXISTS a") == b":0\r\n"
    finally:
        server.stop()


def test_dies_with_its_parent(tmp_path: Path) -> None:
    program = (
        "import sys; from sidecar.state.embedded import EmbeddedRedis; s = EmbeddedRedis(sys.argv[1]); s.start();"
        "print(s.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        server = int(parent.stdout.readline())
        with os.fdopen(os.pidfd_open(server), "rb") as watch:
            parent.kill()
            parent.wait()
            ended, _, _ = select.select([watch], [], [], 5)  # pidfd_open(2): readable once it ended
    assert ended
    assert not (tmp_path / "state.sock").exists(), "a server that ends by SIGTERM removes its socket"


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    refuses = tmp_path / "refuses"
    refuses.write_text("#!/bin/sh\necho no such option >&2\nexit 3\n")
    refuses.chmod(0o755)
    with pytest.raises(EmbeddedRedisError, match=r"ended with status 3: no such option"):
        EmbeddedRedis(tmp_path, server=str(refuses)).start()


def test_a_path_too_long_for_a_socket_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedRedisError, match="choose a shorter directory"):
        EmbeddedRedis(tmp_path / ("d" * 120)).start()


def test_the_binary_of_the_wheel_is_found() -> None:
    assert os.access(find_server(), os.X_OK)
