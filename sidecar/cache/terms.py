"""What a model's configuration lets be kept, made ready to be asked for each request; and the reasons why not."""

from __future__ import annotations

import re
from enum import IntEnum
from fnmatch import translate
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from sidecar.settings import Trust

if TYPE_CHECKING:
    from sidecar.settings import Admission, Cache

MOST_BODY_BYTES: Final = 1 << 20
"""Requests with longer bodies have no key: their answers are neither kept nor found."""

CREDENTIALS: Final = frozenset(
    {
        b"api-key",
        b"apikey",
        b"authorization",
        b"cf-access-jwt-assertion",
        b"client-cert",
        b"cookie",
        b"dpop",
        b"ocp-apim-subscription-key",
        b"openai-organization",
        b"openai-project",
        b"private-token",
        b"remote-user",
        b"x-access-token",
        b"x-amz-security-token",
        b"x-amzn-oidc-accesstoken",
        b"x-amzn-oidc-data",
        b"x-amzn-oidc-identity",
        b"x-api-key",
        b"x-api-token",
        b"x-apikey",
        b"x-auth-key",
        b"x-auth-request-access-token",
        b"x-auth-request-email",
        b"x-auth-request-user",
        b"x-auth-token",
        b"x-auth-user",
        b"x-authorization",
        b"x-client-cert",
        b"x-forwarded-access-token",
        b"x-forwarded-client-cert",
        b"x-forwarded-email",
        b"x-forwarded-user",
        b"x-goog-api-key",
        b"x-goog-authenticated-user-email",
        b"x-goog-authenticated-user-id",
        b"x-goog-iap-jwt-assertion",
        b"x-jwt-assertion",
        b"x-ms-client-principal",
        b"x-ms-client-principal-id",
        b"x-ms-token-aad-access-token",
        b"x-remote-user",
        b"x-session-token",
        b"x-ssl-client-cert",
        b"x-token",
        b"x-vault-token",
    }
)
"""Fields that say who asks, by themselves or by the word of a gateway; ``credential_headers`` adds to them.

``Proxy-Authorization`` is not among them: it is never passed on, so no worker's answer can depend on it.
"""
NOT_WHOLE: Final = frozenset({204, 205, 206, 304})
"""Statuses of answers that have no body, or are a part of one: never kept, whatever the terms say."""
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
CALL_FRAMING: Final = frozenset({b"grpc-accept-encoding", b"grpc-encoding", b"grpc-message-type"})
"""The same of a gRPC call beside them."""


class Refused(IntEnum):
    """Why an answer is not kept, or none looked for. New members go at the end: their order is the metrics layout."""

    METHOD = 0  # not one of methods
    PATH = 1  # not one of paths
    NO_TENANT = 2  # a field names the tenant, and the request has it not, or twice, or its caller is not believed
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
    FAULT = 14  # an injected fault may have made it wrong


class Terms:
    """One model's terms. Names of fields are in lower case.

    ``tenant`` is the field that names the tenant, ``believes`` whether of anybody or of trusted callers only, and
    ``names_all`` whether nothing else tells callers apart: it is the cache's own word then, not that of
    ``policies.admission``. ``certificates``: what a client's certificate says is part of the key.
    ``secrets`` are the fields that say who asks. ``revision`` stands for whatever decides who may be told an answer and
    which answers are kept at all: it is part of every key, so what was kept by other terms is never found. Bounds and
    times have no part in it: what is kept elsewhere is held to those of whoever reads it. ``calls`` are the gRPC
    methods whose answers are kept, ``keyed_of_calls`` what ``keyed`` is for them.
    """

    __slots__ = (
        "believes",
        "calls",
        "certificates",
        "credentials",
        "keyed",
        "keyed_of_calls",
        "max_entry_bytes",
        "methods",
        "names_all",
        "revision",
        "secrets",
        "statuses",
        "streams",
        "tenant",
        "ttl_s",
        "_paths",
    )

    def __init__(self, cache: Cache, admission: Admission) -> None:
        self.methods = frozenset(method.value.encode() for method in cache.methods)
        self.statuses = frozenset(cache.statuses) - NOT_WHOLE
        self.streams = cache.streams
        self.names_all = cache.tenant_header is not None
        self.certificates = not (self.names_all or cache.shared)
        tenant = cache.tenant_header or (None if cache.shared else admission.tenant.header)
        self.tenant = b"" if tenant is None else tenant.lower().encode()
        self.believes = self.names_all or admission.trust is Trust.ANYBODY
        self.credentials = cache.credentials
        self.keyed = FRAMING | {name.lower().encode() for name in cache.key_headers}
        if self.tenant:
            self.keyed |= {self.tenant}
        self.keyed_of_calls = self.keyed | CALL_FRAMING
        self.calls = frozenset(name.encode() for name in cache.calls)
        self.secrets = CREDENTIALS | {name.lower().encode() for name in cache.credential_headers}
        self.revision = self._revision(cache)
        self.ttl_s = cache.ttl_s
        self.max_entry_bytes = cache.max_entry_bytes
        self._paths: re.Pattern[bytes] | None = None
        if not cache.deterministic:
            self._paths = re.compile(
                b"|".join(translate(one).encode() for one in map(_escaped, cache.paths)) or b"(?!)"
            )

    def _revision(self, cache: Cache) -> bytes:
        sets = (self.methods, self.calls, self.keyed, self.secrets, [b"%d" % status for status in self.statuses])
        flags = (self.credentials, self.streams, cache.deterministic, self.names_all, self.believes, self.certificates)
        parts = [self.tenant, bytes(flags)]
        parts += [b",".join(sorted(one)) for one in sets]
        parts += [b"\n".join(sorted([pattern.encode() for pattern in cache.paths]))]
        return sha256(b"".join([b"%d:%s" % (len(part), part) for part in parts])).digest()

    def takes_path(self, path: bytes) -> bool:
        """Return whether answers on this path are kept."""
        return self._paths is None or self._paths.match(path) is not None


def _escaped(pattern: str) -> str:
    """Return a pattern in which nothing but ``*`` means more than itself."""
    return pattern.replace("[", "[[]").replace("?", "[?]")
