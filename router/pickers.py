"""Drawing one index by weight in O(1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.protocols import Rng


class AliasPicker:
    """Walker's alias table in Vose's form: O(n) to build, one random number and two look-ups to draw.

    Michael D. Vose, "A linear algorithm for generating random numbers with a given distribution", IEEE TSE 17(9), 1991.
    Weights are finite and 0 or more; where all are 0, every index is as likely.
    """

    __slots__ = ("alias", "keep", "size")

    def __init__(self, weights: Sequence[float]) -> None:
        size = len(weights)
        total = sum(weights)
        scaled = [weight * size / total for weight in weights] if total > 0 else [1.0] * size
        keep = [1.0] * size
        alias = list(range(size))
        small = [index for index, weight in enumerate(scaled) if weight < 1.0]
        large = [index for index, weight in enumerate(scaled) if weight >= 1.0]
        while small and large:
            low, high = small.pop(), large[-1]
            keep[low] = scaled[low]
            alias[low] = high
            left = scaled[high] + scaled[low] - 1.0
            scaled[high] = left
            if left < 1.0:
                small.append(large.pop())
        self.size = size
        self.keep = keep
        self.alias = alias

    def draw(self, rng: Rng) -> int:
        """Return an index with the probability of its weight. ``Cluster.choose`` has this written out for speed."""
        position = rng() * self.size
        index = int(position)
        return index if position - index < self.keep[index] else self.alias[index]
