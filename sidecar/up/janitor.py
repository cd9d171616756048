"""Cleans up after ``warmroute up``, however that ends: also when SIGKILL leaves it no time to.

A child of its own, outside the terminal's process group, that does nothing but read a pipe. What should be gone
afterwards is written to it as it comes to be; the pipe's end means the parent is gone. The children have a signal of
their own from the kernel then (PR_SET_PDEATHSIG) and leave in order; only who overstays is killed, by pid and start
time, never by name.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TypeAlias

from sidecar.pids import kill_exactly, start_ticks

Identity: TypeAlias = tuple[int, int, int]
"""Device, inode and time of the last change of a file: another file under its name has another one."""

_DEAF_TO = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""What would end its parent, or an impatient user's try at it: the janitor stays until it is done."""
_POLL_S = 0.05
_KILLED_WAIT_S = 2.0


def run_janitor(fd: int) -> int:
    """Read what to remove from ``fd`` until its end, wait for it to go, remove what stays; return the exit code."""
    processes: dict[int, int] = {}
    trees: list[Path] = []
    files: list[tuple[Path, Identity]] = []
    patience_s = 0.0
    with os.fdopen(fd, "rb") as pipe:
        for line in pipe:
            if not line.endswith(b"\n"):
                break  # the writer died half-way through it
            note = json.loads(line)
            if "pid" in note:
                processes[note["pid"]] = note["ticks"]
            if "tree" in note:
                trees.append(Path(note["tree"]))
            if "file" in note:
                device, inode, changed_ns = note["identity"]
                files.append((Path(note["file"]), (device, inode, changed_ns)))
            patience_s = note.get("patience_s", patience_s)
    _await_gone(processes, patience_s)
    for pid, ticks in processes.items():
        kill_exactly(pid, ticks, signal.SIGKILL)
    _await_gone(processes, _KILLED_WAIT_S)
    for path, known in files:
        remove_exactly(path, known)
    for path in trees:
        shutil.rmtree(path, ignore_errors=True)  # refuses a symbolic link
    return 0


def identity(path: Path) -> Identity:
    """Return what tells the regular file at ``path`` from any other that may stand there later.

    Raises:
        OSError: there is none.
    """
    status = path.lstat()
    return (status.st_dev, status.st_ino, status.st_mtime_ns)


def remove_exactly(path: Path, known: Identity) -> None:
    """Remove the file at ``path`` if it is the one that ``known`` tells, untouched since; leave any other."""
    with contextlib.suppress(OSError):
        if identity(path) == known:
            path.unlink()


def _await_gone(processes: dict[int, int], patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while any(start_ticks(pid) == ticks for pid, ticks in processes.items()) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


class Janitor:
    """The parent's side: starts the janitor and tells it what should be gone in the end."""

    def __init__(self, patience_s: float) -> None:
        """``patience_s`` is how long processes may take to leave by themselves."""
        read_fd, self._write_fd = os.pipe()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _DEAF_TO)  # inherited, so in force from its first instant
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "sidecar", "janitor", "--plan-fd", str(read_fd)],
                pass_fds=(read_fd,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(read_fd)
        self._known: dict[int, int] = {}
        self._note({"patience_s": patience_s})

    @property
    def pid(self) -> int:
        """The janitor's own process id."""
        return self._process.pid

    def tree(self, path: Path) -> None:
        """Have a directory that we made removed in the end, with all that is in it."""
        self._note({"tree": str(path.absolute())})

    def file(self, path: Path, known: Identity) -> None:
        """Have a file removed in the end, if it is still the one that ``known`` tells."""
        self._note({"file": str(path.absolute()), "identity": known})

    def process(self, pid: int) -> None:
        """Have a process ended in the end, if it has not left by itself."""
        ticks = start_ticks(pid)
        if ticks is not None and self._known.get(pid) != ticks:
            self._known[pid] = ticks
            self._note({"pid": pid, "ticks": ticks})

    def finish(self) -> None:
        """Let the janitor do its work now, and wait for it."""
        if self._write_fd >= 0:
            os.close(self._write_fd)
            self._write_fd = -1
        self._process.wait()

    def _note(self, note: dict[str, object]) -> None:
        with contextlib.suppress(BrokenPipeError):  # somebody killed it: the parent cleans up as long as it lives
            os.write(self._write_fd, json.dumps(note).encode() + b"\n")
