"""Fleets whose models are divided into shards, for tests of the router."""

from __future__ import annotations

from router.model import (
    EndpointRecord,
    Replica,
)
from router.outcomes import Reason
from router.policy import (
    KeyPolicy,
    ModelPolicy,
    ShardMode,
    ShardPolicy,
)
from tests.support.fleet import Driven, record

TENSOR = ModelPolicy("m", shards=ShardPolicy(ShardMode.TENSOR, 4))
KEYED = ModelPolicy("m", shards=ShardPolicy(ShardMode.KEYED, 4), key=KeyPolicy(header="x-key"))
NAMES = "abcd"


def part(shard: int, count: int = 4, **fields: object) -> Replica:
    of = {"version": "1", "group": "g", "warm_for_s": 1000.0} | fields
    return Replica("m", shard=shard, shard_count=count, **of)  # type: ignore[arg-type]


def holds(id_: str, *parts: Replica, **fields: object) -> EndpointRecord:
    return record(id_, replicas=parts, **fields)  # type: ignore[arg-type]


def group(names: str = NAMES, **fields: object) -> tuple[EndpointRecord, ...]:
    return tuple(holds(name, part(shard, 4, **fields)) for shard, name in enumerate(names))


def tensor(*records: EndpointRecord, policy: ModelPolicy = TENSOR) -> Driven:
    driven = Driven(models=[policy])
    driven.seen(*(records or group()))
    return driven


def reasons(driven: Driven, key: str = "m") -> dict[str, Reason | None]:
    name, _, shard = key.partition("#")
    route = driven.route(*name.split("@"))
    if shard:
        route = route.shards[int(shard)]
    return {row.endpoint: row.reason for row in driven.cluster.explain(route, driven.now, driven.rng).rows}
