"""Naming processes so that a reused pid is never mistaken for the one that was meant."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from signal import Signals


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot (proc(5), field 22); None where there is none.

    Together with the pid it names one process for ever: a reused pid has another start. A zombie counts as none.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            after_name = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if after_name[0] in (b"Z", b"X") else int(after_name[19])


def kill_exactly(pid: int, ticks: int, signum: Signals) -> bool:
    """Send ``signum`` to the process of that pid and start; False where it is gone."""
    if start_ticks(pid) != ticks:
        return False
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return False
    return True
