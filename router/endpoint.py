"""What a cluster keeps of each endpoint, and of each model version that an endpoint offers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import ceil, exp, inf, log
from typing import TYPE_CHECKING, Any, Final

from router.baseline import Baseline
from router.breaker import Breaker, Ejection, GuardState, Quarantine
from router.concurrency import AdaptiveLimit
from router.model import HTTP, Replica, State
from router.policy import BalancerName, ConcurrencyMode
from router.stats import LEAST_MS, MOST_MS, LogBuckets, SketchWindow, quantiles_of, rebucketed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from router.groups import Group, Lack, Offer
    from router.model import EndpointRecord, Evidence, LoadReport
    from router.outcomes import Reason
    from router.policy import ConcurrencyPolicy, LatencyPolicy, Policies
    from router.routes import Route

_LEAST_S: Final = LEAST_MS / 1000
_MOST_S: Final = MOST_MS / 1000

SETTLE_S: Final = 0.5
"""How old the quantiles may be that weights are made from."""

CAPPED_S: Final = 0.1
"""How long an endpoint whose pool had no connection left is passed over at least, while nothing ends there."""

NO_LIMIT: Final = 1 << 62
"""More than can be in flight."""

NO_BUCKET: Final = 1 << 30
"""Above the index of every bucket."""

IDLE_S: Final = 1.0
"""Without a sample for this long, the EWMA drifts to the median of the window."""

FORGOTTEN_S: Final = 10.0
"""Without a sample for this long, the EWMA is unknown again: who was slow is asked once more. It is as long as ten
answers take where that is more, and the window at most."""
_TEN_OF_THEM: Final = 10 / 1000

YOUNG_S: Final = 4.0
YOUNG_SAMPLES: Final = 10
"""So long after the first sample, once there are so many, the EWMA is brought to the median of the window again and
again: else its first samples would weigh too much."""


class Latency:
    """What attempts on one replica took, own ones and those that sibling processes report.

    ``ewma_ms`` follows samples with the time constant ``ewma_decay_s``; 0 where nothing is known. Where ``peaks``, a
    longer sample replaces it at once and shorter ones pull it down over ``peak_decay_s``. ``slow_above`` is the bucket
    above which an attempt is a slow one. A sketch over the window gives ``own_p95_ms`` and ``p50_ms``; ``p95_ms`` is
    that of all sidecars, of which ``sidecars`` others count in it. ``changes`` counts the window's changes. A sample
    costs one bucket of ``fresh``; :meth:`settle` moves those to the window.
    """

    __slots__ = (
        "_buckets", "_changed", "_decay", "_drifted_at", "_others", "_others_at", "_peak_decay", "_settled_at",
        "_since", "_slots", "_unsent", "_window", "_window_s",
        "changes", "ewma_at", "ewma_ms", "fresh", "own_p95_ms", "p50_ms", "p95_ms", "peaks", "sampled_at", "sidecars",
        "slow_above",
    )  # fmt: skip

    def __init__(self, policy: LatencyPolicy, buckets: LogBuckets, *, peaks: bool = False) -> None:
        self._buckets = buckets
        self._decay = -1 / policy.ewma_decay_s
        self._peak_decay = -1 / policy.peak_decay_s
        self._window: SketchWindow | None = None  # made with the first measurement
        self._window_s = policy.window_s
        self._slots = policy.slots
        self._unsent: dict[int, int] = {}
        self._changed = False
        self._settled_at = -inf
        self._drifted_at = -inf
        self.fresh: dict[int, int] = {}
        self._since = inf  # when ``ewma_ms`` was found to be known at first
        self.peaks = peaks
        self.ewma_ms = 0.0
        self.slow_above = NO_BUCKET
        self.ewma_at = -inf  # so the first sample counts whole
        self.sampled_at = -inf
        self.p95_ms: float | None = None
        self.p50_ms: float | None = None
        self.own_p95_ms: float | None = None
        self.changes = 0
        self._others: dict[int, int] = {}
        self._others_at = -inf
        self.sidecars = 0

    def configure(self, policy: LatencyPolicy, buckets: LogBuckets, now: float) -> None:
        """Go by another policy from now on; what was measured stays."""
        self._decay = -1 / policy.ewma_decay_s
        self._peak_decay = -1 / policy.peak_decay_s
        old = self._buckets
        if buckets is old and policy.window_s == self._window_s and policy.slots == self._slots:
            return
        if self._window is not None:
            self._window = self._window.remade(buckets, policy.window_s, policy.slots, now)
        self._window_s = policy.window_s
        self._slots = policy.slots
        if buckets is not old:
            self._buckets = buckets
            self.fresh = rebucketed(self.fresh, old, buckets)
            self._unsent = rebucketed(self._unsent, old, buckets)
        self._others, self.sidecars = {}, 0  # whoever goes by this policy too will tell again
        self._changed = True
        self.changes += 1

    def sample(self, ms: float, now: float) -> None:
        """Take the duration of an attempt that succeeded."""
        self.count((ms / 1000,))
        self.average(ms, now)

    def slow_from(self, ms: float) -> None:
        """Have those count as slow that are in a bucket above that of ``ms``; infinity: none."""
        self.slow_above = NO_BUCKET if ms == inf else self._buckets.index(ms)

    def is_slow(self, ms: float) -> bool:
        """Return whether an attempt of this duration is a slow one."""
        return self.slow_above < NO_BUCKET and self._buckets.index(ms) > self.slow_above

    @property
    def samples(self) -> int:
        """How many attempts the quantiles are taken of."""
        return 0 if self._window is None else self._window.total

    def average(self, ms: float, now: float) -> None:
        """Take it into the EWMA alone."""
        ms = LEAST_MS if ms < LEAST_MS else min(ms, MOST_MS)
        average = self.ewma_ms
        if self.peaks:
            left = 0.0 if ms >= average else exp((now - self.ewma_at) * self._peak_decay)
        else:
            left = exp((now - self.ewma_at) * self._decay)
        self.ewma_ms = ms + (average - ms) * left
        self.ewma_at = now

    def count(self, seconds: Sequence[float]) -> int:
        """Take durations into the sketch alone; return how many of them were slow (:attr:`slow_above`)."""
        scale = self._buckets.scale
        if min(seconds) < _LEAST_S or max(seconds) > _MOST_S:
            seconds = [min(max(one, _LEAST_S), _MOST_S) for one in seconds]
        fresh = self.fresh
        slow_above = self.slow_above
        slow = 0
        for index, count in Counter([ceil(log(one * 1000.0) * scale) for one in seconds]).items():
            fresh[index] = fresh.get(index, 0) + count
            if index > slow_above:
                slow += count
        return slow

    def at_least(self, ms: float, now: float) -> None:
        """Take the duration of an attempt that did not succeed: it can only say "slower than thought"."""
        if ms > self.ewma_ms:
            self.ewma_ms = min(ms, MOST_MS)
            self.ewma_at = now

    def merge(self, pairs: tuple[tuple[int, int], ...], now: float) -> None:
        """Take a sibling process's buckets."""
        if pairs:
            self._filled(now).add(pairs, now)
            self._changed = True
            self.changes += 1
            self.sampled_at = now

    def told(self, pairs: tuple[tuple[int, int], ...], sidecars: int, at: float) -> None:
        """Take what other sidecars measured, in place of what they told before. It counts for one window from ``at``.

        It counts in ``p95_ms`` alone: averages, and what this sidecar tells in its turn, are of its own attempts.
        """
        self._others = dict(pairs)
        self._others_at = at
        self.sidecars = sidecars if pairs else 0
        self._changed = True

    @property
    def counts(self) -> dict[int, int]:
        """What this sidecar measured within the window, as of the last settling: counts by bucket. For reading."""
        return {} if self._window is None else self._window.counts

    def _filled(self, now: float) -> SketchWindow:
        if self._window is None:
            self._window = SketchWindow(self._buckets, self._window_s, self._slots, now)
        return self._window

    @property
    def idle(self) -> bool:
        """True where nothing was ever measured: there is nothing to settle or to tell."""
        return self._window is None and not self.fresh and not self._others and not self._changed

    def settle_seldom(self, now: float) -> None:
        """Settle where that was not done lately, or nothing is known yet."""
        if self.p95_ms is None or now - self._settled_at >= SETTLE_S:
            self.settle(now)

    def settle(self, now: float) -> None:
        """Bring the window and what is derived from it up to ``now``."""
        self._settled_at = now
        if self.fresh:
            self._filled(now).add(self.fresh.items(), now)
            for index, count in self.fresh.items():
                self._unsent[index] = self._unsent.get(index, 0) + count
            self.fresh = {}
            self._changed = True
            self.changes += 1
            self.sampled_at = max(self.sampled_at, self.ewma_at)
        elif self._window is not None and self._window.total and self._window.advance(now):
            self._changed = True
            self.changes += 1
        if self._others and now - self._others_at >= self._window_s:
            self._others, self.sidecars = {}, 0
            self._changed = True
        if self._changed:
            self._changed = False
            counts = self.counts
            values = quantiles_of(counts, self._buckets, (0.5, 0.95))
            self.p50_ms, self.own_p95_ms = values or (None, None)
            self.p95_ms = self.own_p95_ms
            if self._others:
                counts = counts.copy()
                for index, count in self._others.items():
                    counts[index] = counts.get(index, 0) + count
                values = quantiles_of(counts, self._buckets, (0.95,))
                self.p95_ms = values[0] if values else None
        if self.ewma_ms:
            self._regard(now)

    def _regard(self, now: float) -> None:
        """Mend what samples alone would say: while there are few, and after there were none for long."""
        if self._since > now:
            self._since = now
        idle_s = now - max(self.ewma_at, self._since)
        if idle_s >= max(FORGOTTEN_S, min(self._window_s, self.ewma_ms * _TEN_OF_THEM)):
            self.ewma_ms = 0.0
            self.ewma_at = -inf
        elif self.p50_ms is None:
            return
        elif idle_s >= IDLE_S:
            since_s = now - max(self.ewma_at, self._drifted_at)
            self.ewma_ms = self.p50_ms + (self.ewma_ms - self.p50_ms) * exp(since_s * self._decay)
            self._drifted_at = now
        elif now - self._since < YOUNG_S and not self.peaks and self.samples >= YOUNG_SAMPLES:
            self.ewma_ms = self.p50_ms

    def take_unsent(self, now: float) -> tuple[tuple[int, int], ...]:
        """Return own buckets since the last call, in order of index."""
        if self.fresh:
            self.settle(now)
        if not self._unsent:
            return ()
        pairs = tuple(sorted(self._unsent.items()))
        self._unsent = {}
        return pairs


class Endpoint:
    """One worker process as this sidecar process sees it. A new epoch under the same id is a new Endpoint.

    ``in_flight`` counts this process's attempts, ``peers_in_flight`` the siblings' as last reported. ``shell`` is free
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
        "id", "address", "epoch", "record", "in_flight", "shell",
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

    @property
    def full(self) -> bool:
        """True while as much is in flight here as may be."""
        return self.in_flight >= self.cap

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

    __slots__ = ("failures", "others", "slow", "unanswered")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.failures = self.unanswered = self.slow = self.others = 0


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
        "age_s", "baseline", "breaker", "busy", "ejection", "entry", "fit_until", "gone", "group", "guarded",
        "inconsistent", "lacks", "lasting", "mismatches", "model", "not_ready_until", "panic_until", "peers", "reason",
        "reason_since", "replica", "routes", "shard", "taken", "untold", "version", "warm_at", "warm_for_s",
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


def several_versions(keys: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Return the models that are there in more than one version."""
    first: dict[str, str] = {}
    return frozenset(model for model, version in keys if first.setdefault(model, version) != version)


def _by_peaks(routes: tuple[Route, ...]) -> bool:
    """Return whether its balancer goes by peaks of the latency."""
    return any(route.policy.balancer is BalancerName.PEAK_EWMA for route in routes)
