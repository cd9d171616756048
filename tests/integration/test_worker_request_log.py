"""The request log of a real worker, over HTTP and gRPC, whatever becomes of its file."""

from __future__ import annotations

import json
import resource
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from warmroute_pb.v1 import open_inference_pb2 as oip

from tests.support.worker_process import WorkerProcess, echo_body

if TYPE_CHECKING:
    from collections.abc import Callable

FLAGS = ("--engine", "deterministic", "--model", "m", "--id", "w1")


def ask(worker: WorkerProcess, name: str, model: str = "m", **head: str) -> int:
    """Ask for an inference that has an id; returns the status."""
    fields = {"x-request-id": name, **{field.replace("_", "-"): value for field, value in head.items()}}
    body = json.dumps(echo_body(service_ms=5)).encode()
    request = urllib.request.Request(f"{worker.address}/v2/models/{model}/infer", body, fields)
    with suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=20) as answer:
        return int(answer.status)
    return 0


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_whatever_has_an_id_leaves_a_line(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    with WorkerProcess(*FLAGS, "--grpc-listen", "127.0.0.1:0", "--request-log", str(log)) as worker:
        place = worker.event("worker.listening")["grpc"].removeprefix("grpc://")
        worker.warm("m")
        began = time.time()
        assert ask(worker, "http", warmroute_attempt="2") == 200
        ask(worker, "unknown", "nobody")
        ask(worker, "background", warmroute_background="1")
        worker.ask("/v2/models/m/infer", echo_body())
        tensor = oip.ModelInferRequest.InferInputTensor(name="INPUT0", datatype="FP32", shape=[1, 1])
        tensor.contents.fp32_contents.append(1.0)
        with grpc.insecure_channel(place) as channel:
            infer = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                oip.ModelInferRequest.SerializeToString,
                oip.ModelInferResponse.FromString,
            )
            infer(
                oip.ModelInferRequest(model_name="m", inputs=[tensor]), metadata=[("x-request-id", "grpc")], timeout=20
            )
        worker.terminate()
        assert worker.wait() == 0
    http, unknown, over_grpc = lines(log)
    named = ("request_id", "attempt", "worker", "seq", "model", "version", "status")
    assert tuple(http[name] for name in named) == ("http", 2, "w1", 1, "m", "1", 200)
    assert tuple(unknown[name] for name in named) == ("unknown", 1, "w1", 2, "nobody", "", 404)
    assert tuple(over_grpc[name] for name in named) == ("grpc", 1, "w1", 3, "m", "1", 200)
    assert http["epoch"] == over_grpc["epoch"]
    assert began <= http["at"] <= http["at"] + http["took_s"] <= over_grpc["at"]
    assert 0.005 <= http["run_s"] <= http["queue_s"] + http["run_s"] <= http["took_s"]
    assert "run_s" not in unknown


def test_its_file_may_go_and_the_disk_may_be_full(tmp_path: Path) -> None:
    log, moved = tmp_path / "requests.jsonl", tmp_path / "moved.jsonl"
    with WorkerProcess(*FLAGS, "--request-log", str(log)) as worker:
        worker.listening()
        worker.warm("m")
        ask(worker, "before")
        until(lambda: lines(log))
        log.rename(moved)
        ask(worker, "after")
        until(lambda: lines(log))
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(worker.process.pid, resource.RLIMIT_FSIZE, (log.stat().st_size + 20, unlimited[1]))
        assert ask(worker, "lost") == 200
        told = worker.event("request_log.lost")
        assert (told["file"], told["lines"], told["error"]) == (str(log), 1, "File too large")
        resource.prlimit(worker.process.pid, resource.RLIMIT_FSIZE, unlimited)
        ask(worker, "found")
        until(lambda: "found" in log.read_text())
    assert [line["request_id"] for line in lines(moved)] == ["before"]
    whole, torn, last = log.read_text().splitlines()
    assert [json.loads(line)["seq"] for line in (whole, last)] == [2, 4]
    assert len(torn) == 20  # what the disk took of a line is a line of its own, and spoils no other
