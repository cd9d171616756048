from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.execution.queues import DEFAULT_LEVEL, LEVELS, MAX_TENANTS, Fair, Order, Queue, Ticket, make_queue


@dataclass(eq=False)
class Call:
    number: int
    ticket: Ticket = field(default_factory=Ticket)
    size: int = 1


def drained(queue: Queue[Call]) -> list[int]:
    numbers = []
    while (call := queue.pop()) is not None:
        numbers.append(call.number)
    return numbers


def filled(order: Order, tickets: list[Ticket], weights: dict[str, float] | None = None) -> Queue[Call]:
    queue: Queue[Call] = make_queue(order, weights or {})
    for number, ticket in enumerate(tickets):
        queue.push(Call(number, ticket))
    return queue


def level(number: int) -> Ticket:
    return Ticket(level=number)


def tenant(name: str) -> Ticket:
    return Ticket(tenant=name)


BACKGROUND = Ticket(background=True)


@pytest.mark.parametrize(
    ("order", "tickets", "expected"),
    [
        (Order.FIFO, [level(9), BACKGROUND, level(1), tenant("a")], [0, 1, 2, 3]),
        (Order.PRIORITY, [level(9), level(1), Ticket(), level(1), level(9)], [1, 3, 2, 0, 4]),
        (Order.PRIORITY, [BACKGROUND, level(LEVELS), level(1)], [2, 1, 0]),
        (Order.PRIORITY, [level(99), level(LEVELS), level(-3), level(1)], [2, 3, 0, 1]),
        (Order.FAIR, [tenant("a")] * 3 + [tenant("b")] * 2, [0, 3, 1, 4, 2]),
        (Order.FAIR, [tenant("a")] * 3 + [BACKGROUND] * 2, [0, 3, 1, 4, 2]),
    ],
)
def test_who_is_next(order: Order, tickets: list[Ticket], expected: list[int]) -> None:
    assert drained(filled(order, tickets)) == expected


def test_a_tenant_of_four_times_the_weight_gets_four_times_the_turns() -> None:
    queue = filled(Order.FAIR, [tenant("free")] * 100 + [tenant("gold")] * 100, {"gold": 4.0})
    turns = Counter("free" if number < 100 else "gold" for number in drained(queue)[:50])
    assert turns == {"gold": 40, "free": 10}


def test_what_stands_for_more_requests_counts_for_more_turns() -> None:
    queue: Fair[Call] = Fair({})
    calls = [Call(number, tenant("a"), 4) for number in range(3)] + [Call(9, tenant("b")) for _ in range(8)]
    for call in calls:
        queue.push(call)
    assert drained(queue)[:7] == [0, 9, 9, 9, 9, 1, 9]


def test_one_who_comes_back_is_not_served_for_the_time_it_was_away() -> None:
    queue = filled(Order.FAIR, [tenant("a")] * 10)
    for _ in range(5):
        queue.pop()
    for number in range(20, 25):
        queue.push(Call(number, tenant("b")))
    assert drained(queue)[:4] == [20, 5, 21, 6]


def test_more_tenants_than_are_told_apart_share_a_turn_and_nothing_is_kept() -> None:
    queue: Fair[Call] = Fair({})
    for number in range(3 * MAX_TENANTS):
        queue.push(Call(number, tenant(f"t{number}")))
    assert len(queue._tenants) == MAX_TENANTS + 1
    assert sorted(drained(queue)) == list(range(3 * MAX_TENANTS))
    assert (queue._tenants, queue._turns, queue._clock) == ({}, [], 0.0)


def test_turns_that_were_left_do_not_pile_up() -> None:
    queue: Fair[Call] = Fair({})
    queue.push(Call(0, tenant("stays")))
    for number in range(5 * MAX_TENANTS):
        call = Call(number, tenant("goes"))
        queue.push(call)
        assert queue.remove(call)
    assert len(queue._turns) <= MAX_TENANTS + 3
    assert len(queue) == 1


tickets = st.builds(
    Ticket,
    level=st.integers(0, LEVELS + 1),
    tenant=st.sampled_from("abc"),
    background=st.booleans(),
)
steps = st.lists(st.one_of(tickets, st.just("pop"), st.integers(0, 40)), max_size=80)


@given(order=st.sampled_from(list(Order)), steps=steps)
def test_each_call_leaves_once_and_those_alike_in_order(order: Order, steps: list[Ticket | str | int]) -> None:
    queue: Queue[Call] = make_queue(order, {"a": 3.0})
    waiting: list[Call] = []
    pushed: list[Call] = []
    for step in steps:
        if isinstance(step, Ticket):
            call = Call(len(pushed), step)
            pushed.append(call)
            waiting.append(call)
            queue.push(call)
        elif isinstance(step, int):
            if step < len(pushed):
                there = pushed[step] in waiting
                assert queue.remove(pushed[step]) is there
                if there:
                    waiting.remove(pushed[step])
        else:
            got = queue.pop()
            assert (got is None) == (not waiting)
            if got is not None:
                alike = [one for one in waiting if queue.rank(one.ticket) == queue.rank(got.ticket)]
                assert got is alike[0]
                waiting.remove(got)
        assert len(queue) == len(waiting)
    assert sorted(drained(queue)) == sorted(call.number for call in waiting)


@given(st.lists(st.sampled_from("abcd"), min_size=8, max_size=60))
def test_nobody_waits_for_more_than_a_turn_of_each_other_tenant(names: list[str]) -> None:
    queue = filled(Order.FAIR, [tenant(name) for name in names])
    left = Counter(names)
    order = [names[number] for number in drained(queue)]
    turns: Counter[str] = Counter()
    for name in order:
        turns[name] += 1
        left[name] -= 1
        waiting = [turns[one] for one in left if left[one]]
        assert not waiting or turns[name] - min(waiting) <= 1


def test_the_default_level_is_in_the_middle() -> None:
    assert 1 < DEFAULT_LEVEL < LEVELS
