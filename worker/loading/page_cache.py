"""Reads files in order, so that the kernel's page cache holds them when the engine maps or reads them, and hashes them.

Reading ahead is asked for in steps, because ``POSIX_FADV_WILLNEED`` on a whole file reads only the device's
``read_ahead_kb``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import xxhash

from worker.engines import GivenUpError
from worker.loading import Loaded, LoadError
from worker.stages import Stage

if TYPE_CHECKING:
    from pathlib import Path

    from worker.engines import Cancellation
    from worker.loading import Progress
    from worker.stages import Stages
    from worker.store import ModelFiles

CHUNK_BYTES = 4 << 20


class PageCacheLoader:
    """Reads every file of the version's directory through the page cache; the hash is xxh3-128 over names and bytes."""

    def __init__(self, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._chunk_bytes = chunk_bytes

    def load(self, files: ModelFiles, progress: Progress, cancellation: Cancellation, stages: Stages) -> Loaded:
        """Read the files; see :class:`worker.loading.Loader`. Where there is no directory there is nothing to do."""
        if files.directory is None:
            progress(0, 0)
            return Loaded("", 0)
        with stages.measure(Stage.OPEN):
            try:
                paths = _files(files.directory)
                total = sum(path.stat().st_size for path in paths)
            except OSError as error:
                raise LoadError(f"{error.filename}: {error.strerror}") from error
        digest = xxhash.xxh3_128()
        buffer = memoryview(bytearray(min(self._chunk_bytes, max(total, 1))))
        done = 0
        progress(0, total)
        for path in paths:
            try:
                with path.open("rb", buffering=0) as file:
                    size_bytes = os.fstat(file.fileno()).st_size
                    digest.update(f"{path.relative_to(files.directory).as_posix()}\0{size_bytes}\0".encode())
                    while True:
                        if cancellation.cancelled:
                            raise GivenUpError("given up while reading")
                        with stages.measure(Stage.PAGE_IN):
                            if hasattr(os, "posix_fadvise"):  # not on macOS
                                ahead_bytes = 2 * self._chunk_bytes
                                os.posix_fadvise(file.fileno(), file.tell(), ahead_bytes, os.POSIX_FADV_WILLNEED)
                            count = file.readinto(buffer)
                        if not count:
                            break
                        with stages.measure(Stage.CHECKSUM):
                            digest.update(buffer[:count])
                        done += count
                        progress(done, max(total, done))
            except OSError as error:
                raise LoadError(f"{path}: {error.strerror}") from error
        return Loaded(digest.hexdigest(), done)


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())
