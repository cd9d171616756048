"""Scheduler time and memory of a process tree, read from /proc (see proc(5), and schedstat in the kernel's docs)."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from sidecar.traffic.processor import cpu_s, tree

_PROC = Path("/proc")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """What a process tree has used so far.

    ``user_s`` and ``system_s`` are counted in clock ticks, 10 ms as a rule: good for their relation over seconds, while
    ``cpu_s`` is exact. ``switches``: how often a thread went to sleep of its own accord.
    """

    cpu_s: dict[int, float]
    user_s: float
    system_s: float
    switches: int

    @classmethod
    def of(cls, root: int) -> Usage:
        """Read the usage of ``root`` and its descendants; nothing where ``root`` is 0."""
        pids = tree(root) if root else ()
        user = system = switches = 0
        for pid in pids:
            try:
                fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
                user, system = user + int(fields[11]), system + int(fields[12])
                for task in (_PROC / str(pid) / "task").iterdir():
                    for line in (task / "status").read_text().splitlines():
                        if line.startswith("voluntary_ctxt_switches:"):
                            switches += int(line.split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
        return cls({pid: cpu_s(pid) for pid in pids}, user * _TICK_S, system * _TICK_S, switches)


def pss_bytes(pid: int) -> int:
    """Return the proportional set size of ``pid``; 0 where the kernel does not tell."""
    try:
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def pss_by_kind(pid: int) -> dict[str, int]:
    """Return the proportional set size of ``pid`` in bytes, by what is mapped there: own memory, or which file."""
    kinds: dict[str, int] = defaultdict(int)
    mapped = ""
    try:
        for line in (_PROC / str(pid) / "smaps").read_text().splitlines():
            first, _, rest = line.partition(" ")
            if first.endswith(":"):
                if first == "Pss:":
                    kinds[mapped] += int(rest.split()[0]) * 1024
            else:
                path = line.split(maxsplit=5)[5:]
                mapped = _kind(path[0] if path else "")
    except OSError:
        pass
    return dict(kinds)


def _kind(path: str) -> str:
    if not path or path.startswith("["):
        return "heap and stacks"
    name = path.rpartition("/")[2]
    if "python3" in name and (".so" in name or "." in name) and "cpython" not in name:
        return "the interpreter"
    if "site-packages" in path:
        return path.partition("site-packages/")[2].split("/")[0].split(".")[0]
    return "system libraries" if ".so" in name else "other files"


def command(pid: int) -> str:
    """Return the command line of ``pid``, for people."""
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""
