"""Whatever is wrong with a model is said in the log, in the state, in the index and to callers, and hurts no other."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from router.model import Replica, State
from router.wire import Keys, decode_fields
from tests.support.redis_server import RedisServer
from tests.support.sidecar_process import free_port
from tests.support.sidecars import until
from tests.support.worker_process import ROOT, WorkerProcess
from worker.bench.onnx_writing import FLOAT, INT64, external_tensor, model, node, tensor, value_info

X = [value_info("x", FLOAT, ["n", 2])]
Y = [value_info("y", FLOAT, ["n", 2])]
FACTORS = struct.pack("<2f", 2, 3)
GOOD = model("good", [node("Mul", ["x", "w"], "y")], [tensor("w", FLOAT, [2], FACTORS)], X, Y)
BODY = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 1]}]}


def external(directory: Path) -> None:
    weights = external_tensor("w", FLOAT, [2], "weights.bin", 0, len(FACTORS))
    (directory / "model.onnx").write_bytes(model("external", [node("Mul", ["x", "w"], "y")], [weights], X, Y))


def truncated(directory: Path) -> str:
    (directory / "model.onnx").write_bytes(GOOD[:-9])
    return "Protobuf parsing failed; it is damaged"


def corrupted(directory: Path) -> str:
    (directory / "model.onnx").write_bytes(bytes(byte ^ 0x55 for byte in GOOD))
    return "Protobuf parsing failed; it is damaged, or no ONNX model: put it there again, and a SHA256SUMS beside it"


def flipped(directory: Path) -> str:
    """One bit of an operator's name, which the engine then quotes as it is."""
    at = GOOD.rindex(b"Mul")
    (directory / "model.onnx").write_bytes(GOOD[:at] + bytes([GOOD[at] ^ 0x80]) + GOOD[at + 1 :])
    return r"\xcdul"


def empty(directory: Path) -> str:
    (directory / "model.onnx").write_bytes(b"")
    return "No graph was found in the protobuf; it is damaged"


def wrong_hash(directory: Path) -> str:
    (directory / "model.onnx").write_bytes(GOOD)
    said, there = hashlib.sha256(b"another").hexdigest(), hashlib.sha256(GOOD).hexdigest()
    (directory / "SHA256SUMS").write_text(f"{said}  model.onnx\n")
    return f"its SHA-256 is {there}, and {directory}/SHA256SUMS says {said}"


def missing_data(directory: Path) -> str:
    external(directory)
    return f'External data path does not exist: "{directory}/weights.bin"'


def short_data(directory: Path) -> str:
    external(directory)
    (directory / "weights.bin").write_bytes(FACTORS[:-1])
    return "External initializer: w offset: 0 size to read: 8 given file_length: 7 are out of bounds"


def unsupported_operator(directory: Path) -> str:
    (directory / "model.onnx").write_bytes(model("unsupported", [node("Frobnicate", ["x"], "y")], [], X, Y))
    return "No Op registered for Frobnicate"


def out_of_memory(directory: Path) -> str:
    """Its answer takes 2 to the power of 48 bytes, which is more than a process can address."""
    shape = tensor("s", INT64, [3], struct.pack("<3q", 1 << 20, 1 << 25, 2))
    shapes = [value_info("y", FLOAT, ["a", "b", "c"])]
    (directory / "model.onnx").write_bytes(model("huge", [node("Expand", ["x", "s"], "y")], [shape], X, shapes))
    return "out of memory; "


BROKEN: tuple[Callable[[Path], str], ...] = (
    truncated,
    corrupted,
    flipped,
    empty,
    wrong_hash,
    missing_data,
    short_data,
    unsupported_operator,
    out_of_memory,
)


def put(root: Path, name: str) -> Path:
    directory = root / name / "1"
    directory.mkdir(parents=True)
    return directory


def test_each_broken_model_says_what_is_wrong_and_the_rest_is_served(tmp_path: Path, server: RedisServer) -> None:
    root = tmp_path / "models"
    (put(root, "good") / "model.onnx").write_bytes(GOOD)
    wrong = {one.__name__: one(put(root, one.__name__)) for one in BROKEN}
    client = redis.Redis.from_url(server.url, decode_responses=True)

    def told() -> dict[str, Replica]:
        fields: Any = client.hgetall(Keys("t").endpoint("w1"))
        return {one.model: one for one in decode_fields("w1", fields).replicas} if fields else {}

    flags = ("--models", str(root), "--state", server.url, "--namespace", "t", "--id", "w1")
    with WorkerProcess(*flags) as worker:
        worker.listening()
        logged = {name: worker.event("model.state", model=name, to="failed")["reason"] for name in wrong}
        until(lambda: sum(one.state in (State.WARM, State.FAILED) for one in told().values()) == len(wrong) + 1, "told")
        index = {row["name"]: row for row in worker.ask("/v2/repository/index", {})[1]}
        for name, text in wrong.items():
            assert text in logged[name], name
            assert told()[name].state is State.FAILED
            assert told()[name].reason == logged[name][:500]
            assert (index[name]["state"], index[name]["reason"]) == ("UNAVAILABLE", logged[name])
            for path, body in (("ready", None), ("infer", BODY)):
                status, answer, _ = worker.ask(f"/v2/models/{name}/{path}", body)
                assert (status, answer) == (
                    503,
                    {"error": f"model '{name}' is not ready: loading failed: {logged[name]}"},
                )
        status, answer, _ = worker.ask("/v2/models/good/infer", BODY)
        assert (status, answer["outputs"][0]["data"]) == (200, [2, 3])
        assert told()["good"].state is State.WARM
    client.close()


def test_a_file_that_is_cut_while_it_is_served_ends_nothing_and_its_successor_is_taken_over(tmp_path: Path) -> None:
    rows = 4096
    directory = put(tmp_path, "external")
    weights = directory / "weights.bin"
    weights.write_bytes(FACTORS * rows)
    held = external_tensor("w", FLOAT, [rows, 2], weights.name, 0, rows * len(FACTORS))
    (directory / "model.onnx").write_bytes(model("external", [node("Mul", ["x", "w"], "y")], [held], X, Y))
    (put(tmp_path, "good") / "model.onnx").write_bytes(GOOD)
    answers: list[tuple[int, list[float]]] = []
    enough = threading.Event()
    flags = ("--models", str(tmp_path), "--model-control", "poll", "--poll-s", "0.1")
    with WorkerProcess(*flags) as worker:
        worker.listening()
        worker.warm("external")
        worker.warm("good")

        def keep_asking() -> None:
            while not enough.is_set():
                status, answer, _ = worker.ask("/v2/models/external/infer", BODY)
                data = answer["outputs"][0]["data"] if status == 200 else answer
                answers.append((status, [*data[:2], *data[-2:]]))

        caller = threading.Thread(target=keep_asking)
        caller.start()
        try:
            os.truncate(weights, 1)
            told = worker.event("model.file_changing")
            assert (told["file"], told["outcome"]) == (str(weights), "kept")
            worker.event("model.swap_failed", model="external")
            status, ready, _ = worker.ask("/v2/models/external/ready")
            assert (status, ready["ready"]) == (200, True)
            assert "the new content was not taken over" in ready["reason"]
            assert worker.ask("/v2/models/good/infer", BODY)[0] == 200
            beside = tmp_path / "whole"
            beside.write_bytes(struct.pack("<2f", 4, 6) * rows)
            beside.replace(weights)
            worker.event("model.swapped", model="external")
            assert worker.ask("/v2/models/external/ready")[1].get("reason", "") == ""
            status, answer, _ = worker.ask("/v2/models/external/infer", BODY)
            assert (status, answer["outputs"][0]["data"][-2:]) == (200, [4, 6])
        finally:
            enough.set()
            caller.join(30)
        assert {status for status, _ in answers} == {200}
        assert [2, 3, 2, 3] in [data for _, data in answers]
        with urllib.request.urlopen(f"{worker.address}/metrics") as page:
            said = page.read().decode().splitlines()
        assert 'warmroute_worker_files_changing_total{outcome="kept"} 1' in said
        assert "warmroute_worker_guarded_files 1" in said, "the new file's"


def test_a_worker_that_can_write_nothing_serves(tmp_path: Path) -> None:
    """Every file is at its limit, and the log is on a full disk."""
    (put(tmp_path, "good") / "model.onnx").write_bytes(GOOD)
    port = free_port()
    command = f'ulimit -f 0; exec "{sys.executable}" -P -m worker --models "{tmp_path}" --listen 127.0.0.1:{port}'
    with Path("/dev/full").open("wb") as full:
        process = subprocess.Popen(["sh", "-c", command], cwd=ROOT, stderr=full, stdout=full)
        try:
            assert ask(port) == [2, 3]
        finally:
            process.terminate()
            assert process.wait(30) == 0


def ask(port: int, within_s: float = 30.0) -> Any:
    """Send requests until one is answered with 200; returns the answer's data."""
    ends = time.monotonic() + within_s
    while True:
        try:
            request = urllib.request.Request(f"http://127.0.0.1:{port}/v2/models/good/infer", json.dumps(BODY).encode())
            with urllib.request.urlopen(request, timeout=5) as answer:
                return json.load(answer)["outputs"][0]["data"]
        except (TimeoutError, urllib.error.URLError, ConnectionError):
            assert time.monotonic() < ends, "no answer"
            time.sleep(0.05)
