"""HTTP/1 by hand: messages as bytes, and the two ends of a connection that send and read them."""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass

STEP_S = 5.0
"""Longest that a client or an origin waits for anything."""
HOST = b"Host: a.test\r\n"


def request(line: bytes = b"GET / HTTP/1.1", *fields: bytes, body: bytes = b"") -> bytes:
    """Return a request as bytes, with a Host, and a Content-Length where it has a body."""
    lines = [line, b"Host: a.test", *fields]
    if body:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def post(body: bytes, *fields: bytes, target: bytes = b"/") -> bytes:
    return request(b"POST %s HTTP/1.1" % target, *fields, body=body)


def answer(body: bytes = b"", *fields: bytes, status: bytes = b"200 OK") -> bytes:
    """Return a response as bytes, with a Content-Length."""
    lines = [b"HTTP/1.1 " + status, *fields, b"Content-Length: %d" % len(body)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def chunked(*chunks: bytes) -> bytes:
    return b"".join(map(chunk, chunks)) + b"0\r\n\r\n"


CHUNKED = b"Transfer-Encoding: chunked"


@dataclass
class Message:
    """A request or a response as it arrived. ``whole``: its framing was kept; ``raw`` is all of it."""

    start: bytes
    fields: list[tuple[bytes, bytes]]
    body: bytes = b""
    raw: bytes = b""

    @property
    def status(self) -> int:
        return int(self.start.split(b" ")[1])

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.fields if key.lower() == name.lower()]

    def value(self, name: bytes) -> bytes:
        (only,) = self.values(name)
        return only


class Wire:
    """One side of a connection, spoken to in bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        async with asyncio.timeout(STEP_S):
            await self.writer.drain()

    async def head(self) -> Message:
        """Read a head.

        Raises:
            IncompleteReadError: the connection ended.
            ConnectionResetError: it was reset.
        """
        async with asyncio.timeout(STEP_S):
            raw = await self.reader.readuntil(b"\r\n\r\n")
        start, *lines = raw[:-4].split(b"\r\n")
        return Message(start, [(n, v.strip(b" \t")) for n, _, v in (line.partition(b":") for line in lines)], b"", raw)

    async def body(self, message: Message, *, to_end: bool = False, none: bool = False) -> Message:
        """Read the body that ``message`` announces; ``to_end``: one without framing ends with the connection."""
        async with asyncio.timeout(STEP_S):
            if none:
                return message
            if message.values(b"Transfer-Encoding"):
                while True:
                    line = await self.reader.readuntil(b"\r\n")
                    data = await self.reader.readexactly(int(line.split(b";")[0], 16) + 2)
                    message.raw += line + data
                    message.body += data[:-2]
                    if len(data) == 2:
                        return message
            if lengths := message.values(b"Content-Length"):
                message.body = await self.reader.readexactly(int(lengths[0]))
            elif to_end:
                message.body = await self.reader.read()
            message.raw += message.body
            return message

    async def rest(self) -> bytes:
        """Read to the end of the connection."""
        async with asyncio.timeout(STEP_S):
            return await self.reader.read()

    async def ended(self) -> bool:
        """Wait for the other side's end; True where it was a reset."""
        async with asyncio.timeout(STEP_S):
            try:
                while await self.reader.read(65536):
                    pass
            except OSError:
                return True
            return False

    def reset(self) -> None:
        """End with a reset."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()


class Client(Wire):
    """A caller."""

    async def answer(self, method: bytes = b"GET") -> Message:
        """Read one response (a 1xx counts as one)."""
        message = await self.head()
        bodyless = message.status < 200 or message.status in (204, 304) or method == b"HEAD"
        return await self.body(message, to_end=True, none=bodyless)

    async def ask(self, data: bytes, method: bytes = b"GET") -> Message:
        await self.send(data)
        return await self.answer(method)


class OriginConnection(Wire):
    """The worker's end of one upstream connection. ``requests`` are those that came whole."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self.requests: list[Message] = []

    async def request(self) -> Message:
        message = await self.body(await self.head())
        self.requests.append(message)
        return message
