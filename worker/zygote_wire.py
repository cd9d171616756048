"""What a zygote and its clients say to each other: one request with descriptors, then lines. Imports almost nothing.

A client connects to the zygote's Unix socket and sends one request: a head of ten bytes, and fields that end in NUL.
Its first byte carries four descriptors: standard input, output, error, and the reading end of a pipe (the *lifeline*)
whose writing end the client keeps, so that the worker hears when the client is gone. The zygote answers
``started PID``, with a descriptor of that process (pidfd_open(2)), and when it has ended ``exited CODE`` or
``killed SIGNAL``; or at once ``refused REASON``.
"""

from __future__ import annotations

import os
import struct

MAGIC = b"wrz1"
HEAD = struct.Struct("!4sIH")
DESCRIPTORS = 4
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - pathlib takes long
MAX_REQUEST_BYTES = 4 << 20
"""More than arguments and environment of a process may be together on Linux with its usual stack limit."""


class WireError(Exception):
    """The other side does not speak as it should."""


class Request:
    """What a worker inherits from whoever starts it. ``code`` says which program: see :func:`code_mark`.

    No dataclass: importing those takes a client longer than all the rest.
    """

    __slots__ = ("arguments", "code", "cores", "directory", "environment", "limits", "niceness", "umask")

    def __init__(
        self,
        code: str,
        directory: str,
        umask: int,
        cores: tuple[int, ...],
        niceness: int,
        limits: tuple[tuple[int, int, int], ...],
        arguments: tuple[str, ...],
        environment: tuple[tuple[str, str], ...],
    ) -> None:
        """``limits``: kind, soft and hard value of each, as getrlimit(2) has them."""
        self.code = code
        self.directory = directory
        self.umask = umask
        self.cores = cores
        self.niceness = niceness
        self.limits = limits
        self.arguments = arguments
        self.environment = environment


def encode(request: Request) -> bytes:
    """Return the request's bytes."""
    fields = [
        request.code,
        request.directory,
        str(request.umask),
        ",".join(map(str, request.cores)),
        str(request.niceness),
        ",".join(f"{kind}:{soft}:{hard}" for kind, soft, hard in request.limits),
        *request.arguments,
        *(f"{name}={value}" for name, value in request.environment),
    ]
    body = b"".join(os.fsencode(text) + b"\0" for text in fields)
    return HEAD.pack(MAGIC, len(body), len(request.arguments)) + body


def expected_bytes(head: bytes) -> int:
    """Return how many bytes the request with this head has in all.

    Raises:
        WireError: it is none, or too large.
    """
    magic, length, _ = HEAD.unpack(head[: HEAD.size])
    if magic != MAGIC:
        raise WireError("not a request to a zygote of this version")
    if length > MAX_REQUEST_BYTES:
        raise WireError(f"{length} bytes of arguments and environment; at most {MAX_REQUEST_BYTES}")
    return HEAD.size + int(length)


def decode(data: bytes) -> Request:
    """Read a whole request.

    Raises:
        WireError: it is none.
    """
    _, _, count = HEAD.unpack(data[: HEAD.size])
    fields = [os.fsdecode(field) for field in data[HEAD.size :].split(b"\0")[:-1]]
    try:
        code, directory, umask, cores, niceness, limits, *rest = fields
        pairs = [pair.partition("=") for pair in rest[count:]]
        return Request(
            code,
            directory,
            int(umask),
            tuple(int(core) for core in cores.split(",") if core),
            int(niceness),
            tuple((int(k), int(s), int(h)) for k, s, h in (one.split(":") for one in limits.split(",") if one)),
            tuple(rest[:count]),
            tuple((name, value) for name, _, value in pairs),
        )
    except ValueError as error:
        raise WireError("a request that cannot be read") from error


def code_mark(root: str = _ROOT) -> str:
    """Return where this program's files lie and when the last of them changed: a zygote forks what it has in memory.

    One that was started before an upgrade must not start workers of the old program after it.
    """
    newest = 0
    todo = [os.path.join(root, name) for name in ("worker", "router")]  # noqa: PTH118
    while todo:
        with os.scandir(todo.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != "__pycache__":
                        todo.append(entry.path)
                elif entry.name.endswith(".py"):
                    newest = max(newest, entry.stat().st_mtime_ns)
    return f"{root} {newest}"
