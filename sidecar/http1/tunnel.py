"""What becomes of a request whose worker switched protocols: a tunnel of bytes between two connections.

From the 101 on nobody here reads what passes. Each side is read only as fast as the other takes it: nothing is held but
what the transports hold up to their high-water marks. An end of one direction is passed on as such, so that the other
may still finish; a tunnel is over when both have ended, either side broke, or nothing moved for too long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from router.outcomes import AttemptResult, Outcome
from sidecar.http1.caller import LINGER_S, LINGERING, TUNNEL, CallerConnection
from sidecar.http1.forwarding import VIA

if TYPE_CHECKING:
    import asyncio

    from sidecar.http1.head import ResponseHead

HALF_OPEN_S: Final = 30.0
"""Longest silence of a tunnel that one side has ended."""

_CUTS: Final = frozenset({Outcome.TUNNEL_IDLE, Outcome.DRAIN_CUT})
"""Ends that are warmroute's own doing: whoever does not read then gets no time for it."""
_CALLER: Final = 1
_WORKER: Final = 2
_BOTH: Final = 3


class TunnelConnection(CallerConnection):
    """A caller's connection that may become one end of a tunnel; its request is in hand until that is over."""

    __slots__ = ()

    def switched(self, head: ResponseHead, data: bytes) -> str:
        """The worker said 101, and ``data`` behind it: open the tunnel, or return why that is refused."""
        asked = self._head.upgrade
        upstream, attempt = self._upstream, self._attempt
        if not asked or upstream is None or attempt is None:
            return "switched protocols unasked"
        if not all(protocol in asked for protocol in head.upgrade):
            return f"switched to {b', '.join(head.upgrade)[:80]!r}, asked for {b', '.join(asked)[:80]!r}"
        plane = self._plane
        now = plane.clock()
        out = head.forward
        if not head.has_request_id:
            out += b"x-request-id: " + (self._request_id or self._head.request_id()) + b"\r\n"
        self._phase = TUNNEL
        self._ended = 0
        self._opened_s = now - self._started
        self.deadline = now + plane.timeouts.tunnel_idle_s
        self._seen = b""
        if self._watch is not None:  # its time was that of an answer
            self._watch.close()
            self._watch = None
        plane.tunnel_began(attempt, now)
        self.transport.write(out + VIA + b"\r\n" + data)
        early, self._buffer = self._buffer, b""
        if early:
            upstream.transport.write(early)
        if self._read_paused and not self._peer_full:
            self._resume_reading()
        return ""

    def _tunnel_idle_s(self) -> float:
        """Return how long the tunnel may be silent."""
        idle_s = self._plane.timeouts.tunnel_idle_s
        return min(idle_s, HALF_OPEN_S) if self._ended else idle_s

    def _caller_finished(self) -> bool:
        """The caller sends nothing more; return whether its connection stays open for what still comes back."""
        upstream = self._upstream
        return upstream is not None and self._finished(_CALLER, upstream.transport)

    def worker_finished(self) -> bool:
        """The worker sends nothing more; return whether its connection stays open for what still goes there."""
        upstream = self._upstream
        return upstream is not None and self._finished(_WORKER, self.transport)

    def _finished(self, side: int, to: asyncio.Transport) -> bool:
        """Pass on that ``side`` has ended (over TLS as close_notify); where both have, the tunnel is over.

        Where the other side has just been lost, that is about to be told, and is how the tunnel ends.
        """
        self._ended |= side
        if self._ended == _BOTH:
            self._end_tunnel(Outcome.OK, AttemptResult.SUCCESS)
            return False
        self.active = True
        if not to.is_closing():
            to.write_eof()
        return True

    def tunnel_lost(self, exc: Exception | None) -> None:
        """The worker's connection is gone."""
        self._upstream = None
        if exc is None or self._ended & _WORKER:
            self._end_tunnel(Outcome.OK, AttemptResult.SUCCESS)
        else:
            self._end_tunnel(Outcome.UPSTREAM_CUT, AttemptResult.CUT)

    def _caller_lost(self) -> None:
        """The caller's connection is gone: so is the worker's, at once."""
        upstream = self._upstream
        if upstream is not None:
            self._upstream = None
            upstream.drop()
        self._end_tunnel(Outcome.CLIENT_ABORT, AttemptResult.CANCELLED)

    def _tunnel_expired(self) -> None:
        """Nothing moved for too long."""
        if self._ended:
            self._end_tunnel(Outcome.OK, AttemptResult.SUCCESS)
        else:
            self._end_tunnel(Outcome.TUNNEL_IDLE, AttemptResult.CANCELLED)

    def _end_tunnel(self, outcome: Outcome, result: AttemptResult) -> None:
        """Count it, and close both sides behind what they were still sent."""
        plane = self._plane
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            plane.tunnel_ended(attempt, result, self._opened_s)
        plane.request_ended(self._target.row, outcome, self._opened_s)
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.finish()
        self._phase = LINGERING
        self.active = False
        self.deadline = plane.clock() + LINGER_S
        if outcome in _CUTS:
            self._hang_up()
        else:
            self._close()
