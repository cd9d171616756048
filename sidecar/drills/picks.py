"""What was picked: each endpoint's share of the attempts, by the sidecar's counters. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from sidecar.drills.record import Scrape

LEAST_ATTEMPTS = 50
"""Fewer tell nothing of a share."""
LEAST_S = 0.9
"""Shortest time over which a share is told; counters are read each second, and at the ends of measured phases."""


def share_of_late(scrapes: Sequence[Scrape], since: float, endpoint: str, among: Collection[str]) -> float | None:
    """Return an endpoint's share of the latest attempts ``among`` endpoints, none of which ended before ``since``.

    None where these are not ``LEAST_ATTEMPTS`` over ``LEAST_S``.
    """
    last = scrapes[-1] if scrapes else None
    for first in reversed(scrapes):
        if last is None or first.at < since:
            return None
        made = made_between(first, last)
        total = sum(count for name, count in made.items() if name in among)
        if last.at - first.at >= LEAST_S and total >= LEAST_ATTEMPTS:
            return made.get(endpoint, 0.0) / total
    return None


def made_between(before: Scrape, after: Scrape) -> dict[str, float]:
    """Return the attempts by endpoint between two scrapes; 0 where a counter began anew."""
    return {name: max(0.0, count - before.picks.get(name, 0.0)) for name, count in after.picks.items()}


def windows(
    scrapes: Sequence[Scrape], begin: float, end: float, least: float = 1.0, width_s: float = LEAST_S
) -> Iterator[tuple[float, float, dict[str, float]]]:
    """Yield (begin, end, shares by endpoint) of one stretch after another, each of ``least`` attempts or more."""
    first: Scrape | None = None
    for scrape in scrapes:
        if scrape.at < begin:
            continue
        if scrape.at > end:
            return
        if first is None:
            first = scrape
            continue
        made = made_between(first, scrape)
        total = sum(made.values())
        if scrape.at - first.at >= width_s and total >= least:
            yield first.at, scrape.at, {name: count / total for name, count in made.items()}
            first = scrape
