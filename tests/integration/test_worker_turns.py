"""Workers that start together on one machine: one turn, two workers, and a model that is left to its first request."""

from __future__ import annotations

from pathlib import Path

from tests.support.sidecars import until
from tests.support.worker_process import WorkerProcess


def test_who_has_no_turn_loads_with_the_first_request(tmp_path: Path) -> None:
    flags = ["--model", "m", "--engine", "deterministic", "--shm-dir", str(tmp_path), "--preload-limit", "1"]
    body = {"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}
    with WorkerProcess(*flags, "--load-s", "60", "--preload-wait-s", "0.2") as slow:
        slow.listening()
        slow.event("model.state", to="loading")
        with WorkerProcess(*flags, "--preload-wait-s", "0.2") as other:
            other.listening()
            assert other.event("preload.no_turn")["model"] == "m"
            assert other.ask("/v2/health/ready")[0] == 200
            assert other.ask("/v2/models/m/infer", body)[0] == 503
            other.warm("m")
            until(lambda: other.ask("/v2/models/m/infer", body)[0] == 200, "it is loaded by a request")
    with WorkerProcess(*flags) as later:  # the slow one was killed with its turn
        later.listening()
        later.warm("m")
