"""One route: the replicas that may serve a model (or one version of it), their weights, and the table to draw from."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

from router.model import HTTP, Replica, StoreMode
from router.outcomes import (  # in annotations of dataclasses, which the compiled build evaluates; Scorer too
    Outcome,
    Reason,
)
from router.policy import ServeRule
from router.protocols import Scorer
from router.scorers import NEUTRAL
from router.stats import median
from router.turns import LOOKS, at_once
from router.versions import is_taken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.endpoint import Candidate
    from router.groups import ShardMap
    from router.hedging import HeadTimes
    from router.policy import FreshnessPolicy, ModelPolicy, Policies, RampPolicy, ServePolicy
    from router.protocols import Balancer
    from router.protocols import Candidate as CandidateView
    from router.turns import Turns

REDRAWS: Final = 8
"""Draws that may hit replicas that are out, before all of the table is looked at."""

KEPT_RATIO: Final = 0.9
"""Of those drawn by weight the first is taken, unless another's expected wait is below this much of its own."""
ALIKE_RATIO: Final = 1 / KEPT_RATIO
"""Of those with as much in flight as the one so found, whose EWMA is at most so many times its own are as good."""

UNMEASURED_MS: Final = 1.0
"""Stands for every EWMA where none is known at all: attempts in flight decide."""

PROBE: Final = 1
TRIAL: Final = 2
"""What an attempt is until it is judged: a probe of a quarantine, a trial of a half-open breaker."""
BACKGROUND: Final = 4
"""Beside these: it is work of our own, of which nothing is learned (:attr:`Attempt.background`)."""
LENT: Final = 8
"""Its places are lent to others: it waits for its caller."""
PASSED: Final = 16
"""It was a trial, and has counted as one that went well since its answer began."""


class Attempt:
    """One try upstream. Hand it back to ``Cluster.done`` exactly once, however it ended.

    ``candidate`` is the replica that was picked, ``endpoint`` where it is. ``began`` is when it was picked: guards go
    by it. Latency is counted from ``started``, the same moment unless the shell moves it forward to when the request
    had been sent whole: how long a caller takes to send a body says nothing of the endpoint.
    """

    __slots__ = ("began", "candidate", "endpoint", "ended", "permits", "route", "started")

    def __init__(self, candidate: Candidate, route: Route, began: float, permits: int = 0) -> None:
        self.candidate = candidate
        self.endpoint = candidate.endpoint
        self.route = route
        self.began = self.started = began
        self.permits = permits
        self.ended = False

    @property
    def probe(self) -> bool:
        """True where it tries whether an ejected endpoint is back."""
        return self.permits & (PROBE | TRIAL) != 0

    @property
    def background(self) -> bool:
        """True of work that no caller waits for: warming up, keeping warm, a mirrored request.

        It is in flight like any other, for the endpoint really has it to do; but how it ends says nothing: it counts
        in no latency, breaker, quarantine, retry budget or outcome. It is made by ``Cluster.begin_background``.
        """
        return self.permits & BACKGROUND != 0


@dataclass(frozen=True, slots=True)
class NoCandidate:
    """Nobody can take the request now: the reason that most candidates share, and when to come back.

    ``warm_in_s``: nobody can before a replica is warm that says itself how long that should take; 0: not known.
    """

    reason: Reason
    retry_after_s: float
    detail: str
    warm_in_s: float = 0.0

    @property
    def outcome(self) -> Outcome:
        """What becomes of a request that meets it."""
        return Outcome.OVERLOADED if self.reason is Reason.AT_LIMIT else Outcome.NO_CANDIDATE


@dataclass(slots=True)
class Column:
    """One scorer's word on each candidate: as given, and with the unknown filled in."""

    scorer: Scorer
    coefficient: float
    known: list[float | None]
    scores: list[float]


@dataclass(slots=True)
class Weighing:
    """The weight of each candidate and where it comes from, in the candidates' order."""

    freshness: list[float]
    ramp: list[float]
    columns: list[Column]
    weights: list[float]
    floor: float


class Route:
    """The replicas of one model, all versions of it or one. ``key`` is ``name`` or ``name@version``, with ``#shard``.

    Where each shard answers for itself, ``shards`` has a route for each and ``shard_map`` says which of them a key goes
    to; nobody is picked on this route itself. ``shard`` is a shard's number, None where the route is none of one shard,
    and ``whole`` the route that it is a shard of.

    ``protocol`` is what its endpoints speak: there are candidates of one protocol only on a route.

    The cluster owns everything but the first five fields. ``drawn`` are the candidates that ``balancer`` picks of,
    ``table`` the hands that it would have one drawn of, where that is all it does; ``busy`` and ``busy_balancer``
    the same of those that would be in it but pushed back, for when nobody else is left. ``serve`` says which
    versions take requests here, None where all do; ``mixed`` counts the endpoints that hold several versions.
    ``due`` is when the next choice must look closer, ``rebuild_at`` when the tables have to be made again,
    ``early_at`` from when on they may be before their time (infinity: they will be); ``used`` counts down from the last
    choice.
    ``queued`` is set while requests wait for this route in a queue of the shell's: what those are told who come now.
    Those of its ``shaped`` routes wait there too.

    ``shaped`` are the routes for requests of one shape class each, which are made when one is asked for: they share
    this one's candidates, and draw of those that are proven for their ``shape`` while there are some. ``base`` is that
    which such a route belongs to.
    """

    __slots__ = (
        "key", "model", "version", "policy", "hedging", "protocol",
        "due", "drawn", "table", "used", "balancer",
        "built_at", "busy", "busy_balancer", "candidates", "dirty", "early_at", "empty_since", "failing", "interval_s",
        "learned", "mixed",
        "judge_at", "none", "none_at", "panic", "queued", "rebuild_at", "serve", "shape", "shaped", "shard",
        "shard_map", "shards", "base", "waiting", "whole", "withdrawn",
    )  # fmt: skip

    def __init__(
        self,
        model: str,
        version: str,
        policy: ModelPolicy,
        balancers: tuple[Balancer, Balancer],
        *,
        learned: bool,
        now: float,
        protocol: str = HTTP,
        shard: int | None = None,
    ) -> None:
        key = route_key(model, version)
        self.key = key if shard is None else f"{key}#{shard}"
        self.shard = shard
        self.shards: tuple[Route, ...] = ()
        self.shape = ""
        self.shaped: tuple[Route, ...] = ()
        self.base: Route | None = None
        self.whole: Route | None = None
        self.shard_map: ShardMap | None = None
        self.model = model
        self.version = version
        self.policy = policy
        self.protocol = protocol
        self.hedging: HeadTimes | None = None  # where its requests are hedged
        self.serve: ServePolicy | None = None
        self.mixed = 0
        self.due = -inf
        self.drawn: list[Candidate] = []
        self.balancer, self.busy_balancer = balancers
        self.table: tuple[int, list[tuple[Candidate, Candidate, Candidate, Candidate]]] | None = None
        self.busy: list[Candidate] = []
        self.used = 0
        self.candidates: list[Candidate] = []  # as they came, until the next table: IN_ORDER
        self.waiting: list[Candidate] = []  # ejected in any way, else fit
        self.built_at = -inf
        self.rebuild_at = -inf
        self.interval_s = 0.0
        self.dirty = True
        self.early_at = -inf
        self.learned = learned
        self.withdrawn = False  # its model was taken out of the configuration: it goes with its last replica
        self.empty_since = now
        self.none: NoCandidate | None = None
        self.none_at = -inf
        self.queued: NoCandidate | None = None
        self.judge_at = -inf
        self.panic = False
        self.failing = False  # its last table could not be made

    def takes(self, candidate: Candidate) -> bool:
        """Return whether a candidate's version may take requests here, now or later."""
        return self.serve is None or is_taken(self.serve, candidate.version)

    def mark(self, *, opened: bool) -> None:
        """Note that a candidate changed. The table follows within its interval.

        For one that ``opened`` it follows at once, where it is the only one or none did so in the last second.
        """
        self.dirty = True
        self.none = None
        if opened and self.built_at >= self.early_at:
            self.early_at = inf
            self.rebuild_at = self.due = -inf
        elif self.drawn or self.busy:
            self.rebuild_at = min(self.rebuild_at, self.built_at + self.interval_s)
            self.due = min(self.due, self.rebuild_at)
        elif opened:
            self.rebuild_at = -inf
        for one in self.shaped:
            one.mark(opened=opened)
        if self.shards and self.by_newest:  # whether all shards have a version decides at each of them
            for one in self.shards:
                one.mark(opened=opened)

    @property
    def by_newest(self) -> bool:
        """Whether one version takes the requests, the newest that could."""
        return self.serve is not None and self.serve.rule is ServeRule.LATEST

    def expire(self) -> None:
        """Have the table made again at the next choice."""
        self.dirty = True
        self.none = None
        self.rebuild_at = self.due = -inf
        for one in self.shaped:
            one.expire()

    def look_closer(self) -> None:
        """Have the next choice plan probes and trials anew."""
        self.due = -inf
        for one in self.shaped:
            one.due = -inf

    def forget(self, candidate: Candidate) -> None:
        """Let go of a candidate that is gone."""
        self.candidates.remove(candidate)
        for one in (self, *self.shaped):
            if candidate in one.waiting:
                one.waiting.remove(candidate)

    def shaped_for(self, shape: str, balancers: tuple[Balancer, Balancer], now: float) -> Route:
        """Make the route for requests of one shape class."""
        made = Route(
            self.model,
            self.version,
            self.policy,
            balancers,
            learned=self.learned,
            now=now,
            protocol=self.protocol,
            shard=self.shard,
        )
        made.shape = shape
        made.base = self
        made.whole = self.whole
        made.candidates = self.candidates
        made.hedging = self.hedging
        made.serve = self.serve
        made.mixed = self.mixed
        made.queued = self.queued
        self.shaped = (*self.shaped, made)
        return made


def route_key(model: str, version: str) -> str:
    """Return what the route of a model, or of one version of it, goes by."""
    return f"{model}@{version}" if version else model


def proven_for(replica: Replica, shape: str) -> bool:
    """Return whether a replica has been proven for a shape class by a run."""
    return any(name == shape and ratio > 0 for name, ratio in replica.warmth)


@dataclass(frozen=True, slots=True)
class VersionPick:
    """Which version of a model takes a request that named none: its route; ``moved``: another's, which has nobody."""

    route: Route
    version: str
    moved: bool


def expected_wait(ewma_ms: float, in_flight: float) -> float:
    """Return the expected wait of one more attempt in ms: EWMA x (in flight + 1)."""
    return ewma_ms * (in_flight + 1)


def second_wins(first_wait_ms: float, second_wait_ms: float) -> bool:
    """Say which of two drawn is taken: the one with the lower expected wait, the first where they are equal."""
    return second_wait_ms < first_wait_ms


def freshness_at(age_s: float, policy: FreshnessPolicy) -> float:
    """Return 1 up to ``full_s`` of age, then linearly less, 0 from ``ttl_s``."""
    if age_s <= policy.full_s:
        return 1.0
    return max(0.0, (policy.ttl_s - age_s) / (policy.ttl_s - policy.full_s))


def ramp_at(warm_for_s: float, policy: RampPolicy, *, proven: bool) -> float:
    """Return the share that a replica gets which has been warm for so long, or ``proven`` here for so long."""
    if warm_for_s >= policy.duration_s:
        return 1.0
    start = max(policy.start_ratio, policy.proven_start_ratio) if proven else policy.start_ratio
    return start + (1 - start) * warm_for_s / policy.duration_s


def weigh(
    candidates: Sequence[CandidateView], scorers: Sequence[tuple[Scorer, float]], policies: Policies, mode: StoreMode
) -> Weighing:
    """Give each candidate its weight; pure, from what the candidates hold now.

    With the store gone for long (``local``) only observed signals count; with nothing to go by (``uniform``) none.
    """
    return at_once(weigh_in_turns(candidates, scorers, policies, mode))


def weigh_in_turns(
    candidates: Sequence[CandidateView], scorers: Sequence[tuple[Scorer, float]], policies: Policies, mode: StoreMode
) -> Turns[Weighing]:
    """Do the same in turns."""
    freshness = [freshness_at(candidate.age_s, policies.freshness) for candidate in candidates]
    ramp = [
        ramp_at(candidate.warm_for_s, policies.ramp, proven=candidate.replica.proven_at not in (None, -inf))
        for candidate in candidates
    ]
    many = len(candidates) > LOOKS
    if many:
        yield None
    columns: list[Column] = []
    if mode is StoreMode.UNIFORM:
        return Weighing(freshness, ramp, columns, [1.0] * len(candidates), 0.0)
    sums = [0.0] * len(candidates)
    for scorer, coefficient in scorers:
        if mode is StoreMode.LOCAL and not scorer.observed:
            continue
        known = scorer(candidates)
        middle: float | None = None
        if None in known:
            middle = median(known)
        fill = NEUTRAL if middle is None else middle
        scores = [fill if score is None else score for score in known]
        columns.append(Column(scorer, coefficient, known, scores))
        for index, score in enumerate(scores):
            sums[index] += coefficient * score
        if many:
            yield None
    weights = [fresh * rise * total for fresh, rise, total in zip(freshness, ramp, sums, strict=True)]
    floor = policies.scoring.exploration_floor_ratio * sum(weights) / len(weights) if weights else 0.0
    return Weighing(freshness, ramp, columns, [max(weight, floor) for weight in weights], floor)
