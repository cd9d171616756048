"""The state store is gone: killed, so what it held is lost, and for a while not started again."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import ClassVar

from sidecar.faults.processes.fault import Memo, ProcessFault, ProcessFaultError, Reach
from sidecar.faults.processes.servers import socket_of
from sidecar.faults.processes.target import identified, send
from sidecar.up.hold import hold, let_go


class StoreStop:
    """Kills the server. ``warmroute up`` waits with the next one until the end, where ``url`` names its store.

    Until then callers are refused; the next one is empty.
    """

    SUBJECT: ClassVar[str] = "running"
    NEEDS: ClassVar[Reach] = Reach.PROCESS
    LEAVES: ClassVar[Reach] = Reach.NOTHING
    PARAMETERS: ClassVar[tuple[str, ...]] = ()
    UNDONE: ClassVar[str] = "the server is not started again by this: warmroute up starts its own, empty"
    LASTS: ClassVar[bool] = True

    def begin(self, fault: ProcessFault) -> Memo:
        """Have it stay away, and kill it."""
        memo = identified(fault)
        path = socket_of(fault.url)
        if path is not None:
            try:
                hold(path)
            except OSError as error:
                raise ProcessFaultError(f"{fault.kind}: {error.filename}: {error.strerror}") from error
            memo["socket"] = str(path)
        send(memo, signal.SIGKILL)
        return memo

    def step(self, memo: Memo, now: float) -> float | None:
        """Nothing goes on."""
        return None

    def end(self, memo: Memo) -> bool:
        """Let it come back."""
        return "socket" in memo and let_go(Path(str(memo["socket"])))
