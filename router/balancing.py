"""What balancers have in common, how candidates are compared, and the default balancer (``warm``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.pickers import HandPicker
from router.policy import BalancerName
from router.protocols import Compared, Sample
from router.routes import ALIKE_RATIO, KEPT_RATIO, REDRAWS, expected_wait

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.protocols import Choosable, Fit, Measure, Picker, PickerFactory, Rng


def load_of(candidate: Choosable) -> int:
    """Return how much is in flight at a candidate's endpoint, siblings' attempts included."""
    return candidate.endpoint.in_flight + candidate.endpoint.peers_in_flight


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


class BaseBalancer:
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


class Warm(BaseBalancer):
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


def _picked_at(candidate: Choosable) -> float:
    return candidate.endpoint.picked_at


def _ewma_ms(candidate: Choosable) -> float:
    return candidate.latency.ewma_ms or candidate.prior_ms
