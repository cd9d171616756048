"""URLs: what an endpoint's says of its protocol; that of the shared state without what nobody else may read."""

from __future__ import annotations

import re

GRPC_SCHEMES = ("grpc://", "grpcs://", "grpc+unix:")
"""What the addresses of endpoints start with that speak gRPC over HTTP/2; all others speak HTTP/1.1."""

MASK = "***"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")


def protocol_of(address: str) -> str:
    """Return what an endpoint at this address speaks: ``http`` or ``grpc``."""
    return "grpc" if address.lower().startswith(GRPC_SCHEMES) else "http"


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
