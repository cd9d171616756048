"""An answer ends before all of its body came."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.faults.kind import Kind, Plan
from sidecar.faults.stages import End, Piece, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.faults.framing import Reader
    from sidecar.faults.rules import FaultRule


class Truncates(Stage):
    """Lets ``left`` bytes of the body pass, and closes the connection in order as the next one comes."""

    def __init__(self, left: int, reader: Reader) -> None:
        self._left = left
        self._reader = reader

    def data(self, data: bytes, at: float) -> Iterable[Piece]:
        """Count what of it is body."""
        passed = 0
        for part, body in self._reader.read(data):
            if body and len(part) > self._left:
                yield Piece(at, data[: passed + self._left], End.CLOSES)
                return
            self._left -= len(part) if body else 0
            passed += len(part)
        yield Piece(at, data)


class TruncateFault(Kind):
    """A body shorter than its head says, or without its last chunk; a call's answer without its status."""

    takes = ("after_bytes",)

    def plan(self, rule: FaultRule, plan: Plan) -> None:
        """Cut the answer short."""
        plan.put(rule, self, Truncates(rule.after_bytes or 0, plan.reader()))
