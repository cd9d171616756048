"""Which way each scorer points, and that turning it round is noticed: every scorer there is has to stand here.

A check builds two endpoints that differ in the scorer's signal alone, and asks the cluster whom it draws more often.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module

import pytest

from router.cluster import Cluster
from router.model import EndpointRecord, EndpointSeen
from router.policy import ModelPolicy, Policies, ScoringPolicy
from router.protocols import Candidate, Scorer
from router.scorers import scorer_names
from tests.support.fleet import GIB, only, record

BETTER: dict[str, tuple[EndpointRecord, EndpointRecord]] = {
    "warmth": (record("better", warmth=1.0), record("worse", warmth=0.25)),
    "free_memory": (record("better", free=14 * GIB), record("worse", free=2 * GIB)),
    "speed": (record("better"), record("worse")),  # see LATENCIES
    "queue_depth": (replace(record("better"), queue_depth=0), replace(record("worse"), queue_depth=9)),
    "cpu_load": (replace(record("better"), cpu_load=0.1), replace(record("worse"), cpu_load=0.9)),
}
"""By scorer: the endpoint that is to be drawn more often, and the other."""
LATENCIES = {"speed": {"better": 10.0, "worse": 100.0}}
"""By scorer and endpoint, in ms; where there is none, nothing is measured."""

EACH = pytest.mark.parametrize("name", scorer_names())


class Turned:
    """A scorer that ``turn`` makes another of."""

    def __init__(self, of: Scorer, turn: Callable[[float], float]) -> None:
        self.name, self.unit, self.observed = of.name, of.unit, of.observed
        self._of = of
        self._turn = turn

    def raw(self, candidate: Candidate) -> float | None:
        return self._of.raw(candidate)

    def __call__(self, candidates: Sequence[Candidate]) -> list[float | None]:
        return [None if score is None else self._turn(score) for score in self._of(candidates)]


def the_better_one_is_drawn_more_often(scorer: Scorer) -> None:
    """Check the scorer of that name."""
    name = scorer.name
    cluster = Cluster(Policies(), [ModelPolicy("m")], 0.0, scorers=[(scorer, 1.0)])
    for each in BETTER[name]:
        cluster.apply(EndpointSeen(each, 0.0), 0.0)
    for id_, ms in LATENCIES.get(name, {}).items():
        latency = only(cluster.endpoints[id_]).latency
        latency.sample(ms, 0.0)
        latency.settle(0.0)
    route = cluster.route("m")
    assert route is not None
    shares = {row.endpoint: row.share for row in cluster.explain(route, 0.0, lambda: 0.5).rows}
    assert shares["better"] > 1.5 * shares["worse"]


def made(name: str) -> Scorer:
    scorer: Scorer = import_module(f"router.scorers.{name}").make_scorer(ScoringPolicy())
    assert scorer.name == name
    return scorer


def test_every_scorer_has_a_check() -> None:
    assert set(BETTER) == set(scorer_names())


@EACH
def test_what_is_better_is_drawn_more_often(name: str) -> None:
    the_better_one_is_drawn_more_often(made(name))


@EACH
@pytest.mark.parametrize("turn", [lambda score: 1.0 - score, lambda score: -score, lambda score: 0.5])
def test_a_scorer_that_points_the_other_way_or_nowhere_is_caught(name: str, turn: Callable[[float], float]) -> None:
    with pytest.raises(AssertionError):
        the_better_one_is_drawn_more_often(Turned(made(name), turn))
