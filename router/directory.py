"""Which routes there are, and what their requests go by: the first layer of :class:`router.fleet.Fleet`."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from router.affinity import Affinity, AffinityCounts
from router.balancers import balancer_for
from router.groups import ShardMap
from router.hedging import HeadTimes
from router.model import HTTP
from router.policy import UNSPLIT, ModelPolicy, ShardMode
from router.rollout import in_force
from router.routes import Route, route_key
from router.stats import LogBuckets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from router.model import VersionsSteered, VersionSteering
    from router.policy import Policies, ShardPolicy
    from router.protocols import Balancer, PickerFactory


class Directory:
    """Routes by protocol and key.

    Models in the configuration always have a route; one that was learned from endpoints goes a while after the last of
    them.
    """

    def __init__(self, policies: Policies, models: Iterable[ModelPolicy], picker: PickerFactory) -> None:
        self._picker = picker
        self.routes: dict[str, Route] = {}  # of HTTP
        self.routes_by: dict[str, dict[str, Route]] = {HTTP: self.routes}
        self.default: Route | None = None
        self.generation = 0
        self.affinity = AffinityCounts()
        self._policies = policies
        self._buckets = LogBuckets(policies.latency.relative_error)
        self._models = {model.name: model for model in models}
        self._steered: dict[str, VersionSteering] = {}
        self._steered_next: dict[str, VersionSteering] = {}  # as far as a new list of them has come

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
        found = self.routes_by.get(protocol, {}).get(route_key(model, version))
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

    def shaped(self, route: Route, shape: str, now: float) -> Route:
        """Return the route for requests of a shape class that would take ``route``."""
        for one in route.shaped:
            if one.shape == shape:
                return one
        picks, picks_busy = (balancer_for(route.policy, self._picker) for _ in range(2))
        if isinstance(route.balancer, Affinity):
            picks = route.balancer.beside(picks)
        return route.shaped_for(shape, (picks, picks_busy), now)

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

    def _make_routes(self, now: float) -> None:
        """Have a route for each model of the configuration, and find the default one."""
        self.default = None
        for model in self._models.values():
            route = self._route_for(model.name, "", HTTP, now)
            if model.default and self.default is None:
                self.default = route

    def _configure_routes(self, before: Collection[str], now: float) -> None:
        """Have routes go by what configuration says of their models now; ``before`` are those that it named."""
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

    def _route_for(self, model: str, version: str, protocol: str, now: float) -> Route:
        key = route_key(model, version)
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
            for shard in route.shards:
                shard.whole = route

    def _shards_of(self, model: str) -> ShardPolicy:
        policy = self._models.get(model)
        return UNSPLIT if policy is None else policy.shards

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


def _picked_by(policy: ModelPolicy) -> tuple[object, ...]:
    return policy.balancer, policy.key, policy.affinity
