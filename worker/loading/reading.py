"""Reads files with read(2), never through a mapping: a file that was cut short is then an error, and no signal.

Reading and both hashes release the interpreter's lock, so threads share the work, block by block.
"""

from __future__ import annotations

import errno
import hashlib
import os
import queue
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import xxhash

from worker.crew import Crew
from worker.engines import GivenUpError
from worker.loading import LoadError, NoRoomError
from worker.loading.digests import BLOCK_BYTES, DIGEST_BYTES, FileDigest, block_offsets
from worker.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from worker.engines import Cancellation
    from worker.loading.huge_pages import Copy
    from worker.loading.version_files import SourceFile
    from worker.stages import Stages

BUFFER_BYTES = 4 << 20
_NO_ROOM = frozenset({errno.ENOSPC, errno.ENOMEM, errno.EDQUOT})
LOOK_S = 0.05
"""How often a wait looks whether it was given up."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which files are to be hashed as they are read, by name: with xxh3 and, where a sum is to be compared, SHA-256."""

    blocks: frozenset[str] = frozenset()
    sums: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.blocks or self.sums)


@dataclass(slots=True)
class Tally:
    """What became of the blocks that were read so far."""

    blocks: dict[str, bytearray] = field(default_factory=dict)
    sums: dict[str, str] = field(default_factory=dict)
    bytes_read: int = 0
    read_s: float = 0.0
    hash_s: float = 0.0
    cut: bool = False
    """Something was not read, as nothing but its pages was wanted of it."""

    def digests(self, files: Sequence[SourceFile]) -> dict[str, FileDigest]:
        """Return the digest of each of ``files`` that was hashed."""
        return {
            file.name: FileDigest(file.size_bytes, bytes(self.blocks[file.name]), self.sums.get(file.name, ""))
            for file in files
            if file.name in self.blocks
        }

    def note(self, stages: Stages, wall_s: float) -> None:
        """Share ``wall_s`` out between the two stages, as the threads' own time was."""
        spent_s = self.read_s + self.hash_s
        if spent_s:
            stages.add(Stage.PAGE_IN, wall_s * self.read_s / spent_s)
            if self.hash_s:
                stages.add(Stage.CHECKSUM, wall_s * self.hash_s / spent_s)


@dataclass(frozen=True, slots=True)
class _Job:
    file: SourceFile
    offset: int
    length: int
    sum: bool = False  # SHA-256 over the whole file, which no two threads can share


@dataclass(frozen=True, slots=True)
class _Done:
    job: _Job
    digest: bytes
    length: int
    read_s: float
    hash_s: float


class BlockReader:
    """Threads that read blocks, and hash those of the ``wanted`` files. Use it in a ``with`` block."""

    def __init__(
        self,
        wanted: Wanted,
        threads: int,
        copies: Mapping[str, Copy] | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        hastened: Callable[[], bool] = lambda: False,
    ) -> None:
        """``copies``: by name, what is read of a file is written to, at the same place.

        ``hastened``: once it says so, nothing more is read that is neither hashed nor copied.
        """
        self._wanted = wanted
        self._hastened = hastened
        self._copies = copies or {}
        self._buffer_bytes = buffer_bytes
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[_Done | Exception] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._pending = 0
        self._tally = Tally()
        self._count = threads
        self._crew = Crew()

    def __enter__(self) -> BlockReader:
        for started in range(self._count):
            try:
                self._crew.start(self._work)
            except MemoryError:
                if not started:
                    raise
                break  # it is as well done by fewer
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for _thread in range(self._count):
            self._jobs.put(None)
        self._crew.end()

    def read(self, file: SourceFile, offset: int, length: int) -> None:
        """Have a block read."""
        self._put(_Job(file, offset, length))

    def conclude(self, file: SourceFile) -> None:
        """Say that every block of ``file`` is on its way: its SHA-256, where it is wanted, is made after them."""
        if file.name in self._wanted.blocks:
            self._tally.blocks.setdefault(file.name, bytearray(-(-file.size_bytes // BLOCK_BYTES) * DIGEST_BYTES))
        if file.name in self._wanted.sums:
            self._put(_Job(file, 0, file.size_bytes, sum=True))

    def read_all(self, files: Sequence[SourceFile]) -> None:
        """Have every block of ``files`` read, in order."""
        for file in files:
            for offset, length in block_offsets(file.size_bytes):
                self.read(file, offset, length)
            self.conclude(file)

    def _put(self, job: _Job) -> None:
        self._pending += 1
        self._jobs.put(job)

    def finish(self, cancellation: Cancellation, note: Callable[[int], None] = lambda _: None) -> Tally:
        """Wait until everything is read, and tell ``note`` how many bytes each block brought.

        Raises:
            LoadError: a file cannot be read, or is not what it was.
            GivenUpError: ``cancellation`` said so.
        """
        tally = self._tally
        while self._pending:
            if cancellation.cancelled:
                raise GivenUpError("given up while reading")
            try:
                done = self._done.get(timeout=LOOK_S)
            except queue.Empty:
                if self._crew.is_over and self._done.empty():
                    raise MemoryError("the threads that read the files found no memory") from None
                continue
            if isinstance(done, Exception):
                raise done
            self._pending -= 1
            tally.read_s += done.read_s
            tally.hash_s += done.hash_s
            if done.job.sum:
                tally.sums[done.job.file.name] = done.digest.hex()
                continue
            if done.digest:
                at = done.job.offset // BLOCK_BYTES * DIGEST_BYTES
                tally.blocks[done.job.file.name][at : at + DIGEST_BYTES] = done.digest
            tally.bytes_read += done.length
            tally.cut = tally.cut or done.length < done.job.length
            note(done.length)
        return tally

    def _work(self) -> None:
        try:
            buffer = memoryview(bytearray(self._buffer_bytes))
            while (job := self._jobs.get()) is not None and not self._stop.is_set():
                self._done.put(self._do(job, buffer))
        except Exception as error:  # noqa: BLE001 - it is the caller's, whatever it is, and ends the load
            self._done.put(error)

    def _do(self, job: _Job, buffer: memoryview) -> _Done:
        hasher = hashlib.sha256() if job.sum else xxhash.xxh3_128() if job.file.name in self._wanted.blocks else None
        copy = None if job.sum else self._copies.get(job.file.name)
        needed = hasher is not None or copy is not None
        read_s = hash_s = 0.0
        at = job.offset
        before = time.perf_counter()
        if copy is not None:
            copy.begin(job.offset, job.length)
        for chunk in () if not needed and self._hastened() else chunks(job.file, job.offset, job.length, buffer):
            if self._stop.is_set():
                raise GivenUpError("given up while reading")
            if copy is not None:
                copy.write(chunk, at)
            at += len(chunk)
            read = time.perf_counter()
            if hasher is not None:
                hasher.update(chunk)
            read_s += read - before
            before = time.perf_counter()
            hash_s += before - read
            if not needed and self._hastened():
                break
        return _Done(job, b"" if hasher is None else hasher.digest(), at - job.offset, read_s, hash_s)


def write_all(descriptor: int, data: memoryview, at: int, what: object) -> None:
    """Write all of ``data``; ``what`` is what errors call it.

    Raises:
        NoRoomError: there is no room for it.
        LoadError: it cannot be written.
    """
    done = 0
    try:
        while done < len(data):
            done += os.pwrite(descriptor, data[done:], at + done)
    except OSError as error:
        kind = NoRoomError if error.errno in _NO_ROOM else LoadError
        raise kind(f"{what}: cannot be written: {error.strerror}") from error


def chunks(file: SourceFile, offset: int, length: int, buffer: memoryview) -> Iterator[memoryview]:
    """Read a part of a file piece by piece; each piece holds until the next is asked for.

    Raises:
        LoadError: it cannot be read, or is not the file that was found.
    """
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            file.check(descriptor)
            at, end = offset, offset + length
            while at < end:
                count = os.preadv(descriptor, [buffer[: end - at]], at)
                if not count:
                    file.check(descriptor)
                    raise LoadError(f"{file.path}: ends after {at} of {file.size_bytes} bytes")
                yield buffer[:count]
                at += count
            file.check(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise LoadError(f"{file.path}: {error.strerror}") from error
