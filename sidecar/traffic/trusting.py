"""TLS contexts of traffic that warmroute makes or records itself."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Final

from sidecar.traffic.samples import Ended

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SPOKEN: Final = ("h2", "http/1.1")
"""What a server may agree on (ALPN, RFC 7301), best first."""


class TrustError(ValueError):
    """A file cannot be used; ``option`` is the one that named it, without its dashes."""

    def __init__(self, option: str, why: str) -> None:
        super().__init__(why)
        self.option = option


def client_context(
    alpn: list[str], ca_file: Path | None, cert_file: Path | None, key_file: Path | None, *, insecure: bool
) -> ssl.SSLContext:
    """Return how servers are spoken to: those that ``ca_file`` vouches for, else the system's certificates.

    ``cert_file`` and ``key_file`` are ours, where they ask for it. ``insecure``: any server is believed.

    Raises:
        TrustError: a file cannot be read or is none.
    """
    try:
        context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except OSError as error:
        raise TrustError("ca-file", f"{ca_file or 'the system'}: {_why(error)}") from None
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if cert_file is not None:
        _load(context, cert_file, key_file, "cert-file")
    elif key_file is not None:
        raise TrustError("key-file", "needs --cert-file")
    context.set_alpn_protocols(alpn)
    return context


def server_context(alpn: list[str], cert_file: Path, key_file: Path | None) -> ssl.SSLContext:
    """Return how callers are spoken to.

    Raises:
        TrustError: a file cannot be read or is none.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _load(context, cert_file, key_file, "listen-cert-file")
    context.set_alpn_protocols(alpn)
    return context


def is_alpn_refusal(error: BaseException) -> bool:
    """Return whether a handshake failed because the server speaks nothing of what it was offered (RFC 7301 3.2)."""
    return isinstance(error, ssl.SSLError) and "no application protocol" in _words(error)


def refusal(error: ssl.SSLError) -> tuple[Ended, str]:
    """Return what a handshake that failed is to who wanted a connection, and why, in the library's words."""
    if is_alpn_refusal(error):
        return Ended.NO_HTTP2, "it took none of what it was offered (ALPN)"
    return Ended.TLS_FAILED, getattr(error, "verify_message", "") or _words(error)


def lost(error: Exception | None) -> tuple[Ended, str]:
    """Return what the end of a connection is to who waits for an answer. Servers refuse a certificate so late."""
    if isinstance(error, ssl.SSLError) and "alert" in _words(error):
        return refusal(error)
    return Ended.CUT, "closed" if error is None else type(error).__name__


async def accepted(name: str, port: int, tls: Callable[[str], ssl.SSLContext]) -> list[str]:
    """Return which of :data:`SPOKEN` the server at an address takes, by a handshake with each; ``tls`` as for them.

    One that does not choose at all speaks HTTP/1.1.

    Raises:
        OSError: it does not answer, or its certificate does not count.
    """
    taken = []
    for alpn in SPOKEN:
        try:
            _, writer = await asyncio.open_connection(name, port, ssl=tls(alpn))
        except ssl.SSLError as error:
            if is_alpn_refusal(error):
                continue
            raise
        chosen = writer.get_extra_info("ssl_object").selected_alpn_protocol()
        writer.transport.abort()
        if (chosen or "http/1.1") == alpn:
            taken.append(alpn)
    return taken


def _load(context: ssl.SSLContext, cert_file: Path, key_file: Path | None, option: str) -> None:
    try:
        context.load_cert_chain(cert_file, key_file, password=lambda: b"")
    except OSError as error:
        raise TrustError(option, f"{cert_file}: {_why(error)}") from None


def _words(error: ssl.SSLError) -> str:
    """Return what the library says of an error; some alerts have no ``reason`` there, and only a text."""
    return (error.reason or str(error)).replace("_", " ").lower()


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"no certificate, or key, in PEM that belongs to it ({error.reason or error})"
    return error.strerror or str(error)
