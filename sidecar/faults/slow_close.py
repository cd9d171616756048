"""All of an answer is there, but its end comes late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.faults.kind import Kind, Plan, delay_s
from sidecar.faults.stages import End, Piece, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.faults.framing import Reader
    from sidecar.faults.rules import FaultRule


class Lingers(Stage):
    """Holds back the last byte of an answer by ``seconds``; of one that ends with the connection, that end.

    Of a gRPC answer its status: that is its end.
    """

    def __init__(self, seconds: float, reader: Reader) -> None:
        self._seconds = seconds
        self._reader = reader

    def data(self, data: bytes, at: float) -> Iterable[Piece]:
        """Look whether it is the last."""
        for _ in self._reader.read(data):
            pass
        if not self._reader.done:
            yield Piece(at, data)
            return
        if len(data) > 1:
            yield Piece(at, data[:-1])
        yield Piece(at + self._seconds, data[-1:])

    def ends(self, at: float) -> Iterable[Piece]:
        """Hold it back."""
        yield Piece(at + self._seconds, b"", End.ENDS)


class SlowCloseFault(Kind):
    """A worker that does not come to an end."""

    takes = ("delay_ms", "jitter_ms", "distribution")
    needs = ("delay_ms",)

    def plan(self, rule: FaultRule, plan: Plan) -> None:
        """Have the answer's end come late."""
        plan.put(rule, self, Lingers(delay_s(rule, plan.draw), plan.reader()))
