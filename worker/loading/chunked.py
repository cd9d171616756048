"""``chunked``: for a version that memory should not hold whole.

What must be hashed is read in chunks of 1 MiB, one asked for ahead, and each is taken out of the page cache behind the
reading, unless it was there before. The engine then maps the files and brings in what it uses.
"""

from __future__ import annotations

import hashlib
import os
import time
from typing import TYPE_CHECKING

import xxhash

from worker.engines import GivenUpError
from worker.loading import LoadError
from worker.loading.digests import BLOCK_BYTES
from worker.loading.mapping import cached_in
from worker.loading.reading import Tally
from worker.loading.task import Brought

if TYPE_CHECKING:
    from worker.loading.task import LoadTask
    from worker.loading.version_files import SourceFile

CHUNK_BYTES = 1 << 20


class Chunked:
    """See this module's text."""

    def __init__(self, chunk_bytes: int = CHUNK_BYTES) -> None:
        """``chunk_bytes`` divides the 16 MiB of a block."""
        self._chunk_bytes = chunk_bytes

    def bring_in(self, task: LoadTask) -> Brought:
        """Read what must be hashed; see :class:`worker.loading.task.Strategy`."""
        began = time.perf_counter()
        tally = Tally()
        buffer = memoryview(bytearray(self._chunk_bytes))
        for file in task.wanted_files:
            try:
                descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    self._read(task, file, descriptor, buffer, tally)
                finally:
                    os.close(descriptor)
            except OSError as error:
                raise LoadError(f"{file.path}: {error.strerror}") from error
        tally.note(task.stages, time.perf_counter() - began)
        return Brought(tally.digests(task.files), tally.sums, tally.bytes_read)

    def _read(self, task: LoadTask, file: SourceFile, descriptor: int, buffer: memoryview, tally: Tally) -> None:
        file.check(descriptor)
        blocks = bytearray()
        block = xxhash.xxh3_128()
        whole = hashlib.sha256() if file.name in task.wanted.sums else None
        _advise(descriptor, 0, 0, "RANDOM")  # the kernel's own reading ahead would go beyond the window
        step, at = self._chunk_bytes, 0
        was_cached = cached_in(descriptor, 0, step)
        while at < file.size_bytes:
            if task.cancellation.cancelled:
                raise GivenUpError("given up while reading")
            before = time.perf_counter()
            next_was_cached = cached_in(descriptor, at + step, step)
            _advise(descriptor, at + step, step, "WILLNEED")
            chunk = _fill(descriptor, buffer[: min(step, file.size_bytes - at)], at)
            if not len(chunk):
                file.check(descriptor)
                raise LoadError(f"{file.path}: ends after {at} of {file.size_bytes} bytes")
            read = time.perf_counter()
            block.update(chunk)
            if whole is not None:
                whole.update(chunk)
            tally.read_s += read - before
            tally.hash_s += time.perf_counter() - read
            if not was_cached:
                _advise(descriptor, at, step, "DONTNEED")
            was_cached = next_was_cached
            at += len(chunk)
            if at % BLOCK_BYTES == 0 or at >= file.size_bytes:
                blocks += block.digest()
                block.reset()
            tally.bytes_read += len(chunk)
            task.note(len(chunk))
        file.check(descriptor)
        if file.name in task.wanted.blocks:
            tally.blocks[file.name] = blocks
        if whole is not None:
            tally.sums[file.name] = whole.hexdigest()


def _fill(descriptor: int, buffer: memoryview, at: int) -> memoryview:
    """Read until ``buffer`` is full or the file ends; returns what was read."""
    done = 0
    while done < len(buffer):
        count = os.preadv(descriptor, [buffer[done:]], at + done)
        if not count:
            break
        done += count
    return buffer[:done]


def _advise(descriptor: int, offset: int, length: int, advice: str) -> None:
    if hasattr(os, "posix_fadvise"):  # not on macOS
        os.posix_fadvise(descriptor, offset, length, getattr(os, f"POSIX_FADV_{advice}"))
