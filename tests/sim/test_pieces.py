"""The simulator itself: what it measures with has to be right before it judges laws."""

from __future__ import annotations

import random

import pytest

from router.outcomes import AttemptResult
from tests.sim import report, runs, scenarios
from tests.sim.laws import LAWS, SLOW_START, WARM, Usual
from tests.sim.measures import herd, quantile
from tests.sim.play import play
from tests.sim.runs import Row, Verdict
from tests.sim.signals import Knows
from tests.sim.timeline import Timeline
from tests.sim.variations import VARIATIONS
from tests.sim.workers import Fixed, Job, Worker, WorkerSpec

OK, RESET = AttemptResult.SUCCESS, AttemptResult.RESET


class Asked:
    """A worker, and what became of the jobs that were sent there: when, whose and how."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.timeline = Timeline()
        self.worker = Worker(spec, self.timeline, random.Random(1))
        self.ended: list[tuple[float, object, AttemptResult]] = []

    def ask(self, name: str, model: str = "m") -> None:
        self.worker.arrive(Job(model, name, self._end))

    def _end(self, job: Job, result: AttemptResult) -> None:
        self.ended.append((round(self.timeline.now, 6), job.owner, result))


def test_time_goes_from_call_to_call_in_the_order_of_moments_then_of_coming() -> None:
    timeline = Timeline()
    seen: list[tuple[float, str]] = []
    for moment, name in ((2.0, "c"), (1.0, "a"), (1.0, "b"), (9.0, "late")):
        timeline.at(moment, lambda name: seen.append((timeline.now, name)), name)
    timeline.run(5.0)
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c")]
    assert timeline.now == 5.0


def test_a_worker_runs_a_few_at_a_time_and_queues_the_rest_in_order() -> None:
    asked = Asked(WorkerSpec("e", concurrency=2, service=Fixed(1.0)))
    for name in "abc":
        asked.ask(name)
    assert asked.worker.queued == 1
    asked.timeline.run(5.0)
    assert asked.ended == [(1.0, "a", OK), (1.0, "b", OK), (2.0, "c", OK)]


def test_a_killed_worker_resets_what_it_had_refuses_and_holds_what_comes_while_it_loads() -> None:
    asked = Asked(WorkerSpec("e", concurrency=1, service=Fixed(1.0), load_s=2.0))
    asked.ask("running")
    asked.ask("queued")
    asked.worker.kill()
    asked.ask("refused")
    assert [(name, result) for _, name, result in asked.ended] == [
        ("running", RESET),
        ("queued", RESET),
        ("refused", AttemptResult.CONNECT_REFUSED),
    ]
    asked.ended.clear()
    asked.worker.start()
    asked.ask("held")
    ready = [asked.worker.ready]
    asked.timeline.run(10.0)
    ready.append(asked.worker.ready)
    assert asked.worker.up
    assert ready == [False, True]
    assert asked.ended == [(3.0, "held", OK)]


def test_a_worker_that_does_not_hold_pushes_back_while_it_loads() -> None:
    asked = Asked(WorkerSpec("e", holds=False))
    asked.worker.kill()
    asked.worker.start()
    asked.ask("early")
    assert asked.ended == [(0.0, "early", AttemptResult.BUSY)]


def test_a_load_takes_the_place_of_the_idle_model_that_was_used_least_recently() -> None:
    asked = Asked(WorkerSpec("e", models=("a", "b", "c"), most_models=2, service=Fixed(1.0), load_s=2.0))
    asked.ask("uses a", "a")
    asked.timeline.run(1.5)
    asked.ask("wants c", "c")
    asked.timeline.run(2.0)
    assert asked.worker.is_loading("c")
    assert [asked.worker.warm_since(model) is not None for model in "abc"] == [True, False, False]
    asked.timeline.run(10.0)
    assert asked.ended[-1] == (4.5, "wants c", OK)
    assert asked.worker.loads == 1


def test_a_load_waits_while_every_model_is_busy() -> None:
    asked = Asked(WorkerSpec("e", models=("a", "b"), most_models=1, service=Fixed(1.0), load_s=2.0))
    asked.ask("busy", "a")
    asked.ask("wants b", "b")
    asked.timeline.run(10.0)
    assert asked.ended == [(1.0, "busy", OK), (4.0, "wants b", OK)]


def test_a_neighbour_that_takes_memory_leaves_room_for_fewer_requests() -> None:
    spec = WorkerSpec("e", service=Fixed(1.0), memory_bytes=10, model_bytes=2, request_bytes=2, concurrency=4)
    asked = Asked(spec)
    asked.worker.neighbour_bytes = 4
    for name in "abc":
        asked.ask(name)
    assert asked.worker.queued == 1
    asked.worker.neighbour_bytes = 0
    asked.worker.settle()
    assert asked.worker.queued == 0


def test_quantiles_are_of_nearest_rank() -> None:
    ordered = [float(value) for value in range(1, 1001)]
    assert [quantile(ordered, of) for of in (0.5, 0.99, 0.999)] == [500.0, 990.0, 999.0]
    assert quantile([], 0.5) == 0.0


def test_a_herd_is_seen_in_any_stretch_with_enough_picks() -> None:
    even = [(index * 0.0004, f"e{index % 4}") for index in range(1000)]
    assert herd(even, 4) == pytest.approx(1.0, abs=0.02)
    rush = [(0.2 + index * 0.0004, "e0") for index in range(100)]
    herded = sorted(even + rush)
    assert herd(herded, 4) > 1.5
    assert herd(even[:199], 4) == 0.0


@pytest.mark.parametrize("law", LAWS)
def test_a_run_is_the_same_each_time(law: str) -> None:
    scenario = scenarios.rolling_restart(8.0)
    knows = Knows.REPORTS if law == WARM else Knows.CHECKS
    assert play(scenario, law, knows, 5) == play(scenario, law, knows, 5)
    assert play(scenario, law, knows, 5) != play(scenario, law, knows, 6)


@pytest.mark.parametrize("knows", Knows)
def test_every_request_ends_once_and_none_fails_while_workers_are_restarted(knows: Knows) -> None:
    found = play(scenarios.rolling_restart(16.0), WARM, knows, 2)
    assert found.errors == 0
    assert found.requests == pytest.approx(480 * 13, rel=0.05)


@pytest.mark.parametrize("law", [law for law in LAWS if law != WARM])
def test_the_usual_laws_count_in_flight_and_pass_over_what_was_tried_or_found_down(law: str) -> None:
    made = LAWS[law]({"a": ("m",), "b": ("m",)}, random.Random(1).random, True)
    assert isinstance(made, Usual)
    first = made.choose("m", 1.0, None)
    assert first is not None
    again = made.choose("m", 1.0, first)
    assert again is not None
    assert again.endpoint is not first.endpoint
    assert first.endpoint.in_flight == again.endpoint.in_flight == 1
    assert made.retry(first, RESET, 1, 1.0) == 0.0
    assert made.retry(first, RESET, 2, 1.0) is None
    assert made.retry(first, AttemptResult.BUSY, 1, 1.0) is None
    made.done(first, OK, 1.1)
    assert first.endpoint.in_flight == 0
    made.checked("a", False, 2.0)
    for _ in range(20):
        pick = made.choose("m", 2.0, None)
        assert pick is not None
        assert pick.endpoint.id == "b"
    made.checked("b", False, 2.0)
    assert made.choose("m", 2.0, None) is None


def test_the_least_loaded_wins_and_one_in_slow_start_counts_as_smaller() -> None:
    least = LAWS["least_request"]({"a": ("m",), "b": ("m",)}, random.Random(1).random, True)
    slow = LAWS[SLOW_START]({"a": ("m",), "b": ("m",)}, random.Random(1).random, True)
    for law in (least, slow):
        for passed in (False, True):
            law.checked("b", passed, 10.0)
    counts = []
    for law in (least, slow):
        picks = [law.choose("m", 12.0, None) for _ in range(12)]
        counts.append(sum(pick is not None and pick.endpoint.id == "b" for pick in picks))
    assert counts == [6, 2]


def test_variations_serve_all_and_are_not_far_from_the_law() -> None:
    scenario = scenarios.mixed_speeds(6.0)
    law = play(scenario, WARM, Knows.REPORTS, 1)
    for name, variation in VARIATIONS.items():
        varied = play(scenario, variation, Knows.REPORTS, 1)
        assert varied.requests == law.requests, name
        assert varied.p99_ms == pytest.approx(law.p99_ms, rel=0.2), name


def test_what_is_missed_is_called_missed() -> None:
    setting = runs.Setting(runs.ROLLING, scenarios.rolling_restart(10.0), ())
    played = {
        (setting.title, Row(WARM, Knows.REPORTS)): play(setting.scenario, "least_request", Knows.NOTHING, 1),
        (setting.title, Row("round_robin", Knows.NOTHING)): play(setting.scenario, "round_robin", Knows.NOTHING, 1),
    }
    found = list(runs.verdicts(played))
    assert [type(each) for each in found] == [Verdict, Verdict]
    assert not found[0].met
    rows = report.verdict_rows(played)
    assert rows[1][-1] == "✗ missed"
    assert "✗ missed" in report.page(played, (1,))
    assert report.plot(played).startswith("<svg")
