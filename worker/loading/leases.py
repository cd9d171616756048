"""Keeps what models are mapped from as it is for as long as they are loaded, whoever opens it for writing.

A mapped file that is cut short ends its process with SIGBUS, and one that is rewritten changes what a model computes.
So each file that an engine keeps mapped has a read lease (fcntl(2), ``F_RDLCK``) on it: the kernel has whoever opens it
for writing, or truncates it, wait, for ``/proc/sys/fs/lease-break-time`` at most, and tells this process by SIGIO. What
is mapped is then moved into memory of its own (:mod:`worker.loading.own_memory`), the lease is given back, and
the writer goes on; the model has not noticed. Where it cannot be moved the model is taken out and closed before that.
"""

from __future__ import annotations

import asyncio
import fcntl
import signal
import threading
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from worker.engines import Cancellation, GivenUpError, told
from worker.engines.background import turn
from worker.loading.guard import REMEDY, Guard
from worker.loading.own_memory import FileId, mapped_areas, move

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from worker.loading import Loaded
    from worker.log import EventLog
    from worker.memory import Memory
    from worker.store import ModelFiles

MEMORY_SHARE: Final = 0.8
"""Of the free memory, that what is mapped may take."""
_BREAK_TIME: Final = Path("/proc/sys/fs/lease-break-time")
_USUAL_BREAK_S: Final = 45.0
_END_S: Final = 1.0


def can_guard() -> bool:
    """Return whether this system has leases at all."""
    return hasattr(fcntl, "F_SETLEASE") and hasattr(signal, "SIGIO")


class Leases:
    """All that this process has. A signal tells of what is opened, and a thread of its own does what waits."""

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
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._thread = threading.Thread(target=self._attend, name="guard", daemon=True)
        self._closed = False
        self.is_at_work = False
        """Somebody waits to write."""
        self.kept = self.taken_out = self.failed_loads = 0
        """What became of files that somebody opened for writing, by model."""

    @property
    def held(self) -> int:
        """How many there are."""
        with self._lock:
            return sum(guard.held for guard in self._guards)

    def heed(self) -> None:
        """Hear of what is opened, on the running loop, from now on. In the main thread."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGIO, self.look)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGIO})  # whoever started this process may have blocked it
        self._thread.start()

    def guard(self, files: ModelFiles, loaded: Loaded, cancellation: Cancellation) -> Guard | None:
        """Return what guards the files of a load; None where they are not used from where they lie."""
        if loaded.place is not None or not loaded.files:
            return None
        return Guard(self, files, loaded, cancellation)

    def close(self) -> None:
        """Give all of them back: nothing is heard of after that. The process ends."""
        self._closed = True
        self.look()
        with self._lock:
            guards, self._guards = list(self._guards), set()
        for guard in guards:
            guard.release()
        self._thread.join(_END_S)

    # --- what a guard has to say ------------------------------------------------------------------------------------

    def add(self, guard: Guard) -> None:
        """Look after a guard's leases from now on."""
        with self._lock:
            self._guards.add(guard)

    def look(self) -> None:
        """Have it looked whether one is to be given back, in any thread."""
        self._wake.put(None)

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
            remedy=f"{REMEDY}; or give --shm",
        )

    # --- when one is opened for writing -----------------------------------------------------------------------------

    def _attend(self) -> None:
        """Let in whoever waits, whenever there is somebody; in a thread that is there before it is needed."""
        while True:
            self._wake.get()
            if self._closed:
                return
            while broken := self._broken():
                self.is_at_work = True
                try:
                    self._let_in(broken)
                except BaseException as error:  # noqa: BLE001 - whatever broke (an engine's detach), the time goes on
                    for file in broken:
                        self._take_out(file, f"{type(error).__name__}: {told(error)}")
            self.is_at_work = False

    def _broken(self) -> dict[FileId, Path]:
        with self._lock:
            guards = list(self._guards)
        return {file: path for guard in guards for file, path in guard.broken().items()}

    def _let_in(self, broken: Mapping[FileId, Path]) -> None:
        """Have whoever waits for ``broken`` files go on, once that harms no model."""
        began = time.monotonic()
        with ExitStack() as held:
            try:
                guards = self._still(broken, began, held)
            except GivenUpError:
                why = "what maps it was at work too long"
                for file in broken:
                    self._take_out(file, why)
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
                    self._take_out(file, "its engine cannot have it moved into memory")
                    return
                memory = self._memory()
                if memory is not None and size_bytes > MEMORY_SHARE * memory.free_bytes:
                    why = (
                        f"{size_bytes} bytes are more than {MEMORY_SHARE:.0%} of the {memory.free_bytes} that are free"
                    )
                    self._take_out(file, f"it cannot be kept in memory: {why}")
                    return
            for guard in guards:
                if guard.detach is not None:
                    guard.detach()
            move(file, path)
        except OSError as error:
            self._take_out(file, f"it cannot be kept in memory: {error.strerror or error}")
            return
        for guard in guards:
            if size_bytes:
                self.kept += 1
                self._log.warning(
                    "model.file_changing",
                    **guard.about(file),
                    outcome="kept",
                    bytes=size_bytes,
                    seconds=round(time.monotonic() - began, 3),
                    remedy=REMEDY,
                )
                guard.kept = (
                    f"{guard.path_of(file)}: opened for writing while it is served; "
                    f"what was loaded serves on from memory of its own; {REMEDY}"
                )
                self._on_loop(guard.told)
            guard.release(file)

    def _take_out(self, file: FileId, why: str) -> None:
        """Have the models that have a file taken out; they give the lease back when they are closed."""
        with self._lock:
            guards = [guard for guard in self._guards if file in guard.files]
        for guard in guards:
            guard.pass_over(file)
            guard.give_up_load((file,))
            if guard.ended or guard.loading:
                continue
            self.taken_out += 1
            self._log.error("model.file_changing", **guard.about(file), outcome="taken_out", reason=why, remedy=REMEDY)
            guard.lost = f"{guard.path_of(file)}: is being changed in place while it is served, and {why}; {REMEDY}"
            self._on_loop(guard.told)
            self._on_loop(partial(self._end_runs_later, guard))

    def _end_runs_later(self, guard: Guard) -> None:
        asyncio.get_running_loop().call_later(self._patience_s, guard.cancel_runs)

    def _on_loop(self, call: Callable[[], object]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # it is closed: the process ends
                self._loop.call_soon_threadsafe(call)

    def load_given_up(self, guard: Guard, file: FileId) -> None:
        """Count and tell a load that was given up because of ``file``."""
        self.failed_loads += 1
        self._log.error("model.file_changing", **guard.about(file), outcome="load_failed", remedy=REMEDY)


def _break_s() -> float:
    """Return how long the kernel has writers wait; it may be told not to end that at all."""
    try:
        return float(_BREAK_TIME.read_text()) or _USUAL_BREAK_S
    except (OSError, ValueError):
        return _USUAL_BREAK_S
