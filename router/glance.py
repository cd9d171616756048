"""Looking at candidates without touching them: what depends on the moment, and who may be picked at it."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from router.breaker import GuardState
from router.endpoint import IN_ORDER
from router.groups import unfit
from router.lasting import idle_s_of, lasting_at
from router.outcomes import Reason
from router.routes import UNMEASURED_MS
from router.turns import LOOKS, at_once
from router.versions import is_left_out, served_version, whole_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router.endpoint import Candidate, Endpoint
    from router.groups import Lack
    from router.latency import Latency
    from router.model import EndpointRecord, Replica, StoreMode
    from router.policy import Policies, WarmthPolicy
    from router.protocols import Candidate as CandidateView
    from router.protocols import Scorer
    from router.routes import Route
    from router.turns import Turns

EJECTED = frozenset({Reason.QUARANTINED, Reason.BREAKER_OPEN, Reason.OUTLIER})
"""Reasons that say how attempts went."""
TAKEN_UP = frozenset({Reason.BUSY, Reason.AT_LIMIT})
"""Reasons that say that others are picked for a moment: such a replica is one that may be picked, all the same."""
WARM_ALL_THE_SAME = EJECTED | TAKEN_UP
"""Reasons that say of now, not of whether a replica could serve."""


class Glance:
    """A candidate at one moment, as filters, scorers and balancers see it, without touching it.

    ``prior_ms`` is set for those that may be picked, who are so without end here. ``load`` is what is in flight in the
    process that decides; where that is none of this cluster, what a sibling process has in the mean.
    """

    __slots__ = (
        "_now",
        "age_s",
        "candidate",
        "endpoint",
        "fit_until",
        "idle_s",
        "lasting",
        "lacks",
        "load",
        "open_until",
        "panic_until",
        "prior_ms",
        "version",
        "warm_for_s",
    )

    def __init__(self, candidate: Candidate, age_s: float, now: float, policy: WarmthPolicy, *, decides: bool) -> None:
        self.candidate = candidate
        self.endpoint = endpoint = candidate.endpoint
        self.load = float(endpoint.in_flight) if decides else endpoint.peers_in_flight / max(1, len(endpoint.peers))
        self.version = candidate.version
        self.open_until = self.fit_until = self.panic_until = inf
        self.prior_ms = UNMEASURED_MS
        self.age_s = age_s
        self.warm_for_s = max(0.0, now - candidate.warm_at)
        self.idle_s = idle_s_of(candidate, age_s, now)
        self.lasting = lasting_at(self.idle_s, policy)
        self.lacks: tuple[Lack, ...] = candidate.lacks
        self._now = now

    @property
    def record(self) -> EndpointRecord:
        """The endpoint's last report."""
        return self.candidate.endpoint.record

    @property
    def replica(self) -> Replica:
        """The replica as last reported."""
        return self.candidate.replica

    @property
    def latency(self) -> Latency:
        """What attempts on it took."""
        return self.candidate.latency

    @property
    def p95_ms(self) -> float | None:
        """P95 of attempts on it."""
        return self.candidate.p95_ms

    @property
    def held(self) -> bool:
        """An operator drained it at this sidecar."""
        return self.candidate.held

    @property
    def broke_at(self) -> float:
        """When its connections last broke."""
        return self.candidate.broke_at

    @property
    def quarantined(self) -> bool:
        """It is in quarantine."""
        return self.candidate.quarantined

    @property
    def entry(self) -> bool:
        """It is asked itself, not through another one of its group."""
        return self.candidate.entry

    @property
    def breaker_open(self) -> bool:
        """Its breaker would let nothing through at this moment."""
        breaker = self.candidate.breaker
        return breaker.blocks and not (breaker.state is GuardState.OPEN and self._now >= breaker.until)

    @property
    def outlier(self) -> bool:
        """It is out as an outlier at this moment."""
        return self.candidate.ejection.active and self._now < self.candidate.ejection.until

    @property
    def inconsistent(self) -> bool:
        """It keeps saying that it loaded something else than most."""
        return self.candidate.inconsistent

    @property
    def busy(self) -> bool:
        """It pushed back, or said that it is not ready, for longer than this moment."""
        return self._now < self.candidate.busy_until


_Look = tuple[list[Glance], list[tuple[Glance, Reason]]]


@dataclass(frozen=True, slots=True)
class View:
    """What a cluster lets an explanation see of it."""

    policies: Policies
    mode: StoreMode
    scorers: Sequence[tuple[Scorer, float]]
    verdict: Callable[[CandidateView], Reason | None]
    age_s: Callable[[Endpoint, float], float]
    decides: bool
    _looks: dict[Route, _Look] = field(default_factory=dict)
    _by_shard: dict[Route, tuple[tuple[set[str], ...], tuple[set[str], ...]]] = field(default_factory=dict)

    def look(self, route: Route, now: float) -> tuple[list[Glance], list[tuple[Glance, Reason]]]:
        """Return those that may be picked now, and those that may not, with the reason."""
        open_, out = self.look_at_all(route, now)
        serve = route.serve
        if serve is None:
            return open_, out
        pickable, probed = self.by_shard(route, now)
        served = served_version(serve, pickable, route.shard or 0)
        worth = whole_versions(probed)
        stay: list[Glance] = []
        left: list[tuple[Glance, Reason]] = []
        for glance in open_:
            if is_left_out(serve, glance.version, served, ejected=False):
                left.append((glance, Reason.OTHER_VERSION))
            else:
                stay.append(glance)
        for glance, reason in out:
            other = reason in WARM_ALL_THE_SAME and is_left_out(
                serve, glance.version, served, ejected=reason in EJECTED and glance.version in worth
            )
            left.append((glance, Reason.OTHER_VERSION if other else reason))
        return stay, left

    def by_shard(self, route: Route, now: float) -> tuple[tuple[set[str], ...], tuple[set[str], ...]]:
        """Return the versions with a replica that may be picked, at each shard of the model, and those that are ejected
        among them; one alone where it is not split.

        It is found out once: each shard's route asks for all of them.
        """
        whole = route.whole or route
        found = self._by_shard.get(whole)
        if found is None:
            looks = [self.look_at_all(shard, now) for shard in whole.shards or (whole,)]
            pickable = tuple(
                {one.version for one in open_} | {one.version for one, reason in out if reason in TAKEN_UP}
                for open_, out in looks
            )
            probed = tuple(
                versions | {one.version for one, reason in out if reason in EJECTED and one.entry}
                for versions, (_, out) in zip(pickable, looks, strict=True)
            )
            found = self._by_shard[whole] = pickable, probed
        return found

    def look_at_all(self, route: Route, now: float) -> tuple[list[Glance], list[tuple[Glance, Reason]]]:
        """Return the same, whichever version takes the route's requests. It is looked once: a view is of one moment."""
        if route not in self._looks:
            at_once(self._look(route, now))
        return self._looks[route]

    def look_in_turns(self, route: Route, now: float) -> Turns[None]:
        """Look at all that :meth:`look` will need to have seen, a few candidates at a time."""
        whole = route.whole or route
        for one in (route, *(whole.shards or (whole,))):
            if one not in self._looks:
                yield from self._look(one, now)

    def _look(self, route: Route, now: float) -> Turns[None]:
        open_: list[Glance] = []
        out: list[tuple[Glance, Reason]] = []
        for count, candidate in enumerate(sorted(route.candidates, key=IN_ORDER), 1):
            glance = self._glance(candidate, now)
            reason = self.verdict(glance)
            if (reason is None or reason is Reason.BUSY) and candidate.endpoint.full_everywhere():
                reason = Reason.AT_LIMIT
            if reason is None:
                open_.append(glance)
            else:
                out.append((glance, reason))
            if count % LOOKS == 0:
                yield None
        self._looks[route] = open_, out

    def _glance(self, candidate: Candidate, now: float) -> Glance:
        """Look at a candidate, and where it is asked for a group, at what that lacks and how its weakest does."""
        age_s = self.age_s(candidate.endpoint, now)
        glance = Glance(candidate, age_s, now, self.policies.warmth, decides=self.decides)
        group = candidate.group
        if group is not None and candidate.entry:
            for member in group.others(candidate):
                other = self._glance(member, now)
                glance.age_s = max(glance.age_s, other.age_s)
                glance.warm_for_s = min(glance.warm_for_s, other.warm_for_s)
            glance.lacks = group.lacks(
                candidate, lambda member: unfit(member, self.verdict(self._glance(member, now)), now)
            )
        return glance
