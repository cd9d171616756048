"""What can be asked of a transport, and done to it, only below it."""

from __future__ import annotations

import select
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    import asyncio

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
