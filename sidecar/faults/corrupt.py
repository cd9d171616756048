"""Bytes of a body arrive as others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.faults.kind import REQUEST, RESPONSE, Kind, Plan
from sidecar.faults.stages import Piece, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.faults.framing import Reader
    from sidecar.faults.rules import FaultRule

DEFAULT_EVERY = 1024


class Corrupts(Stage):
    """Turns all bits of the first byte of a body over, and of one in every ``every`` bytes from there on.

    Heads, chunk sizes and the lengths of gRPC's messages stay as they are, so that it is the body that is wrong, and
    not what is around it.
    """

    def __init__(self, every: int, reader: Reader) -> None:
        self._every = every
        self._until_next = 0
        self._reader = reader

    def data(self, data: bytes, at: float) -> Iterable[Piece]:
        """Touch what of it is body."""
        out = bytearray()
        for part, body in self._reader.read(data):
            start = len(out)
            out += part
            if body:
                hit = range(start + self._until_next, len(out), self._every)
                for index in hit:
                    out[index] ^= 0xFF
                self._until_next += len(hit) * self._every - len(part)
        yield Piece(at, bytes(out))


class CorruptFault(Kind):
    """No checksum of the network found it, as happens with memory that is bad."""

    directions = (RESPONSE, REQUEST)
    takes = ("every_bytes",)
    spoils = True

    def plan(self, rule: FaultRule, plan: Plan) -> None:
        """Corrupt one direction."""
        reader = plan.reader(request=self.direction_of(rule) is REQUEST)
        plan.put(rule, self, Corrupts(rule.every_bytes or DEFAULT_EVERY, reader))
