"""What a worker's error means, where that is not what its status says.

Servers answer 400 or 503 while a model is unloading, and 500 to a prompt that is too long. Taken at their status the
first would go on drawing requests, and the second would open a breaker. So the beginning of an error's body is looked
at, where its status is one that a rule names, for a few texts; nothing else of any answer is ever read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from router.outcomes import AttemptResult
from sidecar.settings import GRPC_STATUSES, Means

if TYPE_CHECKING:
    from sidecar.settings import Recognise, RecogniseRule

_NOT_READY: Final = Means.NOT_READY
_CALLER: Final = Means.CALLER_FAULT

_ENVELOPE: Final = (
    rb"(?:[0-9a-fA-F]{1,8}\r\n)?\s*"  # of the first chunk
    rb'(?:\{\s*(?:"object":\s*"error",\s*)?(?:"error":\s*\{\s*)?"(?:error|message|detail)":\s*")?'
)
_TRITON: Final = (
    rb'(?:\[request id: [^]"\\]{0,256}\] )?'  # which is the caller's, so no more of it is taken on trust
    rb"(?:Request for unknown model: '(?P<model>[^'\"\\]{1,256})'"
    rb" (?:has no available versions|version [0-9]{1,20} is not at ready state)"
    rb"|[A-Z][A-Za-z ,]{0,80} has stopped accepting new inference requests)\.?"
)
_MLSERVER: Final = rb'Model (?P<model>[^ "\\]{1,256})(?: with version [^ "\\]{1,128})? is not ready yet\.?'
_OURS: Final = rb"model '(?P<model>[^'\"\\]{1,256})' is not ready: "
_PROMPTS: Final = (
    rb"(?:[A-Z][A-Za-z]{0,40}Error: )?"
    rb"(?:This model's maximum context length is [0-9]+ "
    rb"|The (?:decoder |encoder )?prompt \(length [0-9]+\) is longer than the maximum model length "
    rb"|The input \([0-9]+ tokens\) is longer than the model's context length )"
)

_TOO_LARGE: Final = (
    rb"(?:SERVER: |grpc: )?"
    rb"(?:[Rr]eceived message (?:after decompression )?larger than max|Decompressed message larger than max"
    rb"|received metadata size exceeds (?:soft|hard) limit)"
)


_RESULTS: Final = {Means.NOT_READY: AttemptResult.NOT_READY, Means.CALLER_FAULT: AttemptResult.CLIENT_ERROR}


class _Text:
    """A text of a server, as all of what it says or its beginning: what it repeats of a request is no part of that.

    ``whole``: nothing follows it. Where it names a model (the group of that name), that must be the one asked for.
    """

    __slots__ = ("_pattern", "result")

    def __init__(self, text: bytes, means: Means, *, whole: bool) -> None:
        end = rb'(?=["\r\n]|\Z)' if whole else b""
        self._pattern: Final = re.compile(_ENVELOPE + text + end)
        self.result: Final = _RESULTS[means]

    def says(self, text: bytes, model: bytes) -> bool:
        """Return whether it stands at the beginning of a text, and of this model."""
        found = self._pattern.match(text)
        return found is not None and found.groupdict().get("model") in (None, model)


_STOPPING: Final = _Text(_TRITON, _NOT_READY, whole=True)
_UNLOADED: Final = _Text(_MLSERVER, _NOT_READY, whole=True)
_LOADING: Final = _Text(_OURS, _NOT_READY, whole=False)
_TOO_LONG: Final = _Text(_PROMPTS, _CALLER, whole=False)
KNOWN_HTTP: Final = {
    400: (_STOPPING, _UNLOADED),  # Triton while it loads, unloads or stops; older ones say 400 to all of it; MLServer
    404: (_STOPPING,),
    503: (_STOPPING, _LOADING),  # the latter with Retry-After: warmroute's own worker
    500: (_TOO_LONG,),  # vLLM and SGLang, where a prompt over the limit is found by the engine instead of the front
}
KNOWN_GRPC: Final = {
    "UNAVAILABLE": (_STOPPING, _LOADING),
    "NOT_FOUND": (_STOPPING,),
    "INVALID_ARGUMENT": (_UNLOADED,),
    "RESOURCE_EXHAUSTED": (_Text(_TOO_LARGE, _CALLER, whole=False),),  # C-core and Go: no back-pressure
}
"""Errors of well-known servers, by status and by their own texts."""
_CODES: Final = {**GRPC_STATUSES, "RESOURCE_EXHAUSTED": 8}
"""With the one that rules of somebody's own may not name: it is back-pressure."""


class _Contained:
    """A rule of somebody's own: a text anywhere in an answer."""

    __slots__ = ("_text", "result")

    def __init__(self, rule: RecogniseRule) -> None:
        self._text: Final = rule.body_contains.encode()
        self.result: Final = _RESULTS[rule.means]

    def says(self, text: bytes, model: bytes) -> bool:
        """Return whether it stands in a text."""
        return self._text in text


class Recogniser:
    """The rules of one configuration, by status. ``statuses`` are those of HTTP that are looked at."""

    def __init__(self, settings: Recognise) -> None:
        self.look_at_bytes = settings.look_at_bytes
        self._http: dict[int, list[_Contained | _Text]] = {}
        self._grpc: dict[int, list[_Contained | _Text]] = {}
        for rule in settings.rules:
            row = _Contained(rule)
            if rule.status is not None:
                self._http.setdefault(rule.status, []).append(row)
            if rule.grpc_status is not None:
                self._grpc.setdefault(GRPC_STATUSES[rule.grpc_status], []).append(row)
        if settings.known:
            for status, texts in KNOWN_HTTP.items():
                self._http.setdefault(status, []).extend(texts)
            for name, texts in KNOWN_GRPC.items():
                self._grpc.setdefault(_CODES[name], []).extend(texts)
        self.statuses = frozenset(self._http)

    def http(self, status: int, body: bytes, model: str) -> AttemptResult | None:
        """Return what an answer with this status and this beginning of a body says of a model; None: its status."""
        return _first(self._http.get(status), body, model)

    def grpc(self, status: int, message: bytes, model: str) -> AttemptResult | None:
        """Return the same of a call that ended with this status and this ``grpc-message``."""
        return _first(self._grpc.get(status), message[: self.look_at_bytes], model)


def _first(rows: list[_Contained | _Text] | None, text: bytes, model: str) -> AttemptResult | None:
    if rows is not None:
        name = model.encode()
        for row in rows:
            if row.says(text, name):
                return row.result
    return None
