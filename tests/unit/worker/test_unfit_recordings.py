"""Recorded warm-up inputs that a model does not take any more: passed over and told of, as nothing declared ever is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from router.model import State
from tests.support.loops import in_loop
from tests.support.worker_parts import DoublingModel, EmptyLoader, FixedEngine, ReadableLog, X, Y
from worker.datatypes import Datatype
from worker.engines import Cancellation, EngineError, InputError, TensorSpec
from worker.exposition import of_recordings
from worker.metrics import Metrics
from worker.recording import Recorder, Recordings
from worker.replica import HeldReplica
from worker.starts import Starts
from worker.store import ModelFiles, ShapeClass
from worker.warmup import DEFAULT_CLASS, UnfitError, runs, warm_up

if TYPE_CHECKING:
    from worker.engines import Array, Parameters

FILES = ModelFiles("m", "3")
WIDER = TensorSpec("x", Datatype.FP32, (-1, 5))
OTHERS = (
    ((TensorSpec("z", Datatype.FP32, (-1, 2)),), "input 'x' is not the model's; it has z"),
    ((X, TensorSpec("z", Datatype.FP32, (1,))), "input 'z' is missing"),
    ((WIDER,), "input 'x': expected shape [-1, 5], given [1, 2]"),
    ((TensorSpec("x", Datatype.FP64, (-1, 2)),), "input 'x': expected float64, given float32"),
)


def recorded(directory: Path, *rows: int) -> Recordings:
    log = ReadableLog()
    recorder = Recorder(directory, 9, log)
    for number in rows:
        recorder.note(FILES, {"x": np.full((number, 2), 7, np.float32)})
    return Recordings(directory, log)


class Choosy(DoublingModel):
    """Refuses requests of ``rows`` rows."""

    def __init__(self, rows: int, error: EngineError) -> None:
        super().__init__()
        self.rows = rows
        self.refusal = error

    def run(
        self,
        inputs: Mapping[str, Array],
        outputs: Sequence[str],
        parameters: Parameters,
        cancellation: Cancellation,
    ) -> list[Array]:
        if len(inputs["x"]) == self.rows:
            raise self.refusal
        return super().run(inputs, outputs, parameters, cancellation)


@pytest.mark.parametrize(("specs", "why"), OTHERS)
def test_what_does_not_fit_is_passed_over_and_made_inputs_prove_it(
    tmp_path: Path, specs: tuple[TensorSpec, ...], why: str
) -> None:
    classes = recorded(tmp_path, 1).of(FILES).warmup
    model = DoublingModel(inputs=specs)
    proven: list[ShapeClass] = []
    passed: list[tuple[ShapeClass, str]] = []
    done = warm_up(model, classes, Cancellation(), proven.append, lambda *told: passed.append(told))
    assert done == tuple(proven) == (DEFAULT_CLASS,)
    ((one, text),) = passed
    assert one is classes[0]
    assert text.endswith(why)
    assert [set(ran) for ran in model.ran] == [{spec.name for spec in specs}]
    assert runs(model, classes) == 1


def test_what_fits_proves_it_and_the_rest_is_passed_over(tmp_path: Path) -> None:
    classes = recorded(tmp_path, 1, 2).of(FILES).warmup
    model = Choosy(1, InputError("index 7 is out of range"))
    passed: list[str] = []
    done = warm_up(model, classes, Cancellation(), passed_over=lambda _, why: passed.append(why))
    assert [one.name for one in done] == ["batch-2-2"]
    assert passed == ["warm-up run 'batch-1-1' failed: index 7 is out of range"]
    assert runs(model, classes) == 2, "as far as the signature says"


def test_a_run_that_fails_for_another_reason_fails(tmp_path: Path) -> None:
    classes = recorded(tmp_path, 1).of(FILES).warmup
    with pytest.raises(Exception, match=r"^warm-up run 'batch-1-1' failed: bad kernel$"):
        warm_up(Choosy(1, EngineError("bad kernel")), classes, Cancellation())


@pytest.mark.parametrize(("specs", "why"), OTHERS)
def test_what_a_description_declares_must_fit(tmp_path: Path, specs: tuple[TensorSpec, ...], why: str) -> None:
    (one,) = recorded(tmp_path, 1).of(FILES).warmup
    declared = ShapeClass("mine", file=one.file)
    with pytest.raises(UnfitError, match=r"^warm-up 'mine': "):
        warm_up(DoublingModel(inputs=specs), (declared,), Cancellation())
    with pytest.raises(UnfitError, match=r"^warm-up run 'mine' failed: no such row$"):
        warm_up(Choosy(1, InputError("no such row")), (declared,), Cancellation())


@in_loop
async def test_a_replica_is_warm_by_what_is_left_and_says_what_was_passed_over(tmp_path: Path) -> None:
    recordings = recorded(tmp_path, 1, 2)
    (tmp_path / "m" / "3" / "batch-3-3.npz").write_bytes(b"")
    files = recordings.of(FILES)
    log, engine = ReadableLog(), FixedEngine(Choosy(1, InputError("no such row")))
    starts = Starts(log)
    replica = HeldReplica(files, engine, EmptyLoader(), log, lambda: 1.0, lambda: None, starts)
    assert await replica.bring_up()
    assert (replica.state, replica.report().warmth) == (State.WARM, (("batch-2-2", 1.0),))
    (event,) = log.events("warmup.passed_over")
    assert {name: event[name] for name in ("level", "model", "version", "file", "error")} == {
        "level": "warning",
        "model": "m",
        "version": "3",
        "file": str(tmp_path / "m" / "3" / "batch-1-1.npz"),
        "error": "warm-up run 'batch-1-1' failed: no such row",
    }
    engine.model = DoublingModel(inputs=(WIDER,), outputs=(Y,))
    assert await replica.swap(files)
    assert replica.report().warmth == (("batch-1", 1.0),), "none of them is left"
    assert len(log.events("warmup.passed_over")) == 3
    replica.lose("what it depends on is amiss")
    await replica.regain()
    assert replica.state is State.WARM
    assert len(log.events("warmup.passed_over")) == 3, "it is proven again by what has proven it"
    metrics = Metrics()
    metrics.add(of_recordings(recordings, starts))
    text = await metrics.text()
    assert 'warmroute_worker_warmup_passed_over_total{why="unreadable"} 1\n' in text
    assert 'warmroute_worker_warmup_passed_over_total{why="unfit"} 3\n' in text
