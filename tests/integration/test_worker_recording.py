"""What callers asked one worker proves the next."""

from __future__ import annotations

from pathlib import Path

from tests.support.worker_process import WorkerProcess


def test_a_worker_is_proven_by_what_another_was_asked(tmp_path: Path) -> None:
    flags = ["--model", "m", "--engine", "deterministic", "--warmup-dir", str(tmp_path)]
    body = {"inputs": [{"name": "INPUT0", "shape": [3, 2], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6]}]}
    with WorkerProcess(*flags, "--record-warmup", "4") as worker:
        worker.listening()
        worker.warm("m")
        for _ in range(2):
            assert worker.ask("/v2/models/m/infer", body)[0] == 200
        assert worker.event("warmup.recorded")["shape_class"] == "batch-3-1"
    assert [path.name for path in tmp_path.rglob("*.npz")] == ["batch-3-1.npz"]
    with WorkerProcess(*flags) as worker:
        worker.listening()
        worker.warm("m")
    (tmp_path / "m" / "1" / "batch-3-1.npz").write_bytes(b"no zip")
    with WorkerProcess(*flags) as worker:
        worker.listening()
        assert worker.event("warmup.passed_over")["file"] == str(tmp_path / "m" / "1" / "batch-3-1.npz")
        worker.warm("m")
