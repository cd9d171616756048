"""What a worker's error means, where that is not what its status says.

Servers answer 400 or 503 while a model is unloading, and 500 to a prompt that is too long. Taken at their status the
first would go on drawing requests, and the second would open a breaker. So the beginning of an error's body is looked
at, where its status is one that a rule names, for a few texts; nothing else of any answer is ever read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from router.outcomes import AttemptResult
from sidecar.settings import GRPC_STATUSES, Means, RecogniseRule

if TYPE_CHECKING:
    from sidecar.settings import Recognise

_NOT_READY: Final = Means.NOT_READY
_CALLER: Final = Means.CALLER_FAULT

_TRITON: Final = (
    "has no available versions",
    "is not at ready state",
    "has stopped accepting new inference requests",
)
_PROMPTS: Final = (
    "maximum context length",
    "longer than the maximum model length",
    "longer than the model's context length",
)

KNOWN: Final = (
    # Triton while it loads, unloads or stops; older ones say 400 to all of it
    *(
        RecogniseRule(status=status, body_contains=text, means=_NOT_READY)
        for text in _TRITON
        for status in (400, 404, 503)
    ),
    *(
        RecogniseRule(grpc_status=status, body_contains=text, means=_NOT_READY)
        for text in _TRITON
        for status in ("UNAVAILABLE", "NOT_FOUND")
    ),
    # MLServer, whose model that is not ready is a 400
    RecogniseRule(status=400, body_contains="is not ready yet", means=_NOT_READY),
    RecogniseRule(grpc_status="INVALID_ARGUMENT", body_contains="is not ready yet", means=_NOT_READY),
    # vLLM and SGLang, where a prompt over the limit is found by the engine instead of the front
    *(RecogniseRule(status=500, body_contains=text, means=_CALLER) for text in _PROMPTS),
)
"""Errors of well-known servers, by their own texts."""

_RESULTS: Final = {Means.NOT_READY: AttemptResult.NOT_READY, Means.CALLER_FAULT: AttemptResult.CLIENT_ERROR}


class Recogniser:
    """The rules of one configuration, by status. ``statuses`` are those of HTTP that are looked at."""

    def __init__(self, settings: Recognise) -> None:
        self.look_at_bytes = settings.look_at_bytes
        self._http: dict[int, list[tuple[bytes, AttemptResult]]] = {}
        self._grpc: dict[int, list[tuple[bytes, AttemptResult]]] = {}
        for rule in (*settings.rules, *(KNOWN if settings.known else ())):
            row = (rule.body_contains.encode(), _RESULTS[rule.means])
            if rule.status is not None:
                self._http.setdefault(rule.status, []).append(row)
            if rule.grpc_status is not None:
                self._grpc.setdefault(GRPC_STATUSES[rule.grpc_status], []).append(row)
        self.statuses = frozenset(self._http)

    def http(self, status: int, body: bytes) -> AttemptResult | None:
        """Return what an answer with this status and this beginning of a body says; None: what its status does."""
        return _first(self._http.get(status), body)

    def grpc(self, status: int, message: bytes) -> AttemptResult | None:
        """Return the same of a call that ended with this status and this ``grpc-message``."""
        return _first(self._grpc.get(status), message[: self.look_at_bytes])


def _first(rows: list[tuple[bytes, AttemptResult]] | None, text: bytes) -> AttemptResult | None:
    if rows is not None:
        for wanted, result in rows:
            if wanted in text:
                return result
    return None
