"""Processor time of processes and of what they started, from /proc (proc(5), and schedstat in the kernel's docs)."""

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
    """Return the seconds that all living threads of ``pid`` have spent on a CPU, user and system; 0 of none."""
    total = 0
    try:
        for task in (_PROC / str(pid) / "task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    except (FileNotFoundError, ProcessLookupError):
        pass  # a thread ended between listing and reading
    return total / 1e9


def lives(pid: int) -> bool:
    """Return whether there is such a process that has not ended; one that nobody has waited for yet has."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")
