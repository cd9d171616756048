"""Stands for workers: writes endpoint records into a real store with the project's own script, or as heartbeats."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import redis.asyncio as aioredis

from router.model import EndpointRecord, Replica, State
from router.scripts import REMOVE_LUA, WRITE_LUA
from router.wire import SCHEMA_VERSION, Keys, encode_fields

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def worker_record(name: str, *, port: int = 9001, epoch: str = "e1", state: State = State.WARM) -> EndpointRecord:
    """Return a record of a worker that holds model ``m``, version 1."""
    return EndpointRecord(
        id=name,
        address=f"http://127.0.0.1:{port}",
        epoch=epoch,
        replicas=(Replica("m", "1", state=state, warmth=(("small", 1.0),) if state is State.WARM else ()),),
        free_memory_bytes=1 << 30,
        total_memory_bytes=1 << 31,
    )


class StateWriter:
    """Writes into one namespace of one store, over a connection per call: the store may have been restarted between."""

    def __init__(self, url: str, namespace: str, *, ttl_s: float = 5.0) -> None:
        self._url = url
        self._keys = Keys(namespace)
        self._ttl_s = ttl_s

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[aioredis.Redis]:
        client = aioredis.Redis.from_url(self._url, decode_responses=True)
        try:
            yield client
        finally:
            await client.aclose()

    async def put(self, record: EndpointRecord, **overrides: str) -> int:
        """Write the whole record, with fields replaced by ``overrides``; return the revision."""
        return await self._write(record, encode_fields(record) | overrides)

    async def beat(self, record: EndpointRecord) -> int:
        """Say only that it is still here; -1 where everything must be written."""
        return await self._write(record, {})

    async def _write(self, record: EndpointRecord, fields: dict[str, str]) -> int:
        keys = (self._keys.endpoint(record.id), self._keys.revision, self._keys.index)
        pairs = [part for pair in fields.items() for part in pair]
        head = (record.id, record.epoch, str(round(self._ttl_s * 1000)), self._keys.channel, str(SCHEMA_VERSION))
        async with self._client() as client:
            return int(await client.eval(WRITE_LUA, 3, *keys, *head, *pairs))

    async def remove(self, record: EndpointRecord) -> None:
        """Take the record out and say so."""
        keys = (self._keys.endpoint(record.id), self._keys.revision, self._keys.index)
        async with self._client() as client:
            await client.eval(REMOVE_LUA, 3, *keys, record.id, record.epoch, self._keys.channel, str(SCHEMA_VERSION))

    async def command(self, *parts: str) -> None:
        """Run any command."""
        async with self._client() as client:
            await client.execute_command(*parts)  # type: ignore[no-untyped-call]

    @asynccontextmanager
    async def beating(self, *records: EndpointRecord, every_s: float) -> AsyncIterator[None]:
        """Register ``records`` and keep them alive inside the block, through every loss of the store."""
        over = asyncio.Event()
        tasks = [asyncio.create_task(self._keep(record, every_s, over)) for record in records]
        try:
            yield
        finally:
            over.set()  # cancelled while it connects, a client would leave its connection open
            await asyncio.gather(*tasks)

    async def _keep(self, record: EndpointRecord, every_s: float, over: asyncio.Event) -> None:
        while not over.is_set():
            with suppress(aioredis.RedisError, OSError):
                async with asyncio.timeout(1.0):
                    if await self.beat(record) < 0:
                        await self.put(record)
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), every_s)
