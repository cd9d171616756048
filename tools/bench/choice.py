"""The router's part: what one choice of an endpoint costs at several sizes of the fleet."""

from __future__ import annotations

from dataclasses import dataclass

from tests.bench import pick_bench


@dataclass(frozen=True)
class Choice:
    """Microseconds for ``Cluster.choose`` alone, and with the end of its attempt, among ``endpoints``."""

    endpoints: int
    choose_us: float
    both_us: float


def measure() -> list[Choice]:
    """Run the router's own benchmark."""
    costs = [pick_bench.measure(size) for size in pick_bench.SIZES]
    return [Choice(cost.endpoints, cost.choose_us, cost.choose_and_done_us) for cost in costs]
