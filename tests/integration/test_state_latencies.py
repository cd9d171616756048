"""Latencies over a real store: told by one sidecar, heard by another, through its loss, its rules and its emptiness."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AbstractAsyncContextManager

import pytest

from router.model import ReplicaKey, ReplicaSketch
from router.policy import FreshnessPolicy, LatencyPolicy
from router.wire import Keys
from sidecar.settings import StateStore
from sidecar.state.latencies import LatencyExchange
from sidecar.state.store import RedisSource
from tests.support.loops import beside, in_loop, until
from tests.support.redis_server import RedisServer
from tests.support.state_writer import StateWriter

KEYS = Keys("test")
LATENCY = LatencyPolicy(window_s=1.2)
INTERVAL_S = 0.1
A = ReplicaKey("a", "e1", "m", "1", 0)
B = ReplicaKey("b", "e1", "m", "1", 0)


class Sidecar:
    """What one sidecar measures, and what it hears of others."""

    def __init__(self, name: str, url: str, *known: ReplicaKey) -> None:
        self.windows: dict[ReplicaKey, dict[int, int]] = {}
        self.changes = 0
        rng = random.Random(name).random
        self.exchange = LatencyExchange(
            name, LATENCY, rows=self.rows, known=set(known).__contains__, clock=time.monotonic, rng=rng,
            interval_s=INTERVAL_S,
        )  # fmt: skip
        settings = StateStore(url=url, namespace="test")
        self.source = RedisSource(settings, FreshnessPolicy(), clock=time.monotonic, rng=rng)
        self.source.latencies = self.exchange

    def rows(self) -> list[ReplicaSketch]:
        return [ReplicaSketch(key, self.changes, counts) for key, counts in self.windows.items()]

    def measure(self, key: ReplicaKey, counts: dict[int, int]) -> None:
        self.changes += 1
        self.windows[key] = counts

    @property
    def hears(self) -> dict[ReplicaKey, tuple[tuple[int, int], ...]]:
        self.exchange.heard.expire(time.monotonic())
        return {row.key: row.pairs for row in self.exchange.heard.all()}

    def running(self) -> AbstractAsyncContextManager[None]:
        return beside(self.source.run(lambda _: None))


@in_loop
async def test_each_hears_the_others_and_one_that_joins_late_hears_all_at_once(server: RedisServer) -> None:
    one, two = Sidecar("one", server.url, A, B), Sidecar("two", server.url, A, B)
    one.measure(A, {50: 3, 60: 1})
    two.measure(A, {50: 2})
    two.measure(B, {70: 7})
    async with one.running(), two.running():
        await until(lambda: one.hears == {A: ((50, 2),), B: ((70, 7),)}, "one hears two")
        await until(lambda: two.hears == {A: ((50, 3), (60, 1))}, "two hears one")
        late = Sidecar("late", server.url, A)
        async with late.running():
            await until(lambda: late.hears == {A: ((50, 5), (60, 1))}, "late hears both, of what it knows")
        two.measure(B, {})
        await until(lambda: one.hears == {A: ((50, 2),)}, "what has left the window is taken back")
    assert one.exchange.heard.refused == {}


@in_loop
async def test_without_the_store_others_count_for_one_window_and_again_when_it_is_back(server: RedisServer) -> None:
    one, two = Sidecar("one", server.url, A), Sidecar("two", server.url, A)
    one.measure(A, {50: 3})
    async with one.running(), two.running():
        await until(lambda: two.hears == {A: ((50, 3),)}, "heard")
        server.kill()
        lost_at = time.monotonic()
        assert two.hears
        await until(lambda: not two.hears, "own measurements alone", within_s=3.0)
        assert time.monotonic() - lost_at > LATENCY.window_s / 2
        server.start()
        await until(lambda: two.hears == {A: ((50, 3),)}, "heard from the new, empty store")


@in_loop
async def test_a_store_that_was_emptied_has_everything_again_soon(server: RedisServer) -> None:
    one, two = Sidecar("one", server.url, A), Sidecar("two", server.url, A)
    one.measure(A, {50: 3})
    writer = StateWriter(server.url, "test")
    async with one.running(), two.running():
        await until(lambda: bool(two.hears), "heard")
        await writer.command("FLUSHALL")
        late = Sidecar("late", server.url, A)
        async with late.running():
            await until(lambda: bool(late.hears), "told again")
        assert two.hears == {A: ((50, 3),)}


@in_loop
async def test_a_sidecar_of_another_relative_error_is_not_merged_but_counted(server: RedisServer) -> None:
    one, two = Sidecar("one", server.url, A), Sidecar("two", server.url, A)
    one.measure(A, {50: 3})
    two.exchange.configure(LatencyPolicy(window_s=1.2, relative_error=0.02))
    async with one.running(), two.running():
        await until(lambda: two.exchange.heard.refused["form"] > 0, "refused")
        assert two.hears == {}
        two.exchange.configure(LATENCY)
        await until(lambda: two.hears == {A: ((50, 3),)}, "merged once both are alike")


@pytest.mark.parametrize(
    ("rules", "hears"),
    [
        (["+get", "+zrange", "+zrem", "+hgetall", "+hmget", "+eval", "&wr:{test}:delta"], False),
        (["+@all", "-hset", "&wr:{test}:*"], True),
    ],
    ids=["as before latencies were told", "reads only"],
)
@in_loop
async def test_where_the_store_lets_it_not_tell_or_hear_endpoints_are_followed_all_the_same(
    server: RedisServer, rules: list[str], *, hears: bool
) -> None:
    writer = StateWriter(server.url, "test")
    common = ("on", ">secret", "~wr:{test}:*", "-@all", "+subscribe", "+unsubscribe", "+ping", "+hello", "+client")
    await writer.command("ACL", "SETUSER", "bound", *common, *rules)
    one = Sidecar("one", server.url, A)
    one.measure(A, {50: 3})
    bound = Sidecar("bound", server.url.replace("unix://", "unix://bound:secret@"), A)
    bound.measure(A, {60: 1})
    async with one.running(), bound.running():
        await until(lambda: bound.source.modes.mode == "live" and bound.source.view.complete, "it follows")
        await until(lambda: one.exchange.told > 0, "the other tells")
        if hears:
            await until(lambda: bool(bound.hears), "it hears")
        await asyncio.sleep(5 * INTERVAL_S)
        assert bool(bound.hears) is hears
        assert bound.source.counts.connects == 1
        assert bound.source.modes.mode == "live"
        assert bound.exchange.told == 0
        assert one.hears == {}
