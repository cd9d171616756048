"""What a cluster keeps of each endpoint, and of each model version that an endpoint offers."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from router.baseline import Baseline
from router.breaker import Breaker, Ejection, GuardState
from router.concurrency import AdaptiveLimit
from router.latency import Latency
from router.model import HTTP, Replica, State
from router.policy import BalancerName, ConcurrencyMode
from router.quarantine import Quarantine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.groups import Group, Lack, Offer
    from router.model import EndpointRecord, Evidence, LoadReport
    from router.outcomes import Reason
    from router.policy import ConcurrencyPolicy, Policies
    from router.routes import Route
    from router.stats import LogBuckets

CAPPED_S: Final = 0.1
"""How long an endpoint whose pool had no connection left is passed over at least, while nothing ends there."""

NO_LIMIT: Final = 1 << 62
"""More than can be in flight."""


class Endpoint:
    """One worker process as this sidecar process sees it. A new epoch under the same id is a new Endpoint.

    ``in_flight`` counts this process's attempts, ``peers_in_flight`` the siblings' as last reported; ``picked_at`` is
    when this process last began one, of its own too: what decides where the rest is even. ``shell`` is free
    for the shell (its pool and metrics row); the cluster never looks at it. ``heard_at`` is the arrival of the last
    word from it, ``busy_until`` the time for which it pushed back. A quarantine is the endpoint's, as it is the process
    that is not there; breakers are its candidates'.

    ``limit`` is how many attempts may be in flight here (:func:`limit_of`); ``cap`` the same, or less while its pool
    has no connection for more all the same: some may be in the making for callers that left. ``passed_over`` counts
    draws that found it full, until the shell takes them. ``limiter`` is there where the limit follows latency.

    ``record`` is the last word of whoever names the endpoint, and of its load what it last said itself in an answer
    (``report``, at ``report_at``), where that is newer; ``report_unsent``: siblings have not heard of it yet.
    """

    __slots__ = (
        "id", "address", "epoch", "record", "in_flight", "picked_at", "shell",
        "cap", "capped_until", "limit", "passed_over",
        "busy_until", "candidates", "first_seen_at", "gone", "heard_at", "held", "peers", "peers_in_flight",
        "limiter", "quarantine", "report", "report_at", "report_unsent", "reported_in_flight", "several",
        "_limit_at_most", "_passed_over", "_told",
    )  # fmt: skip

    def __init__(self, record: EndpointRecord, policies: Policies, at: float) -> None:
        self.id = record.id
        self.address = record.address
        self.epoch = record.epoch
        self.record = self._told = record
        self.report: LoadReport | None = None
        self.report_at = -inf
        self.report_unsent = False
        self.in_flight = 0
        self.picked_at = -inf
        self.shell: Any = None
        self.quarantine = Quarantine(policies.quarantine)
        self.busy_until = -inf
        self.candidates: dict[Offer, Candidate] = {}  # by model, version and shard
        self.several: frozenset[str] = frozenset()  # models of which it holds more than one version
        self.first_seen_at = at
        self.heard_at = at
        self.held = False
        self.gone = False
        self._limit_at_most = self.limit = self.cap = limit_of(record, policies)
        self.limiter: AdaptiveLimit | None = None
        self.capped_until = -inf
        self.passed_over = 0
        self._passed_over = 0  # of these, as last looked at
        self._adapt_by(policies.concurrency, at)
        self.peers: dict[int, tuple[int, float]] = {}  # source: in flight, when reported
        self.peers_in_flight = 0
        self.reported_in_flight = 0

    def configure(self, policies: Policies, buckets: LogBuckets, now: float) -> None:
        """Go by other policies from now on; counts, guards and what was measured stay."""
        self._limit_at_most = self.limit = limit_of(self.record, policies)
        self._adapt_by(policies.concurrency, now)
        self.quarantine.policy = policies.quarantine
        for candidate in self.candidates.values():
            candidate.configure(policies, buckets, now)
        self.uncap()

    def _adapt_by(self, policy: ConcurrencyPolicy, now: float) -> None:
        """Have the limit follow latency, where that is the policy."""
        limiter = self.limiter
        if policy.mode is not ConcurrencyMode.ADAPTIVE:
            self.limiter = None
        elif limiter is None:
            self.limiter = AdaptiveLimit(self.id, policy, now)
        else:
            limiter.configure(policy, now)
        if self.limiter is not None:
            self.limit = self.cap = min(self._limit_at_most, self.limiter.limit)

    def adapt(self, limiter: AdaptiveLimit, now: float) -> None:
        """Take a new limit, where enough was learned for one."""
        wanted, self._passed_over = self.passed_over != self._passed_over, self.passed_over
        limit = min(self._limit_at_most, limiter.update(self.in_flight, wanted=wanted, now=now))
        if limit != self.limit:
            self.limit = limit
            if now >= self.capped_until:
                self.uncap()
            else:
                self.cap = min(self.cap, limit)
                self.regard()

    def hear(self, record: EndpointRecord) -> None:
        """Take a new record of it; what it said of its load itself goes on to hold."""
        self._told = record
        self._combine()

    def reported(self, report: LoadReport, at: float) -> bool:
        """Take what it said of its load at ``at``; True where that changes anything."""
        if at < self.report_at:
            return False
        self.report_at = at
        if report == self.report:
            return False
        self.report = report
        self._combine()
        return True

    def forget_report(self, before: float) -> bool:
        """Forget what it said of its load before ``before``; True where it had."""
        if self.report is None or self.report_at >= before:
            return False
        self.report = None
        self._combine()
        return True

    def _combine(self) -> None:
        told, report = self._told, self.report
        if report is None:
            self.record = told
            return
        self.record = replace(
            told,
            queue_depth=told.queue_depth if report.queue_depth is None else report.queue_depth,
            cpu_load=told.cpu_load if report.utilization is None else report.utilization,
            free_memory_ratio=told.free_memory_ratio if report.free_memory_ratio is None else report.free_memory_ratio,
        )

    def regard(self) -> None:
        """Bring what quick choices go by in line with the guards and the cap."""
        quarantined = self.quarantine.state is not GuardState.CLOSED
        cap = self.cap
        for candidate in self.candidates.values():
            candidate.guarded = quarantined or candidate.breaker.state is not GuardState.CLOSED
            candidate.most = -1 if candidate.guarded else cap

    def mark(self) -> None:
        """Have the tables of its routes follow what changed of it."""
        for candidate in self.candidates.values():
            for route in candidate.routes:
                route.mark(opened=False)

    def begin(self, now: float) -> None:
        """Count an attempt as in flight. ``Cluster.choose`` has this written out for speed."""
        self.in_flight += 1
        self.picked_at = now

    @property
    def full(self) -> bool:
        """True while as much is in flight here as may be."""
        return self.in_flight >= self.cap

    def waited_for(self) -> bool:
        """Return whether any request waits in a queue for one of its replicas."""
        return any(route.queued is not None for one in self.candidates.values() for route in one.routes)

    def uncap(self) -> None:
        """Forget that the pool had no connection left: it is found out again."""
        self.cap = self.limit
        self.regard()

    def found_full(self, now: float) -> None:
        """No more than what is in flight now fits, for want of a connection. That holds for a moment at least."""
        self.passed_over += 1
        self.capped_until = now + CAPPED_S
        self.cap = min(self.cap, self.in_flight)
        self.regard()

    def full_everywhere(self) -> bool:
        """Return whether this process, or each sibling process that reports, has as much in flight as may be."""
        if self.peers and self.limit < NO_LIMIT and self.limiter is None:
            return all(count >= self.limit for count, _ in self.peers.values())
        return self.full

    def pushed_back(self, until: float, now: float) -> bool:
        """Take it as busy until then; True where it was not before. The latest time that an answer named stands."""
        was_busy = now < self.busy_until
        self.busy_until = max(self.busy_until, until)
        return not was_busy and now < until

    def peer_reported(self, source: int, in_flight: int, at: float) -> None:
        """Replace what a sibling process said of itself."""
        self.peers[source] = (in_flight, at)
        self.peers_in_flight = sum(count for count, _ in self.peers.values())

    def forget_silent_peers(self, before: float) -> None:
        """Drop what sibling processes said before ``before``: they are gone, and their attempts with them."""
        if any(at < before for _, at in self.peers.values()):
            self.peers = {source: row for source, row in self.peers.items() if row[1] >= before}
            self.peers_in_flight = sum(count for count, _ in self.peers.values())


def limit_of(record: EndpointRecord, policies: Policies) -> int:
    """Return how many attempts of one process may be in flight at an endpoint.

    Over HTTP/1.1 each of them takes a connection, so the limit on connections is one on attempts.
    """
    limit = policies.requests_per_endpoint or NO_LIMIT
    return min(limit, policies.connections_per_endpoint or NO_LIMIT) if record.protocol == HTTP else limit


class Untold:
    """What siblings have not been told of a candidate yet, but for latencies: counts since the last time."""

    __slots__ = ("failed_calls", "failures", "others", "overdue", "slow", "unanswered")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.failures = self.unanswered = self.slow = self.others = self.overdue = self.failed_calls = 0


class Candidate:
    """One model version, or a shard of it, on one endpoint: what filters see, what attempts there took, its breaker.

    ``open_until`` is what a draw checks: minus infinity while a filter objects, else the moment at which it goes stale.
    ``fit_until`` is the same for one that may be picked where nobody else is left: it overlooks that it is busy.
    ``panic_until`` is the same where too few are left: it overlooks an open breaker, and that it is an outlier.
    ``shard`` is its number, -1 where it is all of the version (``router.groups.WHOLE``). ``group``: it answers together
    with others on other endpoints, and only the ``entry`` is asked. ``lacks`` says what keeps it from answering that is
    not its own state.
    ``prior_ms`` stands for the EWMA where that is unknown. ``age_s``, ``warm_for_s`` and ``busy`` are as of the last
    look. ``guarded``: the endpoint's quarantine or the breaker here is not closed, so an attempt is counted as a trial.
    ``most`` is what a quick choice goes by: the endpoint's ``cap``, or -1 where it must look closer. ``gone``: its
    endpoint offers it no longer, or left. ``taken`` is the shell's: what attempts took that are yet to be told to
    ``Cluster.learn``, seconds, by metrics row.
    """

    __slots__ = (
        "endpoint", "latency", "most", "open_until", "prior_ms",
        "age_s", "baseline", "breaker", "busy", "differs", "ejection", "entry", "fit_until", "gone", "group",
        "guarded", "inconsistent", "lacks", "lasting", "mismatches", "model", "not_ready_until", "order", "panic_until",
        "peers", "reason", "reason_since", "replica", "routes", "shard", "taken", "untold", "version", "warm_at",
        "warm_for_s",
    )  # fmt: skip

    def __init__(
        self,
        endpoint: Endpoint,
        replica: Replica,
        routes: tuple[Route, ...],
        policies: Policies,
        buckets: LogBuckets,
        now: float,
        *,
        shard: int,
        group: Group | None,
    ) -> None:
        self.endpoint = endpoint
        self.shard = shard
        self.group = group
        self.entry = group is None or shard == group.entry
        self.lacks: tuple[Lack, ...] = ()
        self.latency = Latency(policies.latency, buckets, peaks=_by_peaks(routes))
        self.breaker = Breaker(policies.breaker, now)
        self.baseline = Baseline(policies.breaker)
        self.guarded = False
        self.most = -1
        self.gone = False
        self.taken: dict[int, list[float]] = {}
        self.not_ready_until = -inf  # it said so in an answer
        self.untold = Untold()
        self.peers: dict[int, tuple[float, float]] = {}  # source: EWMA in ms, when reported
        self.model = replica.model
        self.version = replica.version
        self.replica = replica
        self.order = endpoint.id, replica.version, shard
        self.routes = routes
        self.open_until = -inf
        self.fit_until = -inf
        self.panic_until = -inf
        self.prior_ms = 1.0
        self.reason: Reason | None = None
        self.reason_since = -inf
        self.warm_at = inf
        self.age_s = 0.0
        self.warm_for_s = 0.0
        self.busy = False
        self.lasting = 1.0
        self.mismatches = 0  # heartbeats in a row at which it said that it loaded something else than most
        self.inconsistent = False
        self.differs = ""  # how, for people
        self.ejection = Ejection()

    @property
    def busy_until(self) -> float:
        """How long others are picked instead: its endpoint pushed back, or the model is not ready there."""
        return max(self.endpoint.busy_until, self.not_ready_until)

    def said_not_ready(self, until: float, now: float) -> bool:
        """Take it as not ready until then; True where it was not before."""
        was = now < self.not_ready_until
        self.not_ready_until = max(self.not_ready_until, until)
        return not was and now < until

    def configure(self, policies: Policies, buckets: LogBuckets, now: float) -> None:
        """Go by other policies from now on; counts, the breaker and what was measured stay."""
        self.latency.configure(policies.latency, buckets, now)
        self.breaker.configure(policies.breaker, now)
        self.baseline.policy = policies.breaker
        self.latency.slow_from(self.baseline.slow_ms)

    def settle(self, now: float) -> None:
        """Bring what is measured up to ``now``, and what is usual after it. About once a second."""
        latency = self.latency
        latency.settle(now)
        self.baseline.learn(latency.p95_ms, latency.samples, now)
        latency.slow_from(self.baseline.slow_ms)

    def measured(self, evidence: Evidence) -> Evidence:
        """Return what a breaker goes by with the latencies that are known now."""
        baseline = self.baseline
        slow_ms = baseline.slow_ms
        return replace(
            evidence,
            p95_ms=self.latency.p95_ms,
            baseline_ms=baseline.ms,
            slow_over_ms=None if slow_ms == inf else slow_ms,
        )

    def follow_balancer(self) -> None:
        """Measure as the balancer of its routes wants it, from now on."""
        self.latency.peaks = _by_peaks(self.routes)

    def known_ewma_ms(self) -> float | None:
        """Return the EWMA, else the mean of the siblings', else None."""
        if self.latency.ewma_ms:
            return self.latency.ewma_ms
        peers = self.peers
        return sum(ewma for ewma, _ in peers.values()) / len(peers) if peers else None

    def forget_silent_peers(self, before: float) -> None:
        """Drop averages that sibling processes told before ``before``."""
        if any(at < before for _, at in self.peers.values()):
            self.peers = {source: row for source, row in self.peers.items() if row[1] >= before}

    @property
    def record(self) -> EndpointRecord:
        """The endpoint's last report."""
        return self.endpoint.record

    @property
    def load(self) -> float:
        """How much this process has in flight at the endpoint."""
        return self.endpoint.in_flight

    @property
    def p95_ms(self) -> float | None:
        """P95 of attempts on it over the window, of all sidecars together; None where nothing was measured."""
        return self.latency.p95_ms

    @property
    def held(self) -> bool:
        """An operator drained it at this sidecar."""
        return self.endpoint.held

    @property
    def quarantined(self) -> bool:
        """It is in quarantine."""
        return self.endpoint.quarantine.active

    @property
    def broke_at(self) -> float:
        """When its connections last broke, minus infinity where they never did."""
        return self.endpoint.quarantine.since

    @property
    def outlier(self) -> bool:
        """It is out because it failed much more than the others of its version."""
        return self.ejection.active

    @property
    def breaker_open(self) -> bool:
        """Its breaker lets nothing through now."""
        return self.breaker.blocks

    def report(self, replica: Replica, at: float, *, from_start: bool) -> None:
        """Take the endpoint's new word on this replica.

        The warm moment is ``at`` less the reported age. While a replica stays warm, the earliest moment reported
        stands. ``from_start``: it counts as warm for ever if it is warm (a static endpoint seen for the first time).
        """
        was_warm = self.warm_at != inf and self.replica.generation == replica.generation
        self.replica = replica
        if replica.state is not State.WARM:
            self.warm_at = inf
        elif from_start:
            self.warm_at = -inf
        else:
            moment = at - replica.warm_for_s
            self.warm_at = min(self.warm_at, moment) if was_warm else moment


IN_ORDER: Final = attrgetter("order")
"""Candidates by endpoint id, version and shard."""


def several_versions(keys: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Return the models that are there in more than one version."""
    first: dict[str, str] = {}
    return frozenset(model for model, version in keys if first.setdefault(model, version) != version)


def _by_peaks(routes: tuple[Route, ...]) -> bool:
    """Return whether its balancer goes by peaks of the latency."""
    for route in routes:  # noqa: SIM110 (a generator costs as much as the rest of a latency, for each candidate that comes)
        if route.policy.balancer is BalancerName.PEAK_EWMA:
            return True
    return False
