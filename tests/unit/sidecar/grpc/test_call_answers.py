"""What workers answer to calls, frame by frame: what that says of them, and callers who do not read it."""

from __future__ import annotations

import pytest

from router.model import LoadReport
from router.policy import ModelPolicy, Policies
from sidecar.http2 import frames
from sidecar.http2.frames import Code
from sidecar.settings import Limits, Timeouts
from sidecar.telemetry.page import Scalar
from tests.support.fleet import only
from tests.support.grpc_by_hand import INFER, call_fields, grpc_bench, infer, message, status


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
