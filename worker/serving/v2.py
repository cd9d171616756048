"""The Open Inference Protocol's REST surface, version 2, and ``GET /stats``, on aiohttp.

An answer carries ``warmroute-worker: ID``. Not ready is 503 with the protocol's error body and ``Retry-After``, on
``/v2/health/ready``, ``/v2/models/NAME/ready`` and ``infer`` alike.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from aiohttp import web

from worker import json_text
from worker.engines import told
from worker.governor import Governor
from worker.load_report import FORMAT_HEADER, TEXT, report_header
from worker.metrics import CONTENT_TYPE, Metrics
from worker.readiness import said_of
from worker.serving.answer import write
from worker.serving.description import Identity, configuration, metadata, statistics
from worker.serving.errors import RequestError
from worker.serving.http_server import Connection
from worker.serving.inference import WORKER_HEADER, Inference
from worker.serving.reading import reading
from worker.serving.repository_api import RepositoryApi
from worker.serving.request import HEADER_LENGTH, header_length, parse
from worker.serving.terms import DEADLINE_HEADER, QUICK_BYTES, TENANT_HEADER, of_head, of_json

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from worker.alarms import Alarms
    from worker.engines import LoadedModel
    from worker.execution import Executor
    from worker.execution.pool import Pool
    from worker.load_report import LoadProbe
    from worker.log import EventLog
    from worker.models import Models
    from worker.replica import HeldReplica
    from worker.repository import Repository
    from worker.serving.body import Bodies
    from worker.serving.fit import InferRequest

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


SERVER = "warmroute-worker"
"""What calls itself so in the header of that name."""


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
        metrics: Metrics | None = None,
        repository: Repository | None = None,
        inference: Inference | None = None,
        load: LoadProbe | None = None,
        alarms: Alarms | None = None,
        pool: Pool | None = None,
        governor: Governor | None = None,
        *,
        always_report: bool = False,
        tenant_header: str = TENANT_HEADER,
    ) -> None:
        """``clock``: monotonic seconds. ``tenant_header``: says whose turn it is.

        ``inference``: where another surface shares it.

        ``load``: what load reports are made of; without it there are none. ``always_report``: put one on every answer,
        not only where it was asked for.
        """
        self._identity = identity
        self._models = models
        self._executor = executor
        self._log = log
        self._bodies = bodies
        self._clock = clock
        self._repository = repository
        self._metrics = Metrics() if metrics is None else metrics
        self._started = clock()
        self.inference = Inference(models, executor, clock, log) if inference is None else inference
        self._load = load
        self._alarms = alarms
        self._pool = pool
        self._governor = Governor(()) if governor is None else governor
        self._tenant_header = tenant_header
        self._report_form = TEXT if always_report else None

    def application(self) -> web.Application:
        """Return the application that serves all this."""
        app = web.Application(middlewares=[self._sign], client_max_size=self._bodies.each_bytes)
        app.router.add_get("/v2", self.server_metadata)
        app.router.add_get("/v2/health/live", self.live)
        app.router.add_get("/v2/health/ready", self.ready)
        app.router.add_get("/v2/models/stats", self.statistics)
        for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            app.router.add_get(path, self.model_metadata)
            app.router.add_get(f"{path}/ready", self.model_ready)
            app.router.add_get(f"{path}/config", self.model_configuration)
            app.router.add_get(f"{path}/stats", self.model_statistics)
            app.router.add_post(f"{path}/infer", self.infer)
        app.router.add_get("/stats", self.stats)
        app.router.add_get("/metrics", self.metrics)
        if self._repository is not None:
            app.add_routes(RepositoryApi(self._repository, self._bodies, lambda: self.draining, self._log).routes())
        return app

    @property
    def draining(self) -> bool:
        """Whether the worker drains."""
        return self.inference.draining

    def drain(self) -> None:
        """Say not ready from now on, and close each connection after its next answer; still answer what arrives."""
        self.inference.draining = self.inference.unread.draining = True

    # --- what every answer goes through ---------------------------------------------------------------------------

    @web.middleware
    async def _sign(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await self._answered(request, handler)
        response.headers[WORKER_HEADER] = self._identity.id
        response.headers["Server"] = SERVER
        form = request.headers.get(FORMAT_HEADER, self._report_form)
        if form is not None and self._load is not None:
            report = report_header(self._load.read(), form)
            if report is not None:
                response.headers[report[0]] = report[1]
        if self.draining:
            response.force_close()
        if "Content-Encoding" in request.headers and not request.content.is_eof():
            response.force_close()
            if isinstance(request.protocol, Connection):
                request.protocol.discard()
        return response

    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except RequestError as error:
            answer = _error(str(error), error.status, error.retry_after_s)
            if error.overdue:
                answer.headers[DEADLINE_HEADER] = "caller"
            return answer
        except web.HTTPException as error:
            answer = _error(f"{request.method} {request.path[:256]}: {error.reason.lower()}", error.status)
            if "Allow" in error.headers:
                answer.headers["Allow"] = error.headers["Allow"]
            return answer
        except Exception as error:  # noqa: BLE001 - the caller gets the protocol's error, the log the cause
            self._log.error("request.failed", path=request.path[:256], error=f"{type(error).__name__}: {told(error)}")
            return _error("an error inside the worker", 500)

    def refuse(self, text: str, status: int) -> web.Response:
        """Return the answer to what could not be read as a request: its error, and who says so."""
        answer = _error(text, status)
        answer.headers[WORKER_HEADER] = self._identity.id
        answer.headers["Server"] = SERVER
        return answer

    # --- health and metadata --------------------------------------------------------------------------------------

    async def live(self, _: web.Request) -> web.Response:
        """``GET /v2/health/live``: this process answers."""
        return _json({"live": True})

    async def ready(self, _: web.Request) -> web.Response:
        """``GET /v2/health/ready``: all of the start has come up or failed, and the worker takes requests."""
        self.inference.check_ready()
        return _json({"ready": True})

    async def model_ready(self, request: web.Request) -> web.Response:
        """``GET /v2/models/NAME/ready``: this model is proven warm, and the worker is not draining."""
        name, version = request.match_info["model"], request.match_info.get("version")
        replica = self.inference.check_model_ready(name, version)
        said, why = {"name": replica.name, "ready": True}, said_of(self._models, replica, newer=version is None)
        return _json(said | {"reason": why} if why else said)

    async def server_metadata(self, _: web.Request) -> web.Response:
        """``GET /v2``: name, version and extensions."""
        return _json(self._identity.metadata())

    async def model_metadata(self, request: web.Request) -> web.Response:
        """``GET /v2/models/NAME``: versions, platform and tensors; 503 until the model is loaded and they are known."""
        replica = self._find(request)
        return _json(metadata(self._models, replica, self.inference.loaded(replica)))

    async def model_configuration(self, request: web.Request) -> web.Response:
        """``GET /v2/models/NAME/config``: the model's configuration in Triton's form; 503 until it is loaded."""
        replica = self._find(request)
        return _json(configuration(self._models, replica, self.inference.loaded(replica)))

    async def model_statistics(self, request: web.Request) -> web.Response:
        """``GET /v2/models/NAME/stats``: the statistics of one version, or of all of a model's."""
        replica = self._find(request)
        versions = [replica] if "version" in request.match_info else list(self._models.of(replica.name))
        return _json(statistics(versions))

    async def statistics(self, _: web.Request) -> web.Response:
        """``GET /v2/models/stats``: the statistics of every version of every model."""
        return _json(statistics(list(self._models)))

    async def stats(self, _: web.Request) -> web.Response:
        """``GET /stats``: what this process has done since it started, by model."""
        return _json(
            {
                "worker": self._identity.id,
                "epoch": self._identity.epoch,
                "uptime_s": round(self._clock() - self._started, 3),
                "draining": self.draining,
                "alarms": [] if self._alarms is None else self._alarms.raised,
                "in_flight": self._executor.in_flight,
                "queue_depth": self._executor.queue_depth,
                "threads": self._executor.facts() if self._pool is None else self._pool.facts(),
                "loads_held_back": {"count": self._governor.held_back, "last": self._governor.last},
                "models": {name: _stats(self._models.find(name)) for name in self._models.names},
                "versions": {f"{replica.name}@{replica.version}": _stats(replica) for replica in self._models},
            }
        )

    async def metrics(self, _: web.Request) -> web.Response:
        """``GET /metrics``: the same and more in Prometheus' text format."""
        return web.Response(body=(await self._metrics.text()).encode(), headers={"Content-Type": CONTENT_TYPE})

    # --- inference ------------------------------------------------------------------------------------------------

    async def infer(self, request: web.Request) -> web.Response:
        """``POST /v2/models/NAME/infer``: one inference, on tensors in JSON or in bytes."""
        name, version = request.match_info["model"], request.match_info.get("version")
        ticket = of_head(request.headers.get, self._clock(), self._tenant_header)
        with (
            self.inference.admit(name, version, ticket, request.headers.get) as admitted,
            self._bodies.hold(request) as body,
        ):
            with reading(self._log, request.path):
                json_bytes = header_length(request.headers.getall(HEADER_LENGTH, []))
                held = [await body.read(json_bytes)]
                text = held[0] if json_bytes is None else memoryview(held[0])[:json_bytes]
                parameters, quick = of_json(text), len(text) <= QUICK_BYTES
                del text

            def read(model: LoadedModel) -> InferRequest:
                with reading(self._log, request.path):
                    return parse(held.pop(), model, json_bytes)

            answer = await admitted.run(read, write, parameters, quick=quick)
        if answer.json_bytes is None:
            return web.Response(body=answer.body, content_type="application/json")
        response = web.Response(body=answer.body, content_type="application/octet-stream")
        response.headers[HEADER_LENGTH] = str(answer.json_bytes)
        return response

    def _find(self, request: web.Request) -> HeldReplica:
        return self.inference.find(request.match_info["model"], request.match_info.get("version"))


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
        "engine": replica.engine_facts(),
    }


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=json_text.encode(value), status=status, content_type="application/json")


def _error(message: str, status: int, retry_after_s: int | None = None) -> web.Response:
    answer = _json({"error": message}, status)
    if retry_after_s is not None:
        answer.headers["Retry-After"] = str(retry_after_s)
    return answer
