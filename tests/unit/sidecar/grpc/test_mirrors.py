"""Copies of calls: where they go, what they say, that they count for nothing, and that callers come first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from router.model import WHOLE, EndpointSeen, Replica
from router.policy import MirrorPolicy, ModelPolicy, Policies, ServePolicy, ServeRule
from sidecar.http2 import frames
from sidecar.settings import Limits
from sidecar.telemetry.page import Scalar
from tests.support.grpc_by_hand import INFER, METHOD, GrpcBench, Peer, call_fields, grpc_bench, infer, message

ASK = infer(b"m") + b"rest"
HELD = {"o0": ("1",), "o1": ("2",)}


@contextmanager
def mirrored(
    held: dict[str, tuple[str, ...]] | None = None,
    *,
    share: float = 1.0,
    most: int = 16,
    limits: Limits | None = None,
    policies: Policies | None = None,
) -> Iterator[GrpcBench]:
    """Version 1 takes all calls, and version 2 copies of a share of them."""
    with grpc_bench(limits=limits, idempotent=True) as bench:
        for name, versions in (held or HELD).items():
            endpoint = bench.cluster.endpoints[name]
            replicas = tuple(Replica("m", version) for version in versions)
            bench.cluster.apply(EndpointSeen(replace(endpoint.record, replicas=replicas), bench.now), bench.now)
        mirror = MirrorPolicy("2", share=share, most=most, timeout_s=30.0)
        serve = ServePolicy(ServeRule.PINNED, version="1", mirror=mirror)
        model = ModelPolicy("m", default=True, serve=serve, idempotent=True)
        bench.cluster.configure(policies or Policies(), [model], bench.now)
        yield bench
        assert not bench.plane.copies
        assert not any(bench.plane.copying.values())


def counted(bench: GrpcBench, which: Scalar) -> int:
    bench.plane.settle(bench.now)
    return int(bench.plane.words[bench.plane.page.scalar(which)])


class Sent:
    """A call as workers got it: the caller's own, and its copies."""

    def __init__(self, bench: GrpcBench) -> None:
        self.calls: list[tuple[Peer, int, dict[bytes, bytes]]] = []
        self.copies: list[tuple[Peer, int, dict[bytes, bytes]]] = []
        self.data: dict[tuple[Peer, int], bytes] = {}
        for worker in bench.loop.workers:
            for one in worker.take():
                if one.kind == frames.HEADERS:
                    fields = dict(one.fields)
                    where = self.copies if b"warmroute-mirror" in fields else self.calls
                    where.append((worker, one.stream, fields))
                elif one.kind == frames.DATA:
                    key = (worker, one.stream)
                    self.data[key] = self.data.get(key, b"") + one.payload


def test_a_copy_goes_to_the_other_version_and_its_answer_nowhere() -> None:
    with mirrored() as bench:
        bench.call(1, ASK, (b"x-request-id", b"r"), path=INFER)
        sent = Sent(bench)
        ((worker, stream, fields),) = sent.calls
        ((other, copied, mirror),) = sent.copies
        assert mirror == {**fields, b"warmroute-mirror": b"1", b"traceparent": mirror[b"traceparent"]}
        assert mirror[b"x-request-id"] == b"r"
        assert sent.data[other, copied] == sent.data[worker, stream] == message(ASK)
        assert bench.in_flight == 2
        bench.caller.take()
        bench.answer(other, copied, b"thrown away", status=b"14")
        assert bench.caller.got(frames.HEADERS) == []
        bench.answer(worker, stream, b"told")
        (data,) = bench.caller.got(frames.DATA)
        assert data.payload == message(b"told")
        assert bench.outcomes == {"ok": 1}
        assert bench.results == {"success": 1}
        assert (counted(bench, Scalar.MIRRORS_TOTAL), counted(bench, Scalar.MIRRORS_FAILED_TOTAL)) == (1, 1)
        assert counted(bench, Scalar.BACKGROUND_TOTAL) == 1
        latency = bench.cluster.endpoints["o1"].candidates["m", "2", WHOLE].latency
        assert (latency.ewma_ms, latency.fresh) == (0.0, {})


def test_a_copy_waits_for_the_call_to_be_whole_and_holds_nothing_back() -> None:
    whole = message(infer(b"m") + b"z" * 30_000)
    with mirrored() as bench:
        bench.caller.head(1, call_fields(INFER))
        bench.caller.data(1, whole[:16000])
        assert bench.in_flight == 1
        bench.caller.data(1, whole[16000:], end=True)
        sent = Sent(bench)
        ((other, copied, _),) = sent.copies
        assert sent.data[other, copied] == whole
        bench.check_windows()
        ((worker, stream, _),) = sent.calls
        bench.answer(worker, stream)
        bench.answer(other, copied)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (message(ASK) + message(ASK), INFER.replace(b"ModelInfer", b"ModelStreamInfer")),
        (message(infer(b"m")), INFER.replace(b"ModelInfer", b"ModelReady")),
        (message(b"\x12\x01m"), INFER.replace(b"ModelInfer", b"RepositoryModelLoad")),
        (message(infer(b"m", b"1")), INFER),
    ],
    ids=["a stream", "readiness", "a load", "names its version"],
)
def test_what_is_not_copied(body: bytes, path: bytes) -> None:
    with mirrored() as bench:
        bench.caller.head(1, call_fields(path))
        bench.caller.data(1, body, end=True)
        sent = Sent(bench)
        assert sent.copies == []
        ((worker, stream, _),) = sent.calls
        bench.answer(worker, stream)
        assert counted(bench, Scalar.MIRRORS_DROPPED_TOTAL) == 0


def test_a_share_of_nothing_copies_nothing() -> None:
    with mirrored(share=0.0) as bench:
        bench.answer(bench.call(1, ASK, path=INFER))
        assert counted(bench, Scalar.MIRRORS_TOTAL) == 0


def test_copies_are_bounded_and_left_out_while_only_what_is_essential_is_done() -> None:
    with mirrored(most=1) as bench:
        for stream in (1, 3):
            bench.call(stream, ASK, path=INFER)
        bench.plane.tight = True
        bench.call(5, ASK, path=INFER)
        bench.plane.tight = False
        sent = Sent(bench)
        assert (len(sent.calls), len(sent.copies)) == (3, 1)
        for worker, stream, _ in (*sent.calls, *sent.copies):
            bench.answer(worker, stream)
        assert counted(bench, Scalar.MIRRORS_DROPPED_TOTAL) == 2


def test_one_that_is_too_long_to_be_kept_is_dropped() -> None:
    with mirrored(limits=Limits(replay_bytes=0)) as bench:
        bench.answer(bench.call(1, ASK, path=INFER))
        assert counted(bench, Scalar.MIRRORS_DROPPED_TOTAL) == 1
        assert counted(bench, Scalar.MIRRORS_TOTAL) == 0


@pytest.mark.parametrize(("path", "copies"), [(INFER, 1), (METHOD, 0)])
def test_an_endpoint_that_holds_both_versions_is_told_which_or_gets_none(path: bytes, copies: int) -> None:
    with mirrored({"o0": ("1",), "o1": ("2", "3")}) as bench:
        bench.call(1, ASK, path=path)
        sent = Sent(bench)
        assert len(sent.copies) == copies
        for worker, stream, _ in sent.copies:
            assert sent.data[worker, stream] == message(infer(b"m", b"2") + b"rest")
        for worker, stream, _ in (*sent.calls, *sent.copies):
            bench.answer(worker, stream)
        assert counted(bench, Scalar.MIRRORS_DROPPED_TOTAL) == 1 - copies


def test_a_copy_outlives_its_call_and_ends_in_its_time() -> None:
    with mirrored() as bench:
        bench.call(1, ASK, path=INFER)
        sent = Sent(bench)
        ((worker, stream, _),) = sent.calls
        ((other, copied, _),) = sent.copies
        bench.answer(worker, stream)
        bench.caller.protocol.connection_lost(None)
        bench.callers.clear()
        assert bench.in_flight == 1
        bench.loop.fire()
        assert [one.code for one in other.got(frames.RST_STREAM) if one.stream == copied] == [frames.Code.CANCEL]
        assert counted(bench, Scalar.MIRRORS_FAILED_TOTAL) == 1


@pytest.mark.parametrize("how", ["reset", "lost", "goaway", "malformed", "not grpc"])
def test_whatever_becomes_of_a_copy_its_call_goes_on(how: str) -> None:
    with mirrored() as bench:
        bench.call(1, ASK, path=INFER)
        sent = Sent(bench)
        ((worker, stream, _),) = sent.calls
        ((other, copied, _),) = sent.copies
        if how == "reset":
            other.reset(copied)
        elif how == "lost":
            bench.live.discard(other)
            other.protocol.connection_lost(ConnectionResetError())
        elif how == "goaway":
            other.send(frames.goaway_frame(0, frames.Code.NO_ERROR, ""))
        elif how == "malformed":
            other.head(copied, [(b"grpc-status", b"0"), (b"connection", b"x"), (b"grpc-status", b"0")], end=True)
        else:
            other.head(copied, [(b":status", b"503")])
            other.data(copied, b"no", end=True)
        bench.answer(worker, stream)
        assert bench.outcomes == {"ok": 1}
        assert bench.results == {"success": 1}
        assert counted(bench, Scalar.MIRRORS_FAILED_TOTAL) == 1
        assert not bench.cluster.endpoints["o1"].quarantine.active


def test_a_copy_gives_way_to_a_caller_who_finds_no_room() -> None:
    with mirrored({"o0": ("1", "2"), "o1": ("3",)}, policies=Policies(requests_per_endpoint=4)) as bench:
        bench.call(1, ASK, path=INFER)
        sent = Sent(bench)
        ((other, copied, _),) = sent.copies
        calls = sent.calls
        for number in (3, 5, 7):
            bench.call(number, ASK, path=INFER)
            later = Sent(bench)
            assert later.copies == []
            calls += later.calls
        assert len(calls) == 4
        assert bench.in_flight == 4
        assert not bench.plane.copies
        assert counted(bench, Scalar.MIRRORS_DROPPED_TOTAL) == 4  # and those of the three, for half must stay free
        assert copied not in other.protocol.streams  # type: ignore[attr-defined]
        for worker, stream, _ in calls:
            bench.answer(worker, stream)
        assert bench.outcomes == {"ok": 4}
