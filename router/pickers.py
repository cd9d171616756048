"""Drawing candidates by weight, a few at once, in O(1)."""

from __future__ import annotations

from functools import cache
from itertools import accumulate, chain, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router.protocols import Choosable, Rng

Hand = tuple["Choosable", "Choosable", "Choosable", "Choosable"]
"""Those that one choice compares, in the order in which they were drawn; some may be the same."""

LEAST_HANDS: Final = 64
"""A table has so many hands at least, and at least as many as candidates: a power of two."""

FEW: Final = 4
"""Of so many candidates or fewer the hands of a table have as many as can be: all where they weigh alike."""

_WORD: Final = (1 << 64) - 1
_FIRST_STEP: Final = 0.7548776662466927
_SECOND_STEP: Final = 0.5698402909980532
"""Multiples of these two, each modulo 1, fill the unit square evenly."""


class HandPicker:
    """Four candidates by weight with one random number: a table of hands, any of which is as likely.

    The candidates are laid out around a circle, each over as many places as its share of the weights asks for. Each
    hand takes a place of each quarter of the circle (stratified sampling), so that it seldom has one candidate twice
    where there are others; and the first of all hands are spread evenly, as are the second, third and fourth: in each
    place of a hand a candidate is as likely as its weight says.

    Where there are only a few candidates, the places of a hand are a quarter of the circle apart exactly, so who has a
    quarter of the weights is in every hand. Where there are more, it is mixed which place of a quarter goes with which
    of the others, so that everybody meets everybody.

    Numbers of places are whole. What is rounded off is made up for by the tables that follow (systematic sampling):
    ``turn``, which counts a route's tables, says where the circle begins and which way is rounded. A candidate of very
    little weight may be in no hand of this table; in all of them together it is as often as it should be.

    Weights are finite and 0 or more; where all are 0, every candidate is as likely.
    """

    __slots__ = ("hands", "size")

    def __init__(self, candidates: Sequence[Choosable], weights: Sequence[float], turn: int) -> None:
        size = LEAST_HANDS
        while size < len(candidates):
            size *= 2
        places = 4 * size
        total = sum(weights)
        if total <= 0:
            weights, total = [1.0] * len(candidates), float(len(candidates))
        rounding = turn * _FIRST_STEP % 1.0
        ends = [min(places, int(reached / total * places + rounding)) for reached in accumulate(weights)]
        ends[-1] = places
        counts = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
        circle = list(chain.from_iterable(map(repeat, candidates, counts)))
        first = int(turn * _SECOND_STEP % 1.0 * places)
        dealt = iter(_deal(size, mix=len(candidates) > FEW)(circle[first:] + circle[:first]))
        self.hands: list[Hand] = list(zip(dealt, dealt, dealt, dealt, strict=True))
        self.size = size

    def draw(self, rng: Rng) -> Hand:
        """Return a hand. ``Cluster.choose`` has this written out for speed."""
        return self.hands[int(rng() * self.size)]


@cache
def _deal(size: int, *, mix: bool) -> Callable[[Sequence[Choosable]], tuple[Any, ...]]:
    """Return what puts ``4 * size`` places into the order of the hands.

    ``mix``: each of them is in one hand, once. Else every fourth is, in each place of the hands.
    """
    quarter = size // 4
    if not mix:
        return itemgetter(
            *(
                4 * ((of + place) % 4 * quarter + within)
                for of in range(4)
                for within in range(quarter)
                for place in range(4)
            )
        )
    shuffled = [sorted(range(begin, begin + quarter), key=mixed) for begin in (0, quarter, 2 * quarter)]
    order: list[int] = []
    for hand in range(size):
        of, within = divmod(hand, quarter)
        order.append(4 * hand)
        for place, row in enumerate(shuffled, 1):
            step = (of + place) % 4 * quarter + (row[within] + of) % quarter
            order.append(4 * step + place)
    return itemgetter(*order)


def mixed(word: int) -> int:
    """Return 64 bits each of which depends on all of ``word``: the finaliser of SplitMix64.

    Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & _WORD
    return word ^ word >> 31
