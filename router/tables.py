"""When a route's table is made again, and how: look at every candidate, weigh who may be picked, arrange them.

Making a table is O(candidates), so it is bounded twice: how often one route's is made, and how much one Tick does.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, cast

from router.endpoint import IN_ORDER
from router.glance import EJECTED, View
from router.outcomes import Reason
from router.outlier import PANIC_OVERLOOKS, panics
from router.routes import UNMEASURED_MS, proven_for, weigh
from router.stats import median
from router.versions import is_left_out, served_version, whole_versions

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from router.endpoint import Candidate
    from router.fleet import Fleet
    from router.policy import Policies, ServePolicy
    from router.protocols import Balancer, Scorer
    from router.routes import Route

_Hand = tuple["Candidate", "Candidate", "Candidate", "Candidate"]

REBUILD_S: Final = 0.1
"""A table is made again at most this often,"""
REBUILD_PER_CANDIDATE_S: Final = 0.001
"""and at most once per this much and candidate, which bounds the cost to a small share of one core,"""
REBUILD_MOST_S: Final = 2.0
"""but no seldomer than this while the route is used."""
EARLY_S: Final = 1.0
"""For a candidate that came back it is made at once all the same, once in so long."""
IDLE_REBUILD_S: Final = 1.0
"""A table older than this is made again by the choice that meets it, where no Tick came."""
USED_FOR: Final = 10
"""A route that was used is kept current by this many Ticks' rebuilding; then its table waits for the next choice."""
TICK_CANDIDATES: Final = 2000
"""Candidates weighed per Tick; the routes left over come first at the next one."""


class Tables:
    """Makes the tables of all routes of a fleet."""

    def __init__(
        self, fleet: Fleet, policies: Policies, scorers: Sequence[tuple[Scorer, float]], *, decides: bool
    ) -> None:
        self._decides = decides
        self._fleet = fleet
        self._policies = policies
        self._scorers = tuple(scorers)

    def configure(self, policies: Policies, scorers: Sequence[tuple[Scorer, float]]) -> None:
        """Go by other policies from the next table on."""
        self._policies = policies
        self._scorers = tuple(scorers)

    def view(self) -> View:
        """Return what an explanation reads."""
        fleet = self._fleet
        return View(self._policies, fleet.mode, self._scorers, fleet.verdict, fleet.ages.age_s, self._decides)

    def rebuild_due(self, now: float) -> None:
        """Make the tables that are used and due, oldest first, within one Tick's share of work."""
        due = [route for route in self._fleet.all_routes() if route.used and now >= route.built_at + route.interval_s]
        due.sort(key=_built_at)
        room = TICK_CANDIDATES
        for route in due:
            if room <= 0:
                break
            room -= len(route.candidates) + 1
            route.used -= 1
            self.rebuild(route, now)

    def catch_up(self, route: Route, now: float) -> None:
        """Do what was due on a route by ``now``, for a choice that cannot wait for a Tick."""
        self._fleet.watch_silence(now)
        if now >= route.rebuild_at:
            self.rebuild(route, now)
        for candidate in route.waiting:
            self._fleet.advance(candidate, now)
        self.plan_due(route)

    def rebuild(self, route: Route, now: float) -> None:
        """Make a route's table from what is known now.

        Where that fails (a scorer of somebody's own, a defect), the route goes on with the table that it had, and it is
        tried again seldom: the other routes, and the rest of a Tick, have nothing to do with it.
        """
        try:
            self._make(route, now)
        except Exception as error:  # noqa: BLE001
            route.dirty = False
            route.built_at = now
            route.interval_s = REBUILD_MOST_S
            route.rebuild_at = now + REBUILD_MOST_S
            self.plan_due(route)
            if not route.failing:
                self._fleet.failing.append((route, error))
            route.failing = True
        else:
            if route.failing:
                self._fleet.failing.append((route, None))
            route.failing = False

    def _make(self, route: Route, now: float) -> None:
        open_: list[Candidate] = []
        busy: list[Candidate] = []
        waiting: list[Candidate] = []
        busy_until = inf
        ejected: list[Candidate] = []
        self._fleet.judge_outliers(route.base or route, now)
        route.candidates.sort(key=IN_ORDER)
        for candidate in route.candidates:
            endpoint = candidate.endpoint
            candidate.latency.settle_seldom(now)
            if candidate.ejection.active:
                candidate.ejection.advance(now)
            if endpoint.cap != endpoint.limit and now >= endpoint.capped_until:
                endpoint.uncap()
            if not candidate.guarded or not self._fleet.advance(candidate, now):
                self._fleet.look(candidate, now)
            if candidate.reason is None:
                open_.append(candidate)
            elif candidate.reason is Reason.BUSY:
                busy.append(candidate)
                busy_until = min(busy_until, candidate.busy_until)
            elif candidate.entry and (
                candidate.reason is Reason.QUARANTINED
                or candidate.reason is Reason.BREAKER_OPEN
                or candidate.reason is Reason.OUTLIER
            ):
                waiting.append(candidate)
            if candidate.entry and candidate.reason in PANIC_OVERLOOKS:
                ejected.append(candidate)
        serve = route.serve
        if serve is not None:
            served, probed = _served(route, serve, [*open_, *busy], [*waiting, *ejected], now)
            open_ = [one for one in open_ if not is_left_out(serve, one.version, served, ejected=False)]
            busy = [one for one in busy if not is_left_out(serve, one.version, served, ejected=False)]
            waiting = [one for one in waiting if _is_probed(one, serve, served, probed)]
            ejected = [one for one in ejected if _is_probed(one, serve, served, probed)]
        if route.shards:  # one of those is asked, not this one
            open_, busy, waiting, ejected = [], [], [], []
        if route.hedging is not None:
            route.hedging.settle(now)
        panic = panics(len(open_), len(ejected), self._policies.outlier)
        if panic is not route.panic:
            route.panic = panic
            if route.base is None:  # else that one says so
                self._fleet.panicked.append(route)
        if route.panic:
            open_ = open_ + ejected
        if route.shape:
            open_ = [one for one in open_ if proven_for(one.replica, route.shape)] or open_
        route.drawn = open_
        route.busy = busy
        route.waiting = waiting
        self._arrange(route.balancer, open_)
        self._arrange(route.busy_balancer, busy)
        table = route.balancer.table
        route.table = None if table is None else (table.size, cast("list[_Hand]", table.hands))
        route.dirty = False
        route.none = None
        if route.early_at == inf:
            route.early_at = now + EARLY_S
        route.built_at = now
        route.interval_s = min(max(REBUILD_S, REBUILD_PER_CANDIDATE_S * len(route.candidates)), REBUILD_MOST_S)
        at_latest = now + max(IDLE_REBUILD_S, 2 * route.interval_s)
        route.rebuild_at = min(at_latest, max(busy_until, now + route.interval_s))
        self.plan_due(route)

    def _arrange(self, balancer: Balancer, candidates: list[Candidate]) -> None:
        weights: list[float] = []
        if balancer.weighs(None):
            weights = weigh(candidates, self._scorers, self._policies, self._fleet.mode).weights
        _set_priors(candidates)
        balancer.arrange(candidates, weights)

    def plan_due(self, route: Route) -> None:
        """Set when the next choice must look closer."""
        if not route.drawn or route.panic or route.queued is not None:
            route.due = -inf
            return
        due = route.rebuild_at
        for candidate in route.waiting:
            if candidate.reason is Reason.QUARANTINED:
                due = min(due, candidate.endpoint.quarantine.probe_at(alone=False))
            elif candidate.reason is Reason.BREAKER_OPEN and not candidate.breaker.trials:
                due = min(due, candidate.breaker.until)
        route.due = due


def _served(
    route: Route, serve: ServePolicy, fit: list[Candidate], ejected: list[Candidate], now: float
) -> tuple[str | None, Collection[str]]:
    """Return the version that takes a route's requests under ``latest``, and those whose ejected ones are probed."""
    here = {candidate.version for candidate in fit}
    there = here | {candidate.version for candidate in ejected}
    whole = route.whole
    if whole is None or not route.by_newest or route.shard is None:
        return served_version(serve, (here,)), there
    fits = [_versions(shard, now, ejected=False) for shard in whole.shards]
    ejects = [_versions(shard, now, ejected=True) for shard in whole.shards]
    fits[route.shard], ejects[route.shard] = here, there
    return served_version(serve, fits, route.shard), whole_versions(ejects)


def _is_probed(candidate: Candidate, serve: ServePolicy, served: str | None, probed: Collection[str]) -> bool:
    return not is_left_out(serve, candidate.version, served, ejected=candidate.version in probed)


def _versions(route: Route, now: float, *, ejected: bool) -> set[str]:
    """Return the versions of which a route has somebody fit, as of when each was last looked at, or ``ejected``."""
    return {
        one.version
        for one in route.candidates
        if now < one.fit_until or (ejected and one.reason in EJECTED and one.entry)
    }


def _set_priors(candidates: list[Candidate]) -> None:
    known = [candidate.known_ewma_ms() for candidate in candidates]
    middle = median(known) or UNMEASURED_MS
    for candidate, ewma_ms in zip(candidates, known, strict=True):
        candidate.prior_ms = middle if ewma_ms is None else ewma_ms


def _built_at(route: Route) -> float:
    return route.built_at
