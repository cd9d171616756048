"""The worker's HTTP surface over real sockets, in the test's own process, over a model that echoes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import ClientResponse, ClientSession
from aiohttp.test_utils import TestServer

from tests.support.worker_parts import EchoingModel, EmptyLoader, FixedEngine, ReadableLog
from worker.datatypes import Datatype
from worker.engines import TensorSpec
from worker.execution import Executor
from worker.models import Models
from worker.replica import HeldReplica
from worker.serving.body import Bodies
from worker.serving.description import Identity
from worker.serving.http_server import Runner
from worker.serving.inference import Inference
from worker.serving.unread import Unread
from worker.serving.v2 import Serving
from worker.store import ModelFiles

SPECS = {
    "f": TensorSpec("f", Datatype.FP32, (-1, 2)),
    "i8": TensorSpec("i8", Datatype.INT8, (-1,)),
    "u64": TensorSpec("u64", Datatype.UINT64, (-1,)),
    "b": TensorSpec("b", Datatype.BOOL, (-1,)),
    "s": TensorSpec("s", Datatype.BYTES, (-1,)),
    "h": TensorSpec("h", Datatype.FP16, (-1,)),
    "cube": TensorSpec("cube", Datatype.FP64, (2, 1, -1)),
}
LIMIT = 4096
TOGETHER = 3 * LIMIT
F_OUT = TensorSpec("f_out", Datatype.FP32, (-1, 2))
S_OUT = TensorSpec("s_out", Datatype.BYTES, (-1,))


class Surface:
    """A serving worker with one warm model ``m`` of the given tensors and one cold model ``cold``."""

    def __init__(self, server: TestServer, session: ClientSession, parts: dict[str, Any]) -> None:
        self.server = server
        self.session = session
        self.model: EchoingModel = parts["model"]
        self.serving: Serving = parts["serving"]
        self.executor: Executor = parts["executor"]
        self.bodies: Bodies = parts["bodies"]
        self.log: ReadableLog = parts["log"]
        self.unread: Unread = parts["unread"]

    async def post(self, body: Any, path: str = "/v2/models/m/infer", **headers: str) -> tuple[int, Any, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = await self.session.post(self.server.make_url(path), data=data, headers=headers)
        return answer.status, await answer.json(), answer.headers

    async def send(self, body: bytes, path: str = "/v2/models/m/infer", **headers: str) -> tuple[int, bytes, Any]:
        """Send a body with those headers, ``_`` for ``-`` in their names; returns status, body and headers."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await self.session.post(self.server.make_url(path), data=body, headers=named)
        return answer.status, await answer.read(), answer.headers

    async def get(self, path: str) -> tuple[int, Any, ClientResponse]:
        answer = await self.session.get(self.server.make_url(path))
        return answer.status, await answer.json(), answer


class _Server(TestServer):
    """One that runs as the worker's process does."""

    def __init__(self, serving: Serving) -> None:
        super().__init__(serving.application(), host="127.0.0.1")
        self._serving = serving

    async def _make_runner(self, **settings: Any) -> Runner:
        return Runner(self.app, self._serving.refuse, self._serving.inference.unread, **settings)


def served(
    check: Callable[[Surface], Awaitable[None]],
    specs: tuple[TensorSpec, ...] = (SPECS["f"],),
    threads: int = 1,
    queue: int = 1,
    labels: tuple[str, ...] = (),
    limit: int = LIMIT,
    unread: Unread | None = None,
    **model: Any,
) -> None:
    """Run ``check`` against a surface; ends it afterwards. ``limit``: of a body, in bytes."""

    async def scenario() -> None:
        log = ReadableLog()
        echo = EchoingModel(inputs=specs, outputs=model.pop("outputs", (F_OUT, S_OUT)), **model)
        warm = HeldReplica(
            ModelFiles("m", "3", labels=labels), FixedEngine(echo), EmptyLoader(), log, lambda: 0.0, unnoticed
        )
        cold = HeldReplica(ModelFiles("cold", "1"), FixedEngine(echo), EmptyLoader(), log, lambda: 0.0, unnoticed)
        cold.start()
        hold, echo.hold = echo.hold, None
        await warm.bring_up()
        echo.hold = hold
        echo.ran.clear()
        executor = Executor(threads, queue)
        bodies = Bodies(limit, 3 * limit)
        models = Models((warm, cold))
        inference = Inference(models, executor, log=log, unread=unread)
        serving = Serving(Identity("w1", "e1", lambda: "9"), models, executor, log, bodies, inference=inference)
        server = _Server(serving)
        await server.start_server()
        try:
            async with ClientSession() as session:
                parts = {"model": echo, "serving": serving, "executor": executor, "bodies": bodies, "log": log}
                parts["unread"] = inference.unread
                await asyncio.wait_for(check(Surface(server, session, parts)), 30)
        finally:
            executor.close()
            await server.close()

    asyncio.run(scenario())


def unnoticed() -> None:
    """Nobody reports here."""


async def until(holds: Callable[[], bool]) -> None:
    """Wait for something that another thread or connection brings about; the scenario's own limit bounds it."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


def tensor(name: str = "f", shape: Any = (1, 2), datatype: str = "FP32", **rest: Any) -> dict[str, Any]:
    return {"name": name, "shape": list(shape), "datatype": datatype, **({"data": [1, 2]} | rest)}


def one(**changes: Any) -> dict[str, Any]:
    return {"inputs": [tensor(**changes)]}


def without(field: str) -> dict[str, Any]:
    return {"inputs": [{name: value for name, value in tensor().items() if name != field}]}


def outputs(*wanted: Any) -> dict[str, Any]:
    return {**one(), "outputs": list(wanted)}


def head(length: int) -> bytes:
    return f"POST /v2/models/m/infer HTTP/1.1\r\nHost: w\r\nContent-Length: {length}\r\n\r\n".encode()


async def begin(surface: Surface, sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send the beginning of a request, and leave it at that."""
    assert surface.server.port is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", surface.server.port)
    writer.write(sent)
    return reader, writer
