"""The text format, and the metrics of a worker: every series stands for something that is there now."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from router.wire import ModelEvent
from tests.support.worker_parts import DoublingModel, EmptyLoader, FixedEngine, ReadableLog
from worker.engines import Cancellation
from worker.execution import Executor
from worker.execution.buffers import Buffers
from worker.execution.pool import Pool
from worker.exposition import of_buffers, of_changes, of_models, of_page_cache, of_process, of_threads
from worker.loading.model_loader import ModelLoader
from worker.memory import Memory
from worker.metrics import Family, Histogram, Metrics
from worker.models import Models
from worker.news import News
from worker.replica import HeldReplica
from worker.starts import Starts
from worker.store import ModelFiles, ShapeClass

DOC = Path(__file__).parents[3] / "docs" / "observability.md"


class Room:
    def read(self) -> Memory | None:
        return Memory(1000, 4000)


def replica(log: ReadableLog, *warmup: ShapeClass) -> HeldReplica:
    engine = FixedEngine(DoublingModel())
    return HeldReplica(ModelFiles("m", "3", warmup=warmup), engine, EmptyLoader(), log, lambda: 1.0, lambda: None)


def text(*families: Family) -> str:
    metrics = Metrics()
    metrics.add(lambda: families)
    return asyncio.run(metrics.text())


def test_series_and_their_values() -> None:
    family = Family("m_ratio", "gauge", 'Says "so".\nTwice.')
    family.add(0.5, model='a"b\\c\nd')
    family.add(3.0)
    assert text(family) == (
        '# HELP m_ratio Says "so".\\nTwice.\n# TYPE m_ratio gauge\nm_ratio{model="a\\"b\\\\c\\nd"} 0.5\nm_ratio 3\n'
    )


def test_a_family_without_series_is_not_there() -> None:
    assert text(Family("m", "gauge", "None.")) == ""


def test_a_histogram_counts_up_to_each_bound() -> None:
    waits = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        waits.observe(value)
    family = Family("w_seconds", "histogram", "Waits.")
    family.histograms.append(({"q": "x"}, waits))
    assert text(family).splitlines()[2:] == [
        'w_seconds_bucket{q="x",le="0.1"} 2',
        'w_seconds_bucket{q="x",le="1"} 3',
        'w_seconds_bucket{q="x",le="+Inf"} 4',
        'w_seconds_sum{q="x"} 7.65',
        'w_seconds_count{q="x"} 4',
    ]


def test_a_replica_is_shown_from_its_start_to_its_going() -> None:
    held = replica(ReadableLog(), ShapeClass("a"), ShapeClass("b"))
    models = Models([held])
    metrics = Metrics()
    metrics.add(of_models(models))
    assert 'warmroute_worker_state{model="m",version="3",state="cold"} 1' in asyncio.run(metrics.text())
    assert "stage_seconds" not in asyncio.run(metrics.text())
    asyncio.run(held.bring_up())
    with held.hold() as copy:
        held.execute(copy, {"x": np.zeros((1, 2), np.float32)}, ["y"], {}, Cancellation())
    shown = asyncio.run(metrics.text())
    for line in (
        'state{model="m",version="3",state="warm"} 1',
        'state{model="m",version="3",state="cold"} 0',
        'warmth_ratio{model="m",version="3"} 1',
        'stage_seconds{model="m",version="3",stage="warm_up"} 0',
        'stage_seconds{model="m",version="3",stage="first_answer"} 0',
        'start_seconds{model="m",version="3"} 0',
        'start_expected_seconds{model="m",version="3"} 0.69',
        'executions_total{model="m",version="3"} 1',
        'not_answered_total{model="m",version="3",result="rejected"} 0',
    ):
        assert f"warmroute_worker_{line}\n" in shown
    models.remove(held)
    assert asyncio.run(metrics.text()) == ""


def test_the_phase_of_a_model_in_two_phases_is_shown() -> None:
    class Failed(DoublingModel):
        def facts(self) -> dict[str, Any]:
            return {"two_phase": {"phase": "failed", "reason": "no room"}}

    held = HeldReplica(
        ModelFiles("m", "3"), FixedEngine(Failed()), EmptyLoader(), ReadableLog(), lambda: 1.0, lambda: None
    )
    metrics = Metrics()
    metrics.add(of_models(Models([held])))
    assert "session_phase" not in asyncio.run(metrics.text())
    asyncio.run(held.bring_up())
    shown = asyncio.run(metrics.text())
    assert 'warmroute_worker_session_phase{model="m",version="3",phase="failed"} 1\n' in shown
    assert 'warmroute_worker_session_phase{model="m",version="3",phase="second"} 0\n' in shown


def test_the_process_is_shown() -> None:
    async def scenario() -> str:
        executor = Executor(1, 1, iter((0.0, 0.02, 0.02)).__next__)
        metrics = Metrics()
        metrics.add(of_process(executor, Room(), Starts(ReadableLog()), lambda: True))
        await executor.run(lambda _: None)
        await asyncio.sleep(0)
        shown = await metrics.text()
        executor.close()
        return shown

    shown = asyncio.run(scenario())
    for line in (
        "warmroute_worker_draining 1",
        'warmroute_worker_memory_bytes{kind="free"} 1000',
        'warmroute_worker_memory_bytes{kind="total"} 4000',
        'warmroute_worker_queue_seconds_bucket{le="0.01"} 0',
        'warmroute_worker_queue_seconds_bucket{le="0.025"} 1',
        "warmroute_worker_queue_seconds_count 1",
        "warmroute_worker_slow_starts_total 0",
    ):
        assert f"{line}\n" in shown
    resident = re.search(r"^process_resident_memory_bytes (\d+)$", shown, re.MULTILINE)
    assert resident is not None
    assert int(resident[1]) > 1 << 20


def test_residency_is_that_of_the_files_now(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"x" * 8192)
    held = HeldReplica(
        ModelFiles("m", "3", tmp_path, path),
        FixedEngine(DoublingModel()),
        ModelLoader(),
        ReadableLog(),
        lambda: 1.0,
        lambda: None,
    )
    metrics = Metrics()
    metrics.add_blocking(of_page_cache(Models([held])))
    state = Metrics()
    state.add(of_models(Models([held])))

    async def scenario() -> tuple[str, str, str]:
        before = await metrics.text()
        await held.bring_up()
        loaded = await metrics.text()
        path.unlink()
        return before, loaded, await metrics.text()

    before, loaded, gone = asyncio.run(scenario())
    assert before == gone == ""
    shown = asyncio.run(state.text())
    how = 'strategy="full",hashed_from="bytes"'
    assert f'warmroute_worker_loaded_bytes{{model="m",version="3",{how}}} 8192\n' in shown
    assert 'warmroute_worker_first_access_seconds{model="m",version="3"} ' in shown
    assert loaded.splitlines()[-1] == 'warmroute_worker_residency_ratio{model="m",version="3"} 1'


@pytest.mark.parametrize("source", ["models", "process", "threads", "buffers"])
def test_every_metric_is_documented_with_its_kind(source: str) -> None:
    held = replica(ReadableLog())
    asyncio.run(held.bring_up())
    executor = Executor(1, 1)
    families = {
        "models": of_models(Models([held])),
        "process": of_process(executor, Room(), Starts(ReadableLog()), lambda: False),
        "threads": of_threads(executor, Pool(executor, 1, 2, lambda: None, ReadableLog())),
        "buffers": of_buffers(Buffers(1 << 20)),
    }[source]()
    doc = DOC.read_text()
    missing = [one.name for one in families if f"| `{one.name}` | {one.kind} |" not in doc]
    executor.close()
    assert missing == []


def test_what_became_of_models_is_counted_for_all_together() -> None:
    news = News()
    metrics = Metrics()
    metrics.add(of_changes(news))
    news.add(ModelEvent.LOADED, "m", "1")
    news.add(ModelEvent.LOADED, "n", "1")
    news.add(ModelEvent.SWAP_FAILED, "m", "1", "why")
    shown = asyncio.run(metrics.text())
    for change, count in (("loaded", 2), ("load-failed", 0), ("swapped", 0), ("swap-failed", 1), ("unloaded", 0)):
        assert f'warmroute_worker_model_changes_total{{change="{change}"}} {count}\n' in shown
