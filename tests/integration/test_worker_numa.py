"""A worker that is to bind memory: it says what this machine cannot do, and loads all the same."""

from __future__ import annotations

from pathlib import Path

from tests.support.worker_process import WorkerProcess
from worker.numa import read_topology


def test_loading_goes_on_where_memory_cannot_be_bound(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "weights").write_bytes(bytes(100_000))
    flags = ["--models", str(tmp_path), "--engine", "deterministic", "--numa", "bind", "--load", "populate"]
    with WorkerProcess(*flags) as worker:
        worker.listening()
        worker.warm("b")
        told = [event["reason"] for event in worker.events if event["event"] == "numa.degraded"]
        assert len(told) == len(set(told))
        if len(read_topology()) < 2:
            assert len(told) == 1
