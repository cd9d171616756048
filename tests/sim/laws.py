"""The laws that are compared, each as one process of a proxy runs it: who gets the next request.

``warm`` is the router itself (``router.cluster.Cluster`` as the data process drives it); the others are the usual ones,
written out small. Where the router offers one of them by name, a :class:`Routed` that asks for it takes its place in
``LAWS``: nothing else here knows which is which.

Besides its endpoints a law learns only what its proxy could know: how its own attempts end, what an active health check
says (``checked``), and, the router, what endpoints report (``take``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from itertools import accumulate
from math import exp, inf
from typing import TYPE_CHECKING, Any, Protocol

from router.cluster import Cluster
from router.model import EndpointRecord, EndpointSeen, Event, PeerObserved, Replica, State, Tick
from router.outcomes import MAYBE_STARTED, NOT_STARTED, AttemptResult
from router.policy import ModelPolicy, Policies
from router.routes import Attempt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from router.endpoint import Candidate
    from router.protocols import Rng


class Pick(Protocol):
    """One attempt that a law decided on; it is handed back once, when it has ended."""

    @property
    def endpoint(self) -> Any: ...


class Law(Protocol):
    """Decides for one process of a proxy."""

    def choose(self, model: str, now: float, tried: Pick | None) -> Pick | None:
        """Return an attempt for a request, on another endpoint than ``tried``; None where nobody can take it."""

    def done(self, pick: Pick, result: AttemptResult, now: float) -> Sequence[Event]:
        """Learn how an attempt ended; return what sibling processes should hear."""

    def retry(self, pick: Pick, result: AttemptResult, tries: int, now: float) -> float | None:
        """Return after how many seconds a request is tried again after ``tries`` attempts, None where it is not."""

    def take(self, event: Event, now: float) -> None:
        """Learn of the fleet, or from a sibling process."""

    def checked(self, id_: str, passed: bool, now: float, *, proven: bool = False) -> None:
        """Learn what an active health check of an endpoint says, where that has changed, or that it was ``proven``."""

    def tick(self, now: float) -> Sequence[Event]:
        """Do what is done ten times a second; return what sibling processes are told because of it."""

    def observe(self, source: int, now: float) -> Sequence[Event]:
        """Return what sibling processes are told once a second."""


# --- the router --------------------------------------------------------------------------------------------------


class Routed:
    """A law of the router's, in the hands of the same calls as those of a data process.

    ``static``: endpoints are given by configuration, and count as warm until told otherwise.
    """

    def __init__(
        self, known: Mapping[str, tuple[str, ...]], rng: Rng, *, static: bool, cluster: type[Cluster] = Cluster
    ) -> None:
        models = sorted({model for of_one in known.values() for model in of_one})
        self.cluster = cluster(Policies(), [ModelPolicy(model, idempotent=True) for model in models], 0.0, rng=rng)
        self._rng = rng
        self._known = known
        self._routes = {model: self.cluster.route(model) for model in models}
        self._unsettled: dict[Candidate, list[float]] = {}
        if static:
            for id_ in known:
                self.checked(id_, True, 0.0)

    def choose(self, model: str, now: float, tried: Pick | None) -> Pick | None:
        route = self._routes[model]
        assert route is not None
        picked = self.cluster.choose(route, now, self._rng, None if tried is None else tried.endpoint)
        return picked if isinstance(picked, Attempt) else None

    def done(self, pick: Pick, result: AttemptResult, now: float) -> Sequence[Event]:
        assert isinstance(pick, Attempt)
        candidate = pick.candidate
        if result is AttemptResult.SUCCESS and not candidate.guarded:  # as Plane.answered does
            self._unsettled.setdefault(candidate, []).append(self.cluster.succeeded(pick, now))
            return ()
        return self.cluster.done(pick, result, now)

    def retry(self, pick: Pick, result: AttemptResult, tries: int, now: float) -> float | None:
        assert isinstance(pick, Attempt)
        verdict = self.cluster.retry(pick, result, answered=False, replayable=True, tries=tries, now=now, rng=self._rng)
        return verdict.delay_s if verdict.allowed else None

    def take(self, event: Event, now: float) -> None:
        self.cluster.apply(event, now)

    def checked(self, id_: str, passed: bool, now: float, *, proven: bool = False) -> None:
        state = State.WARM if passed else State.LOADING
        proven_at = now if proven else None
        replicas = tuple(Replica(model, "1", state=state, proven_at=proven_at) for model in self._known[id_])
        self.cluster.apply(EndpointSeen(EndpointRecord(id_, f"http://{id_}", replicas=replicas, static=True), now), now)

    def tick(self, now: float) -> Sequence[Event]:
        events: list[Event] = []
        for candidate, seconds in self._unsettled.items():
            events += self.cluster.learn(candidate, seconds, now)
        self._unsettled.clear()
        events += self.cluster.apply(Tick(), now)
        self.cluster.half_opened.clear()
        return events

    def observe(self, source: int, now: float) -> Sequence[Event]:
        return (PeerObserved(source, self.cluster.observe(now), now),)


# --- the usual ones ----------------------------------------------------------------------------------------------


class Place:
    """What a usual law keeps of one endpoint."""

    __slots__ = ("ewma_at", "ewma_ms", "id", "in_flight", "since", "up")

    def __init__(self, id_: str) -> None:
        self.id = id_
        self.in_flight = 0
        self.up = True
        self.since = -inf  # when it was last taken in
        self.ewma_ms = 0.0
        self.ewma_at = 0.0


class Turn:
    """One attempt of a usual law."""

    __slots__ = ("began", "endpoint")

    def __init__(self, place: Place, now: float) -> None:
        self.endpoint = place
        self.began = now


class Usual(ABC):
    """What the usual laws share: they count attempts in flight, leave out what a check found down, and try once more.

    A retry goes to another endpoint at once; what the router may repeat, they may too.
    """

    def __init__(self, known: Mapping[str, tuple[str, ...]], rng: Rng) -> None:
        self._rng = rng
        self._places = {id_: Place(id_) for id_ in known}
        self._by_model: dict[str, list[Place]] = {}
        for id_, models in known.items():
            for model in models:
                self._by_model.setdefault(model, []).append(self._places[id_])
        self._open = {model: list(places) for model, places in self._by_model.items()}

    @abstractmethod
    def pick(self, model: str, places: list[Place], now: float) -> Place:
        """Return one of ``places``, of which there is at least one."""

    def choose(self, model: str, now: float, tried: Pick | None) -> Pick | None:
        places = self._open[model]
        if tried is not None:
            places = [place for place in places if place is not tried.endpoint]
        if not places:
            return None
        place = self.pick(model, places, now)
        place.in_flight += 1
        return Turn(place, now)

    def done(self, pick: Pick, result: AttemptResult, now: float) -> Sequence[Event]:
        pick.endpoint.in_flight -= 1
        return ()

    def retry(self, pick: Pick, result: AttemptResult, tries: int, now: float) -> float | None:
        return 0.0 if tries == 1 and (result in NOT_STARTED or result in MAYBE_STARTED) else None

    def take(self, event: Event, now: float) -> None:  # noqa: B027  every law has it
        """Nothing: these hear no reports."""

    def checked(self, id_: str, passed: bool, now: float, *, proven: bool = False) -> None:
        place = self._places[id_]
        if passed and not place.up:
            place.since = now
        place.up = passed
        self._open = {model: [each for each in places if each.up] for model, places in self._by_model.items()}

    def tick(self, now: float) -> Sequence[Event]:
        return ()

    def observe(self, source: int, now: float) -> Sequence[Event]:
        return ()

    def _index(self, places: list[Place]) -> int:
        return int(self._rng() * len(places))


class RoundRobin(Usual):
    """One after the other, each process for itself."""

    def __init__(self, known: Mapping[str, tuple[str, ...]], rng: Rng) -> None:
        super().__init__(known, rng)
        self._next = {model: self._index(places) for model, places in self._by_model.items()}

    def pick(self, model: str, places: list[Place], now: float) -> Place:
        turn = self._next[model] = self._next[model] + 1
        return places[turn % len(places)]


class Random(Usual):
    """Any, each as likely."""

    def pick(self, model: str, places: list[Place], now: float) -> Place:
        return places[self._index(places)]


class LeastRequest(Usual):
    """The one with the fewest attempts in flight of all, any of those where several have as few."""

    def pick(self, model: str, places: list[Place], now: float) -> Place:
        least = min(place.in_flight for place in places)
        best = [place for place in places if place.in_flight == least]
        return best[self._index(best)]


class TwoChoice(Usual):
    """Of two different ones at random, the one with fewer attempts in flight."""

    def pick(self, model: str, places: list[Place], now: float) -> Place:
        first, second = self._two(places)
        return second if second.in_flight < first.in_flight else first

    def _two(self, places: list[Place]) -> tuple[Place, Place]:
        first = self._index(places)
        if len(places) == 1:
            return places[0], places[0]
        second = int(self._rng() * (len(places) - 1))
        return places[first], places[second + (second >= first)]


class PeakEwma(TwoChoice):
    """Of two different ones, the one with the lower EWMA of its latency x (attempts in flight + 1).

    The EWMA rises to a longer sample at once and decays over ten seconds; ``UNKNOWN_MS`` stands for one not measured.
    """

    DECAY_S = 10.0
    UNKNOWN_MS = 30.0

    def pick(self, model: str, places: list[Place], now: float) -> Place:
        first, second = self._two(places)
        return second if self._cost(second) < self._cost(first) else first

    def _cost(self, place: Place) -> float:
        return (place.ewma_ms or self.UNKNOWN_MS) * (place.in_flight + 1)

    def done(self, pick: Pick, result: AttemptResult, now: float) -> Sequence[Event]:
        assert isinstance(pick, Turn)
        place = pick.endpoint
        place.in_flight -= 1
        if result is AttemptResult.SUCCESS:
            ms = (now - pick.began) * 1000
            weight = exp((place.ewma_at - now) / self.DECAY_S)
            place.ewma_ms = ms if ms >= place.ewma_ms else ms + (place.ewma_ms - ms) * weight
            place.ewma_at = now
        return ()


class SlowStart(LeastRequest):
    """Least request, where an endpoint that was taken in again counts as smaller: from a tenth to all in ten seconds.

    The one with the least (attempts in flight + 1) / share of all is taken.
    """

    def pick(self, model: str, places: list[Place], now: float) -> Place:
        if all(now - place.since >= SLOW_START_S for place in places):
            return super().pick(model, places, now)
        costs = [(place.in_flight + 1) / share(place, now) for place in places]
        least = min(costs)
        best = [place for place, cost in zip(places, costs, strict=True) if cost == least]
        return best[self._index(best)]


class SlowStartByWeight(TwoChoice):
    """Two choices; while an endpoint is in slow start, one by weight instead: share / (attempts in flight + 1).

    What proxies do that can only draw by weight where weights differ.
    """

    def pick(self, model: str, places: list[Place], now: float) -> Place:
        if all(now - place.since >= SLOW_START_S for place in places):
            return super().pick(model, places, now)
        reached = list(accumulate(share(place, now) / (place.in_flight + 1) for place in places))
        return places[bisect_right(reached, self._rng() * reached[-1], hi=len(places) - 1)]


SLOW_START_S = 10.0
LEAST_SHARE = 0.1


def share(place: Place, now: float) -> float:
    """Return how much of an endpoint counts so long after it was taken in."""
    return min(1.0, max(LEAST_SHARE, (now - place.since) / SLOW_START_S))


class MakeLaw(Protocol):
    """Makes a law for one process from the endpoints with their models."""

    def __call__(self, known: Mapping[str, tuple[str, ...]], rng: Rng, static: bool) -> Law: ...


def _usual(law: type[Usual]) -> MakeLaw:
    return lambda known, rng, static: law(known, rng)


def _routed(known: Mapping[str, tuple[str, ...]], rng: Rng, static: bool) -> Law:
    return Routed(known, rng, static=static)


WARM = "warm"
SLOW_START = "slow_start"
LAWS: dict[str, MakeLaw] = {
    WARM: _routed,
    "round_robin": _usual(RoundRobin),
    "random": _usual(Random),
    "least_request": _usual(LeastRequest),
    "two_choice": _usual(TwoChoice),
    "peak_ewma": _usual(PeakEwma),
    SLOW_START: _usual(SlowStart),
    "slow_start_by_weight": _usual(SlowStartByWeight),
}
"""By name."""
