"""Why a decision is what it is: every term of every candidate, its age, the runners-up, and who is left out and why.

Everything here reads and nothing writes: it looks at candidates through :class:`Glance`, which holds what depends on
the moment, and hands out frozen rows that turn into JSON as they are. Where a field is None, it is unknown or has no
meaning for that row.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from router.balancers import Anyone
from router.breaker import GuardState
from router.evidence import BreakerRow, breaker_row
from router.groups import FEW, unfit
from router.lasting import idle_s_of, lasting_at
from router.model import WHOLE, StoreMode
from router.outcomes import Reason
from router.outlier import PANIC_OVERLOOKS, panics
from router.protocols import Compared
from router.routes import UNMEASURED_MS, NoCandidate, Weighing, expected_wait, weigh
from router.stats import median
from router.versions import is_left_out, served_version

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router.endpoint import Candidate, Endpoint, Latency
    from router.groups import Lack
    from router.model import EndpointRecord, Replica
    from router.policy import FreshnessPolicy, Policies, WarmthPolicy
    from router.protocols import Balancer, Measure, Rng, Sample, Scorer
    from router.protocols import Candidate as CandidateView
    from router.routes import Route

_SOONEST_FIRST = (
    Reason.AT_LIMIT,
    Reason.BUSY,
    Reason.QUARANTINED,
    Reason.BREAKER_OPEN,
    Reason.STALE,
    Reason.NOT_WARM,
    Reason.UNPROVEN,
    Reason.DRAINING,
    Reason.HELD,
    Reason.GROUP_INCOMPLETE,
    Reason.OTHER_VERSION,
    Reason.NOT_ENTRY,
)
"""Which reason is named where as many candidates share it: the one that is likely to pass first."""

_EJECTED = frozenset({Reason.QUARANTINED, Reason.BREAKER_OPEN, Reason.OUTLIER})
_WARM_ALL_THE_SAME = _EJECTED | {Reason.BUSY, Reason.AT_LIMIT}
"""Reasons that say of now, not of whether a replica could serve."""

_PANIC = "; panic: so few are left that those which are ejected are picked too"
_ALL_BUSY = "; all that are left pushed back, so they are picked all the same"


@dataclass(frozen=True, slots=True)
class Term:
    """One signal's part in a weight: ``contribution = coefficient x score``.

    ``raw`` is in ``unit``. ``unknown``: there is no value, and ``score`` is the candidates' median (0.5 without any).
    ``age_s`` is how long ago the value was reported or measured. What a balancer without weights goes by is ``raw``
    alone, as of now: such a term has no score, coefficient or contribution.
    """

    name: str
    unit: str
    raw: float | None
    score: float | None
    unknown: bool
    coefficient: float | None
    contribution: float | None
    age_s: float | None


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """One replica in a route. Weights and shares are 0 where ``reason`` says why it may not be picked.

    ``share`` is the probability of one draw. Where the balancer knows no weights, each is 1, and so are ``freshness``
    and ``ramp``. ``for_s`` is how long ``reason`` has held, ``left_s`` how long an ejection
    lasts at most. ``probe_due``: it is in quarantine, and the next request goes there to see whether it answers again.
    ``warm_for_s`` is None for a replica that counts as warm for ever (a static endpoint), and for one
    that is not warm. ``warmth`` is what is proven of each shape class; ``idle_s`` how long it did nothing, and
    ``lasting`` the share of the warmth that this leaves. ``proven_ago_s``: warm-up requests of this sidecar proved it.
    ``shard`` is None where it is all of the version, ``group`` where it answers for itself; ``lacks`` is what the group
    is incomplete for. ``ewma_known`` is false where ``ewma_ms`` stands for the candidates' median.
    ``p95_ms`` is of this sidecar's
    attempts and those of ``sidecars`` others, ``own_p95_ms`` of its own alone; ``queue_time_ms`` of it on average is
    waiting in the endpoint's queue, where that is known.
    ``expected_wait_ms`` is that of one more attempt of one process, with what that has in flight itself.
    """

    endpoint: str
    address: str
    model: str
    version: str
    state: str
    reason: Reason | None
    for_s: float | None
    left_s: float | None
    probe_due: bool
    age_s: float
    warm_for_s: float | None
    freshness: float
    ramp: float
    weight: float
    share: float
    floored: bool
    terms: tuple[Term, ...]
    p95_ms: float | None
    ewma_ms: float | None
    ewma_known: bool
    in_flight: int
    peers_in_flight: int
    expected_wait_ms: float | None
    breaker: BreakerRow
    warmth: tuple[tuple[str, float], ...] = ()
    idle_s: float = 0.0
    lasting: float = 1.0
    proven_ago_s: float | None = None
    shard: int | None = None
    group: str | None = None
    lacks: tuple[str, ...] = ()
    own_p95_ms: float | None = None
    sidecars: int = 0
    queue_time_ms: float | None = None


@dataclass(frozen=True, slots=True)
class VersionRow:
    """One version of a model, in order, newest first, and how requests that name none get there.

    ``share`` is the part of them that it takes now, None where all versions serve alike; ``weight`` its weight in a
    split. ``ready``: so many of its ``replicas`` may be picked.
    """

    version: str
    replicas: int
    ready: int
    share: float | None
    weight: float | None
    note: str


@dataclass(frozen=True, slots=True)
class SampleDraw:
    """What a choice would do now with one random draw: those drawn, each once, and why one of them wins."""

    drawn: tuple[str, ...]
    winner: str
    why: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """One decision laid open. ``rows``: candidates by falling share, then those left out, by endpoint id.

    ``probe`` names the endpoint that the next request goes to because its quarantine is over.
    """

    route: str
    model: str
    version: str
    mode: StoreMode
    balancer: str
    law: str
    rows: tuple[CandidateRow, ...]
    probe: str | None
    draw: SampleDraw | None
    nobody: NoCandidate | None
    serve: str = "any"
    versions: tuple[VersionRow, ...] = ()


@dataclass(frozen=True, slots=True)
class RouteRow:
    """One route with its candidates, in the order of :class:`Explanation`; ``entry`` is the shard asked for a group.

    ``panic``: those that are ejected are picked too.
    """

    key: str
    model: str
    version: str
    protocol: str
    default: bool
    idempotent: bool
    balancer: str
    candidates: tuple[CandidateRow, ...]
    serve: str = "any"
    versions: tuple[VersionRow, ...] = ()
    entry: int = 0
    panic: bool = False


class Glance:
    """A candidate at one moment, as filters, scorers and balancers see it, without touching it.

    ``prior_ms`` is set for those that may be picked, who are so without end here. ``load`` is what is in flight in the
    process that decides; where that is none of this cluster, what a sibling process has in the mean.
    """

    __slots__ = (
        "_now",
        "age_s",
        "candidate",
        "endpoint",
        "fit_until",
        "idle_s",
        "lasting",
        "lacks",
        "load",
        "open_until",
        "panic_until",
        "prior_ms",
        "version",
        "warm_for_s",
    )

    def __init__(self, candidate: Candidate, age_s: float, now: float, policy: WarmthPolicy, *, decides: bool) -> None:
        self.candidate = candidate
        self.endpoint = endpoint = candidate.endpoint
        self.load = float(endpoint.in_flight) if decides else endpoint.peers_in_flight / max(1, len(endpoint.peers))
        self.version = candidate.version
        self.open_until = self.fit_until = self.panic_until = inf
        self.prior_ms = UNMEASURED_MS
        self.age_s = age_s
        self.warm_for_s = max(0.0, now - candidate.warm_at)
        self.idle_s = idle_s_of(candidate, age_s, now)
        self.lasting = lasting_at(self.idle_s, policy)
        self.lacks: tuple[Lack, ...] = candidate.lacks
        self._now = now

    @property
    def record(self) -> EndpointRecord:
        """The endpoint's last report."""
        return self.candidate.endpoint.record

    @property
    def replica(self) -> Replica:
        """The replica as last reported."""
        return self.candidate.replica

    @property
    def latency(self) -> Latency:
        """What attempts on it took."""
        return self.candidate.latency

    @property
    def p95_ms(self) -> float | None:
        """P95 of attempts on it."""
        return self.candidate.p95_ms

    @property
    def held(self) -> bool:
        """An operator drained it at this sidecar."""
        return self.candidate.held

    @property
    def broke_at(self) -> float:
        """When its connections last broke."""
        return self.candidate.broke_at

    @property
    def quarantined(self) -> bool:
        """It is in quarantine."""
        return self.candidate.quarantined

    @property
    def entry(self) -> bool:
        """It is asked itself, not through another one of its group."""
        return self.candidate.entry

    @property
    def breaker_open(self) -> bool:
        """Its breaker would let nothing through at this moment."""
        breaker = self.candidate.breaker
        return breaker.blocks and not (breaker.state is GuardState.OPEN and self._now >= breaker.until)

    @property
    def outlier(self) -> bool:
        """It is out as an outlier at this moment."""
        return self.candidate.ejection.active and self._now < self.candidate.ejection.until

    @property
    def inconsistent(self) -> bool:
        """It keeps saying that it loaded something else than most."""
        return self.candidate.inconsistent

    @property
    def busy(self) -> bool:
        """It pushed back, or said that it is not ready, for longer than this moment."""
        return self._now < self.candidate.busy_until


@dataclass(frozen=True, slots=True)
class View:
    """What a cluster lets an explanation see of it."""

    policies: Policies
    mode: StoreMode
    scorers: Sequence[tuple[Scorer, float]]
    verdict: Callable[[CandidateView], Reason | None]
    age_s: Callable[[Endpoint, float], float]
    decides: bool

    def look(self, route: Route, now: float) -> tuple[list[Glance], list[tuple[Glance, Reason]]]:
        """Return those that may be picked now, and those that may not, with the reason."""
        open_, out = self.look_at_all(route, now)
        serve = route.serve
        if serve is None:
            return open_, out
        pickable = {glance.version for glance in open_}
        pickable |= {glance.version for glance, reason in out if reason in (Reason.BUSY, Reason.AT_LIMIT)}
        served = served_version(serve, pickable)
        stay: list[Glance] = []
        left: list[tuple[Glance, Reason]] = []
        for glance in open_:
            if is_left_out(serve, glance.version, served, ejected=False):
                left.append((glance, Reason.OTHER_VERSION))
            else:
                stay.append(glance)
        for glance, reason in out:
            other = reason in _WARM_ALL_THE_SAME and is_left_out(
                serve, glance.version, served, ejected=reason in _EJECTED
            )
            left.append((glance, Reason.OTHER_VERSION if other else reason))
        return stay, left

    def look_at_all(self, route: Route, now: float) -> tuple[list[Glance], list[tuple[Glance, Reason]]]:
        """Return the same, whichever version takes the route's requests."""
        open_: list[Glance] = []
        out: list[tuple[Glance, Reason]] = []
        for candidate in route.candidates:
            glance = self._glance(candidate, now)
            reason = self.verdict(glance)
            if (reason is None or reason is Reason.BUSY) and candidate.endpoint.full_everywhere():
                reason = Reason.AT_LIMIT
            if reason is None:
                open_.append(glance)
            else:
                out.append((glance, reason))
        return open_, out

    def _glance(self, candidate: Candidate, now: float) -> Glance:
        """Look at a candidate, and where it is asked for a group, at what that lacks and how its weakest does."""
        age_s = self.age_s(candidate.endpoint, now)
        glance = Glance(candidate, age_s, now, self.policies.warmth, decides=self.decides)
        group = candidate.group
        if group is not None and candidate.entry:
            for member in group.others(candidate):
                other = self._glance(member, now)
                glance.age_s = max(glance.age_s, other.age_s)
                glance.warm_for_s = min(glance.warm_for_s, other.warm_for_s)
            glance.lacks = group.lacks(
                candidate, lambda member: unfit(member, self.verdict(self._glance(member, now)), now)
            )
        return glance


@dataclass(frozen=True, slots=True)
class _Standing:
    """Those of a route that may be picked now, as its balancer sees them."""

    balancer: Balancer  # a twin of the route's own
    open: list[Glance]
    out: list[tuple[Glance, Reason]]
    all_busy: bool
    panic: bool
    weighing: Weighing
    key: bytes | None


def _look(view: View, route: Route, now: float, key: bytes | None) -> _Standing:
    open_, out = view.look(route, now)
    all_busy = not open_
    ejected = [glance for glance, reason in out if reason in PANIC_OVERLOOKS and glance.entry]
    panic = panics(len(open_), len(ejected), view.policies.outlier)
    if panic:
        open_ = [*open_, *ejected]
        out = [(glance, reason) for glance, reason in out if reason not in PANIC_OVERLOOKS or not glance.entry]
    open_, out = _overlook_busy(open_, out)
    balancer = (route.busy_balancer if all_busy else route.balancer).twin()
    if balancer.weighs(key):
        weighing = weigh(open_, view.scorers, view.policies, view.mode)
    else:
        alike = [1.0] * len(open_)
        weighing = Weighing(alike, alike, [], alike, 0.0)
    middle = median(glance.candidate.known_ewma_ms() for glance in open_) or UNMEASURED_MS
    for glance in open_:
        known = glance.candidate.known_ewma_ms()
        glance.prior_ms = middle if known is None else known
    balancer.arrange(open_, weighing.weights)
    return _Standing(balancer, open_, out, all_busy, panic, weighing, key)


def explain(view: View, route: Route, now: float, rng: Rng, key: bytes | None = None) -> Explanation:
    """Lay open the decision that would be made on ``route`` now, for a request with ``key``."""
    standing = _look(view, route, now, key)
    open_, balancer = standing.open, standing.balancer
    rows = _rows(standing, now)
    probe = next((row.endpoint for row in rows if row.probe_due), None)
    draw = None
    if open_ and probe is None:
        sample = balancer.sample(Anyone(), rng, key)
        decisive = {(row.endpoint, row.version): row for row in rows if row.reason is None}
        draw = None if sample is None else _draw(sample, standing, decisive)
    return Explanation(
        route=route.key,
        model=route.model,
        version=route.version,
        mode=view.mode,
        balancer=balancer.name,
        law=_law(view, standing)
        + (_ALL_BUSY if standing.all_busy and open_ else "")
        + (_PANIC if standing.panic else ""),
        rows=rows,
        probe=probe,
        draw=draw,
        nobody=None if open_ or probe else nobody(route, standing.out, view.policies.freshness, now),
    )


def route_row(view: View, route: Route, now: float, *, default: bool) -> RouteRow:
    """Show one route."""
    standing = _look(view, route, now, None)
    rows, policy, name = _rows(standing, now), route.policy, standing.balancer.name
    of = (route.key, route.model, route.version, route.protocol)
    row = RouteRow(*of, default, policy.idempotent, name, rows, entry=policy.shards.entry)
    return replace(row, panic=standing.panic) if standing.panic else row


def _overlook_busy(
    open_: list[Glance], out: list[tuple[Glance, Reason]]
) -> tuple[list[Glance], list[tuple[Glance, Reason]]]:
    """Let in those that pushed back where nobody else is left, as a choice does."""
    if open_:
        return open_, out
    busy = [glance for glance, reason in out if reason is Reason.BUSY]
    return busy, [(glance, reason) for glance, reason in out if reason is not Reason.BUSY]


def nobody(route: Route, out: Sequence[tuple[Glance, Reason]], policy: FreshnessPolicy, now: float) -> NoCandidate:
    """Say why a route has nobody: the reason that most share, counts of all, and when the first may be back.

    Those that answer through others are no reason, unless there is nobody to answer through.
    """
    if not out:
        return NoCandidate(Reason.NO_ENDPOINTS, policy.heartbeat_s, f"no endpoint serves {route.key}")
    asked = [(glance, reason) for glance, reason in out if glance.entry]
    if not asked:
        entry = route.policy.shards.entry
        detail = f"{route.key}: no endpoint holds shard {entry}, which takes the requests"
        return NoCandidate(Reason.GROUP_INCOMPLETE, policy.heartbeat_s, detail)
    out = asked
    counts = Counter(reason for _, reason in out)
    most = max(counts.values())
    leading = [reason for reason, count in counts.items() if count == most]
    reason = next((reason for reason in _SOONEST_FIRST if reason in leading), leading[0])
    parts = ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda kv: (-kv[1], kv[0])))
    wait_s = min(_back_in_s(glance.candidate, why, policy, now) for glance, why in out)
    lacks = next((glance.lacks for glance, why in out if why is Reason.GROUP_INCOMPLETE), ())
    more = f" ({', '.join(map(str, lacks[:FEW]))})" if lacks else ""
    return NoCandidate(reason, wait_s, f"{route.key}: none of {len(out)} can be picked: {parts}{more}")


def at_limit(key: str, full: Sequence[Endpoint], policies: Policies) -> NoCandidate:
    """Say that whoever could take the request has as much in flight as may be."""
    least = min(endpoint.limit for endpoint in full)
    if any(endpoint.limiter is not None and endpoint.limiter.limit == endpoint.limit for endpoint in full):
        named = f"policies.concurrency: {least} at the moment"
    elif least != policies.requests_per_endpoint or any(endpoint.cap < endpoint.limit for endpoint in full):
        named = "limits.connections_per_endpoint"
    else:
        named = f"limits.requests_per_endpoint: {least}"
    return NoCandidate(Reason.AT_LIMIT, 1.0, f"{key}: all {len(full)} that could take it are at their limit ({named})")


def only_tried(endpoint_id: str, retry_after_s: float) -> NoCandidate:
    """Say that the one endpoint left is the one that has just been tried."""
    return NoCandidate(Reason.ALREADY_TRIED, retry_after_s, f"only {endpoint_id} is left, and it has been tried")


def _back_in_s(candidate: Candidate, reason: Reason, policy: FreshnessPolicy, now: float) -> float:
    if reason is Reason.QUARANTINED:
        at = candidate.endpoint.quarantine.probe_at(alone=True)
        return policy.heartbeat_s if at == inf else max(0.0, at - now)
    if reason is Reason.BREAKER_OPEN:
        return max(0.0, candidate.breaker.until - now) or policy.heartbeat_s
    if reason is Reason.OUTLIER:
        return max(0.0, candidate.ejection.until - now)
    if reason is Reason.BUSY:
        return max(0.0, candidate.busy_until - now)
    return policy.heartbeat_s


def _rows(standing: _Standing, now: float) -> tuple[CandidateRow, ...]:
    weighing, open_ = standing.weighing, standing.open
    middle = median(glance.candidate.known_ewma_ms() for glance in open_)
    shares = standing.balancer.shares(standing.key)
    measures = standing.balancer.measures(standing.key)
    rows: list[CandidateRow] = []
    for index, glance in enumerate(open_):
        weight = weighing.weights[index]
        rows.append(
            _row(
                glance,
                now,
                middle,
                freshness=weighing.freshness[index],
                ramp=weighing.ramp[index],
                weight=weight,
                share=shares[index],
                floored=weight == weighing.floor and weight > 0,
                terms=(*_terms(glance, weighing, index, now), *map(_measured, measures[index])),
            )
        )
    rows.sort(key=lambda row: (-row.share, row.endpoint, row.version))
    return (*rows, *(_row(glance, now, middle, reason=reason, alone=not open_) for glance, reason in standing.out))


def _terms(glance: Glance, weighing: Weighing, index: int, now: float) -> tuple[Term, ...]:
    sampled_at = glance.candidate.latency.sampled_at
    measured_s = None if sampled_at == -inf else max(0.0, now - sampled_at)
    return tuple(
        Term(
            name=column.scorer.name,
            unit=column.scorer.unit,
            raw=column.scorer.raw(glance),
            score=column.scores[index],
            unknown=column.known[index] is None,
            coefficient=column.coefficient,
            contribution=column.coefficient * column.scores[index],
            age_s=measured_s if column.scorer.observed else glance.age_s,
        )
        for column in weighing.columns
    )


def _measured(measure: Measure) -> Term:
    name, unit, value = measure
    return Term(name, unit, value, None, False, None, None, 0.0)


def _row(
    glance: Glance,
    now: float,
    middle: float | None,
    *,
    reason: Reason | None = None,
    freshness: float = 0.0,
    ramp: float = 0.0,
    weight: float = 0.0,
    share: float = 0.0,
    floored: bool = False,
    terms: tuple[Term, ...] = (),
    alone: bool = False,
) -> CandidateRow:
    candidate = glance.candidate
    endpoint = candidate.endpoint
    known = candidate.known_ewma_ms()
    ewma_ms = middle if known is None else known
    return CandidateRow(
        endpoint=endpoint.id,
        address=endpoint.address,
        model=candidate.model,
        version=candidate.version,
        state=candidate.replica.state.value,
        reason=reason,
        for_s=_for_s(candidate, reason, now),
        left_s=_left_s(candidate, reason, now),
        probe_due=reason is Reason.QUARANTINED and endpoint.quarantine.probe_at(alone=alone) <= now,
        age_s=glance.age_s,
        warm_for_s=glance.warm_for_s if -inf < candidate.warm_at < inf else None,
        freshness=freshness,
        ramp=ramp,
        weight=weight,
        share=share,
        floored=floored,
        terms=terms,
        p95_ms=glance.p95_ms,
        ewma_ms=ewma_ms,
        ewma_known=known is not None,
        in_flight=endpoint.in_flight,
        peers_in_flight=endpoint.peers_in_flight,
        expected_wait_ms=None if ewma_ms is None else expected_wait(ewma_ms, glance.load),
        breaker=breaker_row(candidate, now),
        warmth=candidate.replica.warmth,
        idle_s=glance.idle_s,
        lasting=glance.lasting,
        proven_ago_s=_ago_s(candidate.replica.proven_at, now),
        shard=None if candidate.shard == WHOLE else candidate.shard,
        group=None if candidate.group is None else candidate.group.name,
        lacks=tuple(map(str, glance.lacks)),
        own_p95_ms=candidate.latency.own_p95_ms,
        sidecars=candidate.latency.sidecars,
        queue_time_ms=endpoint.record.queue_time_ms,
    )


def _ago_s(at: float | None, now: float) -> float | None:
    return None if at is None or at == -inf else max(0.0, now - at)


def _for_s(candidate: Candidate, reason: Reason | None, now: float) -> float | None:
    if reason is None:
        return None
    if reason is Reason.QUARANTINED:
        return max(0.0, now - candidate.endpoint.quarantine.since)
    if reason is Reason.BREAKER_OPEN:
        return max(0.0, now - candidate.breaker.since)
    if reason is Reason.OUTLIER:
        return max(0.0, now - candidate.ejection.since)
    return max(0.0, now - candidate.reason_since) if candidate.reason is reason else 0.0


def _left_s(candidate: Candidate, reason: Reason | None, now: float) -> float | None:
    if reason is Reason.QUARANTINED:
        return max(0.0, candidate.endpoint.quarantine.until - now)
    if reason is Reason.BREAKER_OPEN:
        return max(0.0, candidate.breaker.until - now)
    if reason is Reason.OUTLIER:
        return max(0.0, candidate.ejection.until - now)
    if reason is Reason.BUSY:
        return max(0.0, candidate.busy_until - now)
    return None


def _draw(sample: Sample, standing: _Standing, rows: dict[tuple[str, str], CandidateRow]) -> SampleDraw:
    """Put a balancer's choice into words."""
    loads = {(glance.endpoint.id, glance.version): glance.load for glance in standing.open}
    keys = list(dict.fromkeys((one.endpoint.id, one.version) for one in sample.drawn))
    winner = sample.winner.endpoint.id, sample.winner.version
    drawn = tuple(endpoint for endpoint, _ in keys)
    if sample.compared is None:
        return SampleDraw(drawn, winner[0], sample.why)
    if sample.compared is Compared.WAIT:
        texts = [_wait_text(rows[key], loads[key]) for key in keys]
        costs = [expected_wait(rows[key].ewma_ms or UNMEASURED_MS, loads[key]) for key in keys]
        first, lowest = "no other's expected wait is lower", "the lowest expected wait wins"
        if standing.balancer.weighs(standing.key):
            first += " by more than a tenth"
    else:
        texts = [_load_text(rows[key]) for key in keys]
        costs = [float(rows[key].in_flight + rows[key].peers_in_flight) for key in keys]
        first, lowest = "the other has no fewer in flight", "the one with fewer in flight wins"
    if len(keys) == 1:
        why = "nobody else was drawn"
    elif winner == keys[0]:
        why = lowest if costs[0] < min(costs[1:]) else f"the first drawn wins: {first}"
    else:
        why = lowest
    return SampleDraw(drawn, winner[0], "; ".join([why, *texts]))


def _wait_text(row: CandidateRow, load: float) -> str:
    if row.ewma_ms is None:
        return f"{row.endpoint}: nothing measured, {load + 1:.3g} in flight with this one"
    wait_ms = row.expected_wait_ms
    return f"{row.endpoint}: {row.ewma_ms:.3g} ms x {load + 1:.3g} in flight with this one = {wait_ms:.3g} ms"


def _load_text(row: CandidateRow) -> str:
    return f"{row.endpoint}: {row.in_flight + row.peers_in_flight + 1} in flight with this one"


def _law(view: View, standing: _Standing) -> str:
    balancer, weighing = standing.balancer, standing.weighing
    if not balancer.weighs(standing.key):
        return f"{balancer.first}{balancer.name}: {balancer.goes_by}"
    keyless = "without a key: " if balancer.weighs(None) and not balancer.weighs(b"") else ""
    if view.mode is StoreMode.UNIFORM:
        return f"{balancer.first}{keyless}weight = 1 for each (nothing known to go by)"
    terms = " + ".join(f"{column.coefficient:g} x {column.scorer.name}" for column in weighing.columns)
    law = f"weight = freshness x ramp x ({terms or 0}), at least {weighing.floor:.3g}; four drawn, lowest wait wins"
    return balancer.first + keyless + law
