"""The degradation ladder on real sockets: who answers when nobody can, what that looks like, and how it comes back."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace

import pytest

from router.ladder import LadderStep
from router.model import Replica, State
from router.policy import LadderPolicy, ModelPolicy, OnNoCandidate, RetryPolicy
from sidecar.cache.terms import Refused
from sidecar.channel import AnswerAsked, AnswerFound, AnswerKept
from sidecar.http1.shared_answers import SharedTier
from sidecar.settings import Cache, CachedMethod, FallbackOn, Model, ModelTimeouts, SharedCache, StaticAnswer, Wait
from sidecar.settings.ladder import USUAL_FALLBACK_ON
from sidecar.telemetry.page import MODEL_LADDER, LadderWord
from tests.support.data_path import (
    CHUNKED,
    POLICIES,
    Client,
    DataPath,
    Message,
    OriginConnection,
    Refusing,
    answer,
    chunk,
    chunked,
    echo,
    on_data_path,
    post,
    request,
    resets,
    says,
    silent,
)

INFER = b"/v2/models/m/infer"
QUICK = replace(
    POLICIES,
    retry=RetryPolicy(attempts=0),
    ladder=LadderPolicy(failures=2, hold_s=0.02, trial_s=0.0, successes=2),
)
SLOW = replace(QUICK, ladder=LadderPolicy(hold_s=60.0))
MODELS = (ModelPolicy("m"), ModelPolicy("b"), ModelPolicy("c"))
IDEMPOTENT = (ModelPolicy("m", idempotent=True), ModelPolicy("b"), ModelPolicy("c"))
HELD = ((Replica("m"),), (Replica("b"), Replica("b", "2")), (Replica("c"),))
STATIC = StaticAnswer(status=202, body='{"later": true}', headers={"X-Why": "none left"})


def word(path: DataPath, which: int, model: str = "m") -> int:
    return int(path.plane.words[path.plane.page.model_row(model) + MODEL_LADDER + which])


def refused(path: DataPath) -> dict[str, int]:
    return {why.name: count for why in Refused if (count := word(path, LadderWord.REFUSED + why))}


def step(path: DataPath) -> LadderStep:
    assert path.plane.ladders is not None
    return path.plane.ladders.by_model["m"].at


async def infer(client: Client, body: bytes = b"{}", *fields: bytes) -> Message:
    return await client.ask(post(body, *fields, target=INFER))


class Worker:
    """Answers with its name and what it was asked, unless it is down: then it resets."""

    def __init__(self, *fields: bytes) -> None:
        self.down = False
        self.fields = fields
        self.asked: list[Message] = []

    async def __call__(self, origin: OriginConnection) -> None:
        while True:
            asked = await origin.request()
            if self.down:
                origin.reset()
                return
            self.asked.append(asked)
            await origin.send(answer(b"<" + asked.body + b">", b"Content-Type: a/b", b"X-A: b", *self.fields))


# --- the cache --------------------------------------------------------------------------------------------------------


def test_when_all_workers_are_gone_the_cache_answers_byte_for_byte() -> None:
    worker = Worker(b"x-request-id: of-the-worker", b"Date: today")
    binary = b'{"a": 1}' + bytes(range(256))
    length = b"Inference-Header-Content-Length: 8"

    @on_data_path(worker, models=MODELS, ladders=(Model(name="m", cache=Cache()),), policies=SLOW)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        good = await infer(client, binary, length)
        assert not good.values(b"warmroute-degraded")
        worker.down = True
        first = await infer(client, binary, length)
        again = await infer(client, binary, length, b"x-request-id: mine")
        for told in (first, again):
            assert (told.status, told.body) == (200, good.body)
            assert told.value(b"content-type") == b"a/b"
            assert told.value(b"x-a") == b"b"
            assert told.value(b"date") == b"today"
            assert told.value(b"age") == b"0"
            assert told.value(b"cache-status").startswith(b"warmroute; hit; ttl=")
            assert told.value(b"warmroute-degraded") == b"cache"
        assert again.value(b"x-request-id") == b"mine"
        assert first.value(b"x-request-id") != b"of-the-worker"
        await path.origin.stop()
        other = await infer(client, binary, b"Inference-Header-Content-Length: 9")
        assert other.status == 503
        assert other.value(b"retry-after")
        assert path.outcomes == {"ok": 1, "degraded_cache": 2, "no_candidate": 1}
        assert (word(path, LadderWord.BY_CACHE), word(path, LadderWord.MISSES)) == (2, 1)
        assert word(path, LadderWord.FILLS) == 1
        assert word(path, LadderWord.REFUSALS) == 1
        assert step(path) is LadderStep.CACHE
        assert path.plane.essential_only

    scenario()


def test_a_body_in_chunks_has_the_key_of_the_same_in_one_piece_and_an_answer_in_pieces_is_kept() -> None:
    async def slow(origin: OriginConnection) -> None:
        for _ in range(1):
            await origin.request()
            await origin.send(b"HTTP/1.1 200 OK\r\nContent-Length: 40000\r\n\r\n" + b"a" * 10000)
            for _ in range(3):
                await asyncio.sleep(0.005)
                await origin.send(b"a" * 10000)
        await origin.request()

    @on_data_path(slow, models=MODELS, ladders=(Model(name="m", cache=Cache()),), policies=SLOW)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        await client.send(request(b"POST %s HTTP/1.1" % INFER, CHUNKED) + chunk(b"01234"))
        await asyncio.sleep(0.01)
        good = await client.ask(chunk(b"56789") + b"0\r\n\r\n")
        assert good.body == b"a" * 40000
        told = await infer(client, b"0123456789")
        assert told.value(b"warmroute-degraded") == b"cache"
        assert told.body == good.body

    scenario()


@pytest.mark.parametrize(
    ("cache", "answers", "why"),
    [
        (Cache(), b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"a", b"b"), "STREAM"),
        (Cache(), answer(b"a", b"Content-Type: text/event-stream"), "STREAM"),
        (Cache(), answer(b"a", status=b"400 Bad"), "STATUS"),
        (Cache(), answer(b"a", b"Cache-Control: no-store"), "ANSWER_CONTROL"),
        (Cache(), answer(b"a", b"Set-Cookie: a=b"), "ANSWER_CONTROL"),
        (Cache(max_entry_bytes=256), answer(b"a" * 300), "SIZE"),
        (Cache(paths=("/v1/*",)), answer(b"a"), "PATH"),
        (Cache(tenant_header="x-tenant"), answer(b"a"), "NO_TENANT"),
    ],
)
def test_what_is_not_kept_is_not_told(cache: Cache, answers: bytes, why: str) -> None:
    @on_data_path(says(answers), models=MODELS, ladders=(Model(name="m", cache=cache),), policies=SLOW)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        await infer(client)
        assert refused(path) == {why: 1}
        assert word(path, LadderWord.FILLS) == 0

    scenario()


@pytest.mark.parametrize(
    "fields",
    [(b"Cache-Control: no-store",), (b"Authorization: Bearer a",), (b"Cookie: a=b",), (b'If-Match: "a"',)],
)
def test_callers_who_want_or_say_otherwise_have_nothing_kept(fields: tuple[bytes, ...]) -> None:
    worker = Worker()

    @on_data_path(worker, models=MODELS, ladders=(Model(name="m", cache=Cache()),), policies=SLOW)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        await infer(client, b"{}", *fields)
        assert word(path, LadderWord.FILLS) == 0
        await infer(client, b"{}")
        assert word(path, LadderWord.FILLS) == 1
        worker.down = True
        assert (await infer(client, b"{}", *fields)).status == 502
        assert (await infer(client, b"{}")).status == 200

    scenario()


@pytest.mark.parametrize(
    "answers",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"data: 1\n\n", b"data: 2\n\n"),
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\ndata: 2\n\n",
    ],
)
def test_a_stream_is_kept_where_that_is_configured_and_it_came_whole(answers: bytes) -> None:
    async def script(origin: OriginConnection) -> None:
        await origin.request()
        await origin.send(answers)

    @on_data_path(script, models=MODELS, ladders=(Model(name="m", cache=Cache(streams=True)),), policies=SLOW)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        good = await infer(client)
        assert good.body == b"data: 1\n\ndata: 2\n\n"
        path.origin.script = silent
        await path.origin.stop()
        told = await infer(client)
        assert told.value(b"warmroute-degraded") == b"cache"
        assert told.body == good.body

    scenario()


def test_a_stream_that_was_cut_is_not_kept() -> None:
    async def script(origin: OriginConnection) -> None:
        await origin.request()
        await origin.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"data: 1\n\n"))

    @on_data_path(script, models=MODELS, ladders=(Model(name="m", cache=Cache(streams=True)),), policies=SLOW)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        await client.send(post(b"{}", target=INFER))
        await client.rest()
        await path.until(lambda: path.outcomes, "counted")
        assert refused(path) == {"CUT": 1}
        assert word(path, LadderWord.FILLS) == 0

    scenario()


def test_no_tenant_is_told_what_another_was() -> None:
    worker = Worker()
    cache = Cache(tenant_header="x-tenant")

    @on_data_path(worker, models=MODELS, ladders=(Model(name="m", cache=cache),), policies=SLOW)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        await infer(client, b"{}", b"x-tenant: one")
        worker.down = True
        assert (await infer(client, b"{}", b"x-tenant: one")).status == 200
        assert (await infer(client, b"{}", b"x-tenant: two")).status == 502
        assert (await infer(client, b"{}")).status in (502, 503)

    scenario()


def test_nothing_is_kept_while_degraded() -> None:
    worker = Worker()

    @on_data_path(
        worker,
        models=MODELS,
        ladders=(Model(name="m", cache=Cache()),),
        policies=replace(QUICK, ladder=LadderPolicy(failures=1, hold_s=0.0, trial_s=0.0, successes=5)),
        sweep=True,
    )
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        await infer(client, b"1")
        worker.down = True
        assert (await infer(client, b"1")).value(b"warmroute-degraded") == b"cache"
        worker.down = False
        await asyncio.sleep(0.06)  # the quarantine
        for body in (b"2", b"3", b"4", b"5"):
            assert (await infer(client, body)).status == 200
        assert refused(path) == {"DEGRADED": 4}
        assert word(path, LadderWord.FILLS) == 1
        assert step(path) is LadderStep.CACHE
        assert (await infer(client, b"6")).status == 200
        assert step(path) is LadderStep.REPLICA
        assert not path.plane.essential_only
        await infer(client, b"6")
        assert word(path, LadderWord.FILLS) == 2

    scenario()


def test_memory_that_is_short_stops_filling_and_gives_back() -> None:
    @on_data_path(echo, models=MODELS, ladders=(Model(name="m", cache=Cache()),), policies=SLOW)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        for number in range(8):
            await infer(client, b"%d" % number)
        path.plane.flush(time.monotonic())
        assert word(path, LadderWord.ENTRIES_NOW) == 8
        path.plane.tighten(time.monotonic())
        path.plane.flush(time.monotonic())
        assert word(path, LadderWord.ENTRIES_NOW) == 6
        await infer(await path.connect(), b"9")
        assert refused(path) == {"DEGRADED": 1}
        path.plane.relax()

    scenario()


# --- the second tier --------------------------------------------------------------------------------------------------


class Store:
    """The control process's part: takes what is sent, and answers what it is told to."""

    def __init__(self, path: DataPath, *, answers: bool = True) -> None:
        self.sent: list[AnswerKept] = []
        self.asked: list[AnswerAsked] = []
        self.answers = answers
        self.takes = True
        self.tier = SharedTier(asyncio.get_running_loop(), time.monotonic, self.take)
        assert path.plane.ladders is not None
        path.plane.ladders.tier = self.tier

    def take(self, message: object) -> bool:
        if isinstance(message, AnswerKept):
            self.sent.append(message)
        elif isinstance(message, AnswerAsked) and self.takes:
            self.asked.append(message)
            if self.answers:
                asyncio.get_running_loop().call_soon(self.reply, message)
        return self.takes

    def reply(self, asked: AnswerAsked) -> None:
        for kept in self.sent:
            if kept.key == asked.key:
                found = AnswerFound(asked.number, kept.head, kept.body, 9_000, kept.age_s)
                self.tier.found(found)
                return
        self.tier.found(AnswerFound(asked.number))


SHARED = Model(name="m", cache=Cache(redis=SharedCache(wait_ms=20)), static_answer=STATIC)


def test_what_this_process_has_not_comes_from_the_second_tier() -> None:
    worker = Worker()

    @on_data_path(worker, models=MODELS, ladders=(SHARED,), policies=SLOW)
    async def scenario(path: DataPath) -> None:
        store = Store(path)
        client = await path.connect()
        good = await infer(client, b"one")
        assert len(store.sent) == 1
        assert path.plane.ladders is not None
        path.plane.ladders.clear()
        worker.down = True
        told = await infer(client, b"one")
        assert (told.status, told.body) == (200, good.body)
        assert told.value(b"warmroute-degraded") == b"cache"
        assert told.value(b"age") == b"9"
        assert (await infer(client, b"two")).value(b"warmroute-degraded") == b"static"
        assert len(store.asked) == 2
        assert (word(path, LadderWord.SHARED_HITS), word(path, LadderWord.SHARED_MISSES)) == (1, 1)
        path.plane.flush(time.monotonic())
        assert word(path, LadderWord.ENTRIES_NOW) == 0  # nothing is written while degraded
        assert len(store.sent) == 1
        assert path.outcomes == {"ok": 1, "degraded_cache": 1, "degraded_static": 1}

    scenario()


def test_the_second_tier_tells_nobody_what_was_kept_by_other_terms() -> None:
    worker = Worker()

    def by(field: str, ttl_s: float = 600.0) -> tuple[Model, ...]:
        return (Model(name="m", cache=Cache(tenant_header=field, ttl_s=ttl_s, redis=SharedCache(wait_ms=20))),)

    @on_data_path(worker, models=MODELS, ladders=by("x-org"), policies=SLOW)
    async def scenario(path: DataPath) -> None:
        store = Store(path)
        ladders = path.plane.ladders
        assert ladders is not None
        client = await path.connect()
        await infer(client, b"q", b"x-org: 7")
        assert len(store.sent) == 1
        await path.origin.stop()
        ladders.configure(by("x-user"), SLOW.ladder, time.monotonic())
        path.plane.targets.clear()
        assert (await infer(client, b"q", b"x-user: 7")).status == 503
        assert (word(path, LadderWord.SHARED_HITS), word(path, LadderWord.SHARED_MISSES)) == (0, 1)
        ladders.configure(by("x-org", ttl_s=5), SLOW.ladder, time.monotonic())  # it was kept 9 s ago
        path.plane.targets.clear()
        assert (await infer(client, b"q", b"x-org: 7")).status == 503
        assert word(path, LadderWord.SHARED_REFUSED) == 1
        ladders.configure(by("x-org"), SLOW.ladder, time.monotonic())
        path.plane.targets.clear()
        assert (await infer(client, b"q", b"x-org: 7")).value(b"warmroute-degraded") == b"cache"

    scenario()


def test_a_second_tier_that_is_silent_is_not_waited_for() -> None:
    @on_data_path(Refusing, models=MODELS, ladders=(SHARED,), policies=SLOW)
    async def scenario(path: DataPath) -> None:
        store = Store(path, answers=False)
        client = await path.connect()
        began = time.perf_counter()
        assert (await infer(client)).value(b"warmroute-degraded") == b"static"
        assert 0.015 < time.perf_counter() - began < 1.0
        store.tier.found(AnswerFound(store.asked[0].number, b"HTTP/1.1 200 OK\r\n", b"late"))
        assert (await infer(client)).status == 202  # nothing of it came
        gone = await path.connect()
        await gone.send(post(b"{}", target=INFER))
        await path.until(lambda: len(store.asked) == 3, "asked")
        gone.reset()
        await path.until(lambda: "client_abort" in path.outcomes, "gone")
        await asyncio.sleep(0.03)

    scenario()


def test_a_second_tier_that_cannot_be_asked_is_passed_over_and_counted() -> None:
    @on_data_path(Refusing, models=MODELS, ladders=(SHARED,), policies=SLOW)
    async def scenario(path: DataPath) -> None:
        store = Store(path)
        store.takes = False
        client = await path.connect()
        assert (await infer(client)).value(b"warmroute-degraded") == b"static"
        assert not store.asked
        assert (word(path, LadderWord.SHARED_DROPPED), word(path, LadderWord.SHARED_MISSES)) == (1, 0)

    scenario()


# --- another model ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fallback", "target"),
    [("b", b"/v2/models/b/infer"), ("b@2", b"/v2/models/b/versions/2/infer")],
)
def test_a_request_falls_back_to_another_model(fallback: str, target: bytes) -> None:
    @on_data_path(Refusing, echo, models=MODELS, held=HELD, ladders=(Model(name="m", fallback=(fallback,)),))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        for _ in range(3):
            told = await infer(client, b"body")
            assert (told.status, told.body) == (200, b"body")
            assert told.value(b"warmroute-degraded") == b"fallback"
            assert told.value(b"warmroute-degraded-model") == fallback.encode()
        assert {asked.start for asked in path.origins[1].requests} == {b"POST %s HTTP/1.1" % target}
        assert path.outcomes == {"ok": 3}
        assert word(path, LadderWord.BY_FALLBACK) == 3
        assert step(path) is LadderStep.FALLBACK
        path.plane.settle(time.monotonic())
        assert sum(path.plane.words[path.plane.page.model_row("b") : path.plane.page.model_row("b") + 40]) == 0

    scenario()


def test_the_next_fallback_is_asked_where_the_first_fails_too() -> None:
    @on_data_path(
        Refusing,
        Refusing,
        echo,
        models=MODELS,
        held=HELD,
        ladders=(Model(name="m", fallback=("b", "b@2", "c")),),
        policies=SLOW,
    )
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        told = await infer(client, b"body")
        assert told.value(b"warmroute-degraded-model") == b"c"
        (asked,) = path.origins[2].requests
        assert asked.start == b"POST /v2/models/c/infer HTTP/1.1"
        assert asked.value(b"warmroute-attempt") == b"3"

    scenario()


@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_an_openai_body_names_the_other_model_and_its_length_is_right(framing: str) -> None:
    body = b'{"messages": [ {"a":"\\u00e9"} ],  "model": "m", "n": 1e3}'

    @on_data_path(Refusing, echo, models=MODELS, held=HELD, ladders=(Model(name="m", fallback=("b",)),))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        kind = b"Content-Type: application/json"
        if framing == "length":
            told = await client.ask(post(body, kind, target=b"/v1/chat/completions"))
        else:
            await client.send(request(b"POST /v1/chat/completions HTTP/1.1", kind, CHUNKED) + chunk(body[:20]))
            await asyncio.sleep(0.01)
            told = await client.ask(chunk(body[20:]) + b"0\r\n\r\n")
        assert told.value(b"warmroute-degraded") == b"fallback"
        (asked,) = path.origins[1].requests
        assert asked.body == b'{"messages":[ {"a":"\\u00e9"} ],"model":"b","n":1e3}'
        assert asked.value(b"content-length") == b"%d" % len(asked.body)
        assert not asked.values(b"transfer-encoding")

    scenario()


def test_the_field_that_names_the_model_names_the_other_one() -> None:
    @on_data_path(Refusing, echo, models=MODELS, held=HELD, ladders=(Model(name="m", fallback=("b",)),))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        await client.ask(post(b"x", b"Warmroute-Model: m", target=b"/predict"))
        (asked,) = path.origins[1].requests
        assert asked.start == b"POST /predict HTTP/1.1"
        assert asked.value(b"warmroute-model") == b"b"

    scenario()


@pytest.mark.parametrize(("models", "status"), [(MODELS, 502), (IDEMPOTENT, 200)])
def test_what_may_have_begun_falls_back_only_where_twice_does_no_harm(
    models: tuple[ModelPolicy, ...], status: int
) -> None:
    @on_data_path(resets, echo, models=models, held=HELD, ladders=(Model(name="m", fallback=("b",)),), policies=SLOW)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        told = await infer(client)
        assert told.status == status
        assert len(path.origins[1].requests) == (1 if status == 200 else 0)

    scenario()


def test_an_error_of_the_worker_goes_through_unless_configured_and_unless_nobody_has_better() -> None:
    on = (*USUAL_FALLBACK_ON, FallbackOn.UPSTREAM_5XX, FallbackOn.UPSTREAM_BUSY)
    broken = says(answer(b"why", status=b"500 No"))

    @on_data_path(broken, models=MODELS, ladders=(Model(name="m", static_answer=STATIC),), policies=SLOW)
    async def passes(path: DataPath) -> None:
        assert (await infer(await path.connect())).status == 500

    @on_data_path(
        broken, models=MODELS, ladders=(Model(name="m", static_answer=STATIC, fallback_on=on),), policies=SLOW
    )
    async def stands_in(path: DataPath) -> None:
        told = await infer(await path.connect())
        assert (told.status, told.value(b"warmroute-degraded")) == (202, b"static")
        assert path.results == {"server_error": 1}
        assert path.outcomes == {"degraded_static": 1}

    @on_data_path(broken, models=MODELS, ladders=(Model(name="m", cache=Cache(), fallback_on=on),), policies=SLOW)
    async def nothing_better(path: DataPath) -> None:
        told = await infer(await path.connect())
        assert (told.status, told.body) == (500, b"why")
        assert path.outcomes == {"upstream_5xx": 1}

    passes()
    stands_in()
    nothing_better()


# --- the last steps ---------------------------------------------------------------------------------------------------


def test_a_static_answer_is_told_where_nothing_better_is_left() -> None:
    @on_data_path(Refusing, models=MODELS, ladders=(Model(name="m", cache=Cache(), static_answer=STATIC),))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        for _ in range(2):
            told = await infer(client)
            assert (told.status, json.loads(told.body)) == (202, {"later": True})
            assert told.start == b"HTTP/1.1 202 Accepted"
            assert told.value(b"content-type") == b"application/json"
            assert told.value(b"x-why") == b"none left"
            assert told.value(b"warmroute-degraded") == b"static"
            assert told.value(b"x-request-id")
        assert path.outcomes == {"degraded_static": 2}

    scenario()


def test_the_last_step_is_503_within_ten_milliseconds() -> None:
    """Median of many, so that a busy machine does not decide."""

    @on_data_path(
        Refusing,
        Refusing,
        models=MODELS,
        held=HELD,
        policies=SLOW,
        ladders=(Model(name="m", fallback=("b",), cache=Cache()),),
    )
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        took = []
        for _ in range(21):
            began = time.perf_counter()
            told = await infer(client)
            took.append(time.perf_counter() - began)
            assert told.status == 503
            assert int(told.value(b"retry-after")) >= 1
            assert b"no step of the ladder has an answer" in told.body
        assert sorted(took)[10] < 0.010
        assert word(path, LadderWord.REFUSALS) == 21

    scenario()


def test_a_deadline_is_answered_from_below_where_that_is_configured() -> None:
    on = (FallbackOn.DEADLINE_EXCEEDED,)

    @on_data_path(
        silent,
        echo,
        models=IDEMPOTENT,
        held=HELD,
        ladders=(Model(name="m", fallback=("b",), static_answer=STATIC, fallback_on=on),),
    )
    async def scenario(path: DataPath) -> None:
        told = await infer(await path.connect(), b"{}", b"x-request-timeout-ms: 50")
        assert told.value(b"warmroute-degraded") == b"static"
        assert path.origins[1].requests == []

    scenario()


def test_a_model_that_waits_does_so_before_it_is_degraded_and_not_while_it_is() -> None:
    waiting = ModelPolicy("m", on_no_candidate=OnNoCandidate.WAIT)

    @on_data_path(
        echo,
        models=(waiting,),
        replicas=(Replica("m", state=State.LOADING),),
        configured=(Model(name="m", wait=Wait(max_s=0.1)),),
        ladders=(Model(name="m", static_answer=STATIC),),
        policies=SLOW,
    )
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        took = []
        for _ in range(3):
            began = time.perf_counter()
            assert (await infer(client)).value(b"warmroute-degraded") == b"static"
            took.append(time.perf_counter() - began)
        assert took[0] >= 0.095
        assert min(took[1:]) < 0.05

    scenario()


# --- what moves nothing for others ------------------------------------------------------------------------------------


def fell(path: DataPath, *steps: LadderStep) -> None:
    """Have the requests that name no version begin further down."""
    assert path.plane.ladders is not None
    for one in steps:
        path.plane.ladders.by_model["m"].failed("m", one, time.monotonic(), "test", certain=True)


def test_a_dead_version_degrades_its_own_requests_only() -> None:
    @on_data_path(
        echo,
        Refusing,
        models=MODELS,
        held=((Replica("m", "1"),), (Replica("m", "2"),)),
        ladders=(Model(name="m", static_answer=STATIC),),
        policies=SLOW,
    )
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        for _ in range(4):
            told = await client.ask(post(b"x", target=b"/v2/models/m/versions/2/infer"))
            assert told.value(b"warmroute-degraded") == b"static"
            told = await client.ask(post(b"x", target=b"/v2/models/m/versions/1/infer"))
            assert (told.status, told.body) == (200, b"x")
            assert (await infer(client, b"y")).body == b"y"
        assert path.plane.ladders is not None
        model = path.plane.ladders.by_model["m"]
        assert [model.degraded(place) for place in ("m@2", "m@1", "m")] == [True, False, False]
        assert step(path) is LadderStep.STATIC  # the lowest is what is shown

    scenario()


def test_a_request_that_cannot_fall_back_takes_the_fallback_from_nobody_else() -> None:
    @on_data_path(
        Refusing,
        echo,
        models=MODELS,
        held=HELD,
        ladders=(Model(name="m", fallback=("b",), static_answer=STATIC),),
        policies=SLOW,
    )
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        chat, kind = b"/v1/chat/completions", b"Content-Type: application/json"
        long = b'{"model":"m","pad":"' + b"x" * (1 << 20) + b'"}'
        for _ in range(4):
            told = await client.ask(post(b'{"model":"m"}', kind, target=chat))
            assert told.value(b"warmroute-degraded") == b"fallback"
            other = await path.connect()
            assert (await other.ask(post(long, kind, target=chat))).value(b"warmroute-degraded") == b"static"
        assert step(path) is LadderStep.FALLBACK

    scenario()


def test_a_trial_that_may_not_be_repeated_takes_nothing_from_the_fallback_and_is_told_as_it_failed() -> None:
    policies = replace(QUICK, ladder=LadderPolicy(hold_s=0.0, trial_s=60.0))

    @on_data_path(
        resets, echo, models=MODELS, held=HELD, ladders=(Model(name="m", fallback=("b",)),), policies=policies
    )
    async def scenario(path: DataPath) -> None:
        fell(path, LadderStep.REPLICA)
        client = await path.connect()
        trial = await infer(client)
        assert (trial.status, trial.values(b"retry-after")) == (502, [])
        for _ in range(3):
            assert (await infer(client)).value(b"warmroute-degraded") == b"fallback"
        assert step(path) is LadderStep.FALLBACK
        assert path.outcomes == {"upstream_reset": 1, "ok": 3}

    scenario()


def test_a_callers_own_time_and_a_workers_errors_degrade_nobody_else() -> None:
    on = (*USUAL_FALLBACK_ON, FallbackOn.UPSTREAM_5XX, FallbackOn.UPSTREAM_BUSY, FallbackOn.DEADLINE_EXCEEDED)

    async def script(origin: OriginConnection) -> None:
        while True:
            asked = await origin.request()
            if asked.body == b"slow":
                await asyncio.sleep(0.05)
            status = {b"fail": b"500 No", b"busy": b"429 Later"}.get(asked.body, b"200 OK")
            await origin.send(answer(b"a", status=status))

    @on_data_path(
        script, models=MODELS, ladders=(Model(name="m", static_answer=STATIC, fallback_on=on),), policies=SLOW
    )
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        for body in (b"slow", b"fail", b"busy"):
            for _ in range(4):
                told = await infer(client, body, b"x-request-timeout-ms: 20")
                assert told.value(b"warmroute-degraded") == b"static"
        assert step(path) is LadderStep.REPLICA
        assert (await infer(client)).body == b"a"

    scenario()


def test_a_model_comes_back_though_no_request_can_use_its_fallback() -> None:
    @on_data_path(
        echo,
        echo,
        models=MODELS,
        held=HELD,
        ladders=(Model(name="m", fallback=("b",), cache=Cache()),),
        policies=QUICK,
    )
    async def scenario(path: DataPath) -> None:
        fell(path, LadderStep.REPLICA, LadderStep.FALLBACK)
        await asyncio.sleep(0.03)
        long = b'{"model":"m","pad":"' + b"x" * (1 << 20) + b'"}'
        for _ in range(8):
            client = await path.connect()
            told = await client.ask(post(long, b"Content-Type: application/json", target=b"/v1/chat/completions"))
            assert (told.status, told.values(b"warmroute-degraded")) == (200, [])
        assert step(path) is LadderStep.REPLICA

    scenario()


def test_a_limit_that_is_configured_is_the_models_failure() -> None:
    @on_data_path(
        silent,
        models=MODELS,
        model_timeouts=ModelTimeouts(total_s=0.02),
        ladders=(Model(name="m", static_answer=STATIC, fallback_on=(FallbackOn.DEADLINE_EXCEEDED,)),),
        policies=SLOW,
    )
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        for _ in range(3):
            assert (await infer(client)).value(b"warmroute-degraded") == b"static"
        assert step(path) is LadderStep.STATIC

    scenario()


def test_a_request_whose_time_is_over_and_that_nobody_answers_is_told_so() -> None:
    ladder = Model(name="m", cache=Cache(), fallback_on=(FallbackOn.DEADLINE_EXCEEDED,))

    @on_data_path(silent, models=MODELS, ladders=(ladder,))
    async def scenario(path: DataPath) -> None:
        told = await infer(await path.connect(), b"{}", b"x-request-timeout-ms: 20")
        assert told.status == 504
        assert path.outcomes == {"deadline_exceeded": 1}

    scenario()


def test_a_workers_error_that_was_set_aside_for_a_fallback_that_failed_is_502() -> None:
    on = (*USUAL_FALLBACK_ON, FallbackOn.UPSTREAM_5XX)

    @on_data_path(
        says(answer(b"why", status=b"500 No")),
        Refusing,
        models=IDEMPOTENT,
        held=HELD,
        ladders=(Model(name="m", fallback=("b",), fallback_on=on),),
        policies=SLOW,
    )
    async def scenario(path: DataPath) -> None:
        told = await infer(await path.connect())
        assert (told.status, told.values(b"retry-after")) == (502, [])
        assert path.outcomes == {"upstream_5xx": 1}

    scenario()


@pytest.mark.parametrize("what", [b"", b"/ready", b"/config"])
def test_questions_about_a_model_are_never_answered_from_below(what: bytes) -> None:
    ladder = Model(name="m", fallback=("b",), cache=Cache(methods=tuple(CachedMethod), deterministic=True))

    @on_data_path(Refusing, echo, models=MODELS, held=HELD, ladders=(ladder,), policies=SLOW)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        assert (await infer(client)).value(b"warmroute-degraded") == b"fallback"
        told = await client.ask(request(b"GET /v2/models/m%s HTTP/1.1" % what))
        assert told.status == 503
        assert not told.values(b"warmroute-degraded")
        assert len(path.origins[1].requests) == 1

    scenario()


@pytest.mark.parametrize("asked", [request(b"GET /v2/models/m HTTP/1.1"), post(b"bad", target=INFER)])
def test_metadata_and_errors_are_no_proof_that_a_model_answers(asked: bytes) -> None:
    script = says(answer(b"no", status=b"404 None"))

    @on_data_path(script, models=MODELS, ladders=(Model(name="m", static_answer=STATIC),), policies=SLOW)
    async def scenario(path: DataPath) -> None:
        assert path.plane.ladders is not None
        model = path.plane.ladders.by_model["m"]
        for _ in range(2):
            model.failed("m", LadderStep.REPLICA, time.monotonic(), "upstream_reset")
            assert (await (await path.connect()).ask(asked)).status == 404
        model.failed("m", LadderStep.REPLICA, time.monotonic(), "upstream_reset")
        assert step(path) is LadderStep.STATIC

    scenario()


def test_a_request_without_a_kept_answer_goes_to_the_fallback_above() -> None:
    @on_data_path(
        Refusing,
        echo,
        models=MODELS,
        held=HELD,
        ladders=(Model(name="m", fallback=("b",), cache=Cache()),),
        policies=SLOW,
    )
    async def scenario(path: DataPath) -> None:
        fell(path, LadderStep.REPLICA, LadderStep.FALLBACK)
        client = await path.connect()
        for number in range(4):
            told = await infer(client, b"%d" % number)
            assert told.value(b"warmroute-degraded") == b"fallback"
        assert step(path) is LadderStep.CACHE  # the hold is not over
        assert path.origins[0].requests == []

    scenario()


def test_no_retry_is_waited_for_where_nobody_else_is_there() -> None:
    policies = replace(SLOW, retry=RetryPolicy(attempts=1, backoff_min_ms=2000, backoff_max_ms=2000))

    @on_data_path(Refusing, models=IDEMPOTENT, ladders=(Model(name="m", static_answer=STATIC),), policies=policies)
    async def scenario(path: DataPath) -> None:
        began = time.perf_counter()
        assert (await infer(await path.connect())).value(b"warmroute-degraded") == b"static"
        assert time.perf_counter() - began < 1.0

    scenario()


# --- back up ----------------------------------------------------------------------------------------------------------


def test_recovery_climbs_step_by_step() -> None:
    first, second = Worker(), Worker()

    @on_data_path(
        first,
        second,
        models=IDEMPOTENT,
        held=HELD,
        ladders=(Model(name="m", fallback=("b",), cache=Cache()),),
        policies=QUICK,
    )
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        await infer(client)
        first.down = second.down = True
        while step(path) is not LadderStep.CACHE:
            assert (await infer(client)).value(b"warmroute-degraded") == b"cache"
        first.down = second.down = False
        await asyncio.sleep(0.06)
        seen: list[tuple[LadderStep, bytes]] = []
        while step(path) is not LadderStep.REPLICA:
            told = await infer(client)
            assert told.status == 200
            seen.append((step(path), (told.values(b"warmroute-degraded") or [b""])[0]))
            await asyncio.sleep(0.005)
        steps = [now for index, (now, _) in enumerate(seen) if not index or seen[index - 1][0] is not now]
        assert steps == [LadderStep.CACHE, LadderStep.FALLBACK, LadderStep.REPLICA]
        assert [kind for _, kind in seen[-2:]] == [b"", b""]  # the trials that brought it back

    scenario()


def test_a_replica_that_is_there_is_asked_before_anybody_is_refused() -> None:
    worker = Worker()

    @on_data_path(worker, models=MODELS, ladders=(Model(name="m", cache=Cache()),), policies=SLOW)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        await infer(client, b"kept")
        worker.down = True
        while step(path) is not LadderStep.CACHE:
            assert (await infer(client, b"kept")).value(b"warmroute-degraded") == b"cache"
        worker.down = False
        await asyncio.sleep(0.06)
        assert step(path) is LadderStep.CACHE  # held for a minute
        told = await infer(client, b"new")
        assert (told.status, told.body) == (200, b"<new>")
        assert not told.values(b"warmroute-degraded")

    scenario()


def test_a_long_body_passes_as_it_comes_and_is_not_kept() -> None:
    @on_data_path(echo, models=MODELS, ladders=(Model(name="m", cache=Cache(max_entry_bytes=4 << 20)),))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        body = b"x" * ((1 << 20) + 1)
        assert (await infer(client, body)).body == body
        assert refused(path) == {"BODY": 1}

    scenario()


def test_a_model_without_a_ladder_knows_nothing_of_it() -> None:
    @on_data_path(Refusing, models=MODELS, ladders=(Model(name="b", static_answer=STATIC),))
    async def scenario(path: DataPath) -> None:
        assert (await infer(await path.connect())).status == 502
        assert not path.plane.essential_only

    scenario()
