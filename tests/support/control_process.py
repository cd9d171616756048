"""A real control process under a stand-in supervisor: the test holds the other ends of everything it is given."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sidecar import boot, channel
from sidecar.settings import Settings
from sidecar.state.memory import Memory, Remembered
from sidecar.telemetry import page

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

WAIT_S = 40.0
"""Patience, by which nothing is measured: beside other tests the process may take ten seconds to start."""


class Answer:
    """One answer of the admin API."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()


class ControlProcess:
    """Starts, kills and starts again one control process with ``processes`` channels that the test reads."""

    def __init__(self, directory: Path, *, processes: int = 2, **settings: Any) -> None:
        self.settings = msgspec.convert(
            {"version": 1, "listeners": [{"address": "127.0.0.1:0", "processes": processes}], **settings}, Settings
        )
        self.unix_path = directory / "admin.sock"
        unix, tcp = socket.socket(socket.AF_UNIX), socket.socket()
        unix.bind(str(self.unix_path))
        tcp.bind(("127.0.0.1", 0))
        self._sockets = [unix, tcp]
        for sock in self._sockets:
            sock.listen(64)
        self.port: int = tcp.getsockname()[1]
        pairs = [channel.pair() for _ in range(processes)]
        self._control_ends = [control for control, _ in pairs]
        self.data = [channel.Channel(data) for _, data in pairs]
        self._memory_fd = os.memfd_create("test-memory", 0)
        self._page_fds = [page.create(f"test-{index}") for index in range(processes)]
        self.pages = [page.Page(fd) for fd in self._page_fds]
        self._log = directory / "control.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.started = 0.0
        """When it was started last, monotonic seconds."""

    # --- life ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for sock in (*self._sockets, *self._control_ends):
            sock.close()
        for one in self.data:
            one.close()
        for mapped in self.pages:
            mapped.close()
        for fd in (*self._page_fds, self._memory_fd):
            os.close(fd)
        if error is not None:
            error.add_note(f"log of the control process:\n{self._log.read_text()}")

    def start(self) -> None:
        plan = boot.ControlPlan(
            parent_pid=os.getpid(),
            settings=self.settings,
            sidecar_id="test-sidecar",
            admin_fds=tuple(sock.fileno() for sock in self._sockets),
            admin_unix=True,
            channel_fds=tuple(end.fileno() for end in self._control_ends),
            metrics_fds=tuple(self._page_fds),
            listen_addresses=("127.0.0.1:8080",),
            memory_fd=self._memory_fd,
        )
        plan_fd = boot.write_plan(plan)
        self.started = time.monotonic()
        fds = (*plan.admin_fds, *plan.channel_fds, *plan.metrics_fds, self._memory_fd, plan_fd)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "sidecar", "control", "--plan-fd", str(plan_fd)],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stderr=log,
            )
        os.close(plan_fd)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(WAIT_S)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def cpu_s(self) -> float:
        """Return the processor time that it has used (proc(5), fields 14 and 15)."""
        assert self._process is not None
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def remembered(self) -> Remembered:
        """Return what it keeps for the next one."""
        return Memory(self._memory_fd).load()

    def events(self) -> list[dict[str, Any]]:
        """Return its log lines so far."""
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    # --- the admin API ------------------------------------------------------------------------------------------

    def ask(
        self,
        target: str,
        *,
        method: str = "GET",
        body: bytes = b"",
        unix: bool = False,
        host: str = "localhost",
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Make one request; connections wait in the socket's queue while the process is not there."""
        sock = socket.socket(socket.AF_UNIX) if unix else socket.socket()
        with sock:
            sock.settimeout(WAIT_S)
            sock.connect(str(self.unix_path) if unix else ("127.0.0.1", self.port))
            lines = [
                f"{method} {target} HTTP/1.1",
                f"Host: {host}",
                f"Content-Length: {len(body)}",
                "Connection: close",
            ]
            lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
            sock.sendall("\r\n".join([*lines, "", ""]).encode() + body)
            raw = b""
            while piece := sock.recv(65536):
                raw += piece
        head, _, content = raw.partition(b"\r\n\r\n")
        status, *fields = head.decode().split("\r\n")
        pairs = (field.partition(":") for field in fields)
        return Answer(int(status.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}, content)

    def until_status(self, target: str, status: int, within_s: float = WAIT_S) -> Answer:
        """Ask until the answer has ``status``."""
        deadline = time.monotonic() + within_s
        while True:
            answer = self.ask(target)
            if answer.status == status:
                return answer
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.05)

    # --- the part of a data process -----------------------------------------------------------------------------

    def hello(self, index: int = 0, epoch: str = "epoch-1") -> None:
        assert self.data[index].send(channel.Hello(index, 4242, epoch))

    def receive(
        self, index: int, done: Callable[[list[object]], object], what: str, within_s: float = WAIT_S
    ) -> list[object]:
        """Read data process ``index``'s messages until ``done`` says so; pings are left out."""
        got: list[object] = []
        deadline = time.monotonic() + within_s
        with selectors.DefaultSelector() as selector:
            selector.register(self.data[index], selectors.EVENT_READ)
            while not done(got):
                assert time.monotonic() < deadline, f"{what}: not within {within_s} s; got {got}"
                selector.select(0.1)
                got += (message for message in self.data[index].receive() if not isinstance(message, channel.Ping))
        return got
