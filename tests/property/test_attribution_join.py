"""Joining halves of requests: nothing is counted twice, nothing is lost, and nothing waits without a bound."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.traffic.attribution.joining import MAX_ATTEMPTS, Half, Join, Joined, Orphan, Side, apart_s, fits

HALVES = st.lists(
    st.tuples(
        st.sampled_from(Side),
        st.sampled_from("abcdef"),
        st.integers(0, 20).map(lambda tenth: tenth / 10),
        st.integers(0, 10).map(lambda tenth: tenth / 10),
        st.integers(0, 8).map(lambda tenth: tenth / 10),  # since the one before became known
        st.sampled_from(["", "w0", "w1"]),
        st.integers(1, 2),  # the attempt
        st.booleans(),  # whether it failed
    ),
    max_size=40,
)
Known = tuple[Side, str, float, float, float, str, int, bool]


def halves_of(known: list[Known]) -> list[tuple[float, Half]]:
    """Return halves with the moments at which they became known; a worker's lines are numbered."""
    found, now_s = [], 0.0
    for number, (side, name, began_s, took_s, passed_s, who, attempt, failed) in enumerate(known):
        now_s += passed_s
        key = f"e:{number // 2}" if side is Side.WORKER else ""  # two of them may be one line, read twice
        found.append((now_s, Half(side, name, began_s, took_s, who, failed, "m@1", attempt, key)))
    return found


@given(HALVES, st.integers(1, 4), st.sampled_from([0.05, 10.0]))
def test_each_half_is_counted_once(known: list[Known], max_waiting: int, clock_s: float) -> None:
    taken: list[Joined] = []
    others: list[Half] = []
    alone: list[Half] = []
    join = Join(
        taken.append,
        others.append,
        lambda half, _, __: alone.append(half),
        clock_s,
        wait_s=0.3,
        deadline_s=2.0,
        max_waiting=max_waiting,
    )
    for now_s, half in halves_of(known):
        join.offer(half, now_s)
        assert join.waiting <= 2 * max_waiting
    join.close()
    assert join.waiting == 0
    assert join.offered == len(known)
    assert join.offered == 2 * join.joined + join.attempts + join.orphans.total() + join.repeated.total()
    assert (join.joined, join.attempts, join.orphans.total()) == (len(taken), len(others), len(alone))
    for one in taken:
        assert one.caller.request_id == one.worker.request_id
        assert (one.caller.side, one.worker.side) == (Side.CALLER, Side.WORKER)
        assert one.caller.who in ("", one.worker.who)
        assert fits(one.caller, one.worker, clock_s)


@given(HALVES)
def test_with_room_and_time_each_id_is_joined_once(known: list[Known]) -> None:
    taken: list[Joined] = []
    join = Join(taken.append, clock_s=1e9, deadline_s=1e9)
    for _, half in halves_of(known):
        join.offer(half, 0.0)
    join.close()
    callers: dict[str, str] = {}
    workers: dict[str, set[str]] = {}
    for side, name, _, _, _, who, *_ in known:
        if side is Side.CALLER:
            callers.setdefault(name, who)
        else:
            workers.setdefault(name, set()).add(who)
    both = {name for name, who in callers.items() if name in workers and (not who or who in workers[name])}
    assert Counter(one.caller.request_id for one in taken) == Counter(both)
    assert {why for _, why in join.orphans} <= {Orphan.END}
    assert join.late == 0


def caller(name: str, began_s: float = 0.0, took_s: float = 0.1, who: str = "", *, failed: bool = False) -> Half:
    return Half(Side.CALLER, name, began_s, took_s, who, failed)


def worker(
    name: str, began_s: float = 0.0, took_s: float = 0.1, who: str = "", attempt: int = 1, *, failed: bool = False
) -> Half:
    return Half(Side.WORKER, name, began_s, took_s, who, failed, f"m@{who}", attempt)


def test_clocks_may_differ_by_so_much() -> None:
    assert fits(caller("a", 1.0, 0.1), worker("a", 0.96, 0.1), 0.05)
    assert not fits(caller("a", 1.0, 0.1), worker("a", 0.94, 0.1), 0.05)
    assert not fits(caller("a", 1.0, 0.1), worker("a", 1.0, 0.2), 0.05)


def test_a_late_half_is_joined_from_the_queue_until_the_deadline() -> None:
    taken: list[Joined] = []
    join = Join(taken.append, wait_s=0.3, deadline_s=2.0)
    join.offer(caller("in time"), 0.0)
    join.offer(worker("in time"), 0.3)
    join.offer(caller("late"), 1.0)
    join.offer(worker("late"), 2.0)
    join.offer(caller("too late"), 3.0)
    join.offer(worker("too late"), 5.5)
    join.offer(worker("too late"), 5.6)
    assert [(one.caller.request_id, one.late) for one in taken] == [("in time", False), ("late", True)]
    assert join.orphans == {(Side.CALLER, Orphan.DEADLINE): 1, (Side.WORKER, Orphan.DEADLINE): 1}
    assert join.repeated == {Side.WORKER: 1}


@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("named", [True, False])
def test_of_several_attempts_the_one_that_answered_is_joined(order: tuple[int, ...], named: bool) -> None:
    """A retry: the first attempt failed at one worker, the second answered at another, whichever line comes first."""
    first, second = worker("r", 0.0, 0.1, "w0", 1, failed=True), worker("r", 0.15, 0.1, "w1", 2)
    halves = [caller("r", 0.0, 0.3, "w1" if named else ""), first, second]
    taken: list[Joined] = []
    others: list[Half] = []
    join = Join(taken.append, others.append)
    for place in order:
        join.offer(halves[place], 0.1)
    join.advance(0.5)
    assert [(one.worker, one.late) for one in taken] == [(second, False)]
    assert others == [first]
    assert (join.attempts, join.orphans, join.repeated, join.waiting) == (1, {}, {}, 0)


def test_a_hedge_that_ends_last_is_an_attempt_and_one_that_won_is_joined() -> None:
    taken: list[Joined] = []
    others: list[Half] = []
    join = Join(taken.append, others.append)
    join.offer(worker("h", 0.1, 0.05, "w1", 2), 0.15)
    join.offer(caller("h", 0.0, 0.2, "w1"), 0.2)  # nothing is waited for: no other attempt can have answered
    assert [one.worker.who for one in taken] == ["w1"]
    join.offer(worker("h", 0.0, 3.0, "w0", 1), 3.0)
    join.offer(worker("h", 0.0, 3.0, "w0", 1), 3.1)
    assert ([half.who for half in others], join.repeated) == (["w0"], {Side.WORKER: 1})


def test_an_answer_of_a_worker_that_is_not_followed_is_joined_with_no_other() -> None:
    join = Join(lambda _: pytest.fail("joined"), deadline_s=1.0)
    join.offer(worker("r", 0.0, 0.1, "w0", 1, failed=True), 0.1)
    join.offer(caller("r", 0.0, 0.3, "elsewhere"), 0.3)
    join.advance(5.0)
    assert join.orphans == {(Side.CALLER, Orphan.DEADLINE): 1, (Side.WORKER, Orphan.DEADLINE): 1}


def test_clocks_that_differ_are_told_with_how_far() -> None:
    beside: list[float] = []
    join = Join(
        lambda _: pytest.fail("joined"),
        lone=lambda half, why, other: (
            beside.append(apart_s(other, half)) if other and half.side is Side.WORKER else None
        ),
    )
    join.offer(worker("a", 2.0, 0.05, "w0"), 0.0)
    join.offer(caller("a", 1.0, 0.1, "w0"), 0.1)
    join.advance(1.0)
    assert join.orphans == {(Side.CALLER, Orphan.CLOCK): 1, (Side.WORKER, Orphan.CLOCK): 1}
    assert beside == [pytest.approx(0.95)]
    assert apart_s(caller("a", 1.0, 0.1), worker("a", 0.5, 0.1)) == pytest.approx(-0.5)
    assert apart_s(caller("a", 1.0, 0.1), worker("a", 1.0, 0.1)) == 0.0


def test_what_is_kept_of_one_request_has_a_bound() -> None:
    join = Join(lambda _: None)
    for number in range(3 * MAX_ATTEMPTS):
        join.offer(worker("r", number / 100, 0.01, f"w{number}"), 0.0)
    assert join.attempts == 2 * MAX_ATTEMPTS


def test_the_queue_has_a_bound() -> None:
    join = Join(lambda _: None, wait_s=0.1, deadline_s=9.0, max_waiting=2)
    for number in range(5):
        join.offer(caller(str(number)), float(number))
    assert (join.waiting, join.orphans) == (3, {(Side.CALLER, Orphan.ROOM): 2})
