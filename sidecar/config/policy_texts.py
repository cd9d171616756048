"""Text and unit of every policy field: the router's dataclasses know neither YAML nor documentation.

A test compares this table with ``router.policy`` field by field.
"""

from __future__ import annotations

POLICY_TEXTS: dict[str, tuple[str, str]] = {
    "scoring.warmth": ("coefficient of warmth in a weight", "coefficient"),
    "scoring.free_memory": ("coefficient of the free share of device memory", "coefficient"),
    "scoring.speed": ("coefficient of speed, which is 1 / P95 scaled over the candidates", "coefficient"),
    "scoring.queue_depth": ("coefficient of 1 / (1 + requests that wait), which the worker reports", "coefficient"),
    "scoring.cpu_load": ("coefficient of the processor time not in use, which the worker reports", "coefficient"),
    "scoring.coefficients": ("coefficients of scorers of your own, by the name of their module", "coefficients"),
    "scoring.exploration_floor_ratio": ("share of the mean weight that every candidate keeps", "ratio"),
    "scoring.speed_spread_ratio": ("largest 1 / P95 under this times the smallest: all count as equally fast", "ratio"),
    "freshness.heartbeat_s": ("how often a worker is expected to report", "seconds"),
    "freshness.full_s": ("a report counts in full up to this age", "seconds"),
    "freshness.ttl_s": ("a report counts for nothing from this age; more than full_s", "seconds"),
    "freshness.local_after_s": ("store silent this long: only what this sidecar saw itself counts", "seconds"),
    "freshness.empty_store_grace_s": ("store came back empty: known endpoints are kept this long", "seconds"),
    "ramp.start_ratio": ("share of its weight that a newly warm replica starts with", "ratio"),
    "ramp.duration_s": ("time from that share to all of it", "seconds"),
    "warmth.idle_after_s": ("measured warmth counts less after so long without work; null: never", "seconds"),
    "warmth.decay_s": ("time from then until floor of it counts", "seconds"),
    "warmth.floor": ("share of it that always counts", "ratio"),
    "quarantine.base_s": ("first time out after a connection was refused, reset or timed out", "seconds"),
    "quarantine.max_s": ("the time out doubles up to this", "seconds"),
    "quarantine.jitter_ratio": ("random part of the time out", "ratio"),
    "back_pressure.default_s": ("time for which others are picked where the answer names none", "seconds"),
    "back_pressure.max_s": ("longest such time, whatever the answer names; both 0: never", "seconds"),
    "breaker.failure_ratio": ("opens when this share of the calls in the window failed", "ratio"),
    "breaker.minimum_calls": ("fewer calls in the window never open it", "calls"),
    "breaker.window_s": ("the calls that count", "seconds"),
    "breaker.open_s": ("stays open this long, then half open", "seconds"),
    "breaker.half_open_calls": ("calls let through while half open", "calls"),
    "retry.attempts": ("further attempts after the first, each on another endpoint", "attempts"),
    "retry.backoff_min_ms": ("least pause before a retry", "milliseconds"),
    "retry.backoff_max_ms": ("longest pause before a retry; drawn between the two", "milliseconds"),
    "retry.budget_ratio": ("retries as a share of the requests in the window, at most", "ratio"),
    "retry.budget_window_s": ("the requests that count", "seconds"),
    "retry.budget_min_per_s": ("retries that are allowed however few requests there are", "retries per second"),
    "hedging.quantile": ("a second try is sent after this quantile of the waits for a response head", "ratio"),
    "hedging.min_delay_ms": ("but no sooner than this", "milliseconds"),
    "hedging.minimum_samples": ("waits measured within latency.window_s before any is sent", "requests"),
    "latency.relative_error": ("precision of quantiles", "ratio"),
    "latency.window_s": ("age of the latencies that quantiles are taken of", "seconds"),
    "latency.slots": ("steps in which the window moves", "slots"),
    "latency.ewma_decay_s": ("time constant of the moving average, which jumps up at once to a peak", "seconds"),
}
"""Field path below ``policies``: what it does, and its unit."""
