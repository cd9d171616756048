"""The aggregate: what is known of the fleet, and every decision on it.

``apply`` takes events, ``choose`` picks an endpoint, ``done`` learns from how it went. Nothing here blocks, waits or
looks at a clock; a shell calls it from one thread. A choice is O(1): it draws from a table that is made again in
``apply``, at most ten times a second and seldomer where there are many candidates. What takes a replica *out* works at
once all the same: each draw checks ``Candidate.open_until``.
"""

from __future__ import annotations

from bisect import insort
from math import ceil, exp, inf, log
from types import MappingProxyType
from typing import TYPE_CHECKING

from router import explain as explaining
from router.endpoint import Candidate, Endpoint, offered
from router.filters import default_filters
from router.model import (
    EjectCause,
    EndpointEjected,
    EndpointGone,
    EndpointHeld,
    EndpointReturned,
    EndpointSeen,
    EndpointsHeard,
    Event,
    Observation,
    PeerObserved,
    SnapshotBegan,
    SnapshotEnded,
    StoreChanged,
    StoreMode,
    Tick,
)
from router.outcomes import ATTEMPT_BLAME, AttemptResult, Blame, Reason
from router.pickers import AliasPicker
from router.policy import ModelPolicy
from router.retry import RetryBudget, RetryVerdict, judge_retry
from router.routes import PROBE, TRIAL, Attempt, NoCandidate, Route, weigh
from router.scorers import default_scorers
from router.stats import LEAST_MS, MOST_MS, LogBuckets, median

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from router.model import EndpointRecord
    from router.policy import Policies
    from router.protocols import Candidate as CandidateView
    from router.protocols import Filter, PickerFactory, Rng, Scorer

REBUILD_S = 0.1
"""Tables are made again at most this often,"""
REBUILD_PER_CANDIDATE_S = 0.001
"""and at most once per this much and candidate, which bounds the cost to a small share of one core,"""
REBUILD_MOST_S = 2.0
"""but no seldomer than this while they are used."""
IDLE_REBUILD_S = 1.0
"""A table older than this is made again by the choice that meets it (where no Tick came, or nobody asked)."""
TICK_CANDIDATES = 2000
"""Candidates weighed per Tick; the rest waits for the next one."""
REDRAWS = 8
"""Draws that may hit a replica that is out, before all candidates are looked at."""

SLOWER_AT_LEAST: frozenset[AttemptResult] = frozenset(
    {AttemptResult.SERVER_ERROR, AttemptResult.HEAD_TIMEOUT, AttemptResult.STREAM_IDLE, AttemptResult.CANCELLED}
)
"""Results whose duration is a lower bound of the latency: they may raise the EWMA, never lower it."""

_SUCCESS = AttemptResult.SUCCESS


def no_jitter() -> float:
    """Stand in for a random source where spreading does not matter: always the middle."""
    return 0.5


class Cluster:
    """The fleet as one process of one sidecar sees it.

    Args:
        policies: all tunables.
        models: what configuration says of models; each has a route even while nobody serves it. Models that endpoints
            report beyond these get a route with default policy.
        now: the moment of making, monotonic seconds.
        rng: spreads the ends of quarantines; everything else takes its randomness as an argument.
        filters, scorers, picker: plug-ins instead of the default ones (docs/extending.md).
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
        picker: PickerFactory = AliasPicker,
    ) -> None:
        self.policies = policies
        self.mode = StoreMode.LIVE
        self.generation = 0
        self.departed: list[Endpoint] = []
        self._rng = rng
        self._filters = default_filters(policies.freshness.ttl_s) if filters is None else tuple(filters)
        self._scorers = default_scorers(policies.scoring) if scorers is None else tuple(scorers)
        self._picker = picker
        self._buckets = LogBuckets(policies.latency.relative_error)
        self._scale = self._buckets.scale
        self._decay = -1 / policies.latency.ewma_decay_s
        self._budget = RetryBudget(policies.retry, now)
        self._calls = self._budget.calls
        self._models = {model.name: model for model in models}
        self._routes: dict[str, Route] = {}
        self._default: Route | None = None
        self._endpoints: dict[str, Endpoint] = {}
        self._endpoints_view = MappingProxyType(self._endpoints)
        self._held: set[str] = set()
        self._snapshot: tuple[int, set[str]] | None = None
        self._heard_at = -inf  # when any endpoint of the store was last heard
        self._frozen_at: float | None = None  # ages stand still since then
        self._peers_checked_at = now
        for model in self._models.values():
            route = self._route_for(model.name, "", now)
            if model.default and self._default is None:
                self._default = route
        self._handlers: dict[type, Callable[..., tuple[Event, ...]]] = {
            EndpointSeen: self._on_seen,
            EndpointsHeard: self._on_heard,
            EndpointGone: self._on_gone,
            SnapshotBegan: self._on_snapshot_began,
            SnapshotEnded: self._on_snapshot_ended,
            StoreChanged: self._on_store_changed,
            EndpointHeld: self._on_held,
            EndpointEjected: self._on_ejected,
            EndpointReturned: self._on_returned,
            PeerObserved: self._on_peer_observed,
            Tick: self._on_tick,
        }

    # --- what is known -------------------------------------------------------------------------------------------

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """The endpoints there are, by id; a live view."""
        return self._endpoints_view

    @property
    def default_route(self) -> Route | None:
        """The route of the model that takes requests which name no known one."""
        return self._default

    def route(self, model: str, version: str = "") -> Route | None:
        """Return the route of a model, or of one version of it; None where there is none (see :meth:`missing`)."""
        return self._routes.get(f"{model}@{version}" if version else model)

    def missing(self, model: str, version: str = "") -> Reason:
        """Say why :meth:`route` returned None."""
        return Reason.WRONG_VERSION if version and model in self._routes else Reason.UNKNOWN_MODEL

    def apply(self, event: Event, now: float) -> tuple[Event, ...]:
        """Take one event; return those that sibling processes should hear of because of it."""
        return self._handlers[type(event)](event, now)

    # --- choosing ------------------------------------------------------------------------------------------------

    def choose(self, route: Route, now: float, rng: Rng, tried: Endpoint | None = None) -> Attempt | NoCandidate:
        """Pick an endpoint and count the attempt as in flight there.

        Two are drawn by weight, with replacement; the one with the lower expected wait (EWMA of its latency x attempts
        in flight with this one) is taken, the first where they are equal. ``tried`` (on a retry) is left out.
        """
        if tried is None:
            calls = self._calls
            if now >= calls.ends:
                calls.turn(now)
            calls.yes += 1
            if now < route.due:
                drawn, draw = route.drawn, route.draw
                first, second = drawn[draw(rng)], drawn[draw(rng)]
                if now < first.open_until and now < second.open_until:
                    endpoint = first.endpoint
                    if first is not second:
                        other = second.endpoint
                        if (other.latency.ewma_ms or second.prior_ms) * (
                            other.in_flight + other.peers_in_flight + 1
                        ) < (endpoint.latency.ewma_ms or first.prior_ms) * (
                            endpoint.in_flight + endpoint.peers_in_flight + 1
                        ):
                            endpoint = other
                    if not endpoint.guarded:
                        endpoint.in_flight += 1
                        route.used = True
                        return Attempt(endpoint, route, now)
        return self._choose_with_care(route, now, rng, tried)

    def done(self, attempt: Attempt, result: AttemptResult, now: float) -> tuple[Event, ...]:
        """Learn how an attempt ended and release it; the second call for one attempt does nothing.

        Returns events for sibling processes.
        """
        if attempt.ended:
            return ()
        attempt.ended = True
        endpoint = attempt.endpoint
        endpoint.in_flight -= 1
        if result is not _SUCCESS or endpoint.guarded:
            return self._done_with_care(attempt, result, now)
        # Latency.sample and SlidingCounts.add by hand: this is every request
        latency = endpoint.latency
        ms = (now - attempt.started) * 1000.0
        if not LEAST_MS <= ms <= MOST_MS:
            ms = min(max(ms, LEAST_MS), MOST_MS)
        index = ceil(log(ms) * self._scale)
        fresh = latency.fresh
        fresh[index] = fresh.get(index, 0) + 1
        average = latency.ewma_ms
        latency.ewma_ms = ms if ms >= average else ms + (average - ms) * exp((now - latency.ewma_at) * self._decay)
        latency.ewma_at = now
        calls = endpoint.breaker.calls
        if now >= calls.ends:
            calls.turn(now)
        calls.yes += 1
        return ()

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
        )

    def observe(self, now: float) -> tuple[Observation, ...]:
        """Return what this process saw since the last call, for sibling processes, in order of endpoint id."""
        out: list[Observation] = []
        for id_, endpoint in sorted(self._endpoints.items()):
            latency = endpoint.latency
            buckets = latency.take_unsent(now)
            successes = endpoint.other_successes + sum(count for _, count in buckets)
            in_flight = endpoint.in_flight
            if not (successes or endpoint.failures or in_flight or endpoint.reported_in_flight):
                continue
            out.append(
                Observation(id_, in_flight, latency.ewma_ms or None, buckets, successes, endpoint.failures),
            )
            endpoint.failures = endpoint.other_successes = 0
            endpoint.reported_in_flight = in_flight
        return tuple(out)

    def explain(self, route: Route, now: float, rng: Rng) -> explaining.Explanation:
        """Show the decision that would be made now, with every term of every candidate; changes nothing."""
        return explaining.explain(self._view(), route, now, rng)

    def routes(self, now: float) -> tuple[explaining.RouteRow, ...]:
        """Return every route with its candidates, their state, weight and share, in order of key."""
        view = self._view()
        return tuple(
            explaining.route_row(view, route, now, default=route is self._default)
            for _, route in sorted(self._routes.items())
        )

    def _view(self) -> explaining.View:
        return explaining.View(self.policies, self.mode, self._scorers, self._picker, self._verdict, self._age_s)

    # --- the careful ways ----------------------------------------------------------------------------------------

    def _choose_with_care(self, route: Route, now: float, rng: Rng, tried: Endpoint | None) -> Attempt | NoCandidate:
        """Choose where something is due: a table, a probe, a trial, or nobody is left."""
        route.used = True
        self._watch_silence(now)
        if now >= route.rebuild_at:
            self._rebuild(route, now)
        for candidate in route.waiting:
            if candidate.endpoint.breaker.advance(now):
                self._judge(candidate.endpoint, now)
        if tried is None:
            probe = self._due_probe(route, now, None)
            if probe is not None:
                return self._start(probe, route, now)
        picked = self._draw_two(route, now, rng, tried)
        if picked is None and route.dirty:
            self._rebuild(route, now)
            picked = self._draw_two(route, now, rng, tried)
        if picked is None:
            picked = self._due_probe(route, now, tried)
        if picked is None:
            return self._nobody(route, now, tried)
        self._plan_due(route)
        return self._start(picked, route, now)

    def _due_probe(self, route: Route, now: float, tried: Endpoint | None) -> Candidate | None:
        """Return an endpoint whose quarantine is over and whom nobody probes.

        Probes go before draws, so an endpoint is back soon after it answers again; a retry probes only where nobody
        else is left, so that one request does not meet two dead endpoints.
        """
        alone = not route.drawn
        for candidate in route.waiting:
            if (
                candidate.reason is Reason.QUARANTINED
                and candidate.endpoint is not tried
                and candidate.endpoint.quarantine.probe_at(alone=alone) <= now
                and self._verdict(candidate) is Reason.QUARANTINED
            ):
                return candidate
        return None

    def _draw_two(self, route: Route, now: float, rng: Rng, tried: Endpoint | None) -> Candidate | None:
        first = self._draw_open(route, now, rng, tried)
        if first is None:
            return None
        second = self._draw_open(route, now, rng, tried)
        if second is None or second is first or expected_wait(second) >= expected_wait(first):
            return first
        return second

    def _draw_open(self, route: Route, now: float, rng: Rng, tried: Endpoint | None) -> Candidate | None:
        drawn = route.drawn
        if not drawn:
            return None
        for _ in range(REDRAWS):
            candidate = drawn[route.draw(rng)]
            if now < candidate.open_until and candidate.endpoint is not tried:
                return candidate
        open_ = [
            (candidate, weight)
            for candidate, weight in zip(drawn, route.weights, strict=True)
            if now < candidate.open_until and candidate.endpoint is not tried
        ]
        if not open_:
            return None
        return open_[AliasPicker([weight for _, weight in open_]).draw(rng)][0]

    def _start(self, candidate: Candidate, route: Route, now: float) -> Attempt:
        endpoint = candidate.endpoint
        endpoint.in_flight += 1
        if not endpoint.guarded:
            return Attempt(endpoint, route, now)
        permits = 0
        if endpoint.quarantine.active:
            endpoint.quarantine.take(now)
            permits = PROBE
        if endpoint.breaker.take():
            permits |= TRIAL
        self._judge(endpoint, now)
        return Attempt(endpoint, route, now, permits)

    def _nobody(self, route: Route, now: float, tried: Endpoint | None) -> NoCandidate:
        if tried is not None and any(
            now < candidate.open_until and candidate.endpoint is tried for candidate in route.candidates
        ):
            return explaining.only_tried(tried.id, self.policies.retry.backoff_max_ms / 1000)
        if route.none is None or now - route.none_at >= REBUILD_S:
            _, out = self._view().look(route, now)
            route.none = explaining.nobody(route, out, self.policies.freshness, now)
            route.none_at = now
        return route.none

    def _done_with_care(self, attempt: Attempt, result: AttemptResult, now: float) -> tuple[Event, ...]:
        endpoint = attempt.endpoint
        ms = (now - attempt.started) * 1000
        blame = ATTEMPT_BLAME[result]
        if result is _SUCCESS:
            endpoint.latency.sample(ms, now)
        elif result in SLOWER_AT_LEAST:
            endpoint.latency.at_least(ms, now)
        elif blame is Blame.SUCCESS:
            endpoint.other_successes += 1
        if blame is Blame.FAILURE:
            endpoint.failures += 1
        if endpoint.gone:
            return ()
        events: list[Event] = []
        started, permits = attempt.started, attempt.permits
        quarantine, breaker = endpoint.quarantine, endpoint.breaker
        if quarantine.record(result, now, self._rng, started=started, probe=bool(permits & PROBE)):
            events.append(self._moved(endpoint, EjectCause.QUARANTINE, now))
        if breaker.record(blame, now, started=started, trial=bool(permits & TRIAL)):
            events.append(self._moved(endpoint, EjectCause.BREAKER, now))
        if events or permits:
            self._judge(endpoint, now)
        return tuple(events)

    def _moved(self, endpoint: Endpoint, cause: EjectCause, now: float) -> Event:
        """Return the event for siblings after a guard of ``endpoint`` opened or closed."""
        if cause is EjectCause.QUARANTINE:
            quarantine = endpoint.quarantine
            if quarantine.active:
                return EndpointEjected(endpoint.id, cause, quarantine.until, quarantine.level, now)
        elif endpoint.breaker.blocks:
            return EndpointEjected(endpoint.id, cause, endpoint.breaker.until, 1, now)
        return EndpointReturned(endpoint.id, cause, now)

    # --- judging and weighing ------------------------------------------------------------------------------------

    def _age_s(self, endpoint: Endpoint, now: float) -> float:
        if endpoint.record.static:
            return 0.0
        return max(0.0, (now if self._frozen_at is None else self._frozen_at) - endpoint.heard_at)

    def _verdict(self, candidate: CandidateView) -> Reason | None:
        for filter_ in self._filters:
            reason = filter_(candidate, self.mode)
            if reason is not None:
                return reason
        return None

    def _look(self, candidate: Candidate, now: float) -> bool:
        """Judge one candidate as of ``now``; True where the verdict changed."""
        endpoint = candidate.endpoint
        before = candidate.open_until
        if endpoint.gone:
            candidate.open_until = -inf
            return before != -inf
        candidate.age_s = self._age_s(endpoint, now)
        candidate.warm_for_s = max(0.0, now - candidate.warm_at)
        reason = self._verdict(candidate)
        if reason is not None:
            candidate.open_until = -inf
        elif endpoint.record.static or self._frozen_at is not None:
            candidate.open_until = inf
        else:
            candidate.open_until = endpoint.heard_at + self.policies.freshness.ttl_s
        if reason is not candidate.reason:
            candidate.reason = reason
            candidate.reason_since = now
            return True
        return (before == -inf) != (candidate.open_until == -inf)

    def _judge(self, endpoint: Endpoint, now: float) -> None:
        """Judge all candidates of an endpoint after something about it changed."""
        endpoint.regard()
        for candidate in endpoint.candidates.values():
            changed = self._look(candidate, now)
            for route in candidate.routes:
                if changed:
                    route.mark(opened=candidate.reason is None)
                if endpoint.guarded:
                    route.due = -inf  # the next choice plans probes and trials anew

    def _rebuild(self, route: Route, now: float) -> None:
        """Make the table of a route from what is known now."""
        open_: list[Candidate] = []
        waiting: list[Candidate] = []
        for candidate in route.candidates:
            endpoint = candidate.endpoint
            endpoint.latency.settle(now)
            if endpoint.guarded and endpoint.breaker.advance(now):
                self._judge(endpoint, now)
            else:
                self._look(candidate, now)
            if candidate.reason is None:
                open_.append(candidate)
            elif candidate.reason is Reason.QUARANTINED or candidate.reason is Reason.BREAKER_OPEN:
                waiting.append(candidate)
        weighing = weigh(open_, self._scorers, self.policies, self.mode)
        route.drawn = open_
        route.weights = weighing.weights
        if open_:
            route.draw = self._picker(weighing.weights).draw
            self._set_priors(open_)
        route.waiting = waiting
        route.dirty = False
        route.built_at = now
        route.interval_s = min(max(REBUILD_S, REBUILD_PER_CANDIDATE_S * len(route.candidates)), REBUILD_MOST_S)
        route.rebuild_at = now + max(IDLE_REBUILD_S, 2 * route.interval_s)
        route.none = None
        self._plan_due(route)

    def _set_priors(self, candidates: list[Candidate]) -> None:
        known = [candidate.endpoint.known_ewma_ms() for candidate in candidates]
        middle = median(known) or 1.0
        for candidate, ewma_ms in zip(candidates, known, strict=True):
            candidate.prior_ms = middle if ewma_ms is None else ewma_ms

    def _plan_due(self, route: Route) -> None:
        """Set when the next choice must look closer."""
        if not route.drawn:
            route.due = -inf
            return
        due = route.rebuild_at
        for candidate in route.waiting:
            if candidate.reason is Reason.QUARANTINED:
                due = min(due, candidate.endpoint.quarantine.probe_at(alone=False))
            elif not candidate.endpoint.breaker.trials:
                due = min(due, candidate.endpoint.breaker.until)
        route.due = due

    # --- events --------------------------------------------------------------------------------------------------

    def _on_seen(self, event: EndpointSeen, now: float) -> tuple[Event, ...]:
        record = event.record
        endpoint = self._endpoints.get(record.id)
        if self._snapshot is not None:
            self._snapshot[1].add(record.id)
        if endpoint is not None and (endpoint.epoch != record.epoch or endpoint.address != record.address):
            self._remove(endpoint)
            endpoint = None
        first = endpoint is None
        if endpoint is None:
            endpoint = Endpoint(record, self.policies, self._buckets, event.at)
            endpoint.held = record.id in self._held
            self._endpoints[record.id] = endpoint
        endpoint.record = record
        self._hear(endpoint, event.at, now)
        self._take_replicas(endpoint, record, event.at, now, from_start=first and record.static)
        self._judge(endpoint, now)
        return ()

    def _take_replicas(
        self, endpoint: Endpoint, record: EndpointRecord, at: float, now: float, *, from_start: bool
    ) -> None:
        replicas = offered(record)
        for key in [key for key in endpoint.candidates if key not in replicas]:
            self._unlink(endpoint.candidates.pop(key), now)
        for key, replica in replicas.items():
            candidate = endpoint.candidates.get(key)
            if candidate is None:
                routes = tuple(self._route_for(key[0], version, now) for version in dict.fromkeys(("", key[1])))
                candidate = endpoint.candidates[key] = Candidate(endpoint, replica, routes)
                for route in routes:
                    insort(route.candidates, candidate, key=_order)
                    route.mark(opened=True)
            else:
                for route in candidate.routes:
                    route.mark(opened=False)  # a number may have changed
            candidate.report(replica, at, from_start=from_start)

    def _route_for(self, model: str, version: str, now: float) -> Route:
        key = f"{model}@{version}" if version else model
        route = self._routes.get(key)
        if route is None:
            configured = self._models.get(model)
            policy = configured or ModelPolicy(model)
            learned = configured is None or version != ""
            route = self._routes[key] = Route(model, version, policy, learned=learned, now=now)
            self.generation += 1
        return route

    def _unlink(self, candidate: Candidate, now: float) -> None:
        candidate.open_until = -inf
        for route in candidate.routes:
            route.candidates.remove(candidate)
            route.mark(opened=False)
            if candidate in route.waiting:
                route.waiting.remove(candidate)
            if not route.candidates:
                route.empty_since = now

    def _remove(self, endpoint: Endpoint) -> None:
        del self._endpoints[endpoint.id]
        endpoint.gone = True
        for candidate in endpoint.candidates.values():
            self._unlink(candidate, endpoint.heard_at)
        self.departed.append(endpoint)

    def _on_heard(self, event: EndpointsHeard, now: float) -> tuple[Event, ...]:
        for id_ in event.ids:
            endpoint = self._endpoints.get(id_)
            if endpoint is not None:
                self._hear(endpoint, event.at, now)
                if not endpoint.record.static:
                    self._judge(endpoint, now)
        return ()

    def _on_gone(self, event: EndpointGone, now: float) -> tuple[Event, ...]:
        endpoint = self._endpoints.get(event.id)
        if endpoint is not None:
            self._remove(endpoint)
        return ()

    def _on_snapshot_began(self, event: SnapshotBegan, now: float) -> tuple[Event, ...]:
        self._snapshot = (event.sequence, set())
        return ()

    def _on_snapshot_ended(self, event: SnapshotEnded, now: float) -> tuple[Event, ...]:
        if self._snapshot is not None and self._snapshot[0] == event.sequence:
            seen = self._snapshot[1]
            for endpoint in [endpoint for id_, endpoint in self._endpoints.items() if id_ not in seen]:
                self._remove(endpoint)
            self._snapshot = None
        return ()

    def _on_held(self, event: EndpointHeld, now: float) -> tuple[Event, ...]:
        (self._held.add if event.held else self._held.discard)(event.id)
        endpoint = self._endpoints.get(event.id)
        if endpoint is not None:
            endpoint.held = event.held
            self._judge(endpoint, now)
        return ()

    def _on_ejected(self, event: EndpointEjected, now: float) -> tuple[Event, ...]:
        endpoint = self._endpoints.get(event.id)
        if endpoint is None or event.at < endpoint.first_seen_at:  # of an earlier process under this id
            return ()
        if event.cause is EjectCause.QUARANTINE:
            endpoint.quarantine.peer_opened(event.until, event.level, now)
        else:
            endpoint.breaker.peer_opened(event.until, now)
        self._judge(endpoint, now)
        return ()

    def _on_returned(self, event: EndpointReturned, now: float) -> tuple[Event, ...]:
        endpoint = self._endpoints.get(event.id)
        if endpoint is None or event.at < endpoint.first_seen_at:
            return ()
        if event.cause is EjectCause.QUARANTINE:
            endpoint.quarantine.peer_closed()
        else:
            endpoint.breaker.peer_closed(now)
        self._judge(endpoint, now)
        return ()

    def _on_peer_observed(self, event: PeerObserved, now: float) -> tuple[Event, ...]:
        out: list[Event] = []
        for seen in event.observations:
            endpoint = self._endpoints.get(seen.id)
            if endpoint is None:
                continue
            endpoint.peer_reported(event.source, seen.in_flight, seen.ewma_ms, event.at)
            endpoint.latency.merge(seen.buckets, now)
            if endpoint.breaker.count(seen.successes, seen.failures, now):
                out.append(self._moved(endpoint, EjectCause.BREAKER, now))
                self._judge(endpoint, now)
        return tuple(out)

    def _on_tick(self, event: Tick, now: float) -> tuple[Event, ...]:
        self._watch_silence(now)
        if now - self._peers_checked_at >= IDLE_REBUILD_S:
            self._peers_checked_at = now
            for endpoint in self._endpoints.values():
                if endpoint.peers:
                    endpoint.forget_silent_peers(now - self.policies.freshness.ttl_s)
            self._forget_empty_routes(now)
        due = [
            route
            for route in self._routes.values()
            if (route.dirty or route.used) and now >= route.built_at + route.interval_s
        ]
        due.sort(key=_built_at)
        room = TICK_CANDIDATES
        for route in due:
            if room <= 0:
                break
            room -= len(route.candidates) + 1
            route.used = False
            self._rebuild(route, now)
        return ()

    def _forget_empty_routes(self, now: float) -> None:
        """Drop learned routes that nobody has served for a while (until then a request gets 503, not 404)."""
        before = now - self.policies.freshness.local_after_s
        empty = [
            key
            for key, route in self._routes.items()
            if route.learned and not route.candidates and route.empty_since <= before
        ]
        for key in empty:
            del self._routes[key]
            self.generation += 1

    # --- silence -------------------------------------------------------------------------------------------------

    def _on_store_changed(self, event: StoreChanged, now: float) -> tuple[Event, ...]:
        self.mode = event.mode
        if event.mode is StoreMode.LIVE:
            if self._frozen_at is not None:
                self._thaw(now, credit_s=None)
            self._heard_at = max(self._heard_at, now)  # silence is counted anew
        elif self._frozen_at is None:
            self._frozen_at = min(event.at, self._heard_at + self.policies.freshness.full_s)
        self._judge_all(now)
        return ()

    def _hear(self, endpoint: Endpoint, at: float, now: float) -> None:
        endpoint.heard_at = max(endpoint.heard_at, at)
        if endpoint.record.static:
            return
        self._watch_silence(now)
        self._heard_at = now
        if self._frozen_at is not None and self.mode is StoreMode.LIVE:
            self._thaw(now, credit_s=now - self._frozen_at)
            self._judge_all(now)

    def _watch_silence(self, now: float) -> None:
        """Stop the ages' clock where nobody at all was heard for two heartbeats.

        Then it is the store or the control process that is silent, not the endpoints. Telling so is the control
        process's part (StoreChanged), which comes later or, where it died, never.
        """
        if self._frozen_at is None and now > self._heard_at + self.policies.freshness.full_s > -inf:
            self._frozen_at = self._heard_at + self.policies.freshness.full_s
            self._judge_all(now)

    def _thaw(self, now: float, credit_s: float | None) -> None:
        """Let ages run again. Endpoints not heard since get ``credit_s``, or start at 0 where that is None."""
        frozen_at = self._frozen_at
        self._frozen_at = None
        if frozen_at is None:
            return
        for endpoint in self._endpoints.values():
            if endpoint.heard_at <= frozen_at and frozen_at - endpoint.heard_at < self.policies.freshness.ttl_s:
                endpoint.heard_at = now if credit_s is None else endpoint.heard_at + credit_s

    def _judge_all(self, now: float) -> None:
        for endpoint in self._endpoints.values():
            self._judge(endpoint, now)
        for route in self._routes.values():
            route.expire()


def expected_wait(candidate: Candidate) -> float:
    """Return the expected wait of one more attempt in ms: EWMA x (in flight + 1), siblings' attempts included."""
    endpoint = candidate.endpoint
    return (endpoint.latency.ewma_ms or candidate.prior_ms) * (endpoint.in_flight + endpoint.peers_in_flight + 1)


def _order(candidate: Candidate) -> tuple[str, str]:
    return candidate.endpoint.id, candidate.version


def _built_at(route: Route) -> float:
    return route.built_at
