"""The aggregate: what is known of the fleet, and every decision on it.

``apply`` takes events, ``choose`` picks an endpoint, ``done`` learns from how it went. Nothing here blocks, waits or
looks at a clock; a shell calls it from one thread. It stands in layers, each on the one before: what is known
(``router.known``), learning from attempts (``router.learning``), choosing (``router.choosing``), and here the events.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from router import model
from router.affinity import Affinity
from router.choosing import Choosing
from router.ejections import outlier_event, spares, switch_event
from router.filters import default_filters
from router.fleet import Fleet
from router.model import BreakerRule, EjectCause, EndpointEjected, EndpointReturned, Event, PrefixesSeen, ReplicaKey
from router.pickers import HandPicker
from router.policy import ConcurrencyMode
from router.scorers import default_scorers
from router.tables import IDLE_REBUILD_S, Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from router.model import BreakersHinted, FleetMeasured, LoadsReported, PeerObserved, Tick
    from router.policy import ModelPolicy, Policies
    from router.protocols import Filter, PickerFactory, Rng, Scorer


def no_jitter() -> float:
    """Stand in for a random source where spreading does not matter: always the middle."""
    return 0.5


class Cluster(Choosing):
    """The fleet as one process of one sidecar sees it.

    ``generation`` changes with the set of routes, so that a shell may remember what :meth:`route` said.

    Args:
        policies: all tunables.
        models: what configuration says of models; each has a route even while nobody serves it. Models that endpoints
            report beyond these get a route with default policy.
        now: the moment of making, monotonic seconds.
        rng: spreads the ends of quarantines; everything else takes its randomness as an argument.
        filters, scorers, picker: plug-ins instead of the default ones (docs/extending.md).
        decides: choices are made here. Else this is what sibling processes decide, to be looked at: an explanation
            shows the wait in a process that has as much in flight as they have in the mean.
    """

    def __init__(
        self,
        policies: Policies,
        models: Iterable[ModelPolicy],
        now: float,
        *,
        rng: Rng = no_jitter,
        filters: Sequence[Filter] | None = None,
        scorers: Sequence[tuple[Scorer, float]] | None = None,
        picker: PickerFactory = HandPicker,
        decides: bool = True,
    ) -> None:
        self._given_filters = filters
        self._given_scorers = scorers
        fleet = Fleet(policies, models, self._filters(policies), picker, now)
        tables = Tables(fleet, policies, self._scorers(policies), decides=decides)
        super().__init__(policies, fleet, tables, rng, now)
        self._handlers: dict[type, Callable[[Any, float], tuple[Event, ...] | None]] = {
            model.EndpointSeen: fleet.seen,
            model.EndpointsHeard: fleet.heard,
            model.EndpointGone: fleet.gone,
            model.SnapshotBegan: fleet.snapshot_began,
            model.SnapshotEnded: fleet.snapshot_ended,
            model.StoreChanged: fleet.store_changed,
            model.EndpointHeld: fleet.hold,
            model.EndpointEjected: self._on_ejected,
            model.EndpointReturned: self._on_returned,
            model.PeerObserved: self._on_peer_observed,
            model.BreakersHinted: self._on_hinted,
            model.FleetMeasured: self._on_fleet_measured,
            model.PrefixesSeen: self._on_prefixes_seen,
            model.VersionsSteered: fleet.steered,
            model.LoadsReported: self._on_loads_reported,
            model.Tick: self._on_tick,
        }

    def configure(self, policies: Policies, models: Iterable[ModelPolicy], now: float) -> None:
        """Go by another configuration from now on, without forgetting anything of what stays.

        Attempts in flight, EWMAs, sketches, guards and the retry budget are kept. A model that is new has a route at
        once; one that is gone loses its routes, at once or with the last replica that is still reported. Where
        ``latency.relative_error`` changes, sketches are brought to the new buckets, and so must siblings' be: all
        processes of a sidecar are configured alike, within a tick.
        """
        self.policies = policies
        self._decay = -1 / policies.latency.ewma_decay_s
        self._budget.configure(policies.retry, now)
        self._calls = self._budget.calls
        self._tables.configure(policies, self._scorers(policies))
        self._fleet.configure(policies, models, self._filters(policies), now)
        self.generation = self._fleet.generation

    def _filters(self, policies: Policies) -> Sequence[Filter]:
        given = self._given_filters
        return default_filters(policies.freshness.ttl_s) if given is None else given

    def _scorers(self, policies: Policies) -> Sequence[tuple[Scorer, float]]:
        given = self._given_scorers
        return default_scorers(policies.scoring) if given is None else given

    def apply(self, event: Event, now: float) -> tuple[Event, ...]:
        """Take one event; return those that sibling processes should hear of because of it."""
        out = self._handlers[type(event)](event, now)
        self.generation = self._fleet.generation
        return out or ()

    def _on_ejected(self, event: EndpointEjected, now: float) -> None:
        endpoint = self._fleet.endpoints.get(event.id)
        if endpoint is None or event.at < endpoint.first_seen_at:  # of an earlier process under this id
            return
        if event.cause is EjectCause.QUARANTINE:
            endpoint.quarantine.peer_opened(event.until, event.level, event.at)
        else:
            candidate = endpoint.candidates.get((event.model, event.version, event.shard))
            if candidate is None:
                return
            if event.rule is BreakerRule.SURGE and not spares(candidate, self.policies.breaker, now):
                return  # a sibling process was the first to take another one out for that
            if event.cause is EjectCause.OUTLIER:
                candidate.ejection.peer_opened(event.until, event.level, event.at, event.evidence)
            else:
                candidate.breaker.peer_opened(event.until, event.at, event.rule, event.evidence)
        self._fleet.judge(endpoint, now)

    def _on_returned(self, event: EndpointReturned, now: float) -> None:
        endpoint = self._fleet.endpoints.get(event.id)
        if endpoint is None or event.at < endpoint.first_seen_at:
            return
        if event.cause is EjectCause.QUARANTINE:
            endpoint.quarantine.peer_closed(event.at)
        else:
            candidate = endpoint.candidates.get((event.model, event.version, event.shard))
            if candidate is None:
                return
            if event.cause is EjectCause.OUTLIER:
                candidate.ejection.peer_closed(event.at)
            else:
                candidate.breaker.peer_closed(event.at)
        self._fleet.judge(endpoint, now)

    def _on_hinted(self, event: BreakersHinted, now: float) -> tuple[Event, ...]:
        out: list[Event] = []
        for hint in event.hints:
            candidate = self.replica(ReplicaKey(hint.id, hint.epoch, hint.model, hint.version, hint.shard))
            if candidate is None:
                continue
            if candidate.breaker.hinted(event.at, now, partial(spares, candidate, self.policies.breaker, now)):
                self._fleet.judge(candidate.endpoint, now)
                out.append(switch_event(candidate, now))
        return tuple(out)

    def _on_peer_observed(self, event: PeerObserved, now: float) -> tuple[Event, ...]:
        out: list[Event] = []
        for observed in event.observations:
            endpoint = self._fleet.endpoints.get(observed.id)
            if endpoint is None:
                continue
            endpoint.peer_reported(event.source, observed.in_flight, event.at)
            if observed.report is not None:
                self._take_report(endpoint, observed.report, event.at)
            for seen in observed.seen:
                candidate = endpoint.candidates.get((seen.model, seen.version, seen.shard))
                if candidate is None:
                    continue
                if seen.ewma_ms is not None:
                    candidate.peers[event.source] = (seen.ewma_ms, event.at)
                candidate.latency.merge(seen.buckets, now)
                out += self._count(
                    candidate, now, seen.successes + seen.overdue, seen.failures, seen.unanswered, seen.slow
                )
        return tuple(out)

    def _on_loads_reported(self, event: LoadsReported, now: float) -> None:
        for id_, report in event.reports:
            endpoint = self._fleet.endpoints.get(id_)
            if endpoint is not None:
                self._take_report(endpoint, report, event.at)

    def _on_fleet_measured(self, event: FleetMeasured, now: float) -> None:
        for one in event.measured:
            candidate = self.replica(ReplicaKey(one.id, one.epoch, one.model, one.version, one.shard))
            if candidate is not None:
                candidate.latency.told(one.buckets, one.sidecars, event.at)

    def _on_prefixes_seen(self, event: PrefixesSeen, now: float) -> None:
        route = self.route(event.model, event.version, event.protocol)
        if route is not None and event.shard is not None:
            route = route.shards[event.shard] if event.shard < len(route.shards) else None
        if route is not None and isinstance(route.balancer, Affinity):
            route.balancer.learn(event.seen)

    def _on_tick(self, event: Tick, now: float) -> tuple[Event, ...]:
        self._fleet.watch_silence(now)
        if self.policies.concurrency.mode is ConcurrencyMode.ADAPTIVE:
            for endpoint in self._fleet.endpoints.values():
                if endpoint.limiter is not None:
                    endpoint.adapt(endpoint.limiter, now)
        if now - self._swept_at >= IDLE_REBUILD_S:
            self._swept_at = now
            silent_since = now - self.policies.freshness.ttl_s
            for endpoint in self._fleet.endpoints.values():
                for candidate in endpoint.candidates.values():
                    if candidate.ejection.active and candidate.ejection.advance(now):
                        self._fleet.judge(endpoint, now)
                    if not candidate.latency.idle:
                        candidate.settle(now)
                    if candidate.peers:
                        candidate.forget_silent_peers(silent_since)
                if endpoint.peers:
                    endpoint.forget_silent_peers(silent_since)
                if endpoint.forget_report(silent_since):
                    endpoint.mark()
            self._fleet.forget_empty_routes(now)
        self._tables.rebuild_due(now)
        if not self._fleet.ejected:
            return ()
        events = tuple(outlier_event(candidate, now) for candidate in self._fleet.ejected if candidate.ejection.active)
        self._fleet.ejected.clear()
        return events
