"""The worker's loader: finds a version's files, has the chosen strategy bring them in, and hashes what must be."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from worker.loading import Loaded, LoadError, StrategyName
from worker.loading.auto import choose, look
from worker.loading.chunked import Chunked
from worker.loading.full import Full
from worker.loading.mapped import Mmap, Populate
from worker.loading.mapping import PAGE_BYTES, cached_pages, ratio
from worker.loading.prefetch import Prefetch
from worker.loading.task import LoadTask
from worker.loading.verification import Verification
from worker.loading.version_files import version_files
from worker.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker.engines import Cancellation
    from worker.loading import Progress
    from worker.loading.hash_cache import HashCache
    from worker.loading.task import Brought, Strategy
    from worker.loading.version_files import SourceFile
    from worker.memory import Memory
    from worker.stages import Stages
    from worker.store import ModelFiles

SAMPLES = 16
MAX_THREADS = 4
"""Threads that read and hash one model: with more, memory is what they wait for."""

STRATEGIES: dict[StrategyName, Callable[[], Strategy]] = {
    StrategyName.FULL: Full,
    StrategyName.MMAP: Mmap,
    StrategyName.POPULATE: Populate,
    StrategyName.PREFETCH: Prefetch,
    StrategyName.CHUNKED: Chunked,
}


class ModelLoader:
    """See this module's text."""

    def __init__(
        self,
        strategy: StrategyName = StrategyName.AUTO,
        cache: HashCache | None = None,
        memory: Callable[[], Memory | None] = lambda: None,
        threads: int = 1,
    ) -> None:
        """``strategy``: where a version names none. ``memory``: what is there now. ``threads``: how many may read."""
        self._strategy = strategy
        self._cache = cache
        self._memory = memory
        self._threads = min(threads, MAX_THREADS)

    def load(self, files: ModelFiles, progress: Progress, cancellation: Cancellation, stages: Stages) -> Loaded:
        """Bring the files in, where there is a directory; see :class:`worker.loading.Loader`."""
        if files.directory is None:
            progress(0, 0)
            return Loaded("", 0)
        with stages.measure(Stage.OPEN):
            found = version_files(files.directory)
            verification = Verification(files.directory, found, files.sha256, files.load.verify, self._cache)
            name = files.load.strategy or self._strategy
            if name is StrategyName.AUTO:
                name = choose(look(found, self._memory()))
        task = LoadTask(found, verification.wanted, self._threads, progress, cancellation, stages)
        progress(0, task.total_bytes)
        brought = STRATEGIES[name]().bring_in(task)
        try:
            content_hash, hashed_from = verification.conclude(brought.tally.digests(found), brought.tally.sums)
            for file in found:
                file.check()
            residency_ratio = _residency(found, brought)
            access_s = first_access_s(found)
        except LoadError:
            for mapping in brought.mappings:
                mapping.close()
            raise
        progress(task.total_bytes, task.total_bytes)
        return Loaded(
            content_hash,
            brought.bytes_read,
            task.total_bytes,
            name,
            hashed_from,
            residency_ratio,
            access_s,
            files=found,
            mappings=brought.mappings,
        )


def _residency(files: tuple[SourceFile, ...], brought: Brought) -> float | None:
    counted = [mapping.held_pages() for mapping in brought.mappings] or [cached_pages(files)]
    known = [count for count in counted if count is not None]
    if len(known) != len(counted):
        return None
    return ratio(sum(held for held, _ in known), sum(pages for _, pages in known))


def first_access_s(files: tuple[SourceFile, ...], samples: int = SAMPLES) -> float | None:
    """Return the longest that reading one page took, of ``samples`` pages spread evenly over ``files``.

    Raises:
        LoadError: a file cannot be read.
    """
    total = sum(file.size_bytes for file in files)
    if not total:
        return None
    longest = 0.0
    places = [total * k // samples for k in range(samples)]
    buffer = bytearray(PAGE_BYTES)
    before = 0
    for file in files:
        here = [place - before for place in places if before <= place < before + file.size_bytes]
        before += file.size_bytes
        if not here:
            continue
        try:
            descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if hasattr(os, "posix_fadvise"):  # a page is asked for, not what lies around it
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
                for place in here:
                    began = time.perf_counter()
                    os.preadv(descriptor, [buffer], place // PAGE_BYTES * PAGE_BYTES)
                    longest = max(longest, time.perf_counter() - began)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise LoadError(f"{file.path}: {error.strerror}") from error
    return longest
