"""Which peers are meant: SPIFFE ids and DNS names of certificates against an allow-list. Pure.

A name of the list is a SPIFFE id, one with ``/*`` at its end for everything below it, a DNS name, or one whose first
label is ``*`` for exactly one label. Names are taken from the certificate's subjectAltName alone, not from its subject.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

_SPIFFE: Final = re.compile(r"spiffe://[a-z0-9._-]{1,255}(?:/[A-Za-z0-9._-]+)*\Z")
_LABEL: Final = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_DNS: Final = re.compile(rf"(?=.{{1,253}}\Z)(?:\*\.)?{_LABEL}(?:\.{_LABEL})*\Z")
MAX_SPIFFE_BYTES: Final = 2048
"""Longest SPIFFE id (SPIFFE-ID 2.3)."""


class NameFormError(ValueError):
    """A text that cannot stand in an allow-list; the message says what could."""


@dataclass(frozen=True, slots=True)
class PeerNames:
    """The names in a certificate's subjectAltName. ``unreadable``: what it holds cannot be read, in part or at all."""

    uris: tuple[str, ...] = ()
    dns: tuple[str, ...] = ()
    unreadable: bool = False

    @property
    def all(self) -> tuple[str, ...]:
        """All of them, for people."""
        return self.uris + self.dns


def peer_names(certificate: Mapping[str, Any] | None) -> PeerNames:
    """Return the names of what ``ssl.SSLObject.getpeercert()`` returned; none where there is no certificate."""
    found = (certificate or {}).get("subjectAltName", ())
    return PeerNames(
        uris=tuple(value for kind, value in found if kind == "URI"),
        dns=tuple(value for kind, value in found if kind == "DNS"),
    )


def names_shown(getpeercert: Callable[[], Mapping[str, Any] | None]) -> PeerNames:
    """Return the names that the peer of a session shows, by its ``ssl.SSLObject.getpeercert``.

    That raises where a text in the certificate is not UTF-8, which its CA may sign all the same.
    """
    try:
        return peer_names(getpeercert())
    except (ValueError, OSError):  # UnicodeDecodeError; ssl.SSLError
        return PeerNames(unreadable=True)


def identity_of(getpeercert: Callable[[bool], Any]) -> bytes:
    """Return what stands for whom a session's peer is, by its ``ssl.SSLObject.getpeercert``.

    Empty where it showed no certificate, or one that nobody checked.
    A hash of the certificate's issuer, subject and alternative names: those stay when it is renewed. Of one that
    cannot be read, a hash of all of it.
    """
    try:
        certificate: Mapping[str, Any] = getpeercert(False) or {}
        said = repr([certificate.get(part) for part in ("issuer", "subject", "subjectAltName")]).encode()
        return sha256(said).digest() if certificate else b""
    except (ValueError, OSError):  # as above
        return sha256(getpeercert(True) or b"").digest()


def check_name(text: str) -> None:
    """Check one entry of an allow-list.

    Raises:
        NameFormError: it is neither a SPIFFE id nor a DNS name.
    """
    if text.startswith("spiffe:"):
        if not is_spiffe_id(text.removesuffix("/*")):
            raise NameFormError("must be spiffe://TRUST-DOMAIN/PATH, or end in /* for all ids below, in small letters")
    elif not _DNS.match(text.lower().removesuffix(".")):
        raise NameFormError("must be a SPIFFE id (spiffe://TRUST-DOMAIN/PATH) or a DNS name, such as *.example.org")


def is_spiffe_id(text: str) -> bool:
    """Say whether ``text`` is a SPIFFE id as its standard writes it: no empty, dot or escaped segment."""
    return (
        len(text) <= MAX_SPIFFE_BYTES
        and _SPIFFE.match(text) is not None
        and not any(segment in (".", "..") for segment in text.split("/")[3:])
    )


class AllowList:
    """Decides whether a peer may come in by its names. An empty list lets everybody in."""

    def __init__(self, entries: tuple[str, ...]) -> None:
        self.entries: Final = entries
        self._ids: Final = frozenset(entry for entry in entries if _is_id(entry) and not entry.endswith("/*"))
        self._below: Final = tuple(entry[:-1] for entry in entries if _is_id(entry) and entry.endswith("/*"))
        names = [entry.lower().removesuffix(".") for entry in entries if not _is_id(entry)]
        self._dns: Final = frozenset(name for name in names if not name.startswith("*."))
        self._one_label: Final = tuple(name[1:] for name in names if name.startswith("*."))

    def refusal(self, names: PeerNames) -> str:
        """Return why a peer with ``names`` may not come in; empty: it may."""
        if not self.entries or self._by_spiffe(names.uris) or any(self._by_dns(name) for name in names.dns):
            return ""
        if names.unreadable:
            return "its certificate cannot be read"
        if not names.uris and not names.dns:
            return "its certificate holds no name"
        if len(names.uris) > 1 and not names.dns:
            return "its certificate holds more than one URI, which no SPIFFE certificate does"
        return "none of its names is allowed"

    def _by_spiffe(self, uris: tuple[str, ...]) -> bool:
        if len(uris) != 1 or not is_spiffe_id(uris[0]):  # exactly one (X509-SVID 2)
            return False
        return uris[0] in self._ids or uris[0].startswith(self._below)

    def _by_dns(self, name: str) -> bool:
        name = name.lower().removesuffix(".")
        if name in self._dns:
            return True
        label, dot, rest = name.partition(".")
        return bool(label) and dot + rest in self._one_label


def _is_id(entry: str) -> bool:
    return entry.startswith("spiffe:")
