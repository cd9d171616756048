"""Callers that cut their messages, or send too long ones, in front of gRPC's own asyncio server."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import hpack
import pytest

from sidecar.http2 import frames
from sidecar.http2.frames import HEAD, PREFACE, frame, headers_frames, settings_frame
from sidecar.http2.hpack import literal
from tests.support.grpc_by_hand import INFER, call_fields, infer, message
from tests.support.product import running
from tests.support.sidecars import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.beside, pytest.mark.timeout(60)]

CALLS = 60
WHOLE = message(infer(b"m") + b"\x82\x01\x7f" + b"z" * 127)


class Echo(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers ModelInfer with what was asked."""

    def service(self, _details: Any) -> Any:
        async def answer(request: bytes, _: Any) -> bytes:
            return request

        return grpc.unary_unary_rpc_method_handler(answer)


@contextmanager
def worker() -> Iterator[int]:
    """Run a worker on a thread of its own, and give its port."""
    ports: list[int] = []
    begun, over = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        server = grpc.aio.server(handlers=(Echo(),))
        ports.append(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        begun.set()
        await over.wait()
        await server.stop(0)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert begun.wait(20)
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(20)
        loop.close()


def statuses(address: str, *, data: bytes | None) -> list[int]:
    """Make calls that send so much and end (None: no DATA at all), and return the status of each."""
    host, _, port = address.rpartition(":")
    block = b"".join(literal(*field) for field in call_fields(INFER))
    asked = PREFACE + settings_frame({})
    for stream in range(1, 2 * CALLS, 2):
        asked += headers_frames(stream, block, end=data is None)
        if data is not None:
            asked += frame(frames.DATA, frames.END_STREAM, stream, data)
    decoder = hpack.Decoder()
    found: list[int] = []
    with socket.create_connection((host, int(port)), timeout=20) as link, link.makefile("rb") as came:
        link.sendall(asked)
        while len(found) < CALLS:
            high, low, kind, _, _ = HEAD.unpack(came.read(frames.HEAD_BYTES))
            payload = came.read(high << 8 | low)
            if kind == frames.HEADERS:
                found.append(int(dict(decoder.decode(payload, raw=True))[b"grpc-status"]))
    return found


def test_a_caller_that_cuts_its_messages_hurts_nobody_else(tmp_path: Path) -> None:
    with worker() as port:
        model = {"name": "m", "endpoints": [f"grpc://127.0.0.1:{port}"]}
        settings = {
            "listeners": [{"address": "127.0.0.1:0", "protocol": "grpc"}],
            "models": [model],
            "timeouts": {"response_head_s": 1},
        }
        with running(tmp_path, settings=settings, processes=1) as sidecar:
            for data in (WHOLE[:100], WHOLE[:3], None, b"", WHOLE + WHOLE[:9]):
                assert statuses(sidecar.listen, data=data) == [3] * CALLS
            with grpc.insecure_channel(sidecar.listen) as channel:
                ask = channel.unary_unary(INFER.decode())
                assert ask(WHOLE[5:], timeout=20) == WHOLE[5:]
                with pytest.raises(grpc.RpcError, match="larger than max"):  # than the worker's 4 MiB
                    ask(WHOLE[5:] + bytes(5_000_000), timeout=20)
                with pytest.raises(grpc.RpcError, match="exceeds hard limit"):  # its 16 KiB
                    ask(WHOLE[5:], timeout=20, metadata=[("x-long", "v" * 20_000)])
            asked = 5 * CALLS
            until(lambda: sidecar.metric("warmroute_requests_total", outcome="bad_request") == asked, "each is refused")
            assert sidecar.metric("warmroute_requests_total", outcome="upstream_4xx") == 2
            for blame in ("head_timeout", "busy"):
                assert sidecar.metric("warmroute_attempts_total", result=blame) == 0
            until(
                lambda: sidecar.metric("warmroute_attempts_in_flight") == 0,
                "the gauge, a sample, shows that none is left",
            )
