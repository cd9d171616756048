"""Who may be picked: the verdict of the filters on each replica, the second layer of :class:`router.fleet.Fleet`."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from router.ages import Ages
from router.directory import Directory
from router.groups import unfit
from router.lasting import idle_s_of, lasting_at
from router.model import Evidence
from router.outcomes import Reason
from router.outlier import PANIC_OVERLOOKS, Tally, outliers, returning

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from router.endpoint import Candidate, Endpoint
    from router.groups import Group
    from router.model import StoreMode
    from router.policy import ModelPolicy, Policies
    from router.protocols import Candidate as CandidateView
    from router.protocols import Filter, PickerFactory
    from router.routes import Route

JUDGE_S: Final = 1.0
"""How often the replicas of a route are compared, at most."""


class Judging(Directory):
    """Judges replicas as of a moment, and marks the routes whose tables have to follow."""

    def __init__(
        self, policies: Policies, models: Iterable[ModelPolicy], filters: Sequence[Filter], picker: PickerFactory
    ) -> None:
        super().__init__(policies, models, picker)
        self.endpoints: dict[str, Endpoint] = {}
        self.half_opened: list[Candidate] = []
        self.ejected: list[Candidate] = []  # as outliers, yet to be told to sibling processes
        self.ages = Ages(policies.freshness)
        self._cools = policies.warmth.idle_after_s is not None
        self.filter_by(filters)

    @property
    def mode(self) -> StoreMode:
        """How far the shared state can be trusted."""
        return self.ages.mode

    def filter_by(self, filters: Iterable[Filter]) -> None:
        """Have these say from now on who is left out."""
        # Bound methods: calling one costs half of what calling an object does.
        self._filters = tuple(filter_.__call__ for filter_ in filters)

    def verdict(self, candidate: CandidateView) -> Reason | None:
        """Return the first filter's reason to leave a candidate out, None where all let it pass."""
        mode = self.ages.mode
        for filter_ in self._filters:
            reason = filter_(candidate, mode)
            if reason is not None:
                return reason
        return None

    def look(self, candidate: Candidate, now: float) -> bool:
        """Judge one candidate as of ``now``; True where the verdict changed."""
        endpoint = candidate.endpoint
        candidate.age_s = self.ages.age_s(endpoint, now)
        candidate.warm_for_s = max(0.0, now - candidate.warm_at)
        candidate.busy = now < candidate.busy_until
        if self._cools:
            candidate.lasting = lasting_at(idle_s_of(candidate, candidate.age_s, now), self._policies.warmth)
        was_open = candidate.open_until != -inf
        stale_at = self.ages.stale_at(endpoint)
        if candidate.group is not None and candidate.entry:
            stale_at = min(stale_at, self._look_at_group(candidate, candidate.group, now))
        reason = self.verdict(candidate)
        candidate.open_until = stale_at if reason is None else -inf
        candidate.fit_until = stale_at if reason is None or reason is Reason.BUSY else -inf
        overlooked = reason is None or (reason in PANIC_OVERLOOKS and candidate.entry)
        candidate.panic_until = stale_at if overlooked else -inf
        if reason is not candidate.reason:
            candidate.reason = reason
            candidate.reason_since = now
            return True
        return was_open is not (reason is None)

    def advance(self, candidate: Candidate, now: float) -> bool:
        """Have a breaker whose time in open is over go half open; True where that happened."""
        if not candidate.breaker.advance(now):
            return False
        self.half_opened.append(candidate)
        self.judge(candidate.endpoint, now)  # its other routes have to know
        return True

    def judge_outliers(self, route: Route, now: float) -> None:
        """Take out who fails much more than the others of a version; at most once a second for each route."""
        policy = self._policies.outlier
        if not policy.enabled or len(route.candidates) <= policy.minimum_others or now < route.judge_at:
            return
        route.judge_at = now + JUDGE_S
        groups: dict[tuple[str, int], list[Candidate]] = {}
        for candidate in route.candidates:
            groups.setdefault((candidate.version, candidate.shard), []).append(candidate)
        for group in groups.values():
            tallies = [_tally(candidate, now) for candidate in group]
            for index in returning(tallies, policy):
                group[index].ejection.needed(now)
                self.judge(group[index].endpoint, now)
            for found in outliers(tallies, policy):
                candidate, tally = group[found.index], tallies[found.index]
                if not any(now < other.fit_until for other in group if other is not candidate):
                    continue  # it is the last one, and would be let in again
                evidence = Evidence(tally.calls, tally.failures, 0, 0, others_ratio=found.bound_ratio)
                candidate.ejection.eject(evidence, policy, now)
                self.ejected.append(candidate)
                self.judge(candidate.endpoint, now)

    def judge(self, endpoint: Endpoint, now: float) -> None:
        """Judge all candidates of an endpoint after something about it changed."""
        endpoint.regard()
        for candidate in endpoint.candidates.values():
            changed = self.look(candidate, now)
            for route in candidate.routes:
                if changed:
                    route.mark(opened=candidate.reason is None)
                if candidate.guarded:
                    route.look_closer()
            if changed and candidate.group is not None:
                self._judge_entries(candidate.group, candidate.replica.generation, now)

    def judge_all(self, now: float) -> None:
        """Judge everybody after all ages changed, and have every table made again."""
        for endpoint in self.endpoints.values():
            self.judge(endpoint, now)
        for route in self.all_routes():
            route.expire()

    def watch_silence(self, now: float) -> None:
        """Stop the ages' clock where everybody has fallen silent at once."""
        if self.ages.watch(now):
            self.judge_all(now)

    def _look_at_group(self, entry: Candidate, group: Group, now: float) -> float:
        """Judge those that answer through ``entry``, whose weakest speaks for all; return when the first goes stale."""
        until = inf
        for member in group.others(entry):
            self.look(member, now)
            entry.age_s = max(entry.age_s, member.age_s)
            entry.warm_for_s = min(entry.warm_for_s, member.warm_for_s)
            until = min(until, self.ages.stale_at(member.endpoint))
        entry.lacks = group.lacks(entry, lambda member: unfit(member, member.reason, now))
        return until

    def _judge_entries(self, group: Group, generation: int, now: float) -> None:
        """Judge who is asked for a group after something about one of its members changed."""
        for entry in group.entries(generation):
            if self.look(entry, now):
                for route in entry.routes:
                    route.mark(opened=entry.reason is None)


def _tally(candidate: Candidate, now: float) -> Tally:
    successes, failures = candidate.breaker.calls.peek(now)
    ejected, open_ = candidate.ejection.active, candidate.breaker_open
    return Tally(successes, failures, ejected or open_, ejected and not open_)
