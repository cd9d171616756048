"""What the weight of a replica is made of: scores, freshness, ramp, warmth, and how latencies are measured."""

from __future__ import annotations

from dataclasses import dataclass, field

from router.policy.base import PolicyError, positive, ratio

SCORERS = ("warmth", "free_memory", "speed", "queue_depth", "cpu_load")
"""The scorers whose coefficients are fields of :class:`ScoringPolicy`."""


@dataclass(frozen=True, slots=True)
class ScoringPolicy:
    """weight = freshness x ramp x (sum of coefficient x score).

    The coefficients of the scorers that come with the router are fields; ``coefficients`` has those of others, by name.
    """

    warmth: float = 0.40
    free_memory: float = 0.35
    speed: float = 0.25
    queue_depth: float = 0.0
    cpu_load: float = 0.0
    coefficients: dict[str, float] = field(default_factory=dict)
    exploration_floor_ratio: float = 0.02  # of the mean weight, for every candidate
    speed_spread_ratio: float = 1.2  # largest 1/P95 under this times the smallest: all get 0.5

    def __post_init__(self) -> None:
        for name in SCORERS:
            self._judge(name, getattr(self, name))
        for name, value in self.coefficients.items():
            if name in SCORERS:
                raise PolicyError(f"scoring.coefficients.{name}", value, f"is a field of its own: set scoring.{name}")
            self._judge(f"coefficients.{name}", value)
        if not any(self.by_name().values()):
            raise PolicyError("scoring.sum of all coefficients", 0, "must be greater than 0")
        ratio("scoring", "exploration_floor_ratio", self.exploration_floor_ratio)
        if not 1 <= self.speed_spread_ratio < float("inf"):
            raise PolicyError("scoring.speed_spread_ratio", self.speed_spread_ratio, "must be 1 or more")

    def _judge(self, name: str, value: float) -> None:
        if not 0 <= value < float("inf"):
            raise PolicyError(f"scoring.{name}", value, "a coefficient is 0 or more")

    def by_name(self) -> dict[str, float]:
        """Return the coefficient of every scorer that is named, the fields first."""
        return {name: getattr(self, name) for name in SCORERS} | self.coefficients


@dataclass(frozen=True, slots=True)
class FreshnessPolicy:
    """1 up to ``full_s`` of age, then linear to 0 at ``ttl_s``."""

    heartbeat_s: float = 1.0
    full_s: float = 2.0
    ttl_s: float = 5.0
    local_after_s: float = 60.0  # store silent this long: own observations only
    empty_store_grace_s: float = 10.0  # store came back empty: endpoints are kept this long

    def __post_init__(self) -> None:
        for name in ("heartbeat_s", "full_s", "ttl_s", "local_after_s"):
            positive("freshness", name, getattr(self, name))
        if self.ttl_s <= self.full_s:
            raise PolicyError("freshness.ttl_s", self.ttl_s, f"must be greater than full_s ({self.full_s})")
        if self.empty_store_grace_s < 0:
            raise PolicyError("freshness.empty_store_grace_s", self.empty_store_grace_s, "must be 0 or more")


@dataclass(frozen=True, slots=True)
class RampPolicy:
    """A newly warm replica's share grows linearly from ``start_ratio`` to 1 over ``duration_s``.

    From ``proven_start_ratio``, where that is more, of one that warm-up requests of this sidecar have proven.
    """

    start_ratio: float = 0.1
    proven_start_ratio: float = 0.5
    duration_s: float = 10.0

    def __post_init__(self) -> None:
        ratio("ramp", "start_ratio", self.start_ratio)
        ratio("ramp", "proven_start_ratio", self.proven_start_ratio)
        if not 0 <= self.duration_s < float("inf"):
            raise PolicyError("ramp.duration_s", self.duration_s, "must be 0 or more")


@dataclass(frozen=True, slots=True)
class WarmthPolicy:
    """Measured warmth counts less after ``idle_after_s`` of doing nothing, and ``floor`` of it ``decay_s`` later."""

    idle_after_s: float | None = None  # never
    decay_s: float = 300.0
    floor: float = 0.25

    def __post_init__(self) -> None:
        if self.idle_after_s is not None and not 0 <= self.idle_after_s < float("inf"):
            raise PolicyError("warmth.idle_after_s", self.idle_after_s, "must be 0 or more")
        positive("warmth", "decay_s", self.decay_s)
        ratio("warmth", "floor", self.floor)


@dataclass(frozen=True, slots=True)
class LatencyPolicy:
    """Quantile sketch with ``relative_error`` over ``window_s`` in ``slots``; the EWMA decays over ``ewma_decay_s``.

    For a model whose balancer is ``peak_ewma`` it rises to a longer sample at once, and decays over ``peak_decay_s``.
    """

    relative_error: float = 0.05
    window_s: float = 60.0
    slots: int = 6
    ewma_decay_s: float = 2.0
    peak_decay_s: float = 10.0

    def __post_init__(self) -> None:
        if not 0.001 <= self.relative_error <= 0.5:
            raise PolicyError("latency.relative_error", self.relative_error, "must lie between 0.001 and 0.5")
        for name in ("window_s", "slots", "ewma_decay_s", "peak_decay_s"):
            positive("latency", name, getattr(self, name))
