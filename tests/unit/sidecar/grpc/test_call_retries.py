"""What is tried again of calls that failed, frame by frame: where, how often, and what is told where nobody is left."""

from __future__ import annotations

from unittest import mock

import pytest

from router.model import EndpointGone, GoneReason
from sidecar.http1.forwarding import ListenerRules
from sidecar.http1.recognise import Recogniser
from sidecar.http2 import frames
from sidecar.http2.frames import WINDOW, Code
from sidecar.settings import Recognise
from tests.support.fake_transport import FakeTransport
from tests.support.grpc_by_hand import call_fields, grpc_bench, message, status


def test_a_refused_stream_is_tried_on_another_worker() -> None:
    with grpc_bench() as bench:
        first = bench.call(1, b"ask")
        first.reset(1, Code.REFUSED_STREAM)
        bench.now += 0.01
        bench.loop.fire()
        assert bench.worker is not first
        head, data = [one for one in bench.worker.take() if one.stream == 1]
        assert (head.value(b"warmroute-attempt"), data.payload) == (b"2", message(b"ask"))
        bench.answer(bench.worker)
        assert (bench.results, bench.outcomes) == ({"refused": 1, "success": 1}, {"ok": 1})


@pytest.mark.parametrize("idempotent", [False, True])
def test_what_may_have_begun_is_tried_again_where_it_may_be_done_twice(idempotent: bool) -> None:
    with grpc_bench(idempotent=idempotent) as bench:
        bench.call().reset(1, Code.INTERNAL_ERROR)
        bench.now += 0.01
        bench.loop.fire()
        if idempotent:
            bench.answer(bench.worker)
            assert bench.outcomes == {"ok": 1}
        else:
            assert status(bench.caller) == (13, "upstream_protocol")


UNREADY: list[tuple[bytes, bytes]] = [
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b"grpc-status", b"14"),
    (b"grpc-message", b"Request for unknown model: %27m%27 version 1 is not at ready state"),
]


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_model_that_is_not_ready_there_is_asked_for_elsewhere(idempotent: bool) -> None:
    with grpc_bench(idempotent=idempotent) as bench:
        bench.plane.recogniser = Recogniser(Recognise())
        first = bench.call()
        first.head(1, UNREADY, end=True)
        bench.now += 0.01
        bench.loop.fire()
        if idempotent:
            assert bench.worker is not first
            bench.answer(bench.worker)
            assert (bench.results, bench.outcomes) == ({"not_ready": 1, "success": 1}, {"ok": 1})
        else:
            assert bench.caller.only(frames.HEADERS).value(b"grpc-status") == b"14"
            assert (bench.results, bench.outcomes) == ({"not_ready": 1}, {"upstream_busy": 1})
        assert bench.shared == []


def test_a_connect_that_is_refused_is_tried_on_another_worker() -> None:
    with grpc_bench() as bench:
        bench.loop.refuse = 1
        bench.caller.head(1, call_fields())
        bench.caller.data(1, message(b"ask"), end=True)
        bench.now += 0.01
        bench.loop.fire()
        bench.answer(bench.worker)
        assert (bench.results, bench.outcomes) == ({"connect_refused": 1, "success": 1}, {"ok": 1})


def test_where_nobody_is_left_for_a_retry_the_failure_is_told() -> None:
    with grpc_bench() as bench:
        bench.cluster.apply(EndpointGone("o1", GoneReason.REMOVED, bench.now), bench.now)
        bench.loop.refuse = 1
        bench.caller.head(1, call_fields())
        bench.caller.data(1, message(b"ask"), end=True)
        bench.now += 0.01
        bench.loop.fire()
        (trailers,) = bench.caller.got(frames.HEADERS)
        assert (trailers.value(b"grpc-status"), trailers.value(b"warmroute-outcome")) == (b"14", b"connect_failed")
        assert trailers.value(b"grpc-message").endswith(b"; no other endpoint is left for a retry")
        assert b"grpc-retry-pushback-ms" not in trailers.names()
        assert (bench.results, bench.outcomes) == ({"connect_refused": 1}, {"connect_failed": 1})


def test_calls_that_a_goaway_left_out_are_sent_again_to_the_same_worker_unseen() -> None:
    with grpc_bench() as bench:
        first = bench.call(1)
        bench.call(3)
        first.send(frames.goaway_frame(1, Code.NO_ERROR))
        assert bench.worker is not first
        assert bench.worker.got(frames.HEADERS)[0].value(b"warmroute-attempt") == b"1"
        bench.answer(first, 1)
        bench.answer(bench.worker, 1)
        assert first.transport.half_closed
        assert (bench.results, bench.outcomes) == ({"success": 2}, {"ok": 2})


CALM = frames.goaway_frame(1, Code.ENHANCE_YOUR_CALM, "too many streams\n")


@pytest.mark.parametrize("lost", [False, True], ids=["goes on", "is lost"])
@pytest.mark.parametrize("begun", [False, True], ids=["unanswered", "answering"])
def test_a_worker_that_asks_for_calm_pushes_back_and_is_not_blamed(*, lost: bool, begun: bool) -> None:
    """What it has looked at goes on, or is lost; what it has not goes to another worker; and so do the next calls."""
    with grpc_bench() as bench:
        first = bench.call(1)
        bench.call(3)
        if begun:
            first.head(1, [(b":status", b"200"), (b"content-type", b"application/grpc")])
        bench.caller.take()
        first.send(CALM)
        bench.loop.fire()
        if lost:
            first.protocol.connection_lost(ConnectionResetError())
            bench.loop.run_soon()
            end = bench.caller.got(frames.HEADERS)[-1]
            assert end.value(b"warmroute-outcome") == (b"upstream_cut" if begun else b"upstream_reset")
            said = "o0: it ended the connection (ENHANCE_YOUR_CALM: too many streams%0A)"
            assert end.value(b"grpc-message").decode().endswith(said)
        else:
            if not begun:
                first.head(1, [(b":status", b"200"), (b"content-type", b"application/grpc")])
            first.head(1, [(b"grpc-status", b"0")], end=True)
        second = bench.worker
        assert second is not first
        assert [one.stream for one in second.got(frames.HEADERS)] == [1]
        bench.answer(second, 1)
        results = {"refused": 1, "success": 1, "turned_away": 1} if lost else {"refused": 1, "success": 2}
        assert bench.results == results
        assert bench.shared == [], "neither quarantine nor breaker"
        if lost:
            assert bench.cluster.endpoints["o0"].busy_until > bench.now
            assert bench.call(5) is second, "others are picked meanwhile"
            bench.answer(second, 3)


def test_calls_that_a_call_for_calm_ended_are_tried_again_where_that_is_harmless() -> None:
    with grpc_bench(idempotent=True) as bench:
        first = bench.call(1)
        first.send(CALM)
        first.protocol.connection_lost(None)
        bench.loop.fire()
        assert bench.worker is not first
        bench.answer(bench.worker)
        worker = bench.call(3)
        worker.reset(3, Code.ENHANCE_YOUR_CALM)  # of one stream alone
        bench.loop.fire()
        bench.answer(bench.worker, 3 if bench.worker is worker else 1)
        assert bench.outcomes == {"ok": 2}
        assert bench.results == {"turned_away": 2, "success": 2}


@pytest.mark.parametrize("how", ["refused", "goaway"])
@pytest.mark.parametrize("first_window", [0, 1000, WINDOW])
@pytest.mark.parametrize("meanwhile", [False, True])
def test_an_upload_goes_on_at_another_worker_with_the_whole_window(
    how: str, first_window: int, meanwhile: bool
) -> None:
    """What waited for the worker that was lost is credited as it goes out at the next one; no byte is twice."""
    with grpc_bench() as bench:
        body = message(b"z" * 300_000)
        window, sent = WINDOW, 0
        widest = 0

        def push() -> None:
            nonlocal window, sent, widest
            while True:
                given = [one for one in bench.caller.got(frames.WINDOW_UPDATE) if one.stream == 1]
                window += sum(int.from_bytes(one.payload, "big") for one in given)
                widest = max(widest, window)
                size = min(window, 16_384, len(body) - sent)
                if not size:
                    return
                sent, window = sent + size, window - size
                bench.caller.data(1, body[sent - size : sent], end=sent == len(body))

        bench.loop.settings = {frames.INITIAL_WINDOW_SIZE: first_window}
        bench.caller.head(1, call_fields())
        push()
        losses = 2 if how == "goaway" else 1
        for number in range(losses):
            lost = bench.worker
            if number + 1 == losses:
                bench.loop.settings = {}
            if how == "goaway":
                lost.send(frames.goaway_frame(0, Code.NO_ERROR))
            else:
                lost.reset(1, Code.REFUSED_STREAM)
            if meanwhile:
                push()
            bench.check_windows()
            bench.loop.fire()
            assert bench.worker is not lost
            push()
            bench.check_windows()
        worker = bench.worker
        (stream,) = worker.protocol.streams  # type: ignore[attr-defined]
        taken = b""
        for _ in range(100):
            got = worker.got(frames.DATA)
            part = b"".join(one.payload for one in got)
            taken += part
            if not part or got[-1].end:
                break
            worker.send(frames.window_update(0, len(part)) + frames.window_update(stream, len(part)))
            push()
        assert taken == body
        assert widest <= WINDOW
        bench.answer(worker, stream)
        assert bench.outcomes == {"ok": 1}


@pytest.mark.parametrize(("trusted", "said", "tries"), [(True, b"2", 1), (True, b"1", 2), (False, b"2", 2)])
def test_what_a_trusted_proxy_tries_again_is_not_tried_again_here(trusted: bool, said: bytes, tries: int) -> None:
    with grpc_bench() as bench:
        rules = ListenerRules(trusted_networks=("127.0.0.0/8",) if trusted else ())
        with mock.patch.object(
            FakeTransport, "get_extra_info", lambda _, name: ("127.0.0.1", 5) if name == "peername" else None
        ):
            bench.caller = bench.connect(rules=rules)
        worker = bench.call(1, b"x", (b"warmroute-attempt", said))
        worker.reset(1, Code.REFUSED_STREAM)
        bench.loop.fire()
        assert len(bench.loop.workers) == tries
        if tries == 1:
            assert status(bench.caller) == (14, "upstream_reset")
        else:
            bench.answer(bench.worker)
