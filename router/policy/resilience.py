"""Who is left out for a while, what is tried once more, and what answers where nobody can."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from router.policy.base import PolicyError, positive, ratio


@dataclass(frozen=True, slots=True)
class QuarantinePolicy:
    """After a refused, reset or timed-out connection: out at once, ``base_s`` doubling to ``max_s``, then one probe."""

    base_s: float = 1.0
    max_s: float = 30.0
    jitter_ratio: float = 0.2

    def __post_init__(self) -> None:
        positive("quarantine", "base_s", self.base_s)
        ratio("quarantine", "jitter_ratio", self.jitter_ratio)
        if self.max_s < self.base_s:
            raise PolicyError("quarantine.max_s", self.max_s, f"must be at least base_s ({self.base_s})")


@dataclass(frozen=True, slots=True)
class ConsistencyPolicy:
    """A replica that says ``mismatches`` times in a row that it loaded something else than most is not picked."""

    mismatches: int | None = 5  # heartbeats; None: not compared

    def __post_init__(self) -> None:
        if self.mismatches is not None:
            positive("consistency", "mismatches", self.mismatches)


@dataclass(frozen=True, slots=True)
class OutlierPolicy:
    """A replica that fails much more than the others of its version is out for ``base_s``, longer each time in a row.

    Much more: over ``least_failure_ratio``, and over the others' mean by ``deviations`` of their spread. Where so many
    are out that less than ``panic_ratio`` of a route is left, those that are out take their share again.
    """

    enabled: bool = True
    minimum_calls: int = 50  # of a replica, within breaker.window_s
    minimum_others: int = 2  # with as many calls, to compare it with
    least_failure_ratio: float = 0.1
    deviations: float = 3.0
    base_s: float = 30.0
    max_s: float = 300.0
    max_ejected_ratio: float = 0.5  # of a version's replicas, those included whose breakers are open
    panic_ratio: float = 0.3

    def __post_init__(self) -> None:
        positive("outlier", "minimum_calls", self.minimum_calls)
        positive("outlier", "minimum_others", self.minimum_others)
        for name in ("least_failure_ratio", "max_ejected_ratio", "panic_ratio"):
            ratio("outlier", name, getattr(self, name))
        if not 0 <= self.deviations < float("inf"):
            raise PolicyError("outlier.deviations", self.deviations, "must be 0 or more")
        positive("outlier", "base_s", self.base_s)
        if not self.base_s <= self.max_s < float("inf"):
            raise PolicyError("outlier.max_s", self.max_s, f"must be at least base_s ({self.base_s})")


@dataclass(frozen=True, slots=True)
class BackPressurePolicy:
    """After 429, or 503 with Retry-After: others are picked until Retry-After, while there are others."""

    default_s: float = 1.0  # where the answer names no time
    max_s: float = 10.0  # whatever it names

    def __post_init__(self) -> None:
        if not 0 <= self.default_s < float("inf"):
            raise PolicyError("back_pressure.default_s", self.default_s, "must be 0 or more")
        if not self.default_s <= self.max_s < float("inf"):
            raise PolicyError("back_pressure.max_s", self.max_s, f"must be at least default_s ({self.default_s})")


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """Opens on at least ``minimum_calls`` within ``window_s``, by the first of three rules that holds.

    ``unavailable_ratio`` of them found nobody there; ``failure_ratio`` failed in any way; ``surge_ratio`` took longer
    than ``surge_factor`` times the usual P95, and longer than that by ``surge_least_ms``.
    """

    failure_ratio: float = 0.5
    minimum_calls: int = 20
    window_s: float = 10.0
    open_s: float = 60.0
    half_open_calls: int = 10
    unavailable_ratio: float = 0.95
    unavailable_open_s: float = 120.0
    surge: bool = True
    surge_ratio: float = 0.6
    surge_open_s: float = 30.0
    surge_factor: float = 2.0
    surge_least_ms: float = 25.0
    surge_baseline_s: float = 600.0
    surge_minimum_samples: int = 100
    surge_most_ratio: float = 0.5  # of a version's replicas may be out for it at once
    hint_s: float = 30.0  # another sidecar's breaker opened: for so long
    hinted_minimum_calls: int = 10  # fewer calls are enough to open it here too

    def __post_init__(self) -> None:
        for name in ("failure_ratio", "unavailable_ratio", "surge_ratio"):
            ratio("breaker", name, getattr(self, name))
            positive("breaker", name, getattr(self, name))
        ratio("breaker", "surge_most_ratio", self.surge_most_ratio)
        for name in (
            "minimum_calls",
            "window_s",
            "open_s",
            "half_open_calls",
            "unavailable_open_s",
            "surge_open_s",
            "surge_baseline_s",
            "surge_minimum_samples",
            "hinted_minimum_calls",
        ):
            positive("breaker", name, getattr(self, name))
        if not 1 < self.surge_factor < float("inf"):
            raise PolicyError("breaker.surge_factor", self.surge_factor, "must be greater than 1")
        if not 0 <= self.surge_least_ms < float("inf"):
            raise PolicyError("breaker.surge_least_ms", self.surge_least_ms, "must be 0 or more")
        if not 0 <= self.hint_s < float("inf"):
            raise PolicyError("breaker.hint_s", self.hint_s, "must be 0 or more")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """At most ``attempts`` more tries, each on another endpoint, inside a budget of the recent requests.

    The first is made at once, later ones after a pause between ``backoff_min_ms`` and ``backoff_max_ms``.
    """

    attempts: int = 1
    backoff_min_ms: float = 25.0
    backoff_max_ms: float = 250.0
    budget_ratio: float = 0.2
    budget_window_s: float = 10.0
    budget_min_per_s: float = 3.0

    def __post_init__(self) -> None:
        if not 0 <= self.attempts <= 5:
            raise PolicyError("retry.attempts", self.attempts, "must lie between 0 and 5")
        if not 0 <= self.backoff_min_ms <= self.backoff_max_ms:
            raise PolicyError(
                "retry.backoff_min_ms",
                self.backoff_min_ms,
                f"must lie between 0 and backoff_max_ms ({self.backoff_max_ms})",
            )
        ratio("retry", "budget_ratio", self.budget_ratio)
        positive("retry", "budget_window_s", self.budget_window_s)
        if not 0 <= self.budget_min_per_s < float("inf"):
            raise PolicyError("retry.budget_min_per_s", self.budget_min_per_s, "must be 0 or more")


@dataclass(frozen=True, slots=True)
class HedgingPolicy:
    """On models with ``hedge``: a second try after the measured ``quantile`` of the waits for a response head.

    A hedge is one of the retries: it counts against their number and their budget.
    """

    quantile: float = 0.95
    min_delay_ms: float = 5.0
    minimum_samples: int = 50  # within latency.window_s

    def __post_init__(self) -> None:
        if not 0.5 <= self.quantile < 1:
            raise PolicyError("hedging.quantile", self.quantile, "must be at least 0.5 and below 1")
        if not 0 <= self.min_delay_ms < float("inf"):
            raise PolicyError("hedging.min_delay_ms", self.min_delay_ms, "must be 0 or more")
        positive("hedging", "minimum_samples", self.minimum_samples)


@dataclass(frozen=True, slots=True)
class LadderPolicy:
    """How models with a fallback, a cache or a static answer degrade and come back; each step has its switch.

    Down by one step when nobody can be picked or after ``failures`` requests in a row; after ``hold_s`` there, one
    request each ``trial_s`` tries a step above, and ``successes`` of them in a row climb to it.
    """

    fallback: bool = True
    cache: bool = True
    static: bool = True
    failures: int = 3
    hold_s: float = 1.0
    trial_s: float = 0.2
    successes: int = 3

    def __post_init__(self) -> None:
        for name in ("failures", "successes"):
            value = getattr(self, name)
            if not 1 <= value <= 1000:
                raise PolicyError(f"ladder.{name}", value, "must lie between 1 and 1000")
        for name in ("hold_s", "trial_s"):
            value = getattr(self, name)
            if not 0 <= value <= 3600:
                raise PolicyError(f"ladder.{name}", value, "must lie between 0 and 3600")


class ConcurrencyMode(StrEnum):
    """Whether the limit on what is in flight at an endpoint follows its latency (``router/concurrency.py``)."""

    OFF = "off"
    ADAPTIVE = "adaptive"


@dataclass(frozen=True, slots=True)
class ConcurrencyPolicy:
    """A limit per endpoint and process that falls where latency rises over ``tolerance`` times its own low.

    Learned from batches of ``samples`` answers, or what came in ``most_s``. Every ``probe_s`` the limit is halved batch
    by batch until latency falls no more, so that the low is measured without the queue that the limit itself lets build
    up; ``min`` does not hold meanwhile. ``initial`` counts within ``min`` and ``max``.
    """

    mode: ConcurrencyMode = ConcurrencyMode.OFF
    min: int = 4
    max: int = 1000
    initial: int = 20
    tolerance: float = 1.5
    samples: int = 20
    most_s: float = 5.0
    probe_s: float = 30.0

    def __post_init__(self) -> None:
        if not 1 <= self.min <= self.max:
            raise PolicyError("concurrency.min", self.min, f"must lie between 1 and max ({self.max})")
        if self.max > 1 << 20:
            raise PolicyError("concurrency.max", self.max, f"must be at most {1 << 20}")
        positive("concurrency", "initial", self.initial)
        if not 1 < self.tolerance <= 10:
            raise PolicyError("concurrency.tolerance", self.tolerance, "must be greater than 1 and at most 10")
        if not 1 <= self.samples <= 10_000:
            raise PolicyError("concurrency.samples", self.samples, "must lie between 1 and 10000")
        for name in ("most_s", "probe_s"):
            positive("concurrency", name, getattr(self, name))
