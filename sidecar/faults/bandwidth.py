"""Bytes pass no faster than at a rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.faults.kind import MOST_PIECES, REQUEST, RESPONSE, Kind, Plan
from sidecar.faults.stages import End, Piece, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.faults.rules import FaultRule

STEPS_PER_S = 50
"""Pieces a second, where there is more to pass than a byte in each."""


class Narrow(Stage):
    """Lets ``rate`` bytes pass a second."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free_at = float("-inf")

    def data(self, data: bytes, at: float) -> Iterable[Piece]:
        """Let it pass in steps."""
        step = max(1, int(self._rate / STEPS_PER_S), len(data) // MOST_PIECES)
        for start in range(0, len(data), step):
            part = data[start : start + step]
            self._free_at = max(at, self._free_at) + len(part) / self._rate
            yield Piece(self._free_at, part)

    def ends(self, at: float) -> Iterable[Piece]:
        """Behind what is still to pass."""
        yield Piece(max(at, self._free_at), b"", End.ENDS)


class BandwidthFault(Kind):
    """A narrow way, of each attempt for itself."""

    directions = (RESPONSE, REQUEST)
    takes = ("bytes_per_s",)
    needs = ("bytes_per_s",)

    def plan(self, rule: FaultRule, plan: Plan) -> None:
        """Narrow one direction."""
        plan.put(rule, self, Narrow(rule.bytes_per_s or 1.0))
