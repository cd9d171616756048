"""A caller's connection as such: its state, what is written to it, how it closes, when it is read.

What concerns requests stands above it: ``endings`` ends a request, ``exchange`` has it carried and answered,
``downstream`` reads it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol, cast

from sidecar.http1.forwarding import STRANGER, ListenerRules
from sidecar.http1.head import NO_HEAD
from sidecar.http1.shapes import Learned
from sidecar.http1.transports import limit_flush, much_unsent, reset, unread
from sidecar.telemetry.page import Scalar

if TYPE_CHECKING:
    from router.outcomes import AttemptResult
    from router.routes import Attempt
    from sidecar.http1.chunked import ChunkScanner
    from sidecar.http1.downstream import DownstreamConnection
    from sidecar.http1.head import RequestHead
    from sidecar.http1.look import Look
    from sidecar.http1.plane import Plane
    from sidecar.http1.targets import Target
    from sidecar.http1.watch import Watch
    from sidecar.upstreams.connection import UpstreamConnection
    from sidecar.upstreams.exchanging import Sink

NEW: Final = 0
IDLE: Final = 1
READING: Final = 2
BODY: Final = 3
WAITING: Final = 4
ANSWERING: Final = 5
TUNNEL: Final = 6
LINGERING: Final = 7
CLOSED: Final = 8
"""The phases of a connection, in order: NEW, no request yet; IDLE, between requests; READING, part of a head is here;
BODY, the request's body is coming; WAITING, the request is complete, no answer yet; ANSWERING, the answer has begun;
TUNNEL, it was 101, bytes pass both ways; LINGERING, answered, input is thrown away; CLOSED. A request is in hand from
BODY to TUNNEL."""

LINGER_S: Final = 2.0
LINGER_BYTES: Final = 1 << 20
"""How long and how much input is read and thrown away behind a refusal, so that the caller can read it (a reset would
destroy it, RFC 9112 9.6)."""
ANY_LISTENER: Final = ListenerRules()
LAME_DUCK_S: Final = 1.0
"""How long an idle connection that is to be closed is kept, so that a request already on its way is still answered."""
NEVER: Final = float("inf")
SHUT: Final = -2
HEALTH_ONLY: Final = -3
"""Gates that every request stops at (the lengths of bodies begin at -1, for chunks): there is no room for work, or this
is a connection over the limit, of which only questions for the process's health are answered."""


class Timer(Protocol):
    """What a request waits for: a timer of the loop, or its place in a queue.

    To be cancelled is all that it can do on every loop: with no delay, uvloop's ``call_later`` returns a handle that
    has no ``when()``. So whoever waits notes the moment itself (``_held_until``).
    """

    def cancel(self) -> None:
        """Wait for it no more."""


class CallerConnection(asyncio.Protocol):
    """The state of one caller's connection, and what can be done to it whatever is asked on it."""

    __slots__ = (
        "_attempt",
        "_body_at",
        "_body_from",
        "_buffer",
        "_calm",
        "_close_after",
        "_discarded",
        "_ended",
        "_fault",
        "_generation",
        "_head",
        "_held_until",
        "_head_at",
        "_last_head",
        "_left",
        "_look",
        "_meant",
        "_peer",
        "_opened_s",
        "_peer_full",
        "_known_target",
        "_phase",
        "_plain",
        "_watched",
        "_plane",
        "_read_paused",
        "_reader_at",
        "_reader_from",
        "_reader_last",
        "_request_id",
        "_rules",
        "_scanner",
        "_seen",
        "_learned",
        "_sent_head",
        "_started",
        "_target",
        "_target_text",
        "_ticket",
        "_timer",
        "_tries",
        "_upstream",
        "_watch",
        "_whole",
        "_write_paused",
        "active",
        "deadline",
        "gate",
        "last",
        "method",
        "old_client",
        "request_done",
        "rest_s",
        "retire_at",
        "sink",
        "transport",
    )

    def __init__(self, plane: Plane, rules: ListenerRules = ANY_LISTENER) -> None:
        self._plane: Final = plane
        self._rules: Final = rules
        self._peer = STRANGER
        self._phase = NEW
        self._buffer = b""
        self._last_head = NO_HEAD  # as it came
        self._learned: Learned[RequestHead] = Learned()
        self._head = NO_HEAD  # of the request in hand
        self._target: Target  # of the request in hand; these two are set before anything reads them
        self._known_target: Target  # what ``_target_text`` meant at ``_generation`` of the cluster's routes
        self._target_text = b""
        self._generation = -1
        self._attempt: Attempt | None = None
        self._upstream: UpstreamConnection | None = None
        self._scanner: ChunkScanner | None = None
        self._meant: tuple[Attempt, AttemptResult] | None = None  # what an error was recognised as
        self._look: Look | None = None  # at a body that is to name its model
        self._timer: Timer | None = None
        self._held_until = 0.0  # when that is over at the latest, monotonic seconds
        self._watch: Watch | None = None  # of the request in hand, where it has limits of its own
        self._calm: Watch | None = None  # one that may be used again
        self._left = 0
        self._started = 0.0
        self._tries = 0
        self._watched = False  # requests with this head to this target have limits of their own
        self._plain = False  # nothing about the request in hand is special, so far: see ``whole_answer``
        self._ticket = 0
        self._seen = b""
        self._whole = True
        self._fault = ""  # the faults that struck the attempt in hand, or the last one
        self._sent_head = b""
        self._request_id = b""
        self._close_after = False
        self._read_paused = False
        self._write_paused = False
        self._peer_full = False
        self._discarded = 0
        self._body_at = 0.0  # since when, and from where on, the speed of a body is measured; 0: anew at the next sweep
        self._body_from = 0
        self._reader_at = 0.0  # the same for what the caller has yet to take
        self._reader_from = 0
        self._reader_last = 0  # what that was at the last sweep
        self._ended = 0  # of a tunnel: which sides have; and how long it took to open
        self._opened_s = 0.0
        self._head_at = 0.0  # when the head of an answer came of which more was to come; 0 for any other
        self.active = False
        self.deadline = 0.0
        self.gate = 0  # the longest body, by its length, with which a request passes without a further look
        self.last = False  # the next answer closes the connection
        self.rest_s = NEVER  # the longest it may be idle, where it is to end
        self.retire_at = NEVER
        self.method = b""
        self.old_client = False
        self.request_done = True
        self.transport: asyncio.Transport
        self.sink: Sink  # where a worker's answer is written: the transport, but while one is kept

    def _say(self, data: bytes) -> None:
        """Send an answer of warmroute's own."""
        self._plane.count(Scalar.SENT_BYTES, len(data))
        self.transport.write(data)

    def _linger(self) -> None:
        """Close so that what was written arrives: shut our side, throw away input for a moment, then close."""
        self._phase = LINGERING
        self._buffer = b""
        self._discarded = 0
        self.active = False
        self.deadline = self._plane.clock() + LINGER_S
        self._plane.unread.discard(cast("DownstreamConnection", self))
        if self.gate == HEALTH_ONLY:
            self._plane.part(self)
        if self._read_paused:
            self._resume_reading()
        if not self.transport.can_write_eof():
            self.transport.close()
        elif not self.transport.is_closing():
            self.transport.write_eof()

    def _close(self) -> None:
        """Close behind what was written.

        A closed connection's bytes stay in the kernel for minutes (megabytes, of which no limit here knows), where its
        caller does not take them. So only the little that one takes at once is left to it, and not without limit; for
        more than that the caller is waited for here.
        """
        transport = self.transport
        if not transport.is_closing():
            if much_unsent(transport):
                self._linger()
                return
            limit_flush(transport, self._plane.limits.read_grace_s)
            transport.close()
        self._phase = CLOSED
        self.active = False
        self.deadline = self._plane.clock() + LINGER_S

    def _hang_up(self) -> None:
        """Close so that nobody takes an answer that had begun for a whole one; who does not read is not waited for."""
        transport = self.transport
        if self._write_paused or (self._head.minor == 0 and not transport.is_closing()):
            # An HTTP/1.0 answer may end with its connection: only a reset tells it from a whole one.
            reset(transport)
        else:
            self._close()

    def end_now(self) -> None:
        """End the connection; with a reset where something is lost by that, so that nobody keeps the rest."""
        if self.transport.get_write_buffer_size():
            reset(self.transport)
        else:
            limit_flush(self.transport, self._plane.limits.read_grace_s)
            self.transport.abort()

    def left(self, *, broken: bool) -> None:
        """The caller has gone, and only the kernel knows, because it is not being read; ``broken``: with a reset."""
        if broken:
            self.transport.abort()

    @property
    def phase(self) -> int:
        """Where the connection stands: NEW to CLOSED."""
        return self._phase

    @property
    def busy(self) -> bool:
        """True while a request is in hand."""
        return BODY <= self._phase < LINGERING

    @property
    def kept_bytes(self) -> int:
        """What is kept of a body that has yet to name its model."""
        return 0 if self._look is None else len(self._look.kept)

    @property
    def idle(self) -> bool:
        """True between two requests."""
        return self._phase == IDLE

    def close_if_idle(self) -> None:
        """Close a connection that waits for nothing (draining), unless a request waits in it that was not read yet."""
        pipelined = len(self._buffer) > 1 and not self._write_paused  # it is taken in this turn of the loop
        if self._phase in (NEW, IDLE) and not pipelined and (self._read_paused or not unread(self.transport)):
            self._close()

    def retire(self, now: float, idle_s: float) -> None:
        """Let the next answer be the last on this connection; one that stays idle for ``idle_s`` more is closed.

        What is being answered goes on to its end, however long that takes: its caller does not know yet, and may ask
        once more.
        """
        self.last = True
        self.rest_s = min(self.rest_s, idle_s)
        self.retire_at = NEVER
        if self._phase in (NEW, IDLE):
            self.deadline = min(self.deadline, now + idle_s)
        elif BODY <= self._phase < ANSWERING:
            self._close_after = True
            self._plain = False

    def _pause_reading(self) -> None:
        if not self._read_paused and not self.transport.is_closing():
            self._read_paused = True
            self.transport.pause_reading()
            self._plane.hangups.paused(self)

    def _resume_reading(self) -> None:
        if self._read_paused:
            self._read_paused = False
            self._plane.hangups.resumed(self)
            self._body_at = 0.0  # that it came no faster was our doing
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def _read_on(self) -> None:
        """Resume reading, unless too much is pipelined already: then requests are taken from that first."""
        if len(self._buffer) <= self._plane.limits.pipelined:
            self._resume_reading()
