"""A server that speaks HTTP/2 alone, through ``h2``: it answers how many bytes it got."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import h2.config
import h2.connection
import h2.events

if TYPE_CHECKING:
    import ssl


class Counts(asyncio.Protocol):
    """One connection; ``heads`` and ``bodies`` are all that was asked, by all connections."""

    def __init__(self, heads: list[dict[str, str]], bodies: list[bytes], connections: list[Counts]) -> None:
        self._http2: Any = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding=None)
        )
        self._streams: dict[int, tuple[dict[str, str], bytes]] = {}
        self._heads = heads
        self._bodies = bodies
        self._connections = connections
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._connections.append(self)
        self._http2.initiate_connection()
        self._flush()

    def data_received(self, data: bytes) -> None:
        for event in self._http2.receive_data(data):
            if isinstance(event, h2.events.RequestReceived):
                self._streams[event.stream_id] = (_text(event.headers), b"")
            elif isinstance(event, h2.events.DataReceived):
                head, body = self._streams[event.stream_id]
                self._streams[event.stream_id] = (head, body + event.data)
                self._http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                self._answer(event.stream_id)
        self._flush()

    def _answer(self, stream: int) -> None:
        head, body = self._streams.pop(stream)
        self._heads.append(head)
        self._bodies.append(body)
        status = "503" if head[":path"].startswith("/fail") else "200"
        fields = [(":status", status), ("x-request-id", head["x-request-id"])]
        self._http2.send_headers(stream, fields)
        self._http2.send_data(stream, b"%d" % len(body), end_stream=True)

    def _flush(self) -> None:
        self._transport.write(self._http2.data_to_send())


def _text(fields: Iterable[Any]) -> dict[str, str]:
    return {bytes(name).decode(): bytes(value).decode() for name, value in fields}


class Http2Origin:
    """Where it is, and what it was asked."""

    def __init__(self) -> None:
        self.port = 0
        self.heads: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.connections: list[Counts] = []


@asynccontextmanager
async def http2_origin(tls: ssl.SSLContext | None = None) -> AsyncIterator[Http2Origin]:
    origin = Http2Origin()
    server = await asyncio.get_running_loop().create_server(
        lambda: Counts(origin.heads, origin.bodies, origin.connections), "127.0.0.1", 0, ssl=tls
    )
    origin.port = server.sockets[0].getsockname()[1]
    try:
        yield origin
    finally:
        server.close()
