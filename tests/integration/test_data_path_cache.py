"""Kept answers on real sockets: what is kept and told of this process's own, and of the store's."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from router.ladder import LadderStep
from router.policy import LadderPolicy
from sidecar.channel import AnswerAsked, AnswerFound, AnswerKept
from sidecar.faults.rules import FaultRule
from sidecar.http1.shared_answers import SharedTier
from sidecar.settings import Admission, Cache, Model, SharedCache
from sidecar.telemetry.page import LadderWord
from tests.support.data_path import DataPath, Refusing, echo, on_data_path, says, silent
from tests.support.degrading import (
    INFER,
    MODELS,
    QUICK,
    SLOW,
    STATIC,
    Worker,
    infer,
    refused,
    step,
    word,
)
from tests.support.wires import CHUNKED, OriginConnection, answer, chunk, chunked, post, request

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
    ("kind", "direction", "refusals"),
    [
        ("corrupt", "response", {"FAULT": 1}),
        ("corrupt", "request", {"FAULT": 1}),
        ("slicing", "response", {}),
    ],
)
def test_what_a_fault_may_have_made_wrong_is_not_kept(kind: str, direction: str, refusals: dict[str, int]) -> None:
    @on_data_path(says(answer(b"good")), models=MODELS, ladders=(Model(name="m", cache=Cache()),), policies=SLOW)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        until = path.plane.clock() + 60
        path.inject(FaultRule(id="f", kind=kind, ratio=1.0, until=until, direction=direction, piece_bytes=1))
        await infer(client, b"{}")
        assert refused(path) == refusals
        assert word(path, LadderWord.FILLS) == (not refusals)

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
        ladders.configure(by("x-user"), SLOW.ladder, time.monotonic(), Admission())
        path.plane.targets.clear()
        assert (await infer(client, b"q", b"x-user: 7")).status == 503
        assert (word(path, LadderWord.SHARED_HITS), word(path, LadderWord.SHARED_MISSES)) == (0, 1)
        ladders.configure(by("x-org", ttl_s=5), SLOW.ladder, time.monotonic(), Admission())  # it was kept 9 s ago
        path.plane.targets.clear()
        assert (await infer(client, b"q", b"x-org: 7")).status == 503
        assert word(path, LadderWord.SHARED_REFUSED) == 1
        ladders.configure(by("x-org"), SLOW.ladder, time.monotonic(), Admission())
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
