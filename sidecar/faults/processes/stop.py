"""Stop: SIGSTOP. Connections stay open, the kernel accepts new ones, nothing answers."""

from __future__ import annotations

import signal
from typing import ClassVar

from sidecar.faults.processes.fault import Memo, ProcessFault, Reach
from sidecar.faults.processes.target import identified, refuse_stopped, send


class Stop:
    """Stops the process until the end."""

    SUBJECT: ClassVar[str] = "running"
    NEEDS: ClassVar[Reach] = Reach.PROCESS
    LEAVES: ClassVar[Reach] = Reach.SOCKET
    PARAMETERS: ClassVar[tuple[str, ...]] = ()
    UNDONE: ClassVar[str] = "the process goes on"
    LASTS: ClassVar[bool] = True

    def begin(self, fault: ProcessFault) -> Memo:
        """Stop it."""
        memo = identified(fault)
        refuse_stopped(fault.kind, memo)
        send(memo, signal.SIGSTOP)
        return memo

    def step(self, memo: Memo, now: float) -> float | None:
        """Nothing is to do in between."""
        return None

    def end(self, memo: Memo) -> bool:
        """Let it go on."""
        return send(memo, signal.SIGCONT)
