"""Plays a scenario: puts workers, proxies and what they know of each other together, and lets time run."""

from __future__ import annotations

import random
from itertools import accumulate
from typing import TYPE_CHECKING

from tests.sim.laws import LAWS
from tests.sim.measures import Measures
from tests.sim.proxies import Process, Sidecar
from tests.sim.signals import Checks, Knows, Proof, Reporter
from tests.sim.timeline import Timeline
from tests.sim.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from tests.sim.laws import MakeLaw
    from tests.sim.measures import Result
    from tests.sim.scenarios import Neighbours, Restarts, Scenario, Slowings

LONGEST_S = 60.0
"""How long after the last arrival requests are waited for; what has not ended then counts as so long at least."""


def play(scenario: Scenario, law: str | MakeLaw, knows: Knows, seed: int) -> Result:
    """Play a scenario with one law. With one seed the same requests arrive at the same moments, whatever the law."""
    timeline = Timeline()
    chance = _Chances(seed)
    make = LAWS[law] if isinstance(law, str) else law
    workers = [Worker(spec, timeline, chance("worker", spec.id)) for spec in scenario.workers]
    by_id = {worker.id: worker for worker in workers}
    known = {spec.id: spec.models for spec in scenario.workers}
    measures = Measures(len(known), scenario.settle_s)
    sidecars = [
        Sidecar(
            [
                Process(
                    make(known, chance("law", number, index).random, knows is not Knows.REPORTS),
                    by_id,
                    timeline,
                    measures,
                )
                for index in range(scenario.processes)
            ],
            timeline,
            chance("sidecar", number),
        )
        for number in range(scenario.sidecars)
    ]
    for number, sidecar in enumerate(sidecars):
        if knows is Knows.CHECKS:
            Checks(workers, sidecar, timeline, chance("checks", number), lies=scenario.lies)
        elif knows is Knows.PROOF:
            Proof(workers, sidecar, timeline, chance("checks", number), lies=scenario.lies)
    if knows is Knows.REPORTS:
        for worker in workers:
            Reporter(worker, sidecars, scenario.telemetry, timeline, chance("reports", worker.id))
    if scenario.restarts is not None:
        _Restarting(scenario.restarts, workers, timeline)
    if scenario.slowings is not None:
        _Slowing(scenario.slowings, workers, timeline)
    if scenario.neighbours is not None:
        _begin_neighbours(scenario.neighbours, workers, timeline, chance("neighbours"))
    _Arrivals(
        scenario, [process for sidecar in sidecars for process in sidecar.processes], timeline, chance("arrivals")
    )
    timeline.run(scenario.duration_s)
    while measures.pending and timeline.now < scenario.duration_s + LONGEST_S:
        timeline.run(timeline.now + 1.0)
    return measures.result(sum(worker.loads for worker in workers), LONGEST_S)


class _Chances:
    """One source of chance for each purpose, so that none disturbs another."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __call__(self, *purpose: object) -> Random:
        return random.Random(f"{self._seed} {purpose}")


class _Arrivals:
    """Requests from outside; each goes to any of the processes, as the kernel hands out connections."""

    def __init__(self, scenario: Scenario, processes: Sequence[Process], timeline: Timeline, rng: Random) -> None:
        self._scenario = scenario
        self._processes = processes
        self._timeline = timeline
        self._rng = rng
        self._cumulative = list(accumulate(scenario.popularity or [1.0] * len(scenario.models)))
        timeline.at(0.0, self._arrive)

    def _arrive(self, _: None) -> None:
        rng, scenario, now = self._rng, self._scenario, self._timeline.now
        rate = scenario.rate_per_s
        bursts = scenario.bursts
        if bursts is not None and now % bursts.every_s < bursts.length_s:
            rate *= bursts.times
        following = now + rng.expovariate(rate)
        if following < scenario.duration_s:
            self._timeline.at(following, self._arrive)
        models = scenario.models
        model = models[0] if len(models) == 1 else rng.choices(models, cum_weights=self._cumulative)[0]
        self._processes[int(rng.random() * len(self._processes))].begin(model)


class _Restarting:
    def __init__(self, plan: Restarts, workers: Sequence[Worker], timeline: Timeline) -> None:
        self._plan = plan
        self._workers = workers
        self._timeline = timeline
        timeline.at(plan.first_s, self._kill, 0)

    def _kill(self, index: int) -> None:
        worker = self._workers[index % len(self._workers)]
        now = self._timeline.now
        worker.kill()
        self._timeline.at(now + self._plan.down_s, self._start, worker)
        self._timeline.at(now + self._plan.every_s, self._kill, index + 1)

    @staticmethod
    def _start(worker: Worker) -> None:
        worker.start()


class _Slowing:
    def __init__(self, plan: Slowings, workers: Sequence[Worker], timeline: Timeline) -> None:
        self._plan = plan
        self._workers = workers
        self._timeline = timeline
        timeline.at(plan.every_s, self._slow, 0)

    def _slow(self, index: int) -> None:
        worker = self._workers[index % len(self._workers)]
        worker.slowed = self._plan.times
        now = self._timeline.now
        self._timeline.at(now + self._plan.length_s, self._speed_up, worker)
        self._timeline.at(now + self._plan.every_s, self._slow, index + 1)

    @staticmethod
    def _speed_up(worker: Worker) -> None:
        worker.slowed = 1.0


def _begin_neighbours(plan: Neighbours, workers: Sequence[Worker], timeline: Timeline, rng: Random) -> None:
    def turn(worker: Worker) -> None:
        if worker.neighbour_bytes:
            worker.neighbour_bytes = 0
            worker.settle()
        else:
            worker.neighbour_bytes = max(0, worker.free_bytes - 2 * worker.spec.request_bytes)
        worker.changed(worker)

    for worker in workers[: round(len(workers) * plan.ratio)]:
        timeline.every(plan.turn_s, lambda _, worker=worker: turn(worker), rng.random() * plan.turn_s)  # type: ignore[misc]
