"""What became of one request."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from sidecar.grpc.statuses import Status


class Ended(StrEnum):
    """How a request ended, as its caller saw it. Each has exactly one."""

    OK = "ok"
    """A whole answer with a status below 400; to a gRPC call with OK."""
    STATUS_4XX = "status_4xx"
    STATUS_5XX = "status_5xx"
    GRPC_STATUS = "grpc_status"
    """A whole answer to a gRPC call with a status other than OK."""
    CUT = "cut"
    """The connection ended, or was reset, before a whole answer."""
    FALSE_END = "false_end"
    """An answer that ended in order, but without what it must end with."""
    WRONG = "wrong"
    """Another request's answer, or bytes that are no answer."""
    TIMED_OUT = "timed_out"
    NO_CONNECTION = "no_connection"
    """Refused, or nobody there."""
    TLS_FAILED = "tls_failed"
    """The server, or our own certificate, was not believed, or TLS was not agreed on."""
    NO_HTTP2 = "no_http2"
    """Who answered speaks no HTTP/2, and nothing else was wanted."""
    UNSENT = "unsent"
    """All connections were busy until its time was over, or an answer lacked what it is made of."""
    HUNG_UP = "hung_up"
    """The caller hung up, as it was meant to."""

    @property
    def failed(self) -> bool:
        """True where the caller did not get what it asked for."""
        return self not in (Ended.OK, Ended.HUNG_UP)


@dataclass(frozen=True, slots=True)
class Sample:
    """One request's times, in seconds from the beginning of the run, and its end.

    ``sent_s`` and ``first_byte_s`` are None where it did not come that far. ``status`` is 0 where no whole head came.
    ``grpc_status`` is None where the answer has none.
    ``headers`` are those of the answer that the sender was asked to keep, by lower-case name. ``number`` counts the
    requests of one run as they fell due.
    """

    number: int
    name: str
    request_id: str
    intended_s: float
    sent_s: float | None
    first_byte_s: float | None
    ended_s: float
    ended: Ended
    status: int = 0
    grpc_status: int | None = None
    recorded: Ended | None = None
    body_bytes: int = 0
    error: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def latency_s(self) -> float:
        """From the moment it was meant for, not from when it was sent: waiting for its turn counts."""
        return self.ended_s - self.intended_s

    @property
    def failure(self) -> str:
        """How it failed, in a word: the status that it was answered, or how it ended; empty where it did not."""
        if not self.ended.failed:
            return ""
        code = self.grpc_status
        if self.ended is Ended.GRPC_STATUS and code is not None:
            return f"grpc {Status(code).name if code in Status.__members__.values() else code}"
        return f"status {self.status}" if self.ended in (Ended.STATUS_4XX, Ended.STATUS_5XX) else self.ended.value

    @property
    def lag_s(self) -> float:
        """How long after its moment it was sent, or given up unsent."""
        return (self.ended_s if self.sent_s is None else self.sent_s) - self.intended_s
