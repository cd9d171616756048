"""What a caller's connection may not do: be too slow, or ask for work while there is no room for more.

None of it is looked at per request: rates are measured in the sweep, and the gate is the test of a body's length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from router.matching import Surface
from router.outcomes import AttemptResult, Outcome
from sidecar.http1.answers import error_answer
from sidecar.http1.caller import ANSWERING, HEALTH_ONLY, LINGERING, NEVER, READING, TUNNEL
from sidecar.http1.naming import NamingConnection
from sidecar.http1.targets import OWN_PATHS
from sidecar.http1.transports import much_unsent, reset, unsent
from sidecar.telemetry.page import Scalar

if TYPE_CHECKING:
    from sidecar.http1.downstream import DownstreamConnection

LIVE: Final = b"/v2/health/live"
TOO_MANY: Final = "too many connections"
_FLOWING: Final = frozenset({ANSWERING, TUNNEL})
"""Phases whose idle time begins anew whenever the caller takes something."""


class BoundedConnection(NamingConnection):
    """A caller's connection within its bounds."""

    __slots__ = ()

    # --- no room ----------------------------------------------------------------------------------------------------

    def _stopped(self, length: int, now: float) -> bool:
        """Answer a request that stops at the gate; False where it may pass after all."""
        plane = self._plane
        spare = self.gate == HEALTH_ONLY
        if spare or plane.refusing:
            head = self._head
            path = head.target.partition(b"?")[0]
            health = path == LIVE or (path in OWN_PATHS and not plane.refusing)
            if health and head.method in (b"GET", b"HEAD"):
                self._answer_for_server(path, OWN_PATHS[path], now)
                return True
            plane.count(Scalar.REFUSED_CONNECTIONS_TOTAL if spare else Scalar.OVERLOAD_REFUSED_TOTAL)
            self._end_with(Outcome.OVERLOADED, TOO_MANY if spare else plane.refusing)
            return True
        if length > plane.body_bytes:
            self._end_with(Outcome.BODY_TOO_LARGE, f"{length} bytes, at most {plane.body_bytes}")
            return True
        return False

    def turn_away(self) -> None:
        """Refuse a connection over the limit, whatever it might have asked for, unless it was answered already."""
        if self._phase > READING:
            return
        self._plane.count(Scalar.REFUSED_CONNECTIONS_TOTAL)
        self.transport.write(error_answer(Surface.PLAIN, Outcome.OVERLOADED, TOO_MANY, close=True))
        self._linger()

    # --- too slow ---------------------------------------------------------------------------------------------------

    def _watch_body(self, now: float) -> None:
        """End a request whose body comes too slowly, while it is the caller that we wait for.

        The average counts from its first byte, or from when we read on after a pause; it begins anew as often as the
        caller might have been silent, so that nobody lives for hours on bytes that came at first.
        """
        limits = self._plane.limits
        came = -self._left
        since = now - self._body_at
        if self._read_paused:
            self._body_at = 0.0
        elif not self._body_at:
            self._body_at = now
        elif since >= limits.rate_grace_s:
            taken = came - self._body_from
            if taken < limits.body_rate_bytes_per_s * since:
                least = limits.body_rate_bytes_per_s
                self._fail_request(
                    Outcome.CLIENT_TIMEOUT, f"{taken} bytes of the body in {since:.0f} s, at least {least} a second"
                )
            elif since >= self._plane.timeouts.client_body_idle_s:
                self._body_at, self._body_from = now, came

    def watch_reader(self, now: float) -> None:
        """Cut a caller that takes too slowly what has piled up for it.

        What it takes is what its kernel acknowledges. One whose buffer was full says nothing before a sixteenth of that
        is free, which may be megabytes: hence a grace of its own.
        """
        limits = self._plane.limits
        closing = self._phase >= LINGERING
        if closing and not much_unsent(self.transport):
            self.end_now()
            return
        waiting = unsent(self.transport)
        since = now - self._reader_at
        if waiting < self._reader_last and self._phase in _FLOWING:
            self.active = True
        self._reader_last = waiting
        if not self._reader_at or waiting > self._reader_from:
            self._reader_at, self._reader_from = now, waiting
        elif since >= limits.read_grace_s:
            least = max(int(closing), limits.read_rate_bytes_per_s * since)
            if self._reader_from - waiting < least:
                self._too_slow(now)
            else:
                self._reader_at, self._reader_from = now, waiting

    def _linger_on(self) -> None:
        """A closing connection's time is over: end it, unless much waits for its caller, who is watched from now on."""
        if much_unsent(self.transport):
            self.deadline = NEVER
            self._reader_at = 0.0
            self._plane.unread.add(cast("DownstreamConnection", self))
        else:
            self.end_now()

    def _too_slow(self, now: float) -> None:
        self._plane.count(Scalar.SLOW_READERS_TOTAL)
        if self.busy:
            self._drop_upstream()
            self._settle(AttemptResult.CANCELLED, now)
            self._cut(Outcome.CLIENT_TIMEOUT)
        reset(self.transport)
