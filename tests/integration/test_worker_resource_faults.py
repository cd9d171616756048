"""A worker that is out of memory, or whose disk is full: it lives, and serves everything afterwards."""

from __future__ import annotations

import resource
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.faults.processes import FaultKeeper, ProcessFault, ProcessFaultError
from tests.support.sidecars import until
from tests.support.worker_process import WorkerProcess, echo_body

VALUES = 2_000_000
"""Of one large tensor: more than a small worker has at hand."""


@pytest.fixture
def keeper() -> Iterator[FaultKeeper]:
    with FaultKeeper() as keeper:
        yield keeper


def asked(worker: WorkerProcess, body: dict[str, Any], timeout_s: float = 20.0) -> int:
    """Return the status of an inference, 0 where it was cut or its caller gave up."""
    try:
        return worker.ask("/v2/models/m/infer", body, timeout_s)[0]
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return 0


def test_a_worker_out_of_memory_refuses_what_is_large_and_lives(keeper: FaultKeeper) -> None:
    large = {"inputs": [{"name": "INPUT0", "shape": [1, VALUES], "datatype": "FP32", "data": [1.5] * VALUES}]}
    with WorkerProcess("--engine", "deterministic", "--model", "m") as worker:
        worker.listening()
        worker.warm("m")
        pid = worker.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_AS)
        kept = keeper.begin(ProcessFault("out_of_memory", pid=pid))
        assert resource.prlimit(pid, resource.RLIMIT_AS)[1] == before[1], "what is lowered can be raised again"
        assert asked(worker, large) != 200
        asked(worker, echo_body(), 2.0)  # what is small may fit or not, and its answer, too
        assert worker.process.poll() is None
        assert kept.end()
        assert resource.prlimit(pid, resource.RLIMIT_AS) == before
        until(lambda: asked(worker, echo_body()) == 200, "it serves again")  # who came meanwhile may have been cut
        assert asked(worker, large) == 200
        with pytest.raises(ProcessFaultError, match=r"headroom_mb -1: must be from 0 to 65536 MB"):
            keeper.begin(ProcessFault("out_of_memory", pid=pid, headroom_mb=-1))


def test_a_worker_with_a_full_disk_serves_on(keeper: FaultKeeper, tmp_path: Path) -> None:
    flags = ("--engine", "deterministic", "--model", "m", "--warmup-dir", str(tmp_path), "--record-warmup", "4")
    wide = {"inputs": [{"name": "INPUT0", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}
    with WorkerProcess(*flags) as worker:
        worker.listening()
        worker.warm("m")
        pid = worker.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        kept = keeper.begin(ProcessFault("full_disk", pid=pid))
        assert asked(worker, echo_body()) == 200
        assert "File too large" in worker.event("warmup.not_recorded")["error"]
        assert asked(worker, echo_body()) == 200
        assert list(tmp_path.rglob("*.npz")) == []
        assert kept.end()
        assert resource.prlimit(pid, resource.RLIMIT_FSIZE) == before
        assert asked(worker, wide) == 200
        worker.event("warmup.recorded")
    assert len(list(tmp_path.rglob("*.npz"))) == 1
