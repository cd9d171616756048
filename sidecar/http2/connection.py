"""One HTTP/2 connection, in either role: what comes in, and limits on hostile peers. How things go out: ``sending``.

What a stream's messages mean is the business of the two subclasses (``sidecar/grpc``). What is written in one turn of
the loop leaves in one write. Nothing here makes a task or a timer; a sweep looks at deadlines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, cast

from sidecar.http2 import frames
from sidecar.http2.frames import FRAME_BYTES, HEAD, MAX_STREAM, MAX_WINDOW, WINDOW, Code, ProtocolError
from sidecar.http2.hpack import Decoder
from sidecar.http2.sending import Sender
from sidecar.http2.stream import Stream

if TYPE_CHECKING:
    import asyncio

    from sidecar.http2.hpack import Field
    from sidecar.http2.sending import Flusher

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
MOST_DETAIL: Final = 256
"""Characters of what a peer says in its GOAWAY that are passed on."""
_MEMO: Final = 32


class Head:
    """A header block's meaning. ``malformed`` says why it is none (RFC 9113 8.1.1); empty: it is one."""

    __slots__ = ("malformed",)

    malformed: str


class Connection(Sender, ABC):
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
        "_head_bytes",
        "_memo",
        "_noise",
        "_owed",
        "_prefaced",
        "_receive_window",
        "_settled",
        "last_id",
        "peer_streams",
        "received_bytes",
    )

    def __init__(self, flusher: Flusher, *, client: bool, head_bytes: int, fields: int) -> None:
        super().__init__(flusher)
        self._client = client
        self._head_bytes = head_bytes
        self._decoder = Decoder(head_bytes, fields)
        self._memo: dict[bytes, Head] = {}
        self._buffer = b""
        self._block = b""
        self._block_stream = 0  # the stream whose header block is not whole yet, 0: none
        self._block_at = 0.0  # when it began
        self._block_end = False
        self._block_frames = 0
        self._owed = 0
        self._receive_window = WINDOW
        self._prefaced = client  # a client's preface has been read
        self._settled = False  # the peer's first SETTINGS has been read
        self._noise = 0
        self._discarded = 0
        self.last_id = 0  # the highest stream that was opened
        self.peer_streams = MAX_STREAM  # the peer's SETTINGS_MAX_CONCURRENT_STREAMS
        self.received_bytes = 0

    # --- what subclasses say ----------------------------------------------------------------------------------------

    @abstractmethod
    def _parse(self, fields: list[Field], *, oversized: bool) -> Head:
        """Return what a header block means; it may be kept and given again for an equal block."""

    @abstractmethod
    def _opened(self, stream_id: int, head: Head, *, end: bool) -> None:
        """The peer opened a stream, which has a higher id than any before."""

    @abstractmethod
    def _headers(self, stream: Stream, head: Head, *, end: bool) -> None:
        """A header block came on an open stream."""

    @abstractmethod
    def _data(self, stream: Stream, data: bytes, *, end: bool) -> None:
        """Bytes came on an open stream; they are to be credited when they have gone on (``credit``)."""

    @abstractmethod
    def _reset(self, stream: Stream, code: int) -> None:
        """The peer reset a stream, which is gone already."""

    def _late_reset(self) -> None:
        """The peer reset a stream that had ended."""

    def _goaway(self, last_id: int, code: int, detail: str) -> None:
        """The peer will open no stream, or answer none above ``last_id``, and says why."""

    def _settings(self) -> None:
        """The peer's settings came."""

    def _pinged(self, payload: bytes) -> None:
        """The peer answered a ping."""

    @abstractmethod
    def crashed(self, error: Exception) -> None:
        """Report an error of warmroute's own and end the connection."""

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

    def fail(self, code: Code, detail: str) -> None:
        """End the connection because of what the peer did, and say why (RFC 9113 5.4.1)."""
        if not self.ended:
            self.goaway(self.last_id, code, detail)
            self.end()

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
        self._leave_if_stuck(now)
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


def _unpadded(payload: bytes) -> bytes:
    """Return a payload without its padding (RFC 9113 6.1)."""
    if not payload or payload[0] >= len(payload):
        raise ProtocolError(Code.PROTOCOL_ERROR, "padding over the frame's length")
    return payload[1 : len(payload) - payload[0]]
