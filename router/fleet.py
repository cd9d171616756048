"""Who there is: endpoints, the routes that they serve, and which of them may be picked."""

from __future__ import annotations

from bisect import insort
from math import inf
from typing import TYPE_CHECKING, Final

from router.affinity import Affinity, AffinityCounts
from router.ages import Ages
from router.balancers import balancer_for
from router.consistency import Consistency
from router.endpoint import Candidate, Endpoint, several_versions
from router.groups import Group, ShardMap, lacks_alone, offered, unfit
from router.hedging import HeadTimes
from router.lasting import idle_s_of, lasting_at
from router.model import HTTP, WHOLE, Evidence
from router.outcomes import Reason
from router.outlier import PANIC_OVERLOOKS, Tally, outliers
from router.policy import UNSPLIT, ModelPolicy, ShardMode
from router.rollout import in_force
from router.routes import Route
from router.stats import LogBuckets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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
        StoreMode,
        VersionsSteered,
        VersionSteering,
    )
    from router.policy import Policies, ShardPolicy
    from router.protocols import Balancer, Filter, PickerFactory
    from router.protocols import Candidate as CandidateView


JUDGE_S: Final = 1.0
"""How often the replicas of a route are compared, at most."""


class Fleet:
    """Endpoints by id, routes by key, and the verdict of the filters on each candidate.

    ``generation`` changes with the set of routes, and with which of them have endpoints. ``departed`` are endpoints
    that left, ``half_opened`` replicas whose breakers went half open, ``differing`` those that became inconsistent or
    are no longer, ``panicked`` routes that began or ceased to pick who is ejected; the shell empties all of them.
    Models in the configuration always have a route; one that was learned from endpoints goes a while after the last of
    them.
    """

    def __init__(
        self,
        policies: Policies,
        models: Iterable[ModelPolicy],
        filters: Sequence[Filter],
        picker: PickerFactory,
        now: float,
    ) -> None:
        self._picker = picker
        self.endpoints: dict[str, Endpoint] = {}
        self.routes: dict[str, Route] = {}  # of HTTP
        self.routes_by: dict[str, dict[str, Route]] = {HTTP: self.routes}
        self.default: Route | None = None
        self.departed: list[Endpoint] = []
        self.half_opened: list[Candidate] = []
        self.differing: list[Candidate] = []
        self.panicked: list[Route] = []
        self.ejected: list[Candidate] = []  # as outliers, yet to be told to sibling processes
        self.consistency = Consistency(policies.consistency.mismatches)
        self.generation = 0
        self.ages = Ages(policies.freshness)
        self._policies = policies
        self._cools = policies.warmth.idle_after_s is not None
        self._filters = tuple(filters)
        self._buckets = LogBuckets(policies.latency.relative_error)
        self._models = {model.name: model for model in models}
        self._groups: dict[tuple[str, str, str, str], Group] = {}  # by model, version, protocol and name
        self.affinity = AffinityCounts()
        self._held: set[str] = set()
        self._steered: dict[str, VersionSteering] = {}
        self._steered_next: dict[str, VersionSteering] = {}  # as far as a new list of them has come
        self._snapshot: tuple[int, set[str]] | None = None
        self._make_routes(now)

    def _make_routes(self, now: float) -> None:
        """Have a route for each model of the configuration, and find the default one."""
        self.default = None
        for model in self._models.values():
            route = self._route_for(model.name, "", HTTP, now)
            if model.default and self.default is None:
                self.default = route

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
        self._filters = tuple(filters)
        self.consistency.configure(policies.consistency.mismatches)
        self.ages.configure(policies.freshness)
        buckets = LogBuckets(policies.latency.relative_error)
        if buckets.gamma != self._buckets.gamma:
            self._buckets = buckets
        for endpoint in self.endpoints.values():
            endpoint.configure(policies, self._buckets, now)
        self._models = {model.name: model for model in models}
        for route in self.all_routes():
            route.shaped = ()  # made again for who asks
            policy = self._models.get(route.model)
            was = route.policy
            if policy is not None:
                route.policy = policy
                route.learned = route.version != ""
                route.withdrawn = False
            elif route.model in before:
                route.policy = ModelPolicy(route.model)
                route.learned = route.withdrawn = True
            if _picked_by(route.policy) != _picked_by(was):
                route.table = None
                route.balancer, route.busy_balancer = self._balancers(route.policy)
                for candidate in route.candidates:
                    candidate.follow_balancer()
            self._regard_hedging(route, now)
            self._regard_serving(route)
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

    @property
    def mode(self) -> StoreMode:
        """How far the shared state can be trusted."""
        return self.ages.mode

    def all_routes(self) -> Iterator[Route]:
        """Yield the routes of every protocol, and those of shards behind them."""
        for routes in self.routes_by.values():
            for route in routes.values():
                yield route
                yield from route.shards

    def affine_routes(self) -> Iterator[Route]:
        """Yield the routes whose requests prefer who has seen their prompt; at no cost where no model has that."""
        if any(policy.affinity is not None for policy in self._models.values()):
            for route in self.all_routes():
                if route.policy.affinity is not None:
                    yield route

    def find(self, model: str, version: str, protocol: str, now: float) -> Route | None:
        """Return a route of another protocol than HTTP; a configured model has one, even while nobody serves it."""
        found = self.routes_by.get(protocol, {}).get(f"{model}@{version}" if version else model)
        if found is None and not version and model in self._models:
            found = self._route_for(model, "", protocol, now)
            found.empty_since = -inf
        return found

    def stand_in(self, model: str, protocol: str, now: float) -> Route | None:
        """Return the route of a model that takes what names none, for another protocol than HTTP.

        None where the model's endpoints speak other protocols alone, and for a while have. One that nobody serves at
        all has a route: nothing says yet for whom its endpoints will be.
        """
        route = self.routes_by.get(protocol, {}).get(model)
        if route is not None and (route.candidates or route.empty_since != -inf):
            return route
        if any(route.candidates for routes in self.routes_by.values() if (route := routes.get(model)) is not None):
            return None
        return self.find(model, "", protocol, now)

    # --- judging -------------------------------------------------------------------------------------------------

    def verdict(self, candidate: CandidateView) -> Reason | None:
        """Return the first filter's reason to leave a candidate out, None where all let it pass."""
        mode = self.ages.mode
        for filter_ in self._filters:
            reason = filter_(candidate, mode)
            if reason is not None:
                return reason
        return None

    def look(self, candidate: Candidate, now: float) -> bool:
        """Judge one candidate as of ``now``; True where the verdict changed."""
        endpoint = candidate.endpoint
        candidate.age_s = self.ages.age_s(endpoint, now)
        candidate.warm_for_s = max(0.0, now - candidate.warm_at)
        candidate.busy = now < candidate.busy_until
        if self._cools:
            candidate.lasting = lasting_at(idle_s_of(candidate, candidate.age_s, now), self._policies.warmth)
        was_open = candidate.open_until != -inf
        stale_at = self.ages.stale_at(endpoint)
        if candidate.group is not None and candidate.entry:
            stale_at = min(stale_at, self._look_at_group(candidate, candidate.group, now))
        reason = self.verdict(candidate)
        candidate.open_until = stale_at if reason is None else -inf
        candidate.fit_until = stale_at if reason is None or reason is Reason.BUSY else -inf
        overlooked = reason is None or (reason in PANIC_OVERLOOKS and candidate.entry)
        candidate.panic_until = stale_at if overlooked else -inf
        if reason is not candidate.reason:
            candidate.reason = reason
            candidate.reason_since = now
            return True
        return was_open is not (reason is None)

    def advance(self, candidate: Candidate, now: float) -> bool:
        """Have a breaker whose time in open is over go half open; True where that happened."""
        if not candidate.breaker.advance(now):
            return False
        self.half_opened.append(candidate)
        self.judge(candidate.endpoint, now)  # its other routes have to know
        return True

    def _look_at_group(self, entry: Candidate, group: Group, now: float) -> float:
        """Judge those that answer through ``entry``, whose weakest speaks for all; return when the first goes stale."""
        until = inf
        for member in group.others(entry):
            self.look(member, now)
            entry.age_s = max(entry.age_s, member.age_s)
            entry.warm_for_s = min(entry.warm_for_s, member.warm_for_s)
            until = min(until, self.ages.stale_at(member.endpoint))
        entry.lacks = group.lacks(entry, lambda member: unfit(member, member.reason, now))
        return until

    def judge_outliers(self, route: Route, now: float) -> None:
        """Take out who fails much more than the others of a version; at most once a second for each route."""
        policy = self._policies.outlier
        if not policy.enabled or len(route.candidates) <= policy.minimum_others or now < route.judge_at:
            return
        route.judge_at = now + JUDGE_S
        groups: dict[tuple[str, int], list[Candidate]] = {}
        for candidate in route.candidates:
            groups.setdefault((candidate.version, candidate.shard), []).append(candidate)
        for group in groups.values():
            tallies = [_tally(candidate, now) for candidate in group]
            for found in outliers(tallies, policy):
                candidate, tally = group[found.index], tallies[found.index]
                evidence = Evidence(tally.calls, tally.failures, 0, 0, others_ratio=found.bound_ratio)
                candidate.ejection.eject(evidence, policy, now)
                self.ejected.append(candidate)
                self.judge(candidate.endpoint, now)

    def judge(self, endpoint: Endpoint, now: float) -> None:
        """Judge all candidates of an endpoint after something about it changed."""
        endpoint.regard()
        for candidate in endpoint.candidates.values():
            changed = self.look(candidate, now)
            for route in candidate.routes:
                if changed:
                    route.mark(opened=candidate.reason is None)
                if candidate.guarded:
                    route.look_closer()
            if changed and candidate.group is not None:
                self._judge_entries(candidate.group, candidate.replica.generation, now)

    def _judge_entries(self, group: Group, generation: int, now: float) -> None:
        """Judge who is asked for a group after something about one of its members changed."""
        for entry in group.entries(generation):
            if self.look(entry, now):
                for route in entry.routes:
                    route.mark(opened=entry.reason is None)

    def judge_all(self, now: float) -> None:
        """Judge everybody after all ages changed, and have every table made again."""
        for endpoint in self.endpoints.values():
            self.judge(endpoint, now)
        for route in self.all_routes():
            route.expire()

    def watch_silence(self, now: float) -> None:
        """Stop the ages' clock where everybody has fallen silent at once."""
        if self.ages.watch(now):
            self.judge_all(now)

    # --- events --------------------------------------------------------------------------------------------------

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

    def steered(self, event: VersionsSteered, now: float) -> None:
        """Take who steers which model's versions, once the list has come whole."""
        if event.first:
            self._steered_next = {}
        self._steered_next.update((steering.model, steering) for steering in event.steerings)
        if not event.last or self._steered_next == self._steered:
            return
        self._steered, self._steered_next = self._steered_next, {}
        for route in self.all_routes():
            self._regard_serving(route)

    def forget_empty_routes(self, now: float) -> None:
        """Drop learned routes that nobody has served for ``local_after_s``; until then a request gets 503, not 404.

        Those of a model that was taken out of the configuration need not wait. Those that are configured stay, but
        stand in for others no longer (:meth:`stand_in`).
        """
        before = now - self._policies.freshness.local_after_s
        for route in list(self.all_routes()):
            if route.candidates or route.shard is not None:  # those of shards go with the one that they belong to
                continue
            if route.learned and (route.withdrawn or route.empty_since <= before):
                del self.routes_by[route.protocol][route.key]
                self.generation += 1
            elif route.protocol != HTTP and -inf < route.empty_since <= before:
                route.empty_since = -inf
                self.generation += 1

    # --- membership ----------------------------------------------------------------------------------------------

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
            candidate = known or self._link(endpoint, key, replica, now)
            before = candidate.replica
            moved = (replica.generation, replica.shard_count) != (before.generation, before.shard_count)
            candidate.report(replica, at, from_start=from_start)
            if replica.shard_count != 1:
                candidate.lacks = lacks_alone(record, replica, candidate.shard, self._shards_of(replica.model))
            for route in candidate.routes:
                route.mark(opened=False)  # a number may have changed; judging says whether it opened
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
            insort(route.candidates, candidate, key=_order)
        return candidate

    def _shards_of(self, model: str) -> ShardPolicy:
        policy = self._models.get(model)
        return UNSPLIT if policy is None else policy.shards

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

    def _split(self, route: Route, now: float) -> None:
        """Give a route one route for each shard, where each answers for itself."""
        shards = route.policy.shards
        route.shards = ()
        route.shard_map = None
        if shards.mode is ShardMode.KEYED:
            route.shards = tuple(
                self._new_route(route.model, route.version, route.protocol, now, shard) for shard in range(shards.count)
            )
            route.shard_map = ShardMap(shards.count)

    def _route_for(self, model: str, version: str, protocol: str, now: float) -> Route:
        key = f"{model}@{version}" if version else model
        routes = self.routes_by.setdefault(protocol, {})
        route = routes.get(key)
        if route is None:
            route = routes[key] = self._new_route(model, version, protocol, now)
            self._split(route, now)
            self.generation += 1
        return route

    def _new_route(self, model: str, version: str, protocol: str, now: float, shard: int | None = None) -> Route:
        policy = self._models.get(model)
        learned = policy is None or version != ""
        policy = policy or ModelPolicy(model)
        balancers = self._balancers(policy)
        route = Route(model, version, policy, balancers, learned=learned, now=now, protocol=protocol, shard=shard)
        self._regard_hedging(route, now)
        self._regard_serving(route)
        return route

    def shaped(self, route: Route, shape: str, now: float) -> Route:
        """Return the route for requests of a shape class that would take ``route``."""
        for one in route.shaped:
            if one.shape == shape:
                return one
        picks, picks_busy = (balancer_for(route.policy, self._picker) for _ in range(2))
        if isinstance(route.balancer, Affinity):
            picks = route.balancer.beside(picks)
        return route.shaped_for(shape, (picks, picks_busy), now)

    def _balancers(self, policy: ModelPolicy) -> tuple[Balancer, Balancer]:
        """Return what picks for a route, and what does where only those are left that pushed back."""
        picks, picks_busy = balancer_for(policy, self._picker), balancer_for(policy, self._picker)
        if policy.affinity is not None:
            picks = Affinity(picks, policy.affinity, self.affinity)
        return picks, picks_busy

    def _regard_serving(self, route: Route) -> None:
        """Have a route of all versions go by who may take its requests."""
        if route.version:
            return
        serve = in_force(route.policy.serve, self._steered.get(route.model))
        if serve != route.serve:
            route.serve = serve
            route.shaped = ()
            route.expire()
            self.generation += 1

    def _regard_hedging(self, route: Route, now: float) -> None:
        """Have a route measure what hedging goes by where its requests are hedged, and forget it where not."""
        policies = self._policies
        if not (route.policy.hedge and route.policy.idempotent and route.protocol == HTTP):
            route.hedging = None
        elif route.hedging is None:
            route.hedging = HeadTimes(policies.hedging, policies.latency, self._buckets, now)
        else:
            route.hedging.configure(policies.hedging, policies.latency, self._buckets, now)

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


def _picked_by(policy: ModelPolicy) -> tuple[object, ...]:
    return policy.balancer, policy.key, policy.affinity


def _tally(candidate: Candidate, now: float) -> Tally:
    successes, failures = candidate.breaker.calls.peek(now)
    return Tally(successes, failures, candidate.ejection.active or candidate.breaker_open)


def _order(candidate: Candidate) -> tuple[str, str, int]:
    return candidate.endpoint.id, candidate.version, candidate.shard
