"""A contender: a relay of HTTP/2 messages on the ``h2`` library and uvloop.  h2_relay.py PORT WORKER...

One connection to each worker carries all calls; what each side says in one read leaves in one write. It has no
routing, retries, deadlines or metrics, and windows are given back at once: a floor for such a relay.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from typing import Any, cast

import uvloop
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    RemoteSettingsChanged,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)


class Side(asyncio.Protocol):
    """One connection; ``peers`` maps a stream here to the stream at the other side."""

    def __init__(self, relay: Relay, *, client: bool) -> None:
        self.relay = relay
        self.h2 = H2Connection(
            H2Configuration(
                client_side=client,
                header_encoding=None,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        self.peers: dict[int, tuple[Side, int]] = {}
        self.transport: asyncio.Transport
        self.ready = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say our settings."""
        self.transport = cast("asyncio.Transport", transport)
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(1 << 24)
        self.relay.dirty(self)

    def data_received(self, data: bytes) -> None:
        """Pass on what came."""
        for event in self.h2.receive_data(data):
            if isinstance(event, RequestReceived):
                side = self.relay.worker()
                stream_id = side.h2.get_next_available_stream_id()
                self.peers[event.stream_id] = side, stream_id
                side.peers[stream_id] = self, event.stream_id
                side.h2.send_headers(stream_id, event.headers, end_stream=event.stream_ended is not None)
                self.relay.dirty(side)
            elif isinstance(event, ResponseReceived | TrailersReceived):
                side, stream_id = self.peers[event.stream_id]
                side.h2.send_headers(stream_id, event.headers, end_stream=event.stream_ended is not None)
                self.relay.dirty(side)
                if event.stream_ended is not None:
                    del self.peers[event.stream_id], side.peers[stream_id]
            elif isinstance(event, DataReceived):
                side, stream_id = self.peers[event.stream_id]
                side.h2.send_data(stream_id, event.data, end_stream=event.stream_ended is not None)
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                self.relay.dirty(side)
            elif isinstance(event, StreamReset):
                self.peers.pop(event.stream_id, None)
            elif isinstance(event, RemoteSettingsChanged):
                self.ready.set()
            elif isinstance(event, StreamEnded):
                pass
        self.relay.dirty(self)

    def flush(self) -> None:
        """Write what is there."""
        data = self.h2.data_to_send()
        if data:
            self.transport.write(data)


class Relay:
    """The workers' connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._workers: itertools.cycle[Side]
        self._dirty: set[Side] = set()

    async def connect(self, workers: list[str]) -> None:
        """Open a connection to each worker."""
        sides = []
        for worker in workers:
            host, _, port = worker.partition(":")
            _, side = await self._loop.create_connection(lambda: Side(self, client=True), host, int(port))
            await side.ready.wait()
            sides.append(side)
        self._workers = itertools.cycle(sides)

    def worker(self) -> Side:
        """Return the next worker's connection."""
        return next(self._workers)

    def dirty(self, side: Side) -> None:
        """Write at the end of this turn."""
        if not self._dirty:
            self._loop.call_soon(self._flush)
        self._dirty.add(side)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, set()
        for side in dirty:
            side.flush()


async def main() -> None:
    """Serve until ended."""
    loop: Any = asyncio.get_running_loop()
    relay = Relay(loop)
    await relay.connect(sys.argv[2:])
    await loop.create_server(lambda: Side(relay, client=False), "127.0.0.1", int(sys.argv[1]))
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
