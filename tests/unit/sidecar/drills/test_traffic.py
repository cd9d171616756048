"""What callers saw, of single requests and of counters."""

from __future__ import annotations

import math

from sidecar.drills.record import Call, Record, Scrape
from sidecar.drills.traffic import Figures, attempts_ratio, figures, slices


def call(at: float, latency_ms: float = 10.0, *, ok: bool = True, degraded: str = "") -> Call:
    return Call(at, latency_ms, ok, "ok" if ok else "http_503", degraded)


def test_requests_count_by_when_they_were_meant_to_be_sent() -> None:
    record = Record(10, calls=(call(0.5, 9000), call(1.0, 20, ok=False), call(1.999, degraded="cache"), call(2.0)))
    seen = figures(record, [(1.0, 2.0)])
    assert (seen.requests, seen.errors, seen.cached, seen.degraded) == (2, 1, 1, 1)
    assert (seen.error_ratio, seen.cache_ratio, seen.max_ms) == (0.5, 0.5, 20)


def test_several_intervals_go_together() -> None:
    record = Record(10, calls=tuple(call(float(n)) for n in range(10)))
    assert figures(record, [(0, 2), (5, 6)]).requests == 3


def test_nothing_to_measure_is_none_and_not_zero() -> None:
    seen = figures(Record(10, calls=(call(1),)), [(5, 6)])
    assert seen == Figures()
    assert seen.error_ratio is None
    assert seen.cache_ratio is None
    assert seen.degraded_ratio is None


def test_slices_have_the_seconds_in_which_nobody_asked() -> None:
    parts = slices(Record(10, calls=(call(1.2), call(3.9))))
    assert [(begin, part.requests) for begin, part in parts] == [(1, 1), (2, 0), (3, 1)]


def scrape(at: float, ok: float, failed: float = 0, fast: float = 0, attempts: float = 0) -> Scrape:
    buckets = ((0.01, fast), (0.1, ok + failed), (math.inf, ok + failed))
    return Scrape(at, {"ok": ok, "connect_failed": failed}, buckets, attempts)


def test_of_counters_only_what_came_in_between_counts() -> None:
    record = Record(10, scrapes=(scrape(0, 100, 50, 90), scrape(5, 200, 50, 180), scrape(10, 290, 60, 260)))
    seen = figures(record, [(5, 10)])
    assert (seen.requests, seen.errors) == (100, 10)
    assert (seen.p50_ms, seen.p95_ms) == (10, 100)
    assert seen.error_ratio == 0.1


def test_counters_that_began_again_count_as_nothing() -> None:
    record = Record(10, scrapes=(scrape(0, 100), scrape(5, 20)))
    assert figures(record, [(0, 5)]).requests == 0


def test_attempts_for_each_request() -> None:
    record = Record(10, scrapes=(scrape(0, 100, attempts=100), scrape(5, 200, attempts=230)))
    assert attempts_ratio(record, [(0, 5)]) == 1.3
    assert attempts_ratio(Record(10), [(0, 5)]) is None
