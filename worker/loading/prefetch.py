"""``prefetch``: the kernel is asked to read ahead, and nobody waits for it.

It is asked for in steps, because ``POSIX_FADV_WILLNEED`` reads at most the device's ``read_ahead_kb`` (or its largest
request) of what it is given.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from worker.engines import GivenUpError
from worker.loading import LoadError
from worker.loading.full import read_files
from worker.loading.task import Brought
from worker.loading.version_files import version_files
from worker.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from worker.engines import Cancellation
    from worker.loading.task import LoadTask
    from worker.loading.version_files import SourceFile
    from worker.log import EventLog
    from worker.memory import Memory
    from worker.store import ModelFiles

STEP_BYTES = 1 << 20
MEMORY_SHARE = 0.8
"""Of the free memory, that one version may be prefetched into."""


class Prefetch:
    """Asks for everything and goes on, so that the engine begins while the device reads. What must be is hashed."""

    def bring_in(self, task: LoadTask) -> Brought:
        """Ask for every file; see :class:`worker.loading.task.Strategy`."""
        with task.stages.measure(Stage.PAGE_IN):
            asked = advise(task.files, task.cancellation)
        brought = Brought(bytes_read=asked, cut=asked < task.total_bytes and task.cancellation.hastened)
        if task.wanted:
            tally = read_files(task, task.wanted_files)
            brought.digests, brought.sums = tally.digests(task.files), tally.sums
        return brought


def prefetcher(log: EventLog, memory: Callable[[], Memory | None]) -> Callable[[ModelFiles, Cancellation], None]:
    """Return what reads a version ahead that nobody has asked for yet, where memory has room for it."""

    def prefetch(files: ModelFiles, cancellation: Cancellation) -> None:
        try:
            found = () if files.directory is None else version_files(files.directory)
            total_bytes = sum(file.size_bytes for file in found)
            free = memory()
            if free is not None and total_bytes > MEMORY_SHARE * free.free_bytes:
                error = f"{total_bytes} bytes are more than {MEMORY_SHARE:.0%} of the {free.free_bytes} that are free"
                log.warning("model.not_prefetched", model=files.name, version=files.version, error=error)
            elif found:
                asked = advise(found, cancellation)
                log.info("model.prefetched", model=files.name, version=files.version, bytes=asked)
        except LoadError as error:
            log.warning("model.not_prefetched", model=files.name, version=files.version, error=str(error))
        except GivenUpError:
            pass

    return prefetch


def advise(files: Iterable[SourceFile], cancellation: Cancellation) -> int:
    """Ask the kernel to read ``files`` ahead; returns for how many bytes it was asked: none on systems without it.

    Once ``cancellation`` is hastened nothing more is asked for.

    Raises:
        LoadError: a file cannot be opened.
        GivenUpError: ``cancellation`` said so.
    """
    if not hasattr(os, "posix_fadvise"):  # macOS
        return 0
    asked = 0
    for file in files:
        try:
            descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                for offset in range(0, file.size_bytes, STEP_BYTES):
                    if cancellation.cancelled:
                        raise GivenUpError("given up while prefetching")
                    if cancellation.hastened:
                        return asked
                    os.posix_fadvise(descriptor, offset, STEP_BYTES, os.POSIX_FADV_WILLNEED)
                    asked += min(STEP_BYTES, file.size_bytes - offset)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise LoadError(f"{file.path}: {error.strerror}") from error
    return asked
