"""A stream of events, or of messages, breaks off behind one of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sidecar.faults.framing import AnswerReader, MessageReader
from sidecar.faults.kind import Kind, Plan
from sidecar.faults.stages import End, Piece, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.faults.rules import FaultRule

_EVENT_ENDS = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LONGEST_END = 4


class CutsBehind(Stage):
    """Lets ``left`` events pass (WHATWG HTML 9.2.5: an empty line ends each), then resets the connection.

    Where the last of them ends a chunk, that chunk is ended first: whoever passes events on has then passed on whole
    ones.
    """

    def __init__(self, left: int, *, bodiless: bool) -> None:
        self._left = left
        self._reader = AnswerReader(bodiless=bodiless)
        self._tail = b""  # of the event that is coming
        self._ending = False  # behind the chunk's end

    def data(self, data: bytes, at: float) -> Iterable[Piece]:
        """Count the events in it."""
        passed = 0
        for part, body in self._reader.read(data):
            if body:
                end = self._end_in(part)
                self._ending = end == len(part) and self._reader.in_chunks
                cut = end is not None and not self._ending
                passed += len(part) if end is None else end
            else:
                passed += len(part)
                cut = self._ending and part.endswith(b"\n")
            if cut:
                yield Piece(at, data[:passed], End.RESETS)
                return
        yield Piece(at, data)

    def _end_in(self, part: bytes) -> int | None:
        """Return where in ``part`` the last event that passes ends, None where it goes on."""
        if self._left <= 0:
            return 0
        text = self._tail + part
        ahead = len(self._tail)
        at = 0
        for found in _EVENT_ENDS.finditer(text):
            self._left -= 1
            at = found.end()
            if not self._left:
                return at - ahead
        self._tail = text[max(at, len(text) - _LONGEST_END + 1) :]
        return None


class CutsBehindMessages(Stage):
    """Lets ``left`` messages of a gRPC call pass, then breaks it off."""

    def __init__(self, left: int) -> None:
        self._left = left
        self._reader = MessageReader()

    def data(self, data: bytes, at: float) -> Iterable[Piece]:
        """Count the messages in it."""
        passed = 0
        for part, _ in self._reader.read(data):
            if self._left:
                passed += len(part)
                self._left -= self._reader.between
            if not self._left:
                yield Piece(at, data[:passed], End.RESETS)
                return
        yield Piece(at, data)


class CutStreamFault(Kind):
    """A stream cut at an event; over gRPC at a message."""

    takes = ("after_events",)
    needs = ("after_events",)

    def plan(self, rule: FaultRule, plan: Plan) -> None:
        """Cut the answer behind so many events."""
        left = rule.after_events or 0
        stage = CutsBehindMessages(left) if plan.call else CutsBehind(left, bodiless=plan.bodiless)
        plan.put(rule, self, stage)
