"""One connection to a worker: idle in its pool, or reading the answer to one request.

It is trusted with one answer at a time. Whatever it says while nobody asked poisons it: those bytes would become the
next caller's answer. Before it is used again the kernel is asked whether bytes or an end wait unread.
"""

from __future__ import annotations

import asyncio
import re
import select
from typing import TYPE_CHECKING, Final, cast

from router.outcomes import AttemptResult
from sidecar.http1.chunked import ChunkError, ChunkScanner
from sidecar.http1.events import between_events, streams_events
from sidecar.http1.head import CHUNKED, NO_ANSWER, UNTIL_CLOSE, HeadError, ResponseHead
from sidecar.http1.parsing import parse_response
from sidecar.http1.shapes import Learned
from sidecar.http1.transports import reset, unsent
from sidecar.tls.transport import RefusedError, TlsTransport, TruncatedError

if TYPE_CHECKING:
    from sidecar.upstreams.exchanging import Exchange
    from sidecar.upstreams.pool import Upstream

MAX_INTERIM: Final = 64
"""1xx answers to one request; more is a worker gone wrong."""
_BEGIN: Final = b"HTTP/1."
_LAST_CHUNK: Final = b"0\r\n\r\n"
_HOPELESS: Final = re.compile(rb"(?<!\r)\n|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""No head has such bytes: a bare LF, a control character."""

FULL: Final = 1
OLD: Final = 2
APART: Final = 4
"""Why a connection takes no further request: the worker does not read what was sent; its age; an injected fault."""

LARGE_BYTES: Final = 16384
"""Longer bodies are passed on without putting their beginning behind the head first: two copies of it less."""

_HEAD: Final = 0
_LENGTH: Final = 1
_CHUNKS: Final = 2
_TO_CLOSE: Final = 3
_TUNNEL: Final = 4
"""What an answer's next bytes are. Idle connections wait for a head."""


class UpstreamConnection(asyncio.Protocol):
    """One connection to a worker: idle in its pool, or reading the answer to one request."""

    __slots__ = (
        "_buffer",
        "_head",
        "_held",
        "_interims",
        "_last",
        "_last_method",
        "_left",
        "_learned",
        "_looked",
        "_mode",
        "_scanner",
        "_tail",
        "_upstream",
        "exchange",
        "idle_since",
        "paused",
        "readable",
        "retire_at",
        "tls",
        "transport",
        "unfit",
        "untaken_bytes",
        "was_reset",
    )

    def __init__(self, upstream: Upstream) -> None:
        self._upstream: Final = upstream
        self.exchange: Exchange | None = None
        self.idle_since = 0.0
        self._mode = _HEAD
        self._buffer = b""
        self._left = 0
        self._interims = 0
        self._held = False  # an error is kept back until enough of its body is there to be looked at
        self._looked = False  # and that was done
        self.paused = False
        self.retire_at = upstream.retire_at()
        self.was_reset = False
        self.untaken_bytes = 0  # of what was sent, as the worker closed before it answered
        self.unfit = 0  # why no further request goes out on it: FULL, OLD, APART
        self._last = NO_ANSWER  # workers answer many requests with the same head, or nearly so
        self._last_method = b""
        self._learned: Learned[ResponseHead] = Learned()
        self._tail = b""  # the last piece of a stream that went downstream
        self.readable = select.poll()  # asked before each reuse
        self.tls: TlsTransport | None = None
        self._head: ResponseHead
        self._scanner: ChunkScanner
        self.transport: asyncio.Transport

    def itself(self) -> UpstreamConnection:
        """Return it: a loop that connects wants to make its protocol."""
        return self

    # --- towards the worker -------------------------------------------------------------------------------------

    def begin(self, exchange: Exchange, data: bytes) -> None:
        """Send a request's head and what there is of its body; the answer goes to ``exchange``."""
        self.exchange = exchange
        self.transport.write(data)

    @property
    def given_up(self) -> bool:
        """True of one that ended, kept from an earlier request, before it said anything to the last."""
        return self.idle_since > 0 and not self._buffer and not self._interims

    @property
    def answer(self) -> ResponseHead | None:
        """The head of the answer that is being passed on; None while none is."""
        return self._head if self._mode in (_LENGTH, _CHUNKS, _TO_CLOSE) else None

    @property
    def looking(self) -> bool:
        """True while an error is kept back because more of it is to be looked at: its head came."""
        return self._held

    def look_no_longer(self) -> bool:
        """Pass an error on as it is, as far as it came, where it is kept back to be looked at; True where it was."""
        exchange = self.exchange
        if not self._held or exchange is None:
            return False
        self._held = False
        self._looked = True
        self._read_head(exchange, b"")
        return True

    def drop(self) -> None:
        """Close at once; whoever waited was told or has gone.

        A worker that does not read what it is sent would learn of an end only behind all of that: it is reset.
        """
        exchange, self.exchange = self.exchange, None
        self._mode = _HEAD
        self._upstream.open_connections.discard(self)
        if self.unfit & FULL or (exchange is not None and not exchange.request_done):
            reset(self.transport)
        else:
            self.transport.abort()

    def finish(self) -> None:
        """Close behind all that was written; a worker that does not take it is not waited for without end."""
        self.exchange = None
        self._mode = _HEAD
        self._upstream.open_connections.discard(self)
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self._upstream.abort_later(self.transport)

    def pause_reading(self) -> None:
        """The caller is full: read no more of the answer."""
        if not self.paused and not self.transport.is_closing():
            self.paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """The caller takes more, or the connection goes back to its pool."""
        if self.paused:
            self.paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    # --- asyncio.Protocol ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)
        if isinstance(transport, TlsTransport):
            self.tls = transport
        fd = transport.get_extra_info("socket").fileno()
        if fd >= 0:  # it may be closed already
            self.readable.register(fd, select.POLLIN)
        self._upstream.opened(self)

    def data_received(self, data: bytes) -> None:
        """Pass on what belongs to the answer."""
        exchange = self.exchange
        if exchange is None:
            if not self.transport.is_closing():
                self._upstream.poisoned(self)
                self.transport.abort()
            return
        self._upstream.sent_bytes += len(data)
        mode = self._mode
        try:
            if mode == _HEAD:
                self._read_head(exchange, data)
                return
            exchange.active = True
            if mode == _LENGTH:
                left = self._left - len(data)
                if left > 0:
                    self._left = left
                    exchange.sink.write(data)
                else:
                    exchange.sink.write(data if left == 0 else data[: self._left])
                    self._end(exchange, clean=left == 0)
            elif mode == _CHUNKS:
                self._read_chunks(exchange, b"", data)
            elif mode == _TUNNEL:
                exchange.sink.write(data)
            else:
                self._pass_until_close(exchange, b"", data)
        except Exception as error:  # noqa: BLE001  one request's end, not the process's
            self.drop()
            exchange.crashed(error)

    def eof_received(self) -> bool:
        """The worker's end: of the connection, but for a tunnel, which has two halves."""
        exchange = self.exchange
        if exchange is not None and self._mode == _HEAD:
            self.untaken_bytes = unsent(self.transport)
        return exchange is not None and self._mode == _TUNNEL and exchange.worker_finished()

    def connection_lost(self, exc: Exception | None) -> None:
        """Settle with whoever waited for an answer."""
        self._upstream.forget(self)
        exchange = self.exchange
        if exchange is None:
            return
        try:
            self._ended_by_worker(exchange, exc)
        except Exception as error:  # noqa: BLE001
            self.exchange = None
            exchange.crashed(error)

    def _ended_by_worker(self, exchange: Exchange, exc: Exception | None) -> None:
        if self.look_no_longer() and self.exchange is None:  # an error whose body did not go on
            return
        if self._mode == _TO_CLOSE and exc is None:
            if not exchange.old_client:
                exchange.sink.write(b"0\r\n\r\n")
            self._end(exchange, clean=False)
            return
        self.exchange = None
        if self._mode == _TUNNEL:
            exchange.tunnel_lost(exc)
            return
        began = self._mode != _HEAD
        self._mode = _HEAD
        if isinstance(exc, RefusedError):  # by TLS, before the worker saw a request
            exchange.attempt_failed(AttemptResult.CONNECT_REFUSED, f"{self._upstream.id}: {exc}")
            return
        self.was_reset = isinstance(exc, ConnectionResetError)
        what = "closed" if exc is None else f"failed ({exc if isinstance(exc, TruncatedError) else type(exc).__name__})"
        if began:
            exchange.attempt_failed(AttemptResult.CUT, f"{self._upstream.id}: the connection {what} inside the answer")
        else:
            where = "inside" if self._buffer else "before"
            exchange.attempt_failed(
                AttemptResult.RESET, f"{self._upstream.id}: the connection {what} {where} the response head"
            )

    def pause_writing(self) -> None:
        """The worker does not read the request as fast as it comes."""
        self.unfit |= FULL
        if self.exchange is not None:
            self.exchange.upstream_full(full=True)

    def resume_writing(self) -> None:
        """The worker reads again."""
        self.unfit &= ~FULL
        if self.exchange is not None:
            self.exchange.upstream_full(full=False)

    # --- reading ------------------------------------------------------------------------------------------------

    def _read_head(self, exchange: Exchange, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
            self._held = False
        method = exchange.method
        while True:
            head = self._last
            end = head.again(data) if method == self._last_method else 0
            if not end:
                end = data.find(b"\r\n\r\n") + 4
                if end == 3:
                    self._read_part_of_head(exchange, data)
                    return
                if end > self._upstream.max_head_bytes:
                    self._fail(exchange, "the response head is over the limit")
                    return
                try:
                    head = self._read_another_head(data[:end], method)
                except HeadError as error:
                    self._fail(exchange, error.detail)
                    return
            if head.status >= 200:
                break
            rest = data[end:]
            if head.status == 101:
                self._mode = _TUNNEL
                why = exchange.switched(head, rest)
                if why:
                    self._fail(exchange, why)
                return
            self._interims += 1
            if self._interims > MAX_INTERIM:
                self._fail(exchange, f"more than {MAX_INTERIM} interim answers")
                return
            exchange.interim(head)
            if self.exchange is None:
                return
            data = rest
        if self._interims:
            self._interims = 0
        length = head.length
        if head.status >= 400:
            if not self._looked and self._looks(exchange, head, data, end):
                return
            self._looked = False
            if exchange.set_aside(head):
                self._let_go(exchange, head, len(data) - end == length)
                return
        if length > LARGE_BYTES and len(data) > end:
            self._begin_large(exchange, head, memoryview(data)[end:])
            return
        rest = data[end:]
        if length >= 0:
            extra = len(rest) - length
            if extra == 0:
                exchange.whole_answer(self._let_go(exchange, head, True), head, rest)
            elif extra > 0:
                exchange.whole_answer(self._let_go(exchange, head, False), head, rest[:length])
            else:
                self._head = head
                self._mode = _LENGTH
                self._left = -extra
                out = exchange.begin_answer(head)
                exchange.sink.write(out + rest)
        elif length == CHUNKED:
            self._head = head
            self._scanner = ChunkScanner(decode=exchange.old_client)
            self._tail = b""
            self._read_chunks(exchange, head, rest)
        else:
            self._head = head
            self._mode = _TO_CLOSE
            self._tail = b""
            self._pass_until_close(exchange, exchange.begin_answer(head), rest)

    def _looks(self, exchange: Exchange, head: ResponseHead, data: bytes, end: int) -> bool:
        """Look at the beginning of an error's body; True where more of it has to come first.

        It is searched as it stands on the wire. What was kept is read again with what follows, up to as much as is
        looked at, so nothing but this knows of it.
        """
        most = exchange.looks_at(head)
        if not most:
            return False
        body = data[end : end + most]
        length = head.length
        whole = len(body) == most or (0 <= length <= len(body)) or (length == CHUNKED and body.endswith(_LAST_CHUNK))
        if exchange.recognise(head, body) or whole:
            return False
        self._held = True
        self._buffer = data
        return True

    def _begin_large(self, exchange: Exchange, head: ResponseHead, body: memoryview) -> None:
        """Pass on a head and what came with it of a body that is worth not being copied for that."""
        self._head = head
        self._mode = _LENGTH
        self._left = left = head.length - len(body)
        out = exchange.begin_answer(head)
        exchange.sink.writelines((out, body if left >= 0 else body[: head.length]))
        if left <= 0:
            self._end(exchange, clean=left == 0)

    def _read_part_of_head(self, exchange: Exchange, data: bytes) -> None:
        known = data[: len(_BEGIN)]
        if (
            len(data) > self._upstream.max_head_bytes
            or _HOPELESS.search(data)
            or known != _BEGIN[: len(known)]  # it can become nothing else by waiting
        ):
            self._fail(exchange, "the response head is over the limit or not HTTP")
        else:
            self._buffer = data

    def _read_another_head(self, raw: bytes, method: bytes) -> ResponseHead:
        """Read a head that is not like the last one; HeadError where it has no one good reading."""
        head = self._learned.find(raw, method)
        if head is None:
            head = parse_response(raw, method)
            if head.status >= 200 and head.status not in (204, 304) and method != b"HEAD":
                upstream = self._upstream
                self._learned.read_in_full(head, upstream.shapes, upstream.clock, upstream.max_head_bytes, method)
        self._last, self._last_method = head, method
        return head

    def _read_chunks(self, exchange: Exchange, head: ResponseHead | bytes, data: bytes) -> None:
        """Pass chunks on; with a head, nothing has gone downstream yet, so broken framing can still become a 502."""
        scanner = self._scanner
        try:
            out = scanner.feed(data)
        except ChunkError as error:
            self._tail = b"broken"
            self._fail(exchange, str(error))
            return
        if out:
            self._tail = out
        if head:
            out = exchange.begin_answer(cast("ResponseHead", head)) + out
            self._mode = _CHUNKS
        if out:
            exchange.sink.write(out)
        if scanner.done:
            if scanner.trailers:
                exchange.trailers(scanner.trailers)
            self._end(exchange, clean=not scanner.rest)

    def between_events(self) -> bool:
        """Return whether the answer is a stream of events, passed on up to between two of them."""
        head = self._head
        if not streams_events(head.forward):
            return False
        if head.length == CHUNKED:
            return self._scanner.between_chunks and between_events(self._tail, chunked=True)
        return head.length == UNTIL_CLOSE and between_events(self._tail, chunked=False)

    def _pass_until_close(self, exchange: Exchange, head: bytes, data: bytes) -> None:
        if data:
            self._tail = data
        if data and not exchange.old_client:
            data = b"%x\r\n%s\r\n" % (len(data), data)
        if head or data:
            exchange.sink.write(head + data)

    def _end(self, exchange: Exchange, *, clean: bool) -> None:
        head = self._head
        exchange.answer_ended(self._let_go(exchange, head, clean), head)

    def _let_go(self, exchange: Exchange, head: ResponseHead, clean: bool) -> float:
        """The answer is here: back into the pool, or away. Returns the time."""
        upstream = self._upstream
        self.exchange = None
        self._mode = _HEAD
        now = upstream.clock()
        if clean and head.keep_alive and not self.unfit and exchange.request_done:
            idle = upstream.idle  # Upstream.release by hand: this is every request
            if not self.paused and not upstream.closed and len(idle) < upstream.max_idle:
                self.idle_since = now
                idle.append(self)
            else:
                upstream.release(self, now)
        else:
            upstream.open_connections.discard(self)
            self.transport.abort()
        return now

    def _fail(self, exchange: Exchange, detail: str) -> None:
        self.drop()
        exchange.attempt_failed(AttemptResult.PROTOCOL, f"{self._upstream.id}: {detail}")
