"""Workers that hold one shard each: what they read, what they compute, and how a sidecar finds their group complete."""

from __future__ import annotations

import http.client
import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.product import running
from tests.support.redis_server import RedisServer
from tests.support.sidecars import until
from tests.support.tensors import arrays, write_safetensors
from tests.support.worker_process import WorkerProcess
from worker.bench import onnx_writing
from worker.sharding.__main__ import main

NAME = "h.0.mlp.up_proj.weight"
ROWS, COLUMNS, SHARDS = 8, 7, 2  # padded to 8 columns, 4 for each


def graph(columns: int, length: int) -> bytes:
    weight = onnx_writing.external_tensor(NAME, onnx_writing.FLOAT, (ROWS, columns), "weights.bin", 0, length)
    return onnx_writing.model(
        "m",
        [onnx_writing.node("MatMul", ["x", NAME], "y")],
        [weight],
        [onnx_writing.value_info("x", onnx_writing.FLOAT, ["n", ROWS])],
        [onnx_writing.value_info("y", onnx_writing.FLOAT, ["n", columns])],
    )


def split_layer(root: Path) -> np.ndarray[Any, Any]:
    """Write a model of one layer, its split, and each shard's graph; returns the layer's weights."""
    directory = root / "m" / "1"
    directory.mkdir(parents=True)
    weights = np.random.default_rng(1).random((ROWS, COLUMNS), np.float32)
    (directory / "weights.bin").write_bytes(weights.tobytes())
    (directory / "model.onnx").write_bytes(graph(COLUMNS, weights.nbytes))
    for shard in range(SHARDS):
        (directory / f"shard-{shard}.onnx").write_bytes(graph(4, ROWS * 4 * 4))
    assert main(["shard", str(directory), "--shards", str(SHARDS)]) == 0
    return weights


def test_two_shards_compute_their_parts_of_a_layer(tmp_path: Path) -> None:
    weights = split_layer(tmp_path)
    x = np.random.default_rng(2).random((3, ROWS), np.float32)
    body = {"inputs": [{"name": "x", "shape": x.shape, "datatype": "FP32", "data": x.ravel().tolist()}]}
    parts = []
    for shard in range(SHARDS):
        with WorkerProcess("--models", str(tmp_path), "--shard", str(shard)) as worker:
            worker.listening()
            warm = worker.event("model.warm", model="m")
            assert (warm["strategy"], warm["bytes_total"]) == ("shard", 4 * ROWS * 4)
            status, answer, _ = worker.ask("/v2/models/m/infer", body)
            assert status == 200
            parts.append(np.array(answer["outputs"][0]["data"], np.float32).reshape(3, 4))
    whole = np.concatenate(parts, axis=1)
    assert np.allclose(whole[:, :COLUMNS], x @ weights, rtol=1e-4)
    assert not whole[:, COLUMNS:].any()


def test_a_changed_slice_fails_its_shard_with_the_tensor(tmp_path: Path) -> None:
    split_layer(tmp_path)
    path = tmp_path / "m" / "1" / "weights.bin"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # of the last column, which is the second shard's
    path.write_bytes(data)
    with WorkerProcess("--models", str(tmp_path), "--shard", "1") as worker:
        worker.listening()
        failed = worker.event("model.state", to="failed")
        assert f"weights.bin: tensor '{NAME}': its bytes have the hash" in failed["reason"]
        status, answer, _ = worker.ask("/v2/models/m/ready")
        assert status == 503
        assert "the file was changed" in answer["error"]
    with WorkerProcess("--models", str(tmp_path), "--shard", "0") as worker:
        worker.warm("m")


def test_what_is_amiss_with_one_models_files_is_its_trouble_alone(tmp_path: Path) -> None:
    for name in ("cut", "gone", "other"):
        split_layer(tmp_path / name)
        (tmp_path / name / "m").rename(tmp_path / f"{name}-m")
        (tmp_path / name).rmdir()
    split_layer(tmp_path)
    os.truncate(tmp_path / "cut-m" / "1" / "weights.bin", 100)
    (tmp_path / "gone-m" / "1" / "weights.bin").unlink()
    (tmp_path / "other-m" / "1" / "SHA256SUMS").write_text(f"{'0' * 64}  shard-1.onnx\n")
    with WorkerProcess("--models", str(tmp_path), "--shard", "1") as worker:
        worker.listening()
        worker.warm("m")
        for name, reason in (
            ("cut-m", "of weights.bin, which has 100: it was cut"),
            ("gone-m", "weights.bin: No such file"),
            ("other-m", "1/shard-1.onnx: its SHA-256 is"),
        ):
            assert reason in worker.event("model.state", to="failed", model=name)["reason"]
            status, answer, _ = worker.ask(f"/v2/models/{name}/ready")
            assert status == 503
            assert reason in answer["error"]


def deep_graph(rows: int, columns: int, layers: int, length: int) -> bytes:
    """Return layers that each multiply the input by a matrix of their own, and give the sum; ``length``: its bytes."""
    names = [f"h.{layer}.mlp.up_proj.weight" for layer in range(layers)]
    return onnx_writing.model(
        "deep",
        [
            *(onnx_writing.node("MatMul", ["x", name], f"y.{name}") for name in names),
            onnx_writing.node("Sum", [f"y.{name}" for name in names], "y"),
        ],
        [
            onnx_writing.external_tensor(name, onnx_writing.FLOAT, (rows, columns), "weights.bin", at * length, length)
            for at, name in enumerate(names)
        ],
        [onnx_writing.value_info("x", onnx_writing.FLOAT, ["n", rows])],
        [onnx_writing.value_info("y", onnx_writing.FLOAT, ["n", columns])],
    )


def peak_bytes(models: Path, name: str, inputs: int, *flags: str) -> int:
    """Return the most memory that a worker had which came up with a model, and answered."""
    with WorkerProcess("--models", str(models), *flags) as worker:
        worker.listening()
        worker.warm(name)
        body = {"inputs": [{"name": "x", "shape": [1, inputs], "datatype": "FP32", "data": [1] * inputs}]}
        assert worker.ask(f"/v2/models/{name}/infer", body)[0] == 200

        def has_its_last_session() -> bool:
            engine = worker.ask("/stats")[1]["versions"][f"{name}@1"]["engine"]
            return "two_phase" not in engine or engine["two_phase"]["phase"] == "second"

        until(has_its_last_session, "the session is made that stays")
        text = Path(f"/proc/{worker.process.pid}/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) << 10


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_the_peak_of_a_worker_with_one_shard_is_its_part_and_a_tenth_of_the_wholes(tmp_path: Path) -> None:
    size, layers, shards = 2048, 8, 4
    length = size * size * 4
    directory = tmp_path / "deep" / "deep" / "1"
    directory.mkdir(parents=True)
    with (directory / "weights.bin").open("wb") as file:
        for layer in range(layers):
            file.write(np.full(size * size, layer, np.float32).tobytes())  # 128 MiB in all
    (directory / "model.onnx").write_bytes(deep_graph(size, size, layers, length))
    assert main(["shard", str(directory), "--shards", str(shards)]) == 0
    (directory / "shard-1.onnx").write_bytes(deep_graph(size, size // shards, layers, length // shards))
    split_layer(tmp_path / "small")
    nothing = peak_bytes(tmp_path / "small", "m", ROWS)
    shard = peak_bytes(tmp_path / "deep", "deep", size, "--shard", "1") - nothing
    (directory / "model.yaml").write_text("engine: {two_phase: off}\n")  # the way in which a whole one takes least
    whole = peak_bytes(tmp_path / "deep", "deep", size) - nothing
    assert whole > layers * length
    assert shard <= (1 / shards + 0.10) * whole


@pytest.mark.parametrize(
    ("shard", "split", "text"),
    [("2", True, "--shard 2: {root}/m/1/manifest.json has shards 0 to 1"), ("0", False, "warmroute models shard")],
)
def test_a_shard_that_is_not_there_is_told_at_the_start(tmp_path: Path, shard: str, split: bool, text: str) -> None:
    split_layer(tmp_path)
    if not split:
        (tmp_path / "m" / "1" / "manifest.json").unlink()
    with WorkerProcess("--models", str(tmp_path), "--shard", shard) as worker:
        assert text.format(root=tmp_path) in worker.event("worker.failed")["error"]
        assert worker.wait() == 2


def ask(address: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address, timeout=5)
    try:
        body = {"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}
        connection.request("POST", "/v2/models/llm/infer", json.dumps(body))
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_a_sidecar_asks_a_group_once_every_shard_is_warm(tmp_path: Path) -> None:
    directory = tmp_path / "models" / "llm" / "3"
    write_safetensors(directory / "model.safetensors", arrays())
    assert main(["shard", str(directory), "--shards", "2"]) == 0
    with ExitStack() as stack:
        server = RedisServer(tmp_path)
        server.start()
        stack.callback(server.stop)
        flags = ["--models", str(tmp_path / "models"), "--state", server.url, "--namespace", "test", "--group", "g"]
        flags += ["--engine", "deterministic", "--generation", "5"]
        entry = stack.enter_context(WorkerProcess(*flags, "--shard", "0", "--id", "w0"))
        with WorkerProcess(*flags, "--shard", "1", "--id", "w1") as member:
            entry.warm("llm")
            member.warm("llm")
            settings = {
                "state": {"url": server.url, "namespace": "test"},
                "models": [{"name": "llm", "shards": {"mode": "tensor"}}],
            }
            sidecar = stack.enter_context(running(tmp_path, settings=settings, processes=1))
            assert ask(sidecar.listen)[0] == 200
            assert sidecar.open_to("llm") == {"w0"}
            hashes = {one["replicas"][0]["content_hash"] for one in sidecar.json("/endpoints")["endpoints"]}
            assert len(hashes) == 2
            member.terminate()
            until(lambda: ask(sidecar.listen)[0] == 503, "a member that drains takes its group out")
            until(lambda: b"shard 1" in ask(sidecar.listen)[1], "it is said which")
        stack.enter_context(WorkerProcess(*flags, "--shard", "1", "--id", "w1b")).warm("llm")
        until(lambda: ask(sidecar.listen)[0] == 200, "the group is complete again")
