"""Long answers of the admin API as readers get them: in pieces, compressed or not, however slowly they read."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import zlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aiohttp import web

from sidecar.admin import guard
from sidecar.admin.answers import MOST_SENT, Answers
from tests.support.loops import in_loop, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

PIECES = 800
LENGTH = PIECES * 12 * 1000


def made() -> Iterator[bytes | None]:
    for number in range(PIECES):
        digest = hashlib.sha256(b"%d" % number).hexdigest()[:11].encode() + b"\n"
        yield digest * 1000
        yield None


WHOLE = b"".join(filter(None, made()))


class Desk:
    """An application with one long answer."""

    def __init__(self) -> None:
        self.answers = Answers()
        self.transports: list[asyncio.Transport] = []
        self.address = ""

    async def long(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        self.transports.append(request.transport)
        return await self.answers.answer(request, "long", made, {"Content-Type": "text/plain"})

    async def short(self, _request: web.Request) -> web.Response:
        return web.Response(text="here")


@asynccontextmanager
async def desk() -> AsyncIterator[Desk]:
    one = Desk()
    app = web.Application(middlewares=[guard.errors])
    app.on_response_prepare.append(guard.uncached)
    app.add_routes([web.get("/long", one.long), web.get("/short", one.short)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    await web.SockSite(runner, sock).start()
    one.address = f"127.0.0.1:{sock.getsockname()[1]}"
    try:
        yield one
    finally:
        await runner.cleanup()


class Reader:
    """Who has asked, and read the ``head`` of the answer. The rest is where it was, in small buffers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        self._reader = reader
        self._writer = writer
        self.head = head

    async def rest(self) -> bytes:
        return await self._reader.read(-1)

    def close(self) -> None:
        self._writer.close()


async def open_(one: Desk, target: str, method: str = "GET", fields: str = "") -> Reader:
    host, _, port = one.address.partition(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=sock, limit=16 * 1024)
    writer.write(f"{method} {target} HTTP/1.1\r\nHost: {one.address}\r\nConnection: close\r\n{fields}\r\n".encode())
    return Reader(reader, writer, await reader.readuntil(b"\r\n\r\n"))


@in_loop
async def test_it_comes_whole_plain_and_compressed_and_head_says_how_long_it_is() -> None:
    async with desk() as one:
        reader = await open_(one, "/long")
        assert f"Content-Length: {LENGTH}".encode() in reader.head
        assert b"Cache-Control: no-store" in reader.head
        assert b"Vary: Accept-Encoding" in reader.head
        assert b"Content-Encoding" not in reader.head
        assert await reader.rest() == WHOLE
        reader.close()
        reader = await open_(one, "/long", fields="Accept-Encoding: gzip\r\n")
        assert b"Content-Encoding: gzip" in reader.head
        zipped = await reader.rest()
        assert len(zipped) < LENGTH / 10
        assert zlib.decompress(zipped, 31) == WHOLE
        reader.close()
        reader = await open_(one, "/long", method="HEAD")
        assert f"Content-Length: {LENGTH}".encode() in reader.head
        assert await reader.rest() == b""
        reader.close()


@in_loop
async def test_slow_readers_hold_up_nobody_and_cost_little_and_so_many_are_served_at_once() -> None:
    async with desk() as one:
        slow = [await open_(one, "/long") for _ in range(MOST_SENT)]
        assert one.answers._sending == MOST_SENT
        waiting = [transport.get_write_buffer_size() for transport in one.transports]
        assert max(waiting) < 512 * 1024
        reader = await open_(one, "/long")
        assert b" 503 " in reader.head
        reader.close()
        reader = await open_(one, "/short")
        assert b" 200 " in reader.head
        reader.close()
        assert await slow[0].rest() == WHOLE  # the one that reads on gets all of it
        for reader in slow:
            reader.close()
        await until(lambda: one.answers._sending == 0, "what is left of readers that went away")
        reader = await open_(one, "/long")
        assert b" 200 " in reader.head
        reader.close()
