"""URLs of the shared state without what nobody else may read: for logs, pages and errors of sidecars and workers."""

from __future__ import annotations

import re

MASK = "***"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")


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
