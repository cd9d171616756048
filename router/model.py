"""What the router knows of the fleet: identifiers, what endpoints report, the events that change it.

All of it is immutable. Times named ``at`` and ``now`` are seconds on the host's monotonic clock; ages travel as
durations, so two hosts' clocks are never compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from router.policy import ServeRule, VersionShare

WHOLE = -1
"""Stands for the shard of what is all of a version, at one endpoint."""

HTTP = "http"
"""The protocol of endpoints that speak HTTP/1.1; others have routes of their own."""


class State(StrEnum):
    """A replica's state. ``cold → loading → warming → warm → draining → cold``; ``failed`` from any."""

    COLD = "cold"
    LOADING = "loading"
    WARMING = "warming"
    WARM = "warm"
    DRAINING = "draining"
    FAILED = "failed"


STATE_NEXT: dict[State, frozenset[State]] = {
    State.COLD: frozenset({State.LOADING, State.FAILED}),
    State.LOADING: frozenset({State.WARMING, State.DRAINING, State.FAILED}),
    State.WARMING: frozenset({State.WARM, State.DRAINING, State.FAILED}),
    State.WARM: frozenset({State.DRAINING, State.FAILED}),
    State.DRAINING: frozenset({State.COLD, State.FAILED}),
    State.FAILED: frozenset({State.COLD, State.LOADING}),
}
"""The only legal transitions of a replica's state; the worker's lifecycle and the tests read this table."""


class StoreMode(StrEnum):
    """How far the shared state can be trusted; each step down is a degraded mode with a metric and a log line."""

    LIVE = "live"  # deltas arrive, or no store is configured at all
    FROZEN = "frozen"  # the store is silent: freshness stands still, last good snapshot
    LOCAL = "local"  # silent for 60 s: warmth and memory are too old, own observations only
    UNIFORM = "uniform"  # silent, and nothing observed either: equal weights


@dataclass(frozen=True, slots=True)
class Replica:
    """One endpoint's copy of one shard, as that endpoint reports it.

    ``warmth`` maps a shape class to a ratio in [0, 1], as sorted pairs; empty means not measured (a static endpoint).
    ``warm_for_s`` is how long it had been warm when the report was made; ``warm_in_s`` in how long it should be, where
    it comes up: whole seconds, as it predicts; 0 where it does not, or is overdue. ``group`` names those that answer
    together with it, where shards are spread over endpoints.

    ``proven_at``: it is proven by warm-up requests that this sidecar sends, and this is when the ones that count were
    begun, on this host's clock; minus infinity before the first. Whoever saw its connections break later takes it for
    unproven, whatever the state says. None: it proves itself, or nobody does. It is no part of the shared state.
    """

    model: str
    version: str = ""
    shard: int = 0
    shard_count: int = 1
    state: State = State.WARM
    warmth: tuple[tuple[str, float], ...] = ()
    content_hash: str = ""
    config_revision: str = ""  # of the configuration that it was loaded by
    generation: int = 0
    warm_for_s: float = 0.0
    warm_in_s: float = 0.0
    reason: str = ""  # why it is failed, where it is
    proven_at: float | None = None
    group: str = ""


@dataclass(frozen=True, slots=True)
class EndpointRecord:
    """One addressable worker process and everything it reports of itself.

    ``address`` is a URL, ``http://HOST:PORT``, ``grpc://HOST:PORT`` or ``unix:/PATH``. ``protocol``: ``http`` or
    ``grpc``. ``epoch`` is random at the process's start: a new
    epoch under an old id is a new process. ``revision`` orders records within the store. ``static``: from
    configuration, not from the store; it counts as warm, never expires and never goes stale. ``queue_depth``: requests
    that wait there. ``cpu_load``: the part of its processor time in use, in [0, 1]. None is unknown.
    ``free_memory_ratio``: the free share of what it keeps requests in (a KV cache), where it names no bytes.
    ``queue_time_ms``: how long requests of the last minute waited there before they were worked on, on average.
    """

    id: str
    address: str
    epoch: str = ""
    revision: int = 0
    protocol: str = HTTP
    replicas: tuple[Replica, ...] = ()
    free_memory_bytes: int | None = None
    total_memory_bytes: int | None = None
    free_memory_ratio: float | None = None
    queue_depth: int | None = None
    queue_time_ms: float | None = None
    cpu_load: float | None = None
    idle_for_s: float | None = None
    draining: bool = False
    static: bool = False


class ReplicaKey(NamedTuple):
    """Which replica of which process it is: a new process under an id has another ``epoch``.

    What is all of a version has the shard WHOLE.
    """

    endpoint: str
    epoch: str
    model: str
    version: str
    shard: int


class ReplicaSketch(NamedTuple):
    """What this sidecar measured at one replica, by bucket; ``changes`` tells whether it is another than last time."""

    key: ReplicaKey
    changes: int
    counts: dict[int, int]


class GoneReason(StrEnum):
    """Why an endpoint left."""

    DEREGISTERED = "deregistered"
    EXPIRED = "expired"
    REMOVED = "removed"  # taken out of the configuration


class EjectCause(StrEnum):
    """Why an endpoint is ejected."""

    QUARANTINE = "quarantine"
    BREAKER = "breaker"
    OUTLIER = "outlier"


class BreakerRule(StrEnum):
    """The policy by which a breaker opened: what most of the calls in its window had in common."""

    GENERAL = "general"  # they failed
    SURGE = "latency_surge"  # they took much longer than usual
    UNAVAILABLE = "unavailable"  # they found nobody there


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a breaker opened on, or goes by while it is closed.

    ``calls`` are those that count, within the window or, where it opened again, the ``trials``. Of them ``failed``,
    ``unanswered`` (which failed too) and ``slow`` (longer than ``slow_over_ms``; they may have failed too).
    ``p95_ms`` and ``baseline_ms`` are the measured and the usual P95; None where they are unknown. ``others_ratio``: of
    an outlier, the share of failures that the others would have been let pass with.
    """

    calls: int
    failed: int
    unanswered: int
    slow: int
    trials: bool = False
    p95_ms: float | None = None
    baseline_ms: float | None = None
    slow_over_ms: float | None = None
    others_ratio: float | None = None


# --- events: everything that may change a Cluster ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EndpointSeen:
    """A full report of one endpoint arrived at ``at``."""

    record: EndpointRecord
    at: float


@dataclass(frozen=True, slots=True)
class EndpointsHeard:
    """Heartbeats that changed nothing: these endpoints were heard from at ``at``."""

    ids: tuple[str, ...]
    at: float


@dataclass(frozen=True, slots=True)
class EndpointGone:
    """An endpoint left the fleet."""

    id: str
    reason: GoneReason
    at: float


@dataclass(frozen=True, slots=True)
class SnapshotBegan:
    """What follows up to :class:`SnapshotEnded` is the whole fleet."""

    sequence: int
    at: float


@dataclass(frozen=True, slots=True)
class SnapshotEnded:
    """The whole fleet was sent: endpoints not seen since the matching :class:`SnapshotBegan` are gone."""

    sequence: int
    at: float


@dataclass(frozen=True, slots=True)
class StoreChanged:
    """The shared state became more or less trustworthy."""

    mode: StoreMode
    at: float


@dataclass(frozen=True, slots=True)
class EndpointHeld:
    """An operator drained (``held``) or resumed an endpoint at this sidecar."""

    id: str
    held: bool
    at: float


@dataclass(frozen=True, slots=True)
class EndpointEjected:
    """A sibling process ejected an endpoint until ``until``; it is out here too. ``level`` counts back-off steps.

    A quarantine is for all that the endpoint offers; a breaker is for one version of one model, or a shard of it,
    which is named, with the ``rule`` that opened it and what it opened on. The same for an outlier, which no rule but
    others are judged by. Of a breaker that is half open there, ``tried`` is how its trials went so far and ``trials``
    how many are under way.
    """

    id: str
    cause: EjectCause
    until: float
    level: int
    at: float
    model: str = ""
    version: str = ""
    rule: BreakerRule | None = None
    evidence: Evidence | None = None
    shard: int = WHOLE
    trials: int = 0
    tried: Evidence | None = None


@dataclass(frozen=True, slots=True)
class EndpointReturned:
    """A sibling process saw an ejected endpoint, or model version of it, answer again (its probe passed)."""

    id: str
    cause: EjectCause
    at: float
    model: str = ""
    version: str = ""
    shard: int = WHOLE


@dataclass(frozen=True, slots=True)
class Hint:
    """A replica whose breaker is open at another sidecar."""

    id: str
    epoch: str
    model: str
    version: str
    shard: int = WHOLE


@dataclass(frozen=True, slots=True)
class BreakersHinted:
    """Another sidecar says which breakers are open there. None opens here: own evidence counts sooner for a while."""

    hints: tuple[Hint, ...]
    at: float


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a worker said of its load in an answer (ORCA); None is not said.

    ``utilization`` and ``free_memory_ratio`` lie in [0, 1]; ``queue_depth`` counts requests that wait there.
    """

    utilization: float | None = None
    queue_depth: int | None = None
    free_memory_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class ModelObservation:
    """What one process saw of one model version on one endpoint, or of a shard of it, since it last said so.

    ``buckets`` are (log-bucket index, count) pairs of attempt latencies (see ``router.stats``); ``ewma_ms`` is None
    where nothing was measured. ``failures`` are told as a whole, and of them ``unanswered``; ``slow`` ones may be of
    either kind. ``others`` are answers that are no calls to a breaker (4xx), but show that somebody is there.
    ``overdue`` are slow ones that were given up without an answer: neither successes nor failures. So are
    ``failed_calls`` (``AttemptResult.CALL_FAILED``): they say nothing of the worker, but something of its version
    beside another.
    """

    model: str
    version: str
    ewma_ms: float | None
    buckets: tuple[tuple[int, int], ...]
    successes: int
    failures: int
    unanswered: int = 0
    slow: int = 0
    others: int = 0
    shard: int = WHOLE
    overdue: int = 0
    failed_calls: int = 0


@dataclass(frozen=True, slots=True)
class Observation:
    """What one process saw of one endpoint since it last said so.

    ``in_flight`` is the count at the moment of sending, of all its models. ``report`` is the last load report that came
    with an answer since. ``seen`` names the model versions that were asked for since.
    """

    id: str
    in_flight: int
    seen: tuple[ModelObservation, ...] = ()
    report: LoadReport | None = None


@dataclass(frozen=True, slots=True)
class PeerObserved:
    """One sibling process's observations (``source`` is its index); replaces that source's in-flight counts."""

    source: int
    observations: tuple[Observation, ...]
    at: float


@dataclass(frozen=True, slots=True)
class VersionSteering:
    """What an operator or a rollout says of which versions take a model's requests that name none."""

    model: str
    rule: ServeRule
    version: str = ""
    shares: tuple[VersionShare, ...] = ()


@dataclass(frozen=True, slots=True)
class VersionsSteered:
    """All that is steered now, in place of the configuration's word; in parts, the first and last marked."""

    steerings: tuple[VersionSteering, ...]
    first: bool = True
    last: bool = True


@dataclass(frozen=True, slots=True)
class LoadsReported:
    """What workers said of their load at ``at``, beside their answers; by endpoint id."""

    reports: tuple[tuple[str, LoadReport], ...]
    at: float


@dataclass(frozen=True, slots=True)
class ReplicaMeasured:
    """What other sidecars together measured at one replica within their window; no ``buckets``: nothing any more."""

    id: str
    epoch: str
    model: str
    version: str
    shard: int
    sidecars: int
    buckets: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class FleetMeasured:
    """What other sidecars measured; it replaces what they said of these replicas before, and counts for one window."""

    measured: tuple[ReplicaMeasured, ...]
    at: float


@dataclass(frozen=True, slots=True)
class PrefixesSeen:
    """What beginnings of prompts one process sent where, on one route (``router/affinity.py``)."""

    model: str
    version: str
    protocol: str
    shard: int | None
    seen: tuple[tuple[bytes, str, str], ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed: rebuild what ages. The shell sends it about ten times a second."""


Event = (
    EndpointSeen
    | EndpointsHeard
    | EndpointGone
    | SnapshotBegan
    | SnapshotEnded
    | StoreChanged
    | EndpointHeld
    | EndpointEjected
    | EndpointReturned
    | BreakersHinted
    | PeerObserved
    | LoadsReported
    | FleetMeasured
    | PrefixesSeen
    | VersionsSteered
    | Tick
)
