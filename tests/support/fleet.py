"""Building blocks for tests of the router: reports of endpoints, seeded randomness, a cluster driven by hand."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from router.cluster import Cluster
from router.model import (
    EndpointGone,
    EndpointRecord,
    EndpointSeen,
    EndpointsHeard,
    Event,
    GoneReason,
    ModelObservation,
    Observation,
    Replica,
    State,
    Tick,
)
from router.outcomes import AttemptResult
from router.pickers import HandPicker
from router.policy import ModelPolicy, Policies
from router.routes import Attempt, NoCandidate, Route

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from router.endpoint import Candidate, Endpoint
    from router.protocols import Choosable

GIB = 1 << 30


def only(endpoint: Endpoint) -> Candidate:
    """Return the one model version that an endpoint offers."""
    (candidate,) = endpoint.candidates.values()
    return candidate


def first_only(candidates: Sequence[Choosable], weights: Sequence[float], turn: int) -> HandPicker:
    """Stand in for the picker: only the first candidate by id is drawn, as long as it may be picked."""
    return HandPicker(candidates[:1], weights[:1], turn)


def observation(
    id_: str,
    in_flight: int,
    ewma_ms: float | None = None,
    buckets: tuple[tuple[int, int], ...] = (),
    successes: int = 0,
    failures: int = 0,
    *,
    model: str = "m",
    version: str = "1",
) -> Observation:
    """Return what a sibling process saw of an endpoint that offers one model version."""
    seen = ModelObservation(model, version, ewma_ms, buckets, successes, failures)
    return Observation(id_, in_flight, (seen,) if ewma_ms or buckets or successes or failures else ())


def record(
    id_: str,
    *,
    model: str = "m",
    version: str = "1",
    state: State = State.WARM,
    warmth: float | None = 1.0,
    warm_for_s: float = 1000.0,
    free: int | None = 8 * GIB,
    total: int | None = 16 * GIB,
    epoch: str = "a",
    draining: bool = False,
    static: bool = False,
    address: str = "",
    replicas: tuple[Replica, ...] | None = None,
) -> EndpointRecord:
    """Return what a worker with one model reports."""
    if replicas is None:
        pairs = () if warmth is None else (("any", warmth),)
        replicas = (Replica(model, version, state=state, warmth=pairs, warm_for_s=warm_for_s),)
    return EndpointRecord(
        id_,
        address or f"http://{id_}:1",
        epoch=epoch,
        replicas=replicas,
        free_memory_bytes=free,
        total_memory_bytes=total,
        draining=draining,
        static=static,
    )


class Driven:
    """A cluster with a clock that the test moves, a seeded rng, and the events that it wanted to share."""

    def __init__(
        self, *, policies: Policies | None = None, models: Iterable[ModelPolicy] | None = None, seed: int = 1
    ) -> None:
        self.now = 100.0
        self.rng = random.Random(seed).random
        self.cluster = Cluster(
            policies or Policies(), [ModelPolicy("m")] if models is None else models, self.now, rng=self.rng
        )
        self.shared: list[Event] = []

    def apply(self, *events: Event) -> None:
        for event in events:
            self.shared += self.cluster.apply(event, self.now)

    def seen(self, *records: EndpointRecord) -> None:
        self.apply(*(EndpointSeen(each, self.now) for each in records))

    def heard(self, *ids: str) -> None:
        self.apply(EndpointsHeard(ids, self.now))

    def gone(self, id_: str) -> None:
        self.apply(EndpointGone(id_, GoneReason.DEREGISTERED, self.now))

    def wait(self, seconds: float, *, heard: Iterable[str] = (), tick: bool = True) -> None:
        """Move the clock on in steps of at most a heartbeat, with heartbeats of ``heard``."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 1.0)
            ids = tuple(heard)
            if ids:
                self.apply(EndpointsHeard(ids, self.now))
            if tick:
                self.apply(Tick())

    def route(self, model: str = "m", version: str = "") -> Route:
        route = self.cluster.route(model, version)
        assert route is not None
        return route

    def choose(self, tried: Endpoint | None = None, route: Route | None = None) -> Attempt | NoCandidate:
        return self.cluster.choose(route or self.route(), self.now, self.rng, tried)

    def attempt(self, tried: Endpoint | None = None, route: Route | None = None) -> Attempt:
        picked = self.choose(tried, route)
        assert isinstance(picked, Attempt), picked
        return picked

    def nobody(self, tried: Endpoint | None = None, route: Route | None = None) -> NoCandidate:
        picked = self.choose(tried, route)
        assert isinstance(picked, NoCandidate), picked
        return picked

    def done(
        self, attempt: Attempt, result: AttemptResult, after_s: float = 0.0, retry_after_s: float | None = None
    ) -> tuple[Event, ...]:
        self.now += after_s
        events = self.cluster.done(attempt, result, self.now, retry_after_s)
        self.shared += events
        return events

    def to(self, id_: str) -> Attempt:
        """Return an attempt on one endpoint, by choosing until it is that one."""
        others: list[Attempt] = []
        try:
            for _ in range(5000):
                picked = self.attempt()
                if picked.endpoint.id == id_:
                    return picked
                others.append(picked)
        finally:
            for other in others:
                self.cluster.done(other, AttemptResult.CANCELLED, self.now)
        raise AssertionError(f"{id_} is never chosen")

    def ids(self, draws: int = 300) -> dict[str, int]:
        """Return how often each endpoint is chosen with nothing in flight."""
        counts: dict[str, int] = {}
        for _ in range(draws):
            attempt = self.attempt()
            self.cluster.done(attempt, AttemptResult.CANCELLED, self.now)
            counts[attempt.endpoint.id] = counts.get(attempt.endpoint.id, 0) + 1
        return counts

    def shares(self, model: str = "m") -> dict[str, float]:
        """Return the probability of one draw for each endpoint of a model's route."""
        explanation = self.cluster.explain(self.route(model), self.now, self.rng)
        return {row.endpoint: row.share for row in explanation.rows}


def pair() -> Driven:
    """Return a cluster that knows two endpoints, ``a`` and ``b``."""
    driven = Driven()
    driven.seen(record("a"), record("b"))
    return driven
