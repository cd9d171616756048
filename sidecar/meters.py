"""What a process uses of its machine, read from /proc on descriptors that stay open, so that it works without any left.

Where there is no /proc (not Linux) nothing is known: 0, which is no pressure.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

UNLIMITED_BYTES = 1 << 60
"""Control groups of version 1 write a number near 2^63 where there is no limit."""


class Meters:
    """This process's own figures. One reading costs about two microseconds."""

    def __init__(self, proc: Path = Path("/proc/self")) -> None:
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._statm = _open(proc / "statm", 0)
        self._files = _open(proc / "fd", os.O_DIRECTORY)

    def resident_bytes(self) -> int:
        """Return the resident memory, shared pages included (proc(5), statm)."""
        if self._statm is None:
            return 0
        return int(os.pread(self._statm, 256, 0).split()[1]) * self._page_bytes

    def open_files(self) -> int:
        """Return how many descriptors are open."""
        if self._files is None:
            return 0
        known = self._counted(self._files)
        if known:
            return known
        try:
            return len(os.listdir(self._files))  # noqa: PTH208  by descriptor
        except OSError:  # none is left to list them with
            return max_files()

    @staticmethod
    def _counted(files: int) -> int:
        """Return the kernel's own count (Linux 6.2 and newer), or 0."""
        return os.fstat(files).st_size

    def close(self) -> None:
        """Give the descriptors back."""
        for fd in (self._statm, self._files):
            if fd is not None:
                os.close(fd)


def max_files() -> int:
    """Return how many descriptors this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def memory_bytes(proc: Path = Path("/proc/self"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory that this process's container or machine has: the least limit that stands above it."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    try:
        lines = (proc / "cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            limits += _limits(groups, path, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _limits(groups / "memory", path, "memory.limit_in_bytes")
    return min(limits)


def _limits(top: Path, path: str, name: str) -> list[int]:
    """Return the limits of a control group and those above it; inside a container only the top may be there."""
    found = []
    group = top / path.lstrip("/")
    while True:
        try:
            text = (group / name).read_text().strip()
            if text != "max" and int(text) < UNLIMITED_BYTES:
                found.append(int(text))
        except (OSError, ValueError):
            pass
        if group == top or top not in group.parents:
            return found
        group = group.parent


def _open(path: Path, flags: int) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    except OSError:
        return None
