"""Answers that callers have not taken yet: counted, and cut where they take nothing for too long."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.loops import in_loop
from tests.support.worker_parts import ReadableLog
from worker.serving.unread import DRAINING_S, Unread


class Caller:
    """One that takes what it is told to."""

    def __init__(self, left: int = 1000) -> None:
        self.left = left
        self.cut = 0

    def watched(self) -> int:
        return self.left

    def end(self) -> None:
        self.cut += 1


@in_loop
async def test_what_is_taken_slowly_goes_on_and_what_is_not_taken_is_cut() -> None:
    now, log = [0.0], ReadableLog()
    unread = Unread(unread_s=30.0, log=log, clock=lambda: now[0])
    slow, stuck = Caller(), Caller(500)
    with unread.watch(slow.watched, slow.end), unread.watch(stuck.watched, stuck.end):
        for at in (29.0, 30.0, 58.0, 87.0):
            now[0] = at
            slow.left -= 1
            unread.look()
        assert (slow.cut, stuck.cut, unread.cut, unread.watched) == (0, 1, 1, 1)
        now[0] += 30.0
        unread.look()
        assert slow.cut == 1
    assert [(told["answers"], told["left_bytes"]) for told in log.events("answers.cut")] == [(1, 500), (1, 996)]
    assert unread.watched == 0


@pytest.mark.parametrize("unread_s", [0.0, 30.0])
@in_loop
async def test_a_drain_waits_less_and_for_nobody_for_ever(unread_s: float) -> None:
    now = [0.0]
    unread = Unread(unread_s=unread_s, clock=lambda: now[0])
    stuck = Caller()
    with unread.watch(stuck.watched, stuck.end):
        now[0] = 29.0
        unread.look()
        assert stuck.cut == 0
        unread.draining = True
        unread.look()
        assert stuck.cut == 1
    assert unread.patience_s == DRAINING_S


@pytest.mark.parametrize("why", ["full", "draining"])
@in_loop
async def test_one_that_is_stuck_among_others_has_until_its_room_is_needed(why: str) -> None:
    now, taken = [0.0], [1000]
    unread = Unread(together_bytes=1 << 20, unread_s=30.0, clock=lambda: now[0])
    stuck, untold = Caller(), Caller()
    with (
        unread.sending(128 << 10, lambda: taken[0], stuck.end),
        unread.sending(128 << 10, lambda: None, untold.end),
    ):
        patience_s = 30.0
        for _ in range(3):
            now[0] += 29.0
            taken[0] += 1
            unread.look()
        assert (stuck.cut, unread.held_bytes) == (0, 256 << 10)
        if why == "draining":
            unread.draining, patience_s, now[0] = True, DRAINING_S, DRAINING_S
            taken[0] += 1
        with unread.hold(0 if unread.draining else 1 << 20):
            for now[0], cut in ((patience_s, 0), (patience_s + 1.9, 0), (patience_s + 2.0, 1)):
                taken[0] += 1
                unread.look()
                assert stuck.cut == cut
    assert (untold.cut, unread.cut, unread.held_bytes) == (0, 1, 0)


@in_loop
async def test_one_among_others_is_cut_once_its_connection_takes_nothing() -> None:
    now, taken = [0.0], [1000]
    unread = Unread(unread_s=30.0, clock=lambda: now[0])
    stuck = Caller()
    with unread.sending(1 << 30, lambda: taken[0], stuck.end):
        for now[0], taken[0], cut in ((1.0, 1500, 0), (20.0, 1600, 0), (49.9, 1600, 0), (50.0, 1600, 1)):
            unread.look()
            assert stuck.cut == cut


@in_loop
async def test_it_is_looked_by_itself_for_as_long_as_there_is_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.serving.unread.LOOK_S", 0.001)
    cut = asyncio.Event()
    unread = Unread(unread_s=0.001)
    with unread.watch(lambda: 1, cut.set):
        await asyncio.wait_for(cut.wait(), 10)


def test_with_as_many_held_nothing_more_is_run() -> None:
    unread = Unread(together_bytes=100)
    with unread.hold(60):
        assert unread.full == ""
        with unread.hold(60):
            assert unread.full == "the worker holds 120 bytes of answers that nobody has taken yet, no room for more"
    assert unread.held_bytes == 0
