"""What goes one way is lost without a sign."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.faults.kind import REQUEST, RESPONSE, Kind, Plan
from sidecar.faults.stages import Piece, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.faults.rules import FaultRule


class Swallows(Stage):
    """Lets ``left`` bytes pass, and nothing more: no end either."""

    def __init__(self, left: int) -> None:
        self._left = left

    def data(self, data: bytes, at: float) -> Iterable[Piece]:
        """Count it."""
        passed, self._left = data[: self._left], max(0, self._left - len(data))
        if passed:
            yield Piece(at, passed)

    def head(self, head: object, at: float) -> Iterable[Piece]:
        """Count it for nothing; where nothing passes, neither does it."""
        if self._left:
            yield Piece(at, b"", head=head)

    def ends(self, at: float) -> Iterable[Piece]:
        """Say nothing of it."""
        return ()


class BlackHoleFault(Kind):
    """In the request the worker never hears of it; in the response it does its work, and nobody hears of that."""

    directions = (REQUEST, RESPONSE)
    takes = ("after_bytes",)

    def plan(self, rule: FaultRule, plan: Plan) -> None:
        """Lose one direction; where nothing at all is to arrive, no connection is made."""
        if self.direction_of(rule) is REQUEST and not rule.after_bytes:
            plan.nowhere = True
        plan.put(rule, self, Swallows(rule.after_bytes or 0))
