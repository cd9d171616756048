"""The model repository API of a real worker, and what a sidecar does with it."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import redis

from router.model import State
from router.wire import Keys, decode_fields
from tests.support.models import product_body, put_product
from tests.support.redis_server import RedisServer
from tests.support.sidecar_process import sidecar_process
from tests.support.sidecars import until
from tests.support.worker_parts import shipped_model
from tests.support.worker_process import WorkerProcess, echo_body

DETERMINISTIC = ("--engine", "deterministic")


def put(root: Path, name: str, version: str = "1") -> Path:
    directory = root / name / version
    directory.mkdir(parents=True)
    return directory


def row(name: str, version: str, state: str, reason: str = "") -> dict[str, str]:
    return {"name": name, "version": version, "state": state, "reason": reason}


def test_models_are_loaded_and_unloaded_by_request(tmp_path: Path) -> None:
    for name in "ab":
        put(tmp_path, name)
    flags = ("--models", str(tmp_path), "--model-control", "explicit", "--load-model", "a")
    with WorkerProcess(*DETERMINISTIC, *flags) as worker:
        worker.listening()
        worker.warm("a")
        assert worker.ask("/v2/repository/index", {})[:2] == (
            200,
            [row("a", "1", "READY"), row("b", "1", "UNAVAILABLE", "unloaded")],
        )
        assert worker.ask("/v2/health/ready")[0] == 200, "what nobody asked for keeps nobody from being ready"
        assert "model_repository" in worker.ask("/v2")[1]["extensions"]
        cold = "model 'b' is not ready: it is not loaded; POST /v2/repository/models/b/load loads it"
        for path, body in (("infer", echo_body()), ("ready", None)):
            assert worker.ask(f"/v2/models/b/{path}", body)[:2] == (503, {"error": cold})
        assert worker.ask("/v2/repository/models/b/load", {})[:2] == (200, {})
        assert worker.ask("/v2/models/b/infer", echo_body())[0] == 200
        assert worker.ask("/v2/repository/models/a/unload", {"parameters": {"unload_dependents": True}})[:2] == (
            200,
            {},
        )
        assert worker.ask("/v2/repository/index", {"ready": True})[:2] == (200, [row("b", "1", "READY")])
        assert worker.event("model.unloaded", model="a")["reason"] == "unloaded"
        for path, body, status, error in (
            ("models/x/load", {}, 404, "model 'x' is not in the repository"),
            ("models/x/unload", {}, 404, "model 'x' is not in the repository"),
            (
                "models/b/load",
                {"parameters": {"config": "{}"}},
                400,
                (
                    "parameter 'config': a configuration sent with a load is not supported; "
                    "write it to the version's model.yaml and load again"
                ),
            ),
            (
                "models/b/load",
                {"parameters": {"file:1/model.onnx": "AA=="}},
                400,
                (
                    "parameter 'file:1/model.onnx': files sent with a load are not supported; "
                    "put them into the repository and load again"
                ),
            ),
            (
                "models/b/load",
                {"parameters": {"x": 1}},
                400,
                "parameter 'x': unknown; a load has no parameters here",
            ),
            (
                "models/b/unload",
                {"parameters": {"x": 1}},
                400,
                "parameter 'x': unknown; known: unload_dependents",
            ),
            (
                "index",
                {"ready": "yes"},
                400,
                "/v2/repository/index: Expected `bool`, got `str` - at `$.ready`",
            ),
        ):
            assert worker.ask(f"/v2/repository/{path}", body)[:2] == (status, {"error": error})


def test_a_request_for_a_bad_model_takes_no_other_model_of_its_worker_away(tmp_path: Path) -> None:
    put(tmp_path, "good")
    (put(tmp_path, "bad") / "model.yaml").write_text("engine: {inputs: 7}")
    (tmp_path / "bad" / "model.yaml").write_text("lazy: true")
    with WorkerProcess(*DETERMINISTIC, "--models", str(tmp_path)) as worker:
        worker.listening()
        worker.warm("good")
        assert worker.ask("/v2/models/bad/infer", echo_body())[0] == 503
        assert worker.ask("/v2/health/ready")[:2] == (200, {"ready": True})
        worker.event("model.state", model="bad", to="failed")
        assert worker.ask("/v2/models/bad/ready")[0] == 503
        assert worker.ask("/v2/health/ready")[:2] == (200, {"ready": True})


def test_strict_readiness_wants_every_model_of_the_start(tmp_path: Path) -> None:
    put(tmp_path, "good")
    directory = put(tmp_path, "bad")
    (directory / "model.yaml").write_text("engine: {inputs: 7}")
    flags = ("--models", str(tmp_path), "--model-control", "explicit", "--load-model", "*", "--strict-readiness")
    with WorkerProcess(*DETERMINISTIC, *flags) as worker:
        worker.listening()
        worker.warm("good")
        status, answer, _ = worker.ask("/v2/health/ready")
        assert (status, answer["error"].startswith("model 'bad' is not ready: loading failed: ")) == (503, True)
        (directory / "model.yaml").unlink()
        assert worker.ask("/v2/repository/models/bad/load", {})[0] == 200
        assert worker.ask("/v2/health/ready")[:2] == (200, {"ready": True})


def test_a_newer_version_that_fails_is_named_where_the_older_one_is_ready(tmp_path: Path) -> None:
    put(tmp_path, "a")
    flags = ("--models", str(tmp_path), "--model-control", "explicit", "--load-model", "a")
    with WorkerProcess(*DETERMINISTIC, *flags) as worker:
        worker.listening()
        worker.warm("a")
        (put(tmp_path, "a", "2") / "model.yaml").write_text("engine: {inputs: 7}")
        status, answer, _ = worker.ask("/v2/repository/models/a/load", {})
        assert status == 500
        why = answer["error"].removeprefix("model 'a' was not loaded: version 2: ")
        said = {"name": "a", "ready": True, "reason": f"version 2 does not serve: {why}"}
        assert worker.ask("/v2/models/a/ready")[:2] == (200, said)
        assert worker.ask("/v2/models/a/versions/1/ready")[:2] == (200, {"name": "a", "ready": True})
        assert row("a", "2", "UNAVAILABLE", why) in worker.ask("/v2/repository/index", {})[1]


def test_a_version_that_serves_old_content_says_so_where_it_is_ready(tmp_path: Path) -> None:
    directory = put(tmp_path, "a")
    flags = ("--models", str(tmp_path), "--model-control", "explicit", "--load-model", "a")
    with WorkerProcess(*DETERMINISTIC, *flags) as worker:
        worker.listening()
        worker.warm("a")
        assert worker.ask("/v2/models/a/ready")[:2] == (200, {"name": "a", "ready": True})
        (directory / "model.yaml").write_text("engine: {inputs: 7}\nmax_requests: 1")
        error = f"{directory}/model.yaml: engine: Expected `array`, got `int` - at `$.inputs`"
        status, answer, _ = worker.ask("/v2/repository/models/a/load", {})
        old = f"the new content was not taken over: {error}"
        assert (status, answer) == (500, {"error": f"model 'a' was not loaded: version 1: {old}"})
        assert worker.ask("/v2/models/a/ready")[:2] == (200, {"name": "a", "ready": True, "reason": old})
        assert worker.ask("/v2/models/a/infer", echo_body())[0] == 200
        (directory / "model.yaml").write_text("max_requests: 1")
        assert worker.ask("/v2/repository/models/a/load", {})[0] == 200
        assert worker.ask("/v2/models/a/ready")[1] == {"name": "a", "ready": True}
        with ThreadPoolExecutor(1) as pool:
            slow = pool.submit(worker.ask, "/v2/models/a/infer", echo_body(service_ms=1500))
            until(lambda: worker.ask("/stats")[1]["in_flight"] == 1, "the slow one")
            status, answer, headers = worker.ask("/v2/models/a/infer", echo_body())
            assert (status, answer["error"], headers["Retry-After"]) == (
                503,
                "model 'a' version 1: at its limit of 1 requests at once",
                "1",
            )
            assert slow.result()[0] == 200
        assert worker.ask("/stats")[1]["models"]["a"]["rejected"] == 1


def test_without_explicit_control_the_repository_is_only_told_of(tmp_path: Path) -> None:
    put(tmp_path, "a")
    with WorkerProcess(*DETERMINISTIC, "--models", str(tmp_path)) as worker:
        worker.listening()
        worker.warm("a")
        assert worker.ask("/v2/repository/index", {})[1] == [row("a", "1", "READY")]
        refusal = "model 'a': loading and unloading by request is off; start the worker with --model-control explicit"
        for change in ("load", "unload"):
            assert worker.ask(f"/v2/repository/models/{change and 'a'}/{change}", {})[:2] == (400, {"error": refusal})
        assert worker.ask("/v2/models/a/infer", echo_body())[0] == 200


def test_an_idle_model_is_unloaded_and_the_next_request_has_it_loaded(tmp_path: Path) -> None:
    put(tmp_path, "a")
    with WorkerProcess(*DETERMINISTIC, "--models", str(tmp_path), "--lazy", "--idle-unload-s", "0.3") as worker:
        worker.listening()
        assert worker.ask("/v2/health/ready")[0] == 200
        status, answer, headers = worker.ask("/v2/models/a/infer", echo_body())
        assert (status, headers["Retry-After"]) == (503, "1")
        assert answer == {"error": "model 'a' is not ready: it is being loaded"}
        worker.warm("a")
        assert worker.ask("/v2/models/a/infer", echo_body())[0] == 200
        assert worker.event("model.unloaded", model="a")["reason"] == "idle"
        assert worker.ask("/v2/repository/index", {})[1] == [
            row("a", "1", "UNAVAILABLE", "it was idle for 0.3 s; the next request has it loaded")
        ]
        assert worker.ask("/v2/repository/models/a/load", {})[0] == 200, "a request would do the same"
        assert worker.ask("/v2/models/a/infer", echo_body())[0] == 200


def test_a_changed_file_is_taken_over_without_a_failed_request(tmp_path: Path) -> None:
    shipped_model("mul_1", tmp_path / "models")
    place = tmp_path / "models" / "mul_1" / "1" / "model.onnx"
    doubled = tmp_path / "other.onnx"
    # The model holds its factors as raw data, 1 to 6 as little-endian floats: 2 for the first one.
    doubled.write_bytes(place.read_bytes().replace(b"\x00\x00\x80\x3f", b"\x00\x00\x00\x40", 1))
    body = {"inputs": [{"name": "X", "shape": [3, 2], "datatype": "FP32", "data": [1, 1, 1, 1, 1, 1]}]}
    answers: Counter[tuple[int, float]] = Counter()
    stop = threading.Event()

    def call(worker: WorkerProcess) -> None:
        while not stop.is_set():
            status, answer, _ = worker.ask("/v2/models/mul_1/infer", body)
            answers[(status, answer["outputs"][0]["data"][0] if status == 200 else 0)] += 1

    flags = ("--models", str(tmp_path / "models"), "--model-control", "poll", "--poll-s", "0.1")
    with WorkerProcess(*flags) as worker, ThreadPoolExecutor(2) as pool:
        worker.listening()
        worker.warm("mul_1")
        callers = [pool.submit(call, worker) for _ in range(2)]
        until(lambda: answers[(200, 1)] > 5, "answers of the old content")
        doubled.rename(place)
        until(lambda: answers[(200, 2)] > 5, "answers of the new content")
        stop.set()
        for caller in callers:
            caller.result(20)
        assert set(answers) == {(200, 1), (200, 2)}
        assert worker.event("model.swapped")["model"] == "mul_1"
        shutil.rmtree(tmp_path / "models" / "mul_1")
        until(lambda: worker.ask("/v2/models/mul_1")[0] == 404, "the model's end")


def infer(listen: str, body: bytes) -> int:
    connection = http.client.HTTPConnection(listen, timeout=20)
    try:
        connection.request("POST", "/v2/models/m/infer", body)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def test_a_sidecar_has_a_lazy_model_loaded_by_our_own_worker(tmp_path: Path, server: RedisServer) -> None:
    put(tmp_path / "models", "m")
    flags = ("--models", str(tmp_path / "models"), "--state", server.url, "--namespace", "t", "--id", "w1")
    client = redis.Redis.from_url(server.url, decode_responses=True)

    def state() -> State | None:
        fields: Any = client.hgetall(Keys("t").endpoint("w1"))
        return decode_fields("w1", fields).replicas[0].state if fields else None

    with WorkerProcess(*DETERMINISTIC, *flags, "--model-control", "explicit", "--load-s", "0.3") as worker:
        worker.listening()
        until(lambda: state() is State.COLD, "the record")
        settings = {
            "state": {"url": server.url, "namespace": "t"},
            "models": [{"name": "m", "on_no_candidate": "lazy"}],
        }
        with sidecar_process(tmp_path, settings) as running:
            body = b'{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1]}]}'
            with ThreadPoolExecutor(8) as pool:
                assert list(pool.map(lambda _: infer(running.listen, body), range(8))) == [200] * 8
            running.process.await_event("model.loaded", model="m")
        worker.warm("m")
        loads = [event for event in worker.events if event["event"] == "model.state" and event["to"] == "loading"]
        assert len(loads) == 1
        until(lambda: state() is State.WARM, "the record")
        assert worker.ask("/stats")[1]["models"]["m"]["before_warm"] == 0
    client.close()


def test_a_new_version_takes_over_behind_a_sidecar_without_a_lost_request(tmp_path: Path, server: RedisServer) -> None:
    models = tmp_path / "models"
    put_product(models / "m" / "1", 1.0, 256)
    body = json.dumps(product_body(256)).encode()
    answers: Counter[tuple[int, str]] = Counter()
    stop = threading.Event()

    def call(listen: str) -> None:
        connection = http.client.HTTPConnection(listen, timeout=20)
        while not stop.wait(0.005):
            connection.request("POST", "/v2/models/m/infer", body)
            response = connection.getresponse()
            said = json.loads(response.read())
            answers[(response.status, said.get("model_version") or said["error"])] += 1
        connection.close()

    state = ("--state", server.url, "--namespace", "t")
    flags = ("--models", str(models), "--model-control", "poll", "--poll-s", "0.1", *state)
    settings = {
        "state": {"url": server.url, "namespace": "t"},
        "models": [{"name": "m", "versions": {"serve": "latest"}}],
    }
    with WorkerProcess(*flags, "--id", "w1") as first, WorkerProcess(*flags, "--id", "w2") as second:
        for worker in (first, second):
            worker.listening()
            worker.warm("m")
        with sidecar_process(tmp_path, settings) as running, ThreadPoolExecutor(3) as pool:
            callers = [pool.submit(call, running.listen) for _ in range(3)]
            until(lambda: answers[(200, "1")] > 20, "answers of version 1")
            put_product(models / "m" / ".2", 2.0, 256)
            (models / "m" / ".2").rename(models / "m" / "2")
            until(lambda: answers[(200, "2")] > 20, "answers of version 2")
            for id_ in ("w1", "w2"):
                running.process.await_event("endpoint.model", endpoint=id_, told="model-unloaded", version="1")
            until(lambda: answers[(200, "2")] > 60, "answers after version 1 has gone")
            stop.set()
            for caller in callers:
                caller.result(20)
    assert set(answers) == {(200, "1"), (200, "2")}
