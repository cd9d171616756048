"""A caller's connection: one request at a time, kept for the next one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, cast

from sidecar.http1.head import UNTIL_CLOSE
from sidecar.traffic.answers import MAX_ANSWER_BYTES
from sidecar.traffic.reading import Reading, UnreadableError
from sidecar.traffic.samples import Ended

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.traffic.requests import Timed


class Call(Protocol):
    """A request under way, as its connection sees it."""

    request: Timed
    first_byte_at: float | None
    """Of the owner's clock; set by the connection."""

    def answered(self, reading: Reading) -> None:
        """The answer is whole; the connection may already have another call."""

    def failed(self, ended: Ended, error: str, reading: Reading) -> None:
        """It will get no whole answer."""


class Owner(Protocol):
    """Who has connections."""

    def idle(self, connection: Connection) -> None:
        """The connection can take the next request."""

    def gone(self, connection: Connection) -> None:
        """It can take none any more."""

    def unasked(self) -> None:
        """Bytes came that answer nothing."""


class Connection(asyncio.Protocol):
    """One connection. ``now`` is the owner's clock, and ``idle_since`` is of it."""

    def __init__(self, owner: Owner, now: Callable[[], float]) -> None:
        self._owner = owner
        self._now = now
        self._transport: asyncio.Transport | None = None
        self._call: Call | None = None
        self._reading = Reading("GET")
        self.idle_since = 0.0

    def begin(self, call: Call, head: bytes) -> None:
        """Send a request; the call hears how it ends, once."""
        self._call = call
        request = call.request
        self._reading = Reading(request.method, MAX_ANSWER_BYTES if request.take else len(request.ends_with))
        if self._transport is None or self._transport.is_closing():  # between being opened and now
            self._fail(Ended.CUT, "closed")
        else:
            self._transport.write(head + request.body)

    def drop(self) -> Reading:
        """Close at once; the call, if there is one, hears nothing any more. Return what it had read."""
        self._call = None
        if self._transport is not None:
            self._transport.abort()
        return self._reading

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Read on."""
        call, reading = self._call, self._reading
        if call is None:
            self._owner.unasked()
            self.drop()
            return
        if call.first_byte_at is None:
            call.first_byte_at = self._now()
        try:
            whole = reading.feed(data)
        except UnreadableError as error:
            self._fail(Ended.WRONG, str(error))
            return
        if whole:
            self._whole(call, reading)

    def eof_received(self) -> None:
        """The other side sends nothing more; what ends with its connection is whole."""
        call = self._call
        if call is not None and self._reading.closed():
            self._whole(call, self._reading)

    def connection_lost(self, exc: Exception | None) -> None:
        """A request in hand is lost with it."""
        self._owner.gone(self)
        self._fail(Ended.CUT, "closed" if exc is None else type(exc).__name__)

    def _whole(self, call: Call, reading: Reading) -> None:
        self._call = None
        head = reading.head
        if reading.rest:
            self._owner.unasked()
        if head is not None and head.keep_alive and head.length != UNTIL_CLOSE and not (reading.rest or self.closing):
            self.idle_since = self._now()
            self._owner.idle(self)
        elif self._transport is not None:
            self._transport.abort()
        call.answered(reading)

    @property
    def closing(self) -> bool:
        """True where it will take no request any more."""
        return self._transport is None or self._transport.is_closing()

    def _fail(self, ended: Ended, error: str) -> None:
        call, self._call = self._call, None
        if self._transport is not None:
            self._transport.abort()
        if call is not None:
            call.failed(ended, error, self._reading)
