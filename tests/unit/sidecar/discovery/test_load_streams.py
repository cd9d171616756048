"""A worker that streams load reports faster than anybody can use."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any, Final, cast

from sidecar.discovery.load_streams import BURST, LoadStreams
from sidecar.discovery.planned import StaticEndpoint, StaticReplica
from sidecar.http2 import frames
from sidecar.http2.frames import frame, headers_frames
from sidecar.http2.hpack import Encoder
from sidecar.settings import OrcaStream, Probe
from tests.support.loops import turns

if TYPE_CHECKING:
    from router.model import LoadsReported
    from sidecar.upstreams.probes import HttpProber

REPORTS: Final = 4 * BURST


class Endless:
    """A connection on which all of the reports are here at once: reading it never waits, until they are over."""

    def __init__(self) -> None:
        report = b"\x09" + struct.pack("<d", 0.5)
        one = frame(frames.DATA, 0, 1, b"\x00" + len(report).to_bytes(4, "big") + report)
        head = headers_frames(1, Encoder().encode([(b":status", b"200")]), end=False)
        self._data = head + one * REPORTS
        self.transport = self

    async def connect(self, address: str, port: int, *, http2: bool = False) -> tuple[Any, Any]:
        """Be a prober's connection."""
        return self, self

    async def readexactly(self, size: int) -> bytes:
        """Return what is here at once."""
        if not self._data:
            await asyncio.Event().wait()
        piece, self._data = self._data[:size], self._data[size:]
        return piece

    def write(self, data: bytes) -> None:
        """Take what it is told."""

    def abort(self) -> None:
        """Close."""


def test_others_have_their_turn_while_a_worker_streams_without_end() -> None:
    taken: list[int] = []

    async def main() -> None:
        replica = StaticReplica("m", "", Probe(orca=OrcaStream()))
        told: list[LoadsReported] = []
        streams = LoadStreams(
            [StaticEndpoint("w", "grpc://127.0.0.1:1", (replica,))],
            cast("HttpProber", Endless()),
            told.append,
            clock=asyncio.get_running_loop().time,
            rng=lambda: 0.5,
        )
        task = asyncio.create_task(streams.run())
        while streams.taken < REPORTS:
            taken.append(streams.taken)
            await turns(1)
        task.cancel()

    asyncio.run(asyncio.wait_for(main(), 30))
    assert max(after - before for before, after in zip(taken, [*taken[1:], REPORTS], strict=True)) <= BURST
