"""Injected faults as gRPC's own client and server meet them: each strikes its call, and nothing else of the channel."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from tests.support.product import running
from tests.support.sidecars import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.product import Sidecar

pytestmark = [pytest.mark.beside, pytest.mark.timeout(60)]

MESSAGES = [b"one", b"two", b"three"]
TIMEOUT_S = 20.0


class Worker(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Gives back what it got on ``/w.W/Echo``; on ``/w.W/Count`` three messages."""

    def service(self, details: Any) -> Any:
        if details.method == "/w.W/Echo":
            return grpc.unary_unary_rpc_method_handler(lambda request, _: request)
        return grpc.unary_stream_rpc_method_handler(lambda _request, _: iter(MESSAGES))


@contextmanager
def sidecar_before(worker: Worker, directory: Path) -> Iterator[tuple[Sidecar, grpc.Channel]]:
    server = grpc.server(ThreadPoolExecutor(4), handlers=(worker,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    listener = {"address": "127.0.0.1:0", "protocol": "grpc", "trusted_networks": ["127.0.0.0/8"]}
    model = {"name": "m", "default": True, "endpoints": [f"grpc://127.0.0.1:{port}"]}
    settings = {"listeners": [listener], "faults": {"headers": "trusted"}, "models": [model]}
    try:
        with (
            running(directory, settings=settings, processes=1) as sidecar,
            grpc.insecure_channel(sidecar.listen) as channel,
        ):
            yield sidecar, channel
    finally:
        server.stop(0).wait(5)


def ended(call: Any, fault: str = "") -> tuple[list[bytes], grpc.StatusCode]:
    """Return what messages came of a call that asks for a fault, and its status."""
    got: list[bytes] = []
    metadata = [("warmroute-fault", fault)] if fault else []
    stream = call(b"x" * 100, metadata=metadata, timeout=TIMEOUT_S)
    with suppress(grpc.RpcError):
        got += stream
    return got, stream.code()


def test_each_kind_strikes_its_call_alone(tmp_path: Path) -> None:
    with sidecar_before(Worker(), tmp_path) as (sidecar, channel):
        count = channel.unary_stream("/w.W/Count")
        echo = channel.unary_stream("/w.W/Echo")  # read as a stream: what came of it is seen, too
        assert ended(count) == (MESSAGES, grpc.StatusCode.OK)
        lasting = count(b"", metadata=[("warmroute-fault", "slow_close; delay_ms=300000")])
        assert [next(lasting) for _ in MESSAGES] == MESSAGES
        unavailable = grpc.StatusCode.UNAVAILABLE
        for fault, came, status in (
            ("abort; grpc_status=8", [], grpc.StatusCode.RESOURCE_EXHAUSTED),
            ("reset", [], unavailable),
            ("reset; after_bytes=9", MESSAGES[:1], unavailable),
            ("reset; direction=request; after_bytes=10", [], unavailable),
            ("cut_stream; after_events=2", MESSAGES[:2], unavailable),
            ("truncate; after_bytes=6", MESSAGES[:2], unavailable),
            ("corrupt; every_bytes=100", [b"\x90ne", *MESSAGES[1:]], grpc.StatusCode.OK),
            ("slicing; piece_bytes=1", MESSAGES, grpc.StatusCode.OK),
            ("bandwidth; bytes_per_s=1000", MESSAGES, grpc.StatusCode.OK),
            ("delay; delay_ms=50; direction=response", MESSAGES, grpc.StatusCode.OK),
            ("first_byte; delay_ms=50", MESSAGES, grpc.StatusCode.OK),
            ("slow_close; delay_ms=50", MESSAGES, grpc.StatusCode.OK),
        ):
            assert (fault, *ended(count, fault)) == (fault, came, status)
        assert ended(echo, "corrupt; direction=request; every_bytes=100") == (
            [b"\x87" + b"x" * 99],
            grpc.StatusCode.OK,
        )
        assert ended(echo, "slicing; direction=request; piece_bytes=7") == ([b"x" * 100], grpc.StatusCode.OK)
        assert lasting.is_active()  # on the same connection all the while
        lasting.cancel()
        assert ended(count) == (MESSAGES, grpc.StatusCode.OK)
        assert sidecar.metric("warmroute_upstream_connections_total") == 1
        until(lambda: sidecar.metric("warmroute_requests_in_flight") == 0, "nothing in flight")
        until(lambda: sidecar.metric("warmroute_requests_total", outcome="fault") == 6, "six failed by faults")
        assert sidecar.metric("warmroute_requests_total", outcome="internal") == 0


def test_a_black_hole_ends_with_the_deadline(tmp_path: Path) -> None:
    with sidecar_before(Worker(), tmp_path) as (_, channel):
        echo = channel.unary_unary("/w.W/Echo")
        for direction in ("request", "response"):
            began = time.monotonic()
            with pytest.raises(grpc.RpcError) as error:
                echo(b"x", metadata=[("warmroute-fault", f"black_hole; direction={direction}")], timeout=0.3)
            assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert time.monotonic() - began >= 0.25
        assert echo(b"x", timeout=TIMEOUT_S) == b"x"
