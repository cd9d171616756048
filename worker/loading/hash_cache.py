"""Remembers what files hashed to, so that a worker that starts again need not read gigabytes only to hash them.

One small file for each version's directory, kept in memory (/dev/shm) like the page cache that makes it worth having.
A digest holds for a file only as long as its device, inode, size, mtime and ctime are what they were; one that was
touched less than two seconds before it was hashed is not remembered, because a second write within the same tick of the
file system's clock would leave no trace.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, TypeVar

import msgspec
import xxhash

from worker import json_text
from worker.loading.digests import BLOCK_BYTES, FileDigest
from worker.loading.private import PrivateDirectory, own_root

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from worker.loading.version_files import SourceFile
    from worker.log import EventLog

FORMAT = 2
MAX_ENTRY_BYTES = 4 << 20
MAX_ENTRIES = 1000
SETTLED_NS = 2_000_000_000
T = TypeVar("T")


class _File(msgspec.Struct, array_like=True):
    key: tuple[int, int, int, int, int]
    size_bytes: int
    blocks: str
    sha256: str


class _Entry(msgspec.Struct):
    format: int
    block_bytes: int
    directory: str
    files: dict[str, _File]


class HashCache:
    """Digests by file. Whatever goes wrong with it is a line in the log, and the files are read."""

    def __init__(self, place: Path, log: EventLog, wall_ns: Callable[[], int] = time.time_ns) -> None:
        """``place``: where everybody writes, such as /dev/shm. ``wall_ns``: the clock that file times are of."""
        self._path = own_root(place) / "hashes"
        self._log = log
        self._wall_ns = wall_ns

    def recall(self, directory: Path, files: Sequence[SourceFile]) -> dict[str, FileDigest]:
        """Return what is known of ``files``, by name."""
        entry = self._use(lambda cache: _entry(cache, directory))
        if entry is None:
            return {}
        known = {}
        for file in files:
            one = entry.files.get(file.name)
            if one is not None and one.key == tuple(file.key):
                digest = FileDigest(one.size_bytes, bytes.fromhex(one.blocks), one.sha256)
                if digest.whole:
                    known[file.name] = digest
        return known

    def remember(self, directory: Path, files: Sequence[SourceFile], digests: Mapping[str, FileDigest]) -> None:
        """Keep ``digests`` of ``files``, which are all that ``directory`` holds."""
        settled_ns = self._wall_ns() - SETTLED_NS
        kept = {
            file.name: _File(file.key, digest.size_bytes, digest.blocks.hex(), digest.sha256)
            for file in files
            if (digest := digests.get(file.name)) is not None and max(file.key.mtime_ns, file.key.ctime_ns) < settled_ns
        }
        if not kept:
            return
        raw = bytes(json_text.encode(_Entry(FORMAT, BLOCK_BYTES, str(directory.resolve()), kept)))
        if len(raw) > MAX_ENTRY_BYTES:
            return

        def write(cache: PrivateDirectory) -> None:
            cache.write(_name(directory), raw)
            _prune(cache)

        self._use(write)

    def _use(self, work: Callable[[PrivateDirectory], T]) -> T | None:
        """Return what ``work`` makes of the directory; what fails is only told."""
        if not self._path.parent.parent.is_dir():  # a system without /dev/shm
            return None
        try:
            with PrivateDirectory(self._path.parent), PrivateDirectory(self._path) as directory:
                return work(directory)
        except (OSError, ValueError) as error:
            self._log.warning("load.hash_cache", error=str(error), effect="the files are read to hash them")
            return None


def _name(directory: Path) -> str:
    return f"{xxhash.xxh3_128_hexdigest(os.fsencode(directory.resolve()))}.json"


def _entry(cache: PrivateDirectory, directory: Path) -> _Entry | None:
    raw = cache.read(_name(directory), MAX_ENTRY_BYTES)
    if raw is None:
        return None
    entry = json_text.decode(raw, _Entry)
    same = (entry.format, entry.block_bytes, entry.directory) == (FORMAT, BLOCK_BYTES, str(directory.resolve()))
    return entry if same else None


def _prune(cache: PrivateDirectory) -> None:
    names = os.listdir(cache.descriptor)  # noqa: PTH208 - of the directory that was checked, not of its path
    if len(names) <= MAX_ENTRIES:
        return
    aged = sorted(names, key=lambda name: os.stat(name, dir_fd=cache.descriptor, follow_symlinks=False).st_mtime_ns)
    for name in aged[: len(names) - MAX_ENTRIES]:
        cache.remove(name)
