"""What can be asked of a transport, and done to it, only below it."""

from __future__ import annotations

import fcntl
import select
import socket
import struct
import sys
import termios
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    import asyncio

KERNEL_BYTES: Final = 16384
"""What a closed connection may leave to the kernel: about what a peer is sent before it has said a word."""
_NO_LINGER: Final = struct.pack("ii", 1, 0)


def descriptor(transport: asyncio.BaseTransport) -> int:
    """Return the descriptor below a transport, or -1 where there is none (any more)."""
    sock = transport.get_extra_info("socket")
    return -1 if sock is None else cast("socket.socket", sock).fileno()


def unread(transport: asyncio.BaseTransport) -> bool:
    """Return whether bytes or an end of file wait in the kernel that the loop has not come to yet."""
    fd = descriptor(transport)
    if fd < 0:
        return False
    ready = select.poll()
    ready.register(fd, select.POLLIN)
    return bool(ready.poll(0))


def unsent(transport: asyncio.Transport) -> int:
    """Return how many bytes were written that the other side's kernel has not taken yet (tcp(7), SIOCOUTQ)."""
    waiting = transport.get_write_buffer_size()
    fd = descriptor(transport) if waiting or not transport.is_closing() else -1  # else it may be closed
    if fd >= 0:
        with suppress(OSError):  # no longer a socket
            waiting += int.from_bytes(fcntl.ioctl(fd, termios.TIOCOUTQ, b"\0\0\0\0"), sys.byteorder)
    return waiting


def much_unsent(transport: asyncio.Transport) -> bool:
    """Return whether a peer would owe too much for its connection to be left to the kernel."""
    return unsent(transport) > KERNEL_BYTES or transport.get_write_buffer_size() > 0


def reset(transport: asyncio.Transport) -> None:
    """End a connection with a reset: what was sent and not read is lost, and the other side knows at once."""
    sock = transport.get_extra_info("socket")
    if sock is not None and (not transport.is_closing() or transport.get_write_buffer_size()):  # else it may be closed
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()


def limit_flush(transport: asyncio.Transport, seconds: float) -> None:
    """Have the kernel give up a connection whose peer takes nothing for so long (tcp(7), TCP_USER_TIMEOUT).

    It goes for what is left to the kernel when the connection is closed, too.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None and not transport.is_closing():
        with suppress(OSError):  # a Unix socket keeps nothing back
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))
