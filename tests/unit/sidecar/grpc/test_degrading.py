"""Calls of a model that is degraded: what is kept of good times and told, what is declared, and the way back up."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from router.ladder import LadderStep
from router.model import EndpointSeen, Replica
from router.policy import LadderPolicy
from sidecar.cache.terms import Refused
from sidecar.channel import AnswerAsked, AnswerFound, AnswerKept
from sidecar.faults.injector import Injector
from sidecar.faults.rules import FaultRule
from sidecar.http1.ladders import Ladders
from sidecar.http1.shared_answers import SharedTier
from sidecar.http2 import frames
from sidecar.settings import Admission, Cache, FallbackOn, Limits, Model, SharedCache, StaticAnswer, StaticCall
from sidecar.telemetry.page import MODEL_LADDER, LadderWord
from tests.support.grpc_by_hand import INFER, METHOD, GrpcBench, call_fields, grpc_bench, infer, message

STREAM_INFER = INFER.replace(b"ModelInfer", b"ModelStreamInfer")
UNAVAILABLE = b"14"
STATIC = StaticAnswer(call=StaticCall(message=b64encode(b"declared").decode(), metadata={"x-why": "none left"}))
CACHED = Model(name="m", cache=Cache())
BOTH = Model(name="m", cache=Cache(calls=(INFER.decode(), METHOD.decode())), static_answer=STATIC)
ASK = infer(b"m") + b"rest"


@contextmanager
def degrading(model: Model, *, policy: LadderPolicy | None = None, limits: Limits | None = None) -> Iterator[GrpcBench]:
    """One worker holds m, the other n."""
    with grpc_bench(limits=limits, idempotent=model.idempotent) as bench:
        policy = policy or LadderPolicy(hold_s=60.0)
        bench.plane.ladders = Ladders((model,), policy, bench.plane.page, bench.now, Admission())
        held = ((Replica("m", "1"),), (Replica("n"),))
        for endpoint, replicas in zip(list(bench.cluster.endpoints.values()), held, strict=True):
            bench.cluster.apply(EndpointSeen(replace(endpoint.record, replicas=replicas), bench.now), bench.now)
        yield bench


def turn(bench: GrpcBench, *, away: bool) -> None:
    """Let nobody serve m any more, or again."""
    endpoint = bench.cluster.endpoints["o0"]
    bench.cluster.apply(EndpointSeen(replace(endpoint.record, draining=away), bench.now), bench.now)


def word(bench: GrpcBench, which: int) -> int:
    return int(bench.plane.words[bench.plane.page.model_row("m") + MODEL_LADDER + which])


def at(bench: GrpcBench) -> LadderStep:
    assert bench.plane.ladders is not None
    return bench.plane.ladders.by_model["m"].at


def refused(bench: GrpcBench) -> dict[str, int]:
    return {why.name: count for why in Refused if (count := word(bench, LadderWord.REFUSED + why))}


class Told:
    """What a caller got."""

    def __init__(self, bench: GrpcBench, stream: int) -> None:
        self.frames = [one for one in bench.caller.take() if one.stream == stream]
        heads = [one.fields for one in self.frames if one.kind == frames.HEADERS]
        self.initial = dict(heads[0]) if len(heads) > 1 else {}
        self.trailers = dict(heads[-1]) if heads else {}
        self.data = b"".join(one.payload for one in self.frames if one.kind == frames.DATA)

    @property
    def degraded(self) -> bytes:
        return self.initial.get(b"warmroute-degraded", b"")


class Caller:
    """Makes one call after the other."""

    def __init__(self, bench: GrpcBench) -> None:
        self.bench = bench
        self.stream = -1
        self.at_worker = 0

    def ask(self, body: bytes = ASK, *more: tuple[bytes, bytes], path: bytes = INFER) -> Told:
        """Ask, where no worker is to hear of it."""
        self.stream += 2
        workers = len(self.bench.loop.workers)
        self.bench.caller.head(self.stream, call_fields(path, *more))
        self.bench.caller.data(self.stream, message(body), end=True)
        assert len(self.bench.loop.workers) == workers
        return Told(self.bench, self.stream)

    def good(
        self,
        body: bytes = ASK,
        *more: tuple[bytes, bytes],
        path: bytes = INFER,
        answer: bytes = b"good",
        status: bytes = b"0",
        fields: tuple[tuple[bytes, bytes], ...] = (),
    ) -> Told:
        """Ask, and have the worker answer."""
        self.stream += 2
        self.bench.call(self.stream, body, *more, path=path)
        heads = [(worker, one.stream) for worker in self.bench.loop.workers for one in worker.got(frames.HEADERS)]
        ((worker, at),) = heads
        worker.head(at, [(b":status", b"200"), (b"content-type", b"application/grpc"), (b"x-model", b"m"), *fields])
        worker.data(at, message(answer))
        worker.head(at, [(b"grpc-status", status), (b"x-end", b"e")], end=True)
        return Told(self.bench, self.stream)


def test_when_all_workers_are_gone_the_cache_answers_byte_for_byte() -> None:
    with degrading(CACHED) as bench:
        caller = Caller(bench)
        good = caller.good(fields=((b"x-request-id", b"of-the-worker"),))
        assert not good.degraded
        turn(bench, away=True)
        bench.now += 41
        told = caller.ask(ASK, (b"x-request-id", b"mine"))
        assert told.data == good.data == message(b"good")
        assert told.trailers == good.trailers == {b"grpc-status": b"0", b"x-end": b"e"}
        assert told.initial == {
            b":status": b"200",
            b"content-type": b"application/grpc",
            b"x-model": b"m",
            b"age": b"41",
            b"cache-status": b"warmroute; hit; ttl=559",
            b"warmroute-degraded": b"cache",
            b"x-request-id": b"mine",
        }
        other = caller.ask(ASK + b"other")
        assert other.trailers[b"grpc-status"] == UNAVAILABLE
        assert int(other.trailers[b"grpc-retry-pushback-ms"]) >= 1
        assert other.trailers[b"warmroute-outcome"] == b"no_candidate"
        assert bench.outcomes == {"ok": 1, "degraded_cache": 1, "no_candidate": 1}
        assert (word(bench, LadderWord.FILLS), word(bench, LadderWord.BY_CACHE)) == (1, 1)
        assert word(bench, LadderWord.MISSES) == 1
        assert at(bench) is LadderStep.CACHE


@pytest.mark.parametrize(
    ("body", "more", "path"),
    [
        (ASK, ((b"grpc-encoding", b"identity"),), INFER),
        (ASK, ((b"grpc-accept-encoding", b"gzip"),), INFER),
        (ASK, (), METHOD),
        (ASK, ((b"cache-control", b"no-cache"),), INFER),
        (ASK, ((b"authorization", b"me"),), INFER),
    ],
)
def test_what_was_kept_is_for_equal_calls_alone(
    body: bytes, more: tuple[tuple[bytes, bytes], ...], path: bytes
) -> None:
    with degrading(CACHED) as bench:
        caller = Caller(bench)
        caller.good()
        turn(bench, away=True)
        assert caller.ask(body, *more, path=path).trailers[b"grpc-status"] == UNAVAILABLE
        assert caller.ask().degraded == b"cache"


def test_no_tenant_hears_anothers_answer() -> None:
    with degrading(Model(name="m", cache=Cache(tenant_header="x-org"))) as bench:
        caller = Caller(bench)
        for org in (b"1", b"2"):
            caller.good(ASK, (b"x-org", org), answer=b"of " + org)
        turn(bench, away=True)
        for org in (b"1", b"2"):
            assert caller.ask(ASK, (b"x-org", org)).data == message(b"of " + org)
        assert caller.ask(ASK, (b"x-org", b"3")).trailers[b"grpc-status"] == UNAVAILABLE
        assert caller.ask(ASK).trailers[b"grpc-status"] == UNAVAILABLE
        assert refused(bench) == {"NO_TENANT": 1}


def test_errors_streams_and_long_answers_are_not_kept() -> None:
    with degrading(Model(name="m", cache=Cache(max_entry_bytes=256))) as bench:
        caller = Caller(bench)
        caller.good(status=b"5")
        caller.good(answer=b"x" * 300)
        caller.good(fields=((b"cache-control", b"no-store"),))
        caller.good(path=STREAM_INFER)
        caller.stream += 2
        worker = bench.call(caller.stream, ASK, path=INFER)
        at = worker.got(frames.HEADERS)[-1].stream
        worker.head(at, [(b":status", b"200"), (b"content-type", b"application/grpc")])
        worker.data(at, message(b"one") + message(b"two"))
        worker.head(at, [(b"grpc-status", b"0")], end=True)
        caller.stream += 2
        worker = bench.call(caller.stream, ASK, path=INFER)
        at = worker.got(frames.HEADERS)[-1].stream
        worker.head(at, [(b":status", b"200"), (b"content-type", b"application/grpc")])
        worker.reset(at)
        assert refused(bench) == {"STATUS": 1, "SIZE": 1, "ANSWER_CONTROL": 1, "PATH": 1, "STREAM": 1, "CUT": 1}
        assert word(bench, LadderWord.FILLS) == 0


def test_nothing_is_kept_while_memory_is_short_or_the_route_is_degraded() -> None:
    with degrading(CACHED, policy=LadderPolicy(hold_s=0.0, trial_s=0.0, successes=9)) as bench:
        caller = Caller(bench)
        bench.plane.tight = True
        caller.good()
        bench.plane.tight = False
        turn(bench, away=True)
        caller.ask()
        turn(bench, away=False)
        caller.good()  # on trial
        assert refused(bench) == {"DEGRADED": 2}
        assert word(bench, LadderWord.FILLS) == 0


@pytest.mark.parametrize(("kind", "kept"), [("corrupt", False), ("slicing", True)])
def test_what_a_fault_may_have_made_wrong_is_not_kept(kind: str, kept: bool) -> None:
    with degrading(CACHED) as bench:
        injector = bench.plane.faults = Injector(bench.plane)
        injector.put((FaultRule(id="f", kind=kind, ratio=1.0, until=1e9, direction="response", piece_bytes=3),))
        caller = Caller(bench)
        assert (caller.good().data == message(b"good")) is kept
        assert refused(bench) == ({} if kept else {"FAULT": 1})
        assert word(bench, LadderWord.FILLS) == kept


def test_the_request_is_waited_for_whole_and_its_window_is_given_back() -> None:
    body = infer(b"m") + b"z" * 200_000
    whole = message(body)
    with degrading(CACHED) as bench:
        bench.caller.head(1, call_fields(INFER))
        sent = 0
        while sent < len(whole):
            assert not bench.loop.workers
            part = whole[sent : sent + 16384]
            sent += len(part)
            bench.caller.data(1, part, end=sent == len(whole))
            if sent < len(whole):
                assert bench.grpc.gathered_bytes == sent
                bench.check_windows()
        assert bench.grpc.gathered_bytes == 0
        bench.answer(bench.worker)
        assert word(bench, LadderWord.FILLS) == 1


def test_what_is_waited_for_is_bounded_and_what_is_long_by_its_own_word_is_not_waited_for() -> None:
    with degrading(CACHED, limits=Limits(model_prefixes_bytes=1 << 20)) as bench:
        bench.caller.head(1, call_fields(INFER))
        bench.caller.data(1, message(infer(b"m") + bytes(1 << 20))[:100])
        assert len(bench.loop.workers) == 1
        bench.caller.reset(1)
        bench.grpc.gathered_bytes = 1 << 20
        whole = message(infer(b"m") + b"z" * 200_000)
        bench.caller.head(3, call_fields(INFER))
        for start in range(0, 5 * 16384, 16384):
            bench.caller.data(3, whole[start : start + 16384])
        assert Told(bench, 3).trailers[b"warmroute-outcome"] == b"overloaded"
        assert bench.grpc.gathered_bytes == 1 << 20
        bench.grpc.gathered_bytes = 0


def test_a_request_that_stops_coming_is_ended() -> None:
    with degrading(CACHED) as bench:
        bench.caller.head(1, call_fields(INFER))
        bench.caller.data(1, message(ASK + b"z" * 100)[:60])
        bench.pass_time(29.0)
        assert bench.grpc.calls == 1
        bench.pass_time(3.0)
        assert Told(bench, 1).trailers[b"warmroute-outcome"] == b"client_timeout"
        assert bench.grpc.gathered_bytes == 0


def test_two_messages_are_no_unary_call_and_pass_as_they_come() -> None:
    with degrading(BOTH) as bench:
        bench.caller.head(1, call_fields(METHOD))  # nobody knows that it is not one of a stream
        bench.caller.data(1, message(ASK) + message(ASK)[:7])
        assert len(bench.loop.workers) == 1
        bench.caller.data(1, message(ASK)[7:], end=True)
        bench.answer(bench.worker)
        assert refused(bench) == {"BODY": 1}


def test_the_declared_message_answers_its_method_and_no_other() -> None:
    with degrading(BOTH) as bench:
        caller = Caller(bench)
        turn(bench, away=True)
        told = caller.ask()
        assert told.data == message(b"declared")
        assert told.initial == {
            b":status": b"200",
            b"content-type": b"application/grpc",
            b"x-why": b"none left",
            b"warmroute-degraded": b"static",
            b"x-request-id": told.initial[b"x-request-id"],
        }
        assert told.trailers == {b"grpc-status": b"0"}
        assert caller.ask(path=STREAM_INFER).trailers[b"grpc-status"] == UNAVAILABLE
        assert caller.ask(b"x", path=METHOD).trailers[b"grpc-status"] == UNAVAILABLE
        assert bench.outcomes == {"degraded_static": 1, "no_candidate": 2}
        assert word(bench, LadderWord.BY_STATIC) == 1


def test_a_static_answer_for_http_is_none_for_calls() -> None:
    with degrading(Model(name="m", static_answer=StaticAnswer(body="x"))) as bench:
        turn(bench, away=True)
        assert Caller(bench).ask().trailers[b"grpc-status"] == UNAVAILABLE


@pytest.mark.parametrize("method", [b"ModelReady", b"ModelMetadata", b"RepositoryModelLoad"])
def test_nobody_who_asks_about_a_dead_model_hears_that_all_is_well(method: bytes) -> None:
    with degrading(Model(name="m", fallback=("n",), static_answer=STATIC)) as bench:
        turn(bench, away=True)
        path = INFER.replace(b"ModelInfer", method)
        body = b"\x12\x01m" if method == b"RepositoryModelLoad" else infer(b"m")
        assert Caller(bench).ask(body, path=path).trailers[b"grpc-status"] == UNAVAILABLE


def test_a_degraded_route_answers_from_below_at_once_and_climbs_back_by_one_step() -> None:
    policy = LadderPolicy(hold_s=1.0, trial_s=0.2, successes=2)
    with degrading(replace_model(BOTH, fallback=("n",)), policy=policy) as bench:
        caller = Caller(bench)
        ladders = bench.plane.ladders
        assert ladders is not None
        caller.good()
        turn(bench, away=True)
        fallen = caller.good(ASK + b"1")
        assert fallen.degraded == b"fallback"
        assert at(bench) is LadderStep.FALLBACK
        other = bench.cluster.endpoints["o1"]
        bench.cluster.apply(EndpointSeen(replace(other.record, draining=True), bench.now), bench.now)
        assert caller.ask().degraded == b"cache"
        assert at(bench) is LadderStep.CACHE
        bench.cluster.apply(EndpointSeen(replace(other.record, draining=False), bench.now), bench.now)
        turn(bench, away=False)
        assert caller.ask().degraded == b"cache"
        bench.now += 1.0
        assert caller.good().degraded == b"fallback"
        assert caller.ask().degraded == b"cache"  # no trial is due
        bench.now += 0.2
        assert caller.good().degraded == b"fallback"
        assert at(bench) is LadderStep.FALLBACK
        bench.now += 1.0
        assert not caller.good().degraded
        bench.now += 0.2
        assert not caller.good().degraded
        assert at(bench) is LadderStep.REPLICA
        assert ladders.degraded == 0


def replace_model(model: Model, fallback: tuple[str, ...]) -> Model:
    return Model(name=model.name, cache=model.cache, static_answer=model.static_answer, fallback=fallback)


def test_a_dead_route_over_grpc_degrades_nothing_over_http() -> None:
    with degrading(CACHED) as bench:
        turn(bench, away=True)
        Caller(bench).ask()
        assert bench.plane.ladders is not None
        ladder = bench.plane.ladders.by_model["m"]
        assert ladder.degraded("m over grpc")
        assert not ladder.degraded("m")


@pytest.mark.parametrize(
    ("status", "on"), [(b"14", FallbackOn.UPSTREAM_5XX), (b"8", FallbackOn.UPSTREAM_BUSY)], ids=["failed", "busy"]
)
def test_a_workers_status_is_dropped_where_a_step_below_has_an_answer(status: bytes, on: FallbackOn) -> None:
    model = Model(name="m", cache=Cache(), fallback_on=(on,))
    with degrading(model) as bench:
        caller = Caller(bench)
        caller.good()
        for body, expected in ((ASK, b"0"), (ASK + b"other", status)):
            caller.stream += 2
            worker = bench.call(caller.stream, body, path=INFER)
            at = worker.got(frames.HEADERS)[-1].stream
            fields = [(b":status", b"200"), (b"content-type", b"application/grpc"), (b"grpc-status", status)]
            worker.head(at, fields, end=True)
            told = Told(bench, caller.stream)
            assert told.trailers[b"grpc-status"] == expected
        assert bench.plane.ladders is not None
        assert bench.plane.ladders.degraded == 0  # what a caller can have it say moves nobody else
        assert bench.outcomes["degraded_cache"] == 1


def test_a_deadline_of_ours_is_stood_in_for_where_that_is_configured() -> None:
    model = Model(name="m", static_answer=STATIC, fallback_on=(FallbackOn.DEADLINE_EXCEEDED,))
    with degrading(model) as bench:
        worker = bench.call(1, ASK, (b"grpc-timeout", b"1S"), path=INFER)
        bench.pass_time(1.0)
        assert Told(bench, 1).data == message(b"declared")
        assert [one.code for one in worker.got(frames.RST_STREAM)] == [frames.Code.CANCEL]
        assert bench.plane.ladders is not None
        assert bench.plane.ladders.degraded == 0  # it was the caller's own


def test_what_may_have_begun_is_not_asked_twice_and_its_end_says_so() -> None:
    with degrading(Model(name="m", fallback=("n",))) as bench:
        worker = bench.call(1, ASK, path=INFER)
        bench.live.discard(worker)
        worker.protocol.connection_lost(ConnectionResetError())
        bench.loop.run_soon()
        told = Told(bench, 1)
        assert (told.trailers[b"grpc-status"], told.trailers[b"warmroute-outcome"]) == (UNAVAILABLE, b"upstream_reset")
        assert b"grpc-retry-pushback-ms" not in told.trailers


def test_a_call_that_no_step_answers_goes_to_the_replicas_after_all_as_it_came() -> None:
    policy = LadderPolicy(hold_s=60.0)
    with degrading(Model(name="m", fallback=("n",)), policy=policy) as bench:
        turn(bench, away=True)
        caller = Caller(bench)
        assert caller.good(ASK).degraded == b"fallback"
        turn(bench, away=False)
        other = bench.cluster.endpoints["o1"]
        bench.loop.refuse = 1
        bench.live.clear()
        for peer in bench.loop.workers:
            peer.protocol.connection_lost(None)
        caller.stream += 2
        workers = len(bench.loop.workers)
        bench.caller.head(caller.stream, call_fields(INFER, (b"warmroute-model", b"z")))
        bench.caller.data(caller.stream, message(ASK), end=True)
        assert other.quarantine.active
        assert len(bench.loop.workers) == workers + 1
        (head,) = bench.worker.got(frames.HEADERS)
        assert head.value(b"warmroute-model") == b"z"
        assert bench.in_flight == 1
        assert bench.cluster.endpoints["o0"].in_flight == 1
        bench.answer(bench.worker)
        assert not Told(bench, caller.stream).degraded
        assert bench.outcomes == {"ok": 2}


class Store:
    """The control process's part, by hand."""

    def __init__(self, bench: GrpcBench) -> None:
        self.kept: dict[bytes, AnswerKept] = {}
        self.asked: list[AnswerAsked] = []
        self.bench = bench
        self.tier = SharedTier(bench.plane.loop, bench.plane.clock, self._send)
        assert bench.plane.ladders is not None
        bench.plane.ladders.tier = self.tier

    def _send(self, told: object) -> bool:
        if isinstance(told, AnswerKept):
            self.kept[told.key] = told
        elif isinstance(told, AnswerAsked):
            self.asked.append(told)
        return True

    def answer(self) -> None:
        asked = self.asked.pop()
        kept = self.kept.get(asked.key)
        if kept is None:
            self.tier.found(AnswerFound(asked.number))
        else:
            self.tier.found(AnswerFound(asked.number, kept.head, kept.body, 9000, kept.age_s))
        self.bench.loop.run_soon()


def test_what_this_process_has_not_comes_from_the_second_tier() -> None:
    with degrading(Model(name="m", cache=Cache(redis=SharedCache()), static_answer=STATIC)) as bench:
        store = Store(bench)
        caller = Caller(bench)
        good = caller.good()
        assert len(store.kept) == 1
        assert bench.plane.ladders is not None
        bench.plane.ladders.clear()
        turn(bench, away=True)
        assert not caller.ask().frames
        store.answer()
        told = Told(bench, caller.stream)
        assert (told.degraded, told.initial[b"age"], told.data) == (b"cache", b"9", good.data)
        caller.ask(ASK + b"other")
        store.answer()
        assert Told(bench, caller.stream).degraded == b"static"
        caller.ask()
        bench.caller.reset(caller.stream)
        store.answer()  # nobody waits any more
        caller.ask()
        bench.loop.fire()  # it did not say in time
        assert Told(bench, caller.stream).degraded == b"static"
        assert (word(bench, LadderWord.SHARED_HITS), word(bench, LadderWord.SHARED_MISSES)) == (2, 2)
        assert bench.outcomes == {"ok": 1, "degraded_cache": 1, "degraded_static": 2, "client_abort": 1}


def test_calls_of_models_without_any_of_this_have_no_course() -> None:
    with degrading(CACHED) as bench:
        worker = bench.call(1, infer(b"n"), path=INFER)
        (call,) = bench.opened
        assert call._course is None
        bench.answer(worker)
