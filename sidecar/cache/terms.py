"""What a model's configuration lets be kept, made ready to be asked for each request; and the reasons why not."""

from __future__ import annotations

import re
from enum import IntEnum
from fnmatch import translate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sidecar.settings import Cache

MOST_BODY_BYTES: Final = 1 << 20
"""Requests with longer bodies have no key: their answers are neither kept nor found."""

CREDENTIALS: Final = frozenset({b"authorization", b"cookie", b"x-api-key", b"api-key"})
"""Fields that say who asks. ``proxy-authorization`` is for warmroute itself and goes no further."""
FRAMING: Final = frozenset(
    {
        b"accept",
        b"accept-encoding",
        b"accept-language",
        b"content-encoding",
        b"content-language",
        b"content-type",
        b"inference-header-content-length",
    }
)
"""Fields of a request that decide what its body means, and in which form it is answered: part of every key."""


class Refused(IntEnum):
    """Why an answer is not kept, or none looked for. New members go at the end: their order is the metrics layout."""

    METHOD = 0  # not one of methods
    PATH = 1  # not one of paths
    NO_TENANT = 2  # tenant_header is configured, and the request has it not, or twice
    CREDENTIALS = 3  # it says who asks, and that is nobody's key
    REQUEST_CONTROL = 4  # Cache-Control: no-store or no-cache of the caller
    CONDITIONAL = 5  # Range or If-...: its answer depends on what the caller has already
    BODY = 6  # longer than MOST_BODY_BYTES, or not whole when it was needed
    STATUS = 7  # not one of statuses
    STREAM = 8  # no length, or events
    SIZE = 9  # over max_entry_bytes
    ANSWER_CONTROL = 10  # Cache-Control of the worker, Set-Cookie, or Vary by a field that is in no key
    CUT = 11  # it did not come whole
    DEGRADED = 12  # nothing is written while the model is degraded, or memory is short
    PROTOCOL = 13  # HTTP/1.0, a switch of protocols


class Terms:
    """One model's terms. Names of fields are in lower case."""

    __slots__ = (
        "credentials",
        "keyed",
        "max_entry_bytes",
        "methods",
        "statuses",
        "streams",
        "tenant",
        "ttl_s",
        "_paths",
    )

    def __init__(self, cache: Cache) -> None:
        self.methods = frozenset(method.value.encode() for method in cache.methods)
        self.statuses = frozenset(cache.statuses)
        self.streams = cache.streams
        self.tenant = b"" if cache.tenant_header is None else cache.tenant_header.lower().encode()
        self.credentials = cache.credentials
        self.keyed = FRAMING | {name.lower().encode() for name in cache.key_headers}
        if self.tenant:
            self.keyed |= {self.tenant}
        self.ttl_s = cache.ttl_s
        self.max_entry_bytes = cache.max_entry_bytes
        self._paths: re.Pattern[bytes] | None = None
        if not cache.deterministic:
            self._paths = re.compile(
                b"|".join(translate(one).encode() for one in map(_escaped, cache.paths)) or b"(?!)"
            )

    def takes_path(self, path: bytes) -> bool:
        """Return whether answers on this path are kept."""
        return self._paths is None or self._paths.match(path) is not None


def _escaped(pattern: str) -> str:
    """Return a pattern in which nothing but ``*`` means more than itself."""
    return pattern.replace("[", "[[]").replace("?", "[?]")
