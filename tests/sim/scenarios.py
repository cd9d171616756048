"""Fleets, loads and what happens to them: each scenario is data, ``tests/sim/play.py`` plays it.

Requests arrive at random (Poisson), whatever becomes of those before them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp
from typing import Any

from tests.sim.signals import PROMPT, Telemetry
from tests.sim.workers import GIB, TWENTY_MS, Spread, WorkerSpec


@dataclass(frozen=True, slots=True)
class Restarts:
    """Workers are killed one after the other, each up again ``down_s`` later; then the next."""

    first_s: float
    every_s: float
    down_s: float


@dataclass(frozen=True, slots=True)
class Bursts:
    """Every ``every_s`` the rate is ``times`` as high for ``length_s``."""

    every_s: float
    length_s: float
    times: float


@dataclass(frozen=True, slots=True)
class Slowings:
    """Every ``every_s`` another worker in turn becomes ``times`` as slow, for ``length_s``."""

    every_s: float
    length_s: float
    times: float


@dataclass(frozen=True, slots=True)
class Neighbours:
    """On this share of the devices another process takes memory until two requests fit, and gives it back, in turns."""

    ratio: float
    turn_s: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """One situation. ``rate_per_s`` is that of all requests together.

    Args:
        popularity: the share of each model, in the order of ``models``; even where it is empty.
        lies: a readiness check passes from the moment a process runs.
        settle_s: requests before that are not measured.
    """

    name: str
    workers: tuple[WorkerSpec, ...]
    rate_per_s: float
    duration_s: float
    models: tuple[str, ...] = ("m",)
    popularity: tuple[float, ...] = ()
    sidecars: int = 1
    processes: int = 2
    settle_s: float = 3.0
    restarts: Restarts | None = None
    bursts: Bursts | None = None
    slowings: Slowings | None = None
    neighbours: Neighbours | None = None
    telemetry: Telemetry = PROMPT
    lies: bool = False


SERVICE_S, SIGMA = 0.020, 0.4
"""Log-normal service times: half take less than 20 ms, one in a hundred more than 51."""

SPREAD = Spread(SERVICE_S, SIGMA)

STALE = Telemetry(least_s=0.0, most_s=2.0, lost_ratio=0.2)
"""Reports that are up to two seconds old when they arrive, one in five lost."""


def fleet(count: int, **what: Any) -> tuple[WorkerSpec, ...]:
    """Return workers that are alike."""
    return tuple(WorkerSpec(f"e{index:04}", **what) for index in range(count))


def mixed(*slowness: float, count: int) -> tuple[WorkerSpec, ...]:
    """Return workers with log-normal service times and these slownesses in turn."""
    return tuple(
        WorkerSpec(f"e{index:04}", service=SPREAD, slowness=slowness[index % len(slowness)]) for index in range(count)
    )


def capacity(workers: tuple[WorkerSpec, ...]) -> float:
    """Return the requests a second that workers with log-normal service times can take."""
    mean_s = SERVICE_S * exp(SIGMA * SIGMA / 2)
    return sum(worker.concurrency / (mean_s * worker.slowness) for worker in workers)


def rolling_restart(
    duration_s: float, *, lies: bool = False, telemetry: Telemetry = PROMPT, load_s: float = 2.0
) -> Scenario:
    """Four workers, 20 ms, four at a time, 60% of capacity; each is killed in turn, and loads for 2 s when it is back.

    It accepts at once, and holds requests while it loads.
    """
    return Scenario(
        "rolling restart",
        fleet(4, service=TWENTY_MS, load_s=load_s),
        rate_per_s=480.0,
        duration_s=duration_s,
        restarts=Restarts(first_s=4.0, every_s=6.0 + load_s, down_s=0.3),
        telemetry=telemetry,
        lies=lies,
    )


def equal(duration_s: float, count: int = 8, load: float = 0.8) -> Scenario:
    """Workers that are all alike, at 80% of capacity."""
    workers = mixed(1.0, count=count)
    return Scenario(f"{count} alike, {load:.0%}", workers, load * capacity(workers), duration_s)


def mixed_speeds(duration_s: float, count: int = 12, load: float = 0.7, sidecars: int = 3) -> Scenario:
    """Workers of three speeds, the slowest twice as slow as the fastest, behind several sidecars."""
    workers = mixed(1.0, 1.5, 2.0, count=count)
    name = f"{count} of three speeds, {load:.0%}"
    return Scenario(name, workers, load * capacity(workers), duration_s, sidecars=sidecars)


def slow_quarter(duration_s: float, count: int = 16) -> Scenario:
    """A quarter of the workers is four times as slow; 70% of capacity, two sidecars."""
    workers = mixed(4.0, 1.0, 1.0, 1.0, count=count)
    return Scenario("a quarter slow, 70%", workers, 0.7 * capacity(workers), duration_s, sidecars=2)


def turning_slow(duration_s: float) -> Scenario:
    """Eight workers at 60%; each in turn is five times as slow for 4 s."""
    workers = mixed(1.0, count=8)
    return Scenario("turning slow, 60%", workers, 0.6 * capacity(workers), duration_s, slowings=Slowings(6.0, 4.0, 5.0))


def bursts(duration_s: float) -> Scenario:
    """Eight workers at 45%; every 2 s three times as many requests for 200 ms."""
    workers = mixed(1.0, count=8)
    return Scenario("bursts", workers, 0.45 * capacity(workers), duration_s, bursts=Bursts(2.0, 0.2, 3.0))


def memory_pressure(duration_s: float) -> Scenario:
    """Twelve workers that may be asked for eight models each, with room for five; neighbours on a third take the rest.

    Twelve models, the first asked for most (Zipf). A model that was evicted takes 2 s to load, and evicts another.
    """
    models = tuple(f"m{index:02}" for index in range(12))
    workers = tuple(
        WorkerSpec(
            f"e{index:04}",
            models=tuple(models[(index + step) % 12] for step in range(8)),
            concurrency=8,
            service=SPREAD,
            memory_bytes=24 * GIB,
            model_bytes=4 * GIB,
            request_bytes=GIB // 2,
            most_models=5,
        )
        for index in range(12)
    )
    return Scenario(
        "memory pressure",
        workers,
        0.35 * capacity(workers),
        duration_s,
        models=models,
        popularity=tuple(1 / (rank + 1) for rank in range(12)),
        neighbours=Neighbours(1 / 3, 4.0),
    )


def herding(duration_s: float, count: int = 4, rate_per_s: float = 2500.0, telemetry: Telemetry = PROMPT) -> Scenario:
    """Equal workers with room for everything, so that only the law says who gets how much."""
    workers = fleet(count, concurrency=64, service=SPREAD)
    return Scenario(f"{count} equal", workers, rate_per_s, duration_s, telemetry=telemetry)


def large(duration_s: float, endpoints: int = 1000, models: int = 100, rate_per_s: float = 20_000.0) -> Scenario:
    """A thousand workers of three speeds with ten of a hundred models each, behind one sidecar of two processes."""
    names = tuple(f"m{index:03}" for index in range(models))
    workers = tuple(
        WorkerSpec(
            f"e{index:04}",
            models=tuple(names[(index * 7 + step * 11) % models] for step in range(10)),
            service=SPREAD,
            slowness=(1.0, 1.5, 2.0)[index % 3],
        )
        for index in range(endpoints)
    )
    return Scenario(
        f"{endpoints:,} with {models} models", workers, rate_per_s, duration_s, models=names, settle_s=duration_s / 3
    )


def troubled(duration_s: float, endpoints: int = 1000, rate_per_s: float = 5_000.0) -> Scenario:
    """All of it at once on a thousand workers with a hundred models: twenty a second are killed and load again.

    Three speeds, room for half of the models each, neighbours that take memory, bursts, reports late or lost.
    """
    large_one = large(duration_s, endpoints, rate_per_s=rate_per_s)
    workers = tuple(
        replace(worker, most_models=5, memory_bytes=24 * GIB, request_bytes=GIB // 2, load_s=0.2)
        for worker in large_one.workers
    )
    return replace(
        large_one,
        name=f"{endpoints:,} in trouble",
        workers=workers,
        restarts=Restarts(first_s=0.1, every_s=0.05, down_s=0.3),
        bursts=Bursts(0.5, 0.05, 3.0),
        neighbours=Neighbours(1 / 3, 1.0),
        telemetry=STALE,
    )
