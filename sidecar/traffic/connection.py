"""A caller's connection over HTTP/1.1: one request at a time, kept for the next one."""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, cast

from sidecar.http1.head import UNTIL_CLOSE
from sidecar.traffic.answers import MAX_ANSWER_BYTES
from sidecar.traffic.reading import Reading, UnreadableError
from sidecar.traffic.requests import head_of
from sidecar.traffic.samples import Ended
from sidecar.traffic.trusting import lost

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.traffic.lines import Answer, Call, Owner


class Connection(asyncio.Protocol):
    """One connection. ``now`` is the owner's clock; ``host`` is what requests say that have no ``Host``."""

    def __init__(self, owner: Owner, now: Callable[[], float], host: str) -> None:
        self._owner = owner
        self._now = now
        self._host = host
        self._transport: asyncio.Transport | None = None
        self._call: Call | None = None
        self._reading = Reading("GET")
        self.idle_since = inf
        self.listed = False
        self.opening: asyncio.Task[None] | None = None

    @property
    def room(self) -> bool:
        """It stands, and nothing is under way on it."""
        return self._call is None and self._transport is not None and not self._transport.is_closing()

    def take(self, call: Call) -> None:
        """Send a request, at once or when the connection is made."""
        self._call = call
        self.idle_since = inf
        request = call.request
        self._reading = Reading(request.method, MAX_ANSWER_BYTES if request.take else len(request.ends_with))
        if self._transport is not None:
            self._send(call)

    def _send(self, call: Call) -> None:
        call.sending()
        if self._transport is None or self._transport.is_closing():
            self._fail(Ended.CUT, "closed")
        else:
            self._transport.write(head_of(call.request, self._host, call.request_id) + call.request.body)

    def leave(self, call: Call) -> Answer:
        """Close: there is no other way to have no answer."""
        self.drop()
        return self._reading

    def refused(self, ended: Ended, error: str) -> None:
        """It could not be opened."""
        self._fail(ended, error)

    def drop(self) -> None:
        """Close at once."""
        self._call = None
        if self.opening is not None:
            self.opening.cancel()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send what waits."""
        self._transport = cast("asyncio.Transport", transport)
        if self._call is not None:
            self._send(self._call)
        else:
            self._transport.abort()

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
        self._fail(*lost(exc))

    def _whole(self, call: Call, reading: Reading) -> None:
        self._call = None
        head = reading.head
        if reading.rest:
            self._owner.unasked()
        if head is not None and head.keep_alive and head.length != UNTIL_CLOSE and not reading.rest and self.room:
            self.idle_since = self._now()
            self._owner.idle(self)
        elif self._transport is not None:
            self._transport.abort()
        call.answered(reading)

    def _fail(self, ended: Ended, error: str) -> None:
        call, self._call = self._call, None
        if self._transport is not None:
            self._transport.abort()
        if call is not None:
            call.failed(ended, error, self._reading)
