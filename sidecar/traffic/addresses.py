"""Where traffic goes."""

from __future__ import annotations

from typing import NamedTuple

from sidecar.upstreams.pool import SECURE, split_address


class Destination(NamedTuple):
    """``socket``: the path of a Unix socket, None where host and port count. ``host_field`` is what ``Host`` says."""

    name: str
    port: int
    socket: str | None
    host_field: str
    secure: bool


def destination(address: str, *, secure: bool) -> Destination:
    """Return where ``http://HOST:PORT``, ``unix:/PATH`` or, where it may be ``secure``, ``https://HOST:PORT`` is.

    Raises:
        ValueError: it is none of them.
    """
    forms = "http://HOST:PORT, https://HOST:PORT or unix:/PATH" if secure else "http://HOST:PORT or unix:/PATH"
    schemes = ("http://", "unix:", SECURE) if secure else ("http://", "unix:")
    try:
        if not address.startswith(schemes):
            raise ValueError
        name, port, socket = split_address(address)
    except ValueError:
        raise ValueError(f"address {address!r}: must be {forms}") from None
    host_field = address.partition("://")[2].rstrip("/") or "localhost"
    return Destination(name, port, socket, host_field, address.startswith(SECURE))
