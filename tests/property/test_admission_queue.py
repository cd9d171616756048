"""Properties of the queue: every request has one end, order, fairness, bounds, and what deadlines do."""

from __future__ import annotations

import time
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.admission import SHARED, AdmissionQueue, Bounds, Refusal, Waiter

RANKS = st.sampled_from((-10, 0, 5))
TENANTS = st.sampled_from(("", "a", "b", "c", "d"))


def waiter(now: float = 0.0, *, rank: int = 0, tenant: str = "", size: int = 1, wait_s: float = 1e9) -> Waiter:
    return Waiter(object(), rank=rank, tenant=tenant, bytes_=size, deadline=now + wait_s, own=False, now=now)


class QueueMachine(RuleBasedStateMachine):
    """The queue beside a list of what must be in it."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = AdmissionQueue(most_tenants=3)
        self.bounds = Bounds(6, 30)
        self.now = 0.0
        self.inside: list[Waiter] = []
        self.ended: Counter[Waiter] = Counter()

    def _out(self, one: Waiter) -> None:
        self.inside.remove(one)
        self.ended[one] += 1
        assert not one.waiting

    @rule(rank=RANKS, tenant=TENANTS, size=st.integers(1, 20), wait_s=st.floats(-1, 10), own=st.booleans())
    def offer(self, rank: int, tenant: str, size: int, wait_s: float, own: bool) -> None:
        one = Waiter(None, rank=rank, tenant=tenant, bytes_=size, deadline=self.now + wait_s, own=own, now=self.now)
        before = list(self.inside)
        places = {waiter: waiter.place for waiter in before}  # tenants that are not told apart share one
        verdict = self.queue.offer(one, self.bounds, self.now)
        for victim, why in verdict.displaced:
            assert verdict.refusal is None
            if why is Refusal.DISPLACED:
                assert victim.rank < rank
                lowest = min(other.rank for other in self.inside)
                assert victim.rank == lowest
                assert victim is [other for other in self.inside if other.rank == lowest][-1]
            else:
                assert why is Refusal.DISPLACED_BY_SHARE
                assert victim.rank == rank
                assert places[victim] is not one.place
            self._out(victim)
        if verdict.refusal is None:
            self.inside.append(one)
            assert one.waiting
        else:
            self.ended[one] += 1
            assert not one.waiting
            assert self.inside == before
            if wait_s <= 0:
                assert verdict.refusal is (Refusal.DEADLINE if own else Refusal.SLOW)
            elif verdict.refusal in (Refusal.FULL, Refusal.SHARE):
                kept = [other for other in before if other.rank >= rank]
                assert len(kept) + 1 > 6 or sum(other.bytes for other in kept) + size > 30

    @rule()
    def take(self) -> None:
        head = self.queue.head()
        assert (head is None) is (not self.inside)
        if head is not None:
            assert head.rank == max(other.rank for other in self.inside)
            same = [other for other in self.inside if (other.rank, other.place) == (head.rank, head.place)]
            assert head is same[0]  # a tenant's own requests go in order
            self.queue.take(head, self.now)
            self._out(head)

    @rule(which=st.integers(0, 100))
    def withdraw(self, which: int) -> None:
        if self.inside:
            one = self.inside[which % len(self.inside)]
            assert self.queue.withdraw(one)
            self._out(one)
            assert not self.queue.withdraw(one)

    @rule(by=st.floats(0, 5))
    def pass_time(self, by: float) -> None:
        self.now += by
        gone = self.queue.expire(self.now)
        assert {id(one) for one in gone} == {id(one) for one in self.inside if one.deadline <= self.now}
        assert [one.deadline for one in gone] == sorted(one.deadline for one in gone)
        for one in gone:
            self._out(one)

    @invariant()
    def adds_up(self) -> None:
        queue = self.queue
        assert len(queue) == len(self.inside) <= 6
        assert queue.bytes == sum(one.bytes for one in self.inside) <= 30
        assert set(queue.waiters()) == set(self.inside)
        assert [one.rank for one in queue.waiters()] == sorted((one.rank for one in self.inside), reverse=True)
        assert queue.next_deadline() == min((one.deadline for one in self.inside), default=float("inf"))
        assert all(count == 1 for count in self.ended.values())
        assert len({one.place for one in self.inside if one.rank == 0}) <= 4  # three, and what the others share


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=60, stateful_step_count=40)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 40), min_size=2, max_size=6), st.integers(0, 30))
def test_tenants_with_something_waiting_differ_by_one_turn_at_most(backlogs: list[int], turns: int) -> None:
    queue = AdmissionQueue()
    for tenant, backlog in enumerate(backlogs):
        for _ in range(backlog):
            assert queue.offer(waiter(tenant=str(tenant)), Bounds(1000, 1 << 20), 0.0).refusal is None
    served: Counter[str] = Counter()
    for turn in range(min(turns, sum(backlogs))):
        head = queue.head()
        assert head is not None
        queue.take(head, float(turn))
        served[head.tenant] += 1
        busy = [served[str(t)] for t, backlog in enumerate(backlogs) if served[str(t)] < backlog]
        assert not busy or max(busy) - min(busy) <= 1


def test_who_comes_late_waits_for_one_turn_of_the_others_not_for_their_backlog() -> None:
    queue = AdmissionQueue()
    for _ in range(100):
        queue.offer(waiter(tenant="flood"), Bounds(1000, 1 << 20), 0.0)
    for turn in range(10):
        head = queue.head()
        assert head is not None
        queue.take(head, turn)
    queue.offer(waiter(tenant="small"), Bounds(1000, 1 << 20), 10.0)
    order = []
    for turn in range(3):
        head = queue.head()
        assert head is not None
        queue.take(head, 10.0 + turn)
        order.append(head.tenant)
    assert "small" in order[:2]


def test_who_leaves_and_comes_back_gains_nothing() -> None:
    queue = AdmissionQueue()
    for _ in range(50):
        queue.offer(waiter(tenant="steady"), Bounds(1000, 1 << 20), 0.0)
    served: Counter[str] = Counter()
    for turn in range(40):
        if not any(one.tenant == "hasty" for one in queue.waiters()):
            queue.offer(waiter(tenant="hasty"), Bounds(1000, 1 << 20), float(turn))
        head = queue.head()
        assert head is not None
        queue.take(head, float(turn))
        served[head.tenant] += 1
    assert abs(served["hasty"] - served["steady"]) <= 1


def test_what_cannot_have_its_turn_in_time_is_refused_at_once() -> None:
    queue = AdmissionQueue()
    bounds = Bounds(1000, 1 << 20)
    for _ in range(30):
        queue.offer(waiter(), bounds, 0.0)
    for turn in range(10):  # one departure in 10 ms
        head = queue.head()
        assert head is not None
        queue.take(head, turn * 0.01)
    assert abs(queue.expected_wait_s(0, "") - 0.21) < 1e-6
    late = waiter(0.1, wait_s=0.05)
    assert queue.offer(late, bounds, 0.1).refusal is Refusal.SLOW
    late.own = True
    assert queue.offer(late, bounds, 0.1).refusal is Refusal.DEADLINE
    assert queue.offer(waiter(0.1, wait_s=0.3), bounds, 0.1).refusal is None
    assert queue.offer(waiter(0.1, rank=1, wait_s=0.05), bounds, 0.1).refusal is None  # nobody is ahead of it
    assert queue.offer(waiter(0.1, tenant="b", wait_s=0.05), bounds, 0.1).refusal is None  # it has a turn of its own


def test_what_was_learned_of_an_earlier_rush_is_forgotten() -> None:
    queue = AdmissionQueue()
    bounds = Bounds(1000, 1 << 20)
    for _ in range(10):
        queue.offer(waiter(), bounds, 0.0)
    for turn in range(10):
        head = queue.head()
        assert head is not None
        queue.take(head, turn * 10.0)
    for _ in range(5):
        assert queue.offer(waiter(200.0, wait_s=0.05), bounds, 200.0).refusal is None


@settings(max_examples=30)
@given(st.lists(st.text(max_size=3), min_size=1, max_size=200))
def test_names_of_tenants_are_bounded(names: list[str]) -> None:
    queue = AdmissionQueue(most_tenants=4)
    for name in names:
        one = waiter(tenant=name)
        queue.offer(one, Bounds(1000, 1 << 20), 0.0)
    places = {one.place for one in queue.waiters()}
    assert len(places) <= 5
    assert sum(1 for place in places if place is not None and place.name not in {*names, SHARED}) == 0


def test_leaving_again_and_again_leaves_nothing_behind() -> None:
    queue = AdmissionQueue()
    bounds = Bounds(10, 1 << 20)
    queue.offer(waiter(), bounds, 0.0)
    for turn in range(5000):
        one = waiter(tenant=str(turn))
        assert queue.offer(one, bounds, 0.0).refusal is None
        queue.withdraw(one)
    assert len(queue._deadlines) < 200
    (own,) = queue._classes.values()
    assert len(own.turns) == len(own.tenants) <= queue.most_tenants + 1


def test_a_class_that_waits_is_served_once_higher_ones_are_done() -> None:
    queue = AdmissionQueue()
    low = waiter(rank=-1)
    queue.offer(low, Bounds(100, 1 << 20), 0.0)
    for _ in range(5):
        queue.offer(waiter(rank=1), Bounds(100, 1 << 20), 0.0)
    order = []
    while (head := queue.head()) is not None:
        queue.take(head, 0.0)
        order.append(head)
    assert order[-1] is low
    assert len(order) == 6


def _per_operation_s(size: int) -> float:
    """Return what one of 300 of each operation takes, at the least of three, with so many waiting."""
    queue = AdmissionQueue(most_tenants=1000)
    bounds = Bounds(1 << 30, 1 << 40)
    for turn in range(size):
        queue.offer(waiter(rank=turn % 3, tenant=str(turn % 500), wait_s=1e6 + turn % 977), bounds, 0.0)
    least = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        for turn in range(300):
            one = waiter(rank=turn % 3, tenant=str(turn % 500))
            queue.offer(one, bounds, 0.0)
            head = queue.head()
            assert head is not None
            queue.take(head, float(turn))
            queue.withdraw(one)
            queue.next_deadline()
        least = min(least, time.perf_counter() - began)
    return least


def test_operations_take_no_longer_with_many_waiting() -> None:
    assert _per_operation_s(64_000) < 10 * _per_operation_s(1000)  # were one of them linear, it would be 64 times
