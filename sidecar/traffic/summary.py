"""Samples in figures: how they ended, quantiles, and whether the sender kept its moments."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Final

from sidecar.traffic.samples import Ended

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.traffic.samples import Sample

UNCONNECTED: Final = frozenset({Ended.NO_CONNECTION, Ended.TLS_FAILED, Ended.NO_HTTP2})
LATE_S: Final = 0.01
"""A sender that is more than this behind its moments, at the 99th percentile, is itself part of what it measures."""


def quantile(ordered: Sequence[float], q: float) -> float | None:
    """Return the smallest value that at least the share ``q`` of ``ordered`` (ascending) does not exceed.

    That is a value that was measured, nothing between two of them. None where there are none.
    """
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, max(0, ceil(q * len(ordered)) - 1))]


@dataclass
class Summary:
    """Adds samples up. A request that failed has no latency: it counts among the failures."""

    latencies_s: list[float] = field(default_factory=list)
    """Of those that ended well, in the order of their ends."""
    first_bytes_s: list[float] = field(default_factory=list)
    lags_s: list[float] = field(default_factory=list)
    """Of those that were sent."""
    ends: Counter[Ended] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    """Failures by status, or by how they ended."""
    new_failures: int = 0
    """Failures of requests that had not failed when they were recorded, or of which that is not known."""
    reasons: dict[Ended, str] = field(default_factory=dict)
    """Why there was no connection, of the first request of each way to have none."""
    degraded: int = 0
    last_end_s: float = 0.0

    def add(self, sample: Sample) -> None:
        """Count one."""
        self.ends[sample.ended] += 1
        self.last_end_s = max(self.last_end_s, sample.ended_s)
        if sample.sent_s is not None:
            self.lags_s.append(sample.lag_s)
        if sample.ended.failed:
            self.new_failures += sample.recorded is None or not sample.recorded.failed
            self.errors[sample.failure] += 1
            if sample.ended in UNCONNECTED:
                self.reasons.setdefault(sample.ended, sample.error)
        elif sample.ended is Ended.OK:
            self.latencies_s.append(sample.latency_s)
            self.degraded += "warmroute-degraded" in sample.headers
            if sample.first_byte_s is not None:
                self.first_bytes_s.append(sample.first_byte_s - sample.intended_s)

    @property
    def requests(self) -> int:
        """All of them."""
        return self.ends.total()

    @property
    def failures(self) -> int:
        """Those that did not get what they asked for."""
        return self.errors.total()

    @property
    def late(self) -> bool:
        """True where the sender could not keep its moments, so that its latencies are partly its own."""
        lag_s = quantile(sorted(self.lags_s), 0.99)
        return lag_s is not None and lag_s > LATE_S
