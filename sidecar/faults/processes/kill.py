"""Kill: SIGKILL, as a crash."""

from __future__ import annotations

import signal
from typing import ClassVar

from sidecar.faults.processes.fault import Memo, ProcessFault, Reach
from sidecar.faults.processes.target import identified, send


class Kill:
    """Ends the process at once. It is over then: whoever started the process starts it again, or nobody does."""

    SUBJECT: ClassVar[str] = "running"
    NEEDS: ClassVar[Reach] = Reach.PROCESS
    LEAVES: ClassVar[Reach] = Reach.NOTHING
    PARAMETERS: ClassVar[tuple[str, ...]] = ()
    UNDONE: ClassVar[str] = "not undone: who started the process starts it again (warmroute up does)"
    LASTS: ClassVar[bool] = False

    def begin(self, fault: ProcessFault) -> Memo:
        """Kill it."""
        memo = identified(fault)
        send(memo, signal.SIGKILL)
        return memo

    def step(self, memo: Memo, now: float) -> float | None:
        """Nothing goes on."""
        return None

    def end(self, memo: Memo) -> bool:
        """There is nothing to undo."""
        return False
