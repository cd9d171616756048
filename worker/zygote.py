"""A process that has imported everything a worker needs, and forks workers on request: ``python -m worker.zygote``.

The interpreter and its imports are most of a small model's start. A fork has them at once, and shares their memory.
What must not be carried over a fork is not there yet: no session, no device, no event loop, no thread, no connection.
A worker that was forked behaves as one that was started by itself; who asked for it stays as its stand-in
(:mod:`worker.zygote_client`). Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gc
import importlib
import os
import resource
import selectors
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from worker.engines import EngineError
from worker.log import EventLog
from worker.standard_streams import open_closed
from worker.zygote_wire import DESCRIPTORS, HEAD, Request, WireError, code_mark, decode, expected_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    Main = Callable[[list[str]], int]

PRELOADED = ("worker.__main__", "worker.redis_writer", "yaml", "importlib.metadata", "encodings.idna")
"""What every worker may need. The engines' modules come to it: see ``--engine``."""
REQUEST_S = 5.0
"""How long a client may take to send its request."""
MAX_CONNECTIONS = 256
BACKLOG = 64
_USAGE = 2
_FAILED = 1
_F_SETSIG = 10  # fcntl(2); Python has no name for it
_UCRED = struct.Struct("iII")  # pid, uid, gid: unix(7)


class ZygoteError(Exception):
    """The zygote cannot start; the text says why."""


@dataclass(slots=True, eq=False)
class _Client:
    """A connection: while it sends its request, and then as long as its worker lives."""

    connection: socket.socket
    deadline: float
    data: bytearray = field(default_factory=bytearray)
    descriptors: list[int] = field(default_factory=list)
    pid: int = 0
    gone: bool = False


class Zygote:
    """Answers requests until it is told to stop, and then until the last worker has ended or it is told again."""

    def __init__(self, path: Path, log: EventLog, main: Main) -> None:
        """Listen on a new socket at ``path`` that only this user may use; ``main`` is what a fork runs.

        Raises:
            ZygoteError: there is another zygote, or the path cannot be used.
        """
        self._path = path
        self._log = log
        self._main = main
        self._code = code_mark()
        self._selector = selectors.DefaultSelector()
        self._listener: socket.socket | None = _listen(path)
        self._inode = path.stat().st_ino
        self._woken, self._waking = socket.socketpair()
        self._clients: set[_Client] = set()
        self._pidfds: dict[int, _Client] = {}
        self._stops = 0

    def run(self) -> None:
        """Serve; returns when all is done."""
        assert self._listener is not None  # noqa: S101 - set until stopped
        for sock in (self._listener, self._woken, self._waking):
            sock.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        signal.set_wakeup_fd(self._waking.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        while self._stops < 2 and (self._stops == 0 or self._pidfds):
            for key, _ in self._selector.select(self._patience_s()):
                self._ready(key)
            now = time.monotonic()
            for client in [client for client in self._clients if client.pid == 0 and client.deadline <= now]:
                self._refuse(client, f"no whole request within {REQUEST_S:g} s")
        self._stop_listening()

    def _patience_s(self) -> float | None:
        deadlines = [client.deadline for client in self._clients if client.pid == 0]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _ready(self, key: selectors.SelectorKey) -> None:
        if key.fileobj is self._listener:
            self._accept()
        elif key.fileobj is self._woken:
            self._stops += len(self._woken.recv(64))
            self._stop_listening()
        elif isinstance(key.data, _Client):
            self._read(key.data)
        else:
            self._reap(key.fd)

    def _stop_listening(self) -> None:
        if self._listener is None:
            return
        self._selector.unregister(self._listener)
        self._listener.close()
        self._listener = None
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    # --- clients ------------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        if self._listener is None:
            return
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # it left, or there are no descriptors left: the next round
        client = _Client(connection, time.monotonic() + REQUEST_S)
        connection.setblocking(False)
        _, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        self._clients.add(client)
        self._selector.register(connection, selectors.EVENT_READ, client)
        if uid != os.geteuid():
            self._refuse(client, f"user {uid} is not the zygote's")
        elif len(self._clients) > MAX_CONNECTIONS:
            self._refuse(client, f"over {MAX_CONNECTIONS} connections")

    def _read(self, client: _Client) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(client.connection, 1 << 16, DESCRIPTORS)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        client.descriptors += descriptors
        if not data:
            self._forget(client)
            return
        client.data += data
        if client.pid or len(client.data) < HEAD.size:
            return
        try:
            expected = expected_bytes(bytes(client.data[: HEAD.size]))
            if len(client.data) < expected:
                return
            if len(client.data) > expected or len(client.descriptors) != DESCRIPTORS:
                raise WireError(f"expected one request with {DESCRIPTORS} descriptors")
            request = decode(bytes(client.data))
            if request.code != self._code:
                raise WireError(f"it has {self._code} in memory, asked for was {request.code}; start it again")
        except WireError as error:
            self._refuse(client, str(error))
            return
        self._fork(client, request)

    def _refuse(self, client: _Client, reason: str) -> None:
        self._log.warning("zygote.refused", reason=reason)
        self._say(client, f"refused {reason}")
        self._forget(client)

    def _say(self, client: _Client, line: str, descriptors: tuple[int, ...] = ()) -> None:
        with contextlib.suppress(OSError):
            socket.send_fds(client.connection, [line.encode() + b"\n"], descriptors)

    def _forget(self, client: _Client) -> None:
        """Let a connection go. Its worker, where there is one, is still waited for."""
        if client.gone:
            return
        client.gone = True
        self._selector.unregister(client.connection)
        client.connection.close()
        self._clients.discard(client)
        self._close_descriptors(client)

    @staticmethod
    def _close_descriptors(client: _Client) -> None:
        for descriptor in client.descriptors:
            os.close(descriptor)
        client.descriptors = []

    # --- workers ------------------------------------------------------------------------------------------------------

    def _fork(self, client: _Client, request: Request) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError as error:
            self._refuse(client, f"fork: {error.strerror}")
            return
        if pid == 0:
            self._become_worker(client, request)
        client.pid = pid
        pidfd = os.pidfd_open(pid)
        self._pidfds[pidfd] = client
        self._selector.register(pidfd, selectors.EVENT_READ)
        self._close_descriptors(client)
        self._say(client, f"started {pid}", (pidfd,))
        self._log.info("zygote.forked", worker=pid)

    def _reap(self, pidfd: int) -> None:
        client = self._pidfds.pop(pidfd)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(client.pid, 0)[1])
        self._log.info("zygote.worker_ended", worker=client.pid, code=code)
        if not client.gone:
            self._say(client, f"exited {code}" if code >= 0 else f"killed {-code}")
            self._forget(client)

    def _become_worker(self, client: _Client, request: Request) -> None:
        """Turn this fork into a worker; does not return."""
        code = _FAILED
        try:
            self._shed(client)
            _inherit(request, client.descriptors)
            sys.argv = ["worker", *request.arguments]
            code = self._main(list(request.arguments))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else _FAILED
        except BaseException:  # noqa: BLE001 - the end of a process: nobody is there to catch it
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _shed(self, client: _Client) -> None:
        """Close in a fork what is the zygote's, and take its signal handlers away."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for other in self._clients:
            other.connection.close()
            if other is not client:
                self._close_descriptors(other)
        for pidfd in self._pidfds:
            os.close(pidfd)
        self._selector.close()
        self._woken.close()
        self._waking.close()
        if self._listener is not None:
            self._listener.close()


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_dead_socket(path):
            path.unlink()
        before = os.umask(0o177)  # no thread but this one: nobody else makes a file meanwhile
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        remedy = "; another zygote listens there" if path.is_socket() else ""
        raise ZygoteError(f"--listen {path}: {error.strerror or error}{remedy}") from error
    return listener


def _is_dead_socket(path: Path) -> bool:
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
    return False


def _inherit(request: Request, descriptors: list[int]) -> None:
    """Take over what a process has from whoever starts it, and hear from the lifeline's end by SIGTERM."""
    os.setsid()
    *standard, lifeline = descriptors
    for place, descriptor in enumerate(standard):
        os.dup2(descriptor, place, inheritable=True)
        os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())  # type: ignore[union-attr]
    os.chdir(request.directory)
    os.umask(request.umask)
    os.environ.clear()
    os.environ.update(request.environment)
    with contextlib.suppress(OSError):  # cores that went offline, or are not this group's
        os.sched_setaffinity(0, request.cores)
    for kind, soft, hard in request.limits:
        with contextlib.suppress(OSError, ValueError):  # above this user's own limit
            resource.setrlimit(kind, (soft, hard))
    with contextlib.suppress(OSError):  # below the zygote's own niceness
        os.setpriority(os.PRIO_PROCESS, 0, request.niceness)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, _F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        if os.read(lifeline, 1) == b"":  # who asked for this worker has ended meanwhile
            os.kill(os.getpid(), signal.SIGTERM)


def preload(modules: tuple[str, ...]) -> None:
    """Import what workers need, and make sure that a fork will carry it over.

    Raises:
        ZygoteError: a module cannot be imported, or importing started a thread.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ZygoteError(f"{module}: {error}") from error
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1 or threading.active_count() != 1:
        raise ZygoteError(f"importing has started {threads - 1} threads, which a fork would lose: a defect")
    gc.collect()
    gc.freeze()  # so that a collection in a fork does not write to, and copy, every page that it shares


def main(argv: list[str]) -> int:
    """Run a zygote; returns its exit code: 0 after its end, 2 where it could not start."""
    open_closed()
    given = _parser().parse_args(argv)
    log = EventLog(sys.stderr, json=given.log_format == "json")
    began = time.monotonic()
    try:
        if not hasattr(os, "pidfd_open") or not hasattr(fcntl, "F_SETOWN") or sys.platform != "linux":
            raise ZygoteError("a zygote needs Linux")
        # Before the first import of numpy and ONNX Runtime: no thread pool for linear algebra, no usage reports.
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        from worker.__main__ import die_with_parent, run_forked
        from worker.engines.registry import find_kind

        if given.parent_pid is not None and not die_with_parent(given.parent_pid):
            return 0
        engines = given.engine or ["onnxruntime"]
        kinds = [find_kind(name) for name in engines]
        preload((*PRELOADED, *(module for kind in kinds for module in (kind.module, *kind.later))))
        zygote = Zygote(given.listen, log, run_forked)
    except (ZygoteError, EngineError) as error:
        log.error("zygote.failed", error=str(error))
        return _USAGE
    log.info("zygote.listening", path=str(given.listen), pid=os.getpid(), seconds=round(time.monotonic() - began, 3))
    zygote.run()
    log.info("zygote.stopped")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m worker.zygote",
        description="Import everything once and fork workers for `warmroute worker --zygote PATH`.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--listen", type=Path, required=True, metavar="PATH", help="the Unix socket to answer on")
    add("--engine", action="append", metavar="NAME", help="an engine to have imported; repeatable (onnxruntime)")
    add("--parent-pid", type=int, metavar="P", help="stop when this parent process ends")
    add("--log-format", choices=("json", "text"), default="json", help="how events on standard error look")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
