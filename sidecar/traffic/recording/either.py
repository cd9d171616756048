"""A connection of which its first bytes say what is spoken on it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sidecar.http2.frames import PREFACE
from sidecar.traffic.recording.streams import StreamTap
from sidecar.traffic.recording.tap import Tap

if TYPE_CHECKING:
    from sidecar.traffic.recording.noting import Terms

MOST_EARLY_BYTES: Final = 1 << 16
"""Of what a server says before its caller does; HTTP/2's say their settings."""


class EitherTap:
    """Follows HTTP/2 where a connection begins with its preface (RFC 9113 3.4), else HTTP/1.1."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._tap: Tap | StreamTap | None = None
        self._first = b""
        self._early = b""

    @property
    def under_way(self) -> bool:
        """True while a request waits for its answer."""
        return self._tap is not None and self._tap.under_way

    def from_caller(self, data: bytes, now_s: float) -> None:
        """Take what the caller sent."""
        if self._tap is None:
            self._first = data = self._first + data
            if len(data) < len(PREFACE) and PREFACE.startswith(data):
                return
            self._tap = StreamTap(self._terms) if data.startswith(PREFACE) else Tap(self._terms)
            self._tap.from_caller(data, now_s)
            self._tap.from_server(self._early, now_s)
            self._first = self._early = b""
        else:
            self._tap.from_caller(data, now_s)

    def from_server(self, data: bytes, now_s: float) -> None:
        """Take what the server sent."""
        if self._tap is not None:
            self._tap.from_server(data, now_s)
            return
        self._early += data
        if len(self._early) > MOST_EARLY_BYTES:
            self._tap = Tap(self._terms)  # which hears an answer to nothing, and listens no more
            self._tap.from_server(self._early, now_s)
            self._early = b""

    def give_up(self) -> None:
        """Listen no more."""
        if self._tap is None:
            self._tap = Tap(self._terms)
        self._tap.give_up()

    def caller_left(self, now_s: float) -> None:
        """The caller sends nothing more."""
        if self._tap is not None:
            self._tap.caller_left(now_s)

    def server_left(self, now_s: float) -> None:
        """The server sends nothing more."""
        if self._tap is not None:
            self._tap.server_left(now_s)
