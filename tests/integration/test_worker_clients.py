"""Clients that others wrote drive the worker unchanged: tritonclient and kserve's, over HTTP and gRPC.

They cannot be installed beside our own pins (they want an older protobuf), so they run as programs in an environment of
their own, which ``make clients`` makes of requirements/clients.lock. Without it these tests are skipped.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.worker_process import ROOT, WorkerProcess

PYTHON = ROOT / ".venv-clients" / "bin" / "python"
SCRIPTS = ROOT / "tests" / "support" / "clients"

pytestmark = pytest.mark.skipif(
    not (ROOT / ".venv-clients" / "clients.stamp").exists(),
    reason="there is no .venv-clients: make clients",
)

DATATYPES = {
    "all": ("FP32", "FP16", "BF16", "INT8", "UINT64", "BOOL", "BYTES"),
    "some": ("FP32", "FP16", "INT8", "BYTES"),
    "other": ("FP32",),
}


def repository(directory: Path, *models: str) -> Path:
    for model in models:
        inputs = ", ".join(f"{{name: {one}, datatype: {one}, shape: [-1, 2]}}" for one in DATATYPES[model])
        shapes = ", ".join(f"{one}: [1, 2]" for one in DATATYPES[model])
        version = directory / model / "1"
        version.mkdir(parents=True)
        text = f"engine: {{inputs: [{inputs}]}}\nwarmup: [{{name: one, shapes: {{{shapes}}}}}]\n"
        (version / "model.yaml").write_text(text)
    return directory


@pytest.fixture
def worker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[WorkerProcess]:
    models = repository(tmp_path, *request.param)
    flags = ("--engine", "deterministic", "--models", str(models), "--grpc-listen", "127.0.0.1:0")
    with WorkerProcess(*flags, "--model-control", "explicit", "--load-model", "*") as running:
        running.listening()
        for model in request.param:
            running.warm(model)
        yield running


def run(script: str, worker: WorkerProcess) -> list[str]:
    """Run ``script`` against the worker; returns the checks that held."""
    addresses = [str(worker.event("worker.listening")[kind]).partition("://")[2] for kind in ("address", "grpc")]
    done = subprocess.run(
        [PYTHON, SCRIPTS / script, *addresses], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, f"after {done.stdout.splitlines()[-1:]}: {done.stderr[-3000:]}"
    assert worker.process.poll() is None
    return done.stdout.splitlines()


@pytest.mark.parametrize("worker", [("all", "other")], indirect=True, ids=[""])
def test_tritonclient(worker: WorkerProcess) -> None:
    common = ("readiness", "metadata and configuration", "classification", "refusal", "statistics", "repository")
    http = ("binary", "JSON and binary mixed", "compressed", "async_infer", "asyncio")
    grpc = ("infer", "compressed", "stream", "asyncio")
    expected = {f"http {name}" for name in common + http} | {f"grpc {name}" for name in common + grpc}
    assert set(run("triton.py", worker)) == expected


@pytest.mark.parametrize("worker", [("some",)], indirect=True, ids=[""])
def test_the_clients_of_kserve(worker: WorkerProcess) -> None:
    assert run("kserve_clients.py", worker) == ["rest readiness", "rest infer", "grpc readiness", "grpc infer"]
