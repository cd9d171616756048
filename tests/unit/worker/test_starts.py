"""What is told of starts: slow ones, those outside the baseline's band, and what the process's own start took."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from router.baseline_load import Baseline, Term
from tests.support.loops import until
from tests.support.worker_parts import DoublingModel, EmptyLoader, FixedEngine, ReadableLog
from worker.engines import Cancellation, EngineError
from worker.replica import HeldReplica
from worker.stages import Stage, Stages
from worker.starts import Start, Starts, process_age_s
from worker.store import ModelFiles

FLAT = Term(0, 1, 0)


def told(seconds: float, expected_s: float | None = None, **settings: Any) -> tuple[ReadableLog, Starts]:
    log = ReadableLog()
    starts = Starts(log, **settings)
    stages = Stages()
    stages.add(Stage.PAGE_IN, 0.7)
    stages.add(Stage.CREATE, 0.2)
    starts.warm("m", "1", "CPU", Start(seconds, expected_s, stages))
    return log, starts


def test_a_start_within_its_objective_is_told_once() -> None:
    log, starts = told(1.2, 0.5)
    (warm,) = log.events()
    assert (warm["event"], warm["seconds"], warm["expected_s"]) == ("model.warm", 1.2, 0.5)
    assert warm["stages"] == {"page_in": 0.7, "create": 0.2}
    assert (starts.counts.warm, starts.counts.slow, starts.counts.outside_band) == (1, 0, 0)


def test_a_slow_start_is_told_with_its_slowest_stage() -> None:
    log, starts = told(1.21)
    (slow,) = log.events("model.slow_start")
    assert (slow["level"], slow["seconds"], slow["objective_s"]) == ("warning", 1.21, 1.2)
    assert (slow["slowest"], slow["slowest_s"]) == ("page_in", 0.7)
    assert starts.counts.slow == 1


def test_without_an_objective_nothing_is_slow() -> None:
    log, starts = told(1000.0, objective_s=0.0)
    assert log.events("model.slow_start") == []
    assert starts.counts.slow == 0


@pytest.mark.parametrize(("seconds", "outside"), [(0.79, 1), (0.81, 0), (1.49, 0), (1.51, 1)])
def test_a_start_outside_its_band_raises_an_alarm(seconds: float, outside: int) -> None:
    baseline = Baseline(1.0, FLAT, FLAT, FLAT, band_s=(-0.2, 0.5))
    log, starts = told(seconds, 1.0, baseline=baseline, objective_s=0.0)
    events = log.events("model.start_outside_band")
    assert len(events) == starts.counts.outside_band == outside
    for event in events:
        assert (event["level"], event["expected_s"], event["band_s"]) == ("warning", 1.0, [0.8, 1.5])


def test_imports_count_in_the_first_start_alone() -> None:
    starts = Starts(ReadableLog(), imports_s=0.25)
    first, second = Stages(), Stages()
    starts.begin(first)
    starts.begin(second)
    assert dict(first.seconds()) == {Stage.IMPORTS: 0.25}
    assert dict(second.seconds()) == {}


def test_a_replica_tells_its_start_with_all_that_came_before() -> None:
    log = ReadableLog()
    starts = Starts(log, imports_s=1.5)
    held = HeldReplica(
        ModelFiles("m", "1"), FixedEngine(DoublingModel()), EmptyLoader(), log, lambda: 5.0, lambda: None, starts
    )
    asyncio.run(held.bring_up())
    (warm,) = log.events("model.warm")
    assert (warm["seconds"], warm["expected_s"]) == (1.5, 0.69)
    assert warm["stages"] == {"imports": 1.5, "warm_up": 0.0}
    assert len(log.events("model.slow_start")) == 1
    for _ in range(2):
        with held.hold() as copy:
            held.execute(copy, {"x": np.zeros((1, 2), np.float32)}, ["y"], {}, Cancellation())
    (answered,) = log.events("model.first_answer")
    assert (answered["model"], answered["version"], answered["seconds"]) == ("m", "1", 0.0)


def test_a_replica_says_in_how_long_it_should_be_warm() -> None:
    log = ReadableLog()
    now = 100.0
    starts = Starts(log, Baseline(3.4, FLAT, FLAT, FLAT))
    hold = threading.Event()
    engine = FixedEngine(DoublingModel(), hold=hold)

    async def scenario() -> list[float]:
        nonlocal now
        held = HeldReplica(ModelFiles("m", "1"), engine, EmptyLoader(), log, lambda: now, lambda: None, starts)
        seen = [held.report().warm_in_s]
        starting = asyncio.create_task(held.bring_up())
        await until(lambda: held.expected_s is not None, "expected")
        for moment in (100.0, 102.0, 103.0, 103.4, 110.0):
            now = moment
            seen.append(held.report().warm_in_s)
        hold.set()
        await starting
        return [*seen, held.report().warm_in_s]

    assert asyncio.run(scenario()) == [0.0, 4.0, 2.0, 1.0, 0.0, 0.0, 0.0]


def test_a_failed_start_is_counted() -> None:
    log = ReadableLog()
    starts = Starts(log)
    engine = FixedEngine(DoublingModel(), EngineError("no such operator"))
    held = HeldReplica(ModelFiles("m", "1"), engine, EmptyLoader(), log, lambda: 5.0, lambda: None, starts)
    asyncio.run(held.bring_up())
    assert (starts.counts.warm, starts.counts.failed) == (0, 1)
    assert log.events("model.warm") == []


def test_the_page_cache_is_asked_only_where_the_baseline_goes_by_it(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"x" * 100)
    files = ModelFiles("m", "1", tmp_path, tmp_path / "model.onnx")
    asked: list[ModelFiles] = []

    def cached_ratio(files: ModelFiles) -> float:
        asked.append(files)
        return 0.5

    assert Starts(ReadableLog(), cached_ratio=cached_ratio).expected_s(files) == 0.69
    assert asked == []
    baseline = Baseline(1.0, FLAT, FLAT, FLAT, cached_s=-0.5)
    assert Starts(ReadableLog(), baseline, cached_ratio=cached_ratio).expected_s(files) == 0.75
    assert asked == [files]


def test_a_process_knows_its_age() -> None:
    code = "import time; time.sleep(0.2); from worker.starts import process_age_s; print(process_age_s())"
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert 0.2 <= float(done.stdout) + 0.011 < time.monotonic() - began + 0.022


def test_an_age_that_cannot_be_known_is_none(tmp_path: Path) -> None:
    assert process_age_s(tmp_path) is None
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "stat").write_text("1 (a) S 1")
    assert process_age_s(tmp_path) is None
