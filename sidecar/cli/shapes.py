"""What the admin API answers, as far as the commands use it: fields they do not know are passed over.

The sidecar builds these from ``router.explain``; a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from sidecar.config.state import Change
from sidecar.faults.rules import FaultShown  # in the annotation of an answer, which is read as it is decoded


class Refusal(msgspec.Struct, frozen=True):
    """What the admin API answers where it refuses; ``known`` are names that it would have answered."""

    error: str
    known: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class ProcessConfig(msgspec.Struct, frozen=True):
    """Whether a data process runs with the configuration in force."""

    index: int
    current: bool


class ConfigStatus(msgspec.Struct, frozen=True):
    """GET /config/status, and POST /config/reload with its ``result``."""

    revision: str
    source: str
    loaded_at: str
    bad_since: str | None
    problems: tuple[str, ...]
    applied: tuple[Change, ...]
    needs_restart: tuple[Change, ...]
    would_break: tuple[str, ...]
    processes: tuple[ProcessConfig, ...]
    result: str = ""


class Term(msgspec.Struct, frozen=True):
    """One signal's part in a weight, or what a balancer without weights goes by."""

    name: str
    unit: str
    raw: float | None
    score: float | None
    unknown: bool
    coefficient: float | None
    contribution: float | None
    age_s: float | None


class Breaker(msgspec.Struct, frozen=True):
    """The breaker of one replica. ``why`` says what it opened on, or goes by while it is closed."""

    state: str
    why: str = ""
    rule: str | None = None


CLOSED = Breaker("closed")


class Candidate(msgspec.Struct, frozen=True):
    """One replica in a route; ``reason`` says why it may not be picked."""

    endpoint: str
    address: str
    version: str
    state: str
    reason: str | None
    for_s: float | None
    left_s: float | None
    age_s: float | None
    warm_for_s: float | None
    freshness: float
    ramp: float
    weight: float
    share: float
    floored: bool
    terms: tuple[Term, ...]
    p95_ms: float | None
    ewma_ms: float | None
    ewma_known: bool
    in_flight: int
    peers_in_flight: int
    expected_wait_ms: float | None
    breaker: Breaker
    warmth: tuple[tuple[str, float], ...] = ()
    idle_s: float = 0.0
    lasting: float = 1.0
    proven_ago_s: float | None = None
    shard: int | None = None
    group: str | None = None
    lacks: tuple[str, ...] = ()
    own_p95_ms: float | None = None
    sidecars: int = 0
    queue_time_ms: float | None = None


class VersionShare(msgspec.Struct, frozen=True):
    """One version of a model, and the part of the requests that name none which it takes now."""

    version: str
    replicas: int
    ready: int
    share: float | None
    weight: float | None
    note: str


class SteeredVersions(msgspec.Struct, frozen=True):
    """Who steers a model's versions, since when and why."""

    by: str
    at: str
    why: str


class Rollout(msgspec.Struct, frozen=True):
    """Where a rollout stands; ``finding`` is the last one of a rollout that runs."""

    stage: str
    share: float
    finding: str = ""
    detail: str = ""


class CountedVersion(VersionShare, frozen=True):
    """The same with what its attempts came to."""

    attempts: int = 0
    failed: int = 0


class ModelVersions(msgspec.Struct, frozen=True):
    """The versions of one model, in GET /versions."""

    model: str
    serve: str
    configured: str
    steered: SteeredVersions | None
    rollout: Rollout | None
    versions: tuple[CountedVersion, ...]


class VersionsDocument(msgspec.Struct, frozen=True):
    """GET /versions."""

    models: tuple[ModelVersions, ...]


class Route(msgspec.Struct, frozen=True):
    """One route with its candidates."""

    key: str
    default: bool
    idempotent: bool
    candidates: tuple[Candidate, ...]
    protocol: str = "http"
    balancer: str = "warm"
    serve: str = "any"
    versions: tuple[VersionShare, ...] = ()


class Draw(msgspec.Struct, frozen=True):
    """What a choice would do now."""

    drawn: list[str]
    winner: str
    why: str


class Nobody(msgspec.Struct, frozen=True):
    """Why nobody can be picked."""

    reason: str
    retry_after_s: float
    detail: str


class Cache(msgspec.Struct, frozen=True):
    """What a model keeps for bad times."""

    entries: int
    bytes: int
    hits: int
    misses: int
    fills: int
    evicted: int
    refused: dict[str, int]
    model: str = ""


class Caches(msgspec.Struct, frozen=True):
    """GET /cache."""

    models: tuple[Cache, ...]


class Ladder(msgspec.Struct, frozen=True):
    """How far a model is degraded; ``step`` is the lowest of its processes'."""

    model: str
    step: str
    for_s: float
    processes: dict[str, str]
    answers: dict[str, int]
    cache: Cache


class Queue(msgspec.Struct, frozen=True):
    """What waits for a model. ``limit`` is on what is in flight of it; both are None where there is none."""

    waiting: int
    turned_away: int
    in_flight: int | None
    limit: int | None
    on_no_candidate: str = "fail"


class Explanation(msgspec.Struct, frozen=True):
    """One decision laid open."""

    route: str
    mode: str
    balancer: str
    law: str
    rows: tuple[Candidate, ...]
    probe: str | None
    draw: Draw | None
    nobody: Nobody | None
    serve: str = "any"
    versions: tuple[VersionShare, ...] = ()
    ladder: Ladder | None = None
    queue: Queue | None = None
    faults: tuple[FaultShown, ...] = ()


class Routes(msgspec.Struct, frozen=True):
    """GET /routes."""

    store_mode: str
    draining: bool
    routes: tuple[Route, ...]
    ladders: tuple[Ladder, ...] = ()


class Replica(msgspec.Struct, frozen=True):
    """What an endpoint holds of one model version. ``breaker`` and ``p95_ms`` are this sidecar's own view."""

    model: str
    version: str
    state: str
    reason: str = ""
    breaker: Breaker = CLOSED
    p95_ms: float | None = None
    shard: int = 0
    shard_count: int = 1
    group: str = ""
    out: str | None = None
    lacks: tuple[str, ...] = ()


class Endpoint(msgspec.Struct, frozen=True):
    """One endpoint as it last reported. ``held``: drained here, by an operator.

    ``quarantined`` and ``in_flight`` are this sidecar's own view; it has none of an endpoint that it has only just
    heard of.
    """

    id: str
    address: str
    source: str
    age_s: float | None
    draining: bool
    held: bool
    replicas: tuple[Replica, ...]
    free_memory_bytes: int | None
    quarantined: bool = False
    in_flight: int = 0
    free_memory_ratio: float | None = None
    queue_depth: int | None = None


class Endpoints(msgspec.Struct, frozen=True):
    """GET /endpoints; ``held_and_away`` are drained here and not there at all."""

    endpoints: tuple[Endpoint, ...]
    held_and_away: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FaultAdded(FaultShown):
    """POST /faults; ``warnings`` say what it names that is not known now."""

    warnings: tuple[str, ...] = ()


class Faults(msgspec.Struct, frozen=True):
    """GET /faults."""

    faults: tuple[FaultShown, ...]


class Process(msgspec.Struct, frozen=True):
    """One data process; ``up``: it speaks to the control process."""

    index: int
    up: bool


class Health(msgspec.Struct, frozen=True):
    """GET /healthz."""

    version: str
    sidecar: str
    uptime_s: float
    store_mode: str
    processes: tuple[Process, ...]


class Readiness(msgspec.Struct, frozen=True):
    """GET /readyz; ``reasons`` say why not."""

    reasons: tuple[str, ...] = ()
