"""What carries a gRPC call that faults strike: it stands between the call and the worker's connection.

Towards the call it is the worker's connection, towards that and its pool it is the call. Calls share connections, so it
is the call's own stream that is harmed, and nobody else's bytes pass here. What is called a reset or the end of the
connection in ``stages`` is that of the stream: the worker's is reset, and the call meets it as a lost connection.

A link serves one attempt.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from router.outcomes import AttemptResult
from sidecar.faults.abort import status_of
from sidecar.faults.stages import End, Pipe
from sidecar.faults.way import Way
from sidecar.grpc.heads import AnswerHead
from sidecar.grpc.phases import ANSWERING
from sidecar.grpc.statuses import encode_message, status_of_http
from sidecar.http2.frames import Code
from sidecar.http2.sending import Sender
from sidecar.http2.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.faults.kind import Plan
    from sidecar.faults.rules import FaultRule
    from sidecar.faults.stages import Piece
    from sidecar.grpc.call import Call
    from sidecar.grpc.heads import Asked
    from sidecar.grpc.pool import WorkerPool
    from sidecar.grpc.upstream import WorkerConnection
    from sidecar.http2.hpack import Field


class _Request(NamedTuple):
    """A request's head."""

    asked: Asked
    rest: bytes


class _Nobody(asyncio.Transport):
    """Stands for the transport of a link with no worker behind it: all that is written has been taken."""

    def get_write_buffer_size(self) -> int:
        """Return nothing."""
        return 0

    def is_closing(self) -> bool:
        """Return False."""
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return nothing."""
        return default


_NOBODY: Final = _Nobody()
_BEGINS: Final = object()
"""The head of an answer that is trailers alone: what is said of an answer's beginning is said of it."""


def trailers_of(rule: FaultRule) -> list[Field]:
    """Return the whole answer of an abort to a call."""
    status = status_of_http(status_of(rule)) if rule.grpc_status is None else rule.grpc_status
    return [
        (b":status", b"200"),
        (b"content-type", b"application/grpc"),
        (b"grpc-status", b"%d" % status),
        (b"grpc-message", encode_message(f"injected fault {rule.id}")),
    ]


class CallLink:
    """One of them, for one attempt of ``call``; ``names`` are those of the faults."""

    received_bytes: Final = 0
    """What came on it says nothing of whether the worker lives."""
    pay: Final = staticmethod(Sender.pay)

    def __init__(self, call: Call, pool: WorkerPool, plan: Plan, names: str, loop: asyncio.AbstractEventLoop) -> None:
        self._call: Final = call
        self._pool: Final = pool
        self._abort: Final = plan.abort
        self._names: Final = names
        self._loop: Final = loop
        self._out: Final = Way(loop, Pipe(plan.request), self._to_worker)
        self._in: Final = Way(loop, Pipe(plan.response), self._to_call)
        self._request: _Request
        self._near: Final = Stream(self, 0, 0, call)  # the call's, its ``waiting_bytes`` are all that did not go out
        self._sent: Final = Stream(self, 0, 0, call)  # stands for where the worker's stream has its bytes from
        self._ending: Callable[[], None] | None = None  # how the answer ended
        self._began = False  # something of the answer came
        self._gone = False
        self.up: Stream | None = None
        self.wanted = False  # a pool keeps it until it has a connection

    # --- towards the call: a worker's connection ----------------------------------------------------------------------

    def open_stream(self, _call: Call) -> Stream:
        """Return the call's stream."""
        return self._near

    @property
    def transport(self) -> asyncio.Transport:
        """That of the worker's connection, where there is one."""
        return _NOBODY if self.up is None else self.up.connection.transport

    def send_request(self, _stream: Stream, asked: Asked, rest: bytes, *, end: bool) -> None:
        """Take the head of the request."""
        self._in.stopped = True  # the call is in the middle of something: it hears what comes of it in another turn
        self._out.head(_Request(asked, rest))
        if end:
            self._out.ends()
        self._loop.call_soon(self._listen)

    def send_data(self, stream: Stream, data: bytes, *, end: bool) -> bool:
        """Take bytes of the request. They are paid for as they go on, or are lost."""
        if self._gone:
            return True
        self._in.stopped = True
        stream.waiting_bytes += len(data)
        self._passed(self._out.data(data))
        if end:
            self._out.ends()
        self._loop.call_soon(self._listen)
        return False

    def credit(self, stream: Stream, size: int) -> None:
        """Bytes have gone on: of the request where it is the worker's stream that says so, else of the answer."""
        if stream is self._sent:
            self._passed(size)
        elif self.up is not None:
            self.up.connection.credit(self.up, size)

    def reset(self, _stream: Stream, code: int) -> None:
        """The call lets go."""
        self._leave(code)

    def suspect(self) -> None:
        """Ask nobody: the silence may be the fault's."""

    def _listen(self) -> None:
        if not self._gone:
            self._in.stopped = False
            self._in.run()

    def _passed(self, size: int) -> None:
        near = self._near
        near.waiting_bytes -= size
        self.pay(near, size, near.source)

    # --- towards the pool and the worker's connection: the call -------------------------------------------------------

    @property
    def phase(self) -> int:
        """The call's."""
        return self._call.phase

    def attached(self, connection: WorkerConnection) -> None:
        """A worker's connection has room."""
        self.up = up = connection.open_stream(self)
        up.source = self._sent
        connection.send_request(up, self._request.asked, self._request.rest, end=False)
        self._out.stopped = False
        self._out.run()

    def answer_head(self, head: AnswerHead, *, end: bool) -> None:
        """Take a header block of the worker's."""
        if not end:
            self._began = True
            self._in.head(head)
        else:
            self._ends(lambda: self._call.answer_head(head, end=True))

    def answer_data(self, data: bytes, *, end: bool) -> None:
        """Take bytes of the answer. Lost ones are given back as window, as if they had gone on."""
        self._began = True
        lost = self._in.data(data)
        if lost and self.up is not None:
            self.up.connection.credit(self.up, lost)
        if end:
            self._ends(lambda: self._call.answer_data(b"", end=True))

    def stream_reset(self, code: int) -> None:
        """The worker reset the stream; the call hears of it behind what is held back."""
        self.up = None
        self._ends(lambda: self._call.stream_reset(code))

    def attempt_failed(self, result: AttemptResult, detail: str) -> None:
        """The worker's connection is lost, or there is none."""
        had_one, self.up = self.up is not None, None
        if had_one:
            self._ends(lambda: self._call.attempt_failed(self._cut(result), detail))
        else:
            self._loop.call_soon(self._tell, lambda: self._call.attempt_failed(result, detail))

    def left_out(self, why: str, *, again: bool) -> None:
        """A worker's GOAWAY says that it has not looked at the call."""
        self.up = None
        self._tell(lambda: self._call.left_out(why, again=again))

    def crashed(self, error: Exception) -> None:
        """An error of warmroute's own."""
        self._call.crashed(error)

    def broken(self) -> None:
        """An error that was reported."""
        self._call.broken()

    def _cut(self, result: AttemptResult) -> AttemptResult:
        """Return what a lost connection comes to by the time that the call hears of it."""
        return AttemptResult.CUT if result is AttemptResult.RESET and self._call.phase >= ANSWERING else result

    def _ends(self, ending: Callable[[], None]) -> None:
        """Take the end of the answer, and how it is told."""
        if self._ending is None:
            self._ending = ending
            if not self._began:
                self._began = True
                self._in.head(_BEGINS)
            self._in.ends()

    # --- what passes --------------------------------------------------------------------------------------------------

    def _to_worker(self, piece: Piece) -> None:
        try:
            if isinstance(piece.head, _Request):
                self._begin(piece.head)
            if piece.data:
                self._send(piece.data, end=False)
            if piece.end is End.ENDS:
                self._send(b"", end=True)
            elif piece.end is not End.NONE:
                self._break()
        except Exception as error:  # noqa: BLE001  one call's end
            self._call.crashed(error)

    def _begin(self, request: _Request) -> None:
        if self._abort is not None:
            self._loop.call_soon(self._answer, self._abort)
            return
        self._request = request
        self._out.stopped = True  # until there is a connection
        self._pool.submit(self, self._pool.clock())

    def _answer(self, rule: FaultRule) -> None:
        if not self._gone:
            self.answer_head(AnswerHead(trailers_of(rule), oversized=False), end=True)

    def _send(self, data: bytes, *, end: bool) -> None:
        up = self.up
        if up is None or up.connection.send_data(up, data, end=end):
            self._passed(len(data))

    def _to_call(self, piece: Piece) -> None:
        call, near = self._call, self._near
        try:
            if isinstance(piece.head, AnswerHead) and call.up is near:
                call.answer_head(piece.head, end=False)
            if piece.data and call.up is near:
                call.answer_data(piece.data, end=False)
            if piece.end is End.ENDS and self._ending is not None:
                self._tell(self._ending)
            elif piece.end is End.CLOSES:
                self._tell(lambda: call.answer_data(b"", end=True))
            elif piece.end is End.RESETS:
                self._break()
        except Exception as error:  # noqa: BLE001
            call.crashed(error)

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _break(self) -> None:
        """Break the call off, for both sides."""
        self._leave(Code.CANCEL)
        detail = f"it was cut off by the injected fault {self._names}"
        self._loop.call_soon(self._tell, lambda: self._call.attempt_failed(self._cut(AttemptResult.RESET), detail))

    def _tell(self, ending: Callable[[], None]) -> None:
        """Have the call hear how its attempt ended, unless it has let go."""
        if self._call.up is self._near:
            try:
                ending()
            except Exception as error:  # noqa: BLE001
                self._call.crashed(error)
        self._leave(Code.NO_ERROR)

    def _leave(self, code: int) -> None:
        """Part from the worker; nothing passes any more."""
        if self._gone:
            return
        self._gone = True
        self._out.clear()
        self._in.clear()
        if self.wanted:
            self._pool.withdraw(self)
        up, self.up = self.up, None
        if up is not None:
            up.source = None
            up.connection.reset(up, code)
