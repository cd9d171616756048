"""The floor under any proxy on this event loop: bytes go both ways unread: ``python uvloop_floor.py PORT ORIGIN...``.

Each caller's connection has one of its own upstream. What a proxy in Python costs above this is reading, deciding and
counting; what this costs is the kernel's sockets and uvloop.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
from typing import TYPE_CHECKING, cast

import uvloop

if TYPE_CHECKING:
    from collections.abc import Callable


class Upstream(asyncio.Protocol):
    """The origin's side: what comes goes to the caller."""

    def __init__(self, caller: asyncio.Transport) -> None:
        self._write = caller.write
        self._caller = caller

    def data_received(self, data: bytes) -> None:
        """Pass on."""
        self._write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the caller's connection too."""
        self._caller.close()


class Downstream(asyncio.Protocol):
    """The caller's side: what comes before its own upstream connection is there waits for it."""

    def __init__(self, port: str) -> None:
        self._port = port
        self._early: list[bytes] = []
        self._upstream: asyncio.Transport | None = None
        self._write: Callable[[bytes], None] = self._early.append

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connect upstream."""
        self._connecting = asyncio.ensure_future(self._connect(cast("asyncio.Transport", transport)))

    async def _connect(self, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        upstream, _ = await loop.create_connection(lambda: Upstream(transport), "127.0.0.1", int(self._port))
        self._upstream = upstream
        for data in self._early:
            upstream.write(data)
        self._write = upstream.write

    def data_received(self, data: bytes) -> None:
        """Pass on."""
        self._write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the upstream connection too."""
        if self._upstream is not None:
            self._upstream.close()


async def serve(port: int, origins: list[str]) -> None:
    """Pass bytes, in turn to each of ``origins``, until a signal comes."""
    turn = itertools.cycle(origins)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Downstream(next(turn)), "127.0.0.1", port, backlog=4096)
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    server.close()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2:]))
