"""Work that engines do behind a model that serves already: one piece at a time, and after everything else."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from worker.engines import Cancellation

NICE = 10
"""The niceness of a thread that works in the background, where only that thread works on it."""
_LOOK_S = 0.1
_ONE_AT_A_TIME = threading.Lock()


@contextlib.contextmanager
def turn(cancellation: Cancellation) -> Iterator[None]:
    """Wait until no other work goes on in the background: however many models there are, it costs one core at most.

    Raises:
        GivenUpError: ``cancellation`` said so meanwhile.
    """
    while not _ONE_AT_A_TIME.acquire(timeout=_LOOK_S):
        cancellation.wait(0)
    try:
        yield
    finally:
        _ONE_AT_A_TIME.release()


def lower_priority() -> None:
    """Let this thread, and no other, stand behind the rest; Linux counts niceness by thread."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
