"""What happens where a route's table cannot be made: that route goes on with what it had, all others as ever."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from router.cluster import Cluster
from router.model import EndpointSeen, Tick
from router.policy import ModelPolicy, Policies
from router.routes import Attempt
from tests.support.fleet import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.protocols import Candidate


class Picky:
    """A scorer that cannot do with one version."""

    name = "picky"
    unit = ""
    observed = False

    def raw(self, candidate: Candidate) -> float | None:
        """Return nothing."""

    def __call__(self, candidates: Sequence[Candidate]) -> list[float | None]:
        """Score all alike."""
        if any(candidate.replica.version == "bad" for candidate in candidates):
            raise ValueError("bad is too much for me")
        return [1.0 for _ in candidates]


def test_a_table_that_cannot_be_made_is_the_old_one_and_no_other_route_feels_it() -> None:
    rng = random.Random(1).random
    cluster = Cluster(Policies(), [ModelPolicy("m"), ModelPolicy("n")], 100.0, rng=rng, scorers=[(Picky(), 1.0)])

    def seen(name: str, model: str, version: str, now: float) -> None:
        cluster.apply(EndpointSeen(record(name, model=model, version=version), now), now)

    def asked(model: str, now: float) -> str:
        route = cluster.route(model)
        assert route is not None
        picked = cluster.choose(route, now, rng)
        assert isinstance(picked, Attempt)
        return picked.endpoint.id

    seen("a", "m", "1", 100.0)
    seen("x", "n", "1", 100.0)
    assert (asked("m", 100.0), asked("n", 100.0)) == ("a", "x")

    seen("b", "m", "bad", 101.0)
    for step in range(20):  # no more than that one route's, however often: neither a Tick nor a choice fails
        now = 101.2 + step / 10
        cluster.apply(Tick(), now)
        assert asked("m", now) == "a"
    seen("y", "n", "1", 103.2)
    cluster.apply(Tick(), 103.4)
    assert {asked("n", 103.5) for _ in range(50)} == {"x", "y"}
    ((route, error),) = cluster.failing  # said once
    assert route.key == "m"
    assert isinstance(error, ValueError)

    cluster.failing.clear()
    seen("b", "m", "2", 103.6)
    cluster.apply(Tick(), 106.0)
    assert cluster.failing == [(route, None)]
    assert asked("m", 106.0) == "b"  # a has all of the above in flight
