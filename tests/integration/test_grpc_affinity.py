"""Prefix affinity as gRPC's own client and server meet it: conversations stay where they began, and overload nobody."""

from __future__ import annotations

import struct
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from math import ceil
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import grpc
import pytest
from warmroute_pb.v1 import open_inference_pb2 as wire

from tests.support.product import running
from tests.support.sidecars import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.product import Sidecar

pytestmark = [pytest.mark.beside, pytest.mark.timeout(60)]

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
WORKERS = 3
AT_ONCE = 12
TIMEOUT_S = 30.0


class Worker(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Says who answered; holds a call while ``free`` is not set."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.free = threading.Event()
        self.free.set()
        self.calls = 0
        self._lock = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(AT_ONCE), handlers=(self,))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def stop(self) -> None:
        self.free.set()
        self._server.stop(0).wait(5)

    def service(self, details: Any) -> Any:
        if details.method == INFER:
            return grpc.unary_unary_rpc_method_handler(lambda request, _: self._answer(request))
        return grpc.stream_stream_rpc_method_handler(lambda requests, _: map(self._answer, requests))

    def _answer(self, request: bytes) -> bytes:
        assert wire.ModelInferRequest.FromString(request).model_name == "m"
        with self._lock:
            self.calls += 1
        self.free.wait(TIMEOUT_S)
        return self.name.encode()


def asked(prompt: str, *, raw: bool) -> bytes:
    request = wire.ModelInferRequest(model_name="m", id="1")
    stream, text = request.inputs.add(name="stream", datatype="BOOL", shape=[1]), prompt.encode()
    tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    if raw:
        request.raw_input_contents.extend([b"\0", struct.pack("<I", len(text)) + text])
    else:
        stream.contents.bool_contents.append(False)
        tensor.contents.bytes_contents.append(text)
    data: bytes = request.SerializeToString()
    return data


def said(who: int, turns: int) -> str:
    """Return the prompt of a conversation's next request: all of it so far."""
    return f"{who:04} " * 300 + "".join(f"question {turn}, answer {turn}; " for turn in range(turns))


def results(sidecar: Sidecar) -> dict[str, float]:
    return {labels["result"]: value for labels, value in sidecar.samples("warmroute_affinity_total") if value}


def test_conversations_stay_and_nobody_is_overloaded(tmp_path: Path) -> None:
    with ExitStack() as stack:
        workers = {}
        for _ in range(WORKERS):
            worker = Worker("")
            stack.callback(worker.stop)
            worker.name = f"127.0.0.1:{worker.port}"
            workers[worker.name] = worker
        urls = [f"grpc://{name}" for name in workers]
        model = {
            "name": "m", "default": True, "endpoints": ["http://127.0.0.1:1", *urls], "affinity": {},
            "balancer": "least_request",
        }  # fmt: skip
        settings = {"listeners": [{"address": "127.0.0.1:0", "protocol": "grpc"}], "models": [model]}
        sidecar = stack.enter_context(running(tmp_path, settings=settings, processes=1))
        channel = stack.enter_context(grpc.insecure_channel(sidecar.listen))
        infer, stream = channel.unary_unary(INFER), channel.stream_stream(STREAM)

        homes: dict[int, str] = {}
        for turns in range(4):
            for who in range(6):
                data = asked(said(who, turns), raw=who % 2 == 0)
                streamed = who % 3 == 0
                (name,) = stream(iter([data]), timeout=TIMEOUT_S) if streamed else [infer(data, timeout=TIMEOUT_S)]
                assert name.decode() == homes.setdefault(who, name.decode())
        until(lambda: results(sidecar) == {"hit": 18, "unseen": 6}, "each went where it began")

        prompt = said(0, 0)
        where = f"/routes/explain?model=m&protocol=grpc&key={quote(prompt)}"
        found = until(
            lambda: sidecar.json(where)["draw"]["why"].startswith("it has seen") and sidecar.json(where), "told"
        )
        assert found["draw"]["winner"] == homes[0]
        assert {row["endpoint"] for row in found["rows"]} == set(workers)
        assert {row["endpoint"] for row in sidecar.json("/routes/explain?model=m")["rows"]} == {"127.0.0.1:1"}
        refused = sidecar.read("/routes/explain?model=m&protocol=grcp")
        assert refused[0] == 400
        assert b"protocol is 'grcp': must be http or grpc, or left out" in refused[1]

        before = {name: worker.calls for name, worker in workers.items()}
        for worker in workers.values():
            worker.free.clear()
        running_calls = [infer.future(asked(prompt, raw=True), timeout=TIMEOUT_S) for _ in range(AT_ONCE)]
        until(lambda: sum(one.calls for one in workers.values()) - sum(before.values()) == AT_ONCE, "all are held")
        for worker in workers.values():
            worker.free.set()
        answered = Counter(call.result().decode() for call in running_calls)
        assert max(answered.values()) <= ceil(1.25 * AT_ONCE / WORKERS)
        assert answered.total() == AT_ONCE
        until(lambda: results(sidecar).get("declined", 0) > 0, "those that saw it were at their bound")
