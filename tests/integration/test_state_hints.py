"""Hints over a real store: what one sidecar says of its breakers, and that another opens on its own evidence alone."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from router.hints import encode
from router.model import BreakersHinted, Hint
from router.policy import FreshnessPolicy
from router.wire import Keys
from sidecar.settings import StateStore
from sidecar.state.hints import HintExchange
from sidecar.state.store import RedisSource
from tests.support.http_origin import Handler, HttpOrigin
from tests.support.loops import beside, in_loop, until
from tests.support.redis_server import RedisServer
from tests.support.sidecar_process import SidecarProcess, sidecar_process
from tests.support.sidecars import until as until_so
from tests.support.state_writer import StateWriter, worker_record

KEYS = Keys("test")
A, B = Hint("a", "e1", "m", "1"), Hint("b", "e1", "m", "1")


class Sidecar:
    """What is open at one sidecar, and what it hears of others."""

    def __init__(self, name: str, url: str) -> None:
        self.open: tuple[Hint, ...] = ()
        self.hears: list[BreakersHinted] = []
        rng = random.Random(name).random
        self.exchange = HintExchange(
            name, opened=lambda: self.open, take=self.hears.append, clock=time.monotonic, rng=rng, least_s=0.05
        )
        settings = StateStore(url=url, namespace="test")
        self.source = RedisSource(settings, FreshnessPolicy(), clock=time.monotonic, rng=rng)
        self.source.hints = self.exchange

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with beside(self.source.run(lambda _: None)):
            await until(lambda: self.source.counts.connects > 0, "connected")
            yield


@in_loop
async def test_what_opens_is_told_once_and_what_closes_not_at_all(server: RedisServer) -> None:
    one, two = Sidecar("one", server.url), Sidecar("two", server.url)
    async with one.running(), two.running():
        one.open = (A,)
        await until(lambda: len(two.hears) == 1, "heard")
        assert two.hears[0].hints == (A,)
        one.open = (B, A)
        await until(lambda: len(two.hears) == 2, "the other one too")
        assert two.hears[1].hints == (B, A)
        for _ in range(200):  # it flaps: the messages have a rate all the same
            one.open = () if one.open else (A,)
            await asyncio.sleep(0.001)
        assert one.exchange.told <= 10
        one.open = ()
        await asyncio.sleep(0.2)
        told = one.exchange.told
        await asyncio.sleep(0.2)
        assert one.exchange.told == told
    assert one.hears == []
    assert two.exchange.heard >= 3
    assert two.exchange.refused == {}


@in_loop
async def test_a_store_that_was_lost_is_told_again(server: RedisServer) -> None:
    one, two = Sidecar("one", server.url), Sidecar("two", server.url)
    one.open = (A,)
    async with one.running(), two.running():
        await until(lambda: one.exchange.told == 1, "told")
        server.kill()
        server.start()
        await until(lambda: one.exchange.told == 2, "told again")


@in_loop
async def test_nonsense_is_refused_and_counted_and_the_next_message_is_taken(server: RedisServer) -> None:
    one = Sidecar("one", server.url)
    writer = StateWriter(server.url, "test")
    async with one.running():
        for payload in ("{", '{"v":9}', " " * 20_000):
            await writer.command("PUBLISH", KEYS.hint_channel, payload)
        await writer.command("PUBLISH", KEYS.hint_channel, encode("other", (A,)))
        await until(lambda: len(one.hears) == 1, "taken")
    assert one.exchange.refused == {"malformed": 1, "version": 1, "over_limit": 1}


@in_loop
async def test_where_the_store_does_not_let_it_endpoints_are_followed_all_the_same(
    server: RedisServer, capfd: pytest.CaptureFixture[str]
) -> None:
    writer = StateWriter(server.url, "test")
    rules = ["+get", "+zrange", "+zrem", "+hgetall", "+hmget", "+eval", "&wr:{test}:delta"]
    common = ["+subscribe", "+unsubscribe", "+ping", "+hello", "+client", "+info"]
    await writer.command(
        "ACL", "SETUSER", "sidecar", "on", ">secret", "~wr:{test}:*", "resetchannels", "-@all", *rules, *common
    )
    await writer.put(worker_record("w"))
    one = Sidecar("one", server.url.replace("://", "://sidecar:secret@") if "://" in server.url else server.url)
    one.open = (A,)
    async with one.running():
        await until(lambda: bool(one.source.view.ids), "followed")
        await asyncio.sleep(0.3)
        assert one.source.counts.failures == 0


class Failing(Handler):
    """A worker that fails every request."""

    def get(self) -> None:
        self.answer(b"", 500)


def ask(running: SidecarProcess, times: int) -> list[int]:
    connection = http.client.HTTPConnection(running.listen, timeout=10)
    statuses = []
    for _ in range(times):
        connection.request("GET", "/v2/models/m")
        answer = connection.getresponse()
        answer.read()
        statuses.append(answer.status)
    connection.close()
    return statuses


def breaker(running: SidecarProcess) -> dict[str, Any]:
    (row,) = json.loads(running.read("/routes/explain?model=m")[1])["rows"]
    shown: dict[str, Any] = row["breaker"]
    return shown


def heard(running: SidecarProcess) -> int:
    found = re.search(r"^warmroute_breaker_hints_heard_total (\d+)", running.read("/metrics")[1].decode(), re.MULTILINE)
    return int(found[1]) if found else 0


def test_a_second_sidecar_opens_sooner_but_never_on_a_hint_alone(server: RedisServer, tmp_path: Path) -> None:
    worker = HttpOrigin(Failing)
    asyncio.run(StateWriter(server.url, "t", ttl_s=300).put(worker_record("w", port=worker.port)))
    settings = {
        "state": {"url": server.url, "namespace": "t"},
        "models": [{"name": "m", "default": True}],
        "policies": {
            "breaker": {"window_s": 120},
            "freshness": {"full_s": 100, "ttl_s": 300},
            "retry": {"attempts": 0},
        },
    }
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with (
        worker,
        sidecar_process(tmp_path / "one", settings) as one,
        sidecar_process(tmp_path / "two", settings) as two,
    ):
        assert ask(two, 9) == [500] * 9
        assert set(ask(one, 19)) == {500}
        assert heard(two) == 0
        assert ask(one, 2) == [500, 503]
        until_so(lambda: heard(two) >= 1, "the second one hears of it")
        assert breaker(two)["state"] == "closed"
        assert ask(two, 2) == [500, 503]  # the tenth call confirms it; alone it would have taken twenty
        until_so(lambda: breaker(two)["state"] == "open", "shown")
        shown = breaker(two)
        assert (shown["rule"], shown["evidence"]["calls"], shown["evidence"]["failed"]) == ("general", 10, 10)
