"""Full disk: the process can make no file longer, wherever it is."""

from __future__ import annotations

import resource
import signal
from typing import ClassVar

from sidecar.faults.processes.fault import Memo, ProcessFault, ProcessFaultError, Reach
from sidecar.faults.processes.limits import limit, restore
from sidecar.faults.processes.target import identified, status_of


class FullDisk:
    """Sets the process's limit of file size (RLIMIT_FSIZE) to nothing: writes to files fail with EFBIG.

    So no file system is filled, which others write to as well. The kernel sends SIGXFSZ with each failure, which Python
    ignores and others may die of; a process that would is refused.
    """

    SUBJECT: ClassVar[str] = "files"
    NEEDS: ClassVar[Reach] = Reach.PROCESS
    LEAVES: ClassVar[Reach] = Reach.ANSWERS
    PARAMETERS: ClassVar[tuple[str, ...]] = ()
    UNDONE: ClassVar[str] = "the process can write files again"
    LASTS: ClassVar[bool] = True

    def begin(self, fault: ProcessFault) -> Memo:
        """Set the limit."""
        memo = identified(fault)
        pid = int(memo["pid"])
        handled = int(status_of(pid, "SigIgn") or "0", 16) | int(status_of(pid, "SigCgt") or "0", 16)
        if not handled & 1 << (signal.SIGXFSZ - 1):
            raise ProcessFaultError(f"{fault.kind}: pid {pid}: would die of SIGXFSZ, which it does not ignore")
        return limit(fault.kind, memo, resource.RLIMIT_FSIZE, 0)

    def step(self, memo: Memo, now: float) -> float | None:
        """Nothing goes on."""
        return None

    def end(self, memo: Memo) -> bool:
        """Give it back the limit that it had."""
        return restore(memo)
