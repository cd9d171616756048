"""Weights kept in shared memory (/dev/shm), where a worker that starts again finds them and maps them at once.

Below the directory that only this user may open (:mod:`worker.loading.private`)::

    weights/INSTANCE/                     of one worker, by its namespace and id; .lock is locked while it lives,
                                          and .turn while one of its processes makes or removes something here
    weights/INSTANCE/NAME@VERSION.KEY/    one state of one version's files, whole once it has .complete; locked
                                          itself while a process makes or uses it
    weights/.process-PID-RANDOM/          what is of no use to another process: unpacked, and not to be kept

Two processes may be one instance (a worker that stands by): what the other makes or uses is not touched. What is left
over is found and removed: at once where it is another state's or version's of this instance or of a
process that is gone, and after an hour where it is of another instance that does not run.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import xxhash

from worker import json_text
from worker.loading import LoadError, NoRoomError
from worker.loading.digests import BLOCK_BYTES, FileDigest
from worker.loading.private import PrivateDirectory, UntrustedError, own_root
from worker.loading.unpacking import plain_name
from worker.loading.version_files import SourceFile, file_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from worker.log import EventLog
    from worker.memory import Memory
    from worker.store import ModelFiles

FORMAT = 1
MAX_MANIFEST_BYTES = 4 << 20
MEMORY_SHARE = 0.8
"""Of the free memory, that one version may take."""
ORPHAN_S = 3600.0
_COMPLETE, _LOCK, _ORPHAN, _TURN = ".complete", ".lock", ".orphan", ".turn"
_PROCESS = ".process-"


class _Held(msgspec.Struct, array_like=True):
    size_bytes: int
    blocks: str
    sha256: str


class _Manifest(msgspec.Struct):
    format: int
    block_bytes: int
    files: dict[str, _Held]


class ShmError(OSError):
    """Shared memory cannot be used; the text says why."""


class ShmEntry:
    """One version's files in shared memory. ``digests`` are None until they are all there."""

    def __init__(
        self,
        directory: Path,
        digests: Mapping[str, FileDigest] | None,
        store: ShmStore,
        *,
        keep: bool,
        room_bytes: int = 0,
    ) -> None:
        """``room_bytes``: how large its files may be together."""
        self.directory = directory
        self.room_bytes = room_bytes
        self.digests = digests
        self._store = store
        self._keep = keep
        self._ended = False

    def create(self, name: str) -> int:
        """Make a file; see :class:`worker.loading.places.Place`."""
        path = self.directory / name
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def finish(self, digests: Mapping[str, FileDigest]) -> tuple[SourceFile, ...]:
        """Note the digests, by the names of the files as they lie in the repository; returns what is here."""
        held = {name: _Held(one.size_bytes, one.blocks.hex(), one.sha256) for name, one in digests.items()}
        try:
            with PrivateDirectory(self.directory) as here:
                here.write(_COMPLETE, bytes(json_text.encode(_Manifest(FORMAT, BLOCK_BYTES, held))))
        except OSError as error:
            raise NoRoomError(f"{self.directory}: {error.strerror or error}") from error
        self.digests = dict(digests)
        return self.files()

    def files(self) -> tuple[SourceFile, ...]:
        """Return the files that are here, under the names that they have in the repository.

        Raises:
            LoadError: one cannot be looked at.
        """
        found = []
        for name in sorted(self.digests or ()):
            path = self.directory / plain_name(name)
            try:
                found.append(SourceFile(path, name, file_key(path.stat())))
            except OSError as error:
                raise LoadError(f"{path}: {error.strerror}") from error
        return tuple(found)

    def refuse(self, what: str, error: LoadError) -> None:
        """Give it back because its files could not be put here, and say why in the log."""
        self._store.tell(what, error)
        self.end()

    def keep(self) -> None:
        """Have it stay when it is given back: the process ends, and the next one will want it."""
        self._ended = self._ended or self._keep

    def end(self) -> None:
        """Give it back: it is removed, unless :meth:`keep` was called."""
        if not self._ended:
            self._ended = True
            self._store.remove(self.directory)


class ShmStore:
    """What one worker keeps in shared memory. Where something is wrong with that, a line in the log says so."""

    def __init__(
        self,
        place: Path,
        instance: str,
        log: EventLog,
        *,
        keep: bool,
        limit_bytes: int = 0,
        memory: Callable[[], Memory | None] = lambda: None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """``keep``: for the next process of this ``instance``. ``limit_bytes``: for all of it; 0: half of ``place``."""
        self._place = place
        self._weights = own_root(place) / "weights"
        self.kept = keep
        self._own = self._weights / (instance if keep else f"{_PROCESS}{os.getpid()}-{secrets.token_hex(4)}")
        self._log = log
        self._limit_bytes = limit_bytes
        self._memory = memory
        self._wall_s = wall_s
        self._lock_descriptor: int | None = None
        self._turn_descriptor: int | None = None
        self._mutex = threading.Lock()
        self._told: set[str] = set()
        self._used: dict[Path, int] = {}
        """What this process makes or uses, each with the descriptor that holds its lock."""

    def entry(self, files: ModelFiles, found: Sequence[SourceFile], need_bytes: int) -> ShmEntry:
        """Return a place for the version that ``found`` are the files of, complete where it is there already.

        Raises:
            ShmError: there is no room for ``need_bytes``, or the directory cannot be used or trusted.
        """
        try:
            return self._entry(files, found, need_bytes)
        except OSError as error:
            raise ShmError(_reason(error)) from error

    def _entry(self, files: ModelFiles, found: Sequence[SourceFile], need_bytes: int) -> ShmEntry:
        with self._turn():
            path = self._own / _entry_name(files, found)
            for other in self._own.glob(f"{files.name}@{files.version}.*"):
                if other != path and self._is_unused(other):
                    self._removed(other, "its files are others by now")
            keep = self.kept
            if path in self._used:  # the same state is loaded a second time, beside itself
                path, keep = path.with_name(f"{path.name}.{secrets.token_hex(4)}"), False
            elif (digests := _read(path)) is not None:
                self._used[path] = _held(path)
                return ShmEntry(path, digests, self, keep=keep)
            elif path.exists() and not self._is_unused(path):  # another process is making it
                path, keep = path.with_name(f"{path.name}.{secrets.token_hex(4)}"), False
            elif path.exists():
                self._removed(path, "it is not whole")
            room_bytes = self._make_room(need_bytes)
            path.mkdir(0o700)
            self._used[path] = _held(path)
            return ShmEntry(path, None, self, keep=keep, room_bytes=room_bytes)

    def tell(self, what: str, error: OSError | LoadError) -> None:
        """Write in the log why shared memory is not used for ``what``."""
        self._log.warning("load.shm", what=what, error=_reason(error), effect="shared memory is not used")

    def tell_small_pages(self, reason: str) -> None:
        """Write in the log why copies have pages of the usual size, once for each reason."""
        if reason not in self._told:
            self._told.add(reason)
            self._log.info(
                "load.small_pages", reason=reason, effect="copies in shared memory take longer to make and to map"
            )

    def remove(self, directory: Path) -> None:
        """Take an entry away, unless another process uses it; what maps it still goes on."""
        try:
            with self._turn():
                descriptor = self._used.pop(directory, None)
                if descriptor is not None:
                    os.close(descriptor)
                if self._is_unused(directory):
                    shutil.rmtree(directory, ignore_errors=True)
        except OSError as error:
            self.tell(str(directory), error)

    def sweep(self, wanted: set[str]) -> None:
        """Remove what is left over; ``wanted`` are the ``NAME@VERSION`` that this worker was told to serve."""
        try:
            with self._turn():
                for path in self._own.iterdir():
                    name, _, rest = path.name.partition("@")
                    served = f"{name}@{rest.partition('.')[0]}" in wanted
                    left = path.is_dir() and not (served and (path / _COMPLETE).is_file())
                    if left and self._is_unused(path):
                        self._removed(path, "nothing here wants it")
        except OSError as error:
            self.tell("what is left over", error)

    def close(self) -> None:
        """Let other workers know that this one is gone; what is not to be kept is removed."""
        descriptor, self._lock_descriptor = self._lock_descriptor, None
        if descriptor is not None:
            if not self.kept:
                shutil.rmtree(self._own, ignore_errors=True)
            os.close(descriptor)
        turn, self._turn_descriptor = self._turn_descriptor, None
        if turn is not None:
            os.close(turn)
        for held in self._used.values():
            os.close(held)
        self._used.clear()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Be the only thread of all of this instance's processes that makes or removes something. Blocks, for short."""
        with self._mutex:
            descriptor = self._open()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(descriptor, fcntl.LOCK_UN)

    def _is_unused(self, path: Path) -> bool:
        """Whether no process makes or uses it; asked in one's turn, in which nobody else begins to."""
        if path in self._used:
            return False
        try:
            descriptor = _opened(path)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
        return True

    def _open(self) -> int:
        """Make and check the directories, and lock this instance's; returns the descriptor of whose turn it is."""
        if self._turn_descriptor is not None:
            return self._turn_descriptor
        if not self._place.is_dir():
            raise ShmError(f"{self._place}: no such directory; --shm-dir says where there is shared memory")
        for path in (self._weights.parent, self._weights):
            with PrivateDirectory(path):
                pass
        with PrivateDirectory(self._own) as directory:
            self._lock_descriptor = _lock(directory)
            directory.remove(_ORPHAN)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            turn = self._turn_descriptor = os.open(_TURN, flags, 0o600, dir_fd=directory.descriptor)
        for path in self._weights.iterdir():
            if path != self._own:
                self._sweep_other(path)
        return turn

    def _make_room(self, need_bytes: int) -> int:
        """Look whether ``need_bytes`` fit, and remove what nobody uses where that helps; returns how many there are."""
        memory = self._memory()
        if memory is not None and need_bytes > MEMORY_SHARE * memory.free_bytes:
            raise ShmError(
                f"{need_bytes} bytes are more than {MEMORY_SHARE:.0%} of the {memory.free_bytes} that memory has free"
            )
        entries = [path for path in self._own.iterdir() if path.is_dir()]
        sizes = {path: _size_bytes(path) for path in entries}
        unused = sorted((path for path in entries if self._is_unused(path)), key=lambda path: path.stat().st_mtime_ns)
        while (room_bytes := self._room_bytes(sum(sizes.values()))) < need_bytes:
            if not unused:
                raise ShmError(
                    f"{self._own}: no room for {need_bytes} bytes, {need_bytes - room_bytes} too many; "
                    f"raise --shm-limit-bytes or mount a larger {self._place}"
                )
            path = unused.pop(0)
            sizes.pop(path)
            self._removed(path, "room is needed")
        return room_bytes

    def _room_bytes(self, used_bytes: int) -> int:
        status = os.statvfs(self._place)
        limit_bytes = self._limit_bytes or status.f_blocks * status.f_frsize // 2
        return min(limit_bytes - used_bytes, status.f_bavail * status.f_frsize)

    def _sweep_other(self, path: Path) -> None:
        with contextlib.suppress(UntrustedError), PrivateDirectory(path) as directory:
            descriptor = _lock(directory, alone=True)
            if descriptor is None:
                return  # it lives
            try:
                if not path.name.startswith(_PROCESS):
                    now = self._wall_s()
                    try:
                        since = os.stat(_ORPHAN, dir_fd=directory.descriptor, follow_symlinks=False).st_mtime
                    except FileNotFoundError:
                        directory.write(_ORPHAN, b"")
                        os.utime(_ORPHAN, (now, now), dir_fd=directory.descriptor)
                        return
                    if now - since < ORPHAN_S:
                        return
                self._removed(path, "its worker is gone")
            finally:
                os.close(descriptor)

    def _removed(self, path: Path, reason: str) -> None:
        self._log.info("load.shm_removed", path=str(path), bytes=_size_bytes(path), reason=reason)
        shutil.rmtree(path, ignore_errors=True)


def _reason(error: OSError | LoadError) -> str:
    """Return what an error says, with the file that it is of."""
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)


def _lock(directory: PrivateDirectory, *, alone: bool = False) -> int | None:
    """Lock a directory for as long as the descriptor is open; None where ``alone`` is wanted and others have it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(_LOCK, flags, 0o600, dir_fd=directory.descriptor)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        if alone:
            return None
        raise ShmError(f"{directory.path}: another worker is removing it") from None
    return descriptor


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _held(path: Path) -> int:
    """Lock an entry with those who use it, for as long as the descriptor is open."""
    descriptor = _opened(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _entry_name(files: ModelFiles, found: Sequence[SourceFile]) -> str:
    key = xxhash.xxh3_64()
    for file in found:
        key.update(json_text.encode((str(file.path), file.name, *file.key)))
    return f"{files.name}@{files.version}.{key.hexdigest()}"


def _read(path: Path) -> dict[str, FileDigest] | None:
    """Return the digests of a complete entry, or None where it is not there, not complete or not as it was.

    Raises:
        UntrustedError: it is another user's, or open to others.
    """
    if not path.is_dir():
        return None
    with PrivateDirectory(path) as here:
        raw = here.read(_COMPLETE, MAX_MANIFEST_BYTES)
        try:
            manifest = None if raw is None else json_text.decode(raw, _Manifest)
        except ValueError:
            return None
        if manifest is None or (manifest.format, manifest.block_bytes) != (FORMAT, BLOCK_BYTES):
            return None
        for name, held in manifest.files.items():
            try:
                status = (path / plain_name(name)).lstat()
            except (FileNotFoundError, NotADirectoryError):
                return None
            own = status.st_uid == os.geteuid() and stat.S_ISREG(status.st_mode) and not status.st_mode & 0o077
            if not own or status.st_size != held.size_bytes:
                return None
    return {
        name: FileDigest(one.size_bytes, bytes.fromhex(one.blocks), one.sha256) for name, one in manifest.files.items()
    }


def _size_bytes(path: Path) -> int:
    return sum(one.lstat().st_blocks * 512 for one in path.rglob("*") if one.is_file())
