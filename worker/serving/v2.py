"""The Open Inference Protocol's REST surface, version 2, and ``GET /stats``, on aiohttp.

An answer carries ``warmroute-worker: ID``. Not ready is 503 with the protocol's error body and ``Retry-After``, on
``/v2/health/ready``, ``/v2/models/NAME/ready`` and ``infer`` alike.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from router.model import State
from worker.engines import Cancellation, EngineError, GivenUpError, InputError
from worker.execution import QueueFullError
from worker.gate import GateClosedError
from worker.models import UnknownModelError
from worker.serving.classification import classify
from worker.serving.errors import RequestError
from worker.serving.request import NO_BINARY, parse
from worker.serving.tensors import encode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from worker.engines import TensorSpec
    from worker.execution import Executor
    from worker.log import EventLog
    from worker.models import Models
    from worker.replica import HeldReplica
    from worker.serving.body import Bodies
    from worker.serving.request import InferRequest

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

WORKER_HEADER = "warmroute-worker"
BACKGROUND_HEADER = "warmroute-background"
"""1 in requests that no caller waits for: warming up, keeping warm, mirrored ones."""
EXTENSIONS = ("classification",)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who answers."""

    id: str
    epoch: str
    version: str


class Serving:
    """Handlers over the replicas that one worker holds."""

    def __init__(
        self,
        identity: Identity,
        models: Models,
        executor: Executor,
        log: EventLog,
        bodies: Bodies,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clock``: monotonic seconds."""
        self._identity = identity
        self._models = models
        self._executor = executor
        self._log = log
        self._bodies = bodies
        self._clock = clock
        self._started = clock()
        self._draining = False
        self._last_active: float | None = None

    def application(self) -> web.Application:
        """Return the application that serves all this."""
        app = web.Application(middlewares=[self._sign], client_max_size=self._bodies.each_bytes)
        app.router.add_get("/v2", self.server_metadata)
        app.router.add_get("/v2/health/live", self.live)
        app.router.add_get("/v2/health/ready", self.ready)
        for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            app.router.add_get(path, self.model_metadata)
            app.router.add_get(f"{path}/ready", self.model_ready)
            app.router.add_post(f"{path}/infer", self.infer)
        app.router.add_get("/stats", self.stats)
        return app

    def drain(self) -> None:
        """Say not ready from now on, and close each connection after its next answer; still answer what arrives."""
        self._draining = True

    def idle_for_s(self) -> float | None:
        """Return for how many seconds no inference request was at work; None where there never was one."""
        if self._executor.in_flight:
            return 0.0
        return None if self._last_active is None else max(0.0, self._clock() - self._last_active)

    # --- what every answer goes through ---------------------------------------------------------------------------

    @web.middleware
    async def _sign(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await self._answered(request, handler)
        response.headers[WORKER_HEADER] = self._identity.id
        response.headers["Server"] = "warmroute-worker"
        if self._draining:
            response.force_close()
        return response

    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except RequestError as error:
            return _error(str(error), error.status, error.retry_after_s)
        except web.HTTPException as error:
            answer = _error(f"{request.method} {request.path[:256]}: {error.reason.lower()}", error.status)
            if "Allow" in error.headers:
                answer.headers["Allow"] = error.headers["Allow"]
            return answer
        except Exception as error:  # noqa: BLE001 - the caller gets the protocol's error, the log the cause
            self._log.error("request.failed", path=request.path[:256], error=f"{type(error).__name__}: {error}")
            return _error("an error inside the worker", 500)

    # --- health and metadata --------------------------------------------------------------------------------------

    async def live(self, _: web.Request) -> web.Response:
        """``GET /v2/health/live``: this process answers."""
        return _json({"live": True})

    async def ready(self, _: web.Request) -> web.Response:
        """``GET /v2/health/ready``: each model has a version that is proven warm, and the worker is not draining."""
        if self._draining:
            raise RequestError("the worker is draining", 503, 1)
        for name in self._models.names:
            _pass(self._models.find(name))
        return _json({"ready": True})

    async def model_ready(self, request: web.Request) -> web.Response:
        """``GET /v2/models/NAME/ready``: this model is proven warm, and the worker is not draining."""
        replica = self._find(request)
        if self._draining:
            raise RequestError("the worker is draining", 503, 1)
        _pass(replica)
        return _json({"name": replica.name, "ready": True})

    async def server_metadata(self, _: web.Request) -> web.Response:
        """``GET /v2``: name, version and extensions."""
        return _json({"name": "warmroute-worker", "version": self._identity.version, "extensions": EXTENSIONS})

    async def model_metadata(self, request: web.Request) -> web.Response:
        """``GET /v2/models/NAME``: versions, platform and tensors; 503 until the model is loaded and they are known."""
        replica = self._find(request)
        model = replica.model
        if model is None:
            _pass(replica)
            raise RequestError(f"model {replica.name!r} is not loaded", 503, 1)
        return _json(
            {
                "name": replica.name,
                "versions": [held.version for held in reversed(self._models.of(replica.name))],
                "platform": model.platform,
                "inputs": [_spec(spec) for spec in model.inputs],
                "outputs": [_spec(spec) for spec in model.outputs],
            }
        )

    async def stats(self, _: web.Request) -> web.Response:
        """``GET /stats``: what this process has done since it started, by model."""
        return _json(
            {
                "worker": self._identity.id,
                "epoch": self._identity.epoch,
                "uptime_s": round(self._clock() - self._started, 3),
                "draining": self._draining,
                "in_flight": self._executor.in_flight,
                "queue_depth": self._executor.queue_depth,
                "models": {name: _stats(self._models.find(name)) for name in self._models.names},
                "versions": {f"{replica.name}@{replica.version}": _stats(replica) for replica in self._models},
            }
        )

    # --- inference ------------------------------------------------------------------------------------------------

    async def infer(self, request: web.Request) -> web.Response:
        """``POST /v2/models/NAME/infer``: one inference on JSON tensors."""
        replica = self._find(request)
        self._last_active = self._clock()
        if "Inference-Header-Content-Length" in request.headers:
            raise RequestError(f"header Inference-Header-Content-Length: {NO_BINARY}")
        if not replica.gate.is_open and replica.state is not State.DRAINING:
            replica.counts.before_warm += 1
        _pass(replica)
        model = replica.model
        if model is None:
            raise RequestError(f"model {replica.name!r} is not loaded", 503, 1)
        try:
            background = request.headers.get(BACKGROUND_HEADER) == "1"
            with self._executor.place(background=background) as place, self._bodies.hold(request) as body:
                held = [await body.read()]
                answer = await place.run(lambda cancellation: _execute(replica, parse(held.pop(), model), cancellation))
        except QueueFullError as error:
            replica.counts.rejected += 1
            raise RequestError(str(error), 503, error.retry_after_s) from None
        except asyncio.CancelledError:
            replica.counts.cancelled += 1
            raise
        except GivenUpError:
            replica.counts.cancelled += 1
            raise RequestError(f"model {replica.name!r}: the worker stopped before this was done", 503, 1) from None
        except InputError as error:
            raise RequestError(f"model {replica.name!r}: {error}") from None
        except EngineError as error:
            replica.counts.failed += 1
            raise RequestError(f"model {replica.name!r}: {error}", 500) from None
        finally:
            self._last_active = self._clock()
        return web.Response(body=answer, content_type="application/json")

    def _find(self, request: web.Request) -> HeldReplica:
        name, version = request.match_info["model"], request.match_info.get("version")
        try:
            return self._models.find(name, version)
        except UnknownModelError as error:
            raise RequestError(str(error), 404) from None


def _execute(replica: HeldReplica, parsed: InferRequest, cancellation: Cancellation) -> bytes:
    """Run in a thread: execute and encode. What a request costs to read and to write, the loop does not pay."""
    names = [output.name for output in parsed.outputs]
    arrays = replica.execute(parsed.inputs, names, parsed.parameters, cancellation)
    answer: dict[str, Any] = {"model_name": replica.name, "model_version": replica.version}
    if parsed.id is not None:
        answer["id"] = parsed.id
    answer["outputs"] = [
        classify(output.name, array, output.classes, replica.files.labels)
        if output.classes
        else encode(output.name, array)
        for output, array in zip(parsed.outputs, arrays, strict=True)
    ]
    return msgspec.json.encode(answer)


def _pass(replica: HeldReplica) -> None:
    try:
        replica.gate.check()
    except GateClosedError as error:
        raise RequestError(str(error), 503, error.retry_after_s) from None


def _stats(replica: HeldReplica) -> dict[str, Any]:
    counts = replica.counts
    return {
        "version": replica.version,
        "state": replica.state.value,
        "warm_for_s": round(replica.warm_for_s(), 3),
        "executed": counts.executed,
        "failed": counts.failed,
        "cancelled": counts.cancelled,
        "rejected": counts.rejected,
        "before_warm": counts.before_warm,
        "engine": {} if replica.model is None else dict(replica.model.facts()),
    }


def _spec(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype.value, "shape": list(spec.shape)}


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def _error(message: str, status: int, retry_after_s: int | None = None) -> web.Response:
    answer = _json({"error": message}, status)
    if retry_after_s is not None:
        answer.headers["Retry-After"] = str(retry_after_s)
    return answer
