"""What is known of the fleet, to be asked and to be looked at: the first layer of :class:`router.cluster.Cluster`."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from router import explain as explaining
from router.explain_versions import explained, stand_on, version_rows
from router.model import HTTP
from router.outcomes import Reason
from router.placing import RouteStanding, in_panic
from router.routes import route_key
from router.turns import at_once, in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from router.endpoint import Candidate, Endpoint
    from router.fleet import Fleet
    from router.glance import View
    from router.model import ReplicaKey, StoreMode
    from router.policy import Policies
    from router.protocols import Rng
    from router.routes import Route
    from router.tables import Tables
    from router.turns import Turns


def _all(_route: Route) -> bool:
    return True


class Known:
    """Endpoints, routes and versions as one process of one sidecar sees them. Asking changes nothing."""

    def __init__(self, policies: Policies, fleet: Fleet, tables: Tables, now: float) -> None:
        self.policies = policies
        self._fleet = fleet
        self._tables = tables
        self.generation = fleet.generation
        self._endpoints = MappingProxyType(fleet.endpoints)
        self._swept_at = now

    @property
    def mode(self) -> StoreMode:
        """How far the shared state can be trusted."""
        return self._fleet.mode

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """The endpoints there are, by id; a live view."""
        return self._endpoints

    @property
    def departed(self) -> list[Endpoint]:
        """The endpoints that left since the shell last emptied this list."""
        return self._fleet.departed

    @property
    def differing(self) -> list[Candidate]:
        """The replicas that became inconsistent or consistent again since the shell last emptied this list."""
        return self._fleet.differing

    @property
    def panicked(self) -> list[Route]:
        """The routes that began or ceased to pick who is ejected since the shell last emptied this list."""
        return self._fleet.panicked

    @property
    def failing(self) -> list[tuple[Route, Exception | None]]:
        """Routes whose tables could not be made, and why, or can be again, since the shell last emptied this list."""
        return self._fleet.failing

    @property
    def half_opened(self) -> list[Candidate]:
        """The replicas whose breakers went half open since the shell last emptied this list."""
        return self._fleet.half_opened

    @property
    def default_route(self) -> Route | None:
        """The route of the model that takes requests which name no known one."""
        return self._fleet.default

    def default_route_of(self, protocol: str, model: str | None = None) -> Route | None:
        """Return the same of another protocol than HTTP, or the route of ``model`` that takes its place.

        None where that model's endpoints speak other protocols alone.
        """
        default = self._fleet.default
        if model is None:
            if default is None:
                return None
            model = default.model
        found = self._fleet.stand_in(model, protocol, self._swept_at)
        self.generation = self._fleet.generation
        return found

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models that have a route for HTTP, in order."""
        return tuple(sorted({route.model for route in self._fleet.routes.values()}))

    def route(self, model: str, version: str = "", protocol: str = HTTP) -> Route | None:
        """Return the route of a model, or of one version of it; None where there is none (see :meth:`missing`)."""
        if protocol != HTTP:
            found = self._fleet.find(model, version, protocol, self._swept_at)
            self.generation = self._fleet.generation
            return found
        return self._fleet.routes.get(route_key(model, version))

    def shard_route(self, route: Route, key: bytes) -> Route:
        """Return the route of the shard that has ``key``, where each shard answers for itself; else ``route``."""
        shard_map = route.shard_map
        return route if shard_map is None else route.shards[shard_map.shard_of(key)]

    def shaped_route(self, route: Route, shape: str, now: float) -> Route:
        """Return the route for requests of a shape class, which prefer replicas proven for it; else as ``route``."""
        return self._fleet.shaped(route, shape, now)

    def missing(self, model: str, version: str = "", protocol: str = HTTP) -> Reason:
        """Say why :meth:`route` returned None."""
        routes = self._fleet.routes_by.get(protocol, {})
        return Reason.WRONG_VERSION if version and model in routes else Reason.UNKNOWN_MODEL

    def replica(self, key: ReplicaKey) -> Candidate | None:
        """Return the replica of this name; None where it, or this process under its endpoint's id, is not there."""
        endpoint = self._fleet.endpoints.get(key.endpoint)
        if endpoint is None or endpoint.epoch != key.epoch:
            return None
        return endpoint.candidates.get((key.model, key.version, key.shard))

    def is_held(self, model: str, version: str) -> bool:
        """Return whether an endpoint of any protocol has a version of a model."""
        key = route_key(model, version)
        return any(key in routes and routes[key].candidates for routes in self._fleet.routes_by.values())

    def explain(self, route: Route, now: float, rng: Rng, key: bytes | None = None) -> explaining.Explanation:
        """Show the decision that would be made now, with every term of every candidate; changes nothing.

        ``key`` is that of a request, where the route's balancer goes by one.
        """
        return at_once(self.explain_in_turns(route, now, rng, key))

    def explain_in_turns(
        self, route: Route, now: float, rng: Rng, key: bytes | None = None
    ) -> Turns[explaining.Explanation]:
        """Do the same in turns."""
        if key is not None:
            route = self.shard_route(route, key)
        view = self._tables.view()
        if route.version:
            return explaining.explain(view, route, now, rng, key)
        return explained(view, route, self._of_versions(route), now, rng, key)

    def routes_by_key(self) -> Iterator[Route | None]:
        """Yield every route in order of key, and None where a turn is over.

        Where each shard of a model answers for itself, the routes of those stand in its place.
        """
        for route in in_order(self._fleet.all_routes(), _by_key):
            if route is None:
                yield None
            elif not route.shards and (route.candidates or not self.is_held(route.model, route.version)):
                yield route

    def standings_in_turns(
        self, now: float, wanted: Callable[[Route], bool] = _all, *, versions: bool = True
    ) -> Iterator[RouteStanding | None]:
        """Yield every route that is ``wanted`` in that order, with where each candidate stands; None likewise.

        Without ``versions``, the routes of single ones come with their panic alone: they have the same candidates once
        more.
        """
        view, looked_at = self._tables.view(), None
        default = self._fleet.default
        for route in self.routes_by_key():
            if route is None:
                yield None
            elif wanted(route):
                if looked_at is not (route.whole or route):  # shards of one model look at each other, nobody else does
                    view, looked_at = self._tables.view(), route.whole or route
                is_default = default is not None and route.key == default.key
                yield from self._standing(view, route, now, default=is_default, whole=versions or not route.version)

    def _standing(
        self, view: View, route: Route, now: float, *, default: bool, whole: bool
    ) -> Iterator[RouteStanding | None]:
        if whole:
            of_version = {} if route.serve is None else self._of_versions(route)
            yield (yield from stand_on(view, route, of_version, now, default=default))
        else:
            panic = yield from in_panic(view, route, now)
            yield RouteStanding(route, default, route.balancer.name, panic)

    def routes_in_turns(self, now: float) -> Iterator[explaining.RouteRow | None]:
        """Yield the same as whole rows."""
        for stood in self.standings_in_turns(now):
            if stood is None:
                yield None
            else:
                yield (yield from explaining.route_row(stood, now))

    def routes(self, now: float) -> tuple[explaining.RouteRow, ...]:
        """Return every route with its candidates, their state, weight and share, in order of key."""
        return tuple(row for row in self.routes_in_turns(now) if row is not None)

    def versions(self, model: str, now: float) -> tuple[explaining.VersionRow, ...] | None:
        """Return the versions of a model, newest first, with those that take requests which name none; None: no model.

        Where endpoints of several protocols hold it, those of all of them are counted together.
        """
        return at_once(self.versions_in_turns(model, now))

    def versions_in_turns(self, model: str, now: float) -> Turns[tuple[explaining.VersionRow, ...] | None]:
        """Do the same in turns."""
        found = [routes[model] for routes in self._fleet.routes_by.values() if model in routes]
        if not found:
            return None
        view = self._tables.view()
        for route in found:
            yield from view.look_in_turns(route, now)
        return version_rows(view, found, now)

    def _of_versions(self, route: Route) -> dict[str, Route]:
        """Return the routes of single versions of a route's model."""
        routes = self._fleet.routes_by[route.protocol]
        found = {version: routes.get(f"{route.model}@{version}") for version in {c.version for c in route.candidates}}
        shard = route.shard
        return {
            version: one if shard is None else one.shards[shard] for version, one in found.items() if one is not None
        }


def _by_key(route: Route) -> tuple[str, str, str, int]:
    return route.model, route.version, route.protocol, -1 if route.shard is None else route.shard
