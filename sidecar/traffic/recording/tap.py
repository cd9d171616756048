"""Follows the two directions of one connection and tells what requests went over it. Pure: bytes and moments in.

It only listens. What it cannot read ends the listening, never the connection.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from sidecar.http1.chunked import ChunkError, ChunkScanner
from sidecar.http1.head import CHUNKED, HeadError
from sidecar.http1.parsing import parse_request
from sidecar.traffic.reading import HEAD_BYTES, Reading, UnreadableError
from sidecar.traffic.recording.noting import ANSWER_FIELDS, UNANSWERED, Answered, worker_of
from sidecar.traffic.requests import REQUEST_ID
from sidecar.traffic.samples import Ended

if TYPE_CHECKING:
    from sidecar.http1.head import RequestHead
    from sidecar.traffic.recording.noting import Noted, Terms


class Tap:
    """One connection's. Moments are seconds of the trace, never decreasing."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._buffer = b""
        self._buffered_s = 0.0
        self._current: Noted | None = None  # its body is still coming
        self._left = 0
        self._scanner: ChunkScanner | None = None
        self._pending: deque[Noted] = deque()  # their answers have not come whole
        self._reading: Reading | None = None
        self._caller_left_s: float | None = None
        self.deaf = False

    @property
    def under_way(self) -> bool:
        """True while a request waits for its answer."""
        return not self.deaf and bool(self._pending)

    def from_caller(self, data: bytes, now_s: float) -> None:
        """Take what the caller sent."""
        while data and not self.deaf:
            data = self._head(data, now_s) if self._current is None else self._body(data)

    def from_server(self, data: bytes, now_s: float) -> None:
        """Take what the server sent."""
        while data and not self.deaf:
            if not self._pending:
                self.give_up()
                return
            request = self._pending[0]
            if self._reading is None:
                self._reading = Reading(request.method)
            if request.first_byte_s is None:
                request.first_byte_s = now_s
            try:
                whole = self._reading.feed(data)
            except UnreadableError:
                self.give_up()
                return
            data = b""
            if whole:
                data = self._reading.rest
                self._answered(self._reading, now_s)

    def caller_left(self, now_s: float) -> None:
        """The caller sends nothing more. It hung up, unless its answers still come whole."""
        if self._caller_left_s is None:
            self._caller_left_s = now_s

    def server_left(self, now_s: float) -> None:
        """The server sends nothing more: what has no whole answer by now will have none."""
        if self.deaf:
            return
        if self._pending and self._reading is not None and self._reading.closed():
            self._answered(self._reading, now_s)
        left_s = self._caller_left_s
        while self._pending:
            request = self._pending.popleft()
            reading, self._reading = self._reading, None
            if left_s is not None:
                hung_up_s = max(0.0, left_s - request.began_s)
                self._terms.tell(request, now_s, Ended.HUNG_UP, _answer(reading), hung_up_s)
            else:
                self._terms.tell(request, now_s, Ended.CUT, _answer(reading))
        self._terms.give_back(self._current)
        self.deaf = True

    def _head(self, data: bytes, now_s: float) -> bytes:
        if not self._buffer:
            self._buffered_s = now_s
        data = self._buffer + data
        if data.startswith(b"\r\n"):  # some callers end bodies with a line of their own (RFC 9112 2.2)
            data = data[2:]
        end = data.find(b"\r\n\r\n", 0, HEAD_BYTES)
        if end < 0:
            self._buffer = data
            if len(data) >= HEAD_BYTES:
                self.give_up()
            return b""
        self._buffer = b""
        raw, rest = data[: end + 4], data[end + 4 :]
        try:
            head = parse_request(raw, HEAD_BYTES, 1000)
        except HeadError:
            self.give_up()
            return b""
        request = self._begin(head)
        self._pending.append(request)
        if head.length:
            self._current = request
            self._left = head.length
            self._scanner = ChunkScanner(decode=True) if head.length == CHUNKED else None
        else:
            request.whole = True
        return rest

    def _begin(self, head: RequestHead) -> Noted:
        return self._terms.begin(
            head.method.decode("latin-1"),
            head.target.decode("latin-1"),
            head.raw.decode("latin-1").split("\r\n")[1:-2],
            head.request_id().decode("latin-1"),
            self._buffered_s,
        )

    def _body(self, data: bytes) -> bytes:
        request = self._current
        assert request is not None  # noqa: S101 (for the type checker)
        rest = b""
        if self._scanner is not None:
            try:
                piece = self._scanner.feed(data)
            except ChunkError:
                self.give_up()
                return b""
            done, rest = self._scanner.done, self._scanner.rest
        else:
            piece, rest = data[: self._left], data[self._left :]
            self._left -= len(piece)
            done = self._left == 0
        self._terms.keep(request, piece)
        if done:
            request.whole = True
            self._current = self._scanner = None
        return rest

    def _answered(self, reading: Reading, now_s: float) -> None:
        request = self._pending.popleft()
        self._reading = None
        status = reading.status
        ended = Ended.STATUS_5XX if status >= 500 else Ended.STATUS_4XX if status >= 400 else Ended.OK
        self._terms.tell(request, now_s, ended, _answer(reading))

    def give_up(self) -> None:
        """Listen no more: what was under way is not known to have ended in any way."""
        if self.deaf:
            return
        self.deaf = True
        self._terms.unreadable += 1
        for request in self._pending:
            self._terms.forget(request)
        self._terms.give_back(self._current)
        self._pending.clear()
        self._buffer = b""


def _answer(reading: Reading | None) -> Answered:
    """Return what is told of an answer; the id that a sidecar gave to a request that brought none is in it."""
    if reading is None:
        return UNANSWERED
    fields = reading.fields(ANSWER_FIELDS)
    return Answered(reading.status, reading.body_bytes, fields.get(REQUEST_ID, ""), worker_of(fields))
