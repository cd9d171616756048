"""A run in figures, for programs (JSON) and as the rows of a table for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sidecar.traffic.summary import quantile

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.traffic.summary import Summary

QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999, "max": 1.0}


def quantiles_ms(values_s: Iterable[float]) -> dict[str, float] | None:
    """Return milliseconds by name of :data:`QUANTILES`, None where there are no values."""
    ordered = sorted(values_s)
    found = {name: quantile(ordered, q) for name, q in QUANTILES.items()}
    return {name: round(1000 * value, 3) for name, value in found.items() if value is not None} or None


def figures(summary: Summary) -> dict[str, Any]:
    """Return everything a summary says; milliseconds and seconds stand in the names."""
    return {
        "requests": summary.requests,
        "ends": {end.value: count for end, count in sorted(summary.ends.items())},
        "failures": summary.failures,
        "new_failures": summary.new_failures,
        "errors": dict(sorted(summary.errors.items())),
        "reasons": {end.value: reason for end, reason in sorted(summary.reasons.items())},
        "degraded": summary.degraded,
        "duration_s": round(summary.last_end_s, 3),
        "latency_ms": quantiles_ms(summary.latencies_s),
        "first_byte_ms": quantiles_ms(summary.first_bytes_s),
        "lag_ms": quantiles_ms(summary.lags_s),
        "late": summary.late,
    }
