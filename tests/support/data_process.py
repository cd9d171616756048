"""A real data process whose control process and supervisor are played by the test."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from router.model import EndpointRecord, EndpointSeen, Replica, SnapshotBegan, SnapshotEnded
from router.outcomes import Outcome
from sidecar import boot, channel
from sidecar.settings import Settings
from sidecar.telemetry.page import Page, Scalar, create
from tests.support.sidecars import WAIT_S, Process, until

Kind = TypeVar("Kind")


class DataProcess:
    """Starts one data process; the test holds the other end of its channel, its metrics page and its listener."""

    def __init__(self, directory: Path, *, max_files: int = 0, **settings: Any) -> None:
        """``max_files``: its limit on open files, where not the test's own."""
        self._max_files = max_files
        self.settings = msgspec.convert(
            {"version": 1, "listeners": [{"address": "127.0.0.1:0", "processes": 1}], **settings}, Settings
        )
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64, reuse_port=True)
        self.port: int = self._listener.getsockname()[1]
        control, self._data_end = channel.pair()
        self.channel = channel.Channel(control)
        self._page_fd = create("test")
        self.page = Page(self._page_fd)
        self._log = directory / "data.log"
        self._sequence = 0
        self.process: Process

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.__exit__(kind, error, trace)
        self.channel.close()
        self._data_end.close()
        self._listener.close()
        self.page.close()
        os.close(self._page_fd)

    def start(self) -> None:
        """Start a process on the same descriptors, as the supervisor would."""
        plan = self.plan()
        plan_fd = boot.write_plan(plan)
        command = [sys.executable, "-P", "-m", "sidecar", "data", "--plan-fd", str(plan_fd)]
        if self._max_files:
            command = ["/bin/sh", "-c", f'ulimit -n {self._max_files}; exec "$@"', "sh", *command]
        fds = (self._listener.fileno(), plan.channel_fd, plan.metrics_fd, plan_fd)
        self.process = Process(command, self._log, pass_fds=fds)
        os.close(plan_fd)

    def plan(self) -> boot.DataPlan:
        """Return what it is started with; the descriptors stay the test's own."""
        return boot.DataPlan(
            index=0,
            parent_pid=os.getpid(),
            settings=self.settings,
            listeners=(boot.ListenerFd(0, f"127.0.0.1:{self.port}", self._listener.fileno()),),
            channel_fd=self._data_end.fileno(),
            metrics_fd=self._page_fd,
        )

    def stop(self) -> int:
        """Ask it to end; return its exit code."""
        self.process.send(signal.SIGTERM)
        return self.process.wait()

    # --- the part of the control process ------------------------------------------------------------------------

    def send(self, *messages: object) -> None:
        for message in messages:
            assert self.channel.send(message), f"the channel does not take {message}"

    def snapshot(self, *addresses: str, model: str = "m") -> None:
        """Send the whole fleet: endpoints ``o0``, ``o1``, … at these addresses; and a ping."""
        self._sequence += 1
        now = time.monotonic()
        records = [
            EndpointRecord(f"o{number}", address, replicas=(Replica(model),), static=True)
            for number, address in enumerate(addresses)
        ]
        self.send(SnapshotBegan(self._sequence, now), *(EndpointSeen(record, now) for record in records))
        self.send(SnapshotEnded(self._sequence, now), channel.Ping(now))

    def receive(self, kind: type[Kind], within_s: float = WAIT_S) -> Kind:
        """Return the next message of one kind; others are let go."""
        deadline = time.monotonic() + within_s
        with selectors.DefaultSelector() as selector:
            selector.register(self.channel, selectors.EVENT_READ)
            while True:
                for message in self.channel.receive(most=1):
                    if isinstance(message, kind):
                        return message
                assert time.monotonic() < deadline, f"no {kind.__name__} within {within_s} s"
                selector.select(0.05)

    # --- callers ------------------------------------------------------------------------------------------------

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)

    def ask(self, sock: socket.socket, target: str = "/") -> bytes:
        """Make a request with an empty body and return the answer's head and, with a length, its body."""
        sock.sendall(f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        return read_answer(sock)

    def once(self, target: str = "/") -> int:
        """Ask on a connection of its own; return the status."""
        with self.connect() as sock:
            return int(self.ask(sock, target).split()[1])

    # --- what it counts -----------------------------------------------------------------------------------------

    def scalar(self, member: Scalar) -> int:
        return int(self.page.words[Page.scalar(member)])

    def outcome(self, outcome: Outcome) -> int:
        index = list(Outcome).index(outcome)
        return sum(int(self.page.words[row + index]) for _, row in self.page.models())

    def until(self, condition: Callable[[], Any], what: str) -> None:
        until(condition, what, WAIT_S)


def read_answer(sock: socket.socket) -> bytes:
    """Read one response that has a Content-Length, or to the end of the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = sock.recv(65536)
        if not piece:
            return data
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            while len(body) < int(value):
                piece = sock.recv(65536)
                if not piece:
                    break
                body += piece
    return head + b"\r\n\r\n" + body
