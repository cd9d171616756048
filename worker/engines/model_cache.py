"""Optimised models on disk, by key: made once, found by the next start. What is broken is dropped, never used.

Each entry is one file, ``KEY.model``: a head with the size and hash of what follows. It comes by rename, so that there
is no half of one. The least recently used go when all together are over the limit. A directory that cannot be written
is read all the same.
"""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
import time
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from worker.log import EventLog

_HEAD = struct.Struct("<4s16sQ")
_MAGIC = b"wrm1"
_SUFFIX = ".model"
_WORK = ".making-"
STALE_S = 3600.0
"""Work of a worker that died is taken away when it is this old."""


class ModelCache:
    """The cache in one directory. Several workers may share it."""

    def __init__(self, directory: Path, limit_bytes: int, log: EventLog) -> None:
        self.directory = directory
        self._limit_bytes = limit_bytes
        self._log = log
        self._writable = True
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            self._cannot_write(error)

    @property
    def writable(self) -> bool:
        """False where writing has failed before."""
        return self._writable

    def get(self, key: str) -> bytes | None:
        """Return what is stored under ``key``, or None; an entry that is broken is dropped."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        body = data[_HEAD.size :]
        if len(data) < _HEAD.size or data[:4] != _MAGIC:
            self.drop(key, "no head")
            return None
        _, digest, size = _HEAD.unpack_from(data)
        if size != len(body):
            self.drop(key, f"{len(body)} bytes, not {size}")
            return None
        if digest != xxhash.xxh3_128_digest(body):
            self.drop(key, "its hash is not that of its bytes")
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used now
        return body

    def put(self, key: str, body: bytes) -> bool:
        """Store ``body``; False where it was not, because it is over the limit or the directory cannot be written."""
        if _HEAD.size + len(body) > self._limit_bytes:
            return False
        try:
            with self.work() as directory:
                path = directory / key
                with path.open("wb") as file:
                    file.write(_HEAD.pack(_MAGIC, xxhash.xxh3_128_digest(body), len(body)))
                    file.write(body)
                    file.flush()
                    os.fsync(file.fileno())
                path.replace(self._path(key))
            self._keep_within_limit()
        except OSError as error:
            self._cannot_write(error)
            return False
        return True

    def drop(self, key: str, reason: str) -> None:
        """Take an entry away that is of no use."""
        self._log.warning("model_cache.dropped", entry=str(self._path(key)), reason=reason)
        with contextlib.suppress(OSError):
            self._path(key).unlink()

    @contextlib.contextmanager
    def work(self) -> Iterator[Path]:
        """Give a directory to work in, on the same file system; it is removed after.

        Raises:
            OSError: the directory cannot be written.
        """
        with tempfile.TemporaryDirectory(prefix=_WORK, dir=self.directory, ignore_cleanup_errors=True) as name:
            yield self.directory / os.path.basename(name)  # noqa: PTH119 - a name, no path

    def _path(self, key: str) -> Path:
        return self.directory / f"{key}{_SUFFIX}"

    def _keep_within_limit(self) -> None:
        entries = []
        for path in self.directory.iterdir():
            with contextlib.suppress(OSError):  # another worker was quicker
                stat = path.stat()
                if path.suffix == _SUFFIX:
                    entries.append((stat.st_mtime_ns, stat.st_size, path))
                elif path.name.startswith(_WORK) and stat.st_mtime < time.time() - STALE_S:
                    for left in path.iterdir():
                        left.unlink()
                    path.rmdir()
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self._limit_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size

    def _cannot_write(self, error: OSError) -> None:
        if self._writable:
            self._writable = False
            self._log.warning("model_cache.not_writable", directory=str(self.directory), error=str(error))
