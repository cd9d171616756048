"""Variations of the router's own law, to see what one of them would do before the router is changed.

``python -m tests.sim --variations`` plays them beside the law as it is.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from math import exp
from typing import TYPE_CHECKING

from router.cluster import Cluster
from router.routes import Attempt, NoCandidate, Route
from router.tables import USED_FOR
from tests.sim.laws import LAWS, WARM, Routed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from router.endpoint import Candidate, Endpoint
    from router.policy import ModelPolicy, Policies
    from router.protocols import Rng
    from tests.sim.laws import Law, MakeLaw


@dataclass(frozen=True, slots=True)
class Variation:
    """What is different in a variation.

    Args:
        draws: so many are drawn by weight, each for itself; the one with the lowest expected wait is taken.
        siblings: what sibling processes last said to have in flight counts.
        peaks: the EWMA rises to a longer sample at once; else it is a plain one.
        decay_s: over how long it decays.
    """

    draws: int = 2
    siblings: bool = False
    peaks: bool = False
    decay_s: float = 2.0

    def __call__(self, known: Mapping[str, tuple[str, ...]], rng: Rng, static: bool) -> Law:
        """Make the law."""
        variation = self

        class Varied(_Varied):
            how = variation

        return Routed(known, rng, static=static, cluster=Varied)


class _Varied(Cluster):
    """The router with another choice where nothing is due; what needs care goes the router's way."""

    how: Variation

    def __init__(self, policies: Policies, models: Iterable[ModelPolicy], now: float, *, rng: Rng) -> None:
        super().__init__(policies, models, now, rng=rng)
        self._means: dict[Candidate, tuple[float, float]] = {}
        self._reached: dict[Route, tuple[object, list[float]]] = {}

    def choose(
        self, route: Route, now: float, rng: Rng, tried: Endpoint | None = None, key: bytes | None = None
    ) -> Attempt | NoCandidate:
        table = route.balancer.table
        if tried is None and now < route.due and table is not None:
            table_of, reached = self._reached.get(route, (None, []))
            if table_of is not table:
                reached = list(accumulate(route.balancer.shares(None)))
                self._reached[route] = table, reached
            last = len(reached) - 1
            drawn = [route.drawn[bisect_right(reached, rng() * reached[-1], hi=last)] for _ in range(self.how.draws)]
            best = min(drawn, key=self._wait)  # the first of those that are equal
            if all(now < each.open_until for each in drawn) and best.endpoint.in_flight < best.most:
                self._calls.add(1, 0, now)
                best.endpoint.in_flight += 1
                route.used = USED_FOR
                return Attempt(best, route, now)
        return super().choose(route, now, rng, tried, key)

    def _wait(self, candidate: Candidate) -> float:
        endpoint = candidate.endpoint
        siblings = endpoint.peers_in_flight if self.how.siblings else 0
        return (self._estimate(candidate) or candidate.prior_ms) * (endpoint.in_flight + siblings + 1)

    def _estimate(self, candidate: Candidate) -> float:
        return self._means.get(candidate, (0.0, 0.0))[0]

    def succeeded(self, attempt: Attempt, now: float) -> float:
        seconds = super().succeeded(attempt, now)
        ms = seconds * 1000
        known = self._means.get(attempt.candidate)
        if known is None or (self.how.peaks and ms >= known[0]):
            self._means[attempt.candidate] = ms, now
        else:
            mean = ms + (known[0] - ms) * exp((known[1] - now) / self.how.decay_s)
            self._means[attempt.candidate] = mean, now
        return seconds


VARIATIONS: dict[str, MakeLaw] = {
    "as it is": LAWS[WARM],
    "two, siblings count, peaks": Variation(2, siblings=True, peaks=True, decay_s=10.0),
    "two, peaks": Variation(2, peaks=True, decay_s=10.0),
    "two": Variation(2),
    "three": Variation(3),
    "four": Variation(4),
    "four, peaks": Variation(4, peaks=True, decay_s=10.0),
    "four, siblings count": Variation(4, siblings=True),
}
"""By name: what is drawn, and what else is different from the law as it is."""
