"""grpc.health.v1: the server as a whole (``""`` and ``inference.GRPCInferenceService``) and each model by its name.

``NAME`` or ``NAME@VERSION``; SERVING is what readiness over HTTP is.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
from warmroute_pb.v1 import beside_pb2 as beside

from worker.serving.errors import RequestError
from worker.serving.grpc.messages import received

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from worker.serving.inference import Inference

SERVICE = "grpc.health.v1.Health"
MAX_WATCHERS = 1000
WHOLE = frozenset({"", "inference.GRPCInferenceService"})
_SERVING = beside.HealthCheckResponse.SERVING
_NOT_SERVING = beside.HealthCheckResponse.NOT_SERVING
_UNKNOWN = beside.HealthCheckResponse.SERVICE_UNKNOWN


class Health:
    """The service. Used on the event loop only."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._changed = asyncio.Event()
        self._ended = False
        self._watchers = 0

    def changed(self) -> None:
        """Something may have become ready, or not ready any more: tell whoever watches."""
        self._changed.set()
        self._changed = asyncio.Event()

    def end(self) -> None:
        """Let watchers go."""
        self._ended = True
        self.changed()

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a server registers."""
        writes = beside.HealthCheckResponse.SerializeToString
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Check": grpc.unary_unary_rpc_method_handler(self._check, None, writes),
                "Watch": grpc.unary_stream_rpc_method_handler(self._watch, None, writes),
            },
        )

    def status(self, service: str) -> beside.HealthCheckResponse.ServingStatus:
        """Return the status of a service now."""
        try:
            if service in WHOLE:
                self._inference.check_ready()
            else:
                name, _, version = service.partition("@")
                self._inference.check_model_ready(name, version or None)
        except RequestError as error:
            return _UNKNOWN if error.status == 404 else _NOT_SERVING
        return _SERVING

    async def _check(self, data: bytes, context: grpc.aio.ServicerContext) -> beside.HealthCheckResponse:
        request = await received(beside.HealthCheckRequest, data, context)
        status = self.status(request.service)
        if status == _UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no such service or model: {request.service[:128]!r}")
        return beside.HealthCheckResponse(status=status)

    async def _watch(self, data: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[beside.HealthCheckResponse]:
        request = await received(beside.HealthCheckRequest, data, context)
        if self._watchers >= MAX_WATCHERS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_WATCHERS} others watch already")
        self._watchers += 1
        try:
            told = None
            while True:
                changed = self._changed
                status = self.status(request.service)
                if status != told:
                    told = status
                    yield beside.HealthCheckResponse(status=status)
                if self._ended:
                    return
                await changed.wait()
        finally:
            self._watchers -= 1
