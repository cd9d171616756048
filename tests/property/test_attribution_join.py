"""Joining halves of requests: nothing is counted twice, nothing is lost, and nothing waits without a bound."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sidecar.traffic.attribution.joining import Half, Join, Joined, Orphan, Side, fits

HALVES = st.lists(
    st.tuples(
        st.sampled_from(Side),
        st.sampled_from("abcdef"),
        st.integers(0, 20).map(lambda tenth: tenth / 10),
        st.integers(0, 10).map(lambda tenth: tenth / 10),
        st.integers(0, 8).map(lambda tenth: tenth / 10),  # since the one before became known
    ),
    max_size=40,
)


@given(HALVES, st.integers(1, 4), st.sampled_from([0.05, 10.0]))
def test_each_half_is_counted_once(
    halves: list[tuple[Side, str, float, float, float]], max_waiting: int, clock_s: float
) -> None:
    taken: list[Joined] = []
    join = Join(taken.append, clock_s, wait_s=0.3, deadline_s=2.0, max_waiting=max_waiting)
    now_s = 0.0
    for side, name, began_s, took_s, passed_s in halves:
        now_s += passed_s
        join.offer(Half(side, name, began_s, took_s), now_s)
        assert join.waiting <= 2 * max_waiting
    join.close()
    assert join.waiting == 0
    assert join.offered == len(halves)
    assert join.offered == 2 * join.joined + join.orphans.total() + join.repeated.total()
    assert join.joined == len(taken)
    for one in taken:
        assert one.caller.request_id == one.worker.request_id
        assert (one.caller.side, one.worker.side) == (Side.CALLER, Side.WORKER)
        assert fits(one.caller, one.worker, clock_s)


@given(HALVES)
def test_with_room_and_time_each_id_is_joined_once(halves: list[tuple[Side, str, float, float, float]]) -> None:
    taken: list[Joined] = []
    join = Join(taken.append, clock_s=1e9, deadline_s=1e9)
    for side, name, began_s, took_s, _ in halves:
        join.offer(Half(side, name, began_s, took_s), 0.0)
    join.close()
    sides: dict[str, Counter[Side]] = {}
    for side, name, *_ in halves:
        sides.setdefault(name, Counter())[side] += 1
    both = {name for name, counted in sides.items() if len(counted) == 2}
    assert Counter(one.caller.request_id for one in taken) == Counter(both)
    assert join.orphans.total() == len(sides) - len(both)
    assert {why for _, why in join.orphans} <= {Orphan.END}
    assert join.late == 0


def caller(name: str, began_s: float = 0.0, took_s: float = 0.1) -> Half:
    return Half(Side.CALLER, name, began_s, took_s)


def worker(name: str, began_s: float = 0.0, took_s: float = 0.1) -> Half:
    return Half(Side.WORKER, name, began_s, took_s)


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


def test_the_queue_has_a_bound() -> None:
    join = Join(lambda _: None, wait_s=0.1, deadline_s=9.0, max_waiting=2)
    for number in range(5):
        join.offer(caller(str(number)), float(number))
    assert (join.waiting, join.orphans) == (3, {(Side.CALLER, Orphan.ROOM): 2})
