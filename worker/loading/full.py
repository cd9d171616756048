"""``full``: every byte is read, so that the page cache holds it when the engine maps or reads the files."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from worker.loading.reading import BlockReader
from worker.loading.task import Brought

if TYPE_CHECKING:
    from collections.abc import Mapping

    from worker.loading.huge_pages import Copy
    from worker.loading.reading import Tally
    from worker.loading.task import LoadTask
    from worker.loading.version_files import SourceFile


class Full:
    """See this module's text."""

    def bring_in(self, task: LoadTask) -> Brought:
        """Read every file; see :class:`worker.loading.task.Strategy`."""
        tally = read_files(task, task.files)
        return Brought(tally.digests(task.files), tally.sums, tally.bytes_read, cut=tally.cut)


def read_files(task: LoadTask, files: tuple[SourceFile, ...], copies: Mapping[str, Copy] | None = None) -> Tally:
    """Read ``files`` in the task's threads, hash what it wants of them, and note the stages.

    ``copies``: by name, what is read is written to.
    """
    began = time.perf_counter()
    with BlockReader(
        task.wanted, task.threads_for(files), copies, hastened=lambda: task.cancellation.hastened
    ) as reader:
        reader.read_all(files)
        tally = reader.finish(task.cancellation, task.note)
    tally.note(task.stages, time.perf_counter() - began)
    return tally
