"""What ``/metrics`` shows: the pages of the data processes, summed, and the control process's own view of the fleet."""

from __future__ import annotations

import platform
from collections import Counter
from math import inf
from typing import TYPE_CHECKING, Protocol

from router.admission import Refusal
from router.breaker import GuardState
from router.hints import REASONS as HINT_REASONS
from router.model import HTTP, StoreMode
from router.outcomes import AttemptResult, Outcome
from router.sketches import Refused as RefusedRow
from router.wire import REASONS as WIRE_REASONS
from sidecar.cache.terms import Refused
from sidecar.faults import KINDS
from sidecar.http1.reports import REFUSED
from sidecar.http1.sorting import kinds_of
from sidecar.loading import RESULTS
from sidecar.state.steering import Stage
from sidecar.state.view import Count
from sidecar.telemetry import families as f
from sidecar.telemetry.ladder_words import BY_STEP
from sidecar.telemetry.page import (
    BUCKETS_S,
    ENDPOINT_EJECTIONS,
    ENDPOINT_HISTOGRAM,
    ENDPOINT_IN_FLIGHT,
    ENDPOINT_LIMIT,
    ENDPOINT_PASSED_OVER,
    ENDPOINT_WORDS,
    LADDER_WORDS,
    MAGIC,
    MODEL_ADMITTED_NOW,
    MODEL_ADMITTED_SHARE,
    MODEL_FIRST_BYTE,
    MODEL_LADDER,
    MODEL_OUTCOMES,
    MODEL_QUEUE_NOW,
    MODEL_QUEUED,
    MODEL_TURNED_AWAY,
    MODEL_TURNED_AWAY_END,
    MODEL_WORDS,
    OVERFLOW_KEY,
    OVERLOAD_NOW,
    REFUSAL_WORDS,
    LadderWord,
    Page,
    Scalar,
    admitted_shares,
)
from sidecar.telemetry.prometheus import Exposition, Family
from sidecar.upstreams.metrics_page import REFUSALS
from sidecar.upstreams.orca import REASONS
from sidecar.version import is_compiled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.explain import RouteRow
    from sidecar.config.state import ConfigState
    from sidecar.discovery.dns import DnsSource
    from sidecar.discovery.load_streams import LoadStreams
    from sidecar.discovery.static import StaticSource
    from sidecar.discovery.warming import WarmedSource
    from sidecar.loading import Loader
    from sidecar.settings import Settings
    from sidecar.state.answers import SharedAnswers
    from sidecar.state.keeper import Keeper
    from sidecar.state.steering import Steering
    from sidecar.state.store import RedisSource
    from sidecar.tls.expiry import ExpiryWatch
    from sidecar.upstreams.probes import Costs

# here and not with the layout, which the supervisor loads too: it needs neither enum
assert len(Refusal) <= REFUSAL_WORDS  # noqa: S101
assert LadderWord.REFUSED + len(Refused) <= LadderWord.SHARED_FILLS  # noqa: S101

_BUCKETS = len(BUCKETS_S) + 1
_OUTCOMES = [outcome.value for outcome in Outcome]
_REFUSALS = [refusal.value for refusal in Refusal]
_RESULTS = [result.value for result in AttemptResult]
_GUARD = {GuardState.CLOSED: 0, GuardState.OPEN: 1, GuardState.HALF_OPEN: 2}

_SUMMED: dict[Scalar, Family] = {
    Scalar.CONNECTIONS_TOTAL: f.CONNECTIONS,
    Scalar.RECEIVED_BYTES: f.RECEIVED_BYTES,
    Scalar.SENT_BYTES: f.SENT_BYTES,
    Scalar.UPSTREAM_CONNECTIONS_TOTAL: f.UPSTREAM,
    Scalar.UPSTREAM_POISONED_TOTAL: f.UPSTREAM_POISONED,
    Scalar.UPSTREAM_STALE_TOTAL: f.UPSTREAM_STALE,
    Scalar.RETRIES_TOTAL: f.RETRIES,
    Scalar.RETRIES_DENIED_TOTAL: f.RETRIES_DENIED,
    Scalar.HEDGES_TOTAL: f.HEDGES,
    Scalar.HEDGES_WON_TOTAL: f.HEDGES_WON,
    Scalar.HEDGES_DENIED_TOTAL: f.HEDGES_DENIED,
    Scalar.REFUSED_CONNECTIONS_TOTAL: f.CONNECTIONS_REFUSED,
    Scalar.OVERLOAD_REFUSED_TOTAL: f.OVERLOAD_REFUSED,
    Scalar.OVERLOAD_SHED_TOTAL: f.OVERLOAD_SHED,
    Scalar.CONNECTIONS_AGED_TOTAL: f.CONNECTIONS_AGED,
    Scalar.SLOW_READERS_TOTAL: f.SLOW_READERS,
    Scalar.FAULTS_INJECTED_TOTAL: f.FAULTS_INJECTED,
    Scalar.FAULTS_FAILED_TOTAL: f.FAULTS_FAILED,
    Scalar.REJECTED_MESSAGES_TOTAL: f.REJECTED,
    Scalar.TUNNELS_TOTAL: f.TUNNELS,
    Scalar.GRPC_RESENT_TOTAL: f.GRPC_RESENT,
    Scalar.GRPC_REFUSED_TOTAL: f.GRPC_REFUSED,
    Scalar.LOAD_REPORTS_TOTAL: f.LOAD_REPORTS,
    Scalar.BACKGROUND_TOTAL: f.BACKGROUND,
    Scalar.NAME_LOOKUPS_TOTAL: f.NAME_LOOKUPS,
    Scalar.NAME_LOOKUPS_FAILED_TOTAL: f.NAME_LOOKUPS_FAILED,
    Scalar.VERSION_MOVED_TOTAL: f.VERSION_MOVED,
    Scalar.MIRRORS_TOTAL: f.MIRRORS,
    Scalar.MIRRORS_FAILED_TOTAL: f.MIRRORS_FAILED,
    Scalar.MIRRORS_DROPPED_TOTAL: f.MIRRORS_DROPPED,
    Scalar.TLS_HANDSHAKES_TOTAL: f.TLS_HANDSHAKES,
    Scalar.TLS_HANDSHAKES_FAILED_TOTAL: f.TLS_HANDSHAKES_FAILED,
    Scalar.TLS_HANDSHAKES_REFUSED_TOTAL: f.TLS_HANDSHAKES_REFUSED,
    Scalar.TLS_PEERS_REJECTED_TOTAL: f.TLS_PEERS_REJECTED,
    Scalar.TLS_UPSTREAM_FAILED_TOTAL: f.TLS_UPSTREAM_FAILED,
    Scalar.TLS_RELOADS_TOTAL: f.TLS_RELOADS,
    Scalar.TLS_RELOADS_FAILED_TOTAL: f.TLS_RELOADS_FAILED,
}
_AFFINITY: dict[str, Scalar] = {
    "hit": Scalar.AFFINITY_HITS_TOTAL,
    "declined": Scalar.AFFINITY_DECLINED_TOTAL,
    "unseen": Scalar.AFFINITY_UNSEEN_TOTAL,
}
_PER_PROCESS: dict[Scalar, tuple[Family, float]] = {
    Scalar.CONNECTIONS_NOW: (f.CONNECTIONS_NOW, 1),
    Scalar.REQUESTS_NOW: (f.REQUESTS_NOW, 1),
    Scalar.TUNNELS_NOW: (f.TUNNELS_NOW, 1),
    Scalar.UPSTREAM_CONNECTIONS_NOW: (f.UPSTREAM_NOW, 1),
    Scalar.UPSTREAM_POOLED_NOW: (f.UPSTREAM_POOLED, 1),
    Scalar.TLS_HANDSHAKES_NOW: (f.TLS_HANDSHAKES_NOW, 1),
    Scalar.CHANNEL_DROPPED_TOTAL: (f.CHANNEL_DROPPED, 1),
    Scalar.CONTROL_LOST_NOW: (f.PROCESS_CONTROL_LOST, 1),
    Scalar.LOOP_LAG_US_NOW: (f.PROCESS_LAG, 1e-6),
    Scalar.DRAINING_NOW: (f.PROCESS_DRAINING, 1),
    Scalar.RESTARTS_TOTAL: (f.PROCESS_RESTARTS, 1),
    Scalar.OPEN_FILES_NOW: (f.PROCESS_FILES, 1),
    Scalar.MAX_FILES_NOW: (f.PROCESS_MAX_FILES, 1),
    Scalar.RESIDENT_BYTES_NOW: (f.PROCESS_MEMORY, 1),
    Scalar.MEMORY_LIMIT_BYTES_NOW: (f.PROCESS_MEMORY_LIMIT, 1),
    Scalar.TASKS_NOW: (f.PROCESS_TASKS, 1),
}
"""Scalars by process, with the factor to the family's unit."""

_COUNTED: dict[Count, Family] = {
    Count.READS: f.STORE_READS,
    Count.DELTAS: f.STORE_DELTAS,
    Count.GAPS: f.STORE_GAPS,
    Count.EMPTIED: f.STORE_EMPTIED,
    Count.EXPIRED: f.STORE_EXPIRED,
}


_LADDER_FAMILIES = (
    (f.CACHE_ENTRIES, LadderWord.ENTRIES_NOW),
    (f.CACHE_BYTES, LadderWord.BYTES_NOW),
    (f.CACHE_FILLS, LadderWord.FILLS),
    (f.CACHE_EVICTED, LadderWord.EVICTED),
    (f.CACHE_MISSES, LadderWord.MISSES),
)


_SHARED = (
    ("filled", LadderWord.SHARED_FILLS),
    ("dropped", LadderWord.SHARED_DROPPED),
    ("hit", LadderWord.SHARED_HITS),
    ("miss", LadderWord.SHARED_MISSES),
    ("refused", LadderWord.SHARED_REFUSED),
)


class Seen(Protocol):
    """What the exposition looks at, all of it owned by the control process."""

    keeper: Keeper
    pages: Sequence[Page]
    store: RedisSource | None
    answers: SharedAnswers | None
    static: StaticSource
    warmed: WarmedSource
    streams: LoadStreams
    dns: DnsSource
    probe_costs: Costs
    version: str
    started_at: float
    draining: bool
    certificates: ExpiryWatch
    config: ConfigState
    loader: Loader
    settings: Settings


def render(seen: Seen, now: float) -> bytes:
    """Return the whole exposition as of ``now`` (monotonic seconds)."""
    out = Exposition(f.FAMILIES)
    pages = [page for page in seen.pages if page.words[0] == MAGIC]
    models = _model_sums(pages)
    _models(out, models)
    _ladders(out, seen.pages, models)
    _queues(out, models, seen)
    _endpoints(out, pages, seen)
    _scalars(out, seen, now)
    _fleet(out, seen, now)
    _store(out, seen)
    for ending in seen.certificates.endings:
        out.add(f.TLS_NOT_AFTER, ending.not_after, ending.of, ending.kind)
    out.add(f.BUILD, 1, seen.version, platform.python_version(), str(is_compiled()).lower())
    _config(out, seen.config)
    out.add(f.CONTROL_UPTIME, now - seen.started_at)
    out.add(f.DRAINING, seen.draining)
    return out.render()


def _config(out: Exposition, state: ConfigState) -> None:
    out.add(f.CONFIG, 1, state.revision)
    out.add(f.CONFIG_LOADED, state.loaded_at)
    out.add(f.CONFIG_BAD, state.bad_since is not None)
    out.add(f.CONFIG_BAD_SINCE, state.bad_since or 0)
    out.add(f.CONFIG_NEEDS_RESTART, len(state.needs_restart))
    for result in ("taken", "unchanged", "withheld", "refused"):
        out.add(f.CONFIG_RELOADS, getattr(state, result), result)


def _model_sums(pages: Sequence[Page]) -> dict[str, list[int]]:
    """Return each model's row, added up over the processes, in order of name."""
    sums: dict[str, list[int]] = {}
    for page in pages:
        for key, row in page.models():
            _add_row(sums, key, page.words[row : row + MODEL_WORDS].tolist())
    return dict(sorted(sums.items()))


def _models(out: Exposition, sums: dict[str, list[int]]) -> None:
    for key, row_sum in sums.items():
        for index, outcome in enumerate(_OUTCOMES):
            if row_sum[index] or index == 0:
                out.add(f.REQUESTS, row_sum[index], key, outcome)
        _histogram(out, f.REQUEST_DURATION, row_sum, MODEL_OUTCOMES, key)
        if any(row_sum[MODEL_FIRST_BYTE : MODEL_FIRST_BYTE + _BUCKETS]):
            _histogram(out, f.FIRST_BYTE, row_sum, MODEL_FIRST_BYTE, key)


def _ladders(out: Exposition, pages: Sequence[Page], sums: dict[str, list[int]]) -> None:
    for index, page in enumerate(pages):
        if page.words[0] != MAGIC:
            continue
        for key, row in page.models():
            step = page.words[row + MODEL_LADDER + LadderWord.STEP_NOW]
            if step:
                out.add(f.LADDER_STEP, step, str(index), key)
    for key, row_sum in sums.items():
        words = row_sum[MODEL_LADDER : MODEL_LADDER + LADDER_WORDS]
        if not any(words):
            continue
        for step, word in BY_STEP.items():
            out.add(f.LADDER_ANSWERS, words[word], key, step.name.lower())
        for family, word in _LADDER_FAMILIES:
            out.add(family, words[word], key)
        for result, word in _SHARED:
            if words[word]:
                out.add(f.CACHE_SHARED, words[word], key, result)
        for why in Refused:
            if words[LadderWord.REFUSED + why]:
                out.add(f.CACHE_REFUSED, words[LadderWord.REFUSED + why], key, why.name.lower())


def _queues(out: Exposition, sums: dict[str, list[int]], seen: Seen) -> None:
    kinds = kinds_of(seen.settings.policies.admission)
    shares = admitted_shares(seen.pages, seen.keeper.alive)
    for key, row_sum in sums.items():
        waited = any(row_sum[MODEL_QUEUED : MODEL_QUEUED + _BUCKETS])
        refused = any(row_sum[MODEL_TURNED_AWAY:MODEL_TURNED_AWAY_END])
        if waited or refused or row_sum[MODEL_QUEUE_NOW]:
            out.add(f.QUEUED, row_sum[MODEL_QUEUE_NOW], key)
            _histogram(out, f.QUEUE_WAIT, row_sum, MODEL_QUEUED, key)
            for kind, name in enumerate(kinds):
                at = MODEL_TURNED_AWAY + kind * REFUSAL_WORDS
                for index, reason in enumerate(_REFUSALS):
                    if row_sum[at + index]:
                        out.add(f.TURNED_AWAY, row_sum[at + index], key, name, reason)
        if row_sum[MODEL_ADMITTED_SHARE]:
            out.add(f.ADMITTED, row_sum[MODEL_ADMITTED_NOW], key)
            out.add(f.ADMITTED_LIMIT, shares[key], key)
    for result in RESULTS:
        out.add(f.LOADS, seen.loader.counts[result], result)


def _endpoints(out: Exposition, pages: Sequence[Page], seen: Seen) -> None:
    sums: dict[str, list[int]] = {}
    for page in pages:
        for key, row in page.endpoints():
            _add_row(sums, key, page.words[row : row + ENDPOINT_WORDS].tolist())
    there = seen.keeper.roster
    for key, row_sum in sorted(sums.items()):
        # a process that died cannot delete its rows; and what we do not know yet, after a start, may well be there
        if key not in there and key != OVERFLOW_KEY and seen.keeper.complete:
            continue
        for index, result in enumerate(_RESULTS):
            if row_sum[index] or index == 0:
                out.add(f.ATTEMPTS, row_sum[index], key, result)
        out.add(f.ATTEMPTS_NOW, row_sum[ENDPOINT_IN_FLIGHT], key)
        out.add(f.EJECTIONS, row_sum[ENDPOINT_EJECTIONS], key)
        out.add(f.AT_LIMIT, row_sum[ENDPOINT_PASSED_OVER], key)
        if row_sum[ENDPOINT_LIMIT]:
            out.add(f.ENDPOINT_LIMIT, row_sum[ENDPOINT_LIMIT], key)
        _histogram(out, f.ATTEMPT_DURATION, row_sum, ENDPOINT_HISTOGRAM, key)


def _add_row(sums: dict[str, list[int]], key: str, words: list[int]) -> None:
    before = sums.get(key)
    sums[key] = words if before is None else [a + b for a, b in zip(before, words, strict=True)]


def _histogram(out: Exposition, family: Family, row: list[int], at: int, key: str) -> None:
    out.add_histogram(family, BUCKETS_S, row[at : at + _BUCKETS], row[at + _BUCKETS] / 1e6, key)


def _scalars(out: Exposition, seen: Seen, now: float) -> None:
    for scalar, family in _SUMMED.items():
        out.add(family, sum(page.words[page.scalar(scalar)] for page in seen.pages))
    lookups_us = sum(page.words[page.scalar(Scalar.NAME_LOOKUP_US_TOTAL)] for page in seen.pages)
    out.add(f.NAME_LOOKUP_SECONDS, lookups_us / 1e6)
    for result, scalar in _AFFINITY.items():
        out.add(f.AFFINITY, sum(page.words[page.scalar(scalar)] for page in seen.pages), result)
    for kind in KINDS:
        scalar = Scalar[f"FAULTS_{kind.upper()}_TOTAL"]
        out.add(f.FAULTS_BY_KIND, sum(page.words[page.scalar(scalar)] for page in seen.pages), kind)
    for process, page, port in zip(seen.keeper.processes, seen.pages, seen.keeper.feed.ports, strict=True):
        label = str(process.index)
        for scalar, (family, factor) in _PER_PROCESS.items():
            out.add(family, page.words[page.scalar(scalar)] * factor, label)
        for resource, level in OVERLOAD_NOW.items():
            out.add(f.OVERLOAD, page.words[page.scalar(level)], label, resource.value)
        mode_now = page.words[page.scalar(Scalar.STORE_MODE_NOW)]
        for index, mode in enumerate(StoreMode):
            out.add(f.PROCESS_STORE_MODE, index == mode_now, label, mode.value)
        out.add(f.PROCESS_CONFIG, page.words[page.scalar(Scalar.CONFIG_NOW)] == seen.config.sequence, label)
        up = process.speaks(now)
        out.add(f.PROCESS_UP, up, label)
        if up:
            out.add(f.PROCESS_UPTIME, max(0.0, now - page.words[3] / 1e9), label)
        out.add(f.CHANNEL_BEHIND, port.behind, label)
        out.add(f.CHANNEL_BEHIND_TOTAL, port.behind_total, label)
        out.add(f.CHANNEL_TOO_LARGE, port.too_large_total, label)


def _fleet(out: Exposition, seen: Seen, now: float) -> None:
    keeper = seen.keeper
    sources = {source.name: 0 for source in keeper.sources}
    looked_up = {endpoint.id for endpoint in seen.dns.endpoints}
    for record, source, heard_at in keeper.roster.records():
        sources[seen.dns.name if source == seen.static.name and record.id in looked_up else source] += 1
        if not record.static:
            out.add(f.ENDPOINT_AGE, max(0.0, now - heard_at), record.id)
        out.add(f.HELD, record.id in keeper.roster.held, record.id)
        endpoint = keeper.cluster.endpoints.get(record.id)
        if endpoint is not None:
            for candidate in endpoint.candidates.values():
                of = (record.id, candidate.model, candidate.version, _shard(candidate.shard))
                out.add(f.BREAKER, _GUARD[candidate.breaker.state], *of)
                out.add(f.OUTLIER, candidate.ejection.active, *of)
            for (model, version, shard, rule), count in keeper.guards.opened.get(record.id, {}).items():
                if (model, version, shard) in endpoint.candidates:
                    out.add(f.BREAKER_OPENED, count, record.id, model, version, _shard(shard), rule.value)
            out.add(f.QUARANTINED, endpoint.quarantine.active, record.id)
            if endpoint.record.queue_time_ms is not None:
                out.add(f.QUEUE_TIME, endpoint.record.queue_time_ms / 1000, record.id)
    for source, count in sources.items():
        out.add(f.ENDPOINTS, count, source)
    groups: dict[tuple[str, str], Counter[bool]] = {}
    for route in keeper.cluster.routes(now):
        out.add(f.PANIC, route.panic, route.key if route.protocol == HTTP else f"{route.protocol}:{route.key}")
        if not route.version:  # the routes of single versions show the same replicas again
            _replicas(out, route)
            _count_groups(groups, route)
    for (model, version), found in sorted(groups.items()):
        for state, whole in (("complete", True), ("incomplete", False)):
            out.add(f.GROUPS, found[whole], model, version, state)
    for (name, kind), followed in seen.dns.followed.items():
        label = f"{kind.value}:{name}"
        for result in ("found", "empty", "failed"):
            out.add(f.DNS_LOOKUPS, getattr(followed, f"{result}_total"), label, result)
        out.add(f.DNS_SECONDS, followed.seconds_total, label)
        out.add(f.DNS_ENDPOINTS, len(followed.places or ()), label)
        out.add(f.DNS_PASSED_OVER, followed.passed_over, label)
        if followed.good_at > -inf:
            out.add(f.DNS_AGE, now - followed.good_at, label)
    for endpoint_id, failures in sorted(seen.static.failures.items()):
        out.add(f.PROBE_FAILURES, failures, endpoint_id)
    costs = seen.probe_costs
    out.add(f.PROBE_QUESTIONS, costs.questions)
    out.add(f.PROBE_SECONDS, costs.seconds)
    out.add(f.PROBE_BYTES, costs.read_bytes)
    out.add(f.PROBE_LATE, seen.static.pace.late)
    for labels, count in sorted(seen.warmed.results.items()):
        out.add(f.WARMUPS, count, *labels)
    for (model, shape_class), seconds in sorted(seen.warmed.seconds.items()):
        out.add(f.WARMUP_SECONDS, seconds, model, shape_class)
    for model, count in seen.warmed.warming.items():
        out.add(f.WARMING, count, model)
    out.add(f.LOAD_STREAMS, seen.streams.open_now)
    out.add(f.LOADS_STREAMED, seen.streams.taken)
    for reason in REASONS:
        out.add(f.SIGNALS_REFUSED, seen.streams.refused[reason], "stream", reason)
    for reason in REFUSALS:
        out.add(f.SIGNALS_REFUSED, seen.static.refused[reason], "probe", reason)
    for reason, scalar in zip(REASONS, REFUSED, strict=True):
        out.add(f.SIGNALS_REFUSED, sum(page.words[page.scalar(scalar)] for page in seen.pages), "answer", reason)
    _versions(out, keeper.steering, now)
    out.add(f.FAULTS_ACTIVE, len(keeper.roster.faults))


def _versions(out: Exposition, steering: Steering, now: float) -> None:
    for model in steering.models:
        for row in steering.shown(model, now):
            if row.share is not None:
                out.add(f.VERSION_SHARE, row.share, model, row.version)
        stage = steering.stage_of(model)
        if stage is not None:
            for each in Stage:
                out.add(f.ROLLOUT_STAGE, stage[0] is each, model, each.value)
    for (model, version), (passed, failed) in sorted(steering.attempts.items()):
        out.add(f.VERSION_ATTEMPTS, passed, model, version, "ok")
        out.add(f.VERSION_ATTEMPTS, failed, model, version, "failed")
    for (model, cause), count in sorted(steering.changes.items()):
        out.add(f.VERSION_CHANGES, count, model, cause)


def _replicas(out: Exposition, route: RouteRow) -> None:
    for row in route.candidates:
        labels = (row.endpoint, row.model, row.version, _shard(row.shard or 0))
        out.add(f.REPLICA_STATE, 1, *labels, row.state)
        out.add(f.REPLICA_WEIGHT, row.weight, *labels)
        out.add(f.REPLICA_SHARE, row.share, *labels)
        if row.p95_ms is not None:
            out.add(f.REPLICA_P95, row.p95_ms / 1000, *labels)
        if row.reason is not None:
            out.add(f.REPLICA_OUT, 1, *labels, row.reason.value)


def _shard(number: int) -> str:
    """Return a shard's label; what is whole is all of shard 0."""
    return str(max(0, number))


def _count_groups(groups: dict[tuple[str, str], Counter[bool]], route: RouteRow) -> None:
    """Count the groups of each model and version: complete where whoever is asked for one lacks nothing.

    Those of its protocols are counted together.
    """
    complete: dict[tuple[str, str], bool] = {}
    for row in route.candidates:
        if row.group is not None:
            whole = row.shard == route.entry and not row.lacks
            of = row.version, row.group
            complete[of] = complete.get(of, False) or whole
    for (version, _), whole in complete.items():
        groups.setdefault((route.model, version), Counter())[whole] += 1


def _store(out: Exposition, seen: Seen) -> None:
    for mode in StoreMode:
        out.add(f.STORE_MODE, seen.keeper.roster.mode is mode, mode.value)
    if seen.store is None:
        return
    if seen.answers is not None:
        out.add(f.CACHE_SHARED_LOST, seen.answers.dropped)
    out.add(f.STORE_MODE_CHANGES, seen.store.modes.changes)
    out.add(f.STORE_CONNECTS, seen.store.counts.connects)
    out.add(f.STORE_FAILURES, seen.store.counts.failures)
    for count, family in _COUNTED.items():
        out.add(family, seen.store.view.counts[count])
    for reason in WIRE_REASONS:
        out.add(f.STORE_BAD, seen.store.view.bad[reason], reason)
    hints = seen.store.hints
    if hints is not None:
        out.add(f.HINTS_TOLD, hints.told)
        out.add(f.HINTS_HEARD, hints.heard)
        for reason in HINT_REASONS:
            out.add(f.HINTS_REFUSED, hints.refused[reason], reason)
    latencies = seen.store.latencies
    if latencies is not None:
        out.add(f.LATENCY_SIDECARS, latencies.heard.sidecars)
        out.add(f.LATENCY_TOLD, latencies.told)
        out.add(f.LATENCY_HEARD, latencies.heard.taken)
        for reason in RefusedRow.ALL:
            out.add(f.LATENCY_REFUSED, latencies.heard.refused[reason], reason)
