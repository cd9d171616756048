"""The connections of a gRPC server, which its library has for itself: what their other ends took, and their end.

The library says neither how much of an answer was taken nor can it end one call, and what it has to send it keeps for
as long as the connection lives. The kernel tells the first (tcp(7), ``TCP_INFO``) and shutdown(2) frees the rest.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
import struct
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterator

_DESCRIPTORS: Final = Path("/proc/self/fd")
_ACKED: Final = struct.Struct("=120xQ")
"""``tcpi_bytes_acked`` of ``struct tcp_info`` (linux/tcp.h)."""
_Place = tuple[str, int]


class Connections:
    """Found by the address of their other end, in what this process has open, once they are asked for."""

    def __init__(self) -> None:
        self._port = 0
        self._descriptors: dict[_Place, int] = {}

    def of_port(self, port: int) -> None:
        """Look at those to this port of ours only."""
        self._port = port

    def taken(self, peer: str) -> int | None:
        """Return how many bytes the other end took since it connected; None where that is not told.

        ``peer``: as the library has it, ``ipv4:ADDRESS:PORT`` or ``ipv6:[ADDRESS]:PORT``.
        """
        with self._open(peer) as sock:
            try:
                told = b"" if sock is None else sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED.size)
            except (AttributeError, OSError):  # not on this system
                return None
            return int(_ACKED.unpack(told)[0]) if len(told) == _ACKED.size else None

    def end(self, peer: str) -> None:
        """End the connection, with all that it carries."""
        with self._open(peer) as sock:
            if sock is not None:
                with suppress(OSError):  # it has ended
                    sock.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _open(self, peer: str) -> Iterator[socket.socket | None]:
        """Have a descriptor of our own for the ``with`` block: the library may close its at any time."""
        place = _place(peer)
        sock = None if place is None else self._find(place)
        if sock is None:
            yield None
            return
        with sock:
            yield sock

    def _find(self, place: _Place) -> socket.socket | None:
        sock = self._at(self._descriptors.get(place, -1), place)
        if sock is not None:
            return sock
        self._descriptors = {}
        try:
            descriptors = [int(entry.name) for entry in _DESCRIPTORS.iterdir()]
        except OSError:
            return None
        for descriptor in descriptors:
            found = self._other_end(descriptor)
            if found is not None:
                self._descriptors[found] = descriptor
        return self._at(self._descriptors.get(place, -1), place)

    def _at(self, descriptor: int, place: _Place) -> socket.socket | None:
        """Return what a descriptor is now, where that is still the connection from ``place``."""
        sock = _duplicate(descriptor)
        if sock is None:
            return None
        if self._between(sock) != place:
            sock.close()
            return None
        return sock

    def _other_end(self, descriptor: int) -> _Place | None:
        sock = _duplicate(descriptor)
        if sock is None:
            return None
        with sock:
            return self._between(sock)

    def _between(self, sock: socket.socket) -> _Place | None:
        """Return the other end of a connection to our port."""
        if sock.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        try:
            own, other = sock.getsockname(), sock.getpeername()
        except OSError:  # it listens, or has ended
            return None
        return (_plain(other[0]), other[1]) if own[1] == self._port else None


def _duplicate(descriptor: int) -> socket.socket | None:
    if descriptor < 0:
        return None
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return None
        own = os.dup(descriptor)
    except OSError:
        return None
    try:
        return socket.socket(fileno=own)
    except OSError:
        os.close(own)
        return None


def _place(peer: str) -> _Place | None:
    kind, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    try:
        return _plain(host.strip("[]")), int(port)
    except ValueError:
        return None


def _plain(host: str) -> str:
    """Return an address without its zone, and as IPv4 where it is that in IPv6's form."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
