"""How much memory a worker may still take: the signal that it reports for the router's free-memory term."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_LIBC = ctypes.CDLL(None)
_M_ARENA_MAX = -8


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of whatever the models live in, in bytes."""

    free_bytes: int
    total_bytes: int


class MemoryProbe(Protocol):
    """Measures memory; one for each kind of device."""

    def read(self) -> Memory | None:
        """Return what is there now, or None where it cannot be known. Quick: it is called on the event loop."""


class HostMemory:
    """The machine's memory, limited by the control groups (version 2) that this process is in.

    Free is the kernel's ``MemAvailable``, total ``MemTotal`` (proc_meminfo(5)). A group's ``memory.max`` lowers both;
    its inactive page cache counts as free, because the kernel takes that back first.
    """

    def __init__(self, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> None:
        self._meminfo = proc / "meminfo"
        self._groups = tuple(group for group in control_groups(proc, groups) if (group / "memory.max").is_file())

    def read(self) -> Memory | None:
        """Return the memory now, or None where the kernel does not say."""
        try:
            rows = dict(line.split(":", 1) for line in self._meminfo.read_text().splitlines())
            free, total = (int(rows[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
        except (OSError, KeyError, ValueError, IndexError):
            return None
        for group in self._groups:
            limit = _limit(group)
            if limit is not None:
                total = min(total, limit)
                free = min(free, max(0, limit - _used(group)))
        return Memory(free, total)


def control_groups(proc: Path, groups: Path) -> tuple[Path, ...]:
    """Return the directories of the control groups (version 2) that this process is in, the innermost first."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return ()
    inner = next((line[3:].strip("/") for line in lines if line.startswith("0::")), None)
    if inner is None:
        return ()
    found = groups / inner
    chain = [found, *found.parents] if found != groups else [found]
    return tuple(path for path in chain if path.is_relative_to(groups))


def _limit(group: Path) -> int | None:
    try:
        text = (group / "memory.max").read_text().strip()
        return None if text == "max" else int(text)
    except (OSError, ValueError):
        return None


def _used(group: Path) -> int:
    try:
        used = int((group / "memory.current").read_text())
        rows = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return max(0, used - int(rows.get("inactive_file", "0")))
    except (OSError, ValueError):
        return 0


def one_heap() -> None:
    """Have all threads share the C library's first heap (mallopt(3), M_ARENA_MAX); nothing where it has no such thing.

    Else each thread that a model is read, made or closed in has a heap of its own, whose free end, of 8 MiB and more,
    stays with the process, and which :func:`trim` does not reach. Called before other threads are there.
    """
    if hasattr(_LIBC, "mallopt"):
        _LIBC.mallopt(_M_ARENA_MAX, 1)


def trim() -> None:
    """Have the C library give free pages of its heap back to the system (malloc_trim(3)); nothing where it cannot.

    A model's close frees many pieces between others that live on, and what is free within a heap stays in the process.
    Takes milliseconds, with the interpreter's lock given back.
    """
    if hasattr(_LIBC, "malloc_trim"):  # the GNU C library
        _LIBC.malloc_trim(0)
