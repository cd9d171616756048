"""Starting sidecar processes from tests, and reading what they log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

WAIT_S = 40.0
"""Patience, by which nothing is measured: beside other tests a process may take ten seconds to start."""
STAND_IN = Path(__file__).with_name("stand_in_roles.py")


def until(condition: Callable[[], Any], what: str, within_s: float = WAIT_S) -> Any:
    """Return the first true value of ``condition``; fail with ``what`` where none comes in time.

    It is asked less often the longer it takes: asking may be a request, of what the test waits for.
    """
    deadline = time.monotonic() + within_s
    wait_s = 0.005
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s} s: {what}")
        time.sleep(wait_s)
        wait_s = min(1.2 * wait_s, 0.04)
    return value


def gone(pid: int) -> bool:
    """Tell whether no such process runs (a zombie does not)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return True


class Process:
    """A process of ours with its log in a file; killed at the end of the block where it still runs."""

    def __init__(self, command: Sequence[str], log: Path, **options: Any) -> None:
        self._log = log
        self._read_bytes = 0
        self._entries: list[dict[str, Any]] = []
        with log.open("ab") as stderr:
            self.popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=stderr, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()
        if self.popen.stdout is not None:
            self.popen.stdout.close()
        if error is not None:
            error.add_note(f"its log:\n{self.text()}")

    @property
    def pid(self) -> int:
        return self.popen.pid

    def send(self, signum: signal.Signals) -> None:
        self.popen.send_signal(signum)

    def wait(self, within_s: float = WAIT_S) -> int:
        return self.popen.wait(within_s)

    def text(self) -> str:
        return self._log.read_text(errors="replace")

    def events(self, event: str, /, **fields: object) -> list[dict[str, Any]]:
        """Return the logged events of that name whose fields have these values."""
        with self._log.open("rb") as file:  # each line is read once: who waits for one asks again and again
            file.seek(self._read_bytes)
            whole, end, _ = file.read().rpartition(b"\n")
        self._read_bytes += len(whole + end)
        lines = (line for line in whole.splitlines() if line.startswith(b"{") and line.endswith(b"}"))
        self._entries.extend(map(json.loads, lines))
        return [entry for entry in self._entries if entry["event"] == event and fields.items() <= entry.items()]

    def await_event(self, event: str, /, count: int = 1, **fields: object) -> dict[str, Any]:
        """Return the ``count``-th such event once it is there."""

        def there() -> list[dict[str, Any]]:
            if self.popen.poll() is not None and len(self.events(event, **fields)) < count:
                raise AssertionError(f"it ended with {self.popen.returncode} before {event} {fields}")
            found = self.events(event, **fields)
            return found if len(found) >= count else []

        found: list[dict[str, Any]] = until(there, f"{count} of {event} {fields}")
        return found[count - 1]

    def child(self, name: str) -> int:
        """Return the pid of the latest life of one of a supervisor's children."""
        self.await_event("process.started", name=name)
        return int(self.events("process.started", name=name)[-1]["pid"])


def stand_in(tmp_path: Path, settings: dict[str, Any], notify_socket: str = "") -> Process:
    """Start the real supervisor over stand-in roles."""
    document = {
        "version": 1,
        "listeners": [{"address": "127.0.0.1:0", "processes": 2}],
        "admin": {"socket": str(tmp_path / "admin.sock"), "address": None},
        "timeouts": {"drain_s": 5.0},
    } | settings
    command = [sys.executable, "-P", str(STAND_IN), "supervise", json.dumps(document), notify_socket]
    return Process(command, tmp_path / "supervisor.log", env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"})
