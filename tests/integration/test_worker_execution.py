"""Batching, deadlines and a pool of changing size in a real worker process."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.support.worker_process import WorkerProcess, echo_body


def ask(worker: WorkerProcess, body: Any, **headers: str) -> tuple[int, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(
        f"{worker.address}/v2/models/m/infer", data=json.dumps(body).encode(), headers=named
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            whose = error.headers["warmroute-deadline"]
            return error.code, json.load(error) | ({} if whose is None else {"deadline": whose})


def test_a_worker_that_joins_requests_and_keeps_their_time(tmp_path: Path) -> None:
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.yaml").write_text("batching: {max_size: 8, max_delay_ms: 100}\n")
    flags = ("--models", str(tmp_path), "--engine", "deterministic", "--pool", "1..4", "--service-ms", "5")
    more = ("--queue-order", "fair", "--buffers-bytes", "1048576")
    with WorkerProcess(*flags, *more) as worker, ThreadPoolExecutor(8) as pool:
        worker.listening()
        worker.warm("m")
        answers = list(pool.map(lambda value: ask(worker, echo_body(value), warmroute_tenant="a"), range(8)))
        assert [status for status, _ in answers] == [200] * 8
        assert [answer["outputs"][0]["data"] for _, answer in answers] == [[float(value)] for value in range(8)]
        stats = worker.ask("/v2/models/m/stats")[1]["model_stats"][0]
        assert stats["inference_count"] == 8
        assert stats["execution_count"] < 8
        assert sum(one["compute_infer"]["count"] for one in stats["batch_stats"]) == stats["execution_count"]
        late = ask(worker, echo_body(1.0, service_ms=5000, timeout=300_000))
        assert late == (504, {"error": "model 'm': its time was over while it ran", "deadline": "caller"})
        assert ask(worker, echo_body(1.0), x_request_timeout_ms="0") == (
            503,
            {"error": "model 'm': its time was over before it could begin"},
        )
        assert ask(worker, echo_body(1.0), x_request_timeout_ms="soon")[0] == 400
        threads = worker.ask("/stats")[1]["threads"]
        assert (threads["least"], threads["most"]) == (1, 4)
        assert threads["lent"] <= 3
        with urllib.request.urlopen(f"{worker.address}/metrics", timeout=20) as answer:
            text = answer.read().decode()
        assert 'warmroute_worker_inferences_total{model="m",version="1"} 8\n' in text
        assert 'warmroute_worker_buffers_total{result="hit"}' in text
        assert "warmroute_worker_buffers_held_bytes 524288\n" in text
        assert "warmroute_worker_overdue_total 2\n" in text
        assert 'warmroute_worker_threads{kind="size"} 1\n' in text
        worker.terminate()
        assert worker.wait() == 0
