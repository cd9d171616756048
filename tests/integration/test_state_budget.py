"""What the shared state costs with 1,000 endpoints of 20 models and ten sidecars, counted by a real server.

Such a fleet's periods are driven as fast as the machine goes, by the project's own writers and readers: heartbeats of
all endpoints (each second, one in a hundred with a change), a reconcile of all sidecars (each ten seconds), latencies
told by all of them (each five seconds, as much as may be told at once). The server itself counts what each costs.
docs/state.md has the table; the bounds here are what it promises.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest
import redis.asyncio as aioredis

from router.model import EndpointRecord, Replica, ReplicaKey, ReplicaSketch
from router.policy import FreshnessPolicy, LatencyPolicy
from router.scripts import WRITE_LUA
from router.sketches import INTERVAL_S
from router.wire import SCHEMA_VERSION, Keys, changed_fields, encode_fields
from sidecar.settings import StateStore
from sidecar.state import connect, store
from sidecar.state.latencies import LatencyExchange
from sidecar.state.store import RECONCILE_S, RedisSource
from sidecar.state.view import Count
from tests.support.loops import beside, until
from tests.support.redis_server import RedisServer

ENDPOINTS, MODELS, SIDECARS = 1000, 20, 10
BEATS = 2
"""Seconds of heartbeats that are driven."""
WITHIN_S = 60.0
"""Longest for all sidecars to have read or heard what they should."""
KEYS = Keys("prod")
KIB = 1024

BUDGET = {
    "commands/s": 1_100,
    "messages/s": 1_100,
    "KiB/s to the server": 600,
    "KiB/s to all sidecars": 3_500,
    "KiB/s of that for reconciles": 100,
    "KiB/s of that for latencies": 2_000,
    "KiB for one sidecar to join": 2_600,
}
"""Most that all of it together may cost."""


def fleet() -> list[EndpointRecord]:
    return [
        EndpointRecord(
            id=f"worker-{number:04}",
            address=f"http://10.0.{number // 250}.{number % 250}:9001",
            epoch=f"{number:016x}",
            replicas=tuple(
                Replica(f"model-{one:02}", "1", warmth=(("batch-1", 1.0), ("batch-8", 1.0)), warm_for_s=640.0)
                for one in range(MODELS)
            ),
            free_memory_bytes=8 << 30,
            total_memory_bytes=16 << 30,
            queue_depth=0,
            cpu_load=0.5,
            idle_for_s=0.0,
        )
        for number in range(ENDPOINTS)
    ]


@dataclass(frozen=True)
class Usage:
    """What the server has counted since its start."""

    scripts: int
    reads: int
    published: int
    received_bytes: int
    sent_bytes: int

    def since(self, before: Usage) -> Usage:
        return Usage(*(now - then for now, then in zip(self.values, before.values, strict=True)))

    @property
    def values(self) -> tuple[int, ...]:
        return self.scripts, self.reads, self.published, self.received_bytes, self.sent_bytes


class Fleet:
    """A thousand workers, by the script that they write with."""

    def __init__(self, client: aioredis.Redis) -> None:
        self._client = client
        self._write = client.register_script(WRITE_LUA)
        self._sent: dict[str, dict[str, str]] = {}

    async def report(self, *records: EndpointRecord) -> None:
        """Have each of them write what changed since it last wrote, or nothing but that it is there."""
        await self._client.script_load(WRITE_LUA)
        for start in range(0, len(records), 100):
            pipe = self._client.pipeline(transaction=False)
            for record in records[start : start + 100]:
                fields = encode_fields(record)
                changed = changed_fields(self._sent.get(record.id, {}), fields)
                self._sent[record.id] = fields
                pairs = [text for pair in changed.items() for text in pair]
                args: list[Any] = [record.id, record.epoch, 60_000, KEYS.channel, SCHEMA_VERSION, *pairs]
                pipe.evalsha(self._write.sha, 3, KEYS.endpoint(record.id), KEYS.revision, KEYS.index, *args)
            assert -1 not in await pipe.execute()

    async def usage(self) -> Usage:
        info: dict[str, Any] = await self._client.info("everything")
        calls = {name: stats["calls"] for name, stats in info.items() if name.startswith("cmdstat_")}
        return Usage(
            scripts=calls.get("cmdstat_evalsha", 0) + calls.get("cmdstat_eval", 0),
            reads=calls.get("cmdstat_hgetall", 0),
            published=calls.get("cmdstat_publish", 0),
            received_bytes=info["total_net_input_bytes"],
            sent_bytes=info["total_net_output_bytes"],
        )


class Sidecar:
    """One sidecar's way to the store. Its times are the test's: it reconciles and tells when it is told to."""

    def __init__(self, number: int, url: str) -> None:
        rng = random.Random(number).random
        self.source = RedisSource(
            StateStore(url=url, namespace="prod"),
            FreshnessPolicy(ttl_s=60.0, full_s=40.0),
            clock=time.monotonic,
            rng=rng,
        )
        self.rows: list[ReplicaSketch] = []
        self.source.latencies = self.exchange = LatencyExchange(
            f"sidecar-{number}",
            LatencyPolicy(),
            rows=lambda: self.rows,
            known=lambda _: True,
            clock=time.monotonic,
            rng=rng,
            interval_s=3600.0,
        )

    @property
    def heard(self) -> int:
        return self.source.view.counts[Count.DELTAS]

    def running(self) -> AbstractAsyncContextManager[None]:
        return beside(self.source.run(lambda _: None))


async def knows_all(one: Sidecar) -> None:
    await until(lambda: len(one.source.view.ids) == ENDPOINTS, "it knows the fleet", WITHIN_S)


async def heard_by_all(sidecars: list[Sidecar], deltas: int) -> None:
    await until(lambda: all(one.heard >= deltas for one in sidecars), f"{deltas} messages heard", WITHIN_S)


def measured() -> list[ReplicaSketch]:
    """Return latencies of every model on every endpoint."""
    rng = random.Random(7)
    return [
        ReplicaSketch(
            ReplicaKey(f"worker-{number:04}", f"{number:016x}", f"model-{model:02}", "1", 0),
            1,
            {rng.randrange(30, 80): rng.randrange(1, 9) for _ in range(12)},
        )
        for number in range(ENDPOINTS)
        for model in range(MODELS)
    ]


@dataclass(frozen=True)
class Costs:
    """What ten sidecars' joining, BEATS seconds of heartbeats, one reconcile and one telling of latencies took."""

    joining: Usage
    beats: Usage
    reconcile: Usage
    latencies: Usage
    sidecars: tuple[Sidecar, ...]


async def count(url: str) -> Costs:
    """Drive the fleet through each of its periods."""
    client = aioredis.Redis.from_url(url, decode_responses=True)
    workers, records = Fleet(client), fleet()
    await workers.report(*records)
    before = await workers.usage()
    sidecars = [Sidecar(number, url) for number in range(SIDECARS)]
    async with AsyncExitStack() as stack:
        for one in sidecars:
            await stack.enter_async_context(one.running())
            await knows_all(one)
        began = await workers.usage()
        for second in range(BEATS):
            records = [
                replace(record, queue_depth=second + 1) if number % 100 == second else record
                for number, record in enumerate(records)
            ]
            await workers.report(*records)
            await heard_by_all(sidecars, (second + 1) * ENDPOINTS)
        beaten = await workers.usage()
        reads = sidecars[0].source.view.counts[Count.READS]
        for one in sidecars:
            one.source._wake.set()
        await until(
            lambda: all(one.source.view.counts[Count.READS] > reads for one in sidecars), "all reconciled", WITHIN_S
        )
        reconciled = await workers.usage()
        rows = measured()
        for one in sidecars:
            one.rows = rows
            await one.exchange._tell(client, KEYS)
        told = sum(one.exchange.told for one in sidecars)
        await until(
            lambda: all(one.exchange.heard.taken == told - one.exchange.told for one in sidecars),
            "all heard all",
            WITHIN_S,
        )
        ended = await workers.usage()
    await client.aclose()
    return Costs(
        began.since(before), beaten.since(began), reconciled.since(beaten), ended.since(reconciled), tuple(sidecars)
    )


def test_a_large_fleet_stays_within_the_budget(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "REPLY_TIMEOUT_S", 60.0)
    monkeypatch.setattr(store, "PING_S", 60.0)  # ten sidecars share a processor here, and would take that for silence
    monkeypatch.setattr(store, "QUIET_S", 60.0)
    costs = asyncio.run(count(server.url))
    each_second = (costs.beats, 1 / BEATS), (costs.reconcile, 1 / RECONCILE_S), (costs.latencies, 1 / INTERVAL_S)
    found = {
        "commands/s": sum(usage.scripts * rate for usage, rate in each_second),
        "messages/s": sum(usage.published * rate for usage, rate in each_second),
        "KiB/s to the server": sum(usage.received_bytes * rate for usage, rate in each_second) / KIB,
        "KiB/s to all sidecars": sum(usage.sent_bytes * rate for usage, rate in each_second) / KIB,
        "KiB/s of that for reconciles": costs.reconcile.sent_bytes / RECONCILE_S / KIB,
        "KiB/s of that for latencies": costs.latencies.sent_bytes / INTERVAL_S / KIB,
        "KiB for one sidecar to join": costs.joining.sent_bytes / SIDECARS / KIB,
    }
    print({name: round(value) for name, value in found.items()})
    assert {name: round(value) for name, value in found.items() if value > BUDGET[name]} == {}
    assert costs.reconcile.reads == 0, "a reconcile read what was known"
    for one in costs.sidecars:
        assert one.source.view.counts[Count.GAPS] == 0
        assert one.source.view.bad.total() == 0
        assert one.source.counts.connects == 1
        assert one.exchange.heard.refused == {}
