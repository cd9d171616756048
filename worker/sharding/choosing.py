"""How many shards: a pure choice by measured costs, or by the model's work and the network's round trip."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, sqrt
from typing import TYPE_CHECKING, Final

from worker.sharding import ShardError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LEAST_SHARDS: Final = 4
MOST_SHARDS: Final = 64
_EXACT: Final = 1e-9
"""What a whole quotient may lack once it has gone through numbers with a point."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one request costs, split over ``shards``: talking to each other, and each shard's computing."""

    shards: int
    communication_ms: float
    compute_ms: float

    @property
    def total_ms(self) -> float:
        """Both: no shard can compute on while it waits for the others."""
        return self.communication_ms + self.compute_ms


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; ``dominated``: another number of shards neither communicates nor computes longer."""

    cost: Cost
    dominated: bool
    chosen: bool


def shards_for(flops: float, rtt_ms: float) -> int:
    """Return a number of shards where nothing was measured: more for more work, fewer for a slower network.

    That is ``sqrt(flops / 1e9) / (0.1 x rtt_ms)``, rounded down, at least 4 and at most 64.

    Args:
        flops: floating-point operations of one request.
        rtt_ms: round trip between two shards.

    Raises:
        ShardError: one of them is not a positive number.
    """
    for name, value in (("flops", flops), ("rtt_ms", rtt_ms)):
        if not (isfinite(value) and value > 0):
            raise ShardError(f"{name}: {value}: must be a number above 0")
    work, each = sqrt(flops / 1e9), 0.1 * rtt_ms
    if work >= MOST_SHARDS * each:  # asked first, because a quotient of such numbers need be none
        return MOST_SHARDS
    return max(LEAST_SHARDS, int(work / each + _EXACT))


def choose_shards(costs: Iterable[Cost]) -> int:
    """Return the number of shards with the lowest total; of those with the same, the smallest.

    Raises:
        ShardError: there are no costs, two for one number of shards, or one is not a number from 0.
    """
    return min(_checked(costs), key=lambda cost: (cost.total_ms, cost.shards)).shards


def pareto(costs: Iterable[Cost]) -> list[Row]:
    """Return the table of what was measured, by number of shards.

    Raises:
        ShardError: as for :func:`choose_shards`.
    """
    known = _checked(costs)
    chosen = choose_shards(known)
    return [
        Row(cost, any(_dominates(other, cost) for other in known), cost.shards == chosen)
        for cost in sorted(known, key=lambda cost: cost.shards)
    ]


def table(rows: Sequence[Row]) -> str:
    """Return the table as text: shards, communication, compute per shard, total, and what is said of it."""
    lines = [f"{'shards':>6}  {'communication ms':>16}  {'compute ms':>10}  {'total ms':>8}"]
    for row in rows:
        cost = row.cost
        said = "chosen" if row.chosen else "dominated" if row.dominated else ""
        numbers = f"{cost.shards:>6}  {cost.communication_ms:>16.1f}  {cost.compute_ms:>10.1f}  {cost.total_ms:>8.1f}"
        lines.append(f"{numbers}  {said}".rstrip())
    return "\n".join(lines)


def _dominates(one: Cost, other: Cost) -> bool:
    """Return whether ``one`` is nowhere worse than ``other`` and somewhere better."""
    no_worse = one.communication_ms <= other.communication_ms and one.compute_ms <= other.compute_ms
    return no_worse and (one.communication_ms, one.compute_ms) != (other.communication_ms, other.compute_ms)


def _checked(costs: Iterable[Cost]) -> list[Cost]:
    known = list(costs)
    if not known:
        raise ShardError("no costs: give SHARDS:COMMUNICATION_MS:COMPUTE_MS at least once")
    seen: set[int] = set()
    for cost in known:
        if cost.shards < 1 or cost.shards in seen:
            raise ShardError(f"{cost.shards} shards: must be 1 or more, and given once")
        seen.add(cost.shards)
        for value in (cost.communication_ms, cost.compute_ms):
            if not (isfinite(value) and value >= 0):
                raise ShardError(f"{cost.shards} shards: {value} ms: must be a number from 0")
    return known
