"""Keeps what models are mapped from as it is for as long as they are loaded, whoever opens it for writing.

A mapped file that is cut short ends its process with SIGBUS, and one that is rewritten changes what a model computes.
So each file that an engine keeps mapped has a read lease (fcntl(2), ``F_RDLCK``) on it: the kernel has whoever opens it
for writing, or truncates it, wait, for ``/proc/sys/fs/lease-break-time`` at most, and tells this process by SIGIO. What
is mapped is then moved into memory of its own (:mod:`worker.loading.own_memory`), the lease is given back, and
the writer goes on; the model has not noticed. Where it cannot be moved the model is taken out and closed before that.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from worker.engines import Cancellation, Detachable, GivenUpError
from worker.engines.background import turn
from worker.loading import LoadError
from worker.loading.own_memory import FileId, mapped_areas, move

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from worker.engines import LoadedModel
    from worker.loading import Loaded
    from worker.loading.version_files import SourceFile
    from worker.log import EventLog
    from worker.memory import Memory
    from worker.store import ModelFiles

MOST_FILES: Final = 256
"""Of one version, the largest first: each takes a descriptor."""
MEMORY_SHARE: Final = 0.8
"""Of the free memory, that what is mapped may take."""
_BREAK_TIME: Final = Path("/proc/sys/fs/lease-break-time")
_USUAL_BREAK_S: Final = 45.0
_REMEDY: Final = "put a new version together beside its place and rename it, never write into one that is served"
_WHY: Final = {
    errno.EAGAIN: "it is open for writing",
    errno.EACCES: "it belongs to another user than this worker's, which has not CAP_LEASE",
    errno.EINVAL: "its file system has no leases, or they are off",
}


def can_guard() -> bool:
    """Return whether this system has leases at all."""
    return hasattr(fcntl, "F_SETLEASE") and hasattr(signal, "SIGIO")


class Leases:
    """All that this process has. Its threads do what waits; it is told by a signal, on the event loop."""

    def __init__(
        self,
        log: EventLog,
        memory: Callable[[], Memory | None],
        break_s: float | None = None,
    ) -> None:
        """``memory``: what is there now. ``break_s``: how long the kernel has writers wait; None: as it says."""
        self._log = log
        self._memory = memory
        self._patience_s = (_break_s() if break_s is None else break_s) / 3
        self._lock = threading.Lock()
        self._guards: set[Guard] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work: asyncio.Task[None] | None = None
        self._again = False
        self.kept = self.taken_out = self.failed_loads = 0
        """What became of files that somebody opened for writing, by model."""

    @property
    def held(self) -> int:
        """How many there are."""
        with self._lock:
            return sum(guard.held for guard in self._guards)

    @property
    def is_at_work(self) -> bool:
        """Whether somebody waits to write."""
        return self._work is not None

    def heed(self) -> None:
        """Hear of what is opened, on the running loop, from now on. In the main thread."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGIO, self._heard)

    def guard(self, files: ModelFiles, loaded: Loaded, cancellation: Cancellation) -> Guard | None:
        """Return what guards the files of a load; None where they are not used from where they lie."""
        if loaded.place is not None or not loaded.files:
            return None
        return Guard(self, files, loaded, cancellation)

    def close(self) -> None:
        """Give all of them back: nothing is heard of after that."""
        with self._lock:
            guards, self._guards = list(self._guards), set()
        for guard in guards:
            guard.release()

    # --- what a guard has to say ------------------------------------------------------------------------------------

    def add(self, guard: Guard) -> None:
        """Look after a guard's leases from now on."""
        with self._lock:
            self._guards.add(guard)

    def look(self) -> None:
        """Look whether one is to be given back, in any thread: it may have been opened before that was looked for."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._heard)

    def remove(self, guard: Guard) -> None:
        """Look after a guard no more."""
        with self._lock:
            self._guards.discard(guard)

    def unguarded(self, files: ModelFiles, why: Mapping[Path, str]) -> None:
        """Say which files are mapped and can be cut."""
        path = next(iter(why))
        self._log.info(
            "model.not_guarded",
            model=files.name,
            version=files.version,
            file=str(path),
            files=len(why),
            reason=why[path],
            remedy=f"{_REMEDY}; or give --shm",
        )

    # --- when one is opened for writing -----------------------------------------------------------------------------

    def _heard(self) -> None:
        if self._work is not None:
            self._again = True
        elif self._broken():
            self._again = False
            self._work = asyncio.create_task(asyncio.to_thread(self._let_in_all), name="files opened for writing")
            self._work.add_done_callback(self._done)

    def _done(self, work: asyncio.Task[None]) -> None:
        self._work = None
        if not work.cancelled() and work.exception() is not None:
            self._log.error("model.file_changing", error=f"{type(work.exception()).__name__}: {work.exception()}")
        if self._again:
            self._heard()

    def _broken(self) -> dict[FileId, Path]:
        with self._lock:
            guards = list(self._guards)
        return {file: path for guard in guards for file, path in guard.broken().items()}

    def _let_in_all(self) -> None:
        while broken := self._broken():
            self._let_in(broken)

    def _let_in(self, broken: Mapping[FileId, Path]) -> None:
        """Have whoever waits for ``broken`` files go on, once that harms no model."""
        began = time.monotonic()
        with ExitStack() as held:
            try:
                guards = self._still(broken, began, held)
            except GivenUpError:
                why = "what maps it was at work too long"
                for file, path in broken.items():
                    self._take_out(file, path, why)
                return
            for guard in guards:
                guard.let_go_of_own(broken)
            for file, path in broken.items():
                self._move(file, path, [guard for guard in guards if file in guard.files], began)

    def _still(self, broken: Mapping[FileId, Path], began: float, held: ExitStack) -> list[Guard]:
        """Wait until nobody maps or unmaps ``broken`` files, and keep it so until ``held`` ends; returns who has them.

        Loads of them that take longer than a third of the time that there is are given up.

        Raises:
            GivenUpError: that took more than half of the time.
        """
        until = began + self._patience_s
        held.enter_context(turn(Cancellation(), self._patience_s))
        with self._lock:
            guards = [guard for guard in self._guards if not broken.keys().isdisjoint(guard.files)]
        for guard in guards:
            if not guard.still.acquire(timeout=max(0.0, until - time.monotonic())):
                for one in guards:
                    one.give_up_load(broken)
                if not guard.still.acquire(timeout=self._patience_s / 2):
                    raise GivenUpError("it is still at work")
            held.callback(guard.still.release)
        return [guard for guard in guards if not guard.ended]

    def _move(self, file: FileId, path: Path, guards: list[Guard], began: float) -> None:
        try:
            size_bytes = sum(area.size_bytes for area in mapped_areas({file: path}).get(file, ()))
            if size_bytes:
                if any(guard.detach is None for guard in guards):
                    self._take_out(file, path, "its engine cannot have it moved into memory")
                    return
                memory = self._memory()
                if memory is not None and size_bytes > MEMORY_SHARE * memory.free_bytes:
                    why = (
                        f"{size_bytes} bytes are more than {MEMORY_SHARE:.0%} of the {memory.free_bytes} that are free"
                    )
                    self._take_out(file, path, f"it cannot be kept in memory: {why}")
                    return
            for guard in guards:
                if guard.detach is not None:
                    guard.detach()
            move(file, path)
        except OSError as error:
            self._take_out(file, path, f"it cannot be kept in memory: {error.strerror or error}")
            return
        for guard in guards:
            if size_bytes:
                self.kept += 1
                self._log.warning(
                    "model.file_changing",
                    **guard.about(path),
                    outcome="kept",
                    bytes=size_bytes,
                    seconds=round(time.monotonic() - began, 3),
                    remedy=_REMEDY,
                )
                guard.say(
                    self._loop,
                    kept=f"{path}: opened for writing while it is served; what was loaded serves on from memory of its "
                    f"own; {_REMEDY}",
                )
            guard.release(file)

    def _take_out(self, file: FileId, path: Path, why: str) -> None:
        """Have the models that have a file taken out; they give the lease back when they are closed."""
        with self._lock:
            guards = [guard for guard in self._guards if file in guard.files]
        for guard in guards:
            guard.pass_over(file)
            guard.give_up_load({file: path})
            if guard.ended or guard.loading:
                continue
            self.taken_out += 1
            self._log.error("model.file_changing", **guard.about(path), outcome="taken_out", reason=why, remedy=_REMEDY)
            guard.say(self._loop, lost=f"{path}: is being changed in place while it is served, and {why}; {_REMEDY}")
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.call_later, self._patience_s, guard.cancel_runs)

    def load_given_up(self, guard: Guard, path: Path) -> None:
        """Count and tell a load that was given up because of ``path``."""
        self.failed_loads += 1
        self._log.error("model.file_changing", **guard.about(path), outcome="load_failed", remedy=_REMEDY)


class Guard:
    """The leases of one loading of a model version. :meth:`settle` ends the load, :meth:`closing` all of it."""

    def __init__(self, leases: Leases, files: ModelFiles, loaded: Loaded, cancellation: Cancellation) -> None:
        self.still = threading.Lock()
        """Held by whoever has the engine map or unmap the files, or moves what is mapped."""
        self.still.acquire()  # as a load has, until it is settled
        self.files: dict[FileId, SourceFile] = {
            FileId(file.key.device, file.key.inode): file for file in loaded.files if file.size_bytes
        }
        self.loading = True
        self.ended = False
        self.detach: Callable[[], None] | None = None
        """Has the model begin nothing more with the files; None: it cannot do without them."""
        self.kept = self.lost = self.given_up = ""
        """What there is to say: what it serves from memory, why it must not serve on, why its load was given up."""
        self.cancel_runs: Callable[[], None] = _nothing
        self._told: Callable[[], None] = _nothing
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
        self._leases.look()

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
        self.cancel_runs, self._told = cancel_runs, told
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

    def let_go_of_own(self, files: Mapping[FileId, Path]) -> None:
        """Unmap what is mapped here only to keep it in memory."""
        paths = {self.files[file].path for file in files if file in self.files}
        for mapping in self._loaded.mappings:
            if mapping.path in paths:
                mapping.close()

    def give_up_load(self, files: Mapping[FileId, Path]) -> None:
        """Give up a load that is under way."""
        path = next((path for file, path in files.items() if file in self.files), None)
        if self.loading and path is not None and not self.given_up:
            self.given_up = f"{path}: is being changed in place while it is loaded; {_REMEDY}"
            self._leases.load_given_up(self, path)
            self._cancellation.cancel()

    def say(self, loop: asyncio.AbstractEventLoop | None, *, kept: str = "", lost: str = "") -> None:
        """Say what became of it to whoever serves it."""
        self.kept, self.lost = kept or self.kept, lost or self.lost
        if loop is not None:
            loop.call_soon_threadsafe(self._told)

    def about(self, path: Path) -> dict[str, str]:
        """Return what an event says first."""
        return {"model": self._of.name, "version": self._of.version, "file": str(path)}


def _nothing() -> None:
    """There is nothing to do."""


def _break_s() -> float:
    """Return how long the kernel has writers wait; it may be told not to end that at all."""
    try:
        return float(_BREAK_TIME.read_text()) or _USUAL_BREAK_S
    except (OSError, ValueError):
        return _USUAL_BREAK_S
