"""Who there is: endpoints, the routes that they serve, and which of them may be picked.

In layers: the routes (``router.directory``), who may be picked (``router.judging``), and here who comes and goes.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from router.consistency import Consistency
from router.endpoint import Candidate, Endpoint, several_versions
from router.groups import Group, lacks_alone, offered
from router.judging import Judging
from router.model import WHOLE
from router.policy import UNSPLIT, ShardMode
from router.stats import LogBuckets

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from router.groups import Offer
    from router.model import (
        EndpointGone,
        EndpointHeld,
        EndpointRecord,
        EndpointSeen,
        EndpointsHeard,
        Replica,
        SnapshotBegan,
        SnapshotEnded,
        StoreChanged,
    )
    from router.policy import ModelPolicy, Policies
    from router.protocols import Filter, PickerFactory
    from router.routes import Route


class Fleet(Judging):
    """Endpoints by id, routes by key, and the verdict of the filters on each candidate.

    ``generation`` changes with the set of routes, and with which of them have endpoints. ``departed`` are endpoints
    that left, ``half_opened`` replicas whose breakers went half open, ``differing`` those that became inconsistent or
    are no longer, ``panicked`` routes that began or ceased to pick who is ejected, ``failing`` those whose tables
    cannot be made any more, and why, or can be again; the shell empties all of them.
    """

    def __init__(
        self,
        policies: Policies,
        models: Iterable[ModelPolicy],
        filters: Sequence[Filter],
        picker: PickerFactory,
        now: float,
    ) -> None:
        super().__init__(policies, models, filters, picker)
        self.departed: list[Endpoint] = []
        self.differing: list[Candidate] = []
        self.panicked: list[Route] = []
        self.failing: list[tuple[Route, Exception | None]] = []
        self.consistency = Consistency(policies.consistency.mismatches)
        self._groups: dict[tuple[str, str, str, str], Group] = {}  # by model, version, protocol and name
        self._held: set[str] = set()
        self._snapshot: tuple[int, set[str]] | None = None
        self._make_routes(now)

    def configure(
        self, policies: Policies, models: Iterable[ModelPolicy], filters: Sequence[Filter], now: float
    ) -> None:
        """Go by another configuration from now on; endpoints and all that was learned of them stay.

        The routes of a model that is no longer in it go at once, or with the last replica that is still reported.
        """
        before = {model: self._shards_of(model) for model in self._models}
        self._policies = policies
        if self._cools:
            for endpoint in self.endpoints.values():
                for candidate in endpoint.candidates.values():
                    candidate.lasting = 1.0
        self._cools = policies.warmth.idle_after_s is not None
        self.filter_by(filters)
        self.consistency.configure(policies.consistency.mismatches)
        self.ages.configure(policies.freshness)
        buckets = LogBuckets(policies.latency.relative_error)
        if buckets.gamma != self._buckets.gamma:
            self._buckets = buckets
        for endpoint in self.endpoints.values():
            endpoint.configure(policies, self._buckets, now)
        self._models = {model.name: model for model in models}
        self._configure_routes(before.keys(), now)
        self._make_routes(now)
        self._split_anew(
            {
                model
                for model in before.keys() | self._models.keys()
                if self._shards_of(model) != before.get(model, UNSPLIT)
            },
            now,
        )
        self.forget_empty_routes(now)
        self.generation += 1
        self.judge_all(now)

    def seen(self, event: EndpointSeen, now: float) -> None:
        """Take a full report. Another epoch or address under a known id is another endpoint."""
        record = event.record
        endpoint = self.endpoints.get(record.id)
        if self._snapshot is not None:
            self._snapshot[1].add(record.id)
        if endpoint is not None and (endpoint.epoch != record.epoch or endpoint.address != record.address):
            self._remove(endpoint, now)
            endpoint = None
        first = endpoint is None
        if endpoint is None:
            endpoint = self.endpoints[record.id] = Endpoint(record, self._policies, event.at)
            endpoint.held = record.id in self._held
        endpoint.hear(record)
        if self.ages.hear(endpoint, event.at, now, self.endpoints.values()):
            self.judge_all(now)
        self._take_replicas(endpoint, record, event.at, now, from_start=first and record.static)
        if endpoint.quarantine.active:  # what was sent since it began was answered: there is no need of a probe
            endpoint.quarantine.peer_closed(_proven_at(record))
        self._compare(endpoint)
        self.judge(endpoint, now)

    def heard(self, event: EndpointsHeard, now: float) -> None:
        """Take heartbeats; ids that are not known are passed over."""
        for id_ in event.ids:
            endpoint = self.endpoints.get(id_)
            if endpoint is None or endpoint.record.static:
                continue
            if self.ages.hear(endpoint, event.at, now, self.endpoints.values()):
                self.judge_all(now)
            self._compare(endpoint)
            self.judge(endpoint, now)

    def _compare(self, endpoint: Endpoint) -> None:
        """Compare what an endpoint holds with what others of its versions do, at its heartbeat."""
        for candidate in endpoint.candidates.values():
            if self.consistency.heard(candidate):
                self.differing.append(candidate)

    def gone(self, event: EndpointGone, now: float) -> None:
        """Take an endpoint out."""
        endpoint = self.endpoints.get(event.id)
        if endpoint is not None:
            self._remove(endpoint, now)

    def snapshot_began(self, event: SnapshotBegan, now: float) -> None:
        """Note who is seen from here on. A snapshot that was under way is given up."""
        self._snapshot = (event.sequence, set())

    def snapshot_ended(self, event: SnapshotEnded, now: float) -> None:
        """Take out who was not seen since the snapshot of this sequence began."""
        if self._snapshot is None or self._snapshot[0] != event.sequence:
            return
        seen = self._snapshot[1]
        self._snapshot = None
        for endpoint in [endpoint for id_, endpoint in self.endpoints.items() if id_ not in seen]:
            self._remove(endpoint, now)

    def store_changed(self, event: StoreChanged, now: float) -> None:
        """Take the store's new mode."""
        self.ages.change(event.mode, event.at, now, self.endpoints.values())
        self.judge_all(now)

    def hold(self, event: EndpointHeld, now: float) -> None:
        """Take out or let in by hand. It holds for the id, whatever process is behind it, also one yet to come."""
        if event.held:
            self._held.add(event.id)
        else:
            self._held.discard(event.id)
        endpoint = self.endpoints.get(event.id)
        if endpoint is not None:
            endpoint.held = event.held
            self.judge(endpoint, now)

    def _take_replicas(
        self, endpoint: Endpoint, record: EndpointRecord, at: float, now: float, *, from_start: bool
    ) -> None:
        replicas = offered(record, self._shards_of)
        others = endpoint.candidates.keys() != replicas.keys()
        for key, candidate in list(endpoint.candidates.items()):
            group = candidate.group
            if key not in replicas or (group is not None and group.name != replicas[key].group):
                self._unlink(endpoint.candidates.pop(key), now)
        for key, replica in replicas.items():
            known = endpoint.candidates.get(key)
            if known is None:  # its routes are marked when it is judged, as nobody knows its verdict yet
                candidate = self._link(endpoint, key, replica, now)
            else:
                candidate = known
                for route in candidate.routes:
                    route.mark(opened=False)  # a number may have changed; judging says whether it opened
            before = candidate.replica
            moved = (replica.generation, replica.shard_count) != (before.generation, before.shard_count)
            candidate.report(replica, at, from_start=from_start)
            if replica.shard_count != 1:
                candidate.lacks = lacks_alone(record, replica, candidate.shard, self._shards_of(replica.model))
            group = candidate.group
            if moved and group is not None:
                group.remove(candidate, before.generation)
                group.add(candidate)
                for generation in dict.fromkeys((before.generation, replica.generation)):
                    self._judge_entries(group, generation, now)
        if others:
            self._mix(endpoint, several_versions((model, version) for model, version, _ in replicas))

    def _link(self, endpoint: Endpoint, key: Offer, replica: Replica, now: float) -> Candidate:
        """Make the candidate for what an endpoint offers for the first time, and put it into its routes and group."""
        model, version, shard = key
        protocol = endpoint.record.protocol
        routes: list[Route] = []
        for of in dict.fromkeys(("", version)):
            route = self._route_for(model, of, protocol, now)
            routes.append(route)
            if shard == WHOLE:
                routes += route.shards
            elif shard < len(route.shards):
                routes.append(route.shards[shard])
        policy = self._shards_of(model)
        group = None
        if shard != WHOLE and policy.mode is ShardMode.TENSOR:
            place = (model, version, protocol, replica.group)
            group = self._groups.get(place)
            if group is None:
                group = self._groups[place] = Group(place, policy)
        candidate = endpoint.candidates[key] = Candidate(
            endpoint, replica, tuple(routes), self._policies, self._buckets, now, shard=shard, group=group
        )
        if group is not None:
            group.add(candidate)
        for route in routes:
            if not route.candidates:
                self.generation += 1
            route.candidates.append(candidate)
        return candidate

    def _split_anew(self, models: set[str], now: float) -> None:
        """Take what endpoints offer of these models as their new policy splits them; warm moments stay."""
        if not models:
            return
        warm_at: dict[tuple[str, str, str], float] = {}
        for endpoint in self.endpoints.values():
            for key in [key for key in endpoint.candidates if key[0] in models]:
                candidate = endpoint.candidates.pop(key)
                self._unlink(candidate, now)
                place = (endpoint.id, candidate.model, candidate.version)
                warm_at[place] = max(warm_at.get(place, -inf), candidate.warm_at)
        for route in list(self.all_routes()):
            if route.model in models and route.shard is None:
                self._split(route, now)
        for endpoint in self.endpoints.values():
            record = endpoint.record
            if not any(replica.model in models for replica in record.replicas):
                continue
            self._take_replicas(endpoint, record, endpoint.heard_at, now, from_start=record.static)
            for candidate in endpoint.candidates.values():
                moment = warm_at.get((endpoint.id, candidate.model, candidate.version), inf)
                if candidate.warm_at != inf and moment < candidate.warm_at:
                    candidate.warm_at = moment

    def _remove(self, endpoint: Endpoint, now: float) -> None:
        del self.endpoints[endpoint.id]
        endpoint.gone = True
        for candidate in endpoint.candidates.values():
            self._unlink(candidate, now)
        self._mix(endpoint, frozenset())
        self.departed.append(endpoint)

    def _mix(self, endpoint: Endpoint, several: frozenset[str]) -> None:
        """Note of which models an endpoint holds several versions: whoever serves one must be told which."""
        for model in several ^ endpoint.several:
            route = self.routes_by[endpoint.record.protocol].get(model)
            if route is not None:
                route.mixed += 1 if model in several else -1
                if route.serve is not None:
                    self.generation += 1
        endpoint.several = several

    def _unlink(self, candidate: Candidate, now: float) -> None:
        self.consistency.forget(candidate)
        candidate.open_until = candidate.fit_until = -inf
        candidate.gone = True
        for route in candidate.routes:
            route.forget(candidate)
            route.mark(opened=False)
            if not route.candidates:
                route.empty_since = now
                self.generation += 1
        group = candidate.group
        if group is not None:
            group.remove(candidate, candidate.replica.generation)
            self._judge_entries(group, candidate.replica.generation, now)
            if not group.on:
                del self._groups[group.key]


def _proven_at(record: EndpointRecord) -> float:
    """Return when the latest of the warm-up requests that an endpoint answered were sent; minus infinity: none was."""
    return max((-inf if one.proven_at is None else one.proven_at for one in record.replicas), default=-inf)
