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
