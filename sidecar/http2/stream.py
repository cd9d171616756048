"""One stream of an HTTP/2 connection: its windows, and what waits to be sent on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from sidecar.http2.frames import WINDOW

if TYPE_CHECKING:
    import asyncio

    from sidecar.http2.hpack import Field


class Carrier(Protocol):
    """What a stream's user asks of its connection."""

    @property
    def received_bytes(self) -> int:
        """All that came on the connection."""

    @property
    def transport(self) -> asyncio.Transport:
        """What the connection is on."""

    def send_data(self, stream: Stream, data: bytes, *, end: bool) -> bool:
        """Send bytes, or keep them until they can be; True where all of them went out."""

    def credit(self, stream: Stream, size: int) -> None:
        """Give window back for bytes that came on a stream and have gone on."""

    def reset(self, stream: Stream, code: int) -> None:
        """Reset a stream."""

    def suspect(self) -> None:
        """A call's time ran out in silence."""


class Stream:
    """The state of one stream.

    ``call`` is its user's. ``source`` is the stream that relayed bytes come from: it is credited for what goes out
    here, so that nobody sends faster than the other side reads.
    """

    __slots__ = (
        "call",
        "connection",
        "end_waits",
        "id",
        "local_done",
        "owed",
        "prepaid",
        "receive_window",
        "remote_done",
        "send_window",
        "source",
        "tail",
        "waiting",
        "waiting_bytes",
    )

    def __init__(self, connection: Carrier, id: int, send_window: int, call: Any) -> None:  # noqa: A002
        self.connection = connection
        self.id = id
        self.call = call
        self.send_window = send_window
        self.receive_window = WINDOW
        self.owed = 0  # taken, and not yet given back to the peer as window
        self.source: Stream | None = None
        self.prepaid = 0  # so much of what waits was credited to the source before
        self.waiting: list[bytes] | None = None  # what windows or the transport do not take yet
        self.waiting_bytes = 0
        self.end_waits = False  # the end of the stream follows what waits,
        self.tail: list[Field] | None = None  # with these trailers
        self.local_done = False  # we have sent the end,
        self.remote_done = False  # the peer has
