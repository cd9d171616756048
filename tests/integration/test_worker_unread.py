"""Answers that callers do not read are counted, keep others from running where they are many, and are cut."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.worker_parts import ReadableLog
from tests.support.worker_surface import SPECS, Surface, head, one, served, tensor, until
from worker.serving.unread import Unread

ROWS = 1 << 20
BYTES = 8 * ROWS
"""More than the kernel takes on for a connection."""


def asked(binary: bytes) -> bytes:
    """Return a request whose answer is as large."""
    values = tensor(shape=(ROWS, 2), parameters={"binary_data_size": len(binary)})
    del values["data"]
    said = {"inputs": [values], "outputs": [{"name": "f_out"}], "parameters": {"binary_data_output": True}}
    text = json.dumps(said).encode()
    first, _, _ = head(len(text) + len(binary)).rpartition(b"\r\n")
    return first + b"Inference-Header-Content-Length: %d\r\n\r\n" % len(text) + text + binary


@asynccontextmanager
async def caller(surface: Surface) -> AsyncIterator[socket.socket]:
    """Ask for a large answer, and read nothing of it."""
    with socket.socket() as connection:
        await _ask(surface, connection)
        yield connection


async def _ask(surface: Surface, connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, ("127.0.0.1", surface.server.port))
    await loop.sock_sendall(connection, asked(bytes(BYTES)))
    await until(lambda: surface.unread.watched == 1)


async def ended(connection: socket.socket) -> bytes:
    """Read until the connection ends; returns what came."""
    loop, data = asyncio.get_running_loop(), b""
    try:
        while piece := await loop.sock_recv(connection, 1 << 20):
            data += piece
    except ConnectionError:
        pass
    return data


@pytest.mark.parametrize("draining", [False, True])
def test_an_answer_that_nobody_reads_is_counted_and_cut(draining: bool) -> None:
    now, log = [0.0], ReadableLog()
    unread = Unread(BYTES, 30.0, log, lambda: now[0])

    async def check(surface: Surface) -> None:
        async with caller(surface) as connection:
            await cut(surface, connection)
        assert (await surface.post(one()))[0] == 200

    async def cut(surface: Surface, connection: socket.socket) -> None:
        assert surface.unread.held_bytes > BYTES
        status, answer, headers = await surface.post(one())
        assert (status, headers["Retry-After"]) == (503, "1")
        said = f"the worker holds {unread.held_bytes} bytes of answers that nobody has taken yet, no room for more"
        assert answer == {"error": said}
        assert (await surface.get("/v2/health/live"))[0] == 200
        assert len(surface.model.ran) == 1
        if draining:
            surface.serving.drain()
        while not unread.cut:
            now[0] += 5.1 if draining else 30.1
            unread.look()  # the first may find that the kernel went on taking some
            await asyncio.sleep(0.001)
        await until(lambda: unread.held_bytes == 0)
        assert len(await ended(connection)) < BYTES
        (told,) = log.events("answers.cut")
        assert (told["answers"], 0 < told["left_bytes"] <= BYTES + 4096) == (1, True)

    served(check, limit=2 * BYTES, unread=unread)


def test_one_that_is_read_late_comes_whole() -> None:
    async def check(surface: Surface) -> None:
        async with caller(surface) as connection:
            surface.unread.look()
            connection.shutdown(socket.SHUT_WR)
            data = await ended(connection)
        assert data.endswith(bytes(BYTES))
        assert data.startswith(b"HTTP/1.1 200 OK\r\n")
        await until(lambda: surface.unread.held_bytes == 0)

    served(check, (SPECS["f"],), limit=2 * BYTES)
