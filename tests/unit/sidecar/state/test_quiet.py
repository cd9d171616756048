"""What counts as silence of the store: only what this process could have heard."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from router.policy import FreshnessPolicy
from sidecar.settings import StateStore
from sidecar.state import store
from sidecar.state.store import BURST, CHECK_S, QUIET_S, RedisSource
from tests.support.loops import beside, in_loop, turns


class Bench:
    """A subscription, a client and a loop whose time the test says."""

    def __init__(self) -> None:
        self.now = 100.0
        self.source = RedisSource(StateStore(), FreshnessPolicy(), clock=lambda: self.now, rng=lambda: 0.5)
        self.waits: list[float] = []
        self.stands: list[float] = []
        self.message: object = None

    def lives(self, seconds: float) -> None:
        """Let time pass in which the loop goes round as it should."""
        for _ in range(round(seconds / CHECK_S)):
            self.now += CHECK_S
            self.source._check()

    async def get_message(self, timeout: float) -> object:  # noqa: ASYNC109
        """Wait as long as was asked, of which the loop stands still for a while at the end."""
        self.waits.append(timeout)
        stands_s = self.stands.pop(0) if self.stands else 0.0
        self.lives(max(0.0, timeout - stands_s))
        self.now += stands_s
        return self.message if not self.stands and len(self.waits) > 1 else None

    async def next_message(self) -> object:
        return await self.source._next_message(cast("Any", self))


@in_loop
async def test_a_subscription_is_silent_once_nothing_came_for_long_enough() -> None:
    bench = Bench()
    assert await bench.next_message() is None
    assert bench.waits == [QUIET_S]


@in_loop
async def test_what_came_while_the_loop_stood_still_is_heard_behind_it() -> None:
    bench = Bench()
    bench.stands, bench.message = [5.0], {"type": "message"}
    assert await bench.next_message() == bench.message
    assert bench.waits == [QUIET_S, pytest.approx(5.0 - CHECK_S)]


@in_loop
async def test_the_time_that_the_loop_stood_still_is_waited_for_again() -> None:
    bench = Bench()
    bench.stands = [2.0, 1.0, 0.0]
    assert await bench.next_message() is None
    lived_s = bench.now - 100.0 - (2.0 + 1.0)
    assert lived_s == pytest.approx(QUIET_S, abs=2.5 * CHECK_S)


@in_loop
async def test_a_burst_of_messages_takes_turns_with_everything_else() -> None:
    bench = Bench()
    taken = 0

    class Burst:
        async def get_message(self, timeout: float) -> object:  # noqa: ASYNC109
            nonlocal taken
            taken += 1
            return {"type": "pong"}

    async with beside(bench.source._listen(cast("Any", Burst()))):
        for turn in range(1, 5):
            await turns(1)
            assert taken == turn * BURST - 1


@in_loop
async def test_a_ping_that_ran_out_of_time_while_the_loop_stood_still_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store, "PING_S", 0.0)
    monkeypatch.setattr(store, "PING_TIMEOUT_S", 0.0)
    bench = Bench()
    asked = 0

    class Client:
        async def ping(self) -> None:
            nonlocal asked
            asked += 1
            if asked < 3:
                bench.now += 2.0  # the loop stood still
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError, match="no answer to PING"):
        await bench.source._ping(cast("Any", Client()), cast("Any", bench))
    await turns(1)
    assert asked == 3
