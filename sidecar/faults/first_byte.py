"""An answer begins late, and goes on as it would have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.faults.kind import Kind, Plan, delay_s
from sidecar.faults.stages import End, Piece, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.faults.rules import FaultRule


class BeginsLate(Stage):
    """Lets the first byte pass ``seconds`` late; what came meanwhile passes with it, the rest as it comes."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._begins_at: float | None = None

    def data(self, data: bytes, at: float) -> Iterable[Piece]:
        """Hold the beginning back."""
        yield Piece(self._begins(at), data)

    def head(self, head: object, at: float) -> Iterable[Piece]:
        """It is the beginning."""
        yield Piece(self._begins(at), b"", head=head)

    def ends(self, at: float) -> Iterable[Piece]:
        """Behind the beginning, where there was one."""
        yield Piece(at if self._begins_at is None else max(at, self._begins_at), b"", End.ENDS)

    def _begins(self, at: float) -> float:
        if self._begins_at is None:
            self._begins_at = at + self._seconds
        return max(at, self._begins_at)


class FirstByteFault(Kind):
    """A worker that thinks for long: its time to the first byte."""

    takes = ("delay_ms", "jitter_ms", "distribution")
    needs = ("delay_ms",)

    def plan(self, rule: FaultRule, plan: Plan) -> None:
        """Have the answer begin late."""
        plan.put(rule, self, BeginsLate(delay_s(rule, plan.draw)))
