"""Programs that the benchmark runs: found, built, started, pinned to a core, and ended with all that they started."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.traffic.processor import tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

HERE = Path(__file__).parent


class BenchError(Exception):
    """The benchmark cannot run or its result would mean nothing; the text says what to do."""


class Missing(BenchError):  # noqa: N818 - nothing failed: it is not there
    """Something that this machine may lack; a run that did not ask for it by name goes on without."""


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def program(name: str, package: str) -> str:
    """Return the path of a program.

    Raises:
        Missing: it is not installed; the text says which Debian package has it.
    """
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise Missing(f"{name} is not installed: apt-get install {package}")
    return found


def build_paced(directory: Path) -> Path:
    """Compile the load generator into ``directory`` and return its path; a second.

    Raises:
        BenchError: the compiler is missing or refuses.
    """
    made = directory / "paced"
    argv = [program("cc", "gcc"), "-O2", "-std=gnu11", "-Wall", "-Wextra", "-o", str(made), str(HERE / "paced.c")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise BenchError(f"{HERE / 'paced.c'} does not compile:\n{done.stderr}")
    return made


@dataclass(frozen=True)
class Contender:
    """A running proxy: where it listens, and the root of its process tree; 0 where there is no proxy."""

    name: str
    port: int
    pid: int
    version: str


@contextmanager
def running(
    name: str,
    argv: Sequence[str],
    port: int,
    core: int,
    directory: Path,
    ready: Callable[[int], str],
    version: str = "",
) -> Iterator[Contender]:
    """Run ``argv`` on ``core`` until ``ready(port)`` says nothing more; end it, and all that it started, at the end.

    Raises:
        BenchError: it ended, or was not ready within 30 s; the text has the end of its log.
    """
    log = directory / f"{name}-{port}.log"
    environ = {k: v for k, v in os.environ.items() if not k.startswith("WARMROUTE")}
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, env=environ, cwd=directory
        )
    try:
        os.sched_setaffinity(process.pid, {core})  # before it has had time to start anything: its children inherit it
        _await_ready(name, process, port, log, ready)
        _pin(process.pid, core)
        yield Contender(name, port, process.pid, version)
    finally:
        _end(process)


def _pin(root: int, core: int) -> None:
    for pid in tree(root):
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {core})


def _await_ready(
    name: str, process: subprocess.Popen[bytes], port: int, log: Path, ready: Callable[[int], str]
) -> None:
    deadline = time.monotonic() + 30
    seen = "nothing listens"
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BenchError(f"{name} ended with {process.returncode}:\n{_tail(log)}")
        seen = ready(port)
        if not seen:
            return
        time.sleep(0.1)
    raise BenchError(f"{name} does not answer ({seen}):\n{_tail(log)}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-15:])


def _end(process: subprocess.Popen[bytes]) -> None:
    for signum, patience_s in ((signal.SIGTERM, 8.0), (signal.SIGKILL, 5.0)):
        with suppress(ProcessLookupError):
            # each proxy passes SIGTERM on to its own children; the kill reaches whatever is left in its session
            (os.kill if signum == signal.SIGTERM else os.killpg)(process.pid, signum)
        try:
            process.wait(patience_s)
            break
        except subprocess.TimeoutExpired:
            continue


def output(argv: Sequence[str]) -> str:
    """Return what a short command printed, on both channels."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout + done.stderr
