"""A worker for churn: ``python origin.py PORT``, standard library only. It is killed and started again at any moment.

``/ok`` answers; ``/echo`` gives the body back; ``/slow`` takes a while; ``/events`` streams a second of events;
``/large`` is 4 MiB; ``/cut`` ends in the middle; ``/reset`` resets instead of answering; ``/deaf`` reads no body;
``/close`` closes; ``/tunnel`` switches protocols and gives back what it hears.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys

LARGE_BYTES = 4 << 20


async def read_body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
    if fields.get(b"transfer-encoding") == b"chunked":
        body = b""
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readuntil(b"\r\n")
        return body
    return await reader.readexactly(int(fields.get(b"content-length", b"0")))


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while await answer(reader, writer):
            await writer.drain()
    writer.close()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    head = await reader.readuntil(b"\r\n\r\n")
    path = head.split(b" ", 2)[1]
    if path == b"/deaf":
        await asyncio.sleep(1)
        return False
    if path == b"/tunnel":
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        return False
    body = await read_body(reader, head)
    if path == b"/reset":
        sock: socket.socket = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False
    if path == b"/slow":
        await asyncio.sleep(0.3)
    if path == b"/events":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(20):
            writer.write(b"c\r\ndata: event\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.05)
        writer.write(b"0\r\n\r\n")
    elif path == b"/large":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % LARGE_BYTES)
        for _ in range(LARGE_BYTES >> 16):
            writer.write(bytes(1 << 16))
            await writer.drain()
    elif path == b"/cut":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nonly this")
    else:
        body = body if path == b"/echo" else b"ok"
        close = b"Connection: close\r\n" if path == b"/close" else b""
        writer.write(b"HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n%s" % (close, len(body), body))
    return path not in (b"/cut", b"/close")


async def main(port: int) -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=4096)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
