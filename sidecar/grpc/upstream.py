"""One HTTP/2 connection to a worker, and the calls on it."""

from __future__ import annotations

import asyncio
import select
from typing import TYPE_CHECKING, Final, cast

from router.outcomes import AttemptResult
from sidecar.grpc.heads import AnswerHead
from sidecar.grpc.phases import ANSWERING
from sidecar.http2 import frames
from sidecar.http2.connection import LINGER_S, Connection
from sidecar.http2.frames import ProtocolError
from sidecar.tls.transport import RefusedError, TruncatedError

if TYPE_CHECKING:
    from sidecar.faults.call_link import CallLink
    from sidecar.grpc.call import Call
    from sidecar.grpc.heads import Asked
    from sidecar.grpc.mirrors import CallCopy
    from sidecar.grpc.pool import WorkerPool
    from sidecar.http2.connection import Head
    from sidecar.http2.hpack import Field
    from sidecar.http2.stream import Stream

PING_WAIT_S: Final = 2.0
PING_EVERY_S: Final = 300.0
"""How long a worker that was suspected may take to answer a ping, and how long none is sent after it did."""
_ALIVE: Final = b"wr-alive"
_LAST_ID: Final = 1 << 30
"""A connection is replaced before its stream ids run out."""


class WorkerConnection(Connection):
    """A connection to a worker: opens streams, reads answers."""

    __slots__ = (
        "_calmed",
        "_gone",
        "_pinged_at",
        "_pinged_when",
        "_ping_due",
        "_pool",
        "cut",
        "going",
        "idle_since",
        "ready",
        "retire_at",
        "settled",
        "why",
    )

    def __init__(self, pool: WorkerPool) -> None:
        super().__init__(pool.flusher, client=True, head_bytes=pool.head_bytes, fields=pool.fields)
        self._pool = pool
        self._gone = select.poll()
        self._calmed = False  # the worker's GOAWAY says that it was asked too much
        self._pinged_at = 0.0  # when it was asked whether it lives, 0: it was not,
        self._pinged_when = 0  # and how many bytes had come from it by then
        self._ping_due = 0.0  # not before then
        self.cut = False  # it just stopped, for no reason that was told
        self.why = ""  # it ended
        self.settled = asyncio.Event()  # it is ready, or ended
        self.ready = False  # the worker's settings came: it speaks HTTP/2
        self.going = False  # it takes no more calls
        self.idle_since = pool.clock()
        self.retire_at = pool.retire_at()

    # --- towards the worker ------------------------------------------------------------------------------------------

    def room(self, most: int) -> bool:
        """Return whether one more call may be sent here.

        Where none is under way the kernel is asked whether the worker has closed its end (poll(2), no wait): the loop
        may not have come to it yet.
        """
        if self.going or self.ended or not self.ready or self.last_id >= _LAST_ID:
            return False
        count = len(self.streams)
        if count >= most or count >= self.peer_streams:
            return False
        return count > 0 or (not self.transport.is_closing() and not self._gone.poll(0))

    def send_request(self, stream: Stream, asked: Asked, rest: bytes, *, end: bool) -> None:
        """Send a call's head: what is asked, and what only this call has, encoded as literals."""
        if asked.authority:
            block = self._encoder.encode_known(asked, asked.forward)
        else:
            block = self._encoder.encode([(b":authority", self._pool.authority), *asked.forward])
        self.send_block(stream, block + rest, end=end)

    def suspect(self) -> None:
        """A call's time ran out, and nothing came from the worker meanwhile: ask whether it is there.

        Seldom: gRPC servers take frequent pings for an attack.
        """
        now = self._pool.clock()
        if not self._pinged_at and now >= self._ping_due and not self.ended:
            self._pinged_at, self._pinged_when = now, self.received_bytes
            self._write(frames.frame(frames.PING, 0, 0, _ALIVE))

    def look_for_life(self, now: float) -> None:
        """Leave a worker that did not answer; it is out for every call that waits here."""
        if not self._pinged_at:
            return
        if self.received_bytes != self._pinged_when:
            self._pinged_at, self._ping_due = 0.0, now + PING_EVERY_S
        elif now - self._pinged_at >= PING_WAIT_S:
            self._pinged_at = 0.0
            self.why = f"it did not answer a ping in {PING_WAIT_S} s"
            self.transport.abort()

    def close(self) -> None:
        """Take no more calls, and close as soon as none is under way."""
        self._go()
        if not self.streams and not self.ended:
            self.goaway(0)
            self.end()

    def _go(self) -> None:
        """Make room for another connection, which calls may wait for already."""
        if not self.going:
            self.going = True
            self._pool.grow()

    # --- asyncio.Protocol --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface."""
        self.begin(
            transport,
            {
                frames.ENABLE_PUSH: 0,
                frames.MAX_CONCURRENT_STREAMS: 0,
                frames.MAX_HEADER_LIST_SIZE: self._head_bytes,
            },
        )
        fd = transport.get_extra_info("socket").fileno()
        if fd >= 0:
            self._gone.register(fd, select.POLLRDHUP)
        self._pool.connections.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Settle with every call that waited for an answer."""
        self.going = self.ended = True
        self.cut = exc is not None and not isinstance(exc, RefusedError)
        self.why = self.why or _told(exc)
        streams, self.streams = self.streams, {}
        self._pool.forget(self, self.why)
        self._tell(streams, AttemptResult.RESET)

    def _ended_in(self, call: Call | CallCopy | CallLink, result: AttemptResult) -> AttemptResult:
        """Return what a call's attempt ends in: ``result`` where no answer had begun."""
        if self._calmed:
            return AttemptResult.TURNED_AWAY
        return AttemptResult.CUT if call.phase >= ANSWERING else result

    def _tell(self, streams: dict[int, Stream], result: AttemptResult) -> None:
        """Tell every call that was under way: ``result`` where no answer had begun."""
        for stream in streams.values():
            call: Call | CallCopy | CallLink = stream.call
            try:
                call.attempt_failed(self._ended_in(call, result), self.why)
            except Exception as error:  # noqa: BLE001  one call's end
                call.crashed(error)

    def linger_until(self) -> None:
        """Whoever waits here is told now; the worker's end of the connection is its own business."""
        self._pool.lingering[self] = self._pool.clock() + LINGER_S

    def fail(self, code: frames.Code, detail: str) -> None:
        """The worker broke the protocol."""
        if not self.ended:
            self.why = f"it broke the protocol: {detail}"
            super().fail(code, detail)
            streams, self.streams = self.streams, {}
            self._pool.forget(self, self.why)
            self._tell(streams, AttemptResult.PROTOCOL)

    def crashed(self, error: Exception) -> None:
        """An error of warmroute's own that belongs to no call."""
        self._pool.loop.call_exception_handler(
            {"message": "a worker's connection crashed", "exception": error, "protocol": self}
        )
        self.transport.abort()

    # --- what it says ------------------------------------------------------------------------------------------------

    def _parse(self, fields: list[Field], *, oversized: bool) -> Head:
        return AnswerHead(fields, oversized=oversized)

    def _opened(self, stream_id: int, head: Head, *, end: bool) -> None:
        raise ProtocolError(frames.Code.PROTOCOL_ERROR, f"HEADERS on stream {stream_id}, which was never opened")

    def _headers(self, stream: Stream, head: Head, *, end: bool) -> None:
        call: Call | CallCopy | CallLink = stream.call
        if 0 < cast("AnswerHead", head).status < 200:
            self._hear_noise()
        try:
            call.answer_head(cast("AnswerHead", head), end=end)
        except Exception as error:  # noqa: BLE001  one call's end, not the connection's
            call.crashed(error)

    def _data(self, stream: Stream, data: bytes, *, end: bool) -> None:
        call: Call | CallCopy | CallLink = stream.call
        try:
            call.answer_data(data, end=end)
        except Exception as error:  # noqa: BLE001
            call.crashed(error)

    def _reset(self, stream: Stream, code: int) -> None:
        call: Call | CallCopy | CallLink = stream.call
        if call.up is stream:
            try:
                call.stream_reset(code)
            except Exception as error:  # noqa: BLE001
                call.crashed(error)

    def _settings(self) -> None:
        if not self.ready:
            self.ready = True
            self._pool.became_ready(self)

    def _goaway(self, last_id: int, code: int, detail: str) -> None:
        if code != frames.Code.NO_ERROR:
            self.why = f"it ended the connection ({frames.name_of(code)}{': ' + detail if detail else ''})"
            self._calmed = code == frames.Code.ENHANCE_YOUR_CALM
        self._go()
        left = [stream for stream in self.streams.values() if stream.id > last_id]
        for stream in left:
            self._forget(stream)
            call: Call | CallCopy | CallLink = stream.call
            try:
                call.left_out(self.why or "it goes away", again=not self._calmed)
            except Exception as error:  # noqa: BLE001
                call.crashed(error)
        if not self.streams and not self.ended:
            self.why = self.why or "it goes away"
            self.end()

    def _closed(self, stream: Stream) -> None:
        if not self.streams:
            self.idle_since = self._pool.clock()
            if (self.going or self._pool.closed) and not self.ended:
                self.end()
                return
        if self._pool.queue:
            self._pool.serve()


def _told(exc: Exception | None) -> str:
    """Return what the end of a connection is called. What TLS says of it is for people, no error of the system is."""
    if exc is None:
        return "the connection closed"
    if isinstance(exc, RefusedError):
        return str(exc)
    return f"it {exc}" if isinstance(exc, TruncatedError) else f"it failed ({type(exc).__name__})"
