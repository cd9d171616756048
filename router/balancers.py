"""Picking one of the candidates of a route: one class for each ``models[].balancer``, behind one protocol.

All of them pick among those that the filters let through, never one that is full or was tried before, and say what
they go by. ``in flight`` is what this process and its siblings have in flight at an endpoint, of any model.
"""

from __future__ import annotations

from bisect import bisect_right
from hashlib import blake2b
from math import ceil, floor
from typing import TYPE_CHECKING, Final

from router.fits import Anyone
from router.pickers import HandPicker, mixed
from router.policy import BalancerName, KeyPolicy
from router.protocols import Compared, Sample
from router.routes import ALIKE_RATIO, KEPT_RATIO, REDRAWS, expected_wait, second_wins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from router.policy import ModelPolicy
    from router.protocols import Balancer, Choosable, Fit, Measure, Picker, PickerFactory, Rng

FIRST_PLACES: Final = 4
"""How many endpoints are remembered for a key, in its order, before more are asked for."""
KEPT_PLACES: Final = 65536
"""For all keys of a route together; then all are forgotten."""

_PERSON: Final = b"warmroute"


def load_of(candidate: Choosable) -> int:
    """Return how much is in flight at a candidate's endpoint, siblings' attempts included."""
    return candidate.endpoint.in_flight + candidate.endpoint.peers_in_flight


class LoadBound:
    """How much one of a route's candidates may have in flight and still take a request for its key's sake.

    That is the mean of the candidates, with one more request, x ``load_factor``, rounded up: of what is in flight in
    this process (``own``), and of what is in flight in all processes of the sidecar (``whole``). Who is below either
    has room. What siblings have is told up to a second late, and may be over long since: their numbers give room to
    what is many here and few among all, and never take away what this process alone shows to be free.
    """

    __slots__ = ("own", "whole")

    def __init__(self, candidates: Sequence[Choosable], load_factor: float) -> None:
        count = len(candidates)
        self.own = ceil(load_factor * (sum([candidate.load for candidate in candidates]) + 1) / count)
        self.whole = ceil(load_factor * (sum([load_of(candidate) for candidate in candidates]) + 1) / count)

    def reached_by(self, candidate: Choosable) -> bool:
        """Return whether one more would be more than the bound: both for this process and for all."""
        return candidate.load >= self.own and load_of(candidate) >= self.whole

    def told(self, candidate: Choosable) -> str:
        """Return what the bound says of one that has room, or that is taken though nobody has."""
        load, most, whose = load_of(candidate), self.whole, ""
        if load >= most and candidate.load < self.own:
            load, most, whose = floor(candidate.load), self.own, " of the process that decides"
        return f"{load + 1} in flight{whose} with this one, at most {most}"

    def measures(self, candidate: Choosable) -> tuple[Measure, ...]:
        """Return what explanations show of it."""
        return (
            ("in_flight", "requests", float(load_of(candidate))),
            ("bound", "requests", float(self.whole)),
            ("own_in_flight", "requests", float(candidate.load)),
            ("own_bound", "requests", float(self.own)),
        )


def wait_ms(candidate: Choosable) -> float:
    """Return the expected wait of one more attempt of this process at a candidate, in ms."""
    return expected_wait(_ewma_ms(candidate), candidate.load)


def best_of(drawn: Sequence[Choosable]) -> Choosable:
    """Return the one to take of those drawn: of those that are alike, the one that was picked longest ago.

    ``Cluster.choose`` has this written out for speed; tests/property/test_choosing.py compares.
    """
    return min(alike_of(drawn), key=_picked_at)


def alike_of(drawn: Sequence[Choosable]) -> list[Choosable]:
    """Return the best of those drawn, and after it the others that are as good.

    The best has the lowest expected wait, or was drawn first while that is about as low. Where it has anything in
    flight, those are as good that have as much and are about as fast.
    """
    best = drawn[0]
    least = wait_ms(best) * KEPT_RATIO
    for other in drawn[1:]:
        if other is not best and (wait := wait_ms(other)) < least:
            best, least = other, wait
    if not best.load:
        return [best]
    most_ms = _ewma_ms(best) * ALIKE_RATIO
    others = dict.fromkeys(each for each in drawn if each is not best)
    return [best, *(each for each in others if each.load == best.load and _ewma_ms(each) <= most_ms)]


class _Balancer:
    """What most have in common: all candidates are alike, and none is compared with another."""

    name = ""
    goes_by = ""
    first = ""
    table: HandPicker | None = None

    def __init__(self) -> None:
        self._candidates: Sequence[Choosable] = ()

    def arrange(self, candidates: Sequence[Choosable], weights: Sequence[float]) -> None:
        """Take those that may be picked."""
        self._candidates = candidates

    def weighs(self, key: bytes | None) -> bool:
        """Return that weights do not matter."""
        return False

    def shares(self, key: bytes | None) -> list[float]:
        """Return that each is drawn as often."""
        return [1 / max(1, len(self._candidates))] * len(self._candidates)

    def measures(self, key: bytes | None) -> list[tuple[Measure, ...]]:
        """Return that nothing is measured."""
        return [()] * len(self._candidates)

    def _draw(self, fit: Fit, rng: Rng, other_than: Choosable | None = None) -> Choosable | None:
        """Draw one that may be picked, each as likely. A few draws first: nearly all of them may."""
        candidates = self._candidates
        size = len(candidates)
        if size > (other_than is not None):
            for _ in range(REDRAWS):
                candidate = candidates[int(rng() * size)]
                if candidate is not other_than and fit.admits(candidate):
                    return candidate
            left = [index for index in fit.left(candidates) if candidates[index] is not other_than]
            if left:
                return candidates[left[int(rng() * len(left))]]
        return None


class _Pair(_Balancer):
    """Draws two and takes the better one, the first where they are equal."""

    compares = Compared.IN_FLIGHT

    def _draw_two(self, fit: Fit, rng: Rng) -> tuple[Choosable, Choosable] | None:
        """Draw two different ones, each pair as likely; one twice where there is no other."""
        first = self._draw(fit, rng)
        return None if first is None else (first, self._draw(fit, rng, first) or first)

    def _cost(self, candidate: Choosable) -> float:
        """Return what is compared: less is better."""
        return load_of(candidate)

    def pick(self, fit: Fit, rng: Rng, key: bytes | None) -> Choosable | None:
        """Draw two and compare them."""
        drawn = self._draw_two(fit, rng)
        if drawn is None:
            return None
        first, second = drawn
        return second if second is not first and second_wins(self._cost(first), self._cost(second)) else first

    def sample(self, fit: Fit, rng: Rng, key: bytes | None) -> Sample | None:
        """Return what would be picked."""
        drawn = self._draw_two(fit, rng)
        if drawn is None:
            return None
        first, second = drawn
        winner = second if second_wins(self._cost(first), self._cost(second)) else first
        return Sample(drawn, winner, "", self.compares)


class Warm(_Balancer):
    """The default: four by weight, then the lowest expected wait, then age (docs/adr/0025-four-by-weight.md, 0029).

    ``Cluster.choose`` has this written out for speed.
    """

    name = BalancerName.WARM.value
    goes_by = "four drawn by weight, then the lowest expected wait, of those alike the one picked longest ago"

    def __init__(self, picker: PickerFactory = HandPicker, turn: int = 0) -> None:
        super().__init__()
        self._make_picker = picker
        self._turn = turn
        self._weights: Sequence[float] = ()
        self._picker: Picker | None = None

    def arrange(self, candidates: Sequence[Choosable], weights: Sequence[float]) -> None:
        """Build the table to draw from."""
        self._candidates = candidates
        self._weights = weights
        self._picker = self.table = None
        self._turn += 1
        if candidates:
            self._picker = picker = self._make_picker(candidates, weights, self._turn)
            self.table = picker if type(picker) is HandPicker else None  # another kind may draw otherwise

    def pick(self, fit: Fit, rng: Rng, key: bytes | None) -> Choosable | None:
        """Draw some, and compare those of them that may be picked."""
        drawn = self._draw_some(fit, rng)
        return best_of(drawn) if drawn else None

    def sample(self, fit: Fit, rng: Rng, key: bytes | None) -> Sample | None:
        """Return what would be picked."""
        drawn = self._draw_some(fit, rng)
        if not drawn:
            return None
        return Sample(tuple(drawn), best_of(drawn), "", Compared.WAIT, len(alike_of(drawn)) - 1)

    def _draw_some(self, fit: Fit, rng: Rng) -> list[Choosable]:
        """Return those of a draw that may be picked, each once. A few draws first: nearly all of them may."""
        picker = self._picker
        if picker is None:
            return []
        for _ in range(REDRAWS):
            drawn = [candidate for candidate in dict.fromkeys(picker.draw(rng)) if fit.admits(candidate)]
            if drawn:
                return drawn
        left = fit.left(self._candidates)
        if not left:
            return []
        candidates, weights = [self._candidates[index] for index in left], [self._weights[index] for index in left]
        return list(dict.fromkeys(self._make_picker(candidates, weights, self._turn).draw(rng)))

    def weighs(self, key: bytes | None) -> bool:
        """Return that weights decide who is drawn."""
        return True

    def twin(self) -> Warm:
        """Return one that draws alike."""
        return Warm(self._make_picker, self._turn - 1)

    def shares(self, key: bytes | None) -> list[float]:
        """Return each one's part of all weights."""
        total = sum(self._weights)
        return [weight / total for weight in self._weights] if total > 0 else super().shares(key)


class RoundRobin(_Balancer):
    """Each in its turn, in order of endpoint id. Who joins or leaves does not disturb the others' order.

    The first turn is drawn, so that processes and sidecars that start together do not all begin with the same one.
    """

    name = BalancerName.ROUND_ROBIN.value
    goes_by = "each in its turn, in order of endpoint id"

    def __init__(self) -> None:
        super().__init__()
        self._last: tuple[str, str] | None = None
        self._next = 0

    def arrange(self, candidates: Sequence[Choosable], weights: Sequence[float]) -> None:
        """Go on behind the last one that was picked, whether it is still there or not."""
        self._candidates = candidates
        if self._last is not None:
            self._next = bisect_right(candidates, self._last, key=_order)

    def pick(self, fit: Fit, rng: Rng, key: bytes | None) -> Choosable | None:
        """Return the next that may be picked."""
        candidates = self._candidates
        size = len(candidates)
        begin = self._next if self._last is not None else int(rng() * size)
        for step in range(size):
            index = (begin + step) % size
            candidate = candidates[index]
            if fit.admits(candidate):
                self._next = index + 1
                self._last = _order(candidate)
                return candidate
        return None

    def twin(self) -> Balancer:
        """Return one whose turn it is alike."""
        twin = RoundRobin()
        twin._last = self._last
        return twin

    def sample(self, fit: Fit, rng: Rng, key: bytes | None) -> Sample | None:
        """Return the next."""
        drawn = self._last is None
        picked = self.pick(fit, rng, key)
        if picked is None:
            return None
        return Sample((picked,), picked, "drawn, as it is the first" if drawn else "the next in turn")

    def measures(self, key: bytes | None) -> list[tuple[Measure, ...]]:
        """Return after how many others each one's turn comes, once the first was drawn."""
        size = len(self._candidates)
        if self._last is None:
            return super().measures(key)
        return [(("turn", "place", float((index - self._next) % size + 1)),) for index in range(size)]


class Random(_Balancer):
    """One at random, each as likely."""

    name = BalancerName.RANDOM.value
    goes_by = "one at random, each as likely"

    def pick(self, fit: Fit, rng: Rng, key: bytes | None) -> Choosable | None:
        """Draw one."""
        return self._draw(fit, rng)

    def twin(self) -> Balancer:
        """Return another."""
        return Random()

    def sample(self, fit: Fit, rng: Rng, key: bytes | None) -> Sample | None:
        """Draw one."""
        picked = self._draw(fit, rng)
        return None if picked is None else Sample((picked,), picked, "drawn at random")


class LeastRequest(_Balancer):
    """The one with the fewest in flight; one of them at random where several have. It looks at all of them."""

    name = BalancerName.LEAST_REQUEST.value
    goes_by = "the fewest in flight, one of them at random"

    def pick(self, fit: Fit, rng: Rng, key: bytes | None) -> Choosable | None:
        """Return one with the fewest in flight."""
        found = self._fewest(fit)
        return found[int(rng() * len(found))] if found else None

    def _fewest(self, fit: Fit) -> list[Choosable]:
        found: list[Choosable] = []
        least = -1
        for candidate in self._candidates:
            endpoint = candidate.endpoint
            load = endpoint.in_flight + endpoint.peers_in_flight
            if (load <= least or not found) and fit.admits(candidate):
                if load != least:
                    found.clear()
                    least = load
                found.append(candidate)
        return found

    def twin(self) -> Balancer:
        """Return another."""
        return LeastRequest()

    def sample(self, fit: Fit, rng: Rng, key: bytes | None) -> Sample | None:
        """Return one with the fewest in flight."""
        found = self._fewest(fit)
        if not found:
            return None
        picked = found[int(rng() * len(found))]
        others = f", as {len(found) - 1} more: drawn of them" if len(found) > 1 else ""
        return Sample((picked,), picked, f"the fewest in flight: {load_of(picked)}{others}")

    def shares(self, key: bytes | None) -> list[float]:
        """Return that those with the fewest in flight are as likely, and nobody else is picked."""
        loads = [load_of(candidate) for candidate in self._candidates]
        least = min(loads, default=0)
        return [(load == least) / loads.count(least) for load in loads]

    def measures(self, key: bytes | None) -> list[tuple[Measure, ...]]:
        """Return what is in flight at each."""
        return _loads(self._candidates)


class TwoChoice(_Pair):
    """Two at random, then the one with fewer in flight.

    Mitzenmacher, "The power of two choices in randomized load balancing", IEEE TPDS 12(10), 2001.
    """

    name = BalancerName.TWO_CHOICE.value
    goes_by = "two different ones at random, then the one with fewer in flight"

    def twin(self) -> Balancer:
        """Return another."""
        return TwoChoice()

    def measures(self, key: bytes | None) -> list[tuple[Measure, ...]]:
        """Return what is in flight at each."""
        return _loads(self._candidates)


class PeakEwma(_Pair):
    """Two at random, then the lower expected wait: a latency average that jumps to peaks x (in flight + 1).

    As in Finagle (its load balancer "P2C + Peak EWMA"). The average is that of ``router.latency.Latency``.
    """

    name = BalancerName.PEAK_EWMA.value
    goes_by = (
        "two different ones at random, then the lower expected wait (EWMA of the latency x in flight with this one)"
    )
    compares = Compared.WAIT

    def _cost(self, candidate: Choosable) -> float:
        return wait_ms(candidate)

    def twin(self) -> Balancer:
        """Return another."""
        return PeakEwma()

    def measures(self, key: bytes | None) -> list[tuple[Measure, ...]]:
        """Return each one's expected wait."""
        return [(("expected_wait", "ms", wait_ms(candidate)),) for candidate in self._candidates]


class Keyed(_Balancer):
    """The endpoint that a request's key prefers, unless that has more than its share in flight: then the next one.

    Preference is by rendezvous: each key ranks all endpoints by a hash of both, so one that leaves takes only its own
    keys with it, and one that joins gets only those that prefer it. Thaler and Ravishankar, "Using name-based mappings
    to increase hit rates", IEEE/ACM ToN 6(1), 1998. The bound is that of Mirrokni, Thorup and Zadimoghaddam,
    "Consistent hashing with bounded loads", SODA 2018 (arXiv 1608.01350, 2016): the mean in flight, with this one, x
    ``load_factor``, rounded up (:class:`LoadBound`). A request without a key is picked for as by ``warm``.
    """

    name = BalancerName.KEYED.value
    goes_by = "the first endpoint of those that the key ranks that is below its bound"

    def __init__(self, load_factor: float, picker: PickerFactory = HandPicker) -> None:
        super().__init__()
        self._load_factor = load_factor
        self._picker = picker
        self._without_key = Warm(picker)
        self._ids: list[str] = []
        self._seeds: list[int] = []
        self._known: dict[int, list[int]] = {}
        self._kept = 0

    def arrange(self, candidates: Sequence[Choosable], weights: Sequence[float]) -> None:
        """Take those that may be picked; what keys prefer is forgotten where others may than before."""
        self._candidates = candidates
        self._without_key.arrange(candidates, weights)
        ids = [candidate.endpoint.id for candidate in candidates]
        if ids != self._ids:
            self._ids = ids
            self._seeds = [hash_of(id_.encode()) for id_ in ids]
            self._known.clear()
            self._kept = 0

    def pick(self, fit: Fit, rng: Rng, key: bytes | None) -> Choosable | None:
        """Return the first of those that the key prefers that has room; the first at all where none has."""
        if key is None:
            return self._without_key.pick(fit, rng, None)
        candidates = self._candidates
        bound: LoadBound | None = None
        otherwise: Choosable | None = None
        for index in self._ranked(key):
            candidate = candidates[index]
            if candidate.load and bound is None:
                bound = self._bound()
            if bound is not None and bound.reached_by(candidate):
                if otherwise is None and fit.admits(candidate):
                    otherwise = candidate
            elif fit.admits(candidate):
                return candidate
        return otherwise

    def _bound(self) -> LoadBound:
        return LoadBound(self._candidates, self._load_factor)

    def _ranked(self, key: bytes) -> Iterator[int]:
        """Yield indices of candidates in the order of the key's preference."""
        of_key = hash_of(key)
        known = self._known.get(of_key)
        if known is None:
            known = self._keep(of_key, self._rank(of_key)[:FIRST_PLACES])
        yield from known
        first = len(known)
        if first < len(self._seeds):  # so the key is a hot one, or many are out
            yield from self._keep(of_key, self._rank(of_key))[first:]

    def _keep(self, of_key: int, order: list[int]) -> list[int]:
        self._kept += len(order)
        if self._kept > KEPT_PLACES:
            self._known.clear()
            self._kept = len(order)
        self._known[of_key] = order
        return order

    def _rank(self, of_key: int) -> list[int]:
        scores = [mixed(of_key ^ seed) for seed in self._seeds]
        return sorted(range(len(scores)), key=scores.__getitem__, reverse=True)

    def weighs(self, key: bytes | None) -> bool:
        """Return whether there is no key."""
        return key is None

    def twin(self) -> Balancer:
        """Return one that ranks alike."""
        twin = Keyed(self._load_factor, self._picker)
        twin._without_key = self._without_key.twin()
        return twin

    def sample(self, fit: Fit, rng: Rng, key: bytes | None) -> Sample | None:
        """Return the first that has room."""
        if key is None:
            return self._without_key.sample(fit, rng, None)
        picked = self.pick(fit, rng, key)
        if picked is None:
            return None
        rank = [self._candidates[index] for index in self._ranked(key)].index(picked) + 1
        why = f"number {rank} of those that the key ranks; {self._bound().told(picked)}"
        return Sample((picked,), picked, why)

    def shares(self, key: bytes | None) -> list[float]:
        """Return 1 for the one that the key leads to; without a key, what ``warm`` says."""
        if key is None:
            return self._without_key.shares(None)
        picked = self.pick(Anyone(), _unused, key)
        return [float(candidate is picked) for candidate in self._candidates]

    def measures(self, key: bytes | None) -> list[tuple[Measure, ...]]:
        """Return each one's rank, what is in flight there, and how much may be, here and in all."""
        if key is None or not self._candidates:
            return super().measures(key)
        rank = {index: place for place, index in enumerate(self._ranked(key), 1)}
        bound = self._bound()
        return [
            (("rank", "place", float(rank[index])), *bound.measures(candidate))
            for index, candidate in enumerate(self._candidates)
        ]


def hash_of(data: bytes) -> int:
    """Return 64 bits that say which ``data`` it is: the same in every process, on every machine, in every version."""
    return int.from_bytes(blake2b(data, digest_size=8, person=_PERSON).digest(), "little")


def balancer_for(policy: ModelPolicy, picker: PickerFactory = HandPicker) -> Balancer:
    """Return the balancer that a model is configured with."""
    name = policy.balancer
    if name is BalancerName.WARM:
        return Warm(picker)
    if name is BalancerName.KEYED:
        return Keyed((policy.key or KeyPolicy()).load_factor, picker)
    return _PLAIN[name]()


_PLAIN: Final[dict[BalancerName, Callable[[], Balancer]]] = {
    BalancerName.ROUND_ROBIN: RoundRobin,
    BalancerName.RANDOM: Random,
    BalancerName.LEAST_REQUEST: LeastRequest,
    BalancerName.TWO_CHOICE: TwoChoice,
    BalancerName.PEAK_EWMA: PeakEwma,
}


def _order(candidate: Choosable) -> tuple[str, str]:
    return candidate.endpoint.id, candidate.version


def _picked_at(candidate: Choosable) -> float:
    return candidate.endpoint.picked_at


def _ewma_ms(candidate: Choosable) -> float:
    return candidate.latency.ewma_ms or candidate.prior_ms


def _loads(candidates: Sequence[Choosable]) -> list[tuple[Measure, ...]]:
    return [(("in_flight", "requests", float(load_of(candidate))),) for candidate in candidates]


def _unused() -> float:
    return 0.0
