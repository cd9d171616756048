"""A request as the cache sees it: whether its answer may be kept at all, and the key that it is kept under.

So is a gRPC call, whose metadata are its fields and whose messages, as they are framed, are its body (``calls``).

The key is a hash, so it must be one that nobody can find two requests for: SHA-256 over every part with its length in
front, so that no part can pass for the end of another. Sources: RFC 9111 (3, 4, 5.2.1), RFC 9110 (13.1, 14.2).
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from sidecar.cache.terms import Refused, Terms

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_CONDITIONAL: Final = frozenset(
    {b"if-match", b"if-modified-since", b"if-none-match", b"if-range", b"if-unmodified-since", b"range"}
)
_NOT_FROM_HERE: Final = re.compile(rb"(?:^|,)[ \t]*(?:no-store|no-cache)[ \t]*(?:[,=]|$)")
"""Directives of a caller that wants nothing kept, or nothing that was; ``Pragma`` says the same."""


class Asked:
    """What is known of a request whose answer may be kept: by which terms, whose it is, and what of its head counts."""

    __slots__ = ("fields", "identity", "method", "revision", "target", "tenant")

    def __init__(
        self,
        revision: bytes,
        method: bytes,
        target: bytes,
        tenant: bytes,
        identity: bytes,
        fields: list[tuple[bytes, bytes]],
    ) -> None:
        self.revision: Final = revision
        self.identity: Final = identity
        self.method: Final = method
        self.target: Final = target
        self.tenant: Final = tenant
        self.fields: Final = fields

    def keys(self, model: str, versions: Sequence[str], body: bytes) -> list[bytes]:
        """Return the keys for versions of a model ("" where it has none) and the whole body without its framing."""
        digest = sha256()
        head = [self.revision, model.encode(), self.tenant, self.identity, self.method, self.target, b"%d" % len(body)]
        for name, value in self.fields:
            head += (name, value)
        digest.update(b"%d;" % len(head) + b"".join([b"%d:%s" % (len(part), part) for part in head]))
        digest.update(body)
        found = []
        for version in versions:  # behind the body, whose length stands in front: it is read once for all of them
            one = digest.copy()
            one.update(version.encode())
            found.append(one.digest())
        return found


def asked_of(
    method: bytes, target: bytes, forward: bytes, terms: Terms, *, trusted: bool, identity: bytes
) -> Asked | Refused:
    """Return what a request is to the cache, or why it is nothing to it.

    Args:
        method: as it came.
        target: the target as the worker hears it, with its query.
        forward: the head as the worker hears it, without the empty line.
        terms: the model's.
        trusted: its caller's word counts in ``policies.admission``.
        identity: what stands for its caller's certificate, empty where it showed none.
    """
    if method not in terms.methods:
        return Refused.METHOD
    if not terms.takes_path(target.partition(b"?")[0]):
        return Refused.PATH
    lines = [line.partition(b":") for line in forward.split(b"\r\n")[1:]]
    pairs = [(name.lower(), value.strip(b" \t")) for name, _, value in lines]
    return asked_with(method, target, pairs, terms.keyed, terms, trusted=trusted, identity=identity)


def asked_with(
    method: bytes,
    target: bytes,
    pairs: Iterable[Sequence[bytes]],
    keyed: frozenset[bytes],
    terms: Terms,
    *,
    trusted: bool,
    identity: bytes,
) -> Asked | Refused:
    """Return what a request with these fields is to the cache, or why it is nothing to it.

    Args:
        method: of which kind it is.
        target: what it asks.
        pairs: names in lower case and values without blanks at their ends.
        keyed: names of those that decide what it means.
        terms: the model's.
        trusted: its caller's word counts in ``policies.admission``.
        identity: what stands for its caller's certificate, empty where it showed none.
    """
    tenant = b""
    tenants = 0
    secrets: list[tuple[bytes, bytes]] = []
    fields: list[tuple[bytes, bytes]] = []
    secret = terms.secrets
    for pair in pairs:
        name, value = pair[0], pair[1]
        if name in keyed:
            if name == terms.tenant:
                tenant = value
                tenants += 1
            else:
                fields.append((name, value))
        elif name in secret:
            secrets.append((name, value))
        elif name in (b"cache-control", b"pragma"):
            if _NOT_FROM_HERE.search(value.lower()):
                return Refused.REQUEST_CONTROL
        elif name in _CONDITIONAL:
            return Refused.CONDITIONAL
    if terms.tenant and (tenants != 1 or not tenant or not (trusted or terms.believes)):
        return Refused.NO_TENANT
    if secrets and not terms.names_all:
        if not terms.credentials:
            return Refused.CREDENTIALS
        fields += secrets
    fields.sort(key=_name)  # in a stable order: that of fields of one name counts
    return Asked(terms.revision, method, target, tenant, identity if terms.certificates else b"", fields)


def _name(field: tuple[bytes, bytes]) -> bytes:
    return field[0]
