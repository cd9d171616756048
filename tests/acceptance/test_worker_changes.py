"""A real worker whose model is changed again and again: nothing is lost, nobody waits, and nothing is left behind."""

from __future__ import annotations

import hashlib
import http.client
import json
import threading
import time
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from tests.support.models import WIDTH, product_body, put_product
from tests.support.worker_process import WorkerProcess
from worker.bench.samples import device_bytes

pytestmark = pytest.mark.acceptance

CYCLES = 200
SETTLING = 20
CALLERS = 2
PAUSE_S = 0.005
SPAN_S = 2.5
P99_RATIO = 1.5
LOAD = "/v2/repository/models/m/load"
UNLOAD = "/v2/repository/models/m/unload"


def rss_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


def device_bytes_now(pid: int) -> int:
    """Return what the process holds of NVIDIA devices."""
    return device_bytes(pid) or 0


@pytest.mark.beside  # what it holds to anything is memory
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_two_hundred_loads_and_unloads_leave_nothing_behind(tmp_path: Path, device: str) -> None:
    place = put_product(tmp_path / "models" / "m" / "1", 0.5)
    if device == "cuda":
        if device_bytes(0) is None or "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            pytest.skip("no CUDA device here, or no ONNX Runtime that uses one")
        (place.parent / "model.yaml").write_text("engine: {providers: [CUDAExecutionProvider, CPUExecutionProvider]}")
    body = product_body()
    with WorkerProcess("--models", str(tmp_path / "models"), "--model-control", "explicit") as worker:
        worker.listening()
        settled = loaded = settled_device = 0
        for cycle in range(SETTLING + CYCLES):
            assert worker.ask(LOAD, {})[0] == 200
            if cycle % 10 == 0:
                assert worker.ask("/v2/models/m/infer", body)[0] == 200
            loaded = max(loaded, rss_kib(worker.process.pid))
            assert worker.ask(UNLOAD, {})[0] == 200
            if cycle == SETTLING:
                settled, settled_device = rss_kib(worker.process.pid), device_bytes_now(worker.process.pid)
        after, after_device = rss_kib(worker.process.pid), device_bytes_now(worker.process.pid)
        mapped = Path(f"/proc/{worker.process.pid}/maps").read_text()
    assert after < settled * 1.02, f"{settled} KiB after {SETTLING} cycles, {after} KiB after {CYCLES} more"
    assert after_device <= settled_device * 1.02
    if device == "cpu":
        assert loaded > after + place.stat().st_size / 1024, "a model takes at least its weights while it is loaded"
    assert str(place) not in mapped


class Callers:
    """Keep-alive callers, each with a pause between its requests; they keep every latency and whatever went wrong."""

    def __init__(self, address: str, body: dict[str, Any]) -> None:
        self._address = address.removeprefix("http://")
        self._body = json.dumps(body).encode()
        self._stop = threading.Event()
        self.latencies: list[float] = []
        self.seen: set[float] = set()
        self.wrong: list[str] = []
        self._threads = [threading.Thread(target=self._call) for _ in range(CALLERS)]

    def _call(self) -> None:
        connection = http.client.HTTPConnection(self._address, timeout=20)
        while not self._stop.wait(PAUSE_S):
            began = time.perf_counter()
            try:
                connection.request("POST", "/v2/models/m/infer", self._body)
                response = connection.getresponse()
                answer = json.loads(response.read())
                if response.status != 200:
                    self.wrong.append(f"{response.status} {answer}")
                    continue
                self.seen.add(answer["outputs"][0]["data"][0])
            except (OSError, http.client.HTTPException) as error:
                self.wrong.append(f"{type(error).__name__}: {error}")
                connection.close()
                continue
            self.latencies.append(time.perf_counter() - began)
        connection.close()

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    def taken(self) -> list[float]:
        """Return the latencies since the last time."""
        taken, self.latencies = self.latencies, []
        return taken


def p99(latencies: list[float]) -> float:
    return sorted(latencies)[int(len(latencies) * 0.99)]


def test_hot_swaps_under_load_lose_nothing_and_keep_the_tail(tmp_path: Path) -> None:
    """A lost request has no second try. The tail has five, and is held to the worst that was seen without a swap.

    The machine may be busy with something else for a while; what the tail does then by itself says nothing of swaps.
    """
    directory = tmp_path / "models" / "m" / "1"
    factors = [1.0, 2.0]

    def put(turn: int) -> None:
        place = put_product(directory, factors[turn % 2])
        (directory / ".SUMS").write_text(f"{hashlib.sha256(place.read_bytes()).hexdigest()}  model.onnx\n")
        (directory / ".SUMS").rename(directory / "SHA256SUMS")

    put(0)
    flags = ("--models", str(tmp_path / "models"), "--model-control", "explicit", "--load-model", "m")
    with WorkerProcess(*flags) as worker:
        worker.listening()
        worker.warm("m")
        turn, ratios, usual_s = 0, [], 0.0
        with Callers(worker.address, product_body()) as callers:
            time.sleep(0.7)  # connections, caches, and the second session of a start
            for _ in range(5):
                callers.taken()
                time.sleep(SPAN_S)
                usual_s = max(usual_s, p99(callers.taken()))
                until = time.monotonic() + SPAN_S
                while time.monotonic() < until:
                    turn += 1
                    put(turn)
                    assert worker.ask(LOAD, {})[0] == 200
                    time.sleep(0.5)
                during = callers.taken()
                ratios.append(round(p99(during) / usual_s, 2))
                if ratios[-1] <= P99_RATIO:
                    break
        assert callers.wrong == []
        assert callers.seen == {WIDTH * factor for factor in factors}
        assert min(ratios) <= P99_RATIO, ratios
        assert worker.ask("/v2/repository/index", {})[1][0]["reason"] == ""
