"""Scheduler time and memory of a process tree, read from /proc (see proc(5), and schedstat in the kernel's docs)."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

_PROC = Path("/proc")


def tree(root: int) -> tuple[int, ...]:
    """Return ``root`` and all its living descendants, sorted."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue  # gone meanwhile
            parent = int(stat.rpartition(")")[2].split()[1])
            children[parent].append(int(entry.name))
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        found.append(pid)
        queue += children[pid]
    return tuple(sorted(found))


def cpu_s(pid: int) -> float:
    """Return the seconds that all threads of ``pid`` have spent on a CPU, user and system."""
    total = 0
    try:
        for task in (_PROC / str(pid) / "task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    except FileNotFoundError:
        pass  # a thread ended between listing and reading
    return total / 1e9


def pss_bytes(pid: int) -> int:
    """Return the proportional set size of ``pid``; 0 where the kernel does not tell."""
    try:
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def command(pid: int) -> str:
    """Return the command line of ``pid``, for people."""
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""
