"""A version that another worker has loaded: over gRPC, out of that worker's memory (worker/loading/peer_server.py)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import grpc
from warmroute_pb.v1 import model_files_pb2 as wire
from warmroute_pb.v1 import model_files_pb2_grpc as stubs

from worker.loading.digests import BLOCK_BYTES, DIGEST_BYTES
from worker.loading.sources import RemoteFile, SourceError
from worker.paths import within

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DESCRIBE_S = 5.0
BLOCK_S = 120.0
PING_MS = 10_000
"""A peer that answers no ping for this long after one is gone."""
MAX_DESCRIPTION_BYTES = 64 << 20
MAX_FILES = 10_000
_AGAIN = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
    }
)


class PeerSource:
    """Asks peers in turn. Blocks come from whichever answers, as long as it has the same content as the first."""

    def __init__(self, peers: Sequence[str], model: str, version: str) -> None:
        """``peers``: HOST:PORT of each."""
        self._peers = tuple(peers)
        self._model = model
        self._version = version
        options = [
            ("grpc.max_receive_message_length", MAX_DESCRIPTION_BYTES),
            ("grpc.enable_http_proxy", 0),
            ("grpc.keepalive_time_ms", PING_MS),
            ("grpc.keepalive_timeout_ms", PING_MS),
        ]
        self._channels = {peer: grpc.insecure_channel(peer, options=options) for peer in self._peers}
        self._stubs = {
            peer: stubs.ModelFilesStub(channel)  # type: ignore[no-untyped-call]
            for peer, channel in self._channels.items()
        }
        self._content_hash = ""
        self._lock = threading.Lock()
        self._next = 0
        self.name = f"{model}@{version} of {', '.join(self._peers)}"

    def sums(self) -> bytes | None:
        """See :class:`worker.loading.sources.Source`: a peer says itself what there is."""
        return None

    def files(self, names: Sequence[str]) -> tuple[RemoteFile, ...]:
        """See :class:`worker.loading.sources.Source`."""
        said, busy = [], False
        for _ in self._peers:
            peer = self._peer()
            try:
                answer = self._stubs[peer].Describe(
                    wire.DescribeRequest(model=self._model, version=self._version), timeout=DESCRIBE_S
                )
            except grpc.RpcError as error:
                said.append(f"{peer}: {_text(error)}")
                busy = busy or error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                self._pass_over(peer)
                continue
            self._content_hash = answer.content_hash
            return tuple(_checked(peer, file, answer.content_hash) for file in answer.files)
        raise SourceError("; ".join(said), again=True, busy=busy)

    def read(self, file: RemoteFile, offset: int, length: int) -> Iterator[bytes]:
        """See :class:`worker.loading.sources.Source`."""
        peer = self._peer()
        request = wire.ReadRequest(
            model=self._model,
            version=self._version,
            content_hash=self._content_hash,
            file=file.name,
            offset=offset,
            length=length,
        )
        call = self._stubs[peer].Read(request, timeout=BLOCK_S)
        try:
            for message in call:
                yield message.data
        except grpc.RpcError as error:
            self._pass_over(peer)
            again = len(self._peers) > 1 or error.code() in _AGAIN
            busy = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            raise SourceError(f"{peer}: {_text(error)}", again=again, busy=busy) from error
        finally:
            call.cancel()  # does nothing where it has ended

    def close(self) -> None:
        """Let go of the connections."""
        for channel in self._channels.values():
            channel.close()

    def _peer(self) -> str:
        return self._peers[self._next % len(self._peers)]

    def _pass_over(self, peer: str) -> None:
        """Let the next one have its turn, unless another thread has done that."""
        with self._lock:
            if self._peer() == peer:
                self._next += 1


def _checked(peer: str, file: wire.DescribeResponse.File, content_hash: str) -> RemoteFile:
    blocks = -(-file.size_bytes // BLOCK_BYTES)
    if within(file.name) != file.name or len(file.blocks) != blocks * DIGEST_BYTES:
        raise SourceError(f"{peer}: describes {file.name[:80]!r} in a way that cannot be")
    return RemoteFile(file.name, file.size_bytes, content_hash, file.blocks)


def _text(error: grpc.RpcError) -> str:
    return f"{error.code().name}: {error.details()}"[:300]
