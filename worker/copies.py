"""One loading of a model version: what came out of its files, and how many are using it at this moment."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker.engines import Cancellation, LoadedModel
    from worker.loading import Loaded
    from worker.loading.guard import Guard
    from worker.stages import Stages
    from worker.store import ModelFiles, ShapeClass


class LoadedCopy:
    """A proven model and the files it was made of. Usable from any thread.

    It is closed by whoever retired it, once nobody uses it any more: a swap takes nothing from under a run.
    """

    def __init__(
        self, files: ModelFiles, model: LoadedModel, loaded: Loaded, stages: Stages, guard: Guard | None = None
    ) -> None:
        """``stages``: what making it took. ``guard``: keeps its files from being changed under it."""
        self.files = files
        self.model = model
        self.loaded = loaded
        self.stages = stages
        self.guard = guard
        self.running: set[Cancellation] = set()
        """What ends the runs that are under way for requests."""
        self.proven: tuple[ShapeClass, ...] = ()
        """What its warm-up ran."""
        self._ran = False
        self._lock = threading.Lock()
        self._users = 0
        self._retired = False
        self._on_unused: Callable[[], None] | None = None

    @property
    def users(self) -> int:
        """How many use it now."""
        return self._users

    def take(self) -> bool:
        """Begin to use it; False where it is retired: there is another one, or none."""
        with self._lock:
            if self._retired:
                return False
            self._users += 1
            return True

    def take_along(self) -> bool:
        """Begin to use it for somebody who does already, retired or not; False where nobody does."""
        with self._lock:
            if not self._users:
                return False
            self._users += 1
            return True

    def give_back(self) -> None:
        """End a use that :meth:`take` began."""
        with self._lock:
            self._users -= 1
            unused = self._on_unused if self._users == 0 else None
        if unused is not None:
            unused()

    def first_run(self) -> bool:
        """Note that it is run for a request; True for the first."""
        if self._ran:
            return False
        with self._lock:
            first, self._ran = not self._ran, True
            return first

    def cancel_runs(self) -> None:
        """Have the runs that are under way end; nobody begins one any more."""
        for cancellation in list(self.running):
            cancellation.cancel()

    def retire(self, on_unused: Callable[[], None]) -> None:
        """Let nobody begin to use it any more; calls ``on_unused`` once when the last has ended, in that one's thread.

        At once where nobody uses it.
        """
        with self._lock:
            self._retired = True
            if self._users:
                self._on_unused = on_unused
                return
        on_unused()

    def close(self) -> None:
        """Give back what it holds; may block. It is retired and unused."""
        with contextlib.nullcontext() if self.guard is None else self.guard.closing():
            try:
                self.model.unload()
            finally:
                self.loaded.release()
