"""Hands the files of loaded versions to peers: out of the page cache or shared memory, where loading has put them.

A server of its own, on an address of its own: whoever reaches it can read every model that is loaded. It runs in
threads, as many as peers may read at once; more are refused, and ask again or elsewhere.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
from warmroute_pb.v1 import model_files_pb2 as wire
from warmroute_pb.v1 import model_files_pb2_grpc as stubs

from router.model import State
from worker.loading import LoadError
from worker.loading.digests import BLOCK_BYTES
from worker.loading.reading import chunks
from worker.loading.settings import PeerListenError
from worker.loading.unpacking import plain_name
from worker.models import UnknownModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from worker.loading import Loaded
    from worker.log import EventLog
    from worker.models import Models

MESSAGE_BYTES = 1 << 20
LOOK_S = 5.0
"""How long the event loop may take to say what is loaded."""


class PeerServer:
    """See this module's text. ``address`` is where it listens, HOST:PORT."""

    def __init__(self, address: str, find: Callable[[str, str], Loaded | None], streams: int) -> None:
        """``find`` returns what is loaded of a model's version, from any thread. ``streams``: how many read at once.

        Raises:
            PeerListenError: nothing can listen there.
        """
        self._pool = ThreadPoolExecutor(streams, thread_name_prefix="peer")
        self._server = grpc.server(
            self._pool,
            maximum_concurrent_rpcs=streams,
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", 64 << 10),
                ("grpc.http2.min_ping_interval_without_data_ms", 5000),  # so that pings of peers are no offence
            ],
        )
        stubs.add_ModelFilesServicer_to_server(_Servicer(find), self._server)  # type: ignore[no-untyped-call]
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise PeerListenError(f"--peer-listen {address}: {error}") from error
        if port == 0:
            raise PeerListenError(f"--peer-listen {address}: cannot be bound")
        self.address = f"{address.rpartition(':')[0]}:{port}"
        self._server.start()

    def close(self) -> None:
        """End what is read, and let go of the address; waits until that is done."""
        self._server.stop(0).wait()
        self._pool.shutdown(wait=True)


class _Servicer(stubs.ModelFilesServicer):
    def __init__(self, find: Callable[[str, str], Loaded | None]) -> None:
        self._find = find

    def Describe(self, request: wire.DescribeRequest, context: Any) -> wire.DescribeResponse:  # noqa: N802 - gRPC's
        """Say what the files are."""
        loaded = self._loaded(request.model, request.version, context)
        answer = wire.DescribeResponse(content_hash=loaded.content_hash)
        for file in loaded.files:
            digest = loaded.digests[file.name]
            answer.files.add(name=plain_name(file.name), size_bytes=digest.size_bytes, blocks=digest.blocks)
        return answer

    def Read(self, request: wire.ReadRequest, context: Any) -> Iterator[wire.ReadResponse]:  # noqa: N802 - gRPC's
        """Read a part of a file."""
        loaded = self._loaded(request.model, request.version, context)
        if loaded.content_hash != request.content_hash:
            context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, f"{request.model}@{request.version} is another one by now"
            )
        file = next((file for file in loaded.files if plain_name(file.name) == request.file), None)
        if file is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"there is no file {request.file[:80]!r}")
            return
        size_bytes = loaded.digests[file.name].size_bytes
        if request.length > BLOCK_BYTES or request.offset + request.length > size_bytes:
            context.abort(
                grpc.StatusCode.OUT_OF_RANGE, f"at most {BLOCK_BYTES} bytes, within the {size_bytes} of the file"
            )
        buffer = memoryview(bytearray(MESSAGE_BYTES))
        try:
            for chunk in chunks(file, request.offset, request.length, buffer):
                yield wire.ReadResponse(data=bytes(chunk))
        except LoadError as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    def _loaded(self, model: str, version: str, context: Any) -> Loaded:
        loaded = self._find(model, version)
        if loaded is None or not loaded.files or not all(file.name in loaded.digests for file in loaded.files):
            context.abort(grpc.StatusCode.NOT_FOUND, f"{model[:128]}@{version[:32]} is not loaded here, or not hashed")
            raise AssertionError  # abort has raised
        return loaded


def serve_peers(address: str, streams: int, models: Models, log: EventLog) -> PeerServer:
    """Hand out to peers what is warm here; called on the event loop that the models are used on.

    Raises:
        PeerListenError: nothing can listen on ``address``.
    """
    loop = asyncio.get_running_loop()

    async def find(name: str, version: str) -> Loaded | None:
        try:
            replica = models.find(name, version)
        except UnknownModelError:
            return None
        return replica.loaded if replica.state is State.WARM else None

    def look(name: str, version: str) -> Loaded | None:
        return asyncio.run_coroutine_threadsafe(find(name, version), loop).result(LOOK_S)

    server = PeerServer(address, look, streams)
    log.info("peers.listening", address=server.address, streams=streams)
    return server
