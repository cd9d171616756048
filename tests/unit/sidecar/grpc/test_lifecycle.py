"""What is answered here, how connections age and leave, and how a draining process lets go of its callers."""

from __future__ import annotations

import pytest

from router.model import EndpointGone, EndpointHeld, EndpointRecord, EndpointSeen, GoneReason, Replica
from router.outcomes import OUTCOMES, Outcome
from router.policy import ModelPolicy
from sidecar.grpc.health import CHECK, LIVE, METADATA, READY, WATCH
from sidecar.grpc.statuses import Status, encode_message, format_timeout, parse_timeout, status_of
from sidecar.http1.downstream import DownstreamConnection
from sidecar.http1.forwarding import ListenerRules
from sidecar.http2 import frames
from sidecar.http2.connection import LINGER_S
from sidecar.http2.frames import MAX_STREAM, Code, frame, goaway_frame, settings_frame
from sidecar.settings import Limits, Timeouts
from sidecar.telemetry.page import Scalar
from tests.support.fake_transport import FakeTransport
from tests.support.grpc_by_hand import INFER, GrpcBench, Peer, call_fields, grpc_bench, infer, message


def ask(bench: GrpcBench, path: bytes, request: bytes = b"", stream: int = 1) -> tuple[bytes, int | None]:
    """Return the messages of the answer, and its status where it ended."""
    bench.caller.head(stream, call_fields(path))
    bench.caller.data(stream, message(request), end=True)
    seen = [one for one in bench.caller.take() if one.stream == stream]
    ends = [one for one in seen if one.end]
    body = b"".join(one.payload for one in seen if one.kind == frames.DATA)
    return body, int(ends[0].value(b"grpc-status")) if ends else None


def hold(bench: GrpcBench, *ids: str, held: bool = True) -> None:
    for id_ in ids:
        bench.cluster.apply(EndpointHeld(id_, held, bench.now), bench.now)


SERVING, NOT_SERVING, SERVICE_UNKNOWN = message(b"\x08\x01"), message(b"\x08\x02"), message(b"\x08\x03")


@pytest.mark.parametrize("service", [b"", b"inference.GRPCInferenceService", b"m"])
def test_health_is_answered_here_where_no_worker_takes_it(service: bytes) -> None:
    with grpc_bench(default=False) as bench:
        request = b"\x0a" + bytes((len(service),)) + service if service else b""
        assert ask(bench, CHECK, request, 1) == (SERVING, 0)
        hold(bench, "o0", "o1")
        assert ask(bench, CHECK, request, 3) == (NOT_SERVING, 0)
        assert bench.outcomes == {"ok": 2}


def test_health_of_what_nobody_knows() -> None:
    with grpc_bench(default=False) as bench:
        assert ask(bench, CHECK, b"\x0a\x01z", 1) == (b"", 5)
        assert ask(bench, WATCH, b"\x0a\x01z", 3) == (SERVICE_UNKNOWN, None)
        bench.caller.reset(3)


def test_with_a_default_model_health_goes_to_its_worker() -> None:
    with grpc_bench() as bench:
        assert ask(bench, CHECK) == (b"", None)
        assert bench.worker.got(frames.HEADERS)[0].value(b":path") == CHECK
        bench.answer(bench.worker)


@pytest.mark.parametrize("listener_s", [None, "web"], ids=["default", "listener's default"])
def test_a_default_model_with_http_workers_alone_is_none_here(listener_s: str | None) -> None:
    with grpc_bench(default=False) as bench:
        models = (ModelPolicy("web", default=listener_s is None), ModelPolicy("n"))
        bench.cluster.configure(bench.cluster.policies, models, bench.now)
        record = EndpointRecord("h0", "http://a.test:1", replicas=(Replica("web"),), static=True)
        bench.cluster.apply(EndpointSeen(record, bench.now), bench.now)
        bench.caller = bench.connect(rules=ListenerRules(listener_s))
        assert ask(bench, CHECK) == (SERVING, 0)
        assert ask(bench, CHECK, b"\x0a\x03web", 3) == (NOT_SERVING, 0)
        assert ask(bench, READY, b"", 5) == (message(b"\x08\x01"), 0)
        assert ask(bench, b"/test.Echo/Unary", b"", 7) == (b"", Status.UNIMPLEMENTED)
        unknown = infer(b"nobody")
        assert ask(bench, INFER, unknown, 9) == (b"", Status.NOT_FOUND)
        grpc = EndpointRecord("g0", "grpc://a.test:2", protocol="grpc", replicas=(Replica("web"),), static=True)
        bench.cluster.apply(EndpointSeen(grpc, bench.now), bench.now)
        bench.answer(bench.call(11))
        assert bench.worker.got(frames.HEADERS)[0].value(b":path") == b"/test.Echo/Unary"


def test_what_open_inference_clients_ask_a_server() -> None:
    with grpc_bench(default=False) as bench:
        assert ask(bench, LIVE, b"", 1) == (message(b"\x08\x01"), 0)
        assert ask(bench, READY, b"", 3) == (message(b"\x08\x01"), 0)
        assert ask(bench, METADATA, b"", 5)[0][5:].startswith(b"\x0a\x09warmroute\x12")
        hold(bench, "o0", "o1")
        assert ask(bench, READY, b"", 7) == (message(b""), 0)
        assert ask(bench, LIVE, b"", 9) == (message(b"\x08\x01"), 0)


def test_a_watch_follows_and_ends_as_the_process_drains() -> None:
    with grpc_bench(default=False, timeouts=Timeouts(drain_idle_s=1.0)) as bench:
        assert ask(bench, WATCH) == (SERVING, None)
        hold(bench, "o0", "o1")
        bench.pass_time(0.25)
        hold(bench, "o0", "o1", held=False)
        bench.pass_time(0.25)
        assert [one.payload for one in bench.caller.got(frames.DATA)] == [NOT_SERVING, SERVING]
        bench.pass_time(600)  # no idle time applies to it
        bench.plane.leave()
        bench.plane.drain(bench.now)
        bench.loop.run_soon()
        kinds = [(one.kind, one.payload[:4]) for one in bench.caller.take()]
        assert kinds[0] == (frames.DATA, NOT_SERVING[:4])  # before the GOAWAY
        assert kinds[1][0] == frames.GOAWAY
        bench.pass_time(1.25)
        assert bench.caller.ended()


def test_a_drain_names_the_last_call_a_while_later_and_lets_it_end() -> None:
    with grpc_bench(timeouts=Timeouts(drain_idle_s=1.0)) as bench:
        ended: list[int] = []
        bench.plane.drained = lambda: ended.append(1)
        worker = bench.call(1)
        bench.plane.drain(bench.now)
        bench.loop.run_soon()
        first = bench.caller.only(frames.GOAWAY)
        assert (int.from_bytes(first.payload[:4], "big"), first.code) == (MAX_STREAM, Code.NO_ERROR)
        bench.call(3)  # it was on its way
        bench.pass_time(1.0)
        last = bench.caller.only(frames.GOAWAY)
        assert (int.from_bytes(last.payload[:4], "big"), last.code) == (3, Code.NO_ERROR)
        bench.caller.head(5, call_fields(), end=True)  # left out: its caller sends it elsewhere
        bench.answer(worker, 1)
        assert not bench.caller.ended()
        bench.answer(worker, 3)
        assert bench.caller.ended()
        bench.caller.protocol.connection_lost(None)
        assert ended
        assert bench.outcomes == {"ok": 2}


def test_a_connection_that_waited_in_the_queue_as_the_drain_began_is_told_too() -> None:
    with grpc_bench(timeouts=Timeouts(drain_idle_s=1.0)) as bench:
        bench.plane.drain(bench.now)
        bench.caller = bench.connect(preface=False)
        bench.caller.send(frames.PREFACE + frames.settings_frame({}))
        assert bench.caller.got(frames.GOAWAY)
        worker = bench.call(1)
        bench.pass_time(1.0)
        bench.answer(worker)
        assert bench.caller.ended()


@pytest.mark.parametrize("takes", [False, True])
@pytest.mark.parametrize("shuts", [False, True])
def test_what_a_caller_has_yet_to_take_is_waited_for_as_long_as_it_takes_some(shuts: bool, takes: bool) -> None:
    with grpc_bench() as bench:
        bench.answer(bench.call())
        transport = bench.caller.transport
        transport.unsent_bytes = 50_000
        if shuts:
            assert bench.caller.protocol.eof_received()
        else:
            bench.caller.send(goaway_frame(0, Code.NO_ERROR, ""))
        assert transport.half_closed
        limits = bench.plane.limits
        bench.pass_time(LINGER_S + limits.read_grace_s - 0.5)
        assert not transport.closing
        if takes:
            transport.unsent_bytes -= int(limits.read_rate_bytes_per_s * limits.read_grace_s)
        bench.pass_time(0.5)
        assert transport.aborted is not takes
        assert bench.plane.words[bench.plane.page.scalar(Scalar.SLOW_READERS_TOTAL)] == (not takes)
        if takes:
            transport.unsent_bytes = 0
            bench.pass_time(limits.read_grace_s)
            assert transport.aborted
        bench.caller.protocol.connection_lost(None)
        assert bench.outcomes == {"ok": 1}


def test_the_end_of_the_grace_period_cuts_calls_with_a_status() -> None:
    with grpc_bench() as bench:
        worker = bench.call(1)
        worker.head(1, [(b":status", b"200")])
        bench.call(3)
        bench.plane.drain(bench.now)
        assert bench.grpc.cut_all() == 2
        bench.loop.run_soon()
        ends = {one.stream: one.value(b"warmroute-outcome") for one in bench.caller.got(frames.HEADERS) if one.end}
        assert ends == {1: b"drain_cut", 3: b"draining"}
        assert len(worker.got(frames.RST_STREAM)) == 2


def test_connections_leave_when_they_are_old_or_idle() -> None:
    with grpc_bench(timeouts=Timeouts(connection_age_s=100.0, keep_alive_s=20.0)) as bench:
        old = bench.connect()
        bench.pass_time(19)
        bench.caller = old
        worker = bench.call(1)
        bench.pass_time(2)
        assert not old.got(frames.GOAWAY)
        bench.pass_time(80)
        (said,) = old.got(frames.GOAWAY)[:1]
        assert int.from_bytes(said.payload[:4], "big") == MAX_STREAM
        bench.answer(worker)
        bench.pass_time(2)
        assert old.ended()


def test_a_caller_s_ping_answer_ends_the_wait_of_an_old_connection() -> None:
    with grpc_bench(timeouts=Timeouts(connection_age_s=10.0)) as bench:
        bench.answer(bench.call(1))
        bench.pass_time(10)
        ping = bench.caller.got(frames.PING)[-1]
        bench.caller.send(frame(frames.PING, frames.ACK, 0, ping.payload))
        assert bench.caller.ended()


def test_a_caller_that_says_goaway_gets_its_answers_first() -> None:
    with grpc_bench() as bench:
        worker = bench.call(1)
        bench.caller.send(goaway_frame(0, Code.NO_ERROR))
        bench.answer(worker)
        assert bench.outcomes == {"ok": 1}
        assert bench.caller.ended()


def test_connections_over_the_limit_are_told_to_calm_down() -> None:
    with grpc_bench(limits=Limits(connections=1)) as bench:
        peer = bench.connect(preface=False)
        bench.loop.run_soon()
        assert peer.only(frames.GOAWAY).code == Code.ENHANCE_YOUR_CALM
        bench.answer(bench.call())


def test_an_idle_connection_to_a_worker_is_closed() -> None:
    with grpc_bench(timeouts=Timeouts(upstream_keep_alive_s=5.0)) as bench:
        worker = bench.call()
        bench.pass_time(6)
        assert not worker.ended()
        bench.answer(worker)
        bench.pass_time(6)
        assert worker.ended()
        assert worker.only(frames.GOAWAY).code == Code.NO_ERROR
        bench.answer(bench.call(3))


def test_pings_are_answered_both_ways() -> None:
    with grpc_bench() as bench:
        worker = bench.call()
        for peer in (bench.caller, worker):
            peer.send(frame(frames.PING, 0, 0, b"12345678"))
            assert [(one.flags, one.payload) for one in peer.got(frames.PING)] == [(frames.ACK, b"12345678")]
        bench.answer(worker)


def test_every_outcome_that_is_answered_here_has_a_status() -> None:
    of_http_alone = {Outcome.TARGET_TOO_LONG, Outcome.EXPECTATION_FAILED, Outcome.HTTP_VERSION}
    for outcome, spec in OUTCOMES.items():
        if spec.answered_here and outcome not in of_http_alone:
            assert status_of(outcome) not in (Status.OK, Status.UNKNOWN), outcome


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(b"1S", 1.0), (b"99999999H", 99999999 * 3600.0), (b"5m", 0.005), (b"7u", 7e-6), (b"8n", 8e-9), (b"2M", 120.0)],
)
def test_timeouts_are_read(text: bytes, seconds: float) -> None:
    assert parse_timeout(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", [b"", b"S", b"1", b"123456789S", b"1s", b"-1S", b" 1S", b"1.5S"])
def test_what_is_no_timeout(text: bytes) -> None:
    assert parse_timeout(text) is None


@pytest.mark.parametrize("seconds", [0.0, 1e-7, 0.0123, 0.9999, 1.5, 3600.0, 1e6, 1e12])
def test_timeouts_are_written_rounded_down(seconds: float) -> None:
    read = parse_timeout(format_timeout(seconds))
    assert read is not None
    assert read <= max(seconds, 1e-6)
    assert seconds > 1e7 or read >= seconds * 0.99 - 1e-6


def test_messages_are_percent_encoded() -> None:
    assert encode_message("a b%\n\u263a~") == b"a b%25%0A%E2%98%BA~"


def test_an_old_connection_to_a_worker_ends_with_its_last_call() -> None:
    with grpc_bench(timeouts=Timeouts(upstream_connection_age_s=10.0, response_head_s=60.0)) as bench:
        old = bench.call(1)
        bench.pass_time(11)
        new = bench.call(3)
        assert new is not old
        assert not old.ended()
        bench.answer(old)
        assert old.ended()
        bench.answer(new, 1)


def test_a_worker_that_leaves_the_fleet_ends_its_calls_and_leaves_nothing() -> None:
    with grpc_bench() as bench:
        worker = bench.call(1)
        bench.cluster.apply(EndpointGone("o0", GoneReason.REMOVED, bench.now), bench.now)
        assert bench.plane.bury() == ["o0"]
        other = bench.call(3)
        assert other is not worker
        bench.answer(worker)
        assert worker.ended()
        bench.answer(other, 1)
        bench.pass_time(2.25)  # the pool is looked after until nothing is left in it
        assert worker.transport.aborted
        worker.protocol.connection_lost(None)
        bench.pass_time(0.25)
        assert not bench.grpc.departed
        assert bench.outcomes == {"ok": 2}


def test_a_worker_that_left_the_fleet_and_is_there_no_more_is_found_out_by_a_ping() -> None:
    with grpc_bench(timeouts=Timeouts(response_head_s=2.0)) as bench:
        worker = bench.call(1)
        bench.call(3, b"x", (b"grpc-timeout", b"1H"))
        bench.cluster.apply(EndpointGone("o0", GoneReason.REMOVED, bench.now), bench.now)
        bench.plane.bury()
        bench.pass_time(2.5)
        assert len(worker.got(frames.PING)) == 1
        bench.pass_time(2.25)
        assert worker.transport.aborted
        worker.protocol.connection_lost(None)
        bench.pass_time(0.5)
        assert not bench.grpc.departed
        assert bench.outcomes == {"upstream_timeout": 1, "upstream_reset": 1}


@pytest.mark.parametrize("by_age", [False, True], ids=["goaway", "age"])
def test_calls_that_wait_get_a_connection_as_one_goes(by_age: bool) -> None:
    """One connection with one place: its call goes on, and holds up nobody any more once it takes no further ones."""
    limits = Limits(connections_per_endpoint=1, calls_per_connection=1)
    with grpc_bench(limits=limits, timeouts=Timeouts(upstream_connection_age_s=10.0)) as bench:
        hold(bench, "o1")
        first = bench.call(1)
        first.head(1, [(b":status", b"200"), (b"content-type", b"application/grpc")])
        held, bench.caller = bench.caller, bench.connect()
        assert bench.call(1) is first
        if by_age:
            bench.pass_time(10.25)
        else:
            first.send(goaway_frame(1, Code.NO_ERROR))
        assert bench.worker is not first
        bench.answer(bench.worker)
        assert bench.outcomes == {"ok": 1}
        first.head(1, [(b"grpc-status", b"0")], end=True)
        assert held.got(frames.HEADERS)[-1].end


@pytest.mark.parametrize("lost", [False, True])
def test_a_worker_that_goes_as_it_comes_is_no_worker(lost: bool) -> None:
    """It says its settings and GOAWAY, or closes, at once: who waits goes elsewhere."""

    def greet(worker: Peer) -> None:
        bench.loop.greet = None
        worker.protocol.data_received(settings_frame({}))
        if lost:
            worker.protocol.connection_lost(None)
        else:
            worker.protocol.data_received(goaway_frame(0, Code.NO_ERROR))

    with grpc_bench() as bench:
        bench.loop.greet = greet
        bench.caller.head(1, call_fields(), end=True)
        bench.loop.fire()
        assert len(bench.loop.workers) == 2
        bench.answer(bench.worker)
        assert (bench.results, bench.outcomes) == ({"connect_refused": 1, "success": 1}, {"ok": 1})


def test_an_error_of_our_own_while_connecting_ends_the_calls_that_wait() -> None:
    async def crash(*_: object) -> None:
        raise RuntimeError("a crash")

    with grpc_bench() as bench:
        bench.loop.create_connection = crash  # type: ignore[assignment,method-assign]
        bench.caller.head(1, call_fields(), end=True)
        bench.caller.head(3, call_fields(), end=True)
        bench.loop.run_soon()
        ends = [one.value(b"warmroute-outcome") for one in bench.caller.got(frames.HEADERS)]
        assert ends == [b"internal", b"internal"]
        assert [repr(error["exception"]) for error in bench.loop.errors] == ["RuntimeError('a crash')"] * 2
        bench.loop.errors.clear()
        assert bench.results == {"cancelled": 2}


def test_a_reload_changes_the_listener_s_default_model_and_times_for_calls_on_old_connections() -> None:
    with grpc_bench(default=False) as bench:
        rules = ListenerRules()
        bench.caller = bench.connect(rules=rules)
        bench.caller.head(1, call_fields(), end=True)
        assert bench.caller.only(frames.HEADERS).value(b"warmroute-outcome") == b"no_route"
        rules.configure("n", trusted_networks=(), model_header=None)
        bench.answer(bench.call(3))
        assert bench.outcomes == {"no_route": 1, "ok": 1}
        bench.cluster.configure(bench.cluster.policies, (ModelPolicy("n"),), bench.now)
        bench.plane.configure(bench.plane.limits, Timeouts(stream_idle_s=7.0))
        assert bench.grpc.nothing.times.stream_idle_s == 7.0


def test_connections_of_both_protocols_have_one_limit() -> None:
    with grpc_bench(limits=Limits(connections=3)) as bench:
        bench.connect()
        assert bench.plane.callers == 2
        transports = []
        for _ in range(3):
            down = DownstreamConnection(bench.plane, ListenerRules())
            transports.append(FakeTransport())
            down.connection_made(transports[-1])
        assert [one.written[:12] for one in transports] == [b"", b"HTTP/1.1 503", b"HTTP/1.1 503"]
        peer = bench.connect(preface=False)
        bench.loop.run_soon()
        assert peer.only(frames.GOAWAY).code == Code.ENHANCE_YOUR_CALM
        bench.plane.flush(bench.now)
        bench.grpc.flush()
        assert bench.plane.words[bench.plane.page.scalar(Scalar.CONNECTIONS_NOW)] == bench.plane.callers == 6


def test_a_reload_changes_limits_for_new_connections() -> None:
    with grpc_bench() as bench:
        bench.plane.configure(Limits(calls_per_connection=1), bench.plane.timeouts)
        bench.caller = bench.connect()
        first = bench.call(1)
        bench.caller.head(3, call_fields(), end=True)
        assert bench.caller.got(frames.RST_STREAM)[0].code == Code.REFUSED_STREAM
        bench.caller = bench.connect()
        second = bench.call(1)
        assert second is not first
        for worker in (first, second):
            bench.answer(worker)
