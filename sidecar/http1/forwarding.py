"""Whom a caller says it speaks for: what is believed of that, and what a worker is told about the caller.

Forwarding fields (``X-Forwarded-*``, ``X-Real-IP``, ``Forwarded``) and fields that steer proxies (``warmroute-*``,
``x-envoy-*``) are believed from configured networks only. From everybody else they are taken out, with the spellings
that CGI-like servers merge with them, and what is known of the connection itself is written instead.

Sources: RFC 7239 (Forwarded), RFC 9110 7.6.3 (Via). Nothing here reads a socket or a clock.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

VIA: Final = b"via: 1.1 warmroute\r\n"
ATTEMPT: Final = b"warmroute-attempt: "
"""Counts the attempts of one request over all proxies that it passes. Always the last field of what goes out."""
MODEL_HEADER: Final = "warmroute-model"
"""Names a model where a path does not. It may be asked by anybody: it says nothing that a path could not say."""
UNIX: Final = "unix"
"""Stands among the trusted networks for callers on Unix sockets."""

MAX_PEERS: Final = 1024
"""Peers whose fields are kept ready, by listener; over it they are made anew."""
_MAX_ATTEMPT_DIGITS: Final = 4
_SOME_ATTEMPT: Final = 2
"""Stands for a number that cannot be read: whoever sends one tries again, and nobody should multiply that."""

FORWARDING_FIELDS: Final = (
    rb"forwarded|warmroute(?!-model:)[^a-z0-9:][^:\r]*"
    rb"|x[^a-z0-9:](?:forwarded(?:[^a-z0-9:][^:\r]*)?|real[^a-z0-9:]ip|envoy[^a-z0-9:][^:\r]*)"
)
"""Names of the fields that only trusted peers may send, in lower case. Whatever stands for a hyphen is one."""
_FORWARDING: Final = re.compile(rb"(?:" + FORWARDING_FIELDS + rb"):", re.IGNORECASE)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Peer:
    """The other end of a caller's connection, and what its requests go on with.

    ``end`` ends the head of a request's first attempt where nothing about the request's way had to be kept: forwarding
    fields, ``Via``, the attempt and the empty line. ``model_field`` is what begins the line that names a model.
    """

    __slots__ = ("_element", "address", "end", "model_field", "scheme", "trusted")

    def __init__(
        self, address: str = "", *, secure: bool = False, trusted: bool = False, model_header: str = ""
    ) -> None:
        self.trusted = trusted
        self.address = address.encode()
        self.scheme = b"https" if secure else b"http"
        self.model_field = b"\r\n%s:" % model_header.lower().encode() if model_header else b""
        self.end = self._end(1, said=False)
        source = b'"[%s]"' % self.address if b":" in self.address else self.address or b"unknown"  # RFC 7239 6
        self._element = b"for=%s;proto=%s" % (source, self.scheme)

    def _end(self, attempt: int, *, said: bool, proto: bool = False) -> bytes:
        """Return what ends a head. ``said``: the source stands in it already; ``proto``: so does the scheme."""
        out = b"" if said or not self.address else b"x-forwarded-for: %s\r\n" % self.address
        if not proto:
            out += b"x-forwarded-proto: %s\r\n" % self.scheme
        return out + VIA + b"%s%d\r\n\r\n" % (ATTEMPT, attempt)

    def rewrite(self, forward: bytes) -> tuple[bytes, bytes, int]:
        """Return a head that holds forwarding fields as it goes on, what ends it, and which attempt it is."""
        lines = forward.split(b"\r\n")
        if not self.trusted:
            return b"\r\n".join([line for line in lines if not _FORWARDING.match(line)]), self.end, 1
        kept: list[bytes] = []
        chain = element = -1
        proto = False
        attempt = 1
        for line in lines:
            name = line.partition(b":")[0].lower()
            if name == b"warmroute-attempt":
                value = line[18:].strip(b" \t")
                good = value.isdigit() and len(value) <= _MAX_ATTEMPT_DIGITS
                attempt = max(attempt, int(value) if good else _SOME_ATTEMPT)
                continue
            if name == b"x-forwarded-for":
                chain = len(kept)
            elif name == b"forwarded":
                element = len(kept)
            elif name == b"x-forwarded-proto":
                proto = True
            kept.append(line)
        if chain >= 0 and self.address:
            kept[chain] = _appended(kept[chain], self.address)
        if element >= 0:
            kept[element] = _appended(kept[element], self._element)
        said = chain >= 0 or element >= 0
        return b"\r\n".join(kept), self._end(attempt, said=said, proto=proto or element >= 0), attempt

    def fields(self, sent: list[tuple[bytes, ...]]) -> tuple[list[tuple[bytes, ...]], int]:
        """Return the fields of an HTTP/2 head that tell of its way, and which attempt it is.

        ``sent`` are the forwarding fields that the peer sent (:func:`is_forwarding`); ``via`` is the caller's business.
        """
        kept, end, attempt = self.rewrite(b"\r\n".join([b"%s: %s" % (field[0], field[1]) for field in sent]))
        out: list[tuple[bytes, ...]] = []
        for line in (*kept.split(b"\r\n"), *end.split(b"\r\n")):
            name, _, value = line.partition(b": ")
            if name and name != b"via" and name != b"warmroute-attempt":
                out.append((name, value))
        return out, attempt


def is_forwarding(name: bytes) -> bool:
    """Return whether a field of this name, in lower case, is one that only trusted peers may send."""
    return _FORWARDING.match(name + b":") is not None


class Continuation:
    """What :meth:`Peer.rewrite` does to the heads of one shape, without reading them: see ``shapes``.

    It continues an ``X-Forwarded-For`` in its usual spelling and takes ``warmroute-attempt: 1`` out. Whether that was
    all there is to do must be compared once with what ``rewrite`` made of a head of the shape.
    """

    __slots__ = ("_attempt", "_chain", "_item")

    def __init__(self, raw: bytes, peer: Peer) -> None:
        chain = _CHAIN.search(raw)
        attempt = _FIRST_ATTEMPT.search(raw)
        self._chain = chain[0] if chain is not None and peer.address else b""
        self._attempt = attempt[0] if attempt is not None else b""
        self._item = b", " + peer.address

    def of(self, forward: bytes) -> bytes:
        """Return a head of the shape as it goes on."""
        if self._chain:
            end = forward.find(b"\r\n", forward.find(self._chain) + 2)
            forward = forward[:end] + self._item + forward[end:]
        return forward.replace(self._attempt, b"", 1) if self._attempt else forward


_CHAIN: Final = re.compile(rb"\r\nx-forwarded-for: ", re.IGNORECASE)
_FIRST_ATTEMPT: Final = re.compile(rb"\r\nwarmroute-attempt: 1(?=\r\n)", re.IGNORECASE)

STRANGER: Final = Peer()
"""A peer of whom nothing is known."""


class ListenerRules:
    """What a listener's callers have in common: the model of those who name none, and who of them is believed."""

    __slots__ = ("_model_header", "_networks", "_peers", "_trusts_unix", "default_model")

    def __init__(
        self,
        default_model: str | None = None,
        *,
        trusted_networks: tuple[str, ...] = (),
        model_header: str | None = MODEL_HEADER,
    ) -> None:
        self._peers: dict[tuple[str, bool], Peer] = {}
        self.configure(default_model, trusted_networks=trusted_networks, model_header=model_header)

    def configure(
        self, default_model: str | None, *, trusted_networks: tuple[str, ...], model_header: str | None
    ) -> None:
        """Go by another configuration: the model from the next request on, the rest for callers that come."""
        self.default_model = default_model
        self._model_header = model_header or ""
        self._trusts_unix = UNIX in trusted_networks
        self._networks: list[Network] = [ipaddress.ip_network(one) for one in trusted_networks if one != UNIX]
        self._peers.clear()

    def peer(self, peername: object, *, secure: bool) -> Peer:
        """Return what is known of a caller.

        Args:
            peername: as the socket has it: (address, port, ...) of TCP, a path or nothing of a Unix socket.
            secure: it speaks TLS.
        """
        if isinstance(peername, tuple):
            host = str(peername[0])
        elif isinstance(peername, str | bytes):
            host = UNIX
        else:  # gone already
            host = ""
        known = self._peers.get((host, secure))
        if known is None:
            if len(self._peers) >= MAX_PEERS:
                self._peers.clear()
            known = self._peers[host, secure] = self._peer(host, secure=secure)
        return known

    def _peer(self, host: str, *, secure: bool) -> Peer:
        if host == UNIX:
            return Peer(secure=secure, trusted=self._trusts_unix, model_header=self._model_header)
        try:
            address = ipaddress.ip_address(host.partition("%")[0])  # a link-local one comes with its interface
        except ValueError:
            return Peer(secure=secure, model_header=self._model_header)
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        trusted = any(address in network for network in self._networks)
        return Peer(str(address), secure=secure, trusted=trusted, model_header=self._model_header)


def numbered(head: bytes, attempt: int) -> bytes:
    """Return a head that ends as :class:`Peer` ends it, as that of the attempt with this number."""
    return b"%s%s%d\r\n\r\n" % (head[: head.rindex(ATTEMPT)], ATTEMPT, attempt)


def _appended(line: bytes, item: bytes) -> bytes:
    """Return the line of a field that holds a list (RFC 9110 5.6.1) with one more item."""
    line = line.rstrip(b" \t,")
    return line + (b", " if line.partition(b":")[2] else b" ") + item
