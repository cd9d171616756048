"""A state store's server as a fault sees it: found by its URL, asked in its protocol, and surely of this machine."""

from __future__ import annotations

import socket
import struct
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from sidecar.faults.processes.fault import ProcessFaultError

if TYPE_CHECKING:
    from collections.abc import Iterator


TIMEOUT_S = 2.0
"""For a connection, and for one reply."""
_LISTENS = "0A"
_SCHEMES = ("redis", "rediss")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def socket_of(url: str) -> Path | None:
    """Return the Unix socket that a URL names, None where it names a port."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "unix" else None


def plain(url: str) -> str:
    """Return a URL without user and password, for messages."""
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{place}{parts.path}"


def check_url(kind: str, url: str) -> None:
    """Refuse a URL that cannot be a server's on this machine.

    Raises:
        ProcessFaultError: it is such a one.
    """
    try:
        parts = urlsplit(url)
        good = parts.path != "" if parts.scheme == "unix" else parts.scheme in _SCHEMES and parts.hostname in _LOOPBACK
        _ = parts.port
    except ValueError as error:
        raise ProcessFaultError(f"{kind}: {plain(url)}: {error}") from error
    if not good:
        raise ProcessFaultError(
            f"{kind}: {plain(url)}: must be unix:///PATH or redis://127.0.0.1:PORT: only servers on this machine"
        )


def pid_of(kind: str, url: str) -> int:
    """Return the process that serves at ``url``.

    On a Unix socket the kernel says which process listens (SO_PEERCRED, unix(7)). On a port of the loopback interface
    the server says so itself, and must have that listening socket among its descriptors.

    Raises:
        ProcessFaultError: no URL of a server on this machine, or nobody answers there.
    """
    check_url(kind, url)
    path = socket_of(url)
    try:
        if path is not None:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(TIMEOUT_S)
                sock.connect(str(path))
                size = struct.calcsize("3i")
                return int(struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0])
    except OSError as error:
        raise ProcessFaultError(f"{kind}: {plain(url)}: {error.strerror or error}") from error
    port = urlsplit(url).port or 6379
    with asked(kind, url) as server:
        pid = int(server.info("server").get("process_id", 0))
    if not _listens(pid, port):
        raise ProcessFaultError(
            f"{kind}: {plain(url)}: its process {pid} is not one of this machine that can be seen: name it by pid"
        )
    return pid


@contextmanager
def asked(kind: str, url: str) -> Iterator[Any]:
    """Give a connection to the server; what goes wrong with it is a ProcessFaultError that names the server."""
    from redis import Redis  # only who asks a server needs a client
    from redis.backoff import NoBackoff
    from redis.exceptions import RedisError
    from redis.retry import Retry

    try:
        server: Any = Redis.from_url(
            url,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
            single_connection_client=True,
        )
    except (RedisError, OSError, ValueError) as error:
        raise ProcessFaultError(f"{kind}: {plain(url)}: {error}") from error
    try:
        yield server
    except (RedisError, OSError) as error:
        raise ProcessFaultError(f"{kind}: {plain(url)}: {error}") from error
    finally:
        server.close()


def cut_callers(server: Any) -> None:
    """Close all connections of callers but the one that asks: those that ask, and those that listen."""
    for sort in ("normal", "pubsub"):
        server.execute_command("CLIENT", "KILL", "TYPE", sort, "SKIPME", "yes")


def _listens(pid: int, port: int) -> bool:
    """Tell whether a process has a listening TCP socket on ``port`` (proc(5): net/tcp, PID/fd)."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if str(descriptor.readlink()) in inodes:
                    return True
    return False
