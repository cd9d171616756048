"""One HTTP/2 connection, in either role: frames in and out, streams, windows, limits on hostile peers.

What a stream's messages mean is the business of the two subclasses (``sidecar/grpc``). What is written in one turn of
the loop leaves in one write. Nothing here makes a task or a timer; a sweep looks at deadlines.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from sidecar.http1.transports import reset
from sidecar.http2 import frames
from sidecar.http2.frames import FRAME_BYTES, HEAD, MAX_STREAM, MAX_WINDOW, WINDOW, Code, ProtocolError
from sidecar.http2.hpack import Decoder, Encoder
from sidecar.http2.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.http2.hpack import Field

CONNECTION_WINDOW: Final = 1 << 20
"""Window of a whole connection here: given back as soon as bytes arrive, so that one slow stream stops no other. The
streams' own windows bound what is kept in memory."""
NOISE_BURST: Final = 1000
NOISE_PER_S: Final = 1000
BROKEN_NOISE: Final = 5
"""Frames that carry nothing (PING, each entry of SETTINGS, PRIORITY, empty DATA and CONTINUATION, unknown ones) that a
peer may send at once, and per second; a stream on which it breaks the protocol counts as five."""
UPDATE_BYTES: Final = 5
UPDATES_SAVED: Final = 1 << 16
"""A WINDOW_UPDATE is noise, too, unless it comes to so many bytes that were sent; what is kept of those for later."""
LINGER_S: Final = 2.0
LINGER_BYTES: Final = 1 << 20
"""How long and how much input is thrown away behind a GOAWAY that ends a connection, so that it can be read."""
SMALL_BYTES: Final = 1024
"""A piece under this is put together with the next one where they have to wait."""
MOST_DETAIL: Final = 256
"""Characters of what a peer says in its GOAWAY that are passed on."""
_MEMO: Final = 32
_RECENT: Final = 256
MOST_UNSENT_BYTES: Final = 1 << 20
"""Heads and control frames know no windows. Where so many bytes are not taken by a peer, it is not read either,"""
STUCK_S: Final = 30.0
"""and after so long it is left."""
_HALF_WINDOW: Final = WINDOW // 2


class Head:
    """A header block's meaning. ``malformed`` says why it is none (RFC 9113 8.1.1); empty: it is one."""

    __slots__ = ("malformed",)

    malformed: str


class Flusher:
    """Writes what connections have gathered, once per turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self._loop = loop
        self.clock: Final = clock
        self._dirty: list[Connection] = []

    def add(self, connection: Connection) -> None:
        """Have ``connection`` flushed at the end of this turn."""
        if not self._dirty:
            self._loop.call_soon(self._flush)
        self._dirty.append(connection)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.flush()


class Connection(asyncio.Protocol):
    """The state of one connection. ``client``: the role here."""

    __slots__ = (
        "_block",
        "_block_at",
        "_block_end",
        "_block_frames",
        "_block_stream",
        "_buffer",
        "_client",
        "_decoder",
        "_discarded",
        "_encoder",
        "_flusher",
        "_head_bytes",
        "_memo",
        "_noise",
        "_out",
        "_owed",
        "_peer_window",
        "_prefaced",
        "_receive_window",
        "_stuck_at",
        "_opened_all",
        "_opened_some",
        "_recent",
        "_settled",
        "_updates_left",
        "blocked",
        "ended",
        "full",
        "last_id",
        "peer_streams",
        "received_bytes",
        "send_window",
        "sent_bytes",
        "streams",
        "transport",
    )

    def __init__(self, flusher: Flusher, *, client: bool, head_bytes: int, fields: int) -> None:
        self._flusher = flusher
        self._client = client
        self._head_bytes = head_bytes
        self._decoder = Decoder(head_bytes, fields)
        self._encoder = Encoder()
        self._memo: dict[bytes, Head] = {}
        self._buffer = b""
        self._block = b""
        self._block_stream = 0  # the stream whose header block is not whole yet, 0: none
        self._block_at = 0.0  # when it began
        self._block_end = False
        self._block_frames = 0
        self._out: list[bytes] = []
        self._owed = 0
        self._receive_window = WINDOW
        self._peer_window = WINDOW  # the peer's SETTINGS_INITIAL_WINDOW_SIZE
        self._prefaced = client  # a client's preface has been read
        self._settled = False  # the peer's first SETTINGS has been read
        self._recent: dict[int, None] = {}  # reset by us lately: what still comes for them is not the peer's fault
        self._noise = 0
        self._discarded = 0
        self._stuck_at = 0.0  # since when nothing is read, as the peer reads nothing
        self._opened_all = False  # windows grew in this read: of all streams,
        self._opened_some: dict[Stream, None] = {}  # or of these
        self._updates_left = 0  # bytes that were sent, and that no WINDOW_UPDATE has come for
        self.blocked: dict[Stream, None] = {}
        self.ended = False  # nothing that comes is read any more
        self.full = False  # the transport takes no more
        self.last_id = 0  # the highest stream that was opened
        self.peer_streams = MAX_STREAM  # the peer's SETTINGS_MAX_CONCURRENT_STREAMS
        self.received_bytes = 0
        self.sent_bytes = 0
        self.send_window = WINDOW
        self.streams: dict[int, Stream] = {}
        self.transport: asyncio.Transport

    # --- what subclasses say ----------------------------------------------------------------------------------------

    def _parse(self, fields: list[Field], *, oversized: bool) -> Head:
        """Return what a header block means; it may be kept and given again for an equal block."""
        raise NotImplementedError

    def _opened(self, stream_id: int, head: Head, *, end: bool) -> None:
        """The client opened a stream."""
        raise NotImplementedError

    def _headers(self, stream: Stream, head: Head, *, end: bool) -> None:
        """A header block came on an open stream."""
        raise NotImplementedError

    def _data(self, stream: Stream, data: bytes, *, end: bool) -> None:
        """Bytes came on an open stream; they are to be credited when they have gone on (``credit``)."""
        raise NotImplementedError

    def _reset(self, stream: Stream, code: int) -> None:
        """The peer reset a stream, which is gone already."""
        raise NotImplementedError

    def _late_reset(self) -> None:
        """The peer reset a stream that had ended."""

    def _flushed(self, stream: Stream) -> None:
        """All that waited on a stream has been sent, its end too where that was among it."""

    def _goaway(self, last_id: int, code: int, detail: str) -> None:
        """The peer will open no stream, or answer none above ``last_id``, and says why."""

    def _settings(self) -> None:
        """The peer's settings came."""

    def _pinged(self, payload: bytes) -> None:
        """The peer answered a ping."""

    def _closed(self, stream: Stream) -> None:
        """A stream has ended both ways, or was reset here."""

    def crashed(self, error: Exception) -> None:
        """Report an error of warmroute's own and end the connection."""
        raise NotImplementedError

    def suspect(self) -> None:
        """A call's time ran out in silence."""

    def linger_until(self) -> None:
        """Set when a connection that has ended is to be cut off."""

    # --- asyncio.Protocol -------------------------------------------------------------------------------------------

    def begin(self, transport: asyncio.BaseTransport, settings: dict[int, int]) -> None:
        """Take a new connection: say our settings."""
        self.transport = cast("asyncio.Transport", transport)
        if self._client:
            self._write(frames.PREFACE)
        self._write(frames.settings_frame(settings) + frames.window_update(0, CONNECTION_WINDOW - WINDOW))
        self._receive_window = CONNECTION_WINDOW

    def data_received(self, data: bytes) -> None:
        """Read whole frames, keep the rest."""
        self.received_bytes += len(data)
        if self.ended:
            self._discarded += len(data)
            if self._discarded > LINGER_BYTES:
                self.transport.abort()
            return
        if self._buffer:
            data = self._buffer + data
        try:
            position = 0 if self._prefaced else self._read_preface(data)
            if position >= 0:
                position = self._read_frames(data, position)
                self._buffer = data[position:]
                if (self._opened_all or self._opened_some) and not self.ended:
                    self._use_windows()
            else:
                self._buffer = data
        except ProtocolError as error:
            self.fail(error.code, str(error))
        except Exception as error:  # noqa: BLE001  one connection's end, not the process's
            self.crashed(error)

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

    def fail(self, code: Code, detail: str) -> None:
        """End the connection because of what the peer did, and say why (RFC 9113 5.4.1)."""
        if not self.ended:
            self.goaway(self.last_id, code, detail)
            self.end()

    def goaway(self, last_id: int, code: int = Code.NO_ERROR, detail: str = "") -> None:
        """Send a GOAWAY."""
        self._write(frames.goaway_frame(last_id, code, detail))

    def end(self) -> None:
        """Write what there is, shut our side, and throw away what still comes for a moment."""
        self.ended = True
        self._buffer = self._block = b""
        self.flush()
        self.linger_until()
        if not self.transport.can_write_eof():
            self.transport.close()
        elif not self.transport.is_closing():
            self.transport.write_eof()

    def quieten(self, seconds: float, now: float) -> None:
        """Forgive noise as time passes; leave a peer that has taken nothing for too long."""
        if self._stuck_at and now - self._stuck_at >= STUCK_S:
            self._stuck_at = 0.0
            reset(self.transport)
        if self._noise:
            self._noise = max(0, self._noise - int(seconds * NOISE_PER_S))
        self._updates_left = min(self._updates_left, UPDATES_SAVED)

    def _hear_noise(self, by: int = 1) -> None:
        self._noise += by
        if self._noise > NOISE_BURST:
            raise ProtocolError(Code.ENHANCE_YOUR_CALM, "too many frames that carry nothing, or streams refused")

    # --- reading ----------------------------------------------------------------------------------------------------

    def _read_preface(self, data: bytes) -> int:
        """Return where frames begin, -1 where the preface is not whole yet."""
        preface = frames.PREFACE
        if data[: len(preface)] != preface[: len(data)]:
            raise ProtocolError(Code.PROTOCOL_ERROR, "not the HTTP/2 preface")
        if len(data) < len(preface):
            return -1
        self._prefaced = True
        return len(preface)

    def _read_frames(self, data: bytes, position: int) -> int:
        """Read the whole frames from ``position`` on; return where the rest begins."""
        end = len(data)
        streams = self.streams
        while end - position >= 9:
            high, low, kind, flags, stream_id = HEAD.unpack_from(data, position)
            length = high << 8 | low
            if length > FRAME_BYTES:
                raise ProtocolError(Code.FRAME_SIZE_ERROR, f"a frame of {length} bytes, at most {FRAME_BYTES}")
            start = position + 9
            stop = start + length
            if stop > end:
                break
            position = stop
            if stream_id > MAX_STREAM:
                stream_id &= MAX_STREAM
            if not self._settled and kind != frames.SETTINGS:
                raise ProtocolError(Code.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            if self._block_stream and (kind != frames.CONTINUATION or stream_id != self._block_stream):
                raise ProtocolError(Code.PROTOCOL_ERROR, "a header block was not continued")
            if kind == 0:
                self._receive_window -= length
                if self._receive_window < 0:
                    raise ProtocolError(Code.FLOW_CONTROL_ERROR, "over the connection's window")
                self._owed += length
                if self._owed >= CONNECTION_WINDOW // 2:
                    self._write(frames.window_update(0, self._owed))
                    self._receive_window += self._owed
                    self._owed = 0
                stream = streams.get(stream_id)
                if stream is None or stream.remote_done:
                    self._stray_data(stream_id, stream)
                    continue
                stream.receive_window -= length
                if stream.receive_window < 0:
                    self._broken(stream, Code.FLOW_CONTROL_ERROR, "over the stream's window")
                    continue
                if flags & 8:
                    payload = _unpadded(data[start:stop])
                    self.credit(stream, length - len(payload))
                else:
                    payload = data[start:stop]
                if flags & 1:
                    stream.remote_done = True
                    self._data(stream, payload, end=True)
                    if stream.local_done:
                        self._forget(stream)
                elif payload:
                    self._data(stream, payload, end=False)
                else:
                    self._hear_noise()
            elif kind == 1:
                self._read_headers(stream_id, flags, data[start:stop])
            else:
                self._read_control(kind, flags, stream_id, data[start:stop])
            if self.ended:
                return end
        return position

    def _stray_data(self, stream_id: int, stream: Stream | None) -> None:
        """DATA on a stream that takes none (RFC 9113 5.1)."""
        if stream_id == 0 or self._idle(stream_id):
            raise ProtocolError(Code.PROTOCOL_ERROR, f"DATA on stream {stream_id}, which was never opened")
        if stream is not None:
            self._broken(stream, Code.STREAM_CLOSED, "DATA behind the stream's end")
        elif stream_id not in self._recent:
            self._hear_noise(BROKEN_NOISE)
            self._write(frames.reset_frame(stream_id, Code.STREAM_CLOSED))

    def _idle(self, stream_id: int) -> bool:
        """Whether a stream was never opened. All that there are have the client's odd numbers."""
        return stream_id > self.last_id or not stream_id & 1

    def _broken(self, stream: Stream, code: Code, detail: str) -> None:
        """The peer broke the protocol on one stream only (RFC 9113 5.4.2)."""
        self._hear_noise(BROKEN_NOISE)
        self.reset(stream, code)
        self._reset(stream, code)

    def _read_headers(self, stream_id: int, flags: int, payload: bytes) -> None:
        if not stream_id & 1:
            raise ProtocolError(Code.PROTOCOL_ERROR, f"HEADERS on stream {stream_id}")
        if flags & frames.PADDED:
            payload = _unpadded(payload)
        if flags & frames.WITH_PRIORITY:
            if len(payload) < 5:
                raise ProtocolError(Code.FRAME_SIZE_ERROR, "HEADERS too short for their priority")
            payload = payload[5:]
        if flags & frames.END_HEADERS:
            self._read_block(stream_id, payload, end=flags & frames.END_STREAM != 0)
        else:
            self._block, self._block_stream, self._block_frames = payload, stream_id, 0
            self._block_at = self._flusher.clock()
            self._block_end = flags & frames.END_STREAM != 0

    def _continue(self, flags: int, payload: bytes) -> None:
        if not self._block_stream:
            raise ProtocolError(Code.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._block += payload
        self._block_frames += 1
        if len(payload) < 64:
            self._hear_noise()
        if len(self._block) > self._head_bytes:
            raise ProtocolError(Code.ENHANCE_YOUR_CALM, f"a header block over {self._head_bytes} bytes")
        if flags & frames.END_HEADERS:
            block, stream_id = self._block, self._block_stream
            self._block, self._block_stream = b"", 0
            self._read_block(stream_id, block, end=self._block_end)

    def _read_block(self, stream_id: int, block: bytes, *, end: bool) -> None:
        """A header block is whole."""
        head = self._memo.get(block)
        if head is None:
            decoder = self._decoder
            version = decoder.version
            fields = decoder.decode(block)
            head = self._parse(fields, oversized=decoder.oversized)
            if decoder.version != version:  # what other blocks mean has changed
                self._memo.clear()
            elif len(block) <= 256:
                if len(self._memo) >= _MEMO:
                    self._memo.clear()
                self._memo[block] = head
        stream = self.streams.get(stream_id)
        if stream is not None:
            if stream.remote_done:
                self._broken(stream, Code.STREAM_CLOSED, "HEADERS behind the stream's end")
                return
            if end:
                stream.remote_done = True
            self._headers(stream, head, end=end)
            if end and stream.local_done:
                self._forget(stream)
        elif stream_id > self.last_id:
            if self._client:
                raise ProtocolError(Code.PROTOCOL_ERROR, f"HEADERS on stream {stream_id}, which was never opened")
            self.last_id = stream_id
            self._opened(stream_id, head, end=end)
        elif stream_id not in self._recent and not self._client:
            raise ProtocolError(Code.STREAM_CLOSED, f"HEADERS on stream {stream_id}, which has ended")

    def _read_control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == frames.WINDOW_UPDATE:
            self._read_window_update(stream_id, payload)
        elif kind == frames.SETTINGS:
            self._read_settings(flags, stream_id, payload)
        elif kind == frames.PING:
            if len(payload) != 8:
                raise ProtocolError(Code.FRAME_SIZE_ERROR, "PING of another length than 8")
            if stream_id:
                raise ProtocolError(Code.PROTOCOL_ERROR, "PING on a stream")
            if flags & frames.ACK:
                self._pinged(payload)
            else:
                self._write(frames.frame(frames.PING, frames.ACK, 0, payload))
            self._hear_noise()
        elif kind == frames.RST_STREAM:
            if len(payload) != 4:
                raise ProtocolError(Code.FRAME_SIZE_ERROR, "RST_STREAM of another length than 4")
            if not stream_id or self._idle(stream_id):
                raise ProtocolError(Code.PROTOCOL_ERROR, f"RST_STREAM on stream {stream_id}, which was never opened")
            stream = self.streams.get(stream_id)
            code = int.from_bytes(payload, "big")
            if stream is not None:
                self._forget(stream)
                self._reset(stream, code)
            else:
                self._late_reset()
        elif kind == frames.CONTINUATION:
            self._continue(flags, payload)
        elif kind == frames.GOAWAY:
            if stream_id:
                raise ProtocolError(Code.PROTOCOL_ERROR, "GOAWAY on a stream")
            if len(payload) < 8:
                raise ProtocolError(Code.FRAME_SIZE_ERROR, "GOAWAY too short")
            self._hear_noise()
            last_id, code = int.from_bytes(payload[:4], "big") & MAX_STREAM, int.from_bytes(payload[4:8], "big")
            self._goaway(last_id, code, payload[8:].decode("ascii", "backslashreplace")[:MOST_DETAIL])
        elif kind == frames.PRIORITY:
            if not stream_id:
                raise ProtocolError(Code.PROTOCOL_ERROR, "PRIORITY on stream 0")
            if len(payload) != 5:
                raise ProtocolError(Code.FRAME_SIZE_ERROR, "PRIORITY of another length than 5")
            self._hear_noise()
        elif kind == frames.PUSH_PROMISE:
            raise ProtocolError(Code.PROTOCOL_ERROR, "PUSH_PROMISE, which nobody allowed")
        else:
            self._hear_noise()  # unknown: passed over (RFC 9113 5.5)

    def _read_window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ProtocolError(Code.FRAME_SIZE_ERROR, "WINDOW_UPDATE of another length than 4")
        by = int.from_bytes(payload, "big") & MAX_WINDOW
        if self._updates_left >= UPDATE_BYTES:
            self._updates_left -= UPDATE_BYTES
        else:
            self._hear_noise()
        if stream_id == 0:
            if by == 0:
                raise ProtocolError(Code.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
            if self.send_window <= 0:  # else what waits, waits for other windows
                self._opened_all = True
            self.send_window += by
            if self.send_window > MAX_WINDOW:
                raise ProtocolError(Code.FLOW_CONTROL_ERROR, "the connection's window is too large")
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            if self._idle(stream_id):
                raise ProtocolError(Code.PROTOCOL_ERROR, f"WINDOW_UPDATE on stream {stream_id}, never opened")
            return
        if by == 0:
            self._broken(stream, Code.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
            return
        stream.send_window += by
        if stream.send_window > MAX_WINDOW:
            self._broken(stream, Code.FLOW_CONTROL_ERROR, "the stream's window is too large")
        elif stream.waiting is not None:
            self._opened_some[stream] = None

    def _read_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ProtocolError(Code.PROTOCOL_ERROR, "SETTINGS on a stream")
        self._hear_noise(max(1, len(payload) // 6))
        if flags & frames.ACK:
            if payload:
                raise ProtocolError(Code.FRAME_SIZE_ERROR, "a SETTINGS acknowledgement with a payload")
            if not self._settled:
                raise ProtocolError(Code.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            return
        if len(payload) % 6:
            raise ProtocolError(Code.FRAME_SIZE_ERROR, "SETTINGS of a length that is no multiple of 6")
        window = self._peer_window
        for start in range(0, len(payload), 6):
            key = int.from_bytes(payload[start : start + 2], "big")
            value = int.from_bytes(payload[start + 2 : start + 6], "big")
            if key == frames.INITIAL_WINDOW_SIZE:
                if value > MAX_WINDOW:
                    raise ProtocolError(Code.FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE")
                window = value
            else:
                self._set(key, value)
        if window != self._peer_window:
            self._resize_windows(window)
        self._settled = True
        self._write(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self._settings()

    def _set(self, key: int, value: int) -> None:
        if key == frames.HEADER_TABLE_SIZE:
            self._encoder.resize(value)
        elif key == frames.ENABLE_PUSH:
            if value > 1 or (self._client and value):
                raise ProtocolError(Code.PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH")
        elif key == frames.MAX_CONCURRENT_STREAMS:
            self.peer_streams = value
        elif key == frames.MAX_FRAME_SIZE and not FRAME_BYTES <= value < 1 << 24:
            raise ProtocolError(Code.PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE")

    def _resize_windows(self, size: int) -> None:
        by = size - self._peer_window
        self._peer_window = size
        self._opened_all = self._opened_all or by > 0
        for stream in self.streams.values():
            stream.send_window += by
            if stream.send_window > MAX_WINDOW:
                raise ProtocolError(Code.FLOW_CONTROL_ERROR, "the stream's window is too large")

    def open_stream(self, call: object) -> Stream:
        """Open a stream (client)."""
        self.last_id = stream_id = self.last_id + 2 if self.last_id else 1
        stream = self.streams[stream_id] = Stream(self, stream_id, self._peer_window, call)
        return stream

    def take_stream(self, stream_id: int, call: object, *, end: bool) -> Stream:
        """Keep a stream that the client opened (server)."""
        stream = self.streams[stream_id] = Stream(self, stream_id, self._peer_window, call)
        stream.remote_done = end
        return stream


def keep(pieces: list[bytes], data: bytes) -> None:
    """Put ``data`` behind ``pieces``; small ones are put together, so that a byte a frame costs no object a byte."""
    if pieces and len(pieces[-1]) < SMALL_BYTES:
        pieces[-1] += data
    else:
        pieces.append(data)


def _unpadded(payload: bytes) -> bytes:
    """Return a payload without its padding (RFC 9113 6.1)."""
    if not payload or payload[0] >= len(payload):
        raise ProtocolError(Code.PROTOCOL_ERROR, "padding over the frame's length")
    return payload[1 : len(payload) - payload[0]]
