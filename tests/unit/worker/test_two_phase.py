from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.worker_parts import DoublingModel, ReadableLog, shipped_model
from worker.engines import Cancellation, EngineError, GivenUpError
from worker.engines.background import turn
from worker.engines.registry import EngineSettings, make_engine
from worker.engines.two_phase import TwoPhaseModel
from worker.stages import Stages
from worker.store import ModelFiles

if TYPE_CHECKING:
    from worker.engines import Array, LoadedModel

ONES = np.ones((1, 2), np.float32)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline


class TenfoldModel(DoublingModel):
    """The second session: to be told from the first by what it answers."""

    def compute(self, values: Array) -> Array:
        return np.asarray(values * 10)


class Bench:
    """A two-phase model whose second session is built and proven when the test says so."""

    def __init__(
        self,
        build_error: Exception | None = None,
        proof_error: Exception | None = None,
        proofs: int = 1,
        first: DoublingModel | None = None,
    ) -> None:
        self.first = first or DoublingModel()
        self.second = TenfoldModel(error=proof_error)
        self.build_error = build_error
        self.may_build = threading.Event()
        self.log = ReadableLog()
        self.model = TwoPhaseModel(
            self.first, self.build, self.prove, proofs, name="m", log=self.log, behind=False, settle_s=0.0
        )

    def build(self, cancellation: Cancellation) -> LoadedModel:
        while not self.may_build.wait(0.005):
            cancellation.wait(0)
        if self.build_error is not None:
            raise self.build_error
        return self.second

    def prove(self, model: LoadedModel, cancellation: Cancellation) -> None:
        model.run({"x": ONES}, ["y"], {}, cancellation)

    def run(self) -> float:
        (y,) = self.model.run({"x": ONES}, ["y"], {}, Cancellation())
        return float(y[0, 0])

    def phase(self) -> Any:
        return self.model.facts()["two_phase"]["phase"]


def test_the_first_session_serves_until_the_second_is_proven_and_is_closed_after() -> None:
    bench = Bench(proofs=2)
    assert (bench.run(), bench.phase()) == (2.0, "first"), "one of two warm-up runs"
    assert (bench.run(), bench.phase()) == (2.0, "building")
    assert bench.run() == 2.0
    bench.may_build.set()
    assert bench.model.wait(10) == "second"
    assert bench.run() == 10.0
    assert bench.first.closed
    assert not bench.second.closed
    assert [event["model"] for event in bench.log.events("model.session_swapped")] == ["m"]
    bench.model.unload()
    assert bench.second.closed


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Bench(build_error=EngineError("no room")), "no room"),
        (lambda: Bench(build_error=MemoryError()), "MemoryError"),
        (lambda: Bench(proof_error=EngineError("bad kernel")), "bad kernel"),
    ],
)
def test_where_the_second_fails_the_first_goes_on_and_says_why(make: Callable[[], Bench], reason: str) -> None:
    bench = make()
    bench.run()
    bench.may_build.set()
    assert bench.model.wait(10) == "failed"
    assert bench.run() == 2.0
    assert bench.model.facts() == {"two_phase": {"phase": "failed", "reason": reason}}
    (event,) = bench.log.events("model.second_session_failed")
    assert (event["level"], event["model"], event["reason"]) == ("warning", "m", reason)
    assert not bench.first.closed
    assert bench.second.closed is (bench.second.error is not None)


def test_a_run_that_is_under_way_keeps_the_first_session_until_it_ends() -> None:
    hold = threading.Event()
    bench = Bench(first=DoublingModel(hold=hold))
    answers: list[float] = []
    hold.set()
    bench.run()
    hold.clear()
    running = threading.Thread(target=lambda: answers.append(bench.run()))
    running.start()
    until(lambda: len(bench.first.ran) == 2)
    bench.may_build.set()
    until(lambda: bench.phase() == "second")
    assert bench.run() == 10.0
    assert not bench.first.closed
    hold.set()
    running.join(10)
    assert bench.model.wait(10) == "second"
    assert answers == [2.0]
    assert bench.first.closed


def test_closing_gives_the_second_up() -> None:
    bench = Bench()
    bench.run()
    bench.model.unload()
    assert bench.phase() == "given_up", "it has ended when the model is unloaded"
    assert bench.first.closed
    assert bench.log.events() == []


def test_a_failed_run_proves_nothing() -> None:
    bench = Bench(first=DoublingModel(error=EngineError("not yet")))
    with pytest.raises(EngineError):
        bench.run()
    assert bench.phase() == "first"


def test_closing_before_the_proof_starts_nothing() -> None:
    bench = Bench()
    bench.model.unload()
    bench.run()
    assert bench.phase() == "first"


# --- ONNX Runtime -----------------------------------------------------------------------------------------------


def onnx(directory: Path, log: ReadableLog, **options: Any) -> LoadedModel:
    files = ModelFiles("m", "1", directory, directory / "model.onnx", options=options)
    return make_engine("onnxruntime", EngineSettings(log)).load(files, Cancellation(), Stages())


def test_a_real_session_is_swapped_and_answers_the_same(tmp_path: Path) -> None:
    log = ReadableLog()
    model = onnx(shipped_model("mul_1", tmp_path), log, two_phase="on")
    assert isinstance(model, TwoPhaseModel)
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    before = model.run({"X": x}, ["Y"], {}, Cancellation())
    assert model.wait(30) == "second"
    after = model.run({"X": x}, ["Y"], {}, Cancellation())
    assert np.array_equal(before, after)
    facts = model.facts()
    assert facts["providers"] == ["CPUExecutionProvider"]
    assert facts["two_phase"]["phase"] == "second"
    model.unload()


def test_two_phases_are_for_large_models_unless_said_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = shipped_model("mul_1", tmp_path)
    log = ReadableLog()
    assert not isinstance(onnx(directory, log), TwoPhaseModel)
    monkeypatch.setattr("worker.engines.onnx_runtime.TWO_PHASE_FROM_BYTES", 1)
    assert isinstance(onnx(directory, log), TwoPhaseModel)
    assert not isinstance(onnx(directory, log, two_phase="off"), TwoPhaseModel)
    assert not isinstance(onnx(directory, log, session={"session.disable_prepacking": "0"}), TwoPhaseModel)


def test_two_phases_and_an_entry_of_ones_own_exclude_each_other(tmp_path: Path) -> None:
    directory = shipped_model("mul_1", tmp_path)
    with pytest.raises(EngineError) as caught:
        onnx(directory, ReadableLog(), two_phase="on", session={"session.disable_prepacking": "1"})
    assert str(caught.value) == (
        f"{directory}/model.yaml: engine: two_phase: 'on' and session: session.disable_prepacking: '1'"
        " exclude each other; take one away"
    )


def test_a_build_that_is_given_up_is_no_failure(tmp_path: Path) -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    directory = shipped_model("mul_1", tmp_path)
    files = ModelFiles("m", "1", directory, directory / "model.onnx", options={"two_phase": "on"})
    with pytest.raises(GivenUpError):
        make_engine("onnxruntime", EngineSettings(ReadableLog())).load(files, cancellation, Stages())


@pytest.mark.parametrize("began", [False, True])
def test_no_second_session_is_made_of_files_that_may_change(began: bool) -> None:
    bench = Bench()
    with turn(Cancellation()):  # as whoever detaches it has
        if began:
            bench.run()
        bench.model.detach()
    bench.may_build.set()
    if not began:
        bench.run()
    until(lambda: bench.phase() == "given_up")
    assert bench.run() == 2.0
    assert not bench.second.ran
    bench.model.unload()


def test_a_first_session_serves_on_where_no_thread_makes_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()

    def cannot_start(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", cannot_start)
    assert bench.run() == 2.0
    assert bench.model.facts()["two_phase"] == {"phase": "failed", "reason": "out of memory: can't start new thread"}
    assert bench.run() == 2.0
    bench.model.unload()
    assert bench.first.closed
