"""How a drill's load reaches what it asks: where that is, what is spoken there, and whom it believes over TLS."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.config.semantics import Finding
from sidecar.traffic.addresses import destination
from sidecar.traffic.messages import framed
from sidecar.traffic.sender import Sender
from sidecar.traffic.trusting import TrustError, client_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

    from sidecar.drills.scenario import Load
    from sidecar.traffic.addresses import Destination
    from sidecar.traffic.samples import Sample


def sender(load: Load, target: str, take: Callable[[Sample], None]) -> Sender:
    """Return who sends a load, to ``target`` (HOST:PORT, over HTTP/1.1) unless it says otherwise.

    Raises:
        ValueError: it says what makes no sense (:func:`problems`).
    """
    to = destination(load.to or f"http://{target}", http2=load.http2)
    return Sender(
        load.to or f"http://{target}",
        take,
        max_connections=load.connections,
        timeout_s=load.timeout_s,
        tls=_tls(load, to) if to.secure else None,
        http2=load.http2,
    )


def is_call(load: Load) -> bool:
    """Return whether a load's requests are gRPC calls."""
    return load.to.startswith("grpc")


def message(load: Load) -> bytes:
    """Return the message of each of a load's calls, as it is sent."""
    return framed(base64.b64decode(load.message_base64, validate=True))


def problems(load: Load) -> Iterator[Finding]:
    """Yield what makes no sense about how a load reaches what it asks. Certificates are looked at."""
    try:
        to = destination(load.to, http2=load.http2) if load.to else None
    except ValueError as error:
        yield Finding(("to",), str(error).partition(": ")[2])
        return
    if load.http2 and not load.to:
        yield Finding(
            ("http2",),
            "a listener without TLS speaks HTTP/1.1 alone: leave it out, or add to with the https:// address of one",
        )
    if is_call(load):
        yield from _problems_of_call(load)
    elif load.message_base64:
        yield Finding(("message_base64",), "is what calls say: needs a to that begins with grpc")
    if load.tls is None:
        return
    if to is None or not to.secure:
        yield Finding(("tls",), "needs a to that begins with https:// or grpcs://")
        return
    try:
        _tls(load, to)
    except TrustError as error:
        yield Finding(("tls", error.option.replace("-", "_")), str(error).replace("--cert-file", "cert_file"))


def _problems_of_call(load: Load) -> Iterator[Finding]:
    if load.http2:
        yield Finding(("http2",), "gRPC is over HTTP/2 anyway: leave it out")
    for name, given in (("body", load.body), ("ends_with", load.ends_with)):
        if given:
            yield Finding((name,), "a gRPC call has message_base64 instead, and a status at its end: leave it out")
    if load.method != "POST":
        yield Finding(("method",), "a gRPC call is a POST: leave it out")
    try:
        message(load)
    except binascii.Error as error:
        yield Finding(("message_base64",), f"is no base64: {error}")


def _tls(load: Load, to: Destination) -> ssl.SSLContext:
    tls = load.tls
    alpn = [to.speech.alpn]
    if tls is None:
        return client_context(alpn, None, None, None, insecure=False)
    files = (Path(one) if one else None for one in (tls.ca_file, tls.cert_file, tls.key_file))
    return client_context(alpn, *files, insecure=tls.insecure)
