"""What a sender, its requests under way and its connections ask of each other, whatever the connections speak."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio

    from sidecar.traffic.requests import Timed
    from sidecar.traffic.samples import Ended


class Answer(Protocol):
    """An answer, as far as it has come."""

    body_bytes: int
    tail: bytes
    """The end of its body, as much of it as the request asks to have looked at."""

    @property
    def status(self) -> int:
        """Its HTTP status, 0 while there is no whole head."""

    @property
    def grpc_status(self) -> int | None:
        """Its gRPC status, None where it has none."""

    @property
    def grpc_message(self) -> str:
        """What its gRPC status is explained with."""

    def fields(self, wanted: frozenset[str]) -> dict[str, str]:
        """Return the values of its fields that are ``wanted``, by lower-case name; the last of several."""


class Call(Protocol):
    """A request under way, as its connection sees it."""

    request: Timed
    request_id: str
    first_byte_at: float | None
    """Of the owner's clock; set by the connection."""

    def sending(self) -> None:
        """It is sent now."""

    def answered(self, answer: Answer) -> None:
        """The answer is whole; the connection may already have another call."""

    def failed(self, ended: Ended, error: str, answer: Answer) -> None:
        """It will get no whole answer."""


class Line(Protocol):
    """A connection. It takes calls from when it is made; they are sent once it stands."""

    idle_since: float
    """Since when nothing is under way on it, of the owner's clock; infinite while something is."""
    listed: bool
    """Its owner knows that it can take a call."""
    opening: asyncio.Task[None] | None
    """What opens it."""

    @property
    def room(self) -> bool:
        """It can take one more call."""

    def take(self, call: Call) -> None:
        """Send a request; the call hears how it ends, once."""

    def leave(self, call: Call) -> Answer:
        """Let go of a call, which hears nothing any more. Return what came of its answer."""

    def refused(self, ended: Ended, error: str) -> None:
        """It could not be opened."""

    def drop(self) -> None:
        """Close at once; what is under way hears nothing any more."""


class Owner(Protocol):
    """Who has connections."""

    def idle(self, line: Line) -> None:
        """The connection can take a request."""

    def gone(self, line: Line) -> None:
        """It can take none any more."""

    def unasked(self) -> None:
        """Bytes came that answer nothing."""
