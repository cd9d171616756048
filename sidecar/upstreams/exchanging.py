"""What a connection to a worker needs of the request whose answer it reads.

Not compiled, as nothing here runs: compiled modules ask whatever they are given, by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.outcomes import AttemptResult
    from sidecar.http1.head import ResponseHead
    from sidecar.upstreams.connection import UpstreamConnection


class Sink(Protocol):
    """Where an answer goes: the caller's transport, or what stands in front of it."""

    def write(self, data: bytes) -> None:
        """Pass on what came of the answer; the first piece begins with its whole head."""

    def writelines(self, list_of_data: Iterable[bytes | memoryview]) -> None:
        """Pass on several pieces."""


class Exchange(Protocol):
    """The downstream side of one request, as an upstream connection needs it.

    ``sink`` may be another one from ``begin_answer`` on.
    """

    @property
    def sink(self) -> Sink:
        """Where its answer is written."""

    active: bool
    request_done: bool
    method: bytes
    old_client: bool  # HTTP/1.0: knows no chunks

    def looks_at(self, head: ResponseHead) -> int:
        """The final head came, and its status is 400 or more; return how much of its body is to be looked at first."""

    def recognise(self, head: ResponseHead, body: bytes) -> bool:
        """That much of the body came, or less; return whether it was recognised as something, so no more is needed."""

    def set_aside(self, head: ResponseHead) -> bool:
        """The final head came, and its status is 400 or more; return whether nobody wants this answer.

        It is not passed on then: another try of the same request is under way, or will be.
        """

    def begin_answer(self, head: ResponseHead) -> bytes:
        """The final head came; return what goes downstream for it, with its empty line."""

    def interim(self, head: ResponseHead) -> None:
        """A 1xx head came."""

    def switched(self, head: ResponseHead, data: bytes) -> str:
        """A 101 came, and ``data`` behind it: both sides are a tunnel now; or the reason why they cannot be."""

    def worker_finished(self) -> bool:
        """The worker's half of the tunnel has ended; return whether the other goes on."""

    def tunnel_lost(self, exc: Exception | None) -> None:
        """The tunnel's connection is gone."""

    def whole_answer(self, now: float, head: ResponseHead, body: bytes) -> None:
        """The final head came, and all of its body with it: the two calls above and below in one."""

    def trailers(self, lines: bytes) -> None:
        """These trailer lines, each behind a CRLF, ended the answer's body; they are not passed on."""

    def answer_ended(self, now: float, head: ResponseHead) -> None:
        """The whole answer went downstream."""

    def attempt_failed(self, result: AttemptResult, detail: str) -> None:
        """The attempt ended without a whole answer. The connection is gone already."""

    def attached(self, connection: UpstreamConnection) -> None:
        """A new connection stands; send the request on it."""

    def upstream_full(self, *, full: bool) -> None:
        """The worker does not read (or reads again)."""

    def crashed(self, error: Exception) -> None:
        """Handling what the worker sent raised an error of warmroute's own. The connection is gone already."""
