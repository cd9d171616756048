"""Upgrades (RFC 9110 7.8): which protocols a head names, and which of them are never switched to. Pure.

What is switched to becomes a tunnel of bytes that nobody here reads; so another version of HTTP, or TLS, would carry
requests past every rule of this proxy.
"""

from __future__ import annotations

import re
from typing import Final

_REFUSED: Final = re.compile(rb"(?:h2c?(?:-.*)?|http|tls)(?:/.*)?")
"""Protocols that no tunnel is made for, whatever their version; drafts of HTTP/2 were ``h2-14``, ``h2c-14``."""

_OPTIONS: Final = re.compile(rb"\r\nconnection:([^\r]*)", re.IGNORECASE)
_UPGRADES: Final = re.compile(rb"\r\nupgrade:[ \t]*([^\r]*)", re.IGNORECASE)
_PROTOCOL: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:/[!#$%&'*+.^_`|~0-9A-Za-z-]+)?")


def upgrade_of(raw: bytes) -> bytes:
    """Return the value of a head's ``Upgrade`` (several lines as one list), or nothing where it asks for no upgrade.

    It asks for none where ``Connection`` does not name the field: then it was not meant for us (RFC 9110 7.6.1).
    """
    named = any(
        option.strip(b" \t").lower() == b"upgrade" for value in _OPTIONS.findall(raw) for option in value.split(b",")
    )
    return b", ".join(value.rstrip(b" \t") for value in _UPGRADES.findall(raw)) if named else b""


def protocols(value: bytes) -> list[bytes]:
    """Return the protocols of an ``Upgrade`` value, in lower case.

    Raises:
        ValueError: it is not a list of ``NAME`` or ``NAME/VERSION``.
    """
    found = [part for part in (part.strip(b" \t") for part in value.lower().split(b",")) if part]
    for protocol in found:
        if not _PROTOCOL.fullmatch(protocol):
            raise ValueError(f"Upgrade {value[:40]!r} is not a list of protocols")
    return found


def refused(asked: list[bytes]) -> bytes:
    """Return the first of the protocols that no tunnel is made for, or nothing."""
    return next((one for one in asked if _REFUSED.fullmatch(one)), b"")
