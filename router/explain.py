"""Why a decision is what it is: every term of every candidate, its age, the runners-up, and who is left out and why.

Everything here reads and nothing writes: it looks at candidates through ``router.glance``, and hands out frozen rows
that turn into JSON as they are. Where a field is None, it is unknown or has no meaning for that row.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from router.evidence import BreakerRow, breaker_row
from router.fits import Anyone
from router.model import WHOLE, StoreMode
from router.nobody import nobody
from router.outcomes import Reason
from router.placing import places, stand
from router.protocols import Compared
from router.routes import UNMEASURED_MS, NoCandidate, Weighing, expected_wait
from router.turns import ROWS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.endpoint import Candidate
    from router.glance import Glance, View
    from router.placing import Placed, RouteStanding, Standing
    from router.protocols import Measure, Rng, Sample
    from router.routes import Route
    from router.turns import Turns

_PANIC = "; panic: so few are left that those which are ejected are picked too"
_OLDEST = "{} are as good, with as much in flight and about as fast: the one picked longest ago wins"
_EACH_FOR_ITSELF = ", which each data process knows for itself"
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
    is incomplete for, or how an inconsistent replica differs from most. ``ewma_known`` is false where ``ewma_ms``
    stands for the candidates' median.
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
class VersionLack:
    """What keeps a version from taking all requests that come over one protocol, in words: no replica of shard 1 ..."""

    protocol: str
    what: str


@dataclass(frozen=True, slots=True)
class VersionRow:
    """One version of a model, in order, newest first, and how requests that name none get there.

    ``share`` is the part of them that it takes now, None where all versions serve alike; ``weight`` its weight in a
    split. ``ready``: so many of its ``replicas`` may be picked. ``lacks`` says what it has not to take all of them:
    somebody at every shard, over every protocol that the model is served over.
    """

    version: str
    replicas: int
    ready: int
    share: float | None
    weight: float | None
    note: str
    lacks: tuple[VersionLack, ...] = ()


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


def explain(view: View, route: Route, now: float, rng: Rng, key: bytes | None = None) -> Turns[Explanation]:
    """Lay open the decision that would be made on ``route`` now, for a request with ``key``."""
    standing = yield from stand(view, route, now, key)
    open_, balancer = standing.open, standing.balancer
    rows = yield from rows_of(places(standing), now)
    probe = next((row.endpoint for row in rows if row.probe_due), None)
    draw = None
    if open_ and probe is None:
        sample = balancer.sample(Anyone(), rng, key)
        decisive = {(row.endpoint, row.version): row for row in rows if row.reason is None}
        draw = None if sample is None else _draw(sample, standing, decisive, decides=view.decides)
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


def route_row(stood: RouteStanding, now: float) -> Turns[RouteRow]:
    """Show one route with its candidates."""
    route = stood.route
    candidates = yield from rows_of(stood.places, now)
    return RouteRow(
        key=route.key,
        model=route.model,
        version=route.version,
        protocol=route.protocol,
        default=stood.default,
        idempotent=route.policy.idempotent,
        balancer=stood.balancer,
        candidates=candidates,
        serve=stood.serve,
        versions=stood.versions,
        entry=route.policy.shards.entry,
        panic=stood.panic,
    )


def rows_of(placed: Sequence[Placed], now: float) -> Turns[tuple[CandidateRow, ...]]:
    """Return a row for each, in their order."""
    rows: list[CandidateRow] = []
    for count, place in enumerate(placed, 1):
        rows.append(_row(place, now))
        if count % ROWS == 0:
            yield None
    return tuple(rows)


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


def _row(place: Placed, now: float) -> CandidateRow:
    glance, standing, reason, at = place.glance, place.standing, place.reason, place.at
    weighing, weight = standing.weighing, place.weight
    terms: tuple[Term, ...] = ()
    if at >= 0:
        terms = (*_terms(glance, weighing, at, now), *map(_measured, standing.measures[at]))
    candidate = glance.candidate
    endpoint = candidate.endpoint
    known = candidate.known_ewma_ms()
    ewma_ms = standing.middle_ms if known is None else known
    return CandidateRow(
        endpoint=endpoint.id,
        address=endpoint.address,
        model=candidate.model,
        version=candidate.version,
        state=candidate.replica.state.value,
        reason=reason,
        for_s=_for_s(candidate, reason, now),
        left_s=_left_s(candidate, reason, now),
        probe_due=place.probe_due(now),
        age_s=glance.age_s,
        warm_for_s=glance.warm_for_s if -inf < candidate.warm_at < inf else None,
        freshness=weighing.freshness[at] if at >= 0 else 0.0,
        ramp=weighing.ramp[at] if at >= 0 else 0.0,
        weight=weight,
        share=place.share,
        floored=at >= 0 and weight == weighing.floor and weight > 0,
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
        lacks=place.lacks,
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


def _draw(
    sample: Sample, standing: Standing, rows: dict[tuple[str, str], CandidateRow], *, decides: bool
) -> SampleDraw:
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
    elif sample.alike:
        why = _OLDEST.format(sample.alike + 1) + ("" if decides else _EACH_FOR_ITSELF)
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


def _law(view: View, standing: Standing) -> str:
    balancer, weighing = standing.balancer, standing.weighing
    if not balancer.weighs(standing.key):
        return f"{balancer.first}{balancer.name}: {balancer.goes_by}"
    keyless = "without a key: " if balancer.weighs(None) and not balancer.weighs(b"") else ""
    if view.mode is StoreMode.UNIFORM:
        return f"{balancer.first}{keyless}weight = 1 for each (nothing known to go by)"
    terms = " + ".join(f"{column.coefficient:g} x {column.scorer.name}" for column in weighing.columns)
    law = f"weight = freshness x ramp x ({terms or 0}), at least {weighing.floor:.3g}"
    law += "; four drawn, lowest wait wins, of busy ones that are alike the one picked longest ago"
    return balancer.first + keyless + law
