"""Where files that are not used from where they lie are put: a directory in shared memory, or memory without a name."""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from worker.loading import NoRoomError
from worker.loading.full import read_files
from worker.loading.huge_pages import Copy
from worker.loading.task import Brought
from worker.loading.unpacking import plain_name, unpack
from worker.loading.version_files import SourceFile, file_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from worker.loading.digests import FileDigest
    from worker.loading.task import LoadTask


class Place(Protocol):
    """Takes the files of one version."""

    def create(self, name: str) -> int:
        """Make the file ``name`` and return a descriptor of it, which the caller closes.

        Raises:
            OSError: it cannot be made.
        """

    def finish(self, digests: Mapping[str, FileDigest]) -> tuple[SourceFile, ...]:
        """Say that all files are there, with their digests by name; returns them.

        Raises:
            LoadError: they cannot be looked at.
        """

    def keep(self) -> None:
        """Have it stay, where it can, when it is given back: the process ends."""

    def end(self) -> None:
        """Give it back."""


class NamelessPlace:
    """Memory for one file, without a name in any file system (memfd); it goes with the process at the latest.

    Sealed once it is written, so that nothing can be cut short under who maps it.
    """

    def __init__(self, label: str) -> None:
        self._descriptor = os.memfd_create(label, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)

    def create(self, name: str) -> int:
        """See :class:`Place`."""
        del name
        return os.dup(self._descriptor)

    def finish(self, digests: Mapping[str, FileDigest]) -> tuple[SourceFile, ...]:
        """See :class:`Place`."""
        fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
        path = Path(f"/proc/self/fd/{self._descriptor}")
        return tuple(SourceFile(path, plain_name(name), file_key(os.fstat(self._descriptor))) for name in digests)

    def keep(self) -> None:
        """Nothing of it can stay."""

    def end(self) -> None:
        """See :class:`Place`."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class IntoPlace:
    """The strategy of a version whose files are copied or unpacked into a place."""

    def __init__(self, place: Place, limit_bytes: int, small: Callable[[str], None] = lambda _: None) -> None:
        """``limit_bytes``: how large the files may be together once they are unpacked.

        ``small``: told why a copy has pages of the usual size, where huge ones cannot be had.
        """
        self._place = place
        self._limit_bytes = limit_bytes
        self._small = small

    def bring_in(self, task: LoadTask) -> Brought:
        """Copy and unpack every file; see :class:`worker.loading.task.Strategy`."""
        plain = tuple(file for file in task.files if plain_name(file.name) == file.name)
        left_bytes = self._limit_bytes - sum(file.size_bytes for file in plain)
        with ExitStack() as stack:
            copies = {}
            for file in task.files:
                try:
                    made = self._place.create(plain_name(file.name))
                except OSError as error:
                    raise NoRoomError(f"{file.path}: cannot be put into memory: {error.strerror}") from error
                known_bytes = file.size_bytes if file in plain else 0
                copies[file.name] = Copy(made, known_bytes, f"the copy of {file.path}", self._small)
                stack.callback(copies[file.name].close)
            tally = read_files(task, plain, copies)
            digests = tally.digests(plain)
            for file in task.files:
                if file not in plain:
                    digest, sha256 = unpack(file, copies[file.name].descriptor, left_bytes, task)
                    left_bytes -= digest.size_bytes
                    digests[file.name] = digest
                    if sha256:
                        tally.sums[file.name] = sha256
        return Brought(digests, tally.sums, task.total_bytes)
