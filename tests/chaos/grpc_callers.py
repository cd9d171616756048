"""What gRPC callers do to a connection, for churn: calls, and every way to leave them."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions

if TYPE_CHECKING:
    from tests.chaos.churn import Act, Caller

PATHS = ("Unary", "Unary", "Unary", "Slow", "Reset", "Gone")


class Peer:
    """One HTTP/2 connection over a caller's socket."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._h2.initiate_connection()
        self.open: set[int] = set()

    async def flush(self) -> None:
        await self._caller.send(self._h2.data_to_send())

    def begin(self, path: str, size: int, *, end: bool = True) -> int:
        """Begin a call with one message; return its stream."""
        stream: int = self._h2.get_next_available_stream_id()
        fields = [(":method", "POST"), (":scheme", "http"), (":authority", "a.test"), (":path", f"/test.Echo/{path}")]
        self._h2.send_headers(stream, [*fields, ("content-type", "application/grpc"), ("te", "trailers")])
        self._h2.send_data(stream, b"\0" + size.to_bytes(4, "big") + bytes(size), end_stream=end)
        self.open.add(stream)
        return stream

    def reset(self, stream: int) -> None:
        self._h2.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
        self.open.discard(stream)

    async def read(self) -> bool:
        """Take what comes next; False at the end of the connection."""
        data = await self._caller.read()
        for event in self._h2.receive_data(data) if data else ():
            if isinstance(event, h2.events.StreamEnded | h2.events.StreamReset):
                self.open.discard(event.stream_id or 0)
            elif isinstance(event, h2.events.DataReceived):
                self._h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id or 0)
        await self.flush()
        return bool(data)


async def calls(caller: Caller, rng: random.Random) -> None:
    peer = Peer(caller)
    for _ in range(rng.randint(1, 8)):
        peer.begin(rng.choice(PATHS), rng.randint(0, 8000))
    await peer.flush()
    while peer.open and await peer.read():
        pass


async def cancels(caller: Caller, rng: random.Random) -> None:
    peer = Peer(caller)
    streams = [peer.begin(rng.choice(PATHS), 100, end=rng.random() < 0.5) for _ in range(rng.randint(1, 20))]
    await peer.flush()
    await asyncio.sleep(rng.random() * 0.2)
    for stream in streams:
        peer.reset(stream)
    await peer.flush()
    await peer.read()


async def leaves_calls(caller: Caller, rng: random.Random) -> None:
    peer = Peer(caller)
    for _ in range(rng.randint(1, 30)):
        peer.begin(rng.choice(PATHS), 100, end=rng.random() < 0.5)
    await peer.flush()
    await asyncio.sleep(rng.random() * 0.2)


async def says_half_a_preface(caller: Caller, rng: random.Random) -> None:
    await caller.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[: rng.randint(1, 24)])
    await asyncio.sleep(rng.random())


async def says_broken_frames(caller: Caller, rng: random.Random) -> None:
    peer = Peer(caller)
    await peer.flush()
    await caller.send(rng.randbytes(rng.randint(9, 500)))
    await caller.read()


ACTS: tuple[Act, ...] = (calls, calls, cancels, leaves_calls, says_half_a_preface, says_broken_frames)
ERRORS = (h2.exceptions.ProtocolError,)
"""What a peer raises when the other side broke the protocol, or has ended."""
