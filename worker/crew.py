"""Threads that are started and not waited for.

``threading.Thread.start()`` waits for the new thread's first word, and for ever where that thread finds no memory for
its first step. Here whoever starts one goes on, and finds out later whether any has begun.
"""

from __future__ import annotations

import _thread
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

NEVER_BEGAN_S: Final = 1.0
"""A thread that said nothing for so long found no memory to begin with."""


class Crew:
    """The threads of one piece of work. They have no names, and do not keep the process from ending."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: monotonic seconds."""
        self._clock = clock
        self._changed = threading.Condition()
        self._started = self._begun = self._ended = 0
        self._since = 0.0
        self._closed = False

    def start(self, work: Callable[[], None]) -> None:
        """Have a thread do ``work``, which raises nothing.

        Raises:
            MemoryError: none can be started.
        """
        try:
            _thread.start_new_thread(self._run, (work,))
        except RuntimeError as error:
            raise MemoryError(str(error)) from error
        self._since = self._clock()
        self._started += 1

    def _run(self, work: Callable[[], None]) -> None:
        with suppress(MemoryError):  # Python would write of it to standard error, between the lines of the log
            self._work(work)

    def _work(self, work: Callable[[], None]) -> None:
        with self._changed:
            if self._closed:
                return
            self._begun += 1
        try:
            work()
        finally:
            with self._changed:
                self._ended += 1
                self._changed.notify_all()

    @property
    def is_over(self) -> bool:
        """Nobody is at work, or will be: all that have begun have ended, or none has begun for too long."""
        if self._begun:
            return self._ended == self._begun
        return self._clock() - self._since > NEVER_BEGAN_S

    def wait(self, timeout_s: float) -> bool:
        """Wait until all that were started have ended; False where that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: self._ended == self._started, timeout_s)

    def end(self, timeout_s: float | None = None) -> bool:
        """Have those that have not begun do nothing, and wait for the others; False where that takes longer."""
        with self._changed:
            self._closed = True
            return self._changed.wait_for(lambda: self._ended == self._begun, timeout_s)
