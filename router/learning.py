"""How attempts went, and what others are told of it: the second layer of :class:`router.cluster.Cluster`."""

from __future__ import annotations

from functools import partial
from math import exp
from typing import TYPE_CHECKING, Final

from router.affinity import Affinity
from router.breaker import GuardState
from router.ejections import outlier_event, quarantine_event, quarantined_event, spares, switch_event, trials_event
from router.known import Known
from router.model import (
    BreakerRule,
    EndpointEjected,
    Event,
    Hint,
    ModelObservation,
    Observation,
    PrefixesSeen,
    ReplicaKey,
    ReplicaSketch,
)
from router.outcomes import ATTEMPT_BLAME, BACK_PRESSURE, BROKEN_OFF, TOO_MUCH, UNANSWERED, AttemptResult, Blame
from router.routes import BACKGROUND, LENT, PASSED, PROBE, TRIAL, Attempt, Route
from router.stats import LEAST_MS, MOST_MS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from router.affinity import AffinityCounts
    from router.endpoint import Candidate, Endpoint
    from router.fleet import Fleet
    from router.model import LoadReport
    from router.policy import Policies
    from router.protocols import Rng
    from router.tables import Tables

SLOWER_AT_LEAST: Final[frozenset[AttemptResult]] = frozenset(
    {
        AttemptResult.SERVER_ERROR,
        AttemptResult.HEAD_TIMEOUT,
        AttemptResult.STREAM_IDLE,
        AttemptResult.TRY_TIMEOUT,
        AttemptResult.OUTRUN,
        AttemptResult.OVERDUE,
        AttemptResult.CALL_FAILED,
    }
)
"""Results whose duration is a lower bound of the latency: they may raise the EWMA, never lower it.

``CANCELLED`` is none of them: such an attempt is as long as the caller was slow or impatient.
"""

_SUCCESS: Final = AttemptResult.SUCCESS


class Learning(Known):
    """Takes the ends of attempts, and hands out what this process saw for its siblings and for other sidecars."""

    def __init__(self, policies: Policies, fleet: Fleet, tables: Tables, rng: Rng, now: float) -> None:
        super().__init__(policies, fleet, tables, now)
        self._rng = rng
        self._decay = -1 / policies.latency.ewma_decay_s

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
        spared = partial(spares, candidate, self.policies.breaker, now)
        if candidate.gone or not candidate.breaker.count(successes, failures, now, unanswered, slow, spared):
            return ()
        self._fleet.judge(candidate.endpoint, now)
        return (switch_event(candidate, now),)

    def opened(self, attempt: Attempt, now: float) -> tuple[Event, ...]:
        """Learn that an attempt became a tunnel: that is its success, but it is in flight until :meth:`closed`."""
        if attempt.ended:
            return ()
        attempt.ended = True
        return self._done_with_care(attempt, AttemptResult.SUCCESS, now, None)

    def closed(self, attempt: Attempt) -> None:
        """Release an attempt that was :meth:`opened`, once. How a tunnel ends says nothing of its endpoint."""
        attempt.endpoint.in_flight -= 1

    def lend(self, attempt: Attempt, now: float) -> None:
        """Take it that a probe or a trial waits for its caller, who has yet to send the rest of the request.

        Its place is others' from here on. To be called where an attempt has ``permits``, and the endpoint what there
        is of the request.
        """
        if attempt.ended or not attempt.permits & (PROBE | TRIAL) or attempt.permits & LENT:
            return
        attempt.permits |= LENT
        if attempt.permits & PROBE:
            attempt.endpoint.quarantine.lend(attempt.began)
        if attempt.permits & TRIAL:
            attempt.candidate.breaker.lend(attempt.began)
        self._fleet.judge(attempt.endpoint, now)

    def reclaim(self, attempt: Attempt, now: float) -> None:
        """Take it that the request of a probe or a trial is whole: what it waits for now is the endpoint."""
        if attempt.ended or not attempt.permits & LENT:
            return
        attempt.permits &= ~LENT
        endpoint = attempt.endpoint
        if attempt.permits & PROBE:
            endpoint.quarantine.wait_again(attempt.began, now)
        if attempt.permits & TRIAL:
            attempt.candidate.breaker.reclaim(attempt.began)
        self._fleet.judge(endpoint, now)

    def answer_began(self, attempt: Attempt, result: AttemptResult, now: float, *, timed: bool) -> tuple[Event, ...]:
        """Judge a probe or a trial by how its answer begins; how long that goes on may be its caller's doing.

        A quarantine ends with any answer that is no failure. A breaker counts one that failed, and one that began well
        as one that went well, unless it opened for slowness and that is still to be seen: then the place is lent.

        Args:
            attempt: one that has ``permits``, and of whose answer more is to come.
            result: what it will be where all of it comes.
            now: the moment.
            timed: its latency is that of its first byte.

        Returns:
            Events for sibling processes.
        """
        permits = attempt.permits
        if attempt.ended or not permits & (PROBE | TRIAL):
            return ()
        candidate, endpoint = attempt.candidate, attempt.endpoint
        lent = permits & LENT != 0
        events: list[Event] = []
        if permits & PROBE:
            permits &= ~PROBE
            if not endpoint.gone and endpoint.quarantine.record(
                result, now, self._rng, started=attempt.began, probe=True, lent=lent
            ):
                events.append(quarantine_event(endpoint, now))
        if permits & TRIAL:
            blame, breaker = ATTEMPT_BLAME[result], candidate.breaker
            # a request that is not whole was answered early: that took as long as its caller let it
            slow = not lent and blame is not Blame.NEUTRAL and candidate.latency.is_slow((now - attempt.started) * 1000)
            if blame is Blame.SUCCESS and not (slow or timed) and breaker.rule is BreakerRule.SURGE:
                if not lent:
                    breaker.lend(attempt.began)
                permits |= LENT
            else:
                permits &= ~(TRIAL | LENT)
                if blame is Blame.SUCCESS:
                    permits |= PASSED
                spared = partial(spares, candidate, self.policies.breaker, now)
                if not candidate.gone and breaker.record(
                    blame, now, started=attempt.began, trial=True, lent=lent, slow=slow, spared=spared
                ):
                    events.append(switch_event(candidate, now))
        else:
            permits &= ~LENT
        attempt.permits = permits
        if not endpoint.gone:
            self._fleet.judge(endpoint, now)
        return tuple(events)

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
        slow = candidate.latency.is_slow(ms)
        if result is AttemptResult.OVERDUE and slow:
            blame = Blame.SUCCESS  # a call as any slow one: who gave it less time than that says nothing of the worker
            candidate.untold.overdue += 1
        elif blame is Blame.NEUTRAL:
            slow = False
        unanswered = result in UNANSWERED
        untold = candidate.untold
        untold.failures += blame is Blame.FAILURE
        untold.unanswered += unanswered
        untold.slow += slow
        untold.others += result is AttemptResult.CLIENT_ERROR
        untold.failed_calls += result is AttemptResult.CALL_FAILED
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
        lent = permits & LENT != 0
        probe = permits & PROBE != 0
        if endpoint.quarantine.record(result, now, self._rng, started=began, probe=probe, lent=lent, alone=alone):
            events.append(quarantine_event(endpoint, now))
        if not candidate.gone and candidate.breaker.record(
            blame,
            now,
            started=began,
            trial=permits & TRIAL != 0,
            lent=lent,
            passed=permits & PASSED != 0,
            unanswered=unanswered,
            slow=slow,
            spared=partial(spares, candidate, self.policies.breaker, now),
        ):
            events.append(switch_event(candidate, now))
        if events or permits or became_busy:
            self._fleet.judge(endpoint, now)
        return tuple(events)

    def _busy_s(self, retry_after_s: float | None) -> float:
        policy = self.policies.back_pressure
        if retry_after_s is None:
            return policy.default_s
        return min(retry_after_s, policy.max_s) if retry_after_s > 0 else 0.0

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
            endpoint.mark()

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
            if endpoint.quarantine.active:
                out.append(quarantined_event(endpoint, endpoint.quarantine.since))
            out += [
                trials_event(candidate)
                for candidate in endpoint.candidates.values()
                if candidate.breaker.state is not GuardState.CLOSED
            ]
            out += [
                outlier_event(candidate, candidate.ejection.since)
                for candidate in endpoint.candidates.values()
                if candidate.ejection.active
            ]
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

    def measured(self) -> Iterator[ReplicaSketch]:
        """Yield what was measured at each replica: what other sidecars are to be told of."""
        for endpoint in self._fleet.endpoints.values():
            for candidate in endpoint.candidates.values():
                latency = candidate.latency
                if latency.counts:
                    of = (candidate.model, candidate.version, candidate.shard)
                    yield ReplicaSketch(ReplicaKey(endpoint.id, endpoint.epoch, *of), latency.changes, latency.counts)


def _observed(candidate: Candidate, now: float) -> ModelObservation | None:
    """Take what is to be told of a candidate since the last time, None where that is nothing."""
    latency = candidate.latency
    buckets = () if latency.idle else latency.take_unsent(now)
    untold = candidate.untold
    successes = sum(count for _, count in buckets)
    rare = untold.failures or untold.others or untold.overdue or untold.failed_calls
    if not successes and not rare:
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
        untold.overdue,
        untold.failed_calls,
    )
    untold.clear()
    return told


def _since(row: tuple[float, Hint]) -> float:
    return row[0]
