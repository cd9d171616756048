"""Which process a fault may touch, and how it is told from any other."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from sidecar.faults.processes.fault import Memo, ProcessFault, ProcessFaultError
from sidecar.pids import kill_exactly, start_ticks


def identified(fault: ProcessFault) -> Memo:
    """Return pid and start of the process that ``fault`` names, where it may be touched.

    Raises:
        ProcessFaultError: there is none, it is another than was meant, it belongs to another user, or it is one of
            those that must end the fault again.
    """
    kind, pid = fault.kind, fault.pid
    if pid <= 1 or pid in (os.getpid(), os.getppid()):
        raise ProcessFaultError(f"{kind}: pid {pid}: name the process of a worker or of a state store")
    ticks = start_ticks(pid)
    if ticks is None:
        raise ProcessFaultError(f"{kind}: pid {pid}: there is no such process")
    if fault.ticks and fault.ticks != ticks:
        raise ProcessFaultError(f"{kind}: pid {pid}: the process that was meant is gone, another has its pid")
    user = _user_of(pid)
    if user != os.geteuid():
        raise ProcessFaultError(f"{kind}: pid {pid}: belongs to user {user}, not to the one who asks ({os.geteuid()})")
    return {"pid": pid, "ticks": ticks}


def send(memo: Memo, signum: signal.Signals) -> bool:
    """Send a signal to the process of ``memo``; False where it is gone."""
    return kill_exactly(int(memo["pid"]), int(memo["ticks"]), signum)


def refuse_stopped(kind: str, memo: Memo) -> None:
    """Refuse a process that somebody has stopped already: the end of the fault would let it go on.

    Raises:
        ProcessFaultError: it is stopped.
    """
    if status_of(int(memo["pid"]), "State").startswith(("T", "t")):
        raise ProcessFaultError(
            f"{kind}: pid {memo['pid']}: is stopped already (kill -CONT {memo['pid']} lets it go on)"
        )


def _user_of(pid: int) -> int | None:
    """Return the effective user of a process, None where it is gone."""
    ids = status_of(pid, "Uid").split()
    return int(ids[1]) if len(ids) > 1 else None


def status_of(pid: int, field: str) -> str:
    """Return one field of /proc/PID/status (proc(5)), "" where the process is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return value.strip()
    return ""
