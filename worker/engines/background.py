"""Work that engines do behind a model that serves already: one piece at a time, and after everything else."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from worker.engines import GivenUpError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from worker.engines import Cancellation

NICE = 10
"""The niceness of a thread that works in the background, where only that thread works on it."""
_LOOK_S = 0.1
_ONE_AT_A_TIME = threading.Lock()


@contextlib.contextmanager
def turn(cancellation: Cancellation, within_s: float = math.inf) -> Iterator[None]:
    """Wait until no other work goes on in the background: however many models there are, it costs one core at most.

    Raises:
        GivenUpError: ``cancellation`` said so meanwhile, or it took longer than ``within_s``.
    """
    until = time.monotonic() + within_s
    while not _ONE_AT_A_TIME.acquire(timeout=_LOOK_S):
        cancellation.wait(0)
        if time.monotonic() >= until:
            raise GivenUpError(f"other work in the background took over {within_s:g} s")
    try:
        yield
    finally:
        _ONE_AT_A_TIME.release()


def lower_priority() -> None:
    """Let this thread, and no other, stand behind the rest; Linux counts niceness by thread."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
