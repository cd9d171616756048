"""What was picked, by the sidecar's counters."""

from __future__ import annotations

import pytest

from sidecar.drills.picks import share_of_late, windows
from sidecar.drills.record import Scrape


def scrapes(*counts: tuple[float, float, float]) -> list[Scrape]:
    return [Scrape(at, {}, picks={"a": a, "b": b, "other": 9 * at}) for at, a, b in counts]


@pytest.mark.parametrize(
    ("seen", "since", "share"),
    [
        (scrapes((1, 0, 0), (2, 10, 40)), 1, 0.2),
        (scrapes((1, 0, 0), (2, 50, 50), (3, 60, 90)), 1, 0.2),  # the latest that suffice
        (scrapes((1, 0, 0), (2, 10, 30), (3, 15, 35)), 1, 0.3),
        (scrapes((1, 0, 0), (2, 10, 39)), 1, None),  # too few
        (scrapes((1, 0, 0), (2, 10, 40)), 1.5, None),  # from before
        (scrapes((1, 0, 0), (1.5, 10, 40)), 1, None),  # too short
        (scrapes((1, 500, 500), (2, 0, 100), (3, 0, 200)), 1, 0),  # the counters began anew
        ([], 0, None),
    ],
)
def test_the_share_of_late_is_of_the_models_endpoints(seen: list[Scrape], since: float, share: float | None) -> None:
    assert share_of_late(seen, since, "a", {"a", "b"}) == share


def test_stretches_have_as_many_attempts_as_are_asked_for() -> None:
    seen = [Scrape(float(at), {}, picks={"a": 10.0 * at, "b": 30.0 * at}) for at in range(8)]
    shares = {"a": 0.25, "b": 0.75}
    assert list(windows(seen, 1, 6.5, least=80)) == [(1, 3, shares), (3, 5, shares)]
