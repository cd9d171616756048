"""One HTTP/2 connection to a worker, and the calls on it."""

from __future__ import annotations

import asyncio
import select
from typing import TYPE_CHECKING, Final, cast

from router.outcomes import AttemptResult
from sidecar.grpc.heads import AnswerHead
from sidecar.http2 import frames
from sidecar.http2.connection import LINGER_S, Connection

if TYPE_CHECKING:
    from sidecar.grpc.call import Call
    from sidecar.grpc.heads import Asked
    from sidecar.grpc.pool import WorkerPool
    from sidecar.http2.connection import Head
    from sidecar.http2.hpack import Field
    from sidecar.http2.stream import Stream

_LAST_ID: Final = 1 << 30
"""A connection is replaced before its stream ids run out."""


class WorkerConnection(Connection):
    """A connection to a worker: opens streams, reads answers."""

    __slots__ = ("_gone", "_pool", "going", "idle_since", "ready", "retire_at", "settled", "why")

    def __init__(self, pool: WorkerPool) -> None:
        super().__init__(pool.flusher, client=True, head_bytes=pool.head_bytes, fields=pool.fields)
        self._pool = pool
        self._gone = select.poll()
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
        self.send_block(stream, self._encoder.encode_known(asked, asked.forward) + rest, end=end)

    def close(self) -> None:
        """Take no more calls, and close as soon as none is under way."""
        self.going = True
        if not self.streams and not self.ended:
            self.goaway(0)
            self.end()

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
        what = self.why or ("the connection closed" if exc is None else f"it failed ({type(exc).__name__})")
        streams, self.streams = self.streams, {}
        self._pool.forget(self, what)
        for stream in streams.values():
            call: Call = stream.call
            answered = bool(call.phase > 1)
            try:
                call.attempt_failed(AttemptResult.CUT if answered else AttemptResult.RESET, what)
            except Exception as error:  # noqa: BLE001
                call.crashed(error)

    def linger_until(self) -> None:
        """Whoever waits here is told now; the worker's end of the connection is its own business."""
        if self._pool.closed:  # no sweep comes here any more
            self._pool.loop.call_later(LINGER_S, self.transport.abort)
        else:
            self._pool.lingering[self] = self._pool.clock() + LINGER_S

    def fail(self, code: frames.Code, detail: str) -> None:
        """The worker broke the protocol."""
        if not self.ended:
            self.why = f"it broke the protocol: {detail}"
            super().fail(code, detail)
            streams, self.streams = self.streams, {}
            self._pool.forget(self, self.why)
            for stream in streams.values():
                call: Call = stream.call
                result = AttemptResult.CUT if call.phase > 1 else AttemptResult.PROTOCOL
                call.attempt_failed(result, self.why)

    def crashed(self, error: Exception) -> None:
        """An error of warmroute's own that belongs to no call."""
        self._pool.loop.call_exception_handler(
            {"message": "a worker's connection crashed", "exception": error, "protocol": self}
        )
        self.transport.abort()

    # --- what it says ------------------------------------------------------------------------------------------------

    def _parse(self, fields: list[Field], *, oversized: bool) -> Head:
        return AnswerHead(fields, oversized=oversized)

    def _headers(self, stream: Stream, head: Head, *, end: bool) -> None:
        call: Call = stream.call
        try:
            call.answer_head(cast("AnswerHead", head), end=end)
        except Exception as error:  # noqa: BLE001  one call's end, not the connection's
            call.crashed(error)

    def _data(self, stream: Stream, data: bytes, *, end: bool) -> None:
        call: Call = stream.call
        try:
            call.answer_data(data, end=end)
        except Exception as error:  # noqa: BLE001
            call.crashed(error)

    def _reset(self, stream: Stream, code: int) -> None:
        call: Call = stream.call
        if call.up is stream:
            try:
                call.stream_reset(code)
            except Exception as error:  # noqa: BLE001
                call.crashed(error)

    def _settings(self) -> None:
        if not self.ready:
            self.ready = True
            self._pool.became_ready(self)

    def _goaway(self, last_id: int, code: int) -> None:
        self.going = True
        left = [stream for stream in self.streams.values() if stream.id > last_id]
        for stream in left:
            self._forget(stream)
            call: Call = stream.call
            try:
                call.left_out()
            except Exception as error:  # noqa: BLE001
                call.crashed(error)
        if not self.streams and not self.ended:
            self.end()

    def _closed(self, stream: Stream) -> None:
        if not self.streams:
            self.idle_since = self._pool.clock()
            if (self.going or self._pool.closed) and not self.ended:
                self.end()
                return
        if self._pool.queue:
            self._pool.serve()
