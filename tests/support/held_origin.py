"""A worker behind a data path that answers when a test tells it to."""

from __future__ import annotations

import asyncio

from sidecar.telemetry.page import MODEL_QUEUE_NOW
from tests.support.data_path import DataPath, OriginConnection, answer


class Held:
    """A worker that answers when it is told to, in the order in which requests came."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.allowed = asyncio.Semaphore(0)

    async def __call__(self, origin: OriginConnection) -> None:
        while True:
            message = await origin.request()
            self.seen.append(message.body)
            await self.allowed.acquire()
            await origin.send(answer(message.body))


def held(path: DataPath) -> Held:
    """Return the worker of a data path that was made with one."""
    script = path.origin.script
    assert isinstance(script, Held)
    return script


def waiting(path: DataPath) -> int:
    """Return how many requests wait for room, or for a replica."""
    return sum(int(path.plane.words[row + MODEL_QUEUE_NOW]) for _, row in path.plane.page.models())
