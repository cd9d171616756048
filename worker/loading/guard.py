"""The leases on the files of one loading of a model version; :mod:`worker.loading.leases` has what they are for."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from worker.engines import Detachable
from worker.loading import LoadError
from worker.loading.own_memory import FileId, mapped_areas

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from pathlib import Path

    from worker.engines import Cancellation, LoadedModel
    from worker.loading import Loaded
    from worker.loading.leases import Leases
    from worker.loading.version_files import SourceFile
    from worker.store import ModelFiles

MOST_FILES: Final = 256
"""Of one version, the largest first: each takes a descriptor."""
REMEDY: Final = "put a new version together beside its place and rename it, never write into one that is served"
_WHY: Final = {
    errno.EAGAIN: "it is open for writing",
    errno.EACCES: "it belongs to another user than this worker's, which has not CAP_LEASE",
    errno.EINVAL: "its file system has no leases, or they are off",
}


class Guard:
    """The leases of one loading of a model version. :meth:`settle` ends the load, :meth:`closing` all of it."""

    def __init__(self, leases: Leases, files: ModelFiles, loaded: Loaded, cancellation: Cancellation) -> None:
        self.still = threading.Lock()
        """Held by whoever has the engine map or unmap the files, or moves what is mapped."""
        self.still.acquire()  # as a load has, until it is settled
        self.files: dict[FileId, SourceFile] = {
            FileId(file.key.device, file.key.inode): file for file in loaded.files if file.size_bytes
        }
        self._paths = {file: source.path for file, source in self.files.items()}
        self.loading = True
        self.ended = False
        self.detach: Callable[[], None] | None = None
        """Has the model begin nothing more with the files; None: it cannot do without them."""
        self.kept = self.lost = self.given_up = ""
        """What there is to say: what it serves from memory, why it must not serve on, why its load was given up."""
        self.cancel_runs: Callable[[], None] = _nothing
        self.told: Callable[[], None] = _nothing
        self._leases = leases
        self._of = files
        self._loaded = loaded
        self._cancellation = cancellation
        self._lock = threading.Lock()
        self._held: dict[FileId, int] = {}
        self._passed_over: set[FileId] = set()
        self._refused: dict[FileId, str] = {}

    @property
    def held(self) -> int:
        """How many leases it has."""
        return len(self._held)

    # --- the life of what it guards; in a thread --------------------------------------------------------------------

    def take(self) -> None:
        """Take the leases, before the engine has the files.

        Raises:
            LoadError: a file is not what it was when it was brought in.
        """
        self._leases.add(self)
        by_size = sorted(self.files.items(), key=lambda row: row[1].size_bytes, reverse=True)
        for file, source in by_size[:MOST_FILES]:
            self._take(file, source)
        for file, _ in by_size[MOST_FILES:]:
            self._refused[file] = f"a version has at most {MOST_FILES} leases"
        self._leases.look()  # one may have been opened before it was known here

    def _take(self, file: FileId, source: SourceFile) -> None:
        try:
            descriptor = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._refused[file] = error.strerror or str(error)
                return
            raise LoadError(f"{source.path}: {error.strerror}") from error
        try:
            source.check(descriptor)
            fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            source.check(descriptor)  # from here on it stays so
        except OSError as error:
            os.close(descriptor)
            self._refused[file] = _WHY.get(error.errno or 0, error.strerror or str(error))
            return
        except LoadError:
            os.close(descriptor)
            raise
        with self._lock:
            self._held[file] = descriptor

    def settle(self, model: LoadedModel, cancel_runs: Callable[[], None], told: Callable[[], None]) -> None:
        """Keep the leases on what the engine has mapped, and let others map and unmap.

        ``cancel_runs``: have those that run end. ``told`` is called on the loop when there is something to say.

        Raises:
            LoadError: the load was given up.
        """
        if self.given_up:
            raise LoadError(self.given_up)
        own = {mapping.address for mapping in self._loaded.mappings}
        try:
            areas = mapped_areas({file: source.path for file, source in self.files.items()})
        except OSError as error:
            self._refused = dict.fromkeys(self.files, f"{error.filename}: {error.strerror}")
            areas = {}
        mapped = {file for file, found in areas.items() if any(area.start not in own for area in found)}
        for file in set(self.files) - mapped:
            self.release(file)
        self.files = {file: source for file, source in self.files.items() if file in mapped}
        refused = {source.path: self._refused[file] for file, source in self.files.items() if file in self._refused}
        if refused:
            self._leases.unguarded(self._of, refused)
        if isinstance(model, Detachable):
            self.detach = model.detach
        self.cancel_runs, self.told = cancel_runs, told
        self.loading = False
        self.still.release()

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Close what is loaded within the ``with`` block; nothing is guarded after it."""
        if not self.loading:
            self.still.acquire()
        try:
            yield
        finally:
            self.ended = True
            self._leases.remove(self)
            self.release()
            self.still.release()

    def release(self, file: FileId | None = None) -> None:
        """Give the lease on a file back, or all of them."""
        with self._lock:
            chosen = list(self._held) if file is None else [file] if file in self._held else []
            for one in chosen:
                descriptor = self._held.pop(one)
                fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
                os.close(descriptor)

    # --- when a file is opened for writing --------------------------------------------------------------------------

    def broken(self) -> dict[FileId, Path]:
        """Return the files that somebody waits for, without those that were passed over."""
        with self._lock:
            return {
                file: self.files[file].path
                for file, descriptor in self._held.items()
                if file not in self._passed_over and fcntl.fcntl(descriptor, fcntl.F_GETLEASE) != fcntl.F_RDLCK
            }

    def pass_over(self, file: FileId) -> None:
        """Keep the lease on a file until the end, whoever waits."""
        with self._lock:
            self._passed_over.add(file)

    def let_go_of_own(self, files: Collection[FileId]) -> None:
        """Unmap what is mapped here only to keep it in memory."""
        paths = {self.files[file].path for file in files if file in self.files}
        for mapping in self._loaded.mappings:
            if mapping.path in paths:
                mapping.close()

    def give_up_load(self, files: Iterable[FileId]) -> None:
        """Give up a load that is under way."""
        file = next((file for file in files if file in self.files), None)
        if self.loading and file is not None and not self.given_up:
            self.given_up = f"{self.path_of(file)}: is being changed in place while it is loaded; {REMEDY}"
            self._leases.load_given_up(self, file)
            self._cancellation.cancel()

    def about(self, file: FileId) -> dict[str, str]:
        """Return what an event says first."""
        return {"model": self._of.name, "version": self._of.version, "file": str(self.path_of(file))}

    def path_of(self, file: FileId) -> Path:
        """Return what its own model calls a file: others may have it by another name (a hard link)."""
        return self._paths[file]


def _nothing() -> None:
    """There is nothing to do."""
