"""What ``/metrics`` shows: the pages of the data processes, summed, and the control process's own view of the fleet."""

from __future__ import annotations

import platform
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from router.admission import Refusal
from router.hints import REASONS as HINT_REASONS
from router.model import StoreMode
from router.outcomes import AttemptResult, Outcome
from router.sketches import Refused as RefusedRow
from router.turns import ROWS
from router.wire import REASONS as WIRE_REASONS
from sidecar.cache.terms import Refused
from sidecar.faults.kinds import KINDS
from sidecar.http1.sorting import kinds_of
from sidecar.loading import RESULTS
from sidecar.state.view import Count
from sidecar.telemetry import families as f
from sidecar.telemetry import fleet
from sidecar.telemetry.bounds import BOUNDED
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
from sidecar.version import is_compiled

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from router.turns import Turns
    from sidecar.config.state import ConfigState
    from sidecar.discovery.dns import DnsSource
    from sidecar.discovery.load_streams import LoadStreams
    from sidecar.discovery.static import StaticSource
    from sidecar.discovery.warming import WarmedSource
    from sidecar.loading import Loader
    from sidecar.settings import Settings
    from sidecar.state.answers import SharedAnswers
    from sidecar.state.keeper import Keeper
    from sidecar.state.store import RedisSource
    from sidecar.telemetry.bounds import Bounds, Names
    from sidecar.tls.expiry import ExpiryWatch
    from sidecar.upstreams.probes import Costs

# here and not with the layout, which the supervisor loads too: it needs neither enum
assert len(Refusal) <= REFUSAL_WORDS  # noqa: S101
assert LadderWord.REFUSED + len(Refused) <= LadderWord.SHARED_FILLS  # noqa: S101

_BUCKETS = len(BUCKETS_S) + 1
_OUTCOMES = [outcome.value for outcome in Outcome]
_REFUSALS = [refusal.value for refusal in Refusal]
_RESULTS = [result.value for result in AttemptResult]

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


def render(seen: Seen, now: float, bounds: Bounds) -> Iterator[bytes | None]:
    """Yield the exposition as of ``now`` (monotonic seconds) in pieces, and None where a turn of work is over.

    All of it is collected, compressed, before the first piece: a family's samples stand together, and are made with
    those of others. So who reads slowly holds nothing up, and what is slow to read is of one moment as far as that
    goes: each row of a data process is, each route is, and ``now`` is for all.
    """
    out = Exposition(f.FAMILIES)
    pages = [page for page in seen.pages if page.words[0] == MAGIC]
    models: dict[str, list[int]] = {}
    endpoints: dict[str, list[int]] = {}
    yield from _add_up(models, ((page, page.models()) for page in pages), MODEL_WORDS)
    yield from _add_up(endpoints, ((page, page.endpoints()) for page in pages), ENDPOINT_WORDS)
    if seen.keeper.complete:  # a process that died cannot delete its rows; what we do not know yet may well be there
        endpoints = {key: row for key, row in endpoints.items() if key in seen.keeper.roster or key == OVERFLOW_KEY}
    yield from bounds.settle(seen, models, endpoints)
    models = _bounded(models, bounds.models)
    yield from _models(out, models)
    yield from _ladders(out, seen.pages, models, bounds)
    yield from _queues(out, models, seen, bounds)
    yield from _endpoints(out, _bounded(endpoints, bounds.endpoints))
    _scalars(out, seen, now)
    yield None
    yield from fleet.records(out, seen, now, bounds)
    yield from fleet.routes(out, seen, now, bounds)
    yield from fleet.versions(out, seen.keeper.steering, now, bounds)
    fleet.sources(out, seen, now, bounds)
    _store(out, seen)
    for ending in seen.certificates.endings:
        out.add(f.TLS_NOT_AFTER, ending.not_after, ending.of, ending.kind)
    out.add(f.BUILD, 1, seen.version, platform.python_version(), str(is_compiled()).lower())
    _config(out, seen.config)
    out.add(f.CONTROL_UPTIME, now - seen.started_at)
    out.add(f.DRAINING, seen.draining)
    for kind in BOUNDED:
        out.add(f.LEFT_OUT, bounds.left_out[kind], kind)
    yield from out.pieces()


def _config(out: Exposition, state: ConfigState) -> None:
    out.add(f.CONFIG, 1, state.revision)
    out.add(f.CONFIG_LOADED, state.loaded_at)
    out.add(f.CONFIG_BAD, state.bad_since is not None)
    out.add(f.CONFIG_BAD_SINCE, state.bad_since or 0)
    out.add(f.CONFIG_NEEDS_RESTART, len(state.needs_restart))
    for result in ("taken", "unchanged", "withheld", "refused"):
        out.add(f.CONFIG_RELOADS, getattr(state, result), result)


def _add_up(
    sums: dict[str, list[int]], pages: Iterable[tuple[Page, Iterator[tuple[str, int]]]], width: int
) -> Turns[None]:
    """Add up the rows of one kind over the data processes."""
    for page, rows in pages:
        for count, (key, row) in enumerate(rows, 1):
            words = page.words[row : row + width].tolist()
            before = sums.get(key)
            sums[key] = words if before is None else [a + b for a, b in zip(before, words, strict=True)]
            if count % ROWS == 0:
                yield None


def _bounded(sums: dict[str, list[int]], names: Names) -> dict[str, list[int]]:
    """Return the rows in order of name, those that have no series of their own added up."""
    found: dict[str, list[int]] = {}
    for key, words in sorted(sums.items()):
        label = names.label(key)
        before = found.get(label)
        found[label] = words if before is None else [a + b for a, b in zip(before, words, strict=True)]
    return found


def _models(out: Exposition, sums: dict[str, list[int]]) -> Turns[None]:
    for key, row_sum in sums.items():
        for index, outcome in enumerate(_OUTCOMES):
            if row_sum[index] or index == 0:
                out.add(f.REQUESTS, row_sum[index], key, outcome)
        _histogram(out, f.REQUEST_DURATION, row_sum, MODEL_OUTCOMES, key)
        if any(row_sum[MODEL_FIRST_BYTE : MODEL_FIRST_BYTE + _BUCKETS]):
            _histogram(out, f.FIRST_BYTE, row_sum, MODEL_FIRST_BYTE, key)
        yield None


def _ladders(out: Exposition, pages: Sequence[Page], sums: dict[str, list[int]], bounds: Bounds) -> Turns[None]:
    for index, page in enumerate(pages):
        if page.words[0] != MAGIC:
            continue
        for key, row in page.models():
            step = page.words[row + MODEL_LADDER + LadderWord.STEP_NOW]
            if step and key in bounds.models:
                out.add(f.LADDER_STEP, step, str(index), key)
        yield None
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
        yield None


def _queues(out: Exposition, sums: dict[str, list[int]], seen: Seen, bounds: Bounds) -> Turns[None]:
    kinds = kinds_of(seen.settings.policies.admission)
    shares: Counter[str] = Counter()
    for model, share in admitted_shares(seen.pages, seen.keeper.alive).items():
        shares[bounds.models.label(model)] += share
    yield None
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
        yield None
    for result in RESULTS:
        out.add(f.LOADS, seen.loader.counts[result], result)


def _endpoints(out: Exposition, sums: dict[str, list[int]]) -> Turns[None]:
    for key, row_sum in sums.items():
        for index, result in enumerate(_RESULTS):
            if row_sum[index] or index == 0:
                out.add(f.ATTEMPTS, row_sum[index], key, result)
        out.add(f.ATTEMPTS_NOW, row_sum[ENDPOINT_IN_FLIGHT], key)
        out.add(f.EJECTIONS, row_sum[ENDPOINT_EJECTIONS], key)
        out.add(f.AT_LIMIT, row_sum[ENDPOINT_PASSED_OVER], key)
        if row_sum[ENDPOINT_LIMIT]:
            out.add(f.ENDPOINT_LIMIT, row_sum[ENDPOINT_LIMIT], key)
        _histogram(out, f.ATTEMPT_DURATION, row_sum, ENDPOINT_HISTOGRAM, key)
        yield None


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
