"""Every choice of an endpoint: the third layer of :class:`router.cluster.Cluster`.

A choice is O(1): it draws from a table that is made again in ``apply``, at most ten times a second and seldomer where
there are many candidates. What takes a replica *out* works at once all the same: each draw checks
``Candidate.open_until``.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, cast

from router.breaker import GuardState
from router.fits import FitAt, FitBeside
from router.hedging import HedgeDenied, may_hedge
from router.learning import Learning
from router.model import HTTP
from router.nobody import at_limit, nobody, only_tried
from router.outcomes import AttemptResult, Reason
from router.policy import OnNoCandidate, ServeRule
from router.retry import RetryBudget, RetryVerdict, judge_retry
from router.routes import ALIKE_RATIO, BACKGROUND, KEPT_RATIO, PROBE, TRIAL, Attempt, NoCandidate, Route, VersionPick
from router.tables import REBUILD_S, USED_FOR
from router.versions import fullest, share_at_random, share_by_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.endpoint import Candidate, Endpoint
    from router.fleet import Fleet
    from router.policy import Policies, VersionShare
    from router.protocols import Rng
    from router.tables import Tables


class Choosing(Learning):
    """Picks endpoints for requests, retries, hedges and work of our own, and says why where it picks none."""

    def __init__(self, policies: Policies, fleet: Fleet, tables: Tables, rng: Rng, now: float) -> None:
        super().__init__(policies, fleet, tables, rng, now)
        self._budget = RetryBudget(policies.retry, now)
        self._calls = self._budget.calls

    def choose(
        self, route: Route, now: float, rng: Rng, tried: Endpoint | None = None, key: bytes | None = None
    ) -> Attempt | NoCandidate:
        """Pick an endpoint and count the attempt as in flight there.

        By default four are drawn by weight. The first is taken, unless another's expected wait (EWMA of its latency
        x attempts in flight with this one) is lower by more than a tenth: then the one with the lowest. Where that one
        has any in flight, those that have as many and are about as fast are as good: the one that was picked longest
        ago is taken. Only a route that goes by that has a ``table``. All others ask their balancer, to which a ``key``
        may matter. ``tried`` (on a retry) is left out.
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
                    hand = hands[int(rng() * size)]
                    best, second, third, fourth = hand
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
                    in_flight = endpoint.in_flight
                    if in_flight:
                        picked_at = endpoint.picked_at
                        most_ms = (best.latency.ewma_ms or best.prior_ms) * ALIKE_RATIO
                        for each in hand:
                            other = each.endpoint
                            if (
                                other.in_flight == in_flight
                                and other.picked_at < picked_at
                                and (each.latency.ewma_ms or each.prior_ms) <= most_ms
                            ):
                                best = each
                                endpoint = other
                                picked_at = other.picked_at
                    if now < best.open_until and in_flight < best.most:
                        endpoint.in_flight = in_flight + 1
                        endpoint.picked_at = now
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
        if picked is None and tried is None and self._let_in_where_needed(route, now):
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

    def route_is_routable(self, route: Route, now: float, *, others: bool = False) -> bool:
        """Return the same of one route. ``others``: another route may take the request, so no probe is due early."""
        self._tables.catch_up(route, now)
        if any(now < candidate.fit_until and route.takes(candidate) for candidate in route.candidates):
            return True
        if (
            route.protocol == HTTP
            and route.policy.on_no_candidate is OnNoCandidate.LAZY
            and any(candidate.reason is Reason.NOT_WARM for candidate in route.candidates)
        ):
            return True  # it takes a request to have it loaded
        if not others and any(_could_be_needed(candidate) for candidate in route.waiting):
            return True  # it is let in by the request that needs it
        return self._due_probe(route, now, None, others=others) is not None

    def _has_somebody(self, route: Route, now: float, *, others: bool) -> bool:
        """Return what :meth:`route_is_routable` does, without looking at all where the table has somebody.

        Where each shard answers for itself, all of them must have somebody: whose key it is shows only later.
        """
        if route.shards:
            return all(self._has_somebody(shard, now, others=others) for shard in route.shards)
        self._tables.catch_up(route, now)
        for candidate in route.drawn:
            if now < candidate.open_until:
                return True
        return self.route_is_routable(route, now, others=others)

    def version_of(self, route: Route, now: float, rng: Rng, key: bytes | None = None) -> VersionPick:
        """Say which version of a split takes a request, by its ``key``, or at random where it has none.

        One without a replica that may be picked takes none: its share goes to the others, by their weights. One in
        quarantine takes its part again when its back-off is over, as its probe; where no other version has anybody, as
        soon as any route's last replica is probed. Where each shard answers for itself and no version has all of them,
        the one that has the most takes all. Where none has anybody, the route itself is returned, and nobody will be
        found on it.
        """
        serve = route.serve
        if serve is None or serve.rule is not ServeRule.SPLIT:
            return VersionPick(route, "", moved=False)
        routes = self._fleet.routes_by[route.protocol]
        moved = False
        for others in (True, False):
            shares, moved = serve.shares, False
            while shares:
                index = share_at_random(shares, rng()) if key is None else share_by_key(shares, key)
                if index < 0:
                    break
                version = shares[index].version
                found = routes.get(f"{route.model}@{version}")
                if found is not None and self._has_somebody(found, now, others=others):
                    return VersionPick(found, version, moved)
                shares, moved = shares[:index] + shares[index + 1 :], True
        found = self._fullest(route, serve.shares, now) if route.shards else None
        return VersionPick(route, "", moved) if found is None else VersionPick(found, found.version, moved=True)

    def _fullest(self, route: Route, shares: Sequence[VersionShare], now: float) -> Route | None:
        """Return the route of the version of a split that takes all requests where none has somebody at each shard."""
        routes = self._fleet.routes_by[route.protocol]
        spread = {
            share.version: sum(self._has_somebody(shard, now, others=False) for shard in found.shards)
            for share in shares
            if (found := routes.get(f"{route.model}@{share.version}")) is not None
        }
        version = fullest(shares, spread)
        return routes[f"{route.model}@{version}"] if version else None

    def _let_in_where_needed(self, route: Route, now: float) -> bool:
        """Let in who is merely slow, where nobody else can be picked, and outliers, where nobody else is fit.

        True where there are any.
        """
        nobody_fit = not route.drawn and not route.busy
        let_in = False
        for candidate in route.waiting:
            if not _could_be_needed(candidate):
                continue
            slow = candidate.breaker.needed(now)
            if slow or (nobody_fit and candidate.ejection.needed(now)):
                self._fleet.judge(candidate.endpoint, now)
                let_in = True
        return let_in

    def _due_probe(self, route: Route, now: float, tried: Endpoint | None, *, others: bool = False) -> Candidate | None:
        """Return a candidate whose endpoint's quarantine is over and whom nobody probes.

        Probes go before draws, so an endpoint is back soon after it answers again; a retry probes only where nobody
        else is left, so that one request does not meet two dead endpoints. ``others``: another route may take the
        request, so an endpoint that is alone on this one is not probed before its back-off is over.
        """
        alone = not others and not route.drawn and not route.busy
        for candidate in route.waiting:
            endpoint = candidate.endpoint
            if endpoint is not tried and not endpoint.full and endpoint.quarantine.probe_at(alone=alone) <= now:
                self._fleet.look(candidate, now)
                if candidate.reason is Reason.QUARANTINED:
                    return candidate
        return None

    def _start(self, candidate: Candidate, route: Route, now: float) -> Attempt:
        endpoint = candidate.endpoint
        endpoint.begin(now)
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
        endpoint.begin(now)
        return Attempt(candidate, route, now, BACKGROUND)

    def choose_background(self, route: Route, now: float, rng: Rng, key: bytes | None = None) -> Attempt | None:
        """Pick an endpoint for work of our own, as for a request, and begin it there; None where nobody has room.

        Callers come first: no probe or trial is made with it, nobody that pushed back is asked, half of an endpoint's
        places stay free, and none is taken where anybody waits.
        """
        self._tables.catch_up(route, now)
        picked = route.balancer.pick(FitBeside(now), rng, key)
        if picked is None:
            return None
        route.used = USED_FOR
        picked.endpoint.begin(now)
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
            return at_limit(route.key, full, self.policies)
        if tried is not None and any(
            now < candidate.fit_until for candidate in route.candidates if candidate.endpoint is tried
        ):
            return only_tried(tried.id, self.policies.retry.backoff_max_ms / 1000)
        if route.none is None or now - route.none_at >= REBUILD_S:
            _, out = self._tables.view().look(route, now)
            route.none = nobody(route, out, self.policies.freshness, now)
            route.none_at = now
        return route.none


def _could_be_needed(candidate: Candidate) -> bool:
    """Return whether one that is out answers all the same, if slowly or not always."""
    breaker = candidate.breaker
    if candidate.endpoint.quarantine.active or not (candidate.ejection.active or breaker.merely_slow):
        return False
    return breaker.state is GuardState.CLOSED or breaker.merely_slow


def _pick(route: Route, now: float, rng: Rng, tried: Endpoint | None, key: bytes | None) -> Candidate | None:
    """Have the balancer pick where some may be out; among those that pushed back where nobody else is left."""
    picked = route.balancer.pick(FitAt(now, tried, panic=route.panic), rng, key)
    if picked is None and route.busy:
        picked = route.busy_balancer.pick(FitAt(now, tried, busy=True), rng, key)
    return cast("Candidate | None", picked)  # a route's balancers pick of its candidates
