"""Requests that end within a message or without one, and such as do not go on: they say nothing of the worker."""

from __future__ import annotations

import pytest

from sidecar.http2 import frames
from sidecar.http2.frames import Code
from sidecar.settings import Timeouts
from tests.support.grpc_by_hand import INFER, METHOD, GrpcBench, call_fields, grpc_bench, infer, message, status

STREAM = INFER.replace(b"ModelInfer", b"ModelStreamInfer")
WHOLE = message(infer(b"m") + b"z" * (500 - len(infer(b"m"))))
END, TRAILERS = True, None


def told(bench: GrpcBench) -> tuple[bytes, bytes]:
    """Return status and message of the call that ended."""
    ends = [one for one in bench.caller.got(frames.HEADERS) if one.end]
    return ends[0].value(b"grpc-status"), ends[0].value(b"grpc-message")


def resets(bench: GrpcBench) -> list[int]:
    return [one.code for worker in bench.loop.workers for one in worker.got(frames.RST_STREAM)]


@pytest.mark.parametrize("path", [INFER, STREAM, METHOD])
@pytest.mark.parametrize(
    ("pieces", "end", "why"),
    [
        ((WHOLE[:300],), END, b"295 of 500 bytes"),
        ((WHOLE[:100], WHOLE[100:300]), END, b"295 of 500 bytes"),
        ((WHOLE[:100], WHOLE[100:300], b""), END, b"295 of 500 bytes"),
        ((WHOLE[:300],), TRAILERS, b"295 of 500 bytes"),
        ((WHOLE[:5],), END, b"0 of 500 bytes"),
        ((WHOLE[:3],), END, b"3 of 5 bytes of its head"),
        ((WHOLE[:2], WHOLE[2:4]), TRAILERS, b"4 of 5 bytes of its head"),
    ],
)
def test_a_request_that_ends_within_a_message_is_refused_at_once(
    path: bytes, pieces: tuple[bytes, ...], end: bool | None, why: bytes
) -> None:
    with grpc_bench(idempotent=True) as bench:
        bench.caller.head(1, call_fields(path))
        for piece in pieces[:-1]:
            bench.caller.data(1, piece)
        bench.caller.data(1, pieces[-1], end=end is END)
        if end is TRAILERS:
            bench.caller.head(1, [(b"x-a", b"b")], end=True)
        assert told(bench) == (b"3", b"malformed or ambiguous call: the message was cut: " + why)
        assert bench.outcomes == {"bad_request": 1}
        begun = bench.loop.workers != []
        assert bench.results == ({"cancelled": 1} if begun else {})
        assert resets(bench) == ([Code.CANCEL] if begun else [])


def test_a_second_message_that_is_cut_ends_a_stream_in_the_middle_of_its_answer() -> None:
    with grpc_bench() as bench:
        bench.caller.head(1, call_fields(STREAM))
        bench.caller.data(1, WHOLE)
        bench.worker.head(1, [(b":status", b"200"), (b"content-type", b"application/grpc")])
        bench.caller.data(1, WHOLE[:99], end=True)
        assert told(bench)[0] == b"3"
        assert (bench.results, resets(bench)) == ({"cancelled": 1}, [Code.CANCEL])


@pytest.mark.parametrize("path", [INFER, b"/grpc.health.v1.Health/Check"])
@pytest.mark.parametrize("how", ["head", "empty", "trailers"])
def test_a_method_that_takes_one_message_is_not_called_without(path: bytes, how: str) -> None:
    with grpc_bench() as bench:
        bench.caller.head(1, call_fields(path), end=how == "head")
        if how == "empty":
            bench.caller.data(1, b"", end=True)
        elif how == "trailers":
            bench.caller.head(1, [(b"x-a", b"b")], end=True)
        assert told(bench) == (b"3", b"malformed or ambiguous call: no message, and its method takes one")
        assert (bench.outcomes, bench.in_flight) == ({"bad_request": 1}, 0)


@pytest.mark.parametrize(
    "pieces", [(WHOLE + WHOLE,), (WHOLE, WHOLE), (WHOLE, WHOLE[:1]), (WHOLE + b"\0",), (WHOLE[:9], WHOLE[9:] + WHOLE)]
)
def test_a_method_that_takes_one_message_takes_no_more(pieces: tuple[bytes, ...]) -> None:
    with grpc_bench() as bench:
        bench.caller.head(1, call_fields(INFER))
        for piece in pieces:
            bench.caller.data(1, piece)
        assert told(bench) == (b"3", b"malformed or ambiguous call: more than one message, and its method takes one")
        assert bench.outcomes == {"bad_request": 1}
        assert resets(bench) == ([Code.CANCEL] if bench.loop.workers else [])


def test_a_worker_that_answers_no_call_without_a_message_is_not_to_blame() -> None:
    with grpc_bench(timeouts=Timeouts(response_head_s=2.0), idempotent=True) as bench:
        bench.caller.head(1, call_fields(), end=True)  # it may take none
        assert [one.end for one in bench.worker.take() if one.stream] == [True]
        bench.pass_time(2.5)
        assert status(bench.caller) == (4, "client_timeout")
        assert (bench.results, resets(bench)) == ({"cancelled": 1}, [Code.CANCEL])
        bench.caller.head(3, call_fields(METHOD, (b"grpc-timeout", b"1S")), end=True)
        bench.pass_time(1.5)
        bench.loop.fire()
        assert (status(bench.caller, 3), bench.results) == ((4, "deadline_exceeded"), {"cancelled": 1, "outrun": 1})


@pytest.mark.parametrize("times", [{"stream_idle_s": 2.0}, {"try_s": 2.0}], ids=str)
@pytest.mark.parametrize(
    ("path", "sent", "owed"),
    [
        (METHOD, b"", True),
        (STREAM, WHOLE[:300], True),
        (STREAM, WHOLE + b"\0", True),
        (INFER, WHOLE, True),
        (STREAM, WHOLE, False),
    ],
)
def test_a_worker_that_waits_for_its_caller_is_not_to_blame(
    times: dict[str, float], path: bytes, sent: bytes, owed: bool
) -> None:
    with grpc_bench(timeouts=Timeouts(**times), idempotent=True) as bench:
        bench.caller.head(1, call_fields(path))
        if sent:
            bench.caller.data(1, sent)
        bench.pass_time(2.75)
        outcome = "client_timeout" if owed else "stream_idle" if "stream_idle_s" in times else "upstream_timeout"
        assert status(bench.caller) == (4, outcome)
        assert (bench.results, resets(bench)) == ({"cancelled": 1}, [Code.CANCEL])


def test_a_worker_that_does_not_take_the_request_is_to_blame() -> None:
    with grpc_bench(timeouts=Timeouts(stream_idle_s=2.0)) as bench:
        bench.loop.settings = {frames.INITIAL_WINDOW_SIZE: 10}
        bench.caller.head(1, call_fields())
        bench.caller.data(1, WHOLE)
        bench.pass_time(2.75)
        assert (status(bench.caller), bench.results) == ((4, "stream_idle"), {"stream_idle": 1})


def test_the_time_of_a_try_begins_at_the_request_s_end() -> None:
    with grpc_bench(timeouts=Timeouts(try_s=2.0)) as bench:
        bench.caller.head(1, call_fields())
        bench.caller.data(1, WHOLE[:300])
        bench.pass_time(1.5)
        bench.caller.data(1, WHOLE[300:], end=True)
        bench.pass_time(1.75)
        assert bench.in_flight == 1
        bench.pass_time(0.5)
        assert (status(bench.caller), bench.results) == ((4, "upstream_timeout"), {"try_timeout": 1})
