"""What goes out on one HTTP/2 connection: frames gathered into one write, streams' windows, and who waits for them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from sidecar.http1.transports import reset
from sidecar.http2 import frames
from sidecar.http2.frames import FRAME_BYTES, HEAD, MAX_WINDOW, WINDOW, Code, ProtocolError
from sidecar.http2.hpack import Encoder

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.http2.hpack import Field
    from sidecar.http2.stream import Stream

SMALL_BYTES: Final = 1024
"""A piece under this is put together with the next one where they have to wait."""
_RECENT: Final = 256
MOST_UNSENT_BYTES: Final = 1 << 20
"""Heads and control frames know no windows. Where so many bytes are not taken by a peer, it is not read either,"""
STUCK_S: Final = 30.0
"""and after so long it is left."""
_HALF_WINDOW: Final = WINDOW // 2


class Flusher:
    """Writes what connections have gathered, once per turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self._loop = loop
        self.clock: Final = clock
        self._dirty: list[Sender] = []

    def add(self, sender: Sender) -> None:
        """Have ``sender`` flushed at the end of this turn."""
        if not self._dirty:
            self._loop.call_soon(self._flush)
        self._dirty.append(sender)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for sender in dirty:
            sender.flush()


class Sender(asyncio.Protocol):
    """The half of a connection that writes. What is read, and what streams mean, is the subclasses' business."""

    __slots__ = (
        "_encoder",
        "_flusher",
        "_opened_all",
        "_opened_some",
        "_out",
        "_peer_window",
        "_recent",
        "_stuck_at",
        "_updates_left",
        "blocked",
        "ended",
        "full",
        "send_window",
        "sent_bytes",
        "streams",
        "transport",
    )

    def __init__(self, flusher: Flusher) -> None:
        self._flusher = flusher
        self._encoder = Encoder()
        self._out: list[bytes] = []
        self._peer_window = WINDOW  # the peer's SETTINGS_INITIAL_WINDOW_SIZE
        self._recent: dict[int, None] = {}  # reset by us lately: what still comes for them is not the peer's fault
        self._stuck_at = 0.0  # since when nothing is read, as the peer reads nothing
        self._opened_all = False  # windows grew in this read: of all streams,
        self._opened_some: dict[Stream, None] = {}  # or of these
        self._updates_left = 0  # bytes that were sent, and that no WINDOW_UPDATE has come for
        self.blocked: dict[Stream, None] = {}
        self.ended = False  # nothing that comes is read any more
        self.full = False  # the transport takes no more
        self.sent_bytes = 0
        self.send_window = WINDOW
        self.streams: dict[int, Stream] = {}
        self.transport: asyncio.Transport

    # --- what subclasses say ----------------------------------------------------------------------------------------

    def _flushed(self, stream: Stream) -> None:
        """All that waited on a stream has been sent, its end too where that was among it."""

    def _closed(self, stream: Stream) -> None:
        """A stream has ended both ways, or was reset here."""

    # --- asyncio.Protocol -------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """The peer does not read: nothing but control frames is written."""
        self.full = True

    def resume_writing(self) -> None:
        """The peer reads again."""
        self.full = False
        if self._stuck_at:
            self._stuck_at = 0.0
            if not self.transport.is_closing():
                self.transport.resume_reading()
        self._pump_all()

    # --- writing ----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what was gathered."""
        out = self._out
        if out:
            data = b"".join(out)
            out.clear()
            transport = self.transport
            if transport.is_closing():
                return
            try:
                transport.write(data)
            except RuntimeError:  # uvloop: closed already, without a word to the protocol where it was made too late
                return
            size = len(data)
            self.sent_bytes += size
            self._updates_left += size
            if self.full and not self._stuck_at and transport.get_write_buffer_size() > MOST_UNSENT_BYTES:
                self._stuck_at = self._flusher.clock()
                transport.pause_reading()

    def _write(self, data: bytes) -> None:
        if self.ended:
            return
        if not self._out:
            self._flusher.add(self)
        self._out.append(data)

    def send_headers(self, stream: Stream, fields: list[Field], *, end: bool) -> None:
        """Send a header block, behind what waits on the stream."""
        if stream.waiting is not None:
            stream.tail = fields
            stream.end_waits = end
            return
        self.send_block(stream, self._encoder.encode(fields), end=end)

    def send_block(self, stream: Stream, block: bytes, *, end: bool) -> None:
        """Send a header block that was encoded just now."""
        size = len(block)
        if size <= FRAME_BYTES:
            self._write(HEAD.pack(size >> 8, size & 0xFF, 1, 5 if end else 4, stream.id) + block)
        else:
            self._write(frames.headers_frames(stream.id, block, end=end))
        if end:
            stream.local_done = True
            if stream.remote_done:
                self._forget(stream)

    def send_data(self, stream: Stream, data: bytes, *, end: bool) -> bool:
        """Send bytes, or keep them until windows and transport take them; True where all of them went out."""
        size = len(data)
        if (
            stream.waiting is None
            and size <= stream.send_window
            and size <= self.send_window
            and size <= FRAME_BYTES
            and not self.full
        ):
            stream.send_window -= size
            self.send_window -= size
            self._write(HEAD.pack(size >> 8, size & 0xFF, 0, 1 if end else 0, stream.id) + data)
            if end:
                stream.local_done = True
                if stream.remote_done:
                    self._forget(stream)
            return True
        if stream.waiting is None:
            stream.waiting = []
            self.blocked[stream] = None
        if size:
            keep(stream.waiting, data)
            stream.waiting_bytes += size
        stream.end_waits = end
        self._pump_and_credit(stream)
        return False

    def _pump(self, stream: Stream) -> int:
        """Send what can be sent of what waits; return how many bytes that was."""
        waiting = stream.waiting
        if waiting is None:
            return 0
        sent = 0
        while waiting and not self.full:
            data = waiting[0]
            size = min(len(data), stream.send_window, self.send_window, FRAME_BYTES)
            if size <= 0:
                return sent
            if size == len(data):
                del waiting[0]
            else:
                waiting[0] = data[size:]
                data = data[:size]
            stream.send_window -= size
            self.send_window -= size
            stream.waiting_bytes -= size
            sent += size
            last = stream.end_waits and stream.tail is None and not waiting
            self._write(HEAD.pack(size >> 8, size & 0xFF, 0, 1 if last else 0, stream.id) + data)
            if last:
                stream.local_done = True
        if waiting:
            return sent
        stream.waiting = None
        self.blocked.pop(stream, None)
        if stream.tail is not None:
            fields, stream.tail = stream.tail, None
            self.send_headers(stream, fields, end=stream.end_waits)
        elif stream.end_waits and not stream.local_done:
            self._write(HEAD.pack(0, 0, 0, 1, stream.id))
            stream.local_done = True
            if stream.remote_done:
                self._forget(stream)
        elif stream.local_done and stream.remote_done:
            self._forget(stream)
        self._flushed(stream)
        return sent

    def _pump_all(self) -> None:
        for stream in list(self.blocked):
            if self.send_window <= 0 or self.full:
                break
            self._pump_and_credit(stream)
        # whoever was served first stands last next time
        if len(self.blocked) > 1:
            first = next(iter(self.blocked))
            del self.blocked[first]
            self.blocked[first] = None

    def _use_windows(self) -> None:
        """Send what the windows that grew in this read have room for: once, however many frames said so."""
        some, self._opened_some = self._opened_some, {}
        if self._opened_all:
            self._opened_all = False
            self._pump_all()
        else:
            for stream in some:
                self._pump_and_credit(stream)

    def _pump_and_credit(self, stream: Stream) -> None:
        source = stream.source
        sent = self._pump(stream)
        if sent:
            self.pay(stream, sent, source)

    @staticmethod
    def pay(stream: Stream, size: int, source: Stream | None) -> None:
        """Give window back to the ``source`` of what went out on ``stream``, but for what it was credited before."""
        paid = min(size, stream.prepaid)
        stream.prepaid -= paid
        if size > paid and source is not None:
            source.connection.credit(source, size - paid)

    def credit(self, stream: Stream, size: int) -> None:
        """Give window back for bytes that have gone on."""
        stream.owed += size
        if stream.owed >= _HALF_WINDOW and not stream.remote_done and stream.id in self.streams:
            self._write(frames.window_update(stream.id, stream.owed))
            stream.receive_window += stream.owed
            stream.owed = 0

    def reset(self, stream: Stream, code: int) -> None:
        """Reset a stream."""
        if self.streams.get(stream.id) is stream:
            self._refuse(stream.id, code)
            self._forget(stream)

    def _refuse(self, stream_id: int, code: int) -> None:
        if not self.ended:
            self._write(frames.reset_frame(stream_id, code))
            self._recent[stream_id] = None
            if len(self._recent) > _RECENT:
                del self._recent[next(iter(self._recent))]

    def _forget(self, stream: Stream) -> None:
        if self.streams.pop(stream.id, None) is not None:
            stream.waiting = None
            self.blocked.pop(stream, None)
            self._closed(stream)

    def goaway(self, last_id: int, code: int = Code.NO_ERROR, detail: str = "") -> None:
        """Send a GOAWAY."""
        self._write(frames.goaway_frame(last_id, code, detail))

    def _leave_if_stuck(self, now: float) -> None:
        """Leave a peer that has taken nothing for too long."""
        if self._stuck_at and now - self._stuck_at >= STUCK_S:
            self._stuck_at = 0.0
            reset(self.transport)

    def _resize_windows(self, size: int) -> None:
        by = size - self._peer_window
        self._peer_window = size
        self._opened_all = self._opened_all or by > 0
        for stream in self.streams.values():
            stream.send_window += by
            if stream.send_window > MAX_WINDOW:
                raise ProtocolError(Code.FLOW_CONTROL_ERROR, "the stream's window is too large")


def keep(pieces: list[bytes], data: bytes) -> None:
    """Put ``data`` behind ``pieces``; small ones are put together, so that a byte a frame costs no object a byte."""
    if pieces and len(pieces[-1]) < SMALL_BYTES:
        pieces[-1] += data
    else:
        pieces.append(data)
