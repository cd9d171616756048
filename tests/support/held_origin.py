"""A worker behind a data path that answers when a test tells it to."""

from __future__ import annotations

import asyncio

from sidecar.telemetry.page import MODEL_QUEUE_NOW
from tests.support.data_path import DataPath
from tests.support.wires import OriginConnection, answer

RESET = b""
"""In place of a piece: the connection is reset."""


class Held:
    """A worker that answers when it is told to, in the order in which requests came.

    It answers with ``pieces``, one by one; where there are none, with the request's body.
    """

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces
        self.seen: list[bytes] = []
        self.allowed = asyncio.Semaphore(0)

    async def __call__(self, origin: OriginConnection) -> None:
        while True:
            message = await origin.request()
            self.seen.append(message.body)
            await self.allowed.acquire()
            for number, piece in enumerate(self.pieces or (answer(message.body),)):
                if number:
                    await asyncio.sleep(0.005)  # so that it arrives by itself
                if piece == RESET:
                    origin.reset()
                    return
                await origin.send(piece)


def held(path: DataPath, index: int = 0) -> Held:
    """Return a worker of a data path that was made with it."""
    script = path.origins[index].script
    assert isinstance(script, Held)
    return script


def waiting(path: DataPath) -> int:
    """Return how many requests wait for room, or for a replica."""
    return sum(int(path.plane.words[row + MODEL_QUEUE_NOW]) for _, row in path.plane.page.models())
