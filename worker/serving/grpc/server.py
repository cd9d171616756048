"""The gRPC server: ``inference.GRPCInferenceService``, health and load reports, over what HTTP serves too.

Errors have HTTP's texts. Where HTTP has ``Retry-After``, a status carries ``grpc-retry-pushback-ms``.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
from warmroute_pb.v1 import open_inference_pb2 as oip

from worker.engines import told
from worker.load_report import BINARY_REPORT_HEADER, FORMAT_HEADER, report_message
from worker.serving.description import configuration, metadata, statistics
from worker.serving.errors import RequestError
from worker.serving.grpc.connections import Connections
from worker.serving.grpc.health import Health
from worker.serving.grpc.load_reports import LoadReports
from worker.serving.grpc.messages import decode, decode_as, final, in_stream, read, request_parameters, write
from worker.serving.inference import WORKER_HEADER
from worker.serving.reading import reading
from worker.serving.terms import QUICK_BYTES, TENANT_HEADER, of_head

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractContextManager

    from google.protobuf.message import Message

    from worker.engines import LoadedModel
    from worker.load_report import LoadProbe
    from worker.log import EventLog
    from worker.models import Models
    from worker.serving.body import Bodies
    from worker.serving.description import Identity
    from worker.serving.fit import InferRequest
    from worker.serving.inference import Inference
    from worker.serving.repository_api import RepositoryApi

    Context: TypeAlias = Any  # grpc.aio.ServicerContext; the library has no types
    Call = Callable[[Any, Context], Awaitable[Message | bytes]]

SERVICE = "inference.GRPCInferenceService"
INFER = f"{SERVICE}/ModelInfer"
STREAM = f"{SERVICE}/ModelStreamInfer"
RECEIVE_S = 60.0
"""From a call's head to the end of its message."""
MAX_STREAMS = 64
"""Streams of inferences: each may be in the middle of a message, whose length the library does not tell."""
MAX_METADATA_BYTES = 64 << 10
MAX_CALLS_PER_CONNECTION = 1000
_STATUSES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}


class GrpcSurface:
    """One server on one address. Made and used on the event loop only."""

    def __init__(
        self,
        identity: Identity,
        models: Models,
        inference: Inference,
        bodies: Bodies,
        load: LoadProbe,
        repository: RepositoryApi,
        log: EventLog,
        *,
        always_report: bool = False,
        tenant_header: str = TENANT_HEADER,
    ) -> None:
        """``always_report``: put a load report on every answer, not only where it was asked for."""
        self._identity = identity
        self._models = models
        self._inference = inference
        self._bodies = bodies
        self._load = load
        self._repository = repository
        self._log = log
        self._always_report = always_report
        self._tenant_header = tenant_header.lower()
        self.address = ""
        """What to tell of it, ``grpc://HOST:PORT``, once it is bound."""
        self._ended = asyncio.Event()
        self._streams = 0
        self._connections = Connections()
        self._health = Health(inference)
        self._reports = LoadReports(load)
        self._server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", bodies.each_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", MAX_METADATA_BYTES),
                ("grpc.max_concurrent_streams", MAX_CALLS_PER_CONNECTION),
                ("grpc.so_reuseport", 0),
            )
        )
        self._server.add_generic_rpc_handlers((self._handler(), self._health.handler(), self._reports.handler()))

    def bind(self, host: str, port: int, advertise: str | None = None) -> None:
        """Take the address, without answering there yet. ``advertise``: what to tell of it, where that is another.

        Raises:
            OSError: it cannot be had.
        """
        name = f"[{host}]" if ":" in host else host
        try:
            taken = self._server.add_insecure_port(f"{name}:{port}")
        except RuntimeError:
            taken = 0
        if not taken:
            raise OSError("the address cannot be had")
        self._connections.of_port(taken)
        self.address = advertise or f"grpc://{name}:{taken}"

    async def start(self) -> None:
        """Answer from now on."""
        await self._server.start()

    def changed(self) -> None:
        """Readiness of the server or of a model may have changed: whoever watches is told."""
        self._health.changed()

    async def stop(self, grace_s: float) -> None:
        """Take no more calls, and finish those that run within ``grace_s``; streams that have no end are ended now."""
        self._ended.set()
        self._health.end()
        self._reports.end()
        await self._server.stop(grace_s)

    # --- what every call goes through -----------------------------------------------------------------------------

    def _handler(self) -> grpc.GenericRpcHandler:
        methods: dict[str, tuple[Call, type[Message]]] = {
            "ServerLive": (self._server_live, oip.ServerLiveRequest),
            "ServerReady": (self._server_ready, oip.ServerReadyRequest),
            "ModelReady": (self._model_ready, oip.ModelReadyRequest),
            "ServerMetadata": (self._server_metadata, oip.ServerMetadataRequest),
            "ModelMetadata": (self._model_metadata, oip.ModelMetadataRequest),
            "ModelConfig": (self._model_configuration, oip.ModelConfigRequest),
            "ModelStatistics": (self._model_statistics, oip.ModelStatisticsRequest),
            "RepositoryIndex": (self._repository_index, oip.RepositoryIndexRequest),
            "RepositoryModelLoad": (self._repository_load, oip.RepositoryModelLoadRequest),
            "RepositoryModelUnload": (self._repository_unload, oip.RepositoryModelUnloadRequest),
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(self._answered(call, kind), None, _bytes)
            for name, (call, kind) in methods.items()
        }
        # On the wire one message is a stream of one; only so a call can be refused before its message is received.
        handlers["ModelInfer"] = grpc.stream_unary_rpc_method_handler(self._answered(self._receive))
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._stream)
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _answered(
        self, call: Call, kind: type[Message] | None = None
    ) -> Callable[[Any, Context], Awaitable[Message | bytes]]:
        """Return ``call`` with its errors as statuses. ``kind``: that of its message, which is read here."""

        async def answer(request: Any, context: Context) -> Message | bytes:
            try:
                if kind is not None:
                    with reading(self._log, SERVICE):
                        request = decode_as(kind, request)
                reply = await call(request, context)
                if isinstance(reply, bytes):
                    self._until_taken(reply, context)
            except RequestError as error:
                await context.abort(_STATUSES[error.status], str(error), self._trailers(context, error.retry_after_s))
            except Exception as error:  # noqa: BLE001 - the caller gets a status, the log the cause
                name = getattr(call, "__name__", "").strip("_")
                self._log.error(
                    "request.failed", path=f"{SERVICE}/{name}", error=f"{type(error).__name__}: {told(error)}"
                )
                text = "an error inside the worker"
                await context.abort(grpc.StatusCode.INTERNAL, text, self._trailers(context, None))
            context.set_trailing_metadata(self._trailers(context, None))
            return reply

        return answer

    def _until_taken(self, reply: bytes, context: Context) -> None:
        """Count a call's answer until the library is through with it."""
        held = ExitStack()
        held.enter_context(self._sending(reply, context))
        context.add_done_callback(lambda *_: held.close())

    def _sending(self, reply: bytes, context: Context) -> AbstractContextManager[None]:
        """Count an answer for as long as the library has it: if nobody takes it, only its connection's end frees it."""
        peer = context.peer()
        return self._inference.unread.sending(
            len(reply), lambda: self._connections.taken(peer), lambda: self._connections.end(peer)
        )

    def _trailers(self, context: Context, retry_after_s: int | None) -> tuple[tuple[str, str | bytes], ...]:
        trailers: list[tuple[str, str | bytes]] = [(WORKER_HEADER, self._identity.id)]
        if retry_after_s is not None:
            trailers.append(("grpc-retry-pushback-ms", str(retry_after_s * 1000)))
        if self._always_report or _metadata(context, FORMAT_HEADER) is not None:
            trailers.append((BINARY_REPORT_HEADER, report_message(self._load.read())))
        return tuple(trailers)

    # --- the methods ----------------------------------------------------------------------------------------------

    async def _server_live(self, _: oip.ServerLiveRequest, __: Context) -> Message:
        return oip.ServerLiveResponse(live=True)

    async def _server_ready(self, _: oip.ServerReadyRequest, __: Context) -> Message:
        return oip.ServerReadyResponse(ready=_holds(self._inference.check_ready))

    async def _model_ready(self, request: oip.ModelReadyRequest, _: Context) -> Message:
        ready = _holds(lambda: self._inference.check_model_ready(request.name, request.version or None))
        return oip.ModelReadyResponse(ready=ready)

    async def _server_metadata(self, _: oip.ServerMetadataRequest, __: Context) -> Message:
        return oip.ServerMetadataResponse(**self._identity.metadata())

    async def _model_metadata(self, request: oip.ModelMetadataRequest, _: Context) -> Message:
        replica = self._inference.find(request.name, request.version or None)
        return oip.ModelMetadataResponse(**metadata(self._models, replica, self._inference.loaded(replica)))

    async def _model_configuration(self, request: oip.ModelConfigRequest, _: Context) -> Message:
        replica = self._inference.find(request.name, request.version or None)
        said = configuration(self._models, replica, self._inference.loaded(replica))
        return oip.ModelConfigResponse(config=oip.ModelConfig(**said))

    async def _model_statistics(self, request: oip.ModelStatisticsRequest, _: Context) -> Message:
        if not request.name:
            return oip.ModelStatisticsResponse(**statistics(list(self._models)))
        replica = self._inference.find(request.name, request.version or None)
        versions = [replica] if request.version else list(self._models.of(request.name))
        return oip.ModelStatisticsResponse(**statistics(versions))

    async def _repository_index(self, request: oip.RepositoryIndexRequest, _: Context) -> Message:
        return oip.RepositoryIndexResponse(models=await self._repository.rows(ready_only=request.ready))

    async def _repository_load(self, request: oip.RepositoryModelLoadRequest, _: Context) -> Message:
        await self._repository.load_model(request.model_name, request.parameters)
        return oip.RepositoryModelLoadResponse()

    async def _repository_unload(self, request: oip.RepositoryModelUnloadRequest, _: Context) -> Message:
        await self._repository.unload_model(request.model_name, request.parameters)
        return oip.RepositoryModelUnloadResponse()

    async def _receive(self, _: object, context: Context) -> bytes:
        """Receive a call's message in a place of the queue, as HTTP receives bodies: its room is bounded by that."""
        came = time.monotonic()
        with self._inference.receiving(lambda name: _metadata(context, name)):
            data = await _next(context, RECEIVE_S)
        if data is None:
            raise RequestError(f"the message did not come within {RECEIVE_S:g} s", 408)
        if data is grpc.aio.EOF:
            raise RequestError("inference request: the call has no message")
        with self._bodies.share(len(data)):
            return await self._run(await self._decoded(data), context, came)

    async def _run(self, message: oip.ModelInferRequest, context: Context, came: float) -> bytes:
        """Answer a request whose head was here at ``came``, in monotonic seconds: its time is counted from then."""

        def get(name: str) -> str | None:
            return _metadata(context, name)

        ticket = of_head(get, came, self._tenant_header)
        left_s = context.time_remaining()
        ends = None if left_s is None else time.monotonic() + left_s
        if ends is not None and (ticket.deadline is None or ends < ticket.deadline):
            ticket = replace(ticket, deadline=ends)
        name, version = message.model_name, message.model_version or None
        with self._inference.admit(name, version, ticket, get, came) as admitted:
            with reading(self._log, INFER):
                said, quick = request_parameters(message), message.ByteSize() <= QUICK_BYTES

            def checked(model: LoadedModel) -> InferRequest:
                with reading(self._log, INFER):
                    return read(message, model)

            return await admitted.run(checked, write, said, quick=quick)

    async def _decoded(self, data: bytes) -> oip.ModelInferRequest:
        with reading(self._log, INFER):
            return decode(data) if len(data) <= QUICK_BYTES else await asyncio.to_thread(decode, data)

    async def _stream(self, _: object, context: Context) -> None:
        """Answer one request of a stream after the other. What fails is an answer, too, and the stream goes on."""
        if self._streams >= MAX_STREAMS:
            text = f"{MAX_STREAMS} other streams are open"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text, self._trailers(context, None))
        context.set_trailing_metadata(self._trailers(context, None))
        self._streams += 1
        ending = asyncio.ensure_future(self._ended.wait())
        try:
            while True:
                data = await _next(context, None, ending)
                if data is None:
                    text, trailers = "the worker is draining", self._trailers(context, 1)
                    await context.abort(grpc.StatusCode.UNAVAILABLE, text, trailers)
                if data is grpc.aio.EOF:
                    context.set_trailing_metadata(self._trailers(context, None))  # what is said of load is of now
                    return
                reply = await self._one_of_many(data, context)
                with self._sending(reply, context):
                    await context.write(reply)
        finally:
            self._streams -= 1
            ending.cancel()

    async def _one_of_many(self, data: bytes, context: Context) -> bytes:
        asked, came = "", time.monotonic()  # a stream has one head, and many requests: their times begin here
        try:
            with self._bodies.share(len(data)):
                message = await self._decoded(data)
                asked = message.id
                return in_stream(await self._run(message, context, came))
        except RequestError as error:
            text = str(error)
        except Exception as error:  # noqa: BLE001 - as in a call of its own
            self._log.error("request.failed", path=STREAM, error=f"{type(error).__name__}: {told(error)}")
            text = "an error inside the worker"
        answer = final(oip.ModelInferResponse(id=asked))
        failed = oip.ModelStreamInferResponse(error_message=text, infer_response=answer)
        return failed.SerializeToString()


async def _next(context: Context, timeout_s: float | None, *ending: asyncio.Future[Any]) -> Any:
    """Return the next message of a call, or EOF; None where time is up or one of ``ending`` came before it."""
    reading = asyncio.ensure_future(context.read())
    try:
        await asyncio.wait({reading, *ending}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return reading.result() if reading.done() else None
    finally:
        reading.cancel()


def _holds(check: Callable[[], object]) -> bool:
    """Return whether ``check`` passes; what is unknown is an error all the same."""
    try:
        check()
    except RequestError as error:
        if error.status == 404:
            raise
        return False
    return True


def _metadata(context: Context, name: str) -> str | None:
    for key, value in context.invocation_metadata() or ():
        if key == name:
            return value if isinstance(value, str) else None
    return None


def _bytes(message: Message) -> bytes:
    return message.SerializeToString()
