"""Where the CPU of a data process goes: by part with perf, by Python function with py-spy, whichever is there.

Both only sample: perf reads the program counter at a timer, py-spy the interpreter's stacks without stopping it.
Neither runs while a figure is measured.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tools.bench.contenders import ROUTERS_ENVIRONMENT
from tools.bench.processes import Missing, program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MOST_FUNCTIONS = 14
LOOP = "the event loop itself, its reads counted in"
_PARTS = (
    ("the interpreter", r"libpython[^/]*$|/python3[^/]*$"),
    ("uvloop", r"/loop\.c[^/]*$|uvloop"),
    ("httptools (llhttp)", r"/parser\.c[^/]*$|httptools"),
    ("warmroute, compiled", r"mypyc"),
    ("libc", r"/libc\.so|/libc-|/ld-linux"),
)
_CALLS = {
    "kernel: writing": ("write", "writev", "sendto", "sendmsg", "sendfile", "sendfile64"),
    "kernel: reading": ("read", "readv", "recvfrom", "recvmsg"),
    "kernel: waiting for events": ("epoll_wait", "epoll_pwait", "epoll_pwait2", "epoll_ctl", "poll"),
}
_PART_OF_CALL = {call: part for part, calls in _CALLS.items() for call in calls}
_CALL = re.compile(rf"(?:sys|do)_(?P<name>{'|'.join(_PART_OF_CALL)})\b")  # __x64_sys_writev, ksys_write, do_writev
_OTHER_KERNEL = "kernel: other"
_FRAME = re.compile(r"^(?P<function>.+) \((?P<file>[^:()]*)(?::\d+)?\)$")


@dataclass(frozen=True)
class Explanation:
    """One process under load: ``parts`` and ``functions`` are shares of its CPU; ``missing``, what was not there."""

    parts: dict[str, float] = field(default_factory=dict)
    functions: dict[str, float] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def explain(pid: int, load: Callable[[], object], seconds: float, directory: Path, *, interpreted: bool) -> Explanation:
    """Sample ``pid`` while ``load`` runs, which takes ``seconds`` each time."""
    missing: list[str] = []
    parts: dict[str, float] = {}
    functions: dict[str, float] = {}
    record = directory / f"perf-{pid}"
    try:
        perf = program("perf", "linux-perf")
        argv = [*(perf, "record", "--quiet", "-e", "cpu-clock", "-F", "1999", "-g")]
        _beside([*argv, "-o", str(record), "-p", str(pid), "--", "sleep", str(seconds * 0.8)], load, seconds)
        said = subprocess.run(
            [perf, "script", "-i", str(record), "-F", "ip,sym,dso"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
        )
        parts = parts_of(said.stdout.splitlines())
    except Missing as error:
        missing.append(str(error))
    if not parts and not missing:
        missing.append("perf may not sample here")
    sampler = ROUTERS_ENVIRONMENT / "bin" / "py-spy"
    if interpreted and sampler.exists():
        raw = directory / f"py-spy-{pid}"
        argv = [str(sampler), "record", "--nonblocking", "-r", "500", "-f", "raw", "-o", str(raw), "-p", str(pid)]
        _beside([*argv, "-d", str(max(1, round(seconds * 0.8)))], load, seconds)
        functions = functions_of(raw.read_text("utf-8", "replace").splitlines()) if raw.exists() else {}
    elif interpreted:
        missing.append(f"py-spy is not in {ROUTERS_ENVIRONMENT.name}: make bench installs it where it can")
    return Explanation(parts, functions, missing)


def _beside(argv: list[str], load: Callable[[], object], seconds: float) -> None:
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as one:
        try:
            load()
            one.wait(seconds + 20)
        finally:
            if one.poll() is None:
                one.kill()


def parts_of(lines: Iterable[str]) -> dict[str, float]:
    """Return the share of each part, largest first, from samples as ``perf script`` prints them.

    A sample is a few lines, the innermost frame first, with an empty line behind. The kernel's time is told apart by
    the system call in which it was spent.
    """
    counts: Counter[str] = Counter()
    frames: list[str] = []
    for line in (*lines, ""):
        if line.strip():
            frames.append(line.strip())
        elif frames:
            counts[_part(frames)] += 1
            frames = []
    total = counts.total()
    return {part: round(count / total, 4) for part, count in counts.most_common()}


def _part(frames: list[str]) -> str:
    where = frames[0].rpartition("(")[2].rstrip(")")
    if where.startswith("[kernel") or where == "[vdso]":
        calls = (found["name"] for frame in frames if (found := _CALL.search(frame)))
        return next((_PART_OF_CALL[call] for call in calls), _OTHER_KERNEL)
    return next((part for part, pattern in _PARTS if re.search(pattern, where)), "own code and other libraries")


def functions_of(lines: Iterable[str]) -> dict[str, float]:
    """Return the share of the functions that most time is spent in, what they call in C counted in.

    ``lines`` are collapsed stacks: frames with semicolons between, a blank, how often it was seen.
    """
    counts: Counter[str] = Counter()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        if not stack or not count.isdigit():
            continue
        found = _FRAME.match(stack.rpartition(";")[2])
        name = f"{found['function']} ({Path(found['file']).name})" if found else stack.rpartition(";")[2]
        if name == "Runner.run (runners.py)":
            name = LOOP
        counts[name] += int(count)
    total = counts.total()
    return {name: round(count / total, 4) for name, count in counts.most_common(MOST_FUNCTIONS)}
