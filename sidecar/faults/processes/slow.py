"""Slow: the process runs for a share of the time only, stopped and let go in turn."""

from __future__ import annotations

import signal
from typing import ClassVar

from sidecar.faults.processes.fault import Memo, ProcessFault, ProcessFaultError, Reach
from sidecar.faults.processes.target import identified, refuse_stopped, send

PERIOD_S = 0.04
"""Of one turn: long beside a switch of processes, short beside what a caller waits for."""
DEFAULT_SHARE = 0.25
MIN_SHARE, MAX_SHARE = 0.02, 0.95


class Slow:
    """Has the process run for ``share`` of the time (0.25 where nothing is said: four times slower)."""

    SUBJECT: ClassVar[str] = "running"
    NEEDS: ClassVar[Reach] = Reach.PROCESS
    LEAVES: ClassVar[Reach] = Reach.ANSWERS
    PARAMETERS: ClassVar[tuple[str, ...]] = ("share",)
    UNDONE: ClassVar[str] = "the process goes on at its own speed"
    LASTS: ClassVar[bool] = True

    def begin(self, fault: ProcessFault) -> Memo:
        """Stop it for the first time."""
        share = DEFAULT_SHARE if fault.share is None else fault.share
        if not MIN_SHARE <= share <= MAX_SHARE:  # false of a NaN too
            raise ProcessFaultError(f"{fault.kind}: share {share:g}: must be from {MIN_SHARE:g} to {MAX_SHARE:g}")
        memo = identified(fault)
        refuse_stopped(fault.kind, memo)
        send(memo, signal.SIGSTOP)
        return memo | {"share": share, "stopped": 1, "due": 0.0}

    def step(self, memo: Memo, now: float) -> float | None:
        """Stop it or let it go, where that is due."""
        due = float(memo["due"])
        if due == 0.0:  # it has just begun, stopped
            due = memo["due"] = now + self._lasts(memo)
        if now < due:
            return due
        memo["stopped"] = 1 - int(memo["stopped"])
        if not send(memo, signal.SIGSTOP if memo["stopped"] else signal.SIGCONT):
            return None
        due = memo["due"] = now + self._lasts(memo)
        return due

    def _lasts(self, memo: Memo) -> float:
        share = float(memo["share"])
        return PERIOD_S * (1 - share if memo["stopped"] else share)

    def end(self, memo: Memo) -> bool:
        """Let it go on."""
        return send(memo, signal.SIGCONT)
