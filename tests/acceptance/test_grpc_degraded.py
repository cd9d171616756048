"""A worker dies under the public gRPC client: it is told what the worker said, then what is declared, then why not."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from warmroute_pb.v1 import open_inference_pb2 as wire

from tests.support.product import running
from tests.support.sidecars import until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.acceptance, pytest.mark.beside, pytest.mark.timeout(60)]

METHOD = "/inference.GRPCInferenceService/ModelInfer"


class Worker(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers ModelInfer with the request's id, metadata and trailers of its own."""

    def service(self, details: Any) -> Any:
        def answer(request: bytes, context: Any) -> bytes:
            asked = wire.ModelInferRequest.FromString(request)
            context.send_initial_metadata((("x-worker", "w"), ("x-raw-bin", b"\0\xff")))
            context.set_trailing_metadata((("x-end", "e"),))
            data: bytes = wire.ModelInferResponse(model_name="m", id=asked.id).SerializeToString()
            return data

        return grpc.unary_unary_rpc_method_handler(answer)


def fields(metadata: Any) -> dict[str, Any]:
    return {field.key: field.value for field in metadata}


def test_what_the_public_client_is_told_when_the_worker_is_gone(tmp_path: Path) -> None:
    server = grpc.server(ThreadPoolExecutor(4), handlers=(Worker(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    declared = {"model_name": "m", "outputs": [{"name": "y", "datatype": "INT64", "shape": ["1"]}]}
    settings: dict[str, Any] = {
        "listeners": [{"address": "127.0.0.1:0", "protocol": "grpc", "processes": 1}],
        "models": [
            {
                "name": "m",
                "endpoints": [f"grpc://127.0.0.1:{port}"],
                "cache": {},
                "static_answer": {"call": {"json": declared}},
            }
        ],
        "policies": {"ladder": {"hold_s": 60}},
    }
    with running(tmp_path, settings=settings, processes=1) as sidecar, grpc.insecure_channel(sidecar.listen) as channel:
        infer = channel.unary_unary(METHOD)
        stream = channel.stream_stream(METHOD.replace("ModelInfer", "ModelStreamInfer"))

        def ask(id_: str) -> tuple[bytes, Any]:
            request = wire.ModelInferRequest(model_name="m", id=id_)
            answer, call = infer.with_call(request.SerializeToString(), timeout=20)
            return answer, call

        good, call = ask("one")
        before = fields(call.initial_metadata())
        server.stop(0).wait(5)
        kept, call = ask("one")
        after = fields(call.initial_metadata())
        assert kept == good
        assert after.pop("warmroute-degraded") == "cache"
        assert after.pop("cache-status").startswith("warmroute; hit; ttl=")
        assert after.pop("age").isdigit()
        assert {**after, "x-request-id": ""} == {**before, "x-request-id": ""}
        assert fields(call.trailing_metadata()) == {"x-end": "e"}
        told, call = ask("two")
        assert fields(call.initial_metadata())["warmroute-degraded"] == "static"
        assert wire.ModelInferResponse.FromString(told).outputs[0].name == "y"
        began = time.perf_counter()
        with pytest.raises(grpc.RpcError) as caught:
            list(stream(iter([wire.ModelInferRequest(model_name="m").SerializeToString()]), timeout=20))
        took_s = time.perf_counter() - began
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert int(fields(caught.value.trailing_metadata())["grpc-retry-pushback-ms"]) >= 1
        assert took_s < 5  # nothing is waited for: its by-hand tests let no time pass at all
        until(lambda: sidecar.metric("warmroute_ladder_answers_total", model="m", step="cache") == 1, "counted")
        assert sidecar.metric("warmroute_ladder_answers_total", model="m", step="static") == 1
        assert sidecar.json("/healthz")["degraded"] == {"m": "cache"}
