"""What ``/metrics`` shows of the fleet, as the control process sees it."""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import TYPE_CHECKING, Final

from router.breaker import GuardState
from router.model import HTTP, BreakerRule
from router.outcomes import Reason
from router.turns import LOOKS
from sidecar.http1.reports import REFUSED
from sidecar.state.steering import Stage
from sidecar.telemetry import families as f
from sidecar.telemetry.page import OVERFLOW_KEY
from sidecar.telemetry.prometheus import label_text
from sidecar.upstreams.metrics_page import REFUSALS
from sidecar.upstreams.orca import REASONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from router.placing import Placed, RouteStanding
    from router.turns import Turns
    from sidecar.state.steering import Steering
    from sidecar.telemetry.bounds import Bounds
    from sidecar.telemetry.exposition import Seen
    from sidecar.telemetry.prometheus import Exposition

_GUARD: Final = {GuardState.CLOSED: 0, GuardState.OPEN: 1, GuardState.HALF_OPEN: 2}


def records(out: Exposition, seen: Seen, now: float, bounds: Bounds) -> Turns[None]:
    """Show the endpoints, by what is known of each."""
    keeper = seen.keeper
    sources: Counter[str] = Counter({source.name: 0 for source in keeper.sources})
    looked_up = {endpoint.id for endpoint in seen.dns.endpoints}
    for count, (record, source, heard_at) in enumerate(tuple(keeper.roster.records()), 1):
        sources[seen.dns.name if source == seen.static.name and record.id in looked_up else source] += 1
        if record.id in bounds.endpoints:
            pairs = label_text(f.HELD.labels, (record.id,))
            if not record.static:
                out.add_labelled(f.ENDPOINT_AGE, max(0.0, now - heard_at), pairs)
            out.add_labelled(f.HELD, record.id in keeper.roster.held, pairs)
            endpoint = keeper.cluster.endpoints.get(record.id)
            if endpoint is not None:
                out.add_labelled(f.QUARANTINED, endpoint.quarantine.active, pairs)
                if endpoint.record.queue_time_ms is not None:
                    out.add_labelled(f.QUEUE_TIME, endpoint.record.queue_time_ms / 1000, pairs)
        if count % LOOKS == 0:
            yield None
    for source, number in sources.items():
        out.add(f.ENDPOINTS, number, source)


def routes(out: Exposition, seen: Seen, now: float, bounds: Bounds) -> Turns[None]:
    """Show the routes with their replicas and groups."""
    groups: dict[tuple[str, str], Counter[bool]] = {}
    cluster = seen.keeper.cluster
    for stood in cluster.standings_in_turns(now, bounds.shows, versions=False):
        if stood is None:
            yield None
            continue
        route = stood.route
        out.add(f.PANIC, stood.panic, route.key if route.protocol == HTTP else f"{route.protocol}:{route.key}")
        if not route.version:  # the routes of single versions have the same replicas again
            yield from _replicas(out, stood.places, seen.keeper.guards.opened, bounds)
            _count_groups(groups, stood, bounds)
            yield None
    for (model, version), found in sorted(groups.items()):
        for state, whole in (("complete", True), ("incomplete", False)):
            out.add(f.GROUPS, found[whole], model, version, state)


def sources(out: Exposition, seen: Seen, now: float, bounds: Bounds) -> None:
    """Show how lookups, probes and warm-ups went, and what was refused of loads that were reported."""
    for (name, kind), followed in seen.dns.followed.items():
        label = f"{kind.value}:{name}"
        for result in ("found", "empty", "failed"):
            out.add(f.DNS_LOOKUPS, getattr(followed, f"{result}_total"), label, result)
        out.add(f.DNS_SECONDS, followed.seconds_total, label)
        out.add(f.DNS_ENDPOINTS, len(followed.places or ()), label)
        out.add(f.DNS_PASSED_OVER, followed.passed_over, label)
        if followed.good_at > -inf:
            out.add(f.DNS_AGE, now - followed.good_at, label)
    for labels, failures in _summed(((bounds.endpoints.label(id_),), n) for id_, n in seen.static.failures.items()):
        out.add(f.PROBE_FAILURES, failures, *labels)
    costs = seen.probe_costs
    out.add(f.PROBE_QUESTIONS, costs.questions)
    out.add(f.PROBE_SECONDS, costs.seconds)
    out.add(f.PROBE_BYTES, costs.read_bytes)
    out.add(f.PROBE_LATE, seen.static.pace.late)
    model = bounds.models.label
    for labels, count in _summed(((model(of), *rest), n) for (of, *rest), n in seen.warmed.results.items()):
        out.add(f.WARMUPS, count, *labels)
    for labels, seconds in _summed(((model(of), shape), s) for (of, shape), s in seen.warmed.seconds.items()):
        out.add(f.WARMUP_SECONDS, seconds, *labels)
    for labels, count in _summed(((model(of),), n) for of, n in seen.warmed.warming.items()):
        out.add(f.WARMING, count, *labels)
    out.add(f.LOAD_STREAMS, seen.streams.open_now)
    out.add(f.LOADS_STREAMED, seen.streams.taken)
    for reason in REASONS:
        out.add(f.SIGNALS_REFUSED, seen.streams.refused[reason], "stream", reason)
    for reason in REFUSALS:
        out.add(f.SIGNALS_REFUSED, seen.static.refused[reason], "probe", reason)
    for reason, scalar in zip(REASONS, REFUSED, strict=True):
        out.add(f.SIGNALS_REFUSED, sum(page.words[page.scalar(scalar)] for page in seen.pages), "answer", reason)
    out.add(f.FAULTS_ACTIVE, len(seen.keeper.roster.faults))


def _summed(counts: Iterable[tuple[tuple[str, ...], float]]) -> list[tuple[tuple[str, ...], float]]:
    """Add up what has the same labels; return it in order of these."""
    sums: dict[tuple[str, ...], float] = {}
    for labels, count in counts:
        sums[labels] = sums.get(labels, 0) + count
    return sorted(sums.items())


def versions(out: Exposition, steering: Steering, now: float, bounds: Bounds) -> Turns[None]:
    """Show which versions take a model's requests, and how they do."""
    for model in steering.models:
        if model not in bounds.models:
            continue
        for row in (yield from steering.shown_in_turns(model, now)):
            if row.share is not None and OVERFLOW_KEY not in bounds.of_version(model, row.version):
                out.add(f.VERSION_SHARE, row.share, model, row.version)
        stage = steering.stage_of(model)
        if stage is not None:
            for each in Stage:
                out.add(f.ROLLOUT_STAGE, stage[0] is each, model, each.value)
    for at, result in enumerate(("ok", "failed")):
        for labels, count in _summed((bounds.of_version(*of), counts[at]) for of, counts in steering.attempts.items()):
            out.add(f.VERSION_ATTEMPTS, count, *labels, result)
        yield None
    for labels, count in _summed(((bounds.models.label(of), by), n) for (of, by), n in steering.changes.items()):
        out.add(f.VERSION_CHANGES, count, *labels)


def _replicas(
    out: Exposition,
    places: Iterable[Placed],
    opened: Mapping[str, Counter[tuple[str, str, int, BreakerRule]]],
    bounds: Bounds,
) -> Turns[None]:
    for count, place in enumerate(places, 1):
        if count % LOOKS == 0:
            yield None
        candidate = place.glance.candidate
        id_, model, version, shard = candidate.endpoint.id, candidate.model, candidate.version, candidate.shard
        if not bounds.shows_replica(id_, model):
            continue
        pairs = label_text(f.BREAKER.labels, (id_, model, version, _shard(shard)))
        out.add_labelled(f.BREAKER, _GUARD[candidate.breaker.state], pairs)
        out.add_labelled(f.OUTLIER, candidate.ejection.active, pairs)
        out.add_labelled(f.REPLICA_STATE, 1, f'{pairs},state="{candidate.replica.state}"')
        out.add_labelled(f.REPLICA_WEIGHT, place.weight, pairs)
        out.add_labelled(f.REPLICA_SHARE, place.share, pairs)
        if place.glance.p95_ms is not None:
            out.add_labelled(f.REPLICA_P95, place.glance.p95_ms / 1000, pairs)
        if place.reason is not None:
            out.add_labelled(f.REPLICA_OUT, 1, f'{pairs},reason="{place.reason}"')
        if id_ in opened:
            for rule in BreakerRule:
                if times := opened[id_][model, version, shard, rule]:
                    out.add_labelled(f.BREAKER_OPENED, times, f'{pairs},rule="{rule}"')


def _shard(number: int) -> str:
    """Return a shard's label; what is whole is all of shard 0."""
    return str(max(0, number))


def _count_groups(groups: dict[tuple[str, str], Counter[bool]], stood: RouteStanding, bounds: Bounds) -> None:
    """Count the groups of each model and version: complete where whoever is asked for one lacks nothing.

    Those of its protocols are counted together. Replicas of one name on two generations are two groups.
    """
    complete: dict[tuple[str, str, int], bool] = {}
    entry = stood.route.policy.shards.entry
    for place in stood.places:
        candidate = place.glance.candidate
        if candidate.group is not None:
            whole = candidate.shard == entry and not place.glance.lacks and place.reason is not Reason.INCONSISTENT
            of = candidate.version, candidate.group.name, candidate.replica.generation
            complete[of] = complete.get(of, False) or whole
    for (version, _, _), whole in complete.items():
        groups.setdefault(bounds.of_version(stood.route.model, version), Counter())[whole] += 1
