"""Drives a worker with tritonclient, over HTTP and gRPC: ``python triton.py HOST:PORT GRPC_HOST:PORT``.

Runs in an environment of its own (requirements/clients.lock), so it imports nothing of ours. Prints the name of each
check that held; the first that does not ends it.
"""

from __future__ import annotations

import asyncio
import queue
import sys
from typing import Any

import ml_dtypes
import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

VALUES: dict[str, Any] = {
    "FP32": np.array([[1.5, -2.0]], dtype=np.float32),
    "FP16": np.array([[0.5, 1.0]], dtype=np.float16),
    "BF16": np.array([[1.0, -3.0]], dtype=ml_dtypes.bfloat16),
    "INT8": np.array([[-128, 127]], dtype=np.int8),
    "UINT64": np.array([[0, 2**64 - 1]], dtype=np.uint64),
    "BOOL": np.array([[True, False]], dtype=np.bool_),
    "BYTES": np.array([[b"\xff\x00", "ä".encode()]], dtype=np.object_),
}
"""What the model ``all`` takes: an input of each datatype, by its name, which it gives back as OUTPUT0 and so on."""


def held(name: str) -> None:
    print(name, flush=True)


def inputs(library: Any, **how: Any) -> list[Any]:
    given = []
    for name, value in VALUES.items():
        tensor = library.InferInput(name, list(value.shape), name)
        tensor.set_data_from_numpy(value, **how)
        given.append(tensor)
    return given


def check_outputs(result: Any) -> None:
    for number, (name, value) in enumerate(VALUES.items()):
        got = result.as_numpy(f"OUTPUT{number}")
        assert got is not None, name
        assert got.shape == value.shape, name
        assert (got == value).all(), (name, got)


def check_server(client: Any, kind: str, **plain: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("all")
    assert client.is_model_ready("all", "1")
    held(f"{kind} readiness")
    said = client.get_server_metadata(**plain)
    assert said["name"] == "warmroute-worker"
    assert "binary_tensor_data" in said["extensions"]
    metadata = client.get_model_metadata("all", **plain)
    assert [one["name"] for one in metadata["inputs"]] == list(VALUES)
    config = client.get_model_config("all", **plain)
    config = config.get("config", config)
    assert [one["data_type"] for one in config["input"]][-1] == "TYPE_STRING"
    held(f"{kind} metadata and configuration")


def check_rest(client: Any, kind: str, **plain: Any) -> None:
    statistics = client.get_inference_statistics("all", **plain)["model_stats"]
    assert int(statistics[0]["inference_count"]) > 0
    assert int(statistics[0]["inference_stats"]["compute_infer"]["ns"]) > 0
    held(f"{kind} statistics")
    client.unload_model("other")
    assert not client.is_model_ready("other")
    client.load_model("other")
    assert client.is_model_ready("other")
    index = client.get_model_repository_index(**plain)
    rows = index["models"] if isinstance(index, dict) else index
    assert {row["name"]: row["state"] for row in rows} == {"all": "READY", "other": "READY"}
    held(f"{kind} repository")


def check_refusal(library: Any, client: Any, kind: str, status: str) -> None:
    tensor = library.InferInput("FP32", [1, 2], "FP32")
    tensor.set_data_from_numpy(VALUES["FP32"])
    refused: InferenceServerException | None = None
    try:
        client.infer("nobody", [tensor])
    except InferenceServerException as error:
        refused = error
    assert refused is not None, "a model that is not there answered"
    assert refused.status() == status, refused.status()
    assert "model 'nobody' is not served here" in refused.message()
    held(f"{kind} refusal")


def check_classes(library: Any, client: Any, kind: str) -> None:
    wanted = library.InferRequestedOutput("OUTPUT0", class_count=1)
    result = client.infer("all", inputs(library), outputs=[wanted])
    assert result.as_numpy("OUTPUT0").tolist() == [[b"1.500000:0"]]
    held(f"{kind} classification")


def check_http(address: str) -> None:
    library = tritonclient.http
    with library.InferenceServerClient(address) as client:
        check_server(client, "http")
        check_outputs(client.infer("all", inputs(library), request_id="7"))
        held("http binary")
        given = [tensor for tensor in inputs(library) if tensor.datatype() not in ("FP16", "BF16", "BYTES")]
        for tensor in given:
            tensor.set_data_from_numpy(VALUES[tensor.name()], binary_data=False)
        for name in ("FP16", "BF16", "BYTES"):
            tensor = library.InferInput(name, [1, 2], name)
            tensor.set_data_from_numpy(VALUES[name])
            given.append(tensor)
        wanted = [
            library.InferRequestedOutput(f"OUTPUT{number}", binary_data=name in ("FP16", "BF16", "BYTES"))
            for number, name in enumerate(VALUES)
        ]
        check_outputs(client.infer("all", given, outputs=wanted))
        held("http JSON and binary mixed")
        for how in ("gzip", "deflate"):
            result = client.infer(
                "all", inputs(library), request_compression_algorithm=how, response_compression_algorithm=how
            )
            check_outputs(result)
        held("http compressed")
        check_outputs(client.async_infer("all", inputs(library)).get_result())
        held("http async_infer")
        check_classes(library, client, "http")
        check_refusal(library, client, "http", "404")
        check_rest(client, "http")


def check_grpc(address: str) -> None:
    library = tritonclient.grpc
    with library.InferenceServerClient(address) as client:
        check_server(client, "grpc", as_json=True)
        result = client.infer("all", inputs(library), request_id="7")
        check_outputs(result)
        assert result.get_response().id == "7"
        held("grpc infer")
        for how in ("gzip", "deflate"):
            check_outputs(client.infer("all", inputs(library), compression_algorithm=how))
        held("grpc compressed")
        check_stream(client)
        check_classes(library, client, "grpc")
        check_refusal(library, client, "grpc", "StatusCode.NOT_FOUND")
        check_rest(client, "grpc", as_json=True)


def check_stream(client: Any) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    client.async_stream_infer("all", inputs(tritonclient.grpc), request_id="1")
    client.async_stream_infer("nobody", inputs(tritonclient.grpc), request_id="2")
    client.async_stream_infer("all", inputs(tritonclient.grpc), request_id="3", enable_empty_final_response=True)
    for failed in (False, True, False):
        result, error = answers.get(timeout=10)
        assert (error is not None) is failed, error
        if not failed:
            check_outputs(result)
            assert result.get_response().parameters["triton_final_response"].bool_param
    assert answers.empty(), "a model of one answer has no empty one"
    client.stop_stream()
    assert answers.empty()
    held("grpc stream")


async def check_asyncio(http: str, grpc: str) -> None:
    async with tritonclient.http.aio.InferenceServerClient(http) as client:
        assert await client.is_server_ready()
        check_outputs(await client.infer("all", inputs(tritonclient.http)))
        held("http asyncio")
    async with tritonclient.grpc.aio.InferenceServerClient(grpc) as client:
        assert await client.is_server_ready()
        check_outputs(await client.infer("all", inputs(tritonclient.grpc)))
        held("grpc asyncio")


if __name__ == "__main__":
    check_http(sys.argv[1])
    check_grpc(sys.argv[2])
    asyncio.run(check_asyncio(*sys.argv[1:3]))
