"""xds.service.orca.v3.OpenRcaService: a stream of load reports, whether requests come or not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
from warmroute_pb.v1 import beside_pb2 as beside

from worker.load_report import report_message
from worker.serving.grpc.messages import received

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from worker.load_report import LoadProbe

SERVICE = "xds.service.orca.v3.OpenRcaService"
MAX_STREAMS = 1000
LEAST_S, MOST_S = 0.2, 3600.0
"""The interval that a caller asks for is kept within these; one that asks for none gets :data:`DEFAULT_S`."""
DEFAULT_S = 1.0


class LoadReports:
    """The service. Used on the event loop only."""

    def __init__(self, probe: LoadProbe) -> None:
        self._probe = probe
        self._end = asyncio.Event()
        self._streams = 0

    def end(self) -> None:
        """Let callers go."""
        self._end.set()

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a server registers."""
        return grpc.method_handlers_generic_handler(
            SERVICE, {"StreamCoreMetrics": grpc.unary_stream_rpc_method_handler(self._stream)}
        )

    async def _stream(self, data: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        request = await received(beside.OrcaLoadReportRequest, data, context)
        if self._streams >= MAX_STREAMS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_STREAMS} others are told already")
        self._streams += 1
        try:
            every_s = interval_s(request)
            while not self._end.is_set():
                yield report_message(self._probe.read())
                try:
                    async with asyncio.timeout(every_s):
                        await self._end.wait()
                except TimeoutError:
                    continue
        finally:
            self._streams -= 1


def interval_s(request: beside.OrcaLoadReportRequest) -> float:
    """Return every how many seconds a caller is told."""
    asked = request.report_interval.seconds + request.report_interval.nanos / 1e9
    return min(MOST_S, max(LEAST_S, asked)) if asked > 0 else DEFAULT_S
