"""What carries an attempt that faults strike: it stands between the worker's transport and the one who reads answers.

Towards the loop it is the protocol of the worker's transport, towards the reader its transport. There may be no worker
behind it: then it answers itself, or nobody does. A link serves one attempt and is never pooled.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

from sidecar.faults.abort import answer_of
from sidecar.faults.stages import End, Pipe
from sidecar.faults.way import Way
from sidecar.http1.transports import reset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sidecar.faults.kind import Plan
    from sidecar.faults.stages import Piece

HIGH_BYTES: Final = 65536
LOW_BYTES: Final = 16384
"""Over the first, what is held back in one direction has its sender wait until it is under the second."""


class InjectedResetError(ConnectionResetError):
    """A fault broke the connection."""


class _NoSocket:
    """Stands for the socket of a link with nobody behind it."""

    def fileno(self) -> int:
        """Return what closed sockets return."""
        return -1

    def setsockopt(self, *_: object) -> None:
        """Do nothing."""


_NO_SOCKET: Final = _NoSocket()


class Link(asyncio.Transport, asyncio.Protocol):
    """One of them, for the ``reader`` of one attempt's answer. ``over`` is called once, when it is gone."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, plan: Plan, reader: asyncio.Protocol, over: Callable[[], None]
    ) -> None:
        super().__init__()
        self._loop = loop
        self._reader = reader
        self._over = over
        self._answer = None if plan.abort is None else answer_of(plan.abort, bodiless=plan.bodiless)
        self.nowhere: Final = plan.nowhere or plan.abort is not None
        """No worker is to be connected to."""
        self._worker: asyncio.Transport | None = None
        self._out = Way(loop, Pipe(plan.request), self._to_worker)
        self._in = Way(loop, Pipe(plan.response), self._to_reader)
        self._worker_gone = False
        self._lost: Exception | None = None  # how the worker's connection ended
        self._half_closed = False  # the worker sends no more, and the reader goes on
        self._told_full = False  # the reader was asked to write no more
        self._worker_full = False
        self._reading = True  # the worker's transport is read
        self._closing = False  # the reader said so
        self._gone = False
        self._made = False

    def itself(self) -> Link:
        """Return it: a loop that connects wants to make its protocol."""
        return self

    def begin(self) -> None:
        """Begin with nobody behind it."""
        self._made = True
        self._reader.connection_made(self)

    def give_up(self) -> None:
        """Take note that connecting is over; where nothing came of it, nobody else would end this."""
        if not self._made:
            self._made = self._gone = True
            self._loop.call_soon(self._over)

    # --- towards the worker -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The worker's connection stands."""
        self._worker = cast("asyncio.Transport", transport)
        if self._gone:
            self._worker.abort()
            return
        self._made = True
        self._reader.connection_made(self)

    def data_received(self, data: bytes) -> None:
        """More of the answer."""
        if not self._gone:
            self._in.data(data)
            self._regulate()

    def eof_received(self) -> bool:
        """The worker sends no more; the reader hears of it behind what is held back, and says what that ends."""
        if not self._gone:
            self._in.ends()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The worker's connection is gone; the reader hears of it behind what is held back."""
        self._lost = exc
        self._worker_gone = True
        if self._gone:
            return
        self._out.clear()
        if self._half_closed:
            self._break(End.ENDS)
        else:
            self._in.ends()  # unless that was said already

    def pause_writing(self) -> None:
        """The worker takes no more."""
        self._worker_full = True
        self._out.stopped = True
        self._regulate()

    def resume_writing(self) -> None:
        """It does again."""
        self._worker_full = False
        self._out.stopped = False
        self._out.run()
        self._regulate()

    def _to_worker(self, piece: Piece) -> None:
        data, end, worker = piece.data, piece.end, self._worker
        if data and worker is not None and not worker.is_closing():
            worker.write(data)
        elif data and self._answer is not None:
            answer, self._answer = self._answer, None
            self._loop.call_soon(self.data_received, answer)
        if end is End.ENDS:
            if worker is not None and not worker.is_closing():
                worker.write_eof()
        elif end is not End.NONE:
            self._break(end)
        self._regulate()

    def _to_reader(self, piece: Piece) -> None:
        data, end = piece.data, piece.end
        if self._gone:
            return
        if data:
            self._reader.data_received(data)
        if end is End.ENDS and not self._gone:
            self._end_of_answer()
        elif end is not End.NONE and not self._gone:
            self._break(end)
        self._regulate()

    def _end_of_answer(self) -> None:
        """The worker's end has come to the reader: of a tunnel that is one half, of anything else all of it."""
        if self._lost is None:
            self._half_closed = bool(self._reader.eof_received())
        if not self._gone and (self._worker_gone or not self._half_closed):
            self._break(End.ENDS)

    def _break(self, end: End) -> None:
        """End it, for both sides."""
        if self._gone:
            return
        exc = self._lost if end is End.ENDS else InjectedResetError() if end is End.RESETS else None
        if self._worker is not None and end is End.RESETS:
            reset(self._worker)
        elif self._worker is not None:
            self._worker.abort()
        if end is End.CLOSES:
            self._reader.eof_received()
        if not self._gone:
            self._finish(exc)

    def _finish(self, exc: Exception | None) -> None:
        self._gone = True
        self._out.clear()
        self._in.clear()
        try:
            self._reader.connection_lost(exc)
        finally:
            self._loop.call_soon(self._over)  # whoever settles the attempt does so in this turn

    def _regulate(self) -> None:
        """Have each side wait while too much is held back of what it sends."""
        if self._gone:
            return
        full = self._worker_full or self._out.held_bytes > (LOW_BYTES if self._told_full else HIGH_BYTES)
        if full != self._told_full:
            self._told_full = full
            if full:
                self._reader.pause_writing()
            else:
                self._reader.resume_writing()
        reading = not self._in.stopped and self._in.held_bytes <= (HIGH_BYTES if self._reading else LOW_BYTES)
        worker = self._worker
        if reading != self._reading and worker is not None and not worker.is_closing():
            self._reading = reading
            if reading:
                worker.resume_reading()
            else:
                worker.pause_reading()
        if self._closing and not self._out.held_bytes:
            self._end_in_order()

    # --- towards the reader: a transport ------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes to the worker."""
        if data and not self._gone and not self._closing:
            self._out.data(bytes(data))
            self._regulate()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send several pieces."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """Return whether one direction can be closed alone."""
        return self._worker is None or self._worker.can_write_eof()

    def write_eof(self) -> None:
        """Send no more, and say so behind what was written."""
        if not self._gone and not self._closing:
            self._out.ends()

    def get_write_buffer_size(self) -> int:
        """Return how much is held back of what was written."""
        worker = self._worker
        return self._out.held_bytes + (0 if worker is None else worker.get_write_buffer_size())

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Leave them as they are."""

    def pause_reading(self) -> None:
        """Hold back all of the answer."""
        self._in.stopped = True
        self._regulate()

    def resume_reading(self) -> None:
        """Go on with it."""
        self._in.stopped = False
        self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if not self._gone:
            self._in.run()
            self._regulate()

    def is_closing(self) -> bool:
        """Return whether nothing goes out any more."""
        return self._gone or self._closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the worker's transport says."""
        worker = self._worker
        if name == "socket" and (worker is None or worker.is_closing()):  # else it may be closed
            return _NO_SOCKET
        return default if worker is None else worker.get_extra_info(name, default)

    def close(self) -> None:
        """End behind what was written."""
        if not self._gone and not self._closing:
            self._closing = True
            self._regulate()

    def abort(self) -> None:
        """End at once."""
        if not self._gone:
            self._end(None if self._worker is None else self._worker.abort)

    def _end_in_order(self) -> None:
        self._end(None if self._worker is None else self._worker.close)

    def _end(self, end: Callable[[], None] | None) -> None:
        self._gone = True
        self._out.clear()
        self._in.clear()
        if end is not None:
            end()
        self._loop.call_soon(self._tell_end)

    def _tell_end(self) -> None:
        try:
            self._reader.connection_lost(None)
        finally:
            self._over()
