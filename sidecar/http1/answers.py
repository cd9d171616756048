"""The answers that warmroute gives itself: one error body per surface, all from the one table of outcomes."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec

from router.matching import Surface
from router.outcomes import OUTCOMES, Outcome, OutcomeSpec
from sidecar.version import installed_version

_ENCODE: Final = msgspec.json.Encoder().encode
SERVER_METADATA: Final = _ENCODE({"name": "warmroute", "version": installed_version(), "extensions": []})
"""What a V2 client reads at ``/v2``."""


def models_list(models: tuple[str, ...]) -> bytes:
    """Return the body of OpenAI's ``GET /v1/models``."""
    return _ENCODE({"object": "list", "data": [_model(name) for name in models]})


def model_object(model: str) -> bytes:
    """Return the body of OpenAI's ``GET /v1/models/MODEL``."""
    return _ENCODE(_model(model))


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "warmroute"}


def error_body(
    surface: Surface, outcome: Outcome, detail: str = "", status: int = 0, code: str = ""
) -> tuple[bytes, bytes]:
    """Return (content type, body) for ``outcome`` in the form that ``surface``'s clients read.

    V2: ``{"error": TEXT}`` (Open Inference Protocol). OpenAI: ``{"error": {message, type, param, code}}``. Else text.
    """
    spec = OUTCOMES[outcome]
    text = f"{spec.message}: {detail}" if detail else spec.message
    if surface is Surface.V2:
        return b"application/json", _ENCODE({"error": text})
    if surface is Surface.OPENAI:
        return b"application/json", _ENCODE(
            {"error": {"message": text, "type": spec.kind, "param": None, "code": code or outcome.value}}
        )
    number, phrase = _status(spec, status)
    return b"text/plain; charset=utf-8", f"{number} {phrase}: {text}\n".encode()


def error_answer(
    surface: Surface,
    outcome: Outcome,
    detail: str = "",
    *,
    request_id: bytes = b"",
    retry_after_s: float | None = None,
    close: bool = False,
    head_only: bool = False,
    status: int = 0,
    code: str = "",
) -> bytes:
    """Return a whole HTTP/1.1 response for an outcome that warmroute answers itself.

    ``retry_after_s`` is rounded up to whole seconds, at least 1. ``head_only``: the request was HEAD. ``status``
    replaces the table's (as a declared answer does), ``code`` the OpenAI error's.
    """
    spec = OUTCOMES[outcome]
    number, phrase = _status(spec, status)
    kind, body = error_body(surface, outcome, detail, status, code)
    lines = [
        b"HTTP/1.1 %d %s" % (number, phrase.encode()),
        b"Content-Type: " + kind,
        b"Content-Length: %d" % len(body),
        b"warmroute-outcome: " + outcome.value.encode(),
    ]
    if request_id:
        lines.append(b"x-request-id: " + request_id)
    if spec.retry_after:
        wait = 1.0 if retry_after_s is None else retry_after_s
        lines.append(b"Retry-After: %d" % max(1, -int(-wait // 1)))
    if close:
        lines.append(b"Connection: close")
    return b"\r\n".join(lines) + b"\r\n\r\n" + (b"" if head_only else body)


def own_answer(body: bytes, *, request_id: bytes, close: bool, head_only: bool) -> bytes:
    """Return a whole 200 of warmroute's own, with a JSON body or none."""
    lines = [b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(body), b"x-request-id: " + request_id]
    if body:
        lines.append(b"Content-Type: application/json")
    if close:
        lines.append(b"Connection: close")
    return b"\r\n".join(lines) + b"\r\n\r\n" + (b"" if head_only else body)


def _status(spec: OutcomeSpec, status: int) -> tuple[int, str]:
    """Return the status and its phrase, the table's or the one that replaces it."""
    if status in (0, spec.status):
        return spec.status, spec.phrase
    return status, HTTPStatus(status).phrase if status in HTTPStatus.__members__.values() else "Unassigned"
