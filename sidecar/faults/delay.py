"""Everything that goes one way comes late, by the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.faults.kind import REQUEST, RESPONSE, Kind, Plan, delay_s
from sidecar.faults.stages import End, Piece, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.faults.rules import FaultRule


class Late(Stage):
    """Lets everything pass ``seconds`` later."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def data(self, data: bytes, at: float) -> Iterable[Piece]:
        """Hold it back."""
        yield Piece(at + self._seconds, data)

    def head(self, head: object, at: float) -> Iterable[Piece]:
        """Hold it back as well."""
        yield Piece(at + self._seconds, b"", head=head)

    def ends(self, at: float) -> Iterable[Piece]:
        """Hold it back, too."""
        yield Piece(at + self._seconds, b"", End.ENDS)


class DelayFault(Kind):
    """Latency: drawn once for each attempt."""

    directions = (REQUEST, RESPONSE)
    takes = ("delay_ms", "jitter_ms", "distribution")
    needs = ("delay_ms",)

    def plan(self, rule: FaultRule, plan: Plan) -> None:
        """Hold one direction back."""
        plan.put(rule, self, Late(delay_s(rule, plan.draw)))
