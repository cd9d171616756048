"""``warmroute up`` as a new user meets it: what it prints is pasted into a shell, and in the end nothing is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.product import WARMROUTE
from tests.support.sidecar_process import ROOT, free_port
from tests.support.sidecars import Process, gone, until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.acceptance, pytest.mark.beside, pytest.mark.timeout(100)]

MODELS = ROOT / "models"
READY_WITHIN_S = 40
GONE_WITHIN_S = 30
PROCESSES = 8
"""The state store, two workers, the supervisor, control, two data processes and the janitor."""


def parents() -> dict[int, int]:
    """Return the parent of every process there is (proc(5))."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    return found


def descendants(pid: int) -> set[int]:
    """Return the children of ``pid``, their children, and so on."""
    found, known = set(), parents()
    fresh = {pid}
    while fresh := {child for child, parent in known.items() if parent in fresh}:
        found |= fresh
    return found


@dataclass
class Running:
    """A fleet that is ready. ``directory`` is the user's; ``scratch`` is what it has for temporary files."""

    process: Process
    pids: set[int]
    ports: tuple[int, int]
    directory: Path
    scratch: Path
    before: set[Path]

    def output(self) -> str:
        return (self.directory.parent / "out").read_text()

    def await_nothing_left(self) -> None:
        """Hold that no process, socket or file of it is there any more, within a bounded time."""
        for pid in self.pids | {self.process.pid}:
            until(lambda pid=pid: gone(pid), f"process {pid} is gone", GONE_WITHIN_S)  # type: ignore[misc]
        assert list(self.scratch.iterdir()) == []
        assert set(self.directory.rglob("*")) == self.before
        assert str(self.scratch) not in Path("/proc/net/unix").read_text()
        assert not any(connects(port) for port in self.ports)


def connects(port: int) -> bool:
    with closing(socket.socket()) as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def command(listen: int, admin: int) -> list[str]:
    return [WARMROUTE, "up", "--listen", f"127.0.0.1:{listen}", "--admin", f"127.0.0.1:{admin}"]


def place(tmp_path: Path, *, readme: bool) -> tuple[Path, Path]:
    """Return a directory with a user's files (the demo's models, maybe a README), and one for temporary files."""
    assert (MODELS / "magika").is_dir(), "the demo model is not here: make model"
    directory, scratch = tmp_path / "home", tmp_path / "tmp"
    directory.mkdir()
    scratch.mkdir()
    (directory / "models").symlink_to(MODELS)
    if readme:
        shutil.copy(ROOT / "README.md", directory)
    return directory, scratch


@contextmanager
def up(tmp_path: Path, *, readme: bool = True) -> Iterator[Running]:
    """Run it in a session of its own, as a terminal would, until the lines to try are printed."""
    directory, scratch = place(tmp_path, readme=readme)
    before = set(directory.rglob("*"))
    ports = (free_port(), free_port())
    with (tmp_path / "out").open("wb") as out:
        process = Process(
            command(*ports),
            tmp_path / "err",
            stdout=out,
            cwd=directory,
            env=os.environ | {"TMPDIR": str(scratch), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
    with process:

        def ready() -> bool:
            text = (tmp_path / "out").read_text()
            assert process.popen.poll() is None, text
            return "Ctrl-C drains" in text

        until(ready, "it is ready", READY_WITHIN_S)
        running = Running(process, descendants(process.pid), ports, directory, scratch, before)
        assert len(running.pids) >= PROCESSES, running.pids
        assert list(scratch.iterdir())
        try:
            yield running
        except BaseException as error:
            error.add_note(f"its output:\n{running.output()}")
            raise


def paste(line: str, directory: Path) -> str:
    """Run one printed line as it is, in the user's shell."""
    done = subprocess.run(["bash", "-c", line], cwd=directory, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, (line, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_printed_lines_work_and_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    with up(tmp_path) as running:
        output = running.output()
        assert output.index("worker-1") < output.index("ready")  # it told of the loading
        assert all(f"127.0.0.1:{port}" in output for port in running.ports)
        lines = [line for line in output.splitlines() if line.startswith("curl ")]
        assert len(lines) == 3
        inference, routes, health = (paste(line, running.directory) for line in lines)

        assert "README.md" in output
        score, _, label = json.loads(inference)["outputs"][0]["data"][0].split(":")
        assert label == "markdown"
        assert float(score) > 0.9

        (route,) = (route for route in json.loads(routes)["routes"] if route["key"] == "magika")
        assert {row["endpoint"] for row in route["candidates"]} == {"worker-1", "worker-2"}
        for row in route["candidates"]:
            assert (row["state"], row["reason"]) == ("warm", None)
            assert 0 < row["weight"] <= 1
            assert {term["name"] for term in row["terms"]} == {"warmth", "free_memory", "speed"}
        assert json.loads(health)["ready"] is True

        os.killpg(running.process.pid, signal.SIGINT)  # a terminal's Ctrl-C reaches the whole foreground group
        assert running.process.wait(GONE_WITHIN_S) == 0
        running.await_nothing_left()
        assert "Traceback" not in running.output() + running.process.text()


def test_sigkill_leaves_nothing_either(tmp_path: Path) -> None:
    with up(tmp_path, readme=False) as running:
        assert "what kind of file is up.py?" in running.output()  # without a README it asks about a source of its own
        running.process.send(signal.SIGKILL)
        assert running.process.wait() == -signal.SIGKILL
        running.await_nothing_left()
