"""Where traffic goes, and what is spoken there."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from sidecar.upstreams.pool import split_address


class Speech(Enum):
    """What is spoken on a connection."""

    HTTP1 = "HTTP/1.1"
    HTTP2 = "HTTP/2"
    GRPC = "gRPC"

    @property
    def alpn(self) -> str:
        """Its name in TLS (RFC 7301)."""
        return "http/1.1" if self is Speech.HTTP1 else "h2"


class Destination(NamedTuple):
    """``socket``: the path of a Unix socket, None where host and port count. ``host_field`` is what ``Host`` says."""

    name: str
    port: int
    socket: str | None
    host_field: str
    secure: bool
    speech: Speech


FORMS: Final = {
    "http://": "http://HOST:PORT",
    "https://": "https://HOST:PORT",
    "grpc://": "grpc://HOST:PORT",
    "grpcs://": "grpcs://HOST:PORT",
    "unix:": "unix:/PATH",
    "grpc+unix:": "grpc+unix:/PATH",
}
"""How an address may begin, and how it is to be written."""


def destination(address: str, *, http2: bool = False) -> Destination:
    """Return where an address in one of :data:`FORMS` is.

    ``http2``: what is not gRPC's speaks HTTP/2 there, with prior knowledge or as TLS says.

    Raises:
        ValueError: it is none of them.
    """
    try:
        if not address.startswith(tuple(FORMS)):
            raise ValueError
        name, port, socket = split_address(address)
    except ValueError:
        *most, last = FORMS.values()
        raise ValueError(f"address {address!r}: must be {', '.join(most)} or {last}") from None
    host_field = address.partition("://")[2].rstrip("/") or "localhost"
    speech = Speech.GRPC if address.startswith("grpc") else Speech.HTTP2 if http2 else Speech.HTTP1
    return Destination(name, port, socket, host_field, address.startswith(("https://", "grpcs://")), speech)
