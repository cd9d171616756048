"""Follows the two directions of one connection and tells what requests went over it. Pure: bytes and moments in.

It only listens. What it cannot read ends the listening, never the connection.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sidecar.http1.chunked import ChunkError, ChunkScanner
from sidecar.http1.head import CHUNKED, HeadError
from sidecar.http1.parsing import parse_request
from sidecar.traffic.reading import HEAD_BYTES, Reading, UnreadableError
from sidecar.traffic.recording.redaction import Redaction
from sidecar.traffic.requests import REQUEST_ID
from sidecar.traffic.samples import Ended
from sidecar.traffic.traces.recorded import Recorded, body_fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.http1.head import RequestHead

WORKER: Final = "warmroute-worker"
"""In an answer: the worker that made it."""
DEGRADED: Final = "warmroute-degraded"
"""In an answer that no worker made just now."""
_ANSWER: Final = frozenset({REQUEST_ID, WORKER, DEGRADED})
MAX_FLOWS: Final = 100_000
"""Flows whose end is remembered; of more, the one that was quiet longest begins anew."""
MAX_HELD_BYTES: Final = 256 << 20
"""Bodies of requests under way, all together."""


@dataclass(slots=True)
class _Flow:
    name: str
    sampled: bool
    under_way: int = 0
    ended_s: float | None = None


@dataclass(slots=True)
class Terms:
    """What is recorded and how; one for all connections of a recorder. ``draw`` gives numbers from [0, 1)."""

    draw: Callable[[], float]
    take: Callable[[Recorded], None]
    sample: float = 1.0
    max_body_bytes: int = 1 << 20
    redaction: Redaction = field(default_factory=Redaction)
    flow_header: str = ""
    salt: bytes = b""
    """At most 64 bytes, which make flow names that nobody can trace back to the header's value."""
    created: int = 0
    held_bytes: int = 0
    requests: int = 0
    passed_over: int = 0
    """Requests that sampling left out."""
    unreadable: int = 0
    """Connections, or their rests, that could not be read."""
    flows: OrderedDict[str, _Flow] = field(default_factory=OrderedDict)

    def flow(self, value: str) -> _Flow:
        """Return the flow of a header's value, a new one where it is not known."""
        key = hashlib.blake2b(value.encode(), key=self.salt, digest_size=8).hexdigest()
        known = self.flows.get(key)
        if known is None:
            self.created += 1  # one that was forgotten and comes again is another
            known = self.flows[key] = _Flow(f"{self.created}-{key}", int(key, 16) / 2**64 < self.sample)
            if len(self.flows) > MAX_FLOWS:
                self.flows.popitem(last=False)
        self.flows.move_to_end(key)
        return known


@dataclass(slots=True)
class _Request:
    """One request of which not everything has come."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    request_id: str
    began_s: float
    sampled: bool
    flow: _Flow | None
    chained: bool
    think_s: float | None
    pieces: list[bytes] = field(default_factory=list)
    body_bytes: int = 0
    no_body: str = ""
    whole: bool = False
    first_byte_s: float | None = None


class Tap:
    """One connection's. Moments are seconds of the trace, never decreasing."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._buffer = b""
        self._buffered_s = 0.0
        self._current: _Request | None = None  # its body is still coming
        self._left = 0
        self._scanner: ChunkScanner | None = None
        self._pending: deque[_Request] = deque()  # their answers have not come whole
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
                self._tell(request, now_s, Ended.HUNG_UP, reading, hung_up_s=max(0.0, left_s - request.began_s))
            else:
                self._tell(request, now_s, Ended.CUT, reading)
        self._give_back(self._current)
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

    def _begin(self, head: RequestHead) -> _Request:
        terms = self._terms
        lines = head.raw.decode("latin-1").split("\r\n")[1:-2]
        flow = None
        if terms.flow_header:
            value = next((line for line in lines if line.lower().startswith(f"{terms.flow_header}:")), "")
            flow = terms.flow(value.partition(":")[2].strip()) if value else None
        terms.requests += 1
        sampled = flow.sampled if flow is not None else terms.draw() < terms.sample
        chained, think_s = False, None
        if flow is not None:
            chained = flow.under_way == 0  # one that overlaps another of its flow follows none
            if chained and flow.ended_s is not None:
                think_s = max(0.0, self._buffered_s - flow.ended_s)
            flow.under_way += 1
        if not sampled:
            terms.passed_over += 1
        headers = terms.redaction.of_headers(lines) if sampled else ()
        if flow is not None:  # whose value nobody is to read there, and which is to stay one value in a replay
            headers = tuple((name, flow.name if name.lower() == terms.flow_header else text) for name, text in headers)
        return _Request(
            head.method.decode("latin-1"),
            head.target.decode("latin-1"),
            headers,
            head.request_id().decode("latin-1"),
            self._buffered_s,
            sampled,
            flow,
            chained,
            think_s,
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
        request.body_bytes += len(piece)
        if request.sampled and not request.no_body and piece:
            self._keep(request, piece)
        if done:
            request.whole = True
            self._current = self._scanner = None
        return rest

    def _keep(self, request: _Request, piece: bytes) -> None:
        terms = self._terms
        if request.body_bytes > terms.max_body_bytes:
            self._drop(request, f"over {terms.max_body_bytes} bytes")
        elif terms.held_bytes + len(piece) > MAX_HELD_BYTES:
            self._drop(request, "too many bodies at once")
        else:
            terms.held_bytes += len(piece)
            request.pieces.append(piece)

    def _drop(self, request: _Request, why: str) -> None:
        self._give_back(request)
        request.no_body = why

    def _give_back(self, request: _Request | None) -> None:
        if request is not None:
            self._terms.held_bytes -= sum(len(piece) for piece in request.pieces)
            request.pieces.clear()

    def _answered(self, reading: Reading, now_s: float) -> None:
        request = self._pending.popleft()
        self._reading = None
        status = reading.status
        ended = Ended.STATUS_5XX if status >= 500 else Ended.STATUS_4XX if status >= 400 else Ended.OK
        self._tell(request, now_s, ended, reading)

    def _tell(
        self, request: _Request, now_s: float, ended: Ended, reading: Reading | None, hung_up_s: float | None = None
    ) -> None:
        flow = request.flow
        if flow is not None:
            flow.under_way -= 1
            flow.ended_s = now_s
        body = b"".join(request.pieces)
        self._give_back(request)
        no_body = request.no_body
        if not request.whole and not no_body:
            no_body = "not sent whole"
        elif body:
            redacted = self._terms.redaction.of_body(body)
            if redacted is None:
                no_body = "fields are to be redacted, and it is not JSON"
            else:
                body = redacted
        if not request.whole:
            request.no_body = no_body  # what still comes of it is not kept
        if not request.sampled:
            return
        fields = {"body_bytes": request.body_bytes, "no_body": no_body} if no_body else body_fields(body)
        answer = {} if reading is None else reading.fields(_ANSWER)
        self._terms.take(
            Recorded(
                at_s=round(request.began_s, 6),
                method=request.method,
                target=self._terms.redaction.of_target(request.target),
                headers=request.headers,
                request_id=request.request_id or answer.get(REQUEST_ID, ""),  # what the sidecar called it
                flow=flow.name if flow is not None and request.chained else "",
                think_s=None if request.think_s is None else round(request.think_s, 6),
                hung_up_s=None if hung_up_s is None else round(hung_up_s, 6),
                status=0 if reading is None else reading.status,
                ended=ended,
                first_byte_s=None if request.first_byte_s is None else round(request.first_byte_s - request.began_s, 6),
                took_s=round(now_s - request.began_s, 6),
                answer_bytes=0 if reading is None else reading.body_bytes,
                worker="" if DEGRADED in answer else answer.get(WORKER, ""),
                **fields,
            )
        )

    def give_up(self) -> None:
        """Listen no more: what was under way is not known to have ended in any way."""
        if self.deaf:
            return
        self.deaf = True
        self._terms.unreadable += 1
        for request in (*self._pending, *([self._current] if self._current is not None else [])):
            self._give_back(request)
            if request.flow is not None:
                request.flow.under_way -= 1
        self._pending.clear()
        self._buffer = b""
