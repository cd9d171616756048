"""Every tunable of the router with its default, in one place, frozen and validated at construction."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class PolicyError(ValueError):
    """A policy value that makes no sense; ``field`` names it, ``remedy`` says what would."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field}: {value!r}: {remedy}")
        self.field = field
        self.value = value
        self.remedy = remedy


MAX_SHARDS = 256
"""Shards of one version: a new key is compared with each of them."""

SCORERS = ("warmth", "free_memory", "speed", "queue_depth", "cpu_load")
"""The scorers whose coefficients are fields of :class:`ScoringPolicy`."""


def _ratio(owner: str, name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise PolicyError(f"{owner}.{name}", value, "a ratio lies between 0 and 1")


def _positive(owner: str, name: str, value: float) -> None:
    if not value > 0 or value == float("inf"):
        raise PolicyError(f"{owner}.{name}", value, "must be greater than 0")


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
        _ratio("scoring", "exploration_floor_ratio", self.exploration_floor_ratio)
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
            _positive("freshness", name, getattr(self, name))
        if self.ttl_s <= self.full_s:
            raise PolicyError("freshness.ttl_s", self.ttl_s, f"must be greater than full_s ({self.full_s})")
        if self.empty_store_grace_s < 0:
            raise PolicyError("freshness.empty_store_grace_s", self.empty_store_grace_s, "must be 0 or more")


@dataclass(frozen=True, slots=True)
class RampPolicy:
    """A newly warm replica's share grows linearly from ``start_ratio`` to 1 over ``duration_s``."""

    start_ratio: float = 0.1
    duration_s: float = 10.0

    def __post_init__(self) -> None:
        _ratio("ramp", "start_ratio", self.start_ratio)
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
        _positive("warmth", "decay_s", self.decay_s)
        _ratio("warmth", "floor", self.floor)


@dataclass(frozen=True, slots=True)
class QuarantinePolicy:
    """After a refused, reset or timed-out connection: out at once, ``base_s`` doubling to ``max_s``, then one probe."""

    base_s: float = 1.0
    max_s: float = 30.0
    jitter_ratio: float = 0.2

    def __post_init__(self) -> None:
        _positive("quarantine", "base_s", self.base_s)
        _ratio("quarantine", "jitter_ratio", self.jitter_ratio)
        if self.max_s < self.base_s:
            raise PolicyError("quarantine.max_s", self.max_s, f"must be at least base_s ({self.base_s})")


@dataclass(frozen=True, slots=True)
class ConsistencyPolicy:
    """A replica that says ``mismatches`` times in a row that it loaded something else than most is not picked."""

    mismatches: int | None = 5  # heartbeats; None: not compared

    def __post_init__(self) -> None:
        if self.mismatches is not None:
            _positive("consistency", "mismatches", self.mismatches)


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
        _positive("outlier", "minimum_calls", self.minimum_calls)
        _positive("outlier", "minimum_others", self.minimum_others)
        for name in ("least_failure_ratio", "max_ejected_ratio", "panic_ratio"):
            _ratio("outlier", name, getattr(self, name))
        if not 0 <= self.deviations < float("inf"):
            raise PolicyError("outlier.deviations", self.deviations, "must be 0 or more")
        _positive("outlier", "base_s", self.base_s)
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
            _ratio("breaker", name, getattr(self, name))
            _positive("breaker", name, getattr(self, name))
        _ratio("breaker", "surge_most_ratio", self.surge_most_ratio)
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
            _positive("breaker", name, getattr(self, name))
        if not 1 < self.surge_factor < float("inf"):
            raise PolicyError("breaker.surge_factor", self.surge_factor, "must be greater than 1")
        if not 0 <= self.surge_least_ms < float("inf"):
            raise PolicyError("breaker.surge_least_ms", self.surge_least_ms, "must be 0 or more")
        if not 0 <= self.hint_s < float("inf"):
            raise PolicyError("breaker.hint_s", self.hint_s, "must be 0 or more")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """At most ``attempts`` more tries, on another endpoint, inside a budget of the recent requests."""

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
        _ratio("retry", "budget_ratio", self.budget_ratio)
        _positive("retry", "budget_window_s", self.budget_window_s)
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
        _positive("hedging", "minimum_samples", self.minimum_samples)


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
            _positive("latency", name, getattr(self, name))


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
        _positive("concurrency", "initial", self.initial)
        if not 1 < self.tolerance <= 10:
            raise PolicyError("concurrency.tolerance", self.tolerance, "must be greater than 1 and at most 10")
        if not 1 <= self.samples <= 10_000:
            raise PolicyError("concurrency.samples", self.samples, "must lie between 1 and 10000")
        for name in ("most_s", "probe_s"):
            _positive("concurrency", name, getattr(self, name))


class OnNoCandidate(StrEnum):
    """What a model does with a request that no replica can take (``docs/admission.md``)."""

    FAIL = "fail"
    WAIT = "wait"
    LAZY = "lazy"


class LatencyOf(StrEnum):
    """What of an attempt counts as its latency: until when it is measured."""

    AUTO = "auto"  # the first byte of a stream of events, the end of any other answer
    TOTAL = "total"
    FIRST_BYTE = "first_byte"


class BalancerName(StrEnum):
    """How one of the candidates of a model is picked (``router/balancers.py``)."""

    WARM = "warm"
    ROUND_ROBIN = "round_robin"
    RANDOM = "random"
    LEAST_REQUEST = "least_request"
    TWO_CHOICE = "two_choice"
    PEAK_EWMA = "peak_ewma"
    KEYED = "keyed"


class ShardMode(StrEnum):
    """How a model's weights are split over endpoints (``router/groups.py``)."""

    REPLICATED = "replicated"  # every endpoint holds all of them
    TENSOR = "tensor"  # all shards answer together, behind one of them
    KEYED = "keyed"  # each shard answers the requests whose keys it has


@dataclass(frozen=True, slots=True)
class ShardPolicy:
    """Into how many shards each version of a model is split; ``entry``: the one that takes requests, of ``tensor``.

    ``count`` 1 of ``tensor``: as many as the workers of each version report.
    """

    mode: ShardMode = ShardMode.REPLICATED
    count: int = 1
    entry: int = 0

    def __post_init__(self) -> None:
        least, most = (2 if self.mode is ShardMode.KEYED else 1), MAX_SHARDS
        if self.mode is ShardMode.REPLICATED:
            most = 1
        if not least <= self.count <= most:
            between = f"between {least} and {most}" if least < most else str(most)
            raise PolicyError("shards.count", self.count, f"must be {between} where mode is {self.mode.value}")
        if self.entry and self.mode is not ShardMode.TENSOR:
            raise PolicyError("shards.entry", self.entry, "has no use unless mode is tensor")
        last = (self.count if self.count > 1 else MAX_SHARDS) - 1
        if not 0 <= self.entry <= last:
            raise PolicyError("shards.entry", self.entry, f"must be the number of a shard, 0 to {last}")


UNSPLIT = ShardPolicy()
"""Every endpoint holds all of the model."""


@dataclass(frozen=True, slots=True)
class KeyPolicy:
    """Where requests have the key that ``keyed`` goes by: in a field (``header``), as their path's last segment, or in
    their JSON body of at most ``body_bytes`` (``json``: names with dots between).

    An endpoint takes no more than ``load_factor`` times the mean in flight because of its keys.
    """

    header: str | None = None
    last_segment: bool = False
    json: str | None = None
    body_bytes: int = 1 << 20
    load_factor: float = 1.25

    def __post_init__(self) -> None:
        if not 1 <= self.load_factor < float("inf"):
            raise PolicyError("key.load_factor", self.load_factor, "must be 1 or more")


class ServeRule(StrEnum):
    """Which versions of a model take requests that name none (``router/versions.py``)."""

    ANY = "any"  # all that are warm
    LATEST = "latest"  # the newest that has a warm replica
    PINNED = "pinned"  # one, named in its place
    SPLIT = "split"  # several, by weight


MAX_SHARES = 8
"""Versions in a split at most."""


@dataclass(frozen=True, slots=True)
class VersionShare:
    """One version's part of a split; weights are relative to each other."""

    version: str
    weight: float

    def __post_init__(self) -> None:
        if not 0 <= self.weight < float("inf"):
            raise PolicyError("versions.split.weight", self.weight, "must be 0 or more")


@dataclass(frozen=True, slots=True)
class MirrorPolicy:
    """A share of a model's requests is sent to ``version`` too; what it answers is thrown away.

    At most ``most`` of them are under way in one process at once, each for ``timeout_s`` at most.
    """

    version: str
    share: float = 1.0
    most: int = 16
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        _ratio("versions.mirror", "share", self.share)
        for name in ("most", "timeout_s"):
            _positive("versions.mirror", name, getattr(self, name))


@dataclass(frozen=True, slots=True)
class RolloutPolicy:
    """A new version takes a growing share of a split, while it is no worse than the others (``router/rollout.py``).

    ``version`` is the new one, empty the newest of the split. ``steps`` are its shares in percent, the last one 100.
    ``false_alarm_ratio``: at most so likely is it that one which is no worse than allowed is rolled back.
    """

    version: str = ""
    steps: tuple[float, ...] = (5.0, 25.0, 50.0, 100.0)
    interval_s: float = 60.0
    min_samples: int = 100
    max_error_ratio_delta: float = 0.01
    max_p95_ratio: float = 1.5
    false_alarm_ratio: float = 0.01

    def __post_init__(self) -> None:
        steps = self.steps
        rising = all(low < high for low, high in zip((0.0, *steps), steps, strict=False))
        if not 2 <= len(steps) <= 16 or not rising or steps[-1] != 100:
            raise PolicyError("versions.rollout.steps", list(steps), "must rise from over 0 to 100, in 2 to 16 steps")
        for name in ("interval_s", "min_samples"):
            _positive("versions.rollout", name, getattr(self, name))
        _ratio("versions.rollout", "max_error_ratio_delta", self.max_error_ratio_delta)
        if not 1 <= self.max_p95_ratio < float("inf"):
            raise PolicyError("versions.rollout.max_p95_ratio", self.max_p95_ratio, "must be 1 or more")
        if not 0 < self.false_alarm_ratio <= 0.5:
            raise PolicyError("versions.rollout.false_alarm_ratio", self.false_alarm_ratio, "must lie in (0, 0.5]")


@dataclass(frozen=True, slots=True)
class ServePolicy:
    """Which versions take the requests of a model that name none.

    ``version`` is that of PINNED, ``shares`` are those of SPLIT. ``header`` names the field whose value keeps a caller
    at its version in a split; without it each request is on its own. With ``rollout``, a split begins at its first
    step, whatever the new version's weight.
    """

    rule: ServeRule = ServeRule.ANY
    version: str = ""
    shares: tuple[VersionShare, ...] = ()
    header: str | None = None
    mirror: MirrorPolicy | None = None
    rollout: RolloutPolicy | None = None

    def __post_init__(self) -> None:
        if self.rule is ServeRule.SPLIT:
            names = {share.version for share in self.shares}
            if len(names) != len(self.shares) or len(names) > MAX_SHARES:
                raise PolicyError("versions.split", sorted(names), f"must name each version once, {MAX_SHARES} at most")
            if not any(share.weight for share in self.shares):
                raise PolicyError("versions.split", sorted(names), "must give at least one version a weight over 0")


@dataclass(frozen=True, slots=True)
class AffinityPolicy:
    """Requests prefer who has seen the beginning of their prompt (``router/affinity.py``).

    The first ``blocks`` whole blocks of ``block_bytes`` count, of a body of at most ``body_bytes``; ``least_blocks`` of
    them must be known. ``remembered`` blocks are, for each route.
    """

    block_bytes: int = 512
    blocks: int = 32
    least_blocks: int = 2
    load_factor: float = 1.25
    remembered: int = 16384
    body_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        for name, most in (("block_bytes", 65536), ("blocks", 256), ("remembered", 1 << 20), ("body_bytes", 1 << 26)):
            if not 1 <= getattr(self, name) <= most:
                raise PolicyError(f"affinity.{name}", getattr(self, name), f"must be between 1 and {most}")
        if not 1 <= self.least_blocks <= self.blocks:
            raise PolicyError(
                "affinity.least_blocks", self.least_blocks, f"must be between 1 and blocks ({self.blocks})"
            )
        if not 1 <= self.load_factor < float("inf"):
            raise PolicyError("affinity.load_factor", self.load_factor, "must be 1 or more")


@dataclass(frozen=True, slots=True)
class ShapePolicy:
    """How a request says of which shape class it is: by a field, else by the length of its body.

    ``classes`` are names, with the longest body of each in bytes, shortest first; None where a length says nothing.
    """

    header: str | None = None
    classes: tuple[tuple[str, int | None], ...] = ()


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


@dataclass(frozen=True, slots=True)
class ModelPolicy:
    """What configuration says of one model. ``default``: takes requests that name no model that is known.

    ``hedge`` has no effect unless ``idempotent`` too, ``key`` none unless the balancer or the shards are ``keyed``.
    ``load_reports``: workers are asked for their load in answers. ``latency``: what of an attempt is measured.
    ``serve``: which versions take requests that name none. ``affinity`` goes with any balancer but
    ``keyed``.
    ``shapes``: requests prefer replicas that are proven for their shape class.
    """

    name: str
    idempotent: bool = False
    default: bool = False
    on_no_candidate: OnNoCandidate = OnNoCandidate.FAIL
    hedge: bool = False
    balancer: BalancerName = BalancerName.WARM
    key: KeyPolicy | None = None
    load_reports: bool = False
    serve: ServePolicy = field(default_factory=ServePolicy)
    shards: ShardPolicy = UNSPLIT
    affinity: AffinityPolicy | None = None
    latency: LatencyOf = LatencyOf.AUTO
    shapes: ShapePolicy | None = None
