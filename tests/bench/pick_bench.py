"""What one choice costs: ``choose`` alone and with the end of its attempt, at 2, 100 and 1,000 endpoints.

A second table has ``choose`` with each other balancer, with two attempts in flight per endpoint; ``keyed`` with keys
that are new each time. A third has ``apply`` of each kind of delta, where every endpoint holds ten of a hundred models.

Run it with ``python -m tests.bench.pick_bench``; ``make bench`` prints the same lines.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from router.cluster import Cluster
from router.endpoint import Candidate
from router.model import (
    EndpointGone,
    EndpointRecord,
    EndpointSeen,
    EndpointsHeard,
    GoneReason,
    ModelObservation,
    Observation,
    PeerObserved,
    Replica,
    State,
    Tick,
)
from router.outcomes import AttemptResult
from router.policy import BalancerName, ModelPolicy, Policies
from router.routes import Attempt, Route

if TYPE_CHECKING:
    from router.model import Event

SIZES = (2, 100, 1000)
OTHERS = [name for name in BalancerName if name is not BalancerName.WARM]
GIB = 1 << 30
TOGETHER = 100
"""Ends that are learned of together, as a data process does."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds per call at one number of endpoints, the best of several rounds."""

    endpoints: int
    choose_us: float
    choose_and_done_us: float
    rebuild_us: float


def fleet(size: int, now: float) -> tuple[Cluster, Route]:
    """Return a cluster of warm endpoints that have answered, and the route to them."""
    cluster = Cluster(Policies(), [ModelPolicy("m")], now)
    for index in range(size):
        replica = Replica("m", "1", warmth=(("a", 1.0), ("b", index % 7 / 7)), warm_for_s=60.0)
        record = EndpointRecord(
            f"e{index:04}",
            f"http://127.0.0.1:{index + 1}",
            epoch="x",
            replicas=(replica,),
            free_memory_bytes=(index % 11) * GIB,
            total_memory_bytes=16 * GIB,
        )
        cluster.apply(EndpointSeen(record, now), now)
    route = cluster.route("m")
    assert route is not None
    rng = random.Random(1)
    for _ in range(size * 3):
        attempt = cluster.choose(route, now, rng.random)
        assert isinstance(attempt, Attempt)
        cluster.done(attempt, AttemptResult.SUCCESS, now + rng.uniform(0.001, 0.020))
    cluster.apply(Tick(), now + 2.5)
    return cluster, route


def measure_balancer(balancer: BalancerName, size: int, calls: int = 300, rounds: int = 5) -> float:
    """Return the microseconds of one choice by ``balancer``, the best of several rounds."""
    now = 1000.0
    cluster, route = fleet(size, now)
    cluster.configure(Policies(), [ModelPolicy("m", balancer=balancer)], now + 2.6)
    rng = random.Random(3)
    at = now + 2.6
    for number in range(2 * size):
        cluster.choose(route, at, rng.random, None, b"%d" % number)
    best = float("inf")
    for _ in range(rounds):
        keys = [rng.randbytes(12) for _ in range(calls)]
        begun = time.perf_counter()
        attempts = [cluster.choose(route, at, rng.random, None, key) for key in keys]
        best = min(best, time.perf_counter() - begun)
        for attempt in attempts:
            assert isinstance(attempt, Attempt)
            cluster.done(attempt, AttemptResult.CANCELLED, at)
    return best / calls * 1e6


def measure(size: int, calls: int = 20_000, rounds: int = 5) -> Cost:
    """Measure at one number of endpoints."""
    now = 1000.0
    cluster, route = fleet(size, now)
    rng = random.Random(2).random
    at = now + 2.6
    best_choose = best_both = best_rebuild = float("inf")
    for round_ in range(rounds):
        at += 1e-6
        begun = time.perf_counter()
        attempts = [cluster.choose(route, at, rng) for _ in range(calls)]
        best_choose = min(best_choose, time.perf_counter() - begun)
        for attempt in attempts:
            assert isinstance(attempt, Attempt)
            cluster.done(attempt, AttemptResult.SUCCESS, at + 0.005)
        begun = time.perf_counter()
        for _ in range(0, calls, TOGETHER):
            taken: dict[Candidate, list[float]] = {}
            for _ in range(TOGETHER):
                attempt = cluster.choose(route, at, rng)
                assert isinstance(attempt, Attempt)
                taken.setdefault(attempt.candidate, []).append(cluster.succeeded(attempt, at + 0.005))
            for candidate, seconds in taken.items():
                cluster.learn(candidate, seconds, at + 0.005)
        best_both = min(best_both, time.perf_counter() - begun)
        route.expire()
        begun = time.perf_counter()
        cluster.apply(Tick(), at + 2.1 * (round_ + 1))
        best_rebuild = min(best_rebuild, time.perf_counter() - begun)
        at = now + 2.6 + 2.1 * (round_ + 1)
    return Cost(size, best_choose / calls * 1e6, best_both / calls * 1e6, best_rebuild * 1e6)


MODELS, HELD = 100, 10
DELTAS = ("heartbeat", "report", "state", "sibling", "gone", "new")
"""A word that says nothing new; memory has changed; a model has left; what a sibling saw; one left; one came."""


def report_of(index: int, *, free: int = 8, warm: int = HELD) -> EndpointRecord:
    """Return the report of an endpoint that holds ten models; the last of them are loading but for ``warm``."""
    replicas = tuple(
        Replica(
            f"m{(index * 7 + step * 11) % MODELS:03}",
            "1",
            state=State.WARM if step < warm else State.LOADING,
            warmth=(("a", 1.0),),
            warm_for_s=60.0 if step < warm else 0.0,
        )
        for step in range(HELD)
    )
    return EndpointRecord(
        f"e{index:04}",
        f"http://127.0.0.1:{index + 1}",
        epoch="x",
        revision=free,
        replicas=replicas,
        free_memory_bytes=free * GIB,
        total_memory_bytes=16 * GIB,
    )


def measure_apply(size: int, rounds: int = 100) -> dict[str, float]:
    """Return the microseconds of ``apply`` for each kind of delta among ``size`` endpoints, the best of many.

    Every model's route is in use, so that there is a table for it.
    """
    now = 1000.0
    cluster = Cluster(Policies(), [ModelPolicy(f"m{number:03}") for number in range(MODELS)], now)
    for index in range(size):
        cluster.apply(EndpointSeen(report_of(index), now), now)
    rng = random.Random(4).random
    for model in cluster.models:
        route = cluster.route(model)
        assert route is not None
        cluster.choose(route, now, rng)
    best = dict.fromkeys(DELTAS, float("inf"))
    for round_ in range(rounds):
        index = round_ * 13 % size
        id_ = f"e{index:04}"
        seen = ModelObservation(f"m{index * 7 % MODELS:03}", "1", 10.0, ((30, 4),), 4, 0)
        events: dict[str, Event] = {
            "heartbeat": EndpointsHeard((id_,), now),
            "report": EndpointSeen(report_of(index, free=round_ % 7 + 1), now),
            "state": EndpointSeen(report_of(index, warm=HELD - 1 - round_ % 3), now),
            "sibling": PeerObserved(1, (Observation(id_, 2, (seen,)),), now),
            "gone": EndpointGone(id_, GoneReason.EXPIRED, now),
            "new": EndpointSeen(replace(report_of(index), epoch=f"{round_}"), now),
        }
        for name, event in events.items():
            begun = time.perf_counter()
            cluster.apply(event, now)
            best[name] = min(best[name], time.perf_counter() - begun)
        cluster.departed.clear()
    return {name: seconds * 1e6 for name, seconds in best.items()}


def main() -> None:
    """Print the table."""
    print("one choice: endpoints, choose us, choose+done us, table rebuild us")
    for size in SIZES:
        cost = measure(size)
        print(
            f"{cost.endpoints:6} {cost.choose_us:8.2f} {cost.choose_and_done_us:8.2f} {cost.rebuild_us:10.0f}",
            flush=True,
        )
    print("other balancers, us: endpoints " + " ".join(OTHERS))
    for size in SIZES:
        print(f"{size:6} " + " ".join(f"{measure_balancer(name, size):8.2f}" for name in OTHERS), flush=True)
    print("apply of a delta, us: endpoints " + " ".join(DELTAS))
    for size in SIZES:
        print(f"{size:6} " + " ".join(f"{us:8.1f}" for us in measure_apply(size).values()), flush=True)


if __name__ == "__main__":
    main()
