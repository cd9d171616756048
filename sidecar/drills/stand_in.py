"""Stands for an inference server with OpenAI's streams, in drills: ``python -m sidecar.drills.stand_in``.

Each POST with a body is answered by a ``text/event-stream`` of so many events, as chat completions come, a while apart,
and ``data: [DONE]`` at its end. It says nothing else and holds nothing: that is all a drill needs of it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
from contextlib import suppress

from sidecar.boot import die_with_parent

MAX_BODY_BYTES = 1 << 20
IDLE_S = 60.0
"""How long a connection may be silent; longer than a sidecar keeps one."""
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_REFUSED = b"HTTP/1.1 %s\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
END = b"data: [DONE]\n\n"


class StandIn:
    """Answers each request with ``events`` events, ``every_s`` seconds apart."""

    def __init__(self, events: int, every_s: float) -> None:
        self._events = [_event(number, last=number == events - 1) for number in range(events)]
        self._every_s = every_s

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, until its end."""
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
                while True:
                    async with asyncio.timeout(IDLE_S):
                        refused = await _request(reader)
                    if refused:
                        writer.write(_REFUSED % refused)
                        await writer.drain()
                        return
                    await self._answer(writer)
        finally:
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter) -> None:
        writer.write(_HEAD)
        for event in self._events:
            writer.write(_chunk(event))
            await writer.drain()
            await asyncio.sleep(self._every_s)
        writer.write(_chunk(END) + b"0\r\n\r\n")
        await writer.drain()


async def _request(reader: asyncio.StreamReader) -> bytes:
    """Read one request to its end; return the status that refuses it, b"" where it may be answered.

    Raises:
        IncompleteReadError: the caller has left.
        LimitOverrunError: its head is too long.
    """
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    if not lines[0].startswith(b"POST "):
        return b"405 Method Not Allowed"
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])}
    length = fields.get(b"content-length", b"")
    if not length.isdigit():
        return b"411 Length Required"
    if int(length) > MAX_BODY_BYTES:
        return b"413 Content Too Large"
    await reader.readexactly(int(length))
    return b""


def _event(number: int, *, last: bool) -> bytes:
    reason = '"stop"' if last else "null"
    choice = f'{{"index":0,"delta":{{"content":"{number} "}},"finish_reason":{reason}}}'
    return f'data: {{"object":"chat.completion.chunk","choices":[{choice}]}}\n\n'.encode()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _run(stand_in: StandIn, sock: socket.socket) -> None:
    server = await asyncio.start_server(stand_in.serve, sock=sock)
    async with server:
        await server.serve_forever()


def main() -> None:
    """Serve on the listening socket that the parent hands down, until it or the parent ends."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fd", type=int, required=True, help="descriptor of the listening socket")
    parser.add_argument("--events", type=int, required=True)
    parser.add_argument("--every-ms", type=float, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    args = parser.parse_args()
    die_with_parent(args.parent_pid)
    sock = socket.socket(fileno=args.fd)
    os.set_inheritable(args.fd, False)
    asyncio.run(_run(StandIn(args.events, args.every_ms / 1000), sock))


if __name__ == "__main__":
    main()
