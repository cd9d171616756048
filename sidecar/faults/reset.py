"""The connection to the worker breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.faults.kind import REQUEST, RESPONSE, Kind, Plan
from sidecar.faults.stages import End, Piece, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.faults.rules import FaultRule


class Breaks(Stage):
    """Lets ``left`` bytes pass, and resets the connection as the next one comes."""

    def __init__(self, left: int) -> None:
        self._left = left

    def data(self, data: bytes, at: float) -> Iterable[Piece]:
        """Count it."""
        if len(data) <= self._left:
            self._left -= len(data)
            yield Piece(at, data)
        else:
            yield Piece(at, data[: self._left], End.RESETS)

    def head(self, head: object, at: float) -> Iterable[Piece]:
        """Count it for nothing; where nothing passes, it is what the connection breaks at."""
        yield Piece(at, b"", head=head) if self._left else Piece(at, b"", End.RESETS)


class ResetFault(Kind):
    """In the response nothing but its head may be lost, and the work is done; in the request it never begins."""

    directions = (RESPONSE, REQUEST)
    takes = ("after_bytes",)

    def plan(self, rule: FaultRule, plan: Plan) -> None:
        """Break one direction off, and with it the other."""
        plan.put(rule, self, Breaks(rule.after_bytes or 0))
