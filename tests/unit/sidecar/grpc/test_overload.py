"""What a gRPC listener does as its process runs out of something, and with a worker that it could not wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from unittest import mock

from sidecar.grpc.downstream import CallerConnection
from sidecar.grpc.health import CHECK, LIVE, READY
from sidecar.grpc.statuses import Status
from sidecar.http1.plane import TIGHT_LEAST
from sidecar.http2 import frames
from sidecar.telemetry.page import Scalar
from tests.support.fake_transport import FakeTransport
from tests.support.grpc_by_hand import GrpcBench, call_fields, grpc_bench, message

WHY = "980 of 1000 descriptors"


def ask(bench: GrpcBench, stream: int, path: bytes) -> tuple[bytes, int, bytes]:
    """Make a call; return the messages of the answer, its status and the status's text."""
    bench.caller.head(stream, call_fields(path))
    bench.caller.data(stream, message(), end=True)
    seen = [one for one in bench.caller.take() if one.stream == stream]
    fields = dict(field for one in seen for field in one.fields)
    body = b"".join(one.payload for one in seen if one.kind == frames.DATA)
    return body, int(fields[b"grpc-status"]), fields.get(b"grpc-message", b"")


def test_at_the_hard_mark_calls_are_refused_and_health_is_answered_here() -> None:
    """With a default model, too, which takes such methods otherwise. What runs goes on."""
    with grpc_bench() as bench:
        worker = bench.call()
        bench.plane.refuse(WHY)
        body, status, text = ask(bench, 3, b"/test.Echo/Unary")
        assert (body, status) == (b"", Status.UNAVAILABLE)
        assert WHY.encode() in text
        assert ask(bench, 5, LIVE)[:2] == (message(b"\x08\x01"), 0)
        assert ask(bench, 7, READY)[:2] == (message(), 0)
        assert ask(bench, 9, CHECK)[:2] == (message(b"\x08\x02"), 0)
        bench.answer(worker)
        assert bench.plane.words[bench.plane.page.scalar(Scalar.OVERLOAD_REFUSED_TOTAL)] == 1
        bench.plane.refuse("")
        bench.answer(bench.call(11), 3)
        bench.loop.run_soon()
        assert bench.outcomes == {"ok": 5, "overloaded": 1}


def test_at_the_soft_mark_idle_connections_are_let_go_on_both_sides() -> None:
    with grpc_bench() as bench:
        worker = bench.call()
        busy, idle = bench.caller, bench.connect()
        bench.plane.tighten(bench.now)
        bench.loop.run_soon()
        assert [len(peer.got(frames.GOAWAY)) for peer in (busy, idle)] == [0, 1]
        assert not worker.ended()
        bench.answer(worker)
        bench.plane.tighten(bench.now)
        bench.loop.run_soon()
        assert len(busy.got(frames.GOAWAY)) == 1
        assert worker.ended()


def test_at_the_soft_mark_connections_do_not_become_more_and_whoever_goes_makes_room() -> None:
    with grpc_bench() as bench:
        peers = [bench.connect() for _ in range(TIGHT_LEAST + 5)]
        bench.plane.tighten(bench.now)
        bench.loop.run_soon()
        assert bench.plane.most_connections == bench.plane.callers == len(peers) + 1
        peers[0].protocol.connection_lost(None)
        taken, refused = bench.connect(preface=False), bench.connect(preface=False)
        bench.loop.run_soon()
        assert [peer.got(frames.GOAWAY) == [] for peer in (taken, refused)] == [True, False]


def test_a_connection_that_stood_for_an_instant_too_long_is_forgotten() -> None:
    """Its time ran out in the turn of the loop in which it was made: uvloop then closes it and tells nobody."""

    async def too_late(new: Callable[[], asyncio.Protocol], host: str, port: int) -> None:
        new().connection_made(FakeTransport())
        raise TimeoutError

    with grpc_bench() as bench:
        bench.loop.create_connection = too_late  # type: ignore[assignment,method-assign]
        bench.caller.head(1, call_fields())
        bench.caller.data(1, message(), end=True)
        bench.loop.fire()
        assert bench.outcomes == {"connect_timeout": 1}
        pools = [endpoint.shell for endpoint in bench.cluster.endpoints.values() if endpoint.shell is not None]
        assert pools
        assert not any(pool.open_connections for pool in pools)


def test_a_connection_that_is_closed_already_keeps_nobody_from_being_written_to() -> None:
    """What one turn of the loop gathered is written together; uvloop raises where asyncio would drop."""
    with grpc_bench() as bench:
        other = bench.connect()
        gone = bench.connect()
        with mock.patch.object(gone.transport, "write", side_effect=RuntimeError("the handler is closed")):
            for peer in (gone, other):
                protocol = peer.protocol
                assert isinstance(protocol, CallerConnection)
                protocol.leave(bench.now, 1.0)
            bench.loop.run_soon()
        assert len(other.got(frames.GOAWAY)) == 1
