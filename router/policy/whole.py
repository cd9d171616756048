"""All of one sidecar's policies together."""

from __future__ import annotations

from dataclasses import dataclass, field

from router.policy.resilience import (
    BackPressurePolicy,
    BreakerPolicy,
    ConcurrencyPolicy,
    ConsistencyPolicy,
    HedgingPolicy,
    LadderPolicy,
    OutlierPolicy,
    QuarantinePolicy,
    RetryPolicy,
)
from router.policy.weights import (
    FreshnessPolicy,
    LatencyPolicy,
    RampPolicy,
    ScoringPolicy,
    WarmthPolicy,
)


@dataclass(frozen=True, slots=True)
class Policies:
    """All policies of one sidecar."""

    scoring: ScoringPolicy = field(default_factory=ScoringPolicy)
    freshness: FreshnessPolicy = field(default_factory=FreshnessPolicy)
    ramp: RampPolicy = field(default_factory=RampPolicy)
    warmth: WarmthPolicy = field(default_factory=WarmthPolicy)
    quarantine: QuarantinePolicy = field(default_factory=QuarantinePolicy)
    consistency: ConsistencyPolicy = field(default_factory=ConsistencyPolicy)
    outlier: OutlierPolicy = field(default_factory=OutlierPolicy)
    back_pressure: BackPressurePolicy = field(default_factory=BackPressurePolicy)
    breaker: BreakerPolicy = field(default_factory=BreakerPolicy)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    latency: LatencyPolicy = field(default_factory=LatencyPolicy)
    hedging: HedgingPolicy = field(default_factory=HedgingPolicy)
    ladder: LadderPolicy = field(default_factory=LadderPolicy)
    concurrency: ConcurrencyPolicy = field(default_factory=ConcurrencyPolicy)
    requests_per_endpoint: int | None = None  # in flight at one endpoint at most, counted by each process for itself
    connections_per_endpoint: int | None = None  # the same of connections: over HTTP/1.1 each attempt takes one
