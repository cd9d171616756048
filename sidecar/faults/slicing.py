"""What was sent in one piece comes in many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.faults.kind import MOST_PIECES, REQUEST, RESPONSE, Kind, Plan
from sidecar.faults.stages import End, Piece, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.faults.rules import FaultRule


class Slices(Stage):
    """Lets ``size`` bytes pass at a time, ``gap_s`` apart."""

    def __init__(self, size: int, gap_s: float) -> None:
        self._size = size
        self._gap_s = gap_s
        self._next_at = float("-inf")

    def data(self, data: bytes, at: float) -> Iterable[Piece]:
        """Cut it up."""
        size = max(self._size, len(data) // MOST_PIECES)
        for start in range(0, len(data), size):
            at = max(at, self._next_at)
            self._next_at = at + self._gap_s
            yield Piece(at, data[start : start + size])

    def ends(self, at: float) -> Iterable[Piece]:
        """Behind the last of them."""
        yield Piece(max(at, self._next_at - self._gap_s), b"", End.ENDS)


class SlicingFault(Kind):
    """Pieces that end anywhere: in a field, in a chunk's size, in a character."""

    directions = (RESPONSE, REQUEST)
    takes = ("piece_bytes", "delay_ms")
    needs = ("piece_bytes",)

    def plan(self, rule: FaultRule, plan: Plan) -> None:
        """Cut one direction up."""
        plan.put(rule, self, Slices(rule.piece_bytes or 1, (rule.delay_ms or 0.0) / 1000))
