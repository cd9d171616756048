"""A gRPC worker for churn: ``python grpc_origin.py PORT``. It gives each message back, as it comes.

``/test.Echo/Slow`` takes a while; ``/test.Echo/Reset`` resets the call; ``/test.Echo/Gone`` closes the connection.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import cast

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions

SLOW_S = 0.3


class Worker(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._h2.initiate_connection()
        self._flush()

    def data_received(self, data: bytes) -> None:
        try:
            for event in self._h2.receive_data(data):
                self._take(event)
        except h2.exceptions.ProtocolError:
            self._transport.abort()
            return
        self._flush()

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            path = dict(event.headers)[b":path"]
            if path == b"/test.Echo/Reset":
                self._h2.reset_stream(event.stream_id, h2.errors.ErrorCodes.CANCEL)
            elif path == b"/test.Echo/Gone":
                self._transport.abort()
            else:
                self._h2.send_headers(event.stream_id, [(":status", "200"), ("content-type", "application/grpc")])
            if path == b"/test.Echo/Slow":
                asyncio.get_running_loop().call_later(SLOW_S, self._end, event.stream_id)
        elif isinstance(event, h2.events.DataReceived):
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            with suppress(h2.exceptions.ProtocolError):  # more than the caller reads is let go
                self._h2.send_data(event.stream_id, event.data)
            if event.stream_ended is not None:
                self._end(event.stream_id)

    def _end(self, stream: int) -> None:
        with suppress(h2.exceptions.ProtocolError):
            self._h2.send_headers(stream, [("grpc-status", "0")], end_stream=True)
        self._flush()

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and not self._transport.is_closing():
            self._transport.write(data)


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Worker, "127.0.0.1", port, backlog=4096)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
