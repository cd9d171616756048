"""What is noted of requests while they pass, and written down once they have ended. Pure.

How requests stand in bytes is the business of ``tap`` (HTTP/1.1) and ``streams`` (HTTP/2 and gRPC).
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from sidecar.traffic.recording.redaction import FORM, Redaction
from sidecar.traffic.requests import REQUEST_ID
from sidecar.traffic.traces.recorded import Recorded, body_fields, message_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sidecar.traffic.samples import Ended

Protocol = Literal["", "h2", "grpc"]
WORKER: Final = "warmroute-worker"
"""In an answer: the worker that made it."""
DEGRADED: Final = "warmroute-degraded"
"""In an answer that no worker made just now."""
ANSWER_FIELDS: Final = frozenset({REQUEST_ID, WORKER, DEGRADED})
"""What is read of an answer's fields."""
MAX_FLOWS: Final = 100_000
"""Flows whose end is remembered; of more, the one that was quiet longest begins anew."""
MAX_HELD_BYTES: Final = 256 << 20
"""Bodies of requests under way, all together."""
MAX_REDACTED_BYTES: Final = 1 << 20
"""Fields of longer bodies are not looked for: the interpreter would be held for too long, by whichever thread."""
OVERHEAD_BYTES: Final = 1024
"""Of one request that waits to be written, about."""


def _is_form(name: str, value: str) -> bool:
    return name.lower() == "content-type" and value.lower().startswith(FORM)


@dataclass(slots=True)
class Flow:
    """One caller's requests: how many are under way, and when the last one ended."""

    name: str
    sampled: bool
    under_way: int = 0
    ended_s: float | None = None


class Answered(NamedTuple):
    """What a request was answered. ``request_id``: the one that the answer names; ``worker``: see :func:`worker_of`."""

    status: int = 0
    body_bytes: int = 0
    request_id: str = ""
    worker: str = ""
    grpc_status: int | None = None
    messages: int = 0


UNANSWERED: Final = Answered()


def worker_of(fields: Mapping[str, str]) -> str:
    """Return the worker that made an answer, by its fields; nothing where none is named, or none made it just now."""
    return "" if DEGRADED in fields else fields.get(WORKER, "")


@dataclass(slots=True)
class Noted:
    """One request of which not everything has come."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    request_id: str
    began_s: float
    sampled: bool
    flow: Flow | None
    chained: bool
    think_s: float | None
    pieces: list[bytes] = field(default_factory=list)
    body_bytes: int = 0
    no_body: str = ""
    whole: bool = False
    first_byte_s: float | None = None
    after_s: list[float] = field(default_factory=list)
    """When each message was whole, since it began."""
    protocol: Literal["", "h2", "grpc"] = ""


class Told(NamedTuple):
    """A request that has ended. What takes a while to say of it is said when it is written: traffic is not to wait."""

    body: bytes
    body_bytes: int
    no_body: str
    after_s: tuple[float, ...]
    """When each message of a call came."""
    redaction: Redaction
    bare: Recorded
    """It without its body, and with a target as it came."""

    @property
    def size(self) -> int:
        """About how many bytes of memory it has."""
        headers = sum(len(name) + len(value) for name, value in self.bare.headers)
        return OVERHEAD_BYTES + len(self.bare.target) + headers + len(self.body)

    def recorded(self) -> Recorded:
        """Return what is written down of it."""
        body, no_body = self.body, self.no_body
        if body and not no_body and self.redaction.fields:
            if len(body) > MAX_REDACTED_BYTES:
                no_body = f"fields are to be redacted, and it is over {MAX_REDACTED_BYTES} bytes"
            else:
                redacted = self.redaction.of_body(body)
                if redacted is None:
                    no_body = "fields are to be redacted, and it is not JSON"
                else:
                    body = redacted
        elif body and not no_body and any(_is_form(name, value) for name, value in self.bare.headers):
            body = self.redaction.of_query(body.decode("latin-1")).encode("latin-1")
        if no_body:
            fields: dict[str, Any] = {"body_bytes": self.body_bytes, "no_body": no_body}
        else:
            fields = message_fields(body, self.after_s) if self.bare.protocol == "grpc" else body_fields(body)
        return msgspec.structs.replace(self.bare, target=self.redaction.of_target(self.bare.target), **fields)


@dataclass(slots=True)
class Terms:
    """What is recorded and how; one for all connections of a recorder. ``draw`` gives numbers from [0, 1)."""

    draw: Callable[[], float]
    take: Callable[[Told], None]
    sample: float = 1.0
    max_body_bytes: int = 1 << 20
    redaction: Redaction = field(default_factory=Redaction)
    flow_header: str = ""
    salt: bytes = b""
    """At most 64 bytes, which make flow names that nobody can trace back to the header's value."""
    created: int = 0
    held_bytes: int = 0
    requests: int = 0
    passed_over: int = 0
    """Requests that sampling left out."""
    unreadable: int = 0
    """Connections, or their rests, that could not be read."""
    flows: OrderedDict[str, Flow] = field(default_factory=OrderedDict)

    def flow(self, value: str) -> Flow:
        """Return the flow of a header's value, a new one where it is not known."""
        key = hashlib.blake2b(value.encode(), key=self.salt, digest_size=8).hexdigest()
        known = self.flows.get(key)
        if known is None:
            self.created += 1  # one that was forgotten and comes again is another
            known = self.flows[key] = Flow(f"{self.created}-{key}", int(key, 16) / 2**64 < self.sample)
            if len(self.flows) > MAX_FLOWS:
                self.flows.popitem(last=False)
        self.flows.move_to_end(key)
        return known

    def begin(
        self, method: str, target: str, lines: list[str], request_id: str, now_s: float, protocol: Protocol = ""
    ) -> Noted:
        """Note that a request begins, with ``lines`` of its head, each a field."""
        flow = None
        if self.flow_header:
            value = next((line for line in lines if line.lower().startswith(f"{self.flow_header}:")), "")
            flow = self.flow(value.partition(":")[2].strip()) if value else None
        self.requests += 1
        sampled = flow.sampled if flow is not None else self.draw() < self.sample
        chained, think_s = False, None
        if flow is not None:
            chained = flow.under_way == 0  # one that overlaps another of its flow follows none
            if chained and flow.ended_s is not None:
                think_s = max(0.0, now_s - flow.ended_s)
            flow.under_way += 1
        if not sampled:
            self.passed_over += 1
        if flow is not None:  # whose value nobody is to read there, and which is to stay one value in a replay
            start = f"{self.flow_header}:"
            lines = [f"{line[: len(start)]} {flow.name}" if line.lower().startswith(start) else line for line in lines]
        headers = self.redaction.of_headers(lines) if sampled else ()
        noted = Noted(method, target, headers, request_id, now_s, sampled, flow, chained, think_s)
        noted.protocol = protocol
        return noted

    def keep(self, noted: Noted, piece: bytes) -> None:
        """Keep a piece of a request's body, within the limits."""
        noted.body_bytes += len(piece)
        if not noted.sampled or noted.no_body or not piece:
            return
        if noted.body_bytes > self.max_body_bytes:
            self._drop(noted, f"over {self.max_body_bytes} bytes")
        elif self.held_bytes + len(piece) > MAX_HELD_BYTES:
            self._drop(noted, "too many bodies at once")
        else:
            self.held_bytes += len(piece)
            noted.pieces.append(piece)

    def _drop(self, noted: Noted, why: str) -> None:
        self.give_back(noted)
        noted.no_body = why

    def give_back(self, noted: Noted | None) -> None:
        """Forget what was kept of a body."""
        if noted is not None:
            self.held_bytes -= sum(len(piece) for piece in noted.pieces)
            noted.pieces.clear()

    def forget(self, noted: Noted) -> None:
        """It is not known how a request ended: tell nothing of it."""
        self.give_back(noted)
        if noted.flow is not None:
            noted.flow.under_way -= 1

    def tell(
        self, noted: Noted, now_s: float, ended: Ended, answer: Answered = UNANSWERED, hung_up_s: float | None = None
    ) -> None:
        """Write a request down that has ended."""
        flow = noted.flow
        if flow is not None:
            flow.under_way -= 1
            flow.ended_s = now_s
        body = b"".join(noted.pieces)
        self.give_back(noted)
        no_body = noted.no_body
        if not noted.whole and not no_body:
            no_body = noted.no_body = "not sent whole"  # and what still comes of it is not kept
        if not noted.sampled:
            return
        self.take(
            Told(
                body,
                noted.body_bytes,
                no_body,
                tuple(noted.after_s),
                self.redaction,
                Recorded(
                    at_s=round(noted.began_s, 6),
                    protocol=noted.protocol,
                    method=noted.method,
                    target=noted.target,
                    headers=noted.headers,
                    request_id=noted.request_id or answer.request_id,  # what the sidecar called it
                    flow=flow.name if flow is not None and noted.chained else "",
                    think_s=None if noted.think_s is None else round(noted.think_s, 6),
                    hung_up_s=None if hung_up_s is None else round(hung_up_s, 6),
                    status=answer.status,
                    ended=ended,
                    first_byte_s=None if noted.first_byte_s is None else round(noted.first_byte_s - noted.began_s, 6),
                    took_s=round(now_s - noted.began_s, 6),
                    answer_bytes=answer.body_bytes,
                    grpc_status=answer.grpc_status,
                    answer_messages=answer.messages,
                    worker=answer.worker,
                ),
            )
        )
