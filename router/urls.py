"""URLs: what an endpoint's may be and says of its protocol; that of the shared state without what is nobody else's.

And which names of hosts are this machine's alone.
"""

from __future__ import annotations

import ipaddress
import re

GRPC_SCHEMES = ("grpc://", "grpcs://", "grpc+unix:")
"""What the addresses of endpoints start with that speak gRPC over HTTP/2; all others speak HTTP/1.1."""

MASK = "***"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")
_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,254}}\Z){_LABEL}(\.{_LABEL})*\.?")
_ADDRESS = re.compile(r"(?:https?|grpcs?)://(\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?\]|[^:]+):([0-9]{1,5})")
_SOCKET = re.compile(r"(?:grpc\+)?unix:(/[^/].*)", re.DOTALL)
_FORMS = "must be HOST:PORT after http://, https://, grpc:// or grpcs://, or unix:/PATH or grpc+unix:/PATH"
MAX_PORT = 65535
MAX_UNIX_PATH_BYTES = 107
"""Longest path of a Unix socket: sun_path of unix(7) without its final NUL."""


def protocol_of(address: str) -> str:
    """Return what an endpoint at this address speaks: ``http`` or ``grpc``."""
    return "grpc" if address.lower().startswith(GRPC_SCHEMES) else "http"


def check_address(address: str) -> None:
    """Check the address of an endpoint, as it stands in the shared state.

    It is ``SCHEME://HOST:PORT`` with http, https, grpc or grpcs, the host a name, an
    IPv4 address or an IPv6 one in brackets; or ``unix:/PATH`` or ``grpc+unix:/PATH``. No path follows, no user leads.

    Raises:
        ValueError: it is none of them.
    """
    if not address.isprintable():
        raise ValueError("holds control characters")
    socket = _SOCKET.fullmatch(address)
    if socket is not None:
        path = socket[1]
        if path.endswith("/") or len(path.encode()) > MAX_UNIX_PATH_BYTES:
            raise ValueError(f"must hold the path of a socket, of at most {MAX_UNIX_PATH_BYTES} bytes")
        return
    place = _ADDRESS.fullmatch(address)
    if place is None:
        raise ValueError(_FORMS)
    if not 0 < int(place[2]) <= MAX_PORT:
        raise ValueError(f"must have a port between 1 and {MAX_PORT}")
    if not _is_host(place[1]):
        raise ValueError("must hold the name of a host, an IPv4 address, or an IPv6 one in brackets")


def is_loopback(host: str) -> bool:
    """Say whether ``host``, a name or an address without brackets, can be reached from this machine alone."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_loopback_name(text: str) -> bool:
    """Say whether a Host field's value, with a port or without, names this machine's loopback."""
    if text.startswith("["):
        name, _, port = text[1:].partition("]")
        if port and not (port[0] == ":" and port[1:].isdecimal()):
            return False
    else:
        name = text.rpartition(":")[0] if text.count(":") == 1 else text
    return is_loopback(name)


def _is_host(host: str) -> bool:
    try:
        if host.startswith("["):
            ipaddress.IPv6Address(host[1:-1])
            return True
        if not host.strip("0123456789."):
            ipaddress.IPv4Address(host)
            return True
    except ValueError:
        return False
    return _NAME.fullmatch(host) is not None


def masked_url(url: str) -> str:
    """Return ``url`` with user and password as ``***`` and without its query, which may hold a password too.

    A password that was not percent-encoded may hold anything, so everything up to the last ``@`` counts as one; where
    that may as well be inside of a query, nothing but the scheme is left. Text that is no URL stays as it is.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    at, query = rest.rfind("@"), rest.find("?")
    if query == -1:
        query = len(rest)
    if at > query:
        return f"{scheme}://{MASK}"
    user = f"{MASK}@" if at >= 0 else ""
    return f"{scheme}://{user}{rest[at + 1 : query]}"


def masked_urls(text: str) -> str:
    """Return ``text`` with every URL in it masked; a URL ends at the next space."""
    return _URL.sub(lambda match: masked_url(match[0]), text) if "://" in text else text
