"""What configuration says of one model: balancer, shards, keys, versions, prompts and shapes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from router.policy.base import PolicyError, positive, ratio

MAX_SHARDS = 256
"""Shards of one version: a new key is compared with each of them."""


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
        ratio("versions.mirror", "share", self.share)
        for name in ("most", "timeout_s"):
            positive("versions.mirror", name, getattr(self, name))


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
            positive("versions.rollout", name, getattr(self, name))
        ratio("versions.rollout", "max_error_ratio_delta", self.max_error_ratio_delta)
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
    them must be known. ``remembered`` blocks are, for each route. ``input`` is the tensor that has the prompt in
    requests of the V2 protocol.
    """

    block_bytes: int = 512
    blocks: int = 32
    least_blocks: int = 2
    load_factor: float = 1.25
    remembered: int = 16384
    body_bytes: int = 1 << 20
    input: str = "text_input"

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
        if not 1 <= len(self.input) <= 128:
            raise PolicyError("affinity.input", self.input, "must be the name of an input, 1 to 128 characters")


@dataclass(frozen=True, slots=True)
class ShapePolicy:
    """How a request says of which shape class it is: by a field, by its batch, else by the length of its body.

    ``classes`` are names, with the longest body of each in bytes, shortest first; None where a length says nothing.
    ``batches`` are those of them that go by a batch, with the largest of each, smallest first.
    """

    header: str | None = None
    classes: tuple[tuple[str, int | None], ...] = ()
    batches: tuple[tuple[str, int], ...] = ()


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
