"""Workers that start together on one machine: one turn, two workers, and a model that is left to its first request.

And one that takes longer than its turn.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.sidecars import until
from tests.support.worker_process import WorkerProcess


def test_who_has_no_turn_loads_with_the_first_request(tmp_path: Path) -> None:
    flags = [
        "--model",
        "m",
        "--engine",
        "deterministic",
        "--shm-dir",
        str(tmp_path),
        "--preload-limit",
        "1",
        "--preload-turn-s",
        "0",
    ]
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


def test_a_preload_that_takes_longer_than_its_turn_gives_it_to_the_next_worker(tmp_path: Path) -> None:
    flags = ["--model", "m", "--engine", "deterministic", "--shm-dir", str(tmp_path), "--preload-limit", "1"]
    with WorkerProcess(*flags, "--load-s", "60", "--preload-turn-s", "0.1") as slow:
        slow.listening()
        fell_back = slow.event("load.fell_back")
        assert (fell_back["model"], fell_back["state"], fell_back["after_s"]) == ("m", "loading", 0.1)
        status, answer, _ = slow.ask("/v2/repository/index", {})
        assert (status, answer[0]["state"]) == (200, "LOADING")
        assert answer[0]["reason"].startswith("it was not warm after 0.1 s of its turn to be preloaded; ")
        with WorkerProcess(*flags) as other:
            other.listening()
            other.warm("m")
            assert "preload.no_turn" not in {event["event"] for event in other.events}
