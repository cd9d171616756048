"""What callers saw during some time: by each request that the drill sent, else by the sidecar's counters. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sidecar.traffic.summary import quantile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sidecar.drills.record import Call, Record, Scrape

Interval = tuple[float, float]

GOOD = frozenset({"ok", "upstream_4xx", "degraded_cache", "degraded_static", "client_abort"})
"""Outcomes of a sidecar's metrics that are no error of the service; a caller that leaves makes none either."""
_DEGRADED = ("degraded_cache", "degraded_static")


@dataclass(frozen=True, slots=True)
class Figures:
    """What callers saw. Times are milliseconds, None where nobody was answered."""

    requests: int = 0
    errors: int = 0
    cached: int = 0
    degraded: int = 0
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None

    @property
    def error_ratio(self) -> float | None:
        """The share that failed; None without requests."""
        return self.errors / self.requests if self.requests else None

    @property
    def cache_ratio(self) -> float | None:
        """The share that was answered from the cache; None without requests."""
        return self.cached / self.requests if self.requests else None

    @property
    def degraded_ratio(self) -> float | None:
        """The share that something else than a replica of the model answered; None without requests."""
        return self.degraded / self.requests if self.requests else None


def figures(record: Record, intervals: Sequence[Interval]) -> Figures:
    """Return what callers saw in ``intervals`` (half open, seconds of the drill)."""
    if record.calls:
        return of_calls([call for call in record.calls if any(begin <= call.at < end for begin, end in intervals)])
    return _of_scrapes(record.scrapes, intervals)


def of_calls(calls: Sequence[Call]) -> Figures:
    """Return the figures of some calls; latencies are of all of them, failed ones too."""
    times = sorted(call.latency_ms for call in calls)
    return Figures(
        requests=len(calls),
        errors=sum(not call.ok for call in calls),
        cached=sum(call.degraded == "cache" for call in calls),
        degraded=sum(bool(call.degraded) for call in calls),
        p50_ms=quantile(times, 0.5),
        p95_ms=quantile(times, 0.95),
        p99_ms=quantile(times, 0.99),
        max_ms=times[-1] if times else None,
    )


def slices(record: Record, width_s: float = 1.0) -> list[tuple[float, Figures]]:
    """Return the figures of each ``width_s`` from the first request to the last, by when it began."""
    if record.calls:
        parts: dict[int, list[Call]] = {}
        for call in record.calls:
            parts.setdefault(int(call.at / width_s), []).append(call)
        return [(number * width_s, of_calls(parts.get(number, []))) for number in range(min(parts), max(parts) + 1)]
    if len(record.scrapes) < 2:
        return []
    first, last = record.scrapes[0].at, record.scrapes[-1].at
    count = max(1, int((last - first) / width_s))
    begins = [first + number * width_s for number in range(count)]
    return [(begin, _of_scrapes(record.scrapes, [(begin, begin + width_s)])) for begin in begins]


def attempts_ratio(record: Record, intervals: Sequence[Interval]) -> float | None:
    """Return how often a worker was asked for each request, by the sidecar's counters; None without requests."""
    attempts = requests = 0.0
    for before, after in _pairs(record.scrapes, intervals):
        attempts += after.attempts - before.attempts
        requests += sum(after.outcomes.values()) - sum(before.outcomes.values())
    return attempts / requests if requests > 0 else None


def _pairs(scrapes: Sequence[Scrape], intervals: Iterable[Interval]) -> list[tuple[Scrape, Scrape]]:
    """Return the scrapes next to the ends of each interval: the last before it begins, the first from its end on."""
    moments = [scrape.at for scrape in scrapes]
    found = []
    for begin, end in intervals:
        before = max(0, bisect_right(moments, begin) - 1)
        after = min(len(scrapes) - 1, bisect_left(moments, end))
        if before < after:
            found.append((scrapes[before], scrapes[after]))
    return found


def _of_scrapes(scrapes: Sequence[Scrape], intervals: Sequence[Interval]) -> Figures:
    counts: dict[str, float] = {}
    buckets: dict[float, float] = {}
    for before, after in _pairs(scrapes, intervals):
        for outcome, count in after.outcomes.items():
            counts[outcome] = counts.get(outcome, 0.0) + max(0.0, count - before.outcomes.get(outcome, 0.0))
        known = dict(before.buckets)
        for bound, count in after.buckets:
            buckets[bound] = buckets.get(bound, 0.0) + max(0.0, count - known.get(bound, 0.0))
    requests = round(sum(counts.values()))
    return Figures(
        requests=requests,
        errors=round(sum(count for outcome, count in counts.items() if outcome not in GOOD)),
        cached=round(counts.get("degraded_cache", 0.0)),
        degraded=round(sum(counts.get(outcome, 0.0) for outcome in _DEGRADED)),
        p50_ms=_bucket_quantile(buckets, 0.5),
        p95_ms=_bucket_quantile(buckets, 0.95),
        p99_ms=_bucket_quantile(buckets, 0.99),
    )


def _bucket_quantile(buckets: dict[float, float], share: float) -> float | None:
    """Return the upper bound, in ms, of the bucket in which the quantile lies: never less than it really is."""
    bounds = sorted(buckets)
    if not bounds or buckets[bounds[-1]] <= 0:
        return None
    wanted = share * buckets[bounds[-1]]
    found = next(bound for bound in bounds if buckets[bound] >= wanted)
    return 1000 * found if math.isfinite(found) else math.inf
