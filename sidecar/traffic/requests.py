"""Requests that have their moment, and how each is written to the wire."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sidecar.http2.hpack import Field
    from sidecar.traffic.samples import Ended

REQUEST_ID: Final = "x-request-id"
NOT_SENT: Final = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "http2-settings",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Fields that belong to a connection or to framing: the sender makes its own (RFC 9110 7.6.1)."""
TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A method, or the name of a field (RFC 9110 5.6.2)."""
_TARGET: Final = re.compile(r"/[!\"$-~\x80-\xff]*|\*")
_VALUE: Final = re.compile(r"[\t -~\x80-\xff]*")
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})


@dataclass(frozen=True, slots=True)
class Timed:
    """One request and the moment it is meant for.

    ``at_s``: seconds from the beginning of the run; of a request in ``then``, seconds of thinking after the one before
    it has ended. ``ends_with``: what a whole body ends with, as ``data: [DONE]`` and two line ends; one that ends in
    order without it has been cut by somebody. ``timeout_s``: from the intended moment, the sender's where it is None.
    ``hang_up_s``: the caller hangs up that long after sending, None: not. ``name`` says what it is, in reports.
    ``recorded``: how it ended when it was recorded, None where that is not known. ``call``: it is a gRPC call, and the
    body its messages, each behind its five bytes; ``parts`` are those that follow, each so long after it was sent.
    ``take``: what is kept of its answer, names and paths into its JSON; ``fill``: whether it is made of what was kept
    before in its flow.
    """

    at_s: float
    method: str = "GET"
    target: str = "/"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    name: str = ""
    ends_with: bytes = b""
    timeout_s: float | None = None
    hang_up_s: float | None = None
    recorded: Ended | None = None
    call: bool = False
    parts: tuple[tuple[float, bytes], ...] = ()
    take: tuple[tuple[str, tuple[str, ...]], ...] = ()
    fill: bool = False
    then: tuple[Timed, ...] = ()


def check(request: Timed) -> str:
    """Return what is wrong with a request, or nothing where it can be sent."""
    if not TOKEN.fullmatch(request.method) or request.method == "CONNECT":
        return f"method {request.method[:40]!r} cannot be sent"
    if not _TARGET.fullmatch(request.target):
        return f"target {request.target[:80]!r} must begin with / and hold no blanks, control characters or #"
    for name, value in request.headers:
        if not TOKEN.fullmatch(name):
            return f"header name {name[:40]!r} is none"
        if not _VALUE.fullmatch(value):
            return f"header {name}: its value holds a line end or a control character, or is not latin-1"
    return ""


def id_of(request: Timed, made: str) -> str:
    """Return a request's own ``x-request-id``, or the one that was ``made`` for it where it has none."""
    return next((value for name, value in request.headers if value and name.lower() == REQUEST_ID), made)


def head_of(request: Timed, host: str, request_id: str) -> bytes:
    """Return the head to send over HTTP/1.1 of a request that can be sent (:func:`check`)."""
    lines = [f"{request.method} {request.target} HTTP/1.1"]
    hosted = False
    for name, value in request.headers:
        lowered = name.lower()
        if lowered in NOT_SENT or lowered == REQUEST_ID:
            continue
        hosted = hosted or lowered == "host"
        lines.append(f"{name}: {value}")
    if not hosted:
        lines.insert(1, f"Host: {host}")
    lines.append(f"{REQUEST_ID}: {request_id}")
    if request.body or request.method in _WITH_BODY:
        lines.append(f"Content-Length: {len(request.body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def fields_of(request: Timed, authority: str, request_id: str, *, secure: bool) -> list[Field]:
    """Return the head to send over HTTP/2 (RFC 9113 8.3.1)."""
    fields: list[Field] = []
    typed = False
    for name, value in request.headers:
        lowered = name.lower()
        if lowered == "host":
            authority = value
        elif lowered not in NOT_SENT and lowered != REQUEST_ID:
            typed = typed or lowered == "content-type"
            fields.append((lowered.encode("latin-1"), value.strip().encode("latin-1")))
    fields.append((REQUEST_ID.encode(), request_id.encode("latin-1")))
    if request.call:
        fields.append((b"te", b"trailers"))
        if not typed:
            fields.append((b"content-type", b"application/grpc"))
    elif request.body or request.method in _WITH_BODY:
        fields.append((b"content-length", b"%d" % len(request.body)))
    pseudo = [
        (b":method", request.method.encode("latin-1")),
        (b":scheme", b"https" if secure else b"http"),
        (b":path", request.target.encode("latin-1")),
        (b":authority", authority.encode("latin-1")),
    ]
    return pseudo + fields
