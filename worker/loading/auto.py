"""``auto``: which strategy suits a version, by its size, the memory that is free, and what is in the page cache."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from worker.loading import StrategyName
from worker.loading.mapped import MARK_RATIO
from worker.loading.mapping import IS_LINUX, cached_ratio

if TYPE_CHECKING:
    from worker.loading.version_files import SourceFile
    from worker.memory import Memory

SMALL_BYTES = 16 << 20
"""Up to here reading is as quick as anything else."""
MEMORY_SHARE = 0.8
"""A version that would take more of the free memory than this is not brought in whole."""
MOUNTS = Path("/proc/self/mountinfo")
_FAR = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "fuse"})


@dataclass(frozen=True, slots=True)
class Situation:
    """What the choice depends on. ``free_bytes`` and ``cached_ratio`` are None where they are not known."""

    total_bytes: int
    free_bytes: int | None
    cached_ratio: float | None
    far: bool = False
    """Whether the files are on a network's file system or in another process, where each page fault is a journey.

    So it is called, too, where pages cannot be brought in but by reading: on other systems than Linux.
    """


def choose(situation: Situation) -> StrategyName:
    """Return the strategy for a situation; the first of these that applies.

    - more than 80% of the free memory: ``chunked``, which leaves memory alone. Pages that are cached count as free;
    - 16 MiB or less, or a far file system: ``full``;
    - 99.7% in the page cache: ``mmap``, as there is nothing to bring in;
    - else ``populate``.
    """
    if situation.free_bytes is not None and situation.total_bytes > MEMORY_SHARE * situation.free_bytes:
        return StrategyName.CHUNKED
    if situation.total_bytes <= SMALL_BYTES or situation.far:
        return StrategyName.FULL
    if situation.cached_ratio is not None and situation.cached_ratio >= MARK_RATIO:
        return StrategyName.MMAP
    return StrategyName.POPULATE


def look(files: tuple[SourceFile, ...], memory: Memory | None, mountinfo: Path = MOUNTS) -> Situation:
    """Return the situation of ``files``, given the memory that is there."""
    return Situation(
        sum(file.size_bytes for file in files),
        None if memory is None else memory.free_bytes,
        cached_ratio(files),
        not IS_LINUX or any(is_far(device, mountinfo) for device in {file.key.device for file in files}),
    )


def is_far(device: int, mountinfo: Path) -> bool:
    """Return whether a file system, by its device number, is a network's or a process's (proc_pid_mountinfo(5))."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = mountinfo.read_text().splitlines()
    except OSError:
        return False
    for line in lines:
        place, _, kind = line.partition(" - ")
        if place.split()[2:3] == [number]:
            name = kind.split(" ", 1)[0]
            return name in _FAR or name.startswith("fuse.")
    return False
