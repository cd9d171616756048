"""An origin on the test's own loop whose answers a test writes, byte for byte, by path."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

CLOSE = b""
"""As the last piece of an answer: the connection is closed behind it."""


class ScriptedOrigin:
    """``answers``: pieces to write for each path; ``{id}`` in them is the request's id. A path that is not there is
    answered once :attr:`gate` is open.
    """

    def __init__(self, answers: Mapping[str, list[bytes]]) -> None:
        self._answers = answers
        self.gate = asyncio.Event()
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection's requests."""
        self.connections += 1
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    fields = {
                        name.lower(): value.strip()
                        for name, _, value in (line.partition(b":") for line in head.split(b"\r\n")[1:])
                    }
                    self.bodies.append(await reader.readexactly(int(fields.get(b"content-length", 0))))
                    self.heads.append(head)
                    path = head.split(b" ")[1].decode()
                    if path not in self._answers:
                        await self.gate.wait()
                    for piece in self._answers.get(path, [whole(b"late")]):
                        if piece == CLOSE:
                            return
                        writer.write(piece.replace(b"{id}", fields.get(b"x-request-id", b"")))
                        await writer.drain()
        finally:
            writer.close()


def whole(body: bytes, status: bytes = b"200 OK", fields: bytes = b"") -> bytes:
    """Return a whole answer with a length."""
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, fields, len(body), body)


@asynccontextmanager
async def scripted_origin(answers: Mapping[str, list[bytes]]) -> AsyncIterator[ScriptedOrigin]:
    """Have one while the block runs."""
    origin = ScriptedOrigin(answers)
    server = await asyncio.start_server(origin.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    origin.url = f"http://{host}:{port}"
    try:
        yield origin
    finally:
        origin.gate.set()
        server.close()
        await server.wait_closed()
