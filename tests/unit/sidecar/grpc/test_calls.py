"""One call, frame by frame: what goes on, what is changed, how it ends."""

from __future__ import annotations

import gzip
from dataclasses import replace

import pytest

from router.groups import ShardMap
from router.keyed import hash_of
from router.model import EndpointSeen, Replica
from router.pickers import mixed
from router.policy import BalancerName, KeyPolicy, ModelPolicy, Policies, ShardMode, ShardPolicy
from sidecar.http1.forwarding import ListenerRules
from sidecar.http2 import frames
from sidecar.http2.frames import Code
from sidecar.settings import Limits
from tests.support.grpc_by_hand import INFER, METHOD, call_fields, grpc_bench, infer, message, status


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
        (INFER.replace(b"ModelInfer", b"ModelStreamInfer"), b"", (), "m"),
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


def test_an_empty_request_that_ends_before_there_is_a_worker_ends_there_too() -> None:
    with grpc_bench() as bench:
        bench.caller.head(1, call_fields(INFER.replace(b"ModelInfer", b"ModelStreamInfer")))
        bench.caller.data(1, b"", end=True)
        assert [one.end for one in bench.worker.take() if one.stream] == [True]
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
