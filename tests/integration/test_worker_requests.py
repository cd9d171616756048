"""The worker's surface over real sockets, in this process: every malformed request with its exact error."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.worker_surface import (
    LIMIT,
    SPECS,
    TOGETHER,
    Surface,
    begin,
    head,
    one,
    outputs,
    served,
    tensor,
    until,
    without,
)
from worker.engines import EngineError, InputError, TensorSpec
from worker.serving import body as bodies_of

F = "expected FP32 [-1, 2]"

MALFORMED: dict[str, tuple[Any, int, str]] = {
    "not JSON": (
        b"hello",
        400,
        "inference request: the body is not JSON: JSON is malformed: invalid character (byte 0)",
    ),
    "empty": (b"", 400, "inference request: the body is not JSON: Input data was truncated"),
    "NaN": (
        b'{"inputs": [{"name": "f", "shape": [1, 2], "datatype": "FP32", "data": [NaN, 1]}]}',
        400,
        "inference request: the body is not JSON: JSON is malformed: invalid character (byte 72)",
    ),
    "a list": ([1], 400, "inference request: Expected `object`, got `array`"),
    "nested too deep": (
        b'{"inputs": [{"name": "f", "data": ' + b"[" * 4000,
        400,
        "inference request: the body is nested too deep",
    ),
    "no inputs": ({"id": "a"}, 400, "inference request: 'inputs' is missing; the model takes 'f' FP32 [-1, 2]"),
    "inputs null": ({"inputs": None}, 400, "inference request: Expected `array`, got `null` - at `$.inputs`"),
    "too many inputs": ({"inputs": [{}] * 257}, 400, "inference request: 257 inputs, at most 256"),
    "missing tensor": ({"inputs": []}, 400, f"input 'f': missing; {F}"),
    "unknown tensor": (
        one(name="g"),
        400,
        "input 'g': the model has none of this name; it has 'f' FP32 [-1, 2]",
    ),
    "duplicate tensor": ({"inputs": [tensor(), tensor()]}, 400, "input 'f': there twice"),
    "no name": (without("name"), 400, "inference request: inputs[0]: 'name' is missing"),
    "no shape": (without("shape"), 400, f"input 'f': 'shape' is missing; {F}"),
    "no datatype": (without("datatype"), 400, f"input 'f': 'datatype' is missing; {F}"),
    "no data": (without("data"), 400, f"input 'f': 'data' is missing; {F}"),
    "wrong datatype": (one(datatype="INT32"), 400, f"input 'f': {F}, given INT32 [1, 2]"),
    "no datatype of the protocol": (one(datatype="FLOAT"), 400, f"input 'f': {F}, given FLOAT [1, 2]"),
    "wrong rank": (one(shape=(2,)), 400, f"input 'f': {F}, given FP32 [2]"),
    "wrong dimension": (one(shape=(1, 3)), 400, f"input 'f': {F}, given FP32 [1, 3]"),
    "negative dimension": (one(shape=(-1, 2)), 400, f"input 'f': shape [-1, 2] has a negative dimension; {F}"),
    "shape of text": (
        one(shape=("1", 2)),
        400,
        "inference request: Expected `int`, got `str` - at `$.inputs[0].shape[0]`",
    ),
    "huge shape": (
        one(shape=(10**18, 2)),
        400,
        "input 'f': shape [1000000000000000000, 2] takes 2000000000000000000 elements, 'data' has 2",
    ),
    "too little data": (one(data=[1]), 400, "input 'f': shape [1, 2] takes 2 elements, 'data' has 1"),
    "too much data": (one(data=[1, 2, 3]), 400, "input 'f': shape [1, 2] takes 2 elements, 'data' has 3"),
    "nested otherwise": (one(data=[[1], [2]]), 400, "input 'f': 'data' is nested as [2, 1], its shape is [1, 2]"),
    "ragged": (
        one(shape=(2, 2), data=[[1, 2], [3]]),
        400,
        "input 'f': 'data' is ragged, its shape is [2, 2]",
    ),
    "nested too far": (
        one(data=[[[1, 2]]]),
        400,
        "input 'f': 'data' is nested 3 deep, expected flat or nested 2 deep for shape [1, 2]",
    ),
    "text in numbers": (one(data=[1, "2"]), 400, "input 'f': data[1] is a string, FP32 takes numbers"),
    "null in numbers": (one(data=[None, 2]), 400, "input 'f': data[0] is null, FP32 takes numbers"),
    "boolean in numbers": (one(data=[[1, True]]), 400, "input 'f': data[0][1] is a boolean, FP32 takes numbers"),
    "number over the type": (
        one(data=[1, 1e39]),
        400,
        "input 'f': data[1] is 1e+39, FP32 takes -3.4028234663852886e+38 to 3.4028234663852886e+38",
    ),
    "data no array": (one(data={"a": 1}), 400, "input 'f': 'data' is an object, expected an array"),
    "data a number": (one(data=7), 400, "input 'f': 'data' is the number 7, expected an array"),
    "unknown output": (
        outputs({"name": "z"}),
        400,
        "output 'z': the model has none of this name; it has 'f_out' FP32 [-1, 2], 's_out' BYTES [-1]",
    ),
    "duplicate output": (outputs({"name": "f_out"}, {"name": "f_out"}), 400, "output 'f_out': there twice"),
    "output without name": (outputs({}), 400, "inference request: outputs[0]: 'name' is missing"),
    "classes no count": (
        outputs({"name": "f_out", "parameters": {"classification": 0}}),
        400,
        "output 'f_out': parameter 'classification' is 0, expected a count from 1 to 10000",
    ),
    "classes of text": (
        outputs({"name": "s_out", "parameters": {"classification": 1}}),
        400,
        "output 's_out': BYTES [-1] holds no scores to classify by",
    ),
    "parameter no scalar": (
        {**one(), "parameters": {"p": [1]}},
        400,
        "inference request: parameter 'p': expected a boolean, a number or a string",
    ),
    "id too long": ({**one(), "id": "x" * 1025}, 400, "inference request: 'id' has 1025 characters, at most 1024"),
    "body too large": (b" " * (LIMIT + 1), 413, "body of 4097 bytes is over the limit of 4096"),
}


@pytest.mark.parametrize(("body", "status", "error"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_requests(body: Any, status: int, error: str) -> None:
    async def check(surface: Surface) -> None:
        got, answer, headers = await surface.post(body)
        assert (got, answer) == (status, {"error": error})
        assert headers["Content-Type"] == "application/json"
        assert surface.model.ran == []

    served(check)


@pytest.mark.parametrize(
    ("name", "data", "error"),
    [
        ("i8", [1, 300], "data[1] is 300, INT8 takes -128 to 127"),
        ("i8", [-129], "data[0] is -129, INT8 takes -128 to 127"),
        ("i8", [1.5], "data[0] is the number 1.5, INT8 takes whole numbers"),
        ("i8", [[1]], None),
        ("u64", [-1], "data[0] is -1, UINT64 takes 0 to 18446744073709551615"),
        ("u64", [2**64], "data[0] is 18446744073709551616, UINT64 takes 0 to 18446744073709551615"),
        ("b", [True, 1], "data[1] is the number 1, BOOL takes true or false"),
        ("s", ["a", 1], "data[1] is the number 1, BYTES takes strings"),
        ("h", [70000], "data[0] is 70000, FP16 takes -65504.0 to 65504.0"),
        ("i8", [1, [2]], "data[1] is an array, INT8 takes whole numbers"),
    ],
)
def test_values_that_a_datatype_cannot_hold(name: str, data: Any, error: str | None) -> None:
    async def check(surface: Surface) -> None:
        body = one(name=name, shape=(len(data),), datatype=SPECS[name].datatype.value, data=data)
        status, answer, _ = await surface.post(body)
        wanted = error or "'data' is nested 2 deep, expected flat for shape [1]"
        assert (status, answer) == (400, {"error": f"input {name!r}: {wanted}"})

    served(check, (SPECS[name],))


@pytest.mark.parametrize(
    ("name", "shape", "data", "flat"),
    [
        ("f", (2, 2), [[1, 2.5], [3, 4]], [1.0, 2.5, 3.0, 4.0]),
        ("f", (2, 2), [1, 2.5, 3, 4], [1.0, 2.5, 3.0, 4.0]),
        ("f", (0, 2), [], []),
        ("i8", (3,), [-128, 0, 127], [-128, 0, 127]),
        ("u64", (1,), [2**64 - 1], [2**64 - 1]),
        ("b", (2,), [True, False], [True, False]),
        ("s", (2,), ["ä", ""], ["ä", ""]),
        ("h", (2,), [0.5, -65504], [0.5, -65504.0]),
        ("cube", (2, 1, 2), [[[1, 2]], [[3, 4]]], [1.0, 2.0, 3.0, 4.0]),
    ],
)
def test_tensors_come_back_as_they_went(name: str, shape: tuple[int, ...], data: Any, flat: list[Any]) -> None:
    async def check(surface: Surface) -> None:
        spec = SPECS[name]
        request = {"id": "r1", **one(name=name, shape=shape, datatype=spec.datatype.value, data=data)}
        request["outputs"] = [{"name": "o"}]
        status, answer, headers = await surface.post(request)
        assert status == 200
        assert answer == {
            "model_name": "m",
            "model_version": "3",
            "id": "r1",
            "outputs": [{"name": "o", "shape": list(shape), "datatype": spec.datatype.value, "data": flat}],
        }
        assert headers["warmroute-worker"] == "w1"

    spec = SPECS[name]
    served(check, (spec,), outputs=(TensorSpec("o", spec.datatype, spec.shape),))


def test_without_outputs_all_come_and_without_id_none() -> None:
    async def check(surface: Surface) -> None:
        status, answer, _ = await surface.post(one(), "/v2/models/m/versions/3/infer")
        assert status == 200
        assert [output["name"] for output in answer["outputs"]] == ["f_out", "s_out"]
        assert "id" not in answer

    served(check)


def test_classes_come_best_first_with_their_labels() -> None:
    async def check(surface: Surface) -> None:
        body = {
            **one(shape=(2, 2), data=[0.25, 0.75, 0.5, 0.5]),
            "outputs": [{"name": "f_out", "parameters": {"classification": 5}}],
        }
        _, answer, _ = await surface.post(body)
        assert answer["outputs"] == [
            {
                "name": "f_out",
                "shape": [2, 2],
                "datatype": "BYTES",
                "data": ["0.750000:1:dog", "0.250000:0:cat", "0.500000:0:cat", "0.500000:1:dog"],
            }
        ]

    served(check, labels=("cat", "dog"))


def test_parameters_reach_the_engine() -> None:
    async def check(surface: Surface) -> None:
        status, _, _ = await surface.post({**one(), "parameters": {"a": 1, "b": "x", "c": True, "d": 0.5}})
        assert status == 200
        assert surface.model.parameters[-1] == {"a": 1, "b": "x", "c": True, "d": 0.5}

    served(check)


def test_a_large_body_is_read_in_a_thread_and_answers_the_same() -> None:
    async def check(surface: Surface) -> None:
        status, answer, _ = await surface.post(json.dumps(one(shape=(300, 2), data=[1] * 600)).encode())
        assert (status, answer["outputs"][0]["shape"]) == (200, [300, 2])

    served(check)


@pytest.mark.parametrize(
    ("method", "path", "status", "error"),
    [
        ("POST", "/v2/models/x/infer", 404, "model 'x' is not served here; served: cold, m"),
        ("POST", "/v2/models/m/versions/4/infer", 404, "model 'm': version '4' is not served here; served: 3"),
        ("GET", "/v2/models/m/versions/4/ready", 404, "model 'm': version '4' is not served here; served: 3"),
        ("GET", "/v2/models/m/infer", 405, "GET /v2/models/m/infer: method not allowed"),
        ("GET", "/v3", 404, "GET /v3: not found"),
        ("GET", "/v2/models/x/stats", 404, "model 'x' is not served here; served: cold, m"),
        ("GET", "/v2/models/m/versions/4/stats", 404, "model 'm': version '4' is not served here; served: 3"),
        ("GET", "/v2/models/x/config", 404, "model 'x' is not served here; served: cold, m"),
        ("GET", "/v2/models/cold/config", 503, "model 'cold' is not ready: not loaded yet"),
        ("POST", "/v2/models/cold/infer", 503, "model 'cold' is not ready: not loaded yet"),
        ("GET", "/v2/models/cold/ready", 503, "model 'cold' is not ready: not loaded yet"),
        ("GET", "/v2/models/cold", 503, "model 'cold' is not ready: not loaded yet"),
        ("GET", "/v2/health/ready", 503, "model 'cold' is not ready: not loaded yet"),
    ],
)
def test_what_is_not_there_or_not_ready(method: str, path: str, status: int, error: str) -> None:
    async def check(surface: Surface) -> None:
        answer = await surface.session.request(method, surface.server.make_url(path), json=one())
        assert (answer.status, await answer.json()) == (status, {"error": error})
        assert answer.headers.get("Retry-After") == ("1" if status == 503 else None)
        assert answer.headers["warmroute-worker"] == "w1"

    served(check)


def test_requests_before_warm_are_counted_and_never_executed() -> None:
    async def check(surface: Surface) -> None:
        for _ in range(3):
            await surface.post(one(), "/v2/models/cold/infer")
        await surface.post(one())
        _, stats, _ = await surface.get("/stats")
        assert (stats["models"]["cold"]["before_warm"], stats["models"]["cold"]["executed"]) == (3, 0)
        assert (stats["models"]["m"]["before_warm"], stats["models"]["m"]["executed"]) == (0, 1)
        assert (stats["worker"], stats["epoch"], stats["draining"]) == ("w1", "e1", False)

    served(check)


def test_metadata() -> None:
    async def check(surface: Surface) -> None:
        assert (await surface.get("/v2"))[:2] == (
            200,
            {
                "name": "warmroute-worker",
                "version": "9",
                "extensions": [
                    "classification",
                    "binary_tensor_data",
                    "parameters",
                    "statistics",
                    "model_configuration",
                    "model_repository",
                ],
            },
        )
        assert (await surface.get("/v2/health/live"))[:2] == (200, {"live": True})
        assert (await surface.get("/v2/models/m/ready"))[:2] == (200, {"name": "m", "ready": True})
        assert (await surface.get("/v2/models/m"))[:2] == (
            200,
            {
                "name": "m",
                "versions": ["3"],
                "platform": "test",
                "inputs": [{"name": "f", "datatype": "FP32", "shape": [-1, 2]}],
                "outputs": [
                    {"name": "f_out", "datatype": "FP32", "shape": [-1, 2]},
                    {"name": "s_out", "datatype": "BYTES", "shape": [-1]},
                ],
            },
        )

    served(check)


NO_BUFFER = (
    "[ONNXRuntimeError] : 1 : FAIL : bfc_arena.cc:360 Failed to allocate memory for requested buffer of size 57600000"
)
"""As ONNX Runtime says it."""
OUT_OF_MEMORY = "out of memory; give the worker more, or have it serve or be asked less"


@pytest.mark.parametrize(
    ("failure", "status", "error"),
    [
        (EngineError("a bad graph"), 500, "model 'm': a bad graph"),
        (MemoryError(), 500, f"model 'm': {OUT_OF_MEMORY}"),
        (EngineError(NO_BUFFER), 500, f"model 'm': {OUT_OF_MEMORY}: {NO_BUFFER}"),
        (InputError("indices out of range"), 400, "model 'm': indices out of range"),
        (ZeroDivisionError("oops"), 500, "an error inside the worker"),
    ],
)
def test_a_failing_execution(failure: Exception, status: int, error: str) -> None:
    async def check(surface: Surface) -> None:
        surface.model.error = failure
        got, answer, _ = await surface.post(one())
        assert (got, answer) == (status, {"error": error})

    served(check)


def test_over_the_queue_is_503_with_retry_after() -> None:
    hold = threading.Event()

    async def check(surface: Surface) -> None:
        first = [asyncio.create_task(surface.post(one())) for _ in range(2)]
        await until(lambda: surface.executor.in_flight == 2)
        status, answer, headers = await surface.post(one())
        assert (status, answer["error"]) == (503, "the worker's queue is full (1 requests wait)")
        assert headers["Retry-After"] == "1"
        hold.set()
        assert [status for status, *_ in await asyncio.gather(*first)] == [200, 200]
        _, stats, _ = await surface.get("/stats")
        assert stats["models"]["m"]["rejected"] == 1

    served(check, hold=hold)


def test_a_place_is_taken_before_the_body_is_read() -> None:
    async def check(surface: Surface) -> None:
        slow = [await begin(surface, head(1000) + b"{") for _ in range(2)]
        await until(lambda: surface.executor.in_flight == 2)
        status, answer, headers = await surface.post(one())
        assert (status, answer["error"]) == (503, "the worker's queue is full (1 requests wait)")
        assert headers["Retry-After"] == "1"
        for _, writer in slow:
            writer.close()
        await until(lambda: surface.executor.in_flight == 0)
        assert (await surface.post(one()))[0] == 200
        assert surface.log.events("request.failed") == [], "a caller that leaves is no defect of the worker"

    served(check)


def test_all_bodies_together_have_a_limit() -> None:
    async def check(surface: Surface) -> None:
        slow = [await begin(surface, head(LIMIT) + b"{") for _ in range(3)]
        await until(lambda: surface.executor.in_flight == 3)
        status, answer, headers = await surface.post(one())
        assert (status, answer["error"]) == (503, f"the worker holds {TOGETHER} bytes of bodies, no room for more")
        assert headers["Retry-After"] == "1"
        slow[0][1].close()
        await until(lambda: surface.executor.in_flight == 2)
        assert (await surface.post(one()))[0] == 200
        for _, writer in slow[1:]:
            writer.close()

    served(check, queue=9)


def test_a_body_without_a_length_is_counted_as_it_comes() -> None:
    async def check(surface: Surface) -> None:
        async def chunks(text: bytes) -> AsyncIterator[bytes]:
            for start in range(0, len(text), 1000):
                yield text[start : start + 1000]

        url = surface.server.make_url("/v2/models/m/infer")
        answer = await surface.session.post(url, data=chunks(json.dumps(one()).encode()))
        assert answer.status == 200
        answer = await surface.session.post(url, data=chunks(b" " * (LIMIT + 1)))
        assert (answer.status, await answer.json()) == (413, {"error": f"body is over the limit of {LIMIT} bytes"})
        assert surface.bodies.held_bytes == 0

    served(check)


def test_a_caller_that_stops_in_the_middle_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies_of, "IDLE_S", 0.05)

    async def check(surface: Surface) -> None:
        reader, writer = await begin(surface, head(1000) + b"{")
        assert (await reader.readline()).split()[1] == b"408"
        writer.close()
        await until(lambda: surface.executor.in_flight == 0)
        assert surface.bodies.held_bytes == 0

    served(check)


def test_a_caller_that_leaves_ends_its_execution() -> None:
    async def check(surface: Surface) -> None:
        task = asyncio.create_task(surface.post(one()))
        await until(lambda: bool(surface.model.ran))
        task.cancel()
        await asyncio.wait({task})
        await until(lambda: surface.executor.in_flight == 0)
        assert surface.model.cancelled == 1
        _, stats, _ = await surface.get("/stats")
        assert stats["models"]["m"]["cancelled"] == 1

    served(check, hold=threading.Event())


def test_draining_is_not_ready_still_answers_and_closes_connections() -> None:
    async def check(surface: Surface) -> None:
        surface.serving.drain()
        status, _, headers = await surface.post(one())
        assert status == 200
        assert headers["Connection"] == "close"
        assert (await surface.get("/v2/health/ready"))[:2] == (503, {"error": "the worker is draining"})
        assert (await surface.get("/v2/models/m/ready"))[:2] == (503, {"error": "the worker is draining"})
        assert (await surface.get("/v2/health/live"))[0] == 200

    served(check)


def test_the_configuration_in_tritons_form() -> None:
    async def check(surface: Surface) -> None:
        for path in ("/v2/models/m/config", "/v2/models/m/versions/3/config"):
            assert (await surface.get(path))[:2] == (
                200,
                {
                    "name": "m",
                    "platform": "test",
                    "backend": "test",
                    "version_policy": {"specific": {"versions": [3]}},
                    "max_batch_size": 0,
                    "input": [{"name": "f", "data_type": "TYPE_FP32", "dims": [-1, 2]}],
                    "output": [
                        {"name": "f_out", "data_type": "TYPE_FP32", "dims": [-1, 2]},
                        {"name": "s_out", "data_type": "TYPE_STRING", "dims": [-1]},
                    ],
                },
            )

    served(check)


def test_statistics_of_one_model_and_of_all() -> None:
    async def check(surface: Surface) -> None:
        await surface.post(one())
        await surface.post(one(shape=(1, 3)))
        _, told, _ = await surface.get("/v2/models/m/versions/3/stats")
        (stats,) = told["model_stats"]
        assert (stats["name"], stats["version"]) == ("m", "3")
        assert (stats["inference_count"], stats["execution_count"]) == (1, 1)
        sums = stats["inference_stats"]
        assert {name: one["count"] for name, one in sums.items()} == {
            "success": 1,
            "fail": 1,
            "queue": 1,
            "compute_input": 1,
            "compute_infer": 1,
            "compute_output": 1,
        }
        parts = ("queue", "compute_input", "compute_infer", "compute_output")
        assert abs(sums["success"]["ns"] - sum(sums[part]["ns"] for part in parts)) <= len(parts)
        assert [row["batch_size"] for row in stats["batch_stats"]] == [1]
        assert (await surface.get("/v2/models/m/stats"))[1] == told
        _, every, _ = await surface.get("/v2/models/stats")
        assert [row["name"] for row in every["model_stats"]] == ["m", "cold"]

    served(check)
