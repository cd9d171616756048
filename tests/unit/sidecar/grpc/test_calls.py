"""One call, frame by frame: what goes on, what is changed, how it ends."""

from __future__ import annotations

import gzip
from dataclasses import replace
from unittest import mock

import pytest

from router.balancers import hash_of
from router.groups import ShardMap
from router.model import EndpointGone, EndpointSeen, GoneReason, LoadReport, Replica
from router.pickers import mixed
from router.policy import BalancerName, KeyPolicy, ModelPolicy, Policies, ShardMode, ShardPolicy
from sidecar.http1.forwarding import ListenerRules
from sidecar.http1.recognise import Recogniser
from sidecar.http2 import frames
from sidecar.http2.frames import WINDOW, Code
from sidecar.settings import Limits, Recognise, Timeouts
from sidecar.telemetry.page import Scalar
from tests.support.fake_transport import FakeTransport
from tests.support.fleet import only
from tests.support.grpc_by_hand import METHOD, Peer, call_fields, grpc_bench, infer, message

INFER = b"/inference.GRPCInferenceService/ModelInfer"


def status(peer: Peer, stream: int = 1) -> tuple[int, str]:
    """Return the status of the call that ended, and warmroute's outcome where it is its own."""
    ends = [one for one in peer.got(frames.HEADERS) if one.end and one.stream == stream]
    assert len(ends) == 1, ends
    fields = dict(ends[0].fields)
    return int(fields[b"grpc-status"]), fields.get(b"warmroute-outcome", b"").decode()


def test_a_call_passes_as_it_is_but_for_what_a_proxy_adds() -> None:
    with grpc_bench() as bench:
        more = [(b"x-two", b"b"), (b"x-two", b"a"), (b"x-bin", b"\xff\x00".hex().encode()), (b"grpc-timeout", b"10S")]
        worker = bench.call(1, b"ask", *more)
        head, data = [one for one in worker.take() if one.stream == 1]
        assert head.fields[:6] == call_fields()
        assert [field for field in head.fields if field[0] in (b"x-two", b"x-bin")] == more[:3]
        assert head.value(b"grpc-timeout") == b"10S"
        assert head.value(b"warmroute-attempt") == b"1"
        assert head.value(b"via") == b"2 warmroute"
        assert len(head.value(b"traceparent").split(b"-")) == 4
        made = head.value(b"x-request-id")
        assert (data.payload, data.end) == (message(b"ask"), True)

        answer = [(b":status", b"200"), (b"content-type", b"application/grpc"), (b"x-m", b"1")]
        worker.head(1, answer)
        worker.data(1, message(b"tell"))
        tail = [(b"grpc-status", b"0"), (b"grpc-message", b"%e2%98%ba"), (b"x-t-bin", b"AP8")]
        worker.head(1, tail, end=True)
        head, data, end = [one for one in bench.caller.take() if one.stream == 1]
        assert head.fields == [*answer, (b"x-request-id", made)]
        assert (data.payload, data.end) == (message(b"tell"), False)
        assert (end.fields, end.end) == (tail, True)
        assert (bench.outcomes, bench.results) == ({"ok": 1}, {"success": 1})


def test_ids_that_a_caller_or_a_worker_has_are_kept() -> None:
    with grpc_bench() as bench:
        worker = bench.call(1, b"x", (b"x-request-id", b"mine"), (b"traceparent", b"00-1-2-01"))
        head = worker.got(frames.HEADERS)[0]
        assert (head.value(b"x-request-id"), head.value(b"traceparent")) == (b"mine", b"00-1-2-01")
        worker.head(1, [(b":status", b"200"), (b"x-request-id", b"theirs"), (b"grpc-status", b"5")], end=True)
        end = bench.caller.only(frames.HEADERS)
        assert (end.value(b"x-request-id"), end.value(b"grpc-status"), end.end) == (b"theirs", b"5", True)
        assert (bench.outcomes, bench.results) == ({"upstream_4xx": 1}, {"client_error": 1})


def test_many_calls_share_a_worker_s_connection_up_to_its_limit() -> None:
    with grpc_bench() as bench:
        bench.loop.settings = {frames.MAX_CONCURRENT_STREAMS: 2}
        for number in range(5):
            bench.call(1 + 2 * number)
        assert bench.in_flight == 5
        streams = [len(peer.protocol.streams) for peer in bench.loop.workers]  # type: ignore[attr-defined]
        assert streams[0] == 2
        while bench.in_flight:
            for peer in bench.loop.workers:
                for stream in list(peer.protocol.streams):  # type: ignore[attr-defined]
                    bench.answer(peer, stream)
        assert bench.outcomes == {"ok": 5}


@pytest.mark.parametrize(
    ("path", "body", "more", "model"),
    [
        (INFER, message(infer(b"n")), (), "n"),
        (INFER, message(infer(b"m", b"")), (), "m"),
        (INFER, message(gzip.compress(infer(b"n"), mtime=0)), ((b"grpc-encoding", b"gzip"),), "n"),
        (b"/inference.GRPCInferenceService/ModelReady", message(b"\x0a\x01n"), (), "n"),
        (b"/inference.GRPCInferenceService/RepositoryModelUnload", message(b"\x0a\x01r\x12\x01n"), (), "n"),
        (b"/inference.GRPCInferenceService/RepositoryIndex", message(b"\x0a\x01n"), (), "m"),
        (b"/any.Thing/Do", message(b"\x0a\x01n"), (), "m"),
        (b"/any.Thing/Do", message(), ((b"warmroute-model", b"n"),), "n"),
        (INFER, message(infer(b"m")), ((b"warmroute-model", b"n"),), "m"),
        (INFER, message(b"\xff\xff"), (), "m"),
        (INFER, message(b"garbage", compressed=True), ((b"grpc-encoding", b"snappy"),), "m"),
        (INFER, message(b"garbage", compressed=True), ((b"grpc-encoding", b"gzip"),), "m"),
        (INFER, b"", (), "m"),
    ],
    ids=lambda value: value[-24:].decode("latin-1") if isinstance(value, bytes) else None,
)
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_the_model_is_found_in_whatever_pieces_its_name_comes(
    path: bytes, body: bytes, more: tuple[tuple[bytes, bytes], ...], model: str, step: int
) -> None:
    if more and more[0][1] == b"gzip" and body[0] == 0:
        body = b"\x01" + body[1:]
    with grpc_bench() as bench:
        bench.caller.head(1, call_fields(path, *more))
        for start in range(0, len(body), step):
            bench.caller.data(1, body[start : start + step])
        bench.caller.data(1, b"", end=True)
        (route,) = [r for r in bench.cluster.routes(bench.now) if r.key == model]
        assert {row.endpoint: row.in_flight for row in route.candidates}[{"m": "o0", "n": "o1"}[model]] == 1
        got = b"".join(one.payload for one in bench.worker.got(frames.DATA))
        assert got == body
        bench.answer(bench.worker)
        assert bench.outcomes == {"ok": 1}


def test_a_model_that_nobody_knows() -> None:
    with grpc_bench(default=False) as bench:
        bench.caller.head(1, call_fields(INFER))
        bench.caller.data(1, message(infer(b"z")), end=True)
        assert status(bench.caller) == (5, "no_route")
        bench.caller.head(3, call_fields(b"/any.Thing/Do"), end=True)
        assert status(bench.caller, 3) == (12, "no_route")


def test_a_call_is_refused_over_the_message_limit_and_its_worker_let_go() -> None:
    with grpc_bench(limits=Limits(body_bytes=1000)) as bench:
        bench.caller.head(1, call_fields())
        bench.caller.data(1, message(b"x" * 1000))
        bench.caller.data(1, message(b"x" * 1001)[:5])
        assert status(bench.caller) == (8, "body_too_large")
        assert [one.code for one in bench.worker.got(frames.RST_STREAM)] == [Code.CANCEL]
        bench.caller.data(1, b"more that nobody wants", end=True)
        assert bench.outcomes == {"body_too_large": 1}


@pytest.mark.parametrize(
    ("code", "more", "result", "outcome"),
    [
        (b"0", (), "success", "ok"),
        (b"1", (), "client_error", "upstream_4xx"),
        (b"2", (), "call_failed", "upstream_5xx"),
        (b"3", (), "client_error", "upstream_4xx"),
        (b"4", (), "client_error", "upstream_4xx"),
        (b"8", (), "busy", "upstream_busy"),
        (b"13", (), "call_failed", "upstream_5xx"),
        (b"14", (), "server_error", "upstream_5xx"),
        (b"14", ((b"grpc-retry-pushback-ms", b"500"),), "busy", "upstream_busy"),
        (b"15", (), "server_error", "upstream_5xx"),
        (b"99", (), "call_failed", "upstream_5xx"),
        (b"zz", (), "call_failed", "upstream_5xx"),
    ],
)
def test_what_a_status_says_of_the_worker(
    code: bytes, more: tuple[tuple[bytes, bytes], ...], result: str, outcome: str
) -> None:
    with grpc_bench() as bench:
        worker = bench.call()
        worker.head(1, [(b":status", b"200"), (b"grpc-status", code), *more], end=True)
        assert bench.caller.only(frames.HEADERS).value(b"grpc-status") == code
        assert (bench.results, bench.outcomes) == ({result: 1}, {outcome: 1})


@pytest.mark.parametrize("how", ["reset", "reset in the answer", "internal", "unknown", "a large head"])
def test_what_a_caller_can_have_a_worker_say_at_will_ejects_nobody(how: str) -> None:
    with grpc_bench(limits=Limits(head_bytes=4096)) as bench:
        for stream in range(1, 201, 2):
            worker = bench.call(stream)
            if how == "reset in the answer":
                worker.head(stream, [(b":status", b"200")])
            if how.startswith("reset"):
                worker.reset(stream, Code.INTERNAL_ERROR)
            elif how == "a large head":
                worker.head(stream, [(b":status", b"200"), (b"x-echo", b"v" * 5000)])
            else:
                worker.head(
                    stream, [(b":status", b"200"), (b"grpc-status", b"13" if how == "internal" else b"2")], end=True
                )
        assert {
            each.breaker.state.value
            for endpoint in bench.cluster.endpoints.values()
            for each in endpoint.candidates.values()
        } == {"closed"}
        assert not any(endpoint.quarantine.active for endpoint in bench.cluster.endpoints.values())
        assert bench.results == {"call_failed": 100}


@pytest.mark.parametrize(
    ("without", "more", "authority"),
    [
        (b"te", (), b"a.test"),
        (b":authority", (), b"a.test:1"),
        (b":authority", ((b"host", b"b.test"),), b"b.test"),
        (b"", ((b"host", b"a.test"),), b"a.test"),
    ],
)
def test_a_worker_gets_te_and_an_authority_whatever_the_caller_sent(
    without: bytes, more: tuple[tuple[bytes, bytes], ...], authority: bytes
) -> None:
    with grpc_bench() as bench:
        for stream in (1, 3):
            bench.caller.head(stream, [*(field for field in call_fields() if field[0] != without), *more], end=True)
            head = bench.worker.only(frames.HEADERS)
            assert (head.value(b":authority"), head.value(b"te")) == (authority, b"trailers")
            assert b"host" not in head.names()
            late = [name.startswith(b":") for name in head.names()]
            assert late == sorted(late, reverse=True), "pseudo-headers come first"
            bench.answer(bench.worker, stream)


@pytest.mark.parametrize(
    ("more", "what"),
    [
        *(
            ([(b"x-bin", value)], b"x-bin is not base64")
            for value in (
                b"!!!",
                b"A",
                b"AAAAA",
                b"AA=",
                b"AB==",
                b"AAB=",
                b"AAAA==",
                b",,,",
                b"AA==,",
                b"AA==,A",
                b"AA AA",
                b"AA," * 8 + b"AA",
            )
        ),
        ([(b"grpc-timeout", b"1 S")], b"grpc-timeout '1 S'"),
        ([(b"grpc-timeout", b"")], b"grpc-timeout ''"),
        ([(b"grpc-timeout", b"1S"), (b"grpc-timeout", b"2S")], b"grpc-timeout '2S' and another"),
    ],
)
def test_what_a_worker_could_not_read_is_refused_with_its_name(more: list[tuple[bytes, bytes]], what: bytes) -> None:
    with grpc_bench() as bench:
        bench.caller.head(1, call_fields(METHOD, *more), end=True)
        head = bench.caller.only(frames.HEADERS)
        assert head.end
        assert (head.value(b"grpc-status"), head.value(b"warmroute-outcome")) == (b"3", b"bad_request")
        assert what in head.value(b"grpc-message")
        assert bench.loop.workers == []
        for number, value in enumerate((b"", b"AAECAw==", b"AAEC, AAECAw,AAE=", b"AA," * 7 + b"AA")):
            worker = bench.call(3 + 2 * number, b"x", (b"x-bin", value))
            got = [field for field in worker.got(frames.HEADERS)[0].fields if field[0] == b"x-bin"]
            assert got == [(b"x-bin", part.strip()) for part in value.split(b",")], "each by itself"
            bench.answer(worker, 1 + 2 * number)
        assert bench.outcomes == {"bad_request": 1, "ok": 4}


def test_a_deadline_ends_the_call_and_the_worker_s_work() -> None:
    with grpc_bench() as bench:
        worker = bench.call(1, b"x", (b"grpc-timeout", b"300m"))
        bench.now += 0.3
        bench.loop.fire()
        assert status(bench.caller) == (4, "deadline_exceeded")
        assert [one.code for one in worker.got(frames.RST_STREAM)] == [Code.CANCEL]
        assert (bench.results, bench.outcomes) == ({"overdue": 1}, {"deadline_exceeded": 1})


def test_a_far_deadline_gets_its_timer_when_it_is_near() -> None:
    with grpc_bench() as bench:
        worker = bench.call(1, b"x", (b"grpc-timeout", b"60S"))
        worker.head(1, [(b":status", b"200")])
        assert bench.loop.later == []
        bench.pass_time(59.75)
        bench.now += 0.25
        bench.loop.fire()
        assert status(bench.caller) == (4, "deadline_exceeded")


def test_what_is_left_of_a_deadline_is_told() -> None:
    with grpc_bench() as bench:
        bench.caller.head(1, call_fields(INFER, (b"grpc-timeout", b"10S")))
        bench.now += 2.5
        bench.caller.data(1, message(infer(b"m")), end=True)
        assert bench.worker.got(frames.HEADERS)[0].value(b"grpc-timeout") == b"7500m"
        bench.answer(bench.worker)


def test_a_caller_that_cancels_stops_the_worker_at_once() -> None:
    with grpc_bench() as bench:
        worker = bench.call()
        bench.caller.reset(1)
        assert [one.code for one in worker.got(frames.RST_STREAM)] == [Code.CANCEL]
        assert (bench.results, bench.outcomes) == ({"cancelled": 1}, {"client_abort": 1})
        bench.answer(worker)  # what was on its way is nobody's fault
        assert not worker.transport.closing


def test_a_caller_that_goes_stops_all_of_its_calls() -> None:
    with grpc_bench() as bench:
        worker = bench.call(1)
        bench.call(3)
        bench.caller.protocol.connection_lost(None)
        bench.loop.run_soon()
        assert [one.code for one in worker.got(frames.RST_STREAM)] == [Code.CANCEL] * 2
        assert bench.outcomes == {"client_abort": 2}


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


def test_an_empty_request_that_ends_before_there_is_a_worker_ends_there_too() -> None:
    with grpc_bench() as bench:
        bench.caller.head(1, call_fields(INFER))
        bench.caller.data(1, b"", end=True)
        assert [one.end for one in bench.worker.take() if one.stream] == [True]
        bench.answer(bench.worker)


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


@pytest.mark.parametrize(
    ("header", "more", "model"),
    [
        ("x-model", ((b"x-model", b"n"),), "o1"),
        ("x-model", ((b"x-model", b"n"), (b"warmroute-model", b"m"), (b"warmroute-model", b"m")), "o1"),
        ("X-Model", ((b"x-model", b"n"),), "o1"),
        (None, ((b"warmroute-model", b"n"), (b"warmroute-model", b"n")), "o0"),
        ("x-model", ((b"x-model", b"n"), (b"x-model", b"n")), ""),
        ("warmroute-model", ((b"warmroute-model", b"n"), (b"warmroute-model", b"m")), ""),
    ],
)
def test_the_listener_says_which_metadata_names_the_model(
    header: str | None, more: tuple[tuple[bytes, bytes], ...], model: str
) -> None:
    with grpc_bench() as bench:
        bench.caller = bench.connect(rules=ListenerRules(model_header=header))
        bench.caller.head(1, call_fields(b"/any.Thing/Do", *more))
        bench.caller.data(1, message(), end=True)
        if model:
            assert bench.cluster.endpoints[model].in_flight == 1
            bench.answer(bench.worker)
        else:
            assert status(bench.caller) == (3, "bad_request")


def test_a_worker_that_dies_before_and_in_an_answer() -> None:
    with grpc_bench() as bench:
        worker = bench.call(1)
        bench.call(3)
        worker.head(1, [(b":status", b"200"), (b"content-type", b"application/grpc")])
        worker.data(1, message(b"part"))
        bench.caller.take()
        worker.protocol.connection_lost(None)
        bench.loop.run_soon()
        ends = {one.stream: dict(one.fields) for one in bench.caller.got(frames.HEADERS) if one.end}
        assert {stream: fields[b"warmroute-outcome"] for stream, fields in ends.items()} == {
            1: b"upstream_cut",
            3: b"upstream_reset",
        }
        assert {fields[b"grpc-status"] for fields in ends.values()} == {b"14"}
        assert b":status" not in ends[1]
        assert bench.results == {"cut": 1, "reset": 1}


@pytest.mark.parametrize("end", [True, False], ids=["ends", "goes on"])
def test_an_answer_that_breaks_the_protocol(end: bool) -> None:
    with grpc_bench() as bench:
        worker = bench.call(1)
        worker.data(1, message(b"no head"), end=end)
        assert status(bench.caller) == (13, "upstream_protocol")
        worker = bench.call(3)
        worker.head(3, [(b":status", b"200")])
        worker.data(3, message(b"no trailers"), end=True)
        assert status(bench.caller, 3) == (14, "upstream_cut")


@pytest.mark.parametrize("body", [True, False])
@pytest.mark.parametrize(
    ("http", "result", "outcome"),
    [
        (b"401", "client_error", "upstream_4xx"),
        (b"404", "client_error", "upstream_4xx"),
        (b"429", "busy", "upstream_busy"),
        (b"503", "server_error", "upstream_5xx"),
        (b"302", "call_failed", "upstream_5xx"),
    ],
)
def test_an_answer_that_is_no_grpc_passes_as_it_is(http: bytes, result: str, outcome: str, body: bool) -> None:
    with grpc_bench() as bench:
        worker = bench.call(1)
        worker.head(1, [(b":status", http), (b"content-type", b"text/plain")], end=not body)
        if body:
            worker.data(1, b"not ")
            worker.data(1, b"here", end=True)
        got = [one for one in bench.caller.take() if one.stream == 1 and one.kind in (frames.HEADERS, frames.DATA)]
        assert got[0].value(b":status") == http
        assert b"".join(one.payload for one in got[1:]) == (b"not here" if body else b"")
        assert [one.end for one in got] == [*(False for _ in got[1:]), True]
        assert (bench.results, bench.outcomes) == ({result: 1}, {outcome: 1})


def test_an_answer_that_is_no_grpc_ends_when_its_caller_has_taken_it() -> None:
    with grpc_bench() as bench:
        bench.caller.send(frames.settings_frame({frames.INITIAL_WINDOW_SIZE: 4}))
        worker = bench.call(1)
        worker.head(1, [(b":status", b"503")])
        worker.data(1, b"not here", end=True)
        assert (bench.results, bench.outcomes) == ({"server_error": 1}, {})
        bench.caller.send(frames.window_update(1, 4))
        assert [(one.payload, one.end) for one in bench.caller.got(frames.DATA)] == [(b"not ", False), (b"here", True)]
        assert bench.outcomes == {"upstream_5xx": 1}


@pytest.mark.parametrize("late_s", [0.0, 2.0])
def test_a_first_message_has_a_time_as_a_whole(late_s: float) -> None:
    with grpc_bench(timeouts=Timeouts(client_body_idle_s=3.0)) as bench:
        bench.caller.head(1, call_fields(INFER))
        bench.pass_time(late_s)
        for byte in message(infer(b"m"))[:6]:
            assert bench.outcomes == {}
            bench.caller.data(1, bytes((byte,)))
            bench.pass_time(0.5)
        assert status(bench.caller) == (4, "client_timeout")


def test_an_answer_before_the_request_s_end() -> None:
    with grpc_bench() as bench:
        bench.caller.head(1, call_fields())
        bench.caller.data(1, message(b"first"))
        worker = bench.worker
        worker.head(1, [(b":status", b"200"), (b"grpc-status", b"7")], end=True)
        kinds = [(one.kind, one.stream) for one in bench.caller.take()]
        assert kinds[-2:] == [(frames.HEADERS, 1), (frames.RST_STREAM, 1)]
        assert [one.code for one in worker.got(frames.RST_STREAM)] == [Code.NO_ERROR]
        bench.caller.data(1, message(b"still coming"))
        assert bench.outcomes == {"upstream_4xx": 1}


def test_what_is_no_call() -> None:
    with grpc_bench() as bench:
        fields = [(n, b"GET" if n == b":method" else v) for n, v in call_fields()]
        bench.caller.head(1, fields, end=True)
        assert bench.caller.only(frames.HEADERS).value(b":status") == b"405"
        for number, kind in enumerate(
            (b"text/html", b"application/grpcfoo", b"application/grpc-web", b"application/json")
        ):
            fields = [(n, kind if n == b"content-type" else v) for n, v in call_fields()]
            bench.caller.head(3 + 2 * number, fields, end=True)
            assert bench.caller.only(frames.HEADERS).value(b":status") == b"415"
        for number, kind in enumerate((b"application/grpc", b"application/grpc+proto", b"application/grpc;q=1")):
            fields = [(n, kind if n == b"content-type" else v) for n, v in call_fields()]
            bench.caller.head(21 + 2 * number, fields, end=True)
            assert bench.worker.got(frames.HEADERS)[0].value(b"content-type") == kind
            bench.answer(bench.worker, 1 + 2 * number)


def test_a_length_that_a_worker_gives_goes_no_further() -> None:
    """Nothing needs it, and it might be another than that of what it sends."""
    with grpc_bench() as bench:
        worker = bench.call()
        worker.head(1, [(b":status", b"503"), (b"content-length", b"999"), (b"x-a", b"1")])
        worker.data(1, b"busy", end=True)
        head = bench.caller.got(frames.HEADERS)[0]
        assert head.names() == [b":status", b"x-a", b"x-request-id"]


def test_no_answer_in_time_counts_against_the_worker() -> None:
    with grpc_bench(timeouts=Timeouts(response_head_s=2.0)) as bench:
        worker = bench.call()
        bench.pass_time(2.5)
        assert status(bench.caller) == (4, "upstream_timeout")
        assert worker.got(frames.RST_STREAM)
        assert bench.results == {"head_timeout": 1}


def test_how_long_a_conversation_lasts_is_no_latency() -> None:
    with grpc_bench() as bench:
        bench.caller.head(1, call_fields())
        bench.caller.data(1, message(b"one"))
        bench.now += 0.02
        worker = bench.worker
        worker.head(1, [(b":status", b"200")])
        bench.now += 100
        bench.caller.data(1, b"", end=True)
        worker.head(1, [(b"grpc-status", b"0")], end=True)
        assert only(bench.cluster.endpoints["o0"]).latency.ewma_ms == pytest.approx(20)


def test_a_call_that_found_no_place_says_nothing_of_the_worker() -> None:
    with grpc_bench(timeouts=Timeouts(response_head_s=2.0)) as bench:
        bench.loop.settings = {frames.MAX_CONCURRENT_STREAMS: 0}
        bench.caller.head(1, call_fields(), end=True)
        bench.pass_time(2.5)
        assert status(bench.caller) == (14, "overloaded")
        assert bench.results == {"cancelled": 1}


def test_a_caller_that_reads_nothing_is_let_go_in_the_end() -> None:
    with grpc_bench(timeouts=Timeouts(stream_idle_s=2.0)) as bench:
        caller = bench.caller = bench.connect(settings={frames.INITIAL_WINDOW_SIZE: 10})
        worker = bench.call()
        worker.head(1, [(b":status", b"200")])
        worker.data(1, message(b"x" * 100))
        assert [len(one.payload) for one in caller.got(frames.DATA)] == [10]
        bench.pass_time(2.75)
        assert [one.code for one in caller.got(frames.RST_STREAM)] == [Code.CANCEL]
        assert bench.outcomes == {"client_timeout": 1}


@pytest.mark.parametrize("whole", [True, False])
def test_a_caller_that_does_not_read_is_let_go_whatever_its_deadline(whole: bool) -> None:
    with grpc_bench(timeouts=Timeouts(stream_idle_s=10.0)) as bench:
        caller = bench.caller = bench.connect(settings={frames.INITIAL_WINDOW_SIZE: 10})
        worker = bench.call(1, b"x", (b"grpc-timeout", b"5S"))
        worker.head(1, [(b":status", b"200")])
        worker.data(1, message(b"x" * 100))
        if whole:
            worker.head(1, [(b"grpc-status", b"0")], end=True)
        bench.pass_time(6.0)
        assert bench.grpc.calls == 1
        bench.pass_time(10.0)
        assert [one.code for one in caller.got(frames.RST_STREAM)] == [Code.CANCEL]
        assert bench.outcomes == {"client_timeout": 1}


def test_an_answer_that_is_whole_but_not_read_counts_once_it_is_read() -> None:
    with grpc_bench() as bench:
        caller = bench.caller = bench.connect(settings={frames.INITIAL_WINDOW_SIZE: 10})
        worker = bench.call()
        bench.answer(worker, body=b"x" * 100)
        assert (bench.results, bench.outcomes) == ({"success": 1}, {})
        caller.send(frames.window_update(1, 1000))
        assert caller.got(frames.HEADERS)[-1].fields == [(b"grpc-status", b"0")]
        assert bench.outcomes == {"ok": 1}
        worker = bench.call(3)
        bench.answer(worker, 3, body=b"x" * 100)
        caller.reset(3)
        assert bench.outcomes == {"ok": 1, "client_abort": 1}


def test_a_call_reaches_the_shard_that_has_its_key() -> None:
    with grpc_bench() as bench:
        shards = ShardPolicy(ShardMode.KEYED, 2)
        model = ModelPolicy("m", default=True, shards=shards, key=KeyPolicy(header="X-User"))
        for shard, id_ in enumerate(("o0", "o1")):
            record = replace(bench.cluster.endpoints[id_].record, replicas=(Replica("m", shard=shard, shard_count=2),))
            bench.cluster.apply(EndpointSeen(record, bench.now), bench.now)
        bench.cluster.configure(Policies(), [model], bench.now)
        seen = set()
        for number in range(8):
            key = b"user-%d" % number
            bench.call(2 * number + 1, b"x", (b"x-user", key))
            shard = ShardMap(2).shard_of(key)
            seen.add(shard)
            assert [bench.cluster.endpoints[id_].in_flight for id_ in ("o0", "o1")] == [1 - shard, shard]
            for worker in bench.loop.workers:
                for head in worker.got(frames.HEADERS):
                    bench.answer(worker, head.stream)
        assert seen == {0, 1}
        bench.call(99, b"x")
        assert status(bench.caller, 99) == (3, "bad_request")
        bench.cluster.configure(Policies(), [replace(model, key=KeyPolicy(json="user"))], bench.now)
        bench.call(101, b'{"user": "a"}', (b"user", b"a"))
        assert status(bench.caller, 101) == (3, "bad_request")


def test_a_call_goes_by_the_key_in_its_metadata() -> None:
    with grpc_bench() as bench:

        def answer() -> None:
            for worker in bench.loop.workers:
                for head in worker.got(frames.HEADERS):
                    bench.answer(worker, head.stream)

        key = KeyPolicy(header="X-Session")
        model = ModelPolicy("m", default=True, balancer=BalancerName.KEYED, key=key)
        bench.cluster.configure(Policies(), [model, ModelPolicy("n")], bench.now)
        for number in range(8):
            value = b"s%d" % number
            scores = [mixed(hash_of(value) ^ hash_of(id_)) for id_ in (b"o0", b"o1")]
            bench.call(2 * number + 1, b"x", (b"x-session", value))
            in_flight = [bench.cluster.endpoints[id_].in_flight for id_ in ("o0", "o1")]
            assert in_flight == ([1, 0] if scores[0] > scores[1] else [0, 1])
            answer()
        assert bench.outcomes == {"ok": 8}
        bench.call(99, b"x")  # without a key: as by default, the first is drawn
        assert bench.cluster.endpoints["o0"].in_flight == 1
        answer()


REPORT = (b"endpoint-load-metrics-bin", b"CQAAAAAAAOA/")
TAIL = [(b"grpc-status", b"0"), (b"x-t", b"1")]


@pytest.mark.parametrize(
    ("asks", "report", "learned", "passed", "counter"),
    [
        (False, REPORT, LoadReport(0.5), False, Scalar.LOAD_REPORTS_TOTAL),
        (True, REPORT, LoadReport(0.5), True, Scalar.LOAD_REPORTS_TOTAL),
        (False, (REPORT[0], b"!"), None, False, Scalar.LOAD_REPORTS_MALFORMED_TOTAL),
        (
            False,
            (b"endpoint-load-metrics", b"TEXT application_utilization=NaN"),
            None,
            False,
            Scalar.LOAD_REPORTS_NAN_TOTAL,
        ),
    ],
)
def test_a_load_report_in_trailers_is_learned_and_only_passed_on_to_who_asked(
    asks: bool, report: tuple[bytes, bytes], learned: LoadReport | None, passed: bool, counter: Scalar
) -> None:
    with grpc_bench() as bench:
        model = ModelPolicy("m", default=True, load_reports=True)
        bench.cluster.configure(Policies(), [model, ModelPolicy("n")], bench.now)
        worker = bench.call(1, b"ask", *([(b"endpoint-load-metrics-format", b"bin")] if asks else []))
        worker.take()
        worker.head(1, [(b":status", b"200"), (b"content-type", b"application/grpc")])
        worker.data(1, message(b"tell"))
        worker.head(1, [TAIL[0], report, TAIL[1]], end=True)
        end = [one for one in bench.caller.got(frames.HEADERS) if one.end]
        assert end[0].fields == ([TAIL[0], report, TAIL[1]] if passed else TAIL)
        assert bench.cluster.endpoints["o0"].report == learned
        assert bench.plane.page.words[bench.plane.page.scalar(counter)] == 1
        assert bench.outcomes == {"ok": 1}


def test_a_load_report_of_a_model_that_does_not_ask_passes_as_any_field() -> None:
    with grpc_bench() as bench:
        worker = bench.call(1, b"ask")
        worker.head(1, [(b":status", b"200"), (b"grpc-status", b"0"), REPORT], end=True)
        assert REPORT in bench.caller.only(frames.HEADERS).fields
        assert bench.cluster.endpoints["o0"].report is None
