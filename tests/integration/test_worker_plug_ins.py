"""An engine that another package brings, and that does what no engine should: its own models pay, nobody else."""

from __future__ import annotations

import os
import signal
import textwrap
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support.worker_process import ROOT, WorkerProcess, echo_body

ENGINE = """
import sys

from worker.engines import EngineError
from worker.engines.deterministic import DeterministicEngine, DeterministicModel
from worker.engines.registry import EngineKind

KIND = EngineKind("plugged", "model.txt", concurrency_fixed=2)


class Mute(BaseException):
    def __str__(self):
        raise ValueError("no text")


class Model:
    def __init__(self, model, kept, odd):
        self.model, self.kept, self.odd = model, kept, odd

    def __getattr__(self, name):
        return getattr(self.model, name)

    def run(self, inputs, outputs, parameters, cancellation):
        raised = {
            "exit": SystemExit(3),
            "interrupt": KeyboardInterrupt(),
            "stop": StopIteration("end"),
            "mute": Mute(),
            "memory": MemoryError(),
            "long": EngineError("A" * 5_000_000),
        }
        if parameters.get("do") in raised:
            raise raised[parameters["do"]]
        return self.model.run(inputs, outputs, {}, cancellation)

    def facts(self):
        if self.odd:
            return {"what": object()}
        sys.exit("no facts")

    def unload(self):
        if self.kept:
            raise self.kept


class Engine(DeterministicEngine):
    def load(self, files, cancellation, stages):
        said = files.model_file.read_text()
        if said == "exit":
            sys.exit("no license")
        if said == "interrupt":
            raise KeyboardInterrupt
        if said == "half":
            raise RuntimeError("half a pair: \\ud800" + "A" * 5_000_000)
        kept = {"keeps": RuntimeError("arena in use"), "exits": SystemExit(4)}.get(said)
        return Model(super().load(files, cancellation, stages), kept, said == "odd")


def make_engine(settings):
    return Engine(0.0, 0.0)
"""
ENDED = "which would have ended the worker"


@pytest.fixture
def plugged(tmp_path: Path) -> dict[str, str]:
    """The package, as pip would have installed it; returns the environment of a worker that has it."""
    package = tmp_path / "package"
    about = package / "plugged-1.dist-info"
    about.mkdir(parents=True)
    (package / "plugged.py").write_text(textwrap.dedent(ENGINE))
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[warmroute.engines]\nplugged = plugged:KIND\n")
    return {"PYTHONPATH": os.pathsep.join((str(package), str(ROOT), str(ROOT / "proto")))}


def repository(root: Path, **models: str) -> str:
    for name, content in models.items():
        place = root / "models" / name / "1"
        place.mkdir(parents=True)
        (place / "model.txt").write_text(content)
    return str(root / "models")


def index(worker: WorkerProcess) -> dict[str, tuple[str, str]]:
    status, rows, _ = worker.ask("/v2/repository/index", {})
    assert status == 200
    return {row["name"]: (row["state"], row["reason"]) for row in rows}


def infer(worker: WorkerProcess, model: str, **parameters: Any) -> tuple[int, Any]:
    status, said, _ = worker.ask(f"/v2/models/{model}/infer", echo_body(**parameters))
    return status, said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_engine_that_would_end_the_process_ends_its_model_only(
    tmp_path: Path, plugged: dict[str, str], number: signal.Signals
) -> None:
    models = repository(tmp_path, well="", exits="exit", interrupts="interrupt", half="half", odd="odd")
    with WorkerProcess("--models", models, "--engine", "plugged", "--settle-s", "0", environment=plugged) as worker:
        worker.listening()
        worker.warm("well")
        for model, said in (("exits", "SystemExit: no license"), ("interrupts", "KeyboardInterrupt")):
            reason = f"the engine raised {said}, {ENDED}"
            assert worker.event("model.state", model=model, to="failed")["reason"] == reason
            assert infer(worker, model) == (503, {"error": f"model '{model}' is not ready: loading failed: {reason}"})
        for do, said in (("exit", "SystemExit: 3"), ("interrupt", "KeyboardInterrupt")):
            status, answer = infer(worker, "well", do=do)
            assert (status, answer) == (500, {"error": f"model 'well': the engine raised {said}, {ENDED}"})
        assert infer(worker, "well", do="stop")[0] == 500
        for _ in range(3):  # more often than there are threads
            status, answer = infer(worker, "well", do="mute")
            said = f"the engine raised Mute: Mute, which cannot say more, {ENDED}"
            assert (status, answer) == (500, {"error": f"model 'well': {said}"})
        assert infer(worker, "well", do="memory")[1]["error"].startswith("model 'well': out of memory; ")
        assert infer(worker, "well", do="long")[1] == {"error": f"model 'well': {'A' * 4096}... (5000000 characters)"}
        state, reason = index(worker)["half"]
        assert (state, len(reason) < 5000) == ("UNAVAILABLE", True)
        assert "RuntimeError: half a pair: \\ud800AAA" in reason
        assert worker.event("model.state", model="half", to="failed")["reason"] in reason
        worker.warm("odd")
        odd = worker.ask("/stats")[1]["models"]["odd"]["engine"]
        assert odd == {"error": "TypeError: Encoding objects of type object is unsupported"}
        assert infer(worker, "well")[0] == 200
        assert worker.ask("/stats")[1]["models"]["well"]["engine"] == {"error": "SystemExit: no facts"}
        worker.process.send_signal(number)
        worker.event("worker.stopped")
        while worker.process.poll() is None:  # whoever is impatient changes nothing any more
            worker.process.send_signal(number)
        assert worker.wait() == 0


def test_what_an_engine_does_not_give_back_is_told_everywhere(tmp_path: Path, plugged: dict[str, str]) -> None:
    models = repository(tmp_path, well="", keeps="keeps", exits="exits")
    flags = ("--models", models, "--engine", "plugged", "--model-control", "explicit", "--load-model", "*")
    with WorkerProcess(*flags, "--settle-s", "0", environment=plugged) as worker:
        worker.listening()
        for model in ("well", "keeps", "exits"):
            worker.warm(model)
        assert worker.ask("/v2/repository/models/well/unload", {})[:2] == (200, {})
        assert worker.event("model.unloaded", model="well")["given_back"] is True
        why = "its engine failed to give back what it held: RuntimeError: arena in use"
        status, answer, _ = worker.ask("/v2/repository/models/keeps/unload", {})
        text = f"model 'keeps' is unloaded, but version 1: {why}; that is free when the worker ends: restart it"
        assert (status, answer) == (500, {"error": text})
        assert worker.event("model.not_given_back", model="keeps")["error"] == "RuntimeError: arena in use"
        assert worker.event("model.unloaded", model="keeps")["given_back"] is False
        state, reason = index(worker)["keeps"]
        assert (state, reason.endswith(f" loads it; {why}")) == ("UNAVAILABLE", True)
        with urllib.request.urlopen(f"{worker.address}/metrics", timeout=10) as answered:
            assert b"\nwarmroute_worker_models_not_given_back_total 1\n" in answered.read()
        assert worker.ask("/v2/repository/models/keeps/load", {})[:2] == (200, {}), "it can be loaded again"
        assert infer(worker, "keeps")[0] == 200
        worker.terminate()
        assert worker.wait() == 0, "nor does it hold up the end"
        kept = f"the engine raised SystemExit: 4, {ENDED}"
        assert worker.event("model.not_given_back", model="exits")["error"] == kept
        assert worker.event("worker.stopped")
        assert worker.text == [], "no traceback"


def test_an_engine_that_cannot_be_made_is_told_in_a_line(tmp_path: Path, plugged: dict[str, str]) -> None:
    module = tmp_path / "package" / "plugged.py"
    module.write_text(module.read_text().replace("return Engine(0.0, 0.0)", "sys.exit('no license')"))
    models = repository(tmp_path, well="")
    with WorkerProcess("--models", models, "--engine", "plugged", environment=plugged) as worker:
        assert worker.wait() == 2
        said = "engine 'plugged': plugged.make_engine: SystemExit: no license"
        assert worker.event("worker.failed")["error"] == said
        assert worker.text == []
