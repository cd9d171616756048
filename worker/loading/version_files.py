"""The files of one model version, in the order in which they are read, and what tells that one has changed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from worker.loading import LoadError
from worker.paths import MAX_FILES

DESCRIPTION = "model.yaml"
SUMS = "SHA256SUMS"
_NOT_CONTENT = frozenset({DESCRIPTION, SUMS})


class FileKey(NamedTuple):
    """What is equal where a file has not been touched: a write, a rename over it, even a mtime set back change it."""

    device: int
    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file: where it is, its name within the version (``/`` between the parts), and its key when it was found."""

    path: Path
    name: str
    key: FileKey

    @property
    def size_bytes(self) -> int:
        """How long it was when it was found."""
        return self.key.size_bytes

    def check(self, descriptor: int | None = None) -> None:
        """Look whether it is still the same: what its path leads to, or where it is given what ``descriptor`` is of.

        Raises:
            LoadError: it is not.
        """
        try:
            now = file_key(self.path.stat() if descriptor is None else os.fstat(descriptor))
        except OSError as error:
            raise LoadError(f"{self.path}: {error.strerror}") from error
        if now[:-1] != self.key[:-1]:  # a new link to it changes the last, ctime, and nothing of what it holds
            sizes = f" from {self.size_bytes} to {now.size_bytes} bytes" if now.size_bytes != self.size_bytes else ""
            raise LoadError(
                f"{self.path}: changed{sizes} while it was loaded; put a new version together beside its place and "
                f"rename it, never write into one that is served"
            )


def file_key(status: os.stat_result) -> FileKey:
    """Return the key of a file by its status."""
    return FileKey(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def version_files(directory: Path) -> tuple[SourceFile, ...]:
    """Return the files that make up the version's content, by name.

    ``model.yaml`` is not part of it, because the revision of the configuration covers what it means, nor is
    ``SHA256SUMS``, nor what has a part in its name that begins with a dot.

    Raises:
        LoadError: a file or directory cannot be looked at, or there are too many.
    """
    found: list[SourceFile] = []

    def refused(error: OSError) -> None:
        raise error

    try:
        for folder, folders, names in os.walk(directory, onerror=refused):
            folders[:] = [name for name in folders if not name.startswith(".")]
            base = Path(folder)  # which has the directory's own path before it already
            for name in names:
                path = base / name
                if name.startswith(".") or (base == directory and name in _NOT_CONTENT) or not path.is_file():
                    continue
                found.append(SourceFile(path, path.relative_to(directory).as_posix(), file_key(path.stat())))
                if len(found) > MAX_FILES:
                    raise LoadError(f"{directory}: over {MAX_FILES} files; a version holds the files of one model")
    except OSError as error:
        raise LoadError(f"{error.filename}: {error.strerror}") from error
    return tuple(sorted(found, key=lambda file: file.name))
