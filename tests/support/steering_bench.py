"""A cluster whose versions are steered, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from router.cluster import Cluster
from router.model import (
    EndpointSeen,
    ModelObservation,
    Observation,
    PeerObserved,
    Replica,
    State,
)
from router.policy import (
    KeyPolicy,
    ModelPolicy,
    Policies,
    RolloutPolicy,
    ServePolicy,
    ServeRule,
    ShardMode,
    ShardPolicy,
    VersionShare,
)
from router.stats import LogBuckets
from sidecar.state.steering import Steering
from tests.support.fleet import record

BUCKETS = LogBuckets(Policies().latency.relative_error)
LATEST = ServePolicy(ServeRule.LATEST)
SHARES = (VersionShare("1", 95), VersionShare("2", 5))
SPLIT = ServePolicy(ServeRule.SPLIT, shares=SHARES)
ROLLING = ServePolicy(ServeRule.SPLIT, shares=SHARES, rollout=RolloutPolicy(interval_s=20.0, min_samples=50))


class Bench:
    """A cluster with an endpoint for each version, its steering, and a clock that the test moves."""

    def __init__(self, serve: ServePolicy, *versions: str) -> None:
        self.now = 100.0
        self.models = [ModelPolicy("m", serve=serve), ModelPolicy("n")]
        self.cluster = Cluster(Policies(), self.models, self.now)
        self.steering = Steering(self.cluster, self.models, lambda: 1_800_000_000.0 + self.now)
        for version in versions:
            self.holds(version)

    def holds(self, version: str, state: State = State.WARM) -> None:
        told = record(f"w{version}", version=version, state=state, static=True)
        self.cluster.apply(EndpointSeen(told, self.now), self.now)

    def tell(self) -> None:
        for event in self.steering.messages():
            self.cluster.apply(event, self.now)

    def shares(self) -> dict[str, float | None]:
        self.tell()
        return {row.version: row.share for row in self.cluster.versions("m", self.now) or ()}

    def saw(self, version: str, successes: int, failures: int, ms: Sequence[float] = ()) -> None:
        buckets: dict[int, int] = {}
        for each in ms:
            index = BUCKETS.index(each)
            buckets[index] = buckets.get(index, 0) + 1
        seen = ModelObservation("m", version, None, tuple(sorted(buckets.items())), successes, failures)
        self.steering.observed(PeerObserved(0, (Observation(f"w{version}", 0, (seen,)),), self.now))


def both(bench: Bench, protocol: str, version: str, state: State = State.WARM) -> None:
    """Have an endpoint of a protocol that holds a version."""
    told = record(f"{protocol}{version}", version=version, state=state, static=True)
    bench.cluster.apply(EndpointSeen(replace(told, protocol=protocol), bench.now), bench.now)


def shard(bench: Bench, version: str, number: int, state: State = State.WARM) -> None:
    held = Replica("m", version, shard=number, shard_count=3, state=state, warm_for_s=1000.0)
    told = record(f"w{version}{number}", replicas=(held,), static=True)
    bench.cluster.apply(EndpointSeen(told, bench.now), bench.now)


def keyed(serve: ServePolicy) -> Bench:
    """Return a bench of a model in three shards: version 1 has all of them, of 2 two are still loading."""
    bench = Bench(serve)
    bench.models = [ModelPolicy("m", serve=serve, shards=ShardPolicy(ShardMode.KEYED, 3), key=KeyPolicy(header="x"))]
    bench.cluster.configure(Policies(), bench.models, bench.now)
    bench.steering.configure(bench.models, bench.now)
    for number in range(3):
        shard(bench, "1", number)
        shard(bench, "2", number, State.LOADING if number else State.WARM)
    return bench
