"""TLS on listeners: handshakes within their bounds, and who may come in."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from sidecar.telemetry.logs import get_log
from sidecar.telemetry.page import Scalar
from sidecar.tls.material import Follower, Terms, plain
from sidecar.tls.names import PeerNames, names_shown
from sidecar.tls.transport import RefusedError, TlsTransport

if TYPE_CHECKING:
    from sidecar.settings import ListenerTls
    from sidecar.telemetry.page import Page

AUDIT_LINES_PER_S: Final = 20
"""Lines of one kind, for one listener (or for all workers together). Anybody can be rejected without a certificate, or
with one of an unknown CA, as often as they like; that must hide nobody whom a CA of ours gave a name."""
MAX_NAMES_SHOWN: Final = 8
_QUICKACK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)  # tcp(7); Linux
_NO_CERTIFICATE: Final = "PEER_DID_NOT_RETURN_A_CERTIFICATE"
_UNUSABLE_CERTIFICATE: Final = frozenset({_NO_CERTIFICATE, "CERTIFICATE_VERIFY_FAILED", "NO_CERTIFICATE_RETURNED"})

_log = get_log("tls")


class Audit:
    """One line for each peer that was not let in, at most so many a second; what is left out is counted.

    Three kinds of lines are counted apart: of peers without a good certificate; of those with one, the first in a
    second that shows these names; and the others of those.
    """

    def __init__(self, clock: Callable[[], float], lines_per_s: int = AUDIT_LINES_PER_S) -> None:
        self._clock = clock
        self._lines_per_s = lines_per_s
        self._second = 0.0
        self._lines: Counter[tuple[str, str]] = Counter()
        self._seen: set[tuple[str, PeerNames]] = set()
        self._left_out = 0
        self._left_out_named = 0

    def rejected(self, why: str, names: PeerNames | None, *, listener: str = "", **where: str) -> None:
        """Log one.

        Args:
            why: the reason.
            names: of a certificate that a CA of ours signed; None: there is none.
            listener: where it came in; empty: it is a worker.
            where: tells more of it.
        """
        now = self._clock()
        if now - self._second >= 1.0:
            self.flush(now)
            self._second = now
            self._lines.clear()
            self._seen.clear()
        kind = "unknown"
        if names is not None:
            kind = "again" if (listener, names) in self._seen else "first"
        if self._lines[listener, kind] >= self._lines_per_s:
            self._left_out += 1
            self._left_out_named += names is not None
            return
        self._lines[listener, kind] += 1
        if names is not None:
            self._seen.add((listener, names))
        if listener:
            where["listener"] = listener
        shown = () if names is None else names.all[:MAX_NAMES_SHOWN]
        _log.warning("tls.peer_rejected", **where, names=shown, why=why)

    def flush(self, now: float) -> None:
        """Say how many were left out, once their second is over."""
        if self._left_out and now - self._second >= 1.0:
            _log.warning("tls.peers_rejected", left_out=self._left_out, named=self._left_out_named)
            self._left_out = self._left_out_named = 0


class Refused(asyncio.Protocol):
    """Ends a connection as soon as it is made."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """End it."""
        transport.abort()  # type: ignore[attr-defined]


class ListenerGate:
    """The TLS of one listener in one data process; ``enter`` is what its server makes connections with.

    ``application`` makes the protocol of a connection whose peer came in. ``room`` says whether there is room for one
    more handshake.
    """

    def __init__(
        self,
        name: str,
        tls: ListenerTls,
        alpn: tuple[str, ...],
        application: Callable[[], asyncio.Protocol],
        *,
        loop: asyncio.AbstractEventLoop,
        page: Page,
        audit: Audit,
        room: Callable[[], bool],
        handshake_s: float,
    ) -> None:
        self.name: Final = name
        self.follower = Follower(name, tls, alpn)
        self._application = application
        self._loop = loop
        self._page = page
        self._audit = audit
        self._room = room
        self.handshake_s = handshake_s
        self.handshakes = 0
        """Under way now."""

    def configure(self, tls: ListenerTls, handshake_s: float) -> None:
        """Go by this from the next connection on."""
        self.handshake_s = handshake_s
        self.follower = self.follower.changed_to(tls)

    def enter(self) -> asyncio.Protocol:
        """Return the protocol of a connection that was just accepted."""
        terms = self.follower.terms
        if terms is None or not self._room():
            self._count(Scalar.TLS_HANDSHAKES_REFUSED_TOTAL)
            return Refused()
        self.handshakes += 1
        entering = _Entering(self, terms)
        return TlsTransport(self._loop, terms.context, entering, timeout_s=self.handshake_s, server_side=True)

    def established(self, session: TlsTransport, terms: Terms) -> asyncio.Protocol | None:
        """Let a peer in whose names are allowed."""
        self.handshakes -= 1
        self._count(Scalar.TLS_HANDSHAKES_TOTAL)
        _acknowledge(session)
        if terms.allowed.entries:
            names = names_shown(session.object.getpeercert)
            why = terms.allowed.refusal(names)
            if why:
                self._reject(session, why, names)
                return None
        return self._application()

    def failed(self, session: TlsTransport, error: Exception) -> None:
        """Count a handshake that came to nothing; one that failed for the peer's certificate is a rejected peer."""
        self.handshakes -= 1
        if isinstance(error, ssl.SSLError) and error.reason in _UNUSABLE_CERTIFICATE:
            self._reject(session, "it shows no certificate" if error.reason == _NO_CERTIFICATE else plain(error))
            return
        self._count(Scalar.TLS_HANDSHAKES_FAILED_TOTAL)
        _log.debug("tls.handshake_failed", listener=self.name, peer=_peer(session), why=plain(error))

    def _reject(self, session: TlsTransport, why: str, names: PeerNames | None = None) -> None:
        self._count(Scalar.TLS_PEERS_REJECTED_TOTAL)
        self._audit.rejected(why, names, listener=self.name, peer=_peer(session))

    def _count(self, member: Scalar) -> None:
        self._page.words[self._page.scalar(member)] += 1


class _Entering:
    """One session in the making: its owner, and what it goes by."""

    def __init__(self, gate: ListenerGate, terms: Terms) -> None:
        self._gate = gate
        self._terms = terms

    def established(self, session: TlsTransport) -> asyncio.Protocol | None:
        """Ask the gate, which may have other terms by now."""
        return self._gate.established(session, self._terms)

    def failed(self, session: TlsTransport, error: Exception) -> None:
        """There is no session."""
        self._gate.failed(session, error)

    def refused(self, error: RefusedError) -> None:
        """Only a server refuses so."""


def _acknowledge(session: TlsTransport) -> None:
    """Have the kernel acknowledge the caller's last message at once.

    Nothing of ours follows it, as a ticket would, and a caller with Nagle's algorithm on holds its request back until
    then: 40 ms.
    """
    sock = session.get_extra_info("socket")
    if _QUICKACK is not None and sock.family != socket.AF_UNIX:
        with contextlib.suppress(OSError):  # it has gone already
            sock.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)


def _peer(session: TlsTransport) -> str:
    address: Any = session.get_extra_info("peername")
    if isinstance(address, tuple) and len(address) >= 2:
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        return f"{host}:{address[1]}"
    return "unix"
