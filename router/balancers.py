"""Picking one of the candidates of a route: one class for each ``models[].balancer``, behind one protocol.

All of them pick among those that the filters let through, never one that is full or was tried before, and say what
they go by. ``in flight`` is what this process and its siblings have in flight at an endpoint, of any model.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from router.balancing import BaseBalancer, Warm, load_of, wait_ms
from router.keyed import Keyed
from router.pickers import HandPicker
from router.policy import BalancerName, KeyPolicy
from router.protocols import Compared, Sample
from router.routes import second_wins

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router.policy import ModelPolicy
    from router.protocols import Balancer, Choosable, Fit, Measure, PickerFactory, Rng


class _Pair(BaseBalancer):
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


class RoundRobin(BaseBalancer):
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


class Random(BaseBalancer):
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


class LeastRequest(BaseBalancer):
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


def _loads(candidates: Sequence[Choosable]) -> list[tuple[Measure, ...]]:
    return [(("in_flight", "requests", float(load_of(candidate))),) for candidate in candidates]
