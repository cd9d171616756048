"""The aggregate: what is known of the fleet, and every decision on it.

``apply`` takes events, ``choose`` picks an endpoint, ``done`` learns from how it went. Nothing here blocks, waits or
looks at a clock; a shell calls it from one thread. A choice is O(1): it draws from a table that is made again in
``apply``, at most ten times a second and seldomer where there are many candidates. What takes a replica *out* works at
once all the same: each draw checks ``Candidate.open_until``.
"""

from __future__ import annotations

from math import exp, inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from router import explain as explaining
from router import model
from router.affinity import Affinity
from router.balancers import FitAt
from router.breaker import GuardState
from router.explain_versions import explained, version_rows, versions_row
from router.filters import default_filters
from router.fleet import Fleet
from router.hedging import HedgeDenied, may_hedge
from router.model import (
    HTTP,
    BreakerRule,
    EjectCause,
    EndpointEjected,
    EndpointReturned,
    Event,
    Hint,
    ModelObservation,
    Observation,
    PrefixesSeen,
)
from router.outcomes import ATTEMPT_BLAME, BACK_PRESSURE, BROKEN_OFF, TOO_MUCH, UNANSWERED, AttemptResult, Blame, Reason
from router.pickers import HandPicker
from router.policy import ConcurrencyMode, OnNoCandidate, ServeRule
from router.retry import RetryBudget, RetryVerdict, judge_retry
from router.routes import BACKGROUND, KEPT_RATIO, PROBE, TRIAL, Attempt, NoCandidate, Route, VersionPick
from router.scorers import default_scorers
from router.sketches import ReplicaKey, Row
from router.stats import LEAST_MS, MOST_MS
from router.tables import IDLE_REBUILD_S, REBUILD_S, USED_FOR, Tables
from router.versions import share_at_random, share_by_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from router.affinity import AffinityCounts
    from router.endpoint import Candidate, Endpoint
    from router.model import BreakersHinted, FleetMeasured, LoadReport, LoadsReported, PeerObserved, StoreMode, Tick
    from router.policy import BreakerPolicy, ModelPolicy, Policies
    from router.protocols import Filter, PickerFactory, Rng, Scorer

SLOWER_AT_LEAST: Final[frozenset[AttemptResult]] = frozenset(
    {
        AttemptResult.SERVER_ERROR,
        AttemptResult.HEAD_TIMEOUT,
        AttemptResult.STREAM_IDLE,
        AttemptResult.TRY_TIMEOUT,
        AttemptResult.OUTRUN,
        AttemptResult.CALL_FAILED,
    }
)
"""Results whose duration is a lower bound of the latency: they may raise the EWMA, never lower it.

``CANCELLED`` is none of them: such an attempt is as long as the caller was slow or impatient.
"""

_SUCCESS: Final = AttemptResult.SUCCESS


def no_jitter() -> float:
    """Stand in for a random source where spreading does not matter: always the middle."""
    return 0.5


class Cluster:
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
        self.policies = policies
        self._rng = rng
        self._given_filters = filters
        self._given_scorers = scorers
        self._fleet = fleet = Fleet(policies, models, self._filters(policies), picker, now)
        self.generation = fleet.generation
        self._tables = Tables(fleet, policies, self._scorers(policies), decides=decides)
        self._endpoints = MappingProxyType(fleet.endpoints)
        self._decay = -1 / policies.latency.ewma_decay_s
        self._budget = RetryBudget(policies.retry, now)
        self._calls = self._budget.calls
        self._swept_at = now
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

    # --- what is known -------------------------------------------------------------------------------------------

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

    def differs(self, candidate: Candidate) -> str:
        """Say how a replica differs from most of its version, in words; nothing where it does not."""
        return self._fleet.consistency.differs(candidate)

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
        return self._fleet.routes.get(f"{model}@{version}" if version else model)

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

    def explain(self, route: Route, now: float, rng: Rng, key: bytes | None = None) -> explaining.Explanation:
        """Show the decision that would be made now, with every term of every candidate; changes nothing.

        ``key`` is that of a request, where the route's balancer goes by one.
        """
        if key is not None:
            route = self.shard_route(route, key)
        view = self._tables.view()
        if route.version:
            return explaining.explain(view, route, now, rng, key)
        return explained(view, route, self._of_versions(route), now, rng, key)

    def _of_versions(self, route: Route) -> dict[str, Route]:
        """Return the routes of single versions of a route's model."""
        routes = self._fleet.routes_by[route.protocol]
        found = {version: routes.get(f"{route.model}@{version}") for version in {c.version for c in route.candidates}}
        shard = route.shard
        return {
            version: one if shard is None else one.shards[shard] for version, one in found.items() if one is not None
        }

    def routes(self, now: float) -> tuple[explaining.RouteRow, ...]:
        """Return every route with its candidates, their state, weight and share, in order of key.

        Where each shard of a model answers for itself, the routes of those stand in its place.
        """
        view = self._tables.view()
        default = self._fleet.default
        return tuple(
            self._row(view, route, now, default=default is not None and route.key == default.key)
            for route in sorted(self._fleet.all_routes(), key=_by_key)
            if not route.shards and (route.candidates or not self._served_otherwise(route))
        )

    def _row(self, view: explaining.View, route: Route, now: float, *, default: bool) -> explaining.RouteRow:
        if route.serve is None:
            return explaining.route_row(view, route, now, default=default)
        return versions_row(view, route, self._of_versions(route), now, default=default)

    def versions(self, model: str, now: float) -> tuple[explaining.VersionRow, ...] | None:
        """Return the versions of a model, newest first, with those that take requests which name none; None: no model.

        Where endpoints of several protocols hold it, those of HTTP/1.1 are shown, if any.
        """
        found = [routes[model] for routes in self._fleet.routes_by.values() if model in routes]
        if not found:
            return None
        route = next((route for route in found if route.candidates), found[0])
        return version_rows(self._tables.view(), route, now)

    def is_held(self, model: str, version: str) -> bool:
        """Return whether an endpoint of any protocol has a version of a model."""
        key = f"{model}@{version}" if version else model
        return any(key in routes and routes[key].candidates for routes in self._fleet.routes_by.values())

    def _served_otherwise(self, route: Route) -> bool:
        """Return whether another protocol's endpoints serve what this route is for."""
        key = f"{route.model}@{route.version}" if route.version else route.model
        return any(of_protocol[key].candidates for of_protocol in self._fleet.routes_by.values() if key in of_protocol)

    # --- choosing ------------------------------------------------------------------------------------------------

    def choose(
        self, route: Route, now: float, rng: Rng, tried: Endpoint | None = None, key: bytes | None = None
    ) -> Attempt | NoCandidate:
        """Pick an endpoint and count the attempt as in flight there.

        By default four are drawn by weight. The first is taken, unless another's expected wait (EWMA of its latency
        x attempts in flight with this one) is lower by more than a tenth: then the one with the lowest. Only a route
        that goes by that has a ``table``. All others ask their balancer, to which a ``key`` may matter. ``tried`` (on a
        retry) is left out.
        """
        if tried is None:
            calls = self._calls
            if now >= calls.ends:
                calls.turn(now)
            calls.yes += 1
            if now < route.due:
                table = route.table
                if table is not None:  # HandPicker.draw and best_of written out: this is every request
                    size, hands = table
                    best, second, third, fourth = hands[int(rng() * size)]
                    endpoint = best.endpoint
                    least = (best.latency.ewma_ms or best.prior_ms) * (endpoint.in_flight + 1) * KEPT_RATIO
                    if second is not best:
                        other = second.endpoint
                        wait = (second.latency.ewma_ms or second.prior_ms) * (other.in_flight + 1)
                        if wait < least:
                            best = second
                            endpoint = other
                            least = wait
                    if third is not best:
                        other = third.endpoint
                        wait = (third.latency.ewma_ms or third.prior_ms) * (other.in_flight + 1)
                        if wait < least:
                            best = third
                            endpoint = other
                            least = wait
                    if fourth is not best:
                        other = fourth.endpoint
                        if (fourth.latency.ewma_ms or fourth.prior_ms) * (other.in_flight + 1) < least:
                            best = fourth
                            endpoint = other
                    if now < best.open_until and endpoint.in_flight < best.most:
                        endpoint.in_flight += 1
                        route.used = USED_FOR
                        return Attempt(best, route, now)
                else:
                    picked = route.balancer.pick(FitAt(now, None), rng, key)
                    if picked is not None:
                        route.used = USED_FOR
                        return self._start(cast("Candidate", picked), route, now)
        return self._choose_with_care(route, now, rng, tried, key)

    def _choose_with_care(
        self, route: Route, now: float, rng: Rng, tried: Endpoint | None, key: bytes | None
    ) -> Attempt | NoCandidate:
        """Choose where something is due: a table, a probe, a trial, or nobody is left."""
        if route.queued is not None and tried is None:
            return route.queued
        route.used = USED_FOR
        tables = self._tables
        tables.catch_up(route, now)
        picked = self._due_probe(route, now, None) if tried is None else None
        if picked is None:
            picked = _pick(route, now, rng, tried, key)
        if picked is None and route.dirty:
            tables.rebuild(route, now)
            picked = _pick(route, now, rng, tried, key)
        if picked is None:
            picked = self._due_probe(route, now, tried)
        if picked is None and tried is None and self._let_slow_ones_in(route, now):
            tables.rebuild(route, now)
            picked = _pick(route, now, rng, tried, key)
        if picked is None:
            if route.base is not None:  # those that are proven for the request's shape class are full, or were tried
                return self._choose_with_care(route.base, now, rng, tried, key)
            return self._nobody(route, now, tried)
        attempt = self._start(picked, route, now)
        tables.plan_due(route)
        return attempt

    def hold_back(self, route: Route, none: NoCandidate | None) -> None:
        """Have first attempts on a route told ``none`` from now on, because others wait for it; None: no longer."""
        for one in (route, *route.shaped):
            one.queued = none
            one.due = -inf  # the next choice looks closer

    def let_in(self, route: Route, *, counted: bool) -> None:
        """Let the next choice on a route through: it is that of a request whose turn it is.

        ``counted``: it has been counted as a request when it was told to wait, and will be again.
        """
        for one in (route, *route.shaped):
            one.queued = None
        if counted and self._calls.yes:
            self._calls.yes -= 1

    def routable(self, now: float, protocol: str = "") -> bool:
        """Return whether a request for any model would find a replica now, a due probe included; begins nothing.

        A replica that a request would have loaded counts too.

        ``protocol``: of that protocol only.
        """
        return any(
            self.route_is_routable(route, now)
            for route in self._fleet.all_routes()
            if not protocol or route.protocol == protocol
        )

    def route_is_routable(self, route: Route, now: float) -> bool:
        """Return the same of one route."""
        self._tables.catch_up(route, now)
        if any(now < candidate.fit_until and route.takes(candidate) for candidate in route.candidates):
            return True
        if (
            route.protocol == HTTP
            and route.policy.on_no_candidate is OnNoCandidate.LAZY
            and any(candidate.reason is Reason.NOT_WARM for candidate in route.candidates)
        ):
            return True  # it takes a request to have it loaded
        return self._due_probe(route, now, None) is not None

    def _has_somebody(self, route: Route, now: float) -> bool:
        """Return what :meth:`route_is_routable` does, without looking at all where the table has somebody.

        Where each shard answers for itself, all of them must have somebody: whose key it is shows only later.
        """
        if route.shards:
            return all(self._has_somebody(shard, now) for shard in route.shards)
        self._tables.catch_up(route, now)
        for candidate in route.drawn:
            if now < candidate.open_until:
                return True
        return self.route_is_routable(route, now)

    def version_of(self, route: Route, now: float, rng: Rng, key: bytes | None = None) -> VersionPick:
        """Say which version of a split takes a request, by its ``key``, or at random where it has none.

        One without a replica that may be picked takes none: its share goes to the others, by their weights. Where none
        has one, the route itself is returned, and nobody will be found on it.
        """
        serve = route.serve
        if serve is None or serve.rule is not ServeRule.SPLIT:
            return VersionPick(route, "", moved=False)
        routes = self._fleet.routes_by[route.protocol]
        shares, moved = serve.shares, False
        while shares:
            index = share_at_random(shares, rng()) if key is None else share_by_key(shares, key)
            if index < 0:
                break
            version = shares[index].version
            found = routes.get(f"{route.model}@{version}")
            if found is not None and self._has_somebody(found, now):
                return VersionPick(found, version, moved)
            shares, moved = shares[:index] + shares[index + 1 :], True
        return VersionPick(route, "", moved)

    def _let_slow_ones_in(self, route: Route, now: float) -> bool:
        """Close the breakers that opened for a surge where nobody else is left; True where there are any."""
        slow = [
            candidate
            for candidate in route.waiting
            if not candidate.endpoint.quarantine.active and candidate.breaker.needed(now)
        ]
        for candidate in slow:
            self._fleet.judge(candidate.endpoint, now)
        return bool(slow)

    def _due_probe(self, route: Route, now: float, tried: Endpoint | None) -> Candidate | None:
        """Return a candidate whose endpoint's quarantine is over and whom nobody probes.

        Probes go before draws, so an endpoint is back soon after it answers again; a retry probes only where nobody
        else is left, so that one request does not meet two dead endpoints.
        """
        alone = not route.drawn and not route.busy
        for candidate in route.waiting:
            endpoint = candidate.endpoint
            if endpoint is not tried and not endpoint.full and endpoint.quarantine.probe_at(alone=alone) <= now:
                self._fleet.look(candidate, now)
                if candidate.reason is Reason.QUARANTINED:
                    return candidate
        return None

    def _start(self, candidate: Candidate, route: Route, now: float) -> Attempt:
        endpoint = candidate.endpoint
        endpoint.in_flight += 1
        if not candidate.guarded:
            return Attempt(candidate, route, now)
        permits = 0
        if endpoint.quarantine.active:
            endpoint.quarantine.take(now)
            permits = PROBE
        if candidate.breaker.take():
            permits |= TRIAL
        self._fleet.judge(endpoint, now)
        return Attempt(candidate, route, now, permits)

    def begin_background(self, candidate: Candidate, route: Route, now: float) -> Attempt | None:
        """Count work of our own as in flight at a candidate, whatever its state; None where it is at its limit.

        See :attr:`Attempt.background` for what is learned of it: nothing. Give it back to :meth:`done`.
        """
        endpoint = candidate.endpoint
        if endpoint.full or endpoint.gone:
            return None
        endpoint.in_flight += 1
        return Attempt(candidate, route, now, BACKGROUND)

    def choose_background(self, route: Route, now: float, rng: Rng, key: bytes | None = None) -> Attempt | None:
        """Pick an endpoint for work of our own, as for a request, and begin it there; None where nobody has room.

        Callers come first: no probe or trial is made with it, nobody that pushed back is asked, and it never takes an
        endpoint's last free place.
        """
        self._tables.catch_up(route, now)
        picked = route.balancer.pick(FitAt(now, None, spare=1), rng, key)
        if picked is None:
            return None
        route.used = USED_FOR
        picked.endpoint.in_flight += 1
        return Attempt(cast("Candidate", picked), route, now, BACKGROUND)

    def has_others(self, attempt: Attempt, now: float) -> bool:
        """Return whether anybody but the endpoint of ``attempt`` could be picked on its route now."""
        endpoint = attempt.endpoint
        return any(
            now < other.fit_until and other.endpoint is not endpoint and not other.endpoint.full
            for other in attempt.route.candidates
        )

    def choose_again(
        self, attempt: Attempt, now: float, rng: Rng, tried: Endpoint | None = None, key: bytes | None = None
    ) -> Attempt | NoCandidate:
        """Take a choice back and make another: the endpoint's pool has no connection for it and may make none.

        It is passed over from now on, until something ends there or a moment has passed: so this may be asked again
        and again at one moment, and comes to an end.
        """
        self.done(attempt, AttemptResult.CANCELLED, now)
        attempt.endpoint.found_full(now)
        return self._choose_with_care(attempt.route, now, rng, tried, key)

    def _nobody(self, route: Route, now: float, tried: Endpoint | None) -> NoCandidate:
        full = [
            candidate.endpoint
            for candidate in route.candidates
            if candidate.endpoint.full
            and candidate.endpoint is not tried
            and now < candidate.fit_until
            and route.takes(candidate)
        ]
        if full:
            return explaining.at_limit(route.key, full, self.policies)
        if tried is not None and any(
            now < candidate.fit_until for candidate in route.candidates if candidate.endpoint is tried
        ):
            return explaining.only_tried(tried.id, self.policies.retry.backoff_max_ms / 1000)
        if route.none is None or now - route.none_at >= REBUILD_S:
            _, out = self._tables.view().look(route, now)
            route.none = explaining.nobody(route, out, self.policies.freshness, now)
            route.none_at = now
        return route.none

    # --- learning ------------------------------------------------------------------------------------------------

    def done(
        self, attempt: Attempt, result: AttemptResult, now: float, retry_after_s: float | None = None
    ) -> tuple[Event, ...]:
        """Learn how an attempt ended and release it; the second call for one attempt does nothing.

        ``retry_after_s`` is what an answer that was BUSY or NOT_READY named. Returns events for sibling processes.
        """
        if attempt.ended:
            return ()
        if attempt.permits & BACKGROUND:
            attempt.ended = True
            attempt.endpoint.in_flight -= 1
            return ()
        candidate = attempt.candidate
        if result is _SUCCESS and not candidate.guarded:
            return self.learn(candidate, (self.succeeded(attempt, now),), now)
        attempt.ended = True
        attempt.endpoint.in_flight -= 1
        return self._done_with_care(attempt, result, now, retry_after_s)

    def succeeded(self, attempt: Attempt, now: float) -> float:
        """Release an attempt that succeeded on a candidate that is not ``guarded``; return what it took, seconds.

        The cheap half of :meth:`done` in the usual case: what choices go by is brought up to date at once, the rest
        is to be told to :meth:`learn`, for many attempts together and within a tick.
        """
        attempt.ended = True
        attempt.endpoint.in_flight -= 1
        seconds = now - attempt.started
        ms = seconds * 1000.0
        if not LEAST_MS <= ms <= MOST_MS:
            ms = min(max(ms, LEAST_MS), MOST_MS)
        latency = attempt.candidate.latency
        if latency.peaks:
            latency.average(ms, now)
        else:  # written out: this is every request
            latency.ewma_ms = ms + (latency.ewma_ms - ms) * exp((now - latency.ewma_at) * self._decay)
            latency.ewma_at = now
        return seconds

    def learn(self, candidate: Candidate, seconds: Sequence[float], now: float) -> tuple[Event, ...]:
        """Learn what attempts took that :meth:`succeeded`, in seconds: for quantiles and for the breaker.

        Returns events for sibling processes: they may all have been much slower than usual.
        """
        limiter = candidate.endpoint.limiter
        if limiter is not None:
            limiter.take((candidate.model, candidate.version), seconds)
        slow = candidate.latency.count(seconds)
        if not slow:
            candidate.breaker.calls.add(len(seconds), 0, now)
            return ()
        candidate.untold.slow += slow
        return self._count(candidate, now, len(seconds), 0, 0, slow)

    def _count(
        self, candidate: Candidate, now: float, successes: int, failures: int, unanswered: int, slow: int
    ) -> tuple[Event, ...]:
        """Count calls with a candidate's breaker; return events for siblings where that opened it."""

        def spared() -> bool:
            return spares(candidate, self.policies.breaker, now)

        if candidate.gone or not candidate.breaker.count(successes, failures, now, unanswered, slow, spared):
            return ()
        self._fleet.judge(candidate.endpoint, now)
        return (_switched(candidate, now),)

    def opened(self, attempt: Attempt, now: float) -> tuple[Event, ...]:
        """Learn that an attempt became a tunnel: that is its success, but it is in flight until :meth:`closed`."""
        if attempt.ended:
            return ()
        attempt.ended = True
        return self._done_with_care(attempt, AttemptResult.SUCCESS, now, None)

    def closed(self, attempt: Attempt) -> None:
        """Release an attempt that was :meth:`opened`, once. How a tunnel ends says nothing of its endpoint."""
        attempt.endpoint.in_flight -= 1

    def _done_with_care(
        self, attempt: Attempt, result: AttemptResult, now: float, retry_after_s: float | None
    ) -> tuple[Event, ...]:
        candidate, endpoint = attempt.candidate, attempt.endpoint
        ms = (now - attempt.started) * 1000
        blame = ATTEMPT_BLAME[result]
        if result is _SUCCESS:
            candidate.latency.sample(ms, now)
        elif result in SLOWER_AT_LEAST:
            candidate.latency.at_least(ms, now)
        slow = blame is not Blame.NEUTRAL and candidate.latency.is_slow(ms)
        unanswered = result in UNANSWERED
        untold = candidate.untold
        untold.failures += blame is Blame.FAILURE
        untold.unanswered += unanswered
        untold.slow += slow
        untold.others += result is AttemptResult.CLIENT_ERROR
        if endpoint.gone:
            return ()
        if endpoint.limiter is not None:
            if result is _SUCCESS:
                endpoint.limiter.take((candidate.model, candidate.version), (ms / 1000,))
            elif result in TOO_MUCH:
                endpoint.limiter.dropped()
        became_busy = result in BACK_PRESSURE and endpoint.pushed_back(now + self._busy_s(retry_after_s), now)
        if result is AttemptResult.NOT_READY:
            became_busy = candidate.said_not_ready(now + self._busy_s(retry_after_s), now)
        events: list[Event] = []
        began, permits = attempt.began, attempt.permits
        alone = result in BROKEN_OFF and not any(
            now < other.open_until and other.endpoint is not endpoint and attempt.route.takes(other)
            for other in attempt.route.candidates
        )
        if endpoint.quarantine.record(result, now, self._rng, started=began, probe=bool(permits & PROBE), alone=alone):
            events.append(_quarantined(endpoint, now))

        def spared() -> bool:
            return spares(candidate, self.policies.breaker, now)

        if not candidate.gone and candidate.breaker.record(
            blame,
            now,
            started=began,
            trial=bool(permits & TRIAL),
            unanswered=unanswered,
            slow=slow,
            spared=spared,
        ):
            events.append(_switched(candidate, now))
        if events or permits or became_busy:
            self._fleet.judge(endpoint, now)
        return tuple(events)

    def _busy_s(self, retry_after_s: float | None) -> float:
        policy = self.policies.back_pressure
        if retry_after_s is None:
            return policy.default_s
        return min(retry_after_s, policy.max_s) if retry_after_s > 0 else 0.0

    def retry(
        self,
        attempt: Attempt,
        result: AttemptResult,
        *,
        answered: bool,
        replayable: bool,
        tries: int,
        now: float,
        rng: Rng,
        left_s: float = inf,
    ) -> RetryVerdict:
        """Decide whether a request is tried once more after ``tries`` attempts, the last of which ended in ``result``.

        ``answered``: a byte of an answer has gone downstream. ``replayable``: all that was sent can be sent again.
        An allowed retry is taken out of the budget here.
        """
        return judge_retry(
            self.policies.retry,
            self._budget,
            result,
            answered=answered,
            idempotent=attempt.route.policy.idempotent,
            replayable=replayable,
            tries=tries,
            now=now,
            rng=rng,
            left_s=left_s,
        )

    def hedge(
        self,
        attempt: Attempt,
        *,
        answered: bool,
        replayable: bool,
        tries: int,
        left_s: float,
        now: float,
        rng: Rng,
        key: bytes | None = None,
    ) -> Attempt | HedgeDenied:
        """Pick another endpoint to ask while ``attempt`` is waited for, count the attempt there, or say why not.

        Only one that would be picked anyway: no probe is made with it, nor one that pushed back asked. It never takes
        an endpoint's last free place: that is for first tries.
        """
        route = attempt.route
        denied = may_hedge(
            answered=answered,
            idempotent=route.policy.idempotent,
            replayable=replayable,
            tries=tries,
            attempts=self.policies.retry.attempts,
            left_s=left_s,
        )
        if denied is not None:
            return denied
        if not self._budget.has_room(now):
            return HedgeDenied.BUDGET
        self._tables.catch_up(route, now)
        picked = route.balancer.pick(FitAt(now, attempt.endpoint, spare=1), rng, key)
        if picked is None:
            return HedgeDenied.NOBODY
        self._budget.withdraw(now)
        hedge = self._start(cast("Candidate", picked), route, now)
        self._tables.plan_due(route)
        return hedge

    def waited(self, route: Route, seconds: float) -> None:
        """Learn how long a request on a route that hedges waited for its response head."""
        if route.hedging is not None:
            route.hedging.sample(seconds)

    def reported(self, endpoint: Endpoint, report: LoadReport, now: float) -> None:
        """Take what an endpoint said of its load in an answer. It holds for freshness.ttl_s, here and at siblings."""
        endpoint.report_unsent = True
        self._take_report(endpoint, report, now)

    @staticmethod
    def _take_report(endpoint: Endpoint, report: LoadReport, at: float) -> None:
        if endpoint.reported(report, at):
            _mark(endpoint)

    def observe(self, now: float) -> tuple[Observation, ...]:
        """Return what this process saw since the last call, for sibling processes, in order of endpoint id.

        An endpoint with attempts in flight is always among them, and once more when it has none left.
        """
        out: list[Observation] = []
        for id_, endpoint in sorted(self._fleet.endpoints.items()):
            seen: list[ModelObservation] = []
            for candidate in endpoint.candidates.values():
                told = _observed(candidate, now)
                if told is not None:
                    seen.append(told)
            in_flight = endpoint.in_flight
            report = endpoint.report if endpoint.report_unsent else None
            if seen or in_flight or endpoint.reported_in_flight or report is not None:
                out.append(Observation(id_, in_flight, tuple(seen), report))
                endpoint.report_unsent = False
                endpoint.reported_in_flight = in_flight
        return tuple(out)

    def take_prefixes(self) -> list[PrefixesSeen]:
        """Return where prompts' beginnings were sent since the last call, for sibling processes, a route at a time."""
        out: list[PrefixesSeen] = []
        for route in self._fleet.affine_routes():
            balancer = route.balancer
            if isinstance(balancer, Affinity) and (seen := balancer.take_untold()):
                out.append(PrefixesSeen(route.model, route.version, route.protocol, route.shard, seen))
        return out

    @property
    def affinity(self) -> AffinityCounts:
        """How often prompts' beginnings decided, in all."""
        return self._fleet.affinity

    def guards(self) -> tuple[EndpointEjected, ...]:
        """Return every ejection in force here, those included that only wait for a probe or a trial to pass."""
        out: list[EndpointEjected] = []
        for endpoint in self._fleet.endpoints.values():
            quarantine = endpoint.quarantine
            if quarantine.active:
                out.append(
                    EndpointEjected(
                        endpoint.id, EjectCause.QUARANTINE, quarantine.until, quarantine.level, quarantine.since
                    )
                )
            out += [
                _opened(candidate, candidate.breaker.since)
                for candidate in endpoint.candidates.values()
                if candidate.breaker.state is not GuardState.CLOSED
            ]
            out += [
                _ejected(candidate, candidate.ejection.since)
                for candidate in endpoint.candidates.values()
                if candidate.ejection.active
            ]
        return tuple(out)

    # --- events --------------------------------------------------------------------------------------------------

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

            def spared(candidate: Candidate = candidate) -> bool:
                return spares(candidate, self.policies.breaker, now)

            if candidate.breaker.hinted(event.at, now, spared):
                self._fleet.judge(candidate.endpoint, now)
                out.append(_switched(candidate, now))
        return tuple(out)

    def open_breakers(self, now: float) -> tuple[Hint, ...]:
        """Return the replicas whose breakers are open now, the last one first: what other sidecars are told."""
        found: list[tuple[float, Hint]] = []
        for endpoint in self._fleet.endpoints.values():
            for one in endpoint.candidates.values():
                breaker = one.breaker
                if breaker.state is GuardState.OPEN and now < breaker.until:
                    hint = Hint(endpoint.id, endpoint.epoch, one.model, one.version, one.shard)
                    found.append((breaker.since, hint))
        found.sort(key=_since, reverse=True)
        return tuple(hint for _, hint in found)

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
                out += self._count(candidate, now, seen.successes, seen.failures, seen.unanswered, seen.slow)
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

    def replica(self, key: ReplicaKey) -> Candidate | None:
        """Return the replica of this name; None where it, or this process under its endpoint's id, is not there."""
        endpoint = self._fleet.endpoints.get(key.endpoint)
        if endpoint is None or endpoint.epoch != key.epoch:
            return None
        return endpoint.candidates.get((key.model, key.version, key.shard))

    def measured(self) -> Iterator[Row]:
        """Yield what was measured at each replica: what other sidecars are to be told of."""
        for endpoint in self._fleet.endpoints.values():
            for candidate in endpoint.candidates.values():
                latency = candidate.latency
                if latency.counts:
                    of = (candidate.model, candidate.version, candidate.shard)
                    yield Row(ReplicaKey(endpoint.id, endpoint.epoch, *of), latency.changes, latency.counts)

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
                    _mark(endpoint)
            self._fleet.forget_empty_routes(now)
        self._tables.rebuild_due(now)
        if not self._fleet.ejected:
            return ()
        events = tuple(_ejected(candidate, now) for candidate in self._fleet.ejected if candidate.ejection.active)
        self._fleet.ejected.clear()
        return events


def _mark(endpoint: Endpoint) -> None:
    """Have the tables of an endpoint's routes follow what changed of it."""
    for candidate in endpoint.candidates.values():
        for route in candidate.routes:
            route.mark(opened=False)


def _pick(route: Route, now: float, rng: Rng, tried: Endpoint | None, key: bytes | None) -> Candidate | None:
    """Have the balancer pick where some may be out; among those that pushed back where nobody else is left."""
    picked = route.balancer.pick(FitAt(now, tried, panic=route.panic), rng, key)
    if picked is None and route.busy:
        picked = route.busy_balancer.pick(FitAt(now, tried, busy=True), rng, key)
    return cast("Candidate | None", picked)  # a route's balancers pick of its candidates


def _since(row: tuple[float, Hint]) -> float:
    return row[0]


def _by_key(route: Route) -> tuple[str, str, str, int]:
    return route.model, route.version, route.protocol, -1 if route.shard is None else route.shard


def _observed(candidate: Candidate, now: float) -> ModelObservation | None:
    """Take what is to be told of a candidate since the last time, None where that is nothing."""
    latency = candidate.latency
    buckets = () if latency.idle else latency.take_unsent(now)
    successes = sum(count for _, count in buckets)
    untold = candidate.untold
    if not successes and not untold.failures and not untold.others:
        return None
    told = ModelObservation(
        candidate.model,
        candidate.version,
        latency.ewma_ms or None,
        buckets,
        successes,
        untold.failures,
        untold.unanswered,
        untold.slow,
        untold.others,
        candidate.shard,
    )
    untold.clear()
    return told


def _quarantined(endpoint: Endpoint, now: float) -> Event:
    """Return the event for siblings after an endpoint's quarantine began, went on or ended."""
    quarantine = endpoint.quarantine
    if quarantine.active:
        return EndpointEjected(endpoint.id, EjectCause.QUARANTINE, quarantine.until, quarantine.level, now)
    return EndpointReturned(endpoint.id, EjectCause.QUARANTINE, now)


def _switched(candidate: Candidate, now: float) -> Event:
    """Return the event for siblings after a breaker opened or closed."""
    breaker = candidate.breaker
    if breaker.state is GuardState.OPEN:
        if breaker.evidence is not None:
            candidate.latency.settle(now)
            breaker.evidence = candidate.measured(breaker.evidence)
        return _opened(candidate, now)
    of = (candidate.model, candidate.version, candidate.shard)
    return EndpointReturned(candidate.endpoint.id, EjectCause.BREAKER, now, *of)


def _opened(candidate: Candidate, at: float) -> EndpointEjected:
    breaker = candidate.breaker
    return EndpointEjected(
        candidate.endpoint.id,
        EjectCause.BREAKER,
        breaker.until,
        1,
        at,
        candidate.model,
        candidate.version,
        breaker.rule,
        breaker.evidence,
        candidate.shard,
    )


def _ejected(candidate: Candidate, at: float) -> EndpointEjected:
    ejection = candidate.ejection
    return EndpointEjected(
        candidate.endpoint.id,
        EjectCause.OUTLIER,
        ejection.until,
        ejection.level,
        at,
        candidate.model,
        candidate.version,
        None,
        ejection.evidence,
        candidate.shard,
    )


def spares(candidate: Candidate, policy: BreakerPolicy, now: float) -> bool:
    """Return whether a replica that is merely slow can be done without.

    Enough others of its version are left that are not becoming slow as well: what is slow with most of them has another
    cause than the replica.
    """
    out, left = 1, 0
    for other in candidate.routes[-1].candidates:
        if other is candidate:
            continue
        if other.breaker.state is not GuardState.CLOSED and other.breaker.rule is BreakerRule.SURGE:
            out += 1
        elif now < other.fit_until:
            seen = other.breaker.look(now)
            if seen.calls >= policy.minimum_calls / 4 and seen.slow >= policy.surge_ratio * seen.calls / 2:
                out += 1
            else:
                left += 1
    return left > 0 and out <= policy.surge_most_ratio * (out + left)
