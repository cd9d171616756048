"""The limit that follows latency: in front of a worker with some slots and a queue, in virtual time, and by pieces."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count
from statistics import median

import pytest

from router.cluster import Cluster
from router.concurrency import KEYS, AdaptiveLimit
from router.model import EndpointRecord, EndpointSeen, Replica, Tick
from router.outcomes import AttemptResult
from router.policy import ConcurrencyMode, ConcurrencyPolicy, ModelPolicy, Policies, PolicyError
from router.routes import Attempt, NoCandidate

POLICY = ConcurrencyPolicy(mode=ConcurrencyMode.ADAPTIVE, probe_s=10.0)
M = ("m", "")


class Worker:
    """``slots`` requests at a time, the others in line; open loop at ``rate``. What the limit keeps out is lost."""

    def __init__(
        self, limit: AdaptiveLimit, slots: int, rate: float, service: Callable[[random.Random], float]
    ) -> None:
        self.limit, self.slots, self.rate, self.service = limit, slots, rate, service
        self.rng = random.Random(7)
        self.order = count()
        self.events: list[tuple[float, int, str, float]] = []
        self.line: deque[float] = deque()
        self.in_flight = self.busy = 0
        self.taken: list[float] = []
        self.limits: list[int] = []
        self.now = 0.0
        self._at(0.0, "arrival")
        self._at(0.1, "tick")

    def _at(self, when: float, kind: str, since: float = 0.0) -> None:
        heappush(self.events, (when, next(self.order), kind, since))

    def run(self, until: float) -> tuple[float, float, float]:
        """Return throughput as a share of capacity, P99 and the usual limit of the time from now on."""
        began, self.taken, self.limits = self.now, [], []
        wanted, batch = False, list[float]()
        while self.events[0][0] <= until:
            self.now, _, kind, since = heappop(self.events)
            if kind == "arrival":
                self._at(self.now + self.rng.expovariate(self.rate), "arrival")
                if self.in_flight >= self.limit.limit:
                    wanted = True
                    continue
                self.in_flight += 1
                self.line.append(self.now)
            elif kind == "end":
                self.in_flight -= 1
                self.busy -= 1
                batch.append(self.now - since)
                self.taken.append(self.now - since)
            else:
                self.limit.take(M, batch)
                batch = []
                self.limits.append(self.limit.update(self.in_flight, wanted=wanted, now=self.now))
                wanted = False
                self._at(self.now + 0.1, "tick")
            while self.line and self.busy < self.slots:
                self.busy += 1
                self._at(self.now + self.service(self.rng), "end", self.line.popleft())
        self.now = until
        capacity = self.slots / 0.02 * (until - began)
        return len(self.taken) / capacity, sorted(self.taken)[int(len(self.taken) * 0.99)], median(self.limits)


class Closed(Worker):
    """``callers`` that ask all at once, and again as soon as they are answered."""

    def __init__(self, limit: AdaptiveLimit, slots: int, callers: int) -> None:
        super().__init__(limit, slots, 1.0, SERVICES["even"])
        self.events = [event for event in self.events if event[2] == "tick"]
        self.callers = callers
        self.asking = 0

    def run(self, until: float) -> tuple[float, float, float]:
        began, self.taken, self.limits = self.now, [], []
        batch = list[float]()
        while True:
            while self.in_flight < min(self.limit.limit, self.callers):
                self.in_flight += 1
                self.line.append(self.now)
            while self.line and self.busy < self.slots:
                self.busy += 1
                self._at(self.now + 0.02, "end", self.line.popleft())
            if self.events[0][0] > until:
                break
            self.now, _, kind, since = heappop(self.events)
            if kind == "end":
                self.in_flight -= 1
                self.busy -= 1
                batch.append(self.now - since)
                self.taken.append(self.now - since)
            else:
                self.limit.take(M, batch)
                batch = []
                self.limits.append(
                    self.limit.update(self.in_flight, wanted=self.in_flight < self.callers, now=self.now)
                )
                self._at(self.now + 0.1, "tick")
        self.now = until
        return len(self.taken) / (self.slots / 0.02 * (until - began)), 0.0, median(self.limits)


SERVICES = {
    "even": lambda rng: 0.02,
    "exponential": lambda rng: rng.expovariate(50),
    "bimodal": lambda rng: 0.01 if rng.random() < 0.9 else 0.11,
}


@pytest.mark.parametrize("slots", [4, 32])
@pytest.mark.parametrize("name", SERVICES)
def test_a_lasting_overload_keeps_the_worker_busy_and_its_queue_short(name: str, slots: int) -> None:
    worker = Worker(AdaptiveLimit("a", POLICY, 0.0), slots, 1.5 * slots / 0.02, SERVICES[name])
    worker.run(10.0)
    throughput, p99_s, limit = worker.run(30.0)
    assert throughput > (0.92 if name == "even" or slots > 4 else 0.87)
    assert p99_s < (0.2 if name != "even" else 0.1)
    assert slots <= limit <= 2.25 * slots


@pytest.mark.parametrize(("initial", "callers"), [(20, 60), (40, 60), (100, 60), (20, 600), (1000, 600)])
def test_callers_that_wait_for_their_answers_are_no_low_wherever_the_limit_begins(initial: int, callers: int) -> None:
    limit = AdaptiveLimit("a", replace(POLICY, initial=initial, probe_s=1e6), 0.0)
    worker = Closed(limit, 4, callers)
    worker.run(30.0)
    throughput, _, settled = worker.run(40.0)
    assert throughput > 0.99
    assert 4 <= settled <= 10


def test_without_overload_the_limit_is_in_nobodys_way() -> None:
    worker = Worker(AdaptiveLimit("a", POLICY, 0.0), 32, 0.6 * 32 / 0.02, SERVICES["even"])
    worker.run(5.0)
    throughput, p99_s, _ = worker.run(20.0)
    assert throughput > 0.59
    assert p99_s < 0.03


def test_it_follows_a_worker_that_loses_half_of_its_slots_and_gets_them_back() -> None:
    worker = Worker(AdaptiveLimit("a", POLICY, 0.0), 32, 1.5 * 32 / 0.02, SERVICES["even"])
    _, _, before = worker.run(20.0)
    worker.slots = 16
    worker.run(30.0)
    _, p99_s, less = worker.run(40.0)
    assert less < before * 0.75
    assert p99_s < 0.08
    worker.slots = 32
    worker.run(55.0)
    throughput, _, again = worker.run(70.0)
    assert throughput > 0.97
    assert again > less * 1.4


def measured(policy: ConcurrencyPolicy, seconds: float = 0.01) -> AdaptiveLimit:
    """Return one that knows the low of M, from answers that came while it was not used: before 0.0."""
    limit = AdaptiveLimit("a", policy, -1.0)
    feed(limit, seconds, -0.5, in_flight=0)
    assert limit.low_s(M) == seconds
    return limit


def feed(limit: AdaptiveLimit, seconds: float, now: float, *, key: tuple[str, str] = M, in_flight: int = 1000) -> int:
    limit.take(key, [seconds] * 20)
    return limit.update(in_flight, wanted=False, now=now)


def test_a_limit_that_is_not_used_does_not_grow() -> None:
    limit = AdaptiveLimit("a", replace(POLICY, probe_s=1e6), 0.0)
    for turn in range(20):
        assert feed(limit, 0.01, turn * 0.1, in_flight=3) == 20
    assert feed(limit, 0.01, 3.0, in_flight=10) == 20  # a fifth of sqrt(20)
    assert feed(limit, 0.01, 3.1, in_flight=11) == 21


def test_bounds_and_errors() -> None:
    limit = measured(replace(POLICY, min=10, max=30, probe_s=1e6))
    for turn in range(40):
        feed(limit, 0.01, turn * 0.1)
    assert limit.limit == 30
    limit.dropped()
    assert limit.update(30, wanted=False, now=5.0) == 27
    for turn in range(60):
        limit.dropped()
        limit.update(30, wanted=False, now=6.0 + turn)
    assert limit.limit == 10


def test_models_are_compared_with_themselves() -> None:
    limit = AdaptiveLimit("a", replace(POLICY, probe_s=1e6), 0.0)
    limit.take(M, [0.01] * 20)
    limit.take(("slow", ""), [1.0] * 20)
    limit.update(0, wanted=False, now=0.1)
    assert (limit.low_s(M), limit.low_s(("slow", ""))) == (0.01, 1.0)
    before = limit.limit
    for turn in range(30):  # more of the slow one is no rise of anything
        limit.take(("slow", ""), [1.0] * 20)
        limit.update(1000, wanted=True, now=0.2 + turn * 0.1)
    assert limit.limit > before


def test_few_answers_count_after_a_while_and_models_are_bounded() -> None:
    limit = AdaptiveLimit("a", replace(POLICY, probe_s=1e6), 0.0)
    limit.take(M, [1.0] * 3)
    assert limit.update(20, wanted=True, now=1.0) == 20
    assert limit.low_s(M) is None
    limit.update(20, wanted=True, now=5.0)
    assert limit.low_s(M) == 1.0
    for turn in range(KEYS + 5):
        limit.take((str(turn), ""), [1.0])
    assert limit.low_s((str(KEYS + 1), "")) is None


def test_the_low_is_measured_with_half_in_flight_again_and_again_while_latency_falls() -> None:
    limit = measured(replace(POLICY, probe_s=10.0))
    now = 0.0
    while not limit.probing:
        now += 0.1
        feed(limit, 0.04, now)
    before = limit._exact
    low = limit.limit
    assert low == int(int(before) / 2)
    assert feed(limit, 0.04, now + 0.1, in_flight=low + 5) == low  # what was sent before still runs: it says nothing
    assert limit.update(low, wanted=True, now=now + 0.2) == low
    limit.take(M, [0.04] * low)  # sent before
    assert feed(limit, 0.02, now + 0.3, in_flight=low) == low // 2
    assert limit.update(0, wanted=True, now=now + 0.4) == low // 2
    assert feed(limit, 0.014, now + 0.5, in_flight=low // 2) == int(before)
    assert limit.low_s(M) == 0.014
    assert not limit.probing


def test_a_first_low_that_may_be_that_of_a_queue_is_measured_again_at_once() -> None:
    limit = AdaptiveLimit("a", replace(POLICY, probe_s=1e6), 0.0)
    assert feed(limit, 0.03, 0.1) == 10
    for step, seconds in enumerate((0.05, 0.025, 0.012, 0.01)):
        assert limit.probing
        limit.update(0, wanted=True, now=0.3 + step)
        feed(limit, seconds, 0.4 + step)
    assert not limit.probing
    assert limit.low_s(M) == 0.01
    light = AdaptiveLimit("a", replace(POLICY, probe_s=1e6), 0.0)
    assert feed(light, 0.03, 0.1, in_flight=3) == 20


def test_a_probe_that_gets_no_answers_ends() -> None:
    limit = measured(replace(POLICY, probe_s=10.0))
    now = 0.0
    while not limit.probing:
        now += 0.1
        feed(limit, 0.01, now)
    assert limit.update(1000, wanted=True, now=now + 6.0) == limit.limit
    assert not limit.probing


def cluster(mode: ConcurrencyMode) -> Cluster:
    policies = Policies(concurrency=replace(POLICY, mode=mode, min=1, initial=2, probe_s=1e6))
    made = Cluster(policies, [ModelPolicy("m")], 0.0)
    made.apply(EndpointSeen(EndpointRecord("a", "http://127.0.0.1:1", replicas=(Replica("m"),), static=True), 0.0), 0.0)
    return made


def test_choices_go_by_it() -> None:
    made = cluster(ConcurrencyMode.ADAPTIVE)
    route = made.route("m")
    assert route is not None

    def choose() -> Attempt | NoCandidate:
        return made.choose(route, 1.0, lambda: 0.0)

    made.learn(route.candidates[0], [0.01] * 20, 0.5)  # nobody is at its limit: it is a low
    made.apply(Tick(), 0.5)
    first, second, third = choose(), choose(), choose()
    assert isinstance(first, Attempt)
    assert isinstance(second, Attempt)
    assert isinstance(third, NoCandidate)
    assert third.detail == "m: all 1 that could take it are at their limit (policies.concurrency: 2 at the moment)"
    for now in (1.1, 1.2, 1.3, 1.4):  # in a batch as the shell does it
        made.learn(first.candidate, [0.01] * 20, now)
        made.apply(Tick(), now)
    assert made.endpoints["a"].limit == 3
    assert isinstance(choose(), Attempt)
    made.done(first, AttemptResult.BUSY, 1.5, 0.0)
    made.apply(Tick(), 1.5)
    assert made.endpoints["a"].limit == 2
    made.configure(Policies(), [ModelPolicy("m")], 2.0)
    assert made.endpoints["a"].limiter is None
    assert isinstance(choose(), Attempt)


def test_off_there_is_none() -> None:
    made = cluster(ConcurrencyMode.OFF)
    assert made.endpoints["a"].limiter is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("min", 0),
        ("max", 1 << 21),
        ("initial", 0),
        ("tolerance", 1.0),
        ("samples", 0),
        ("most_s", 0.0),
        ("probe_s", 0.0),
    ],
)
def test_policies_that_make_no_sense(field: str, value: float) -> None:
    with pytest.raises(PolicyError, match=rf"concurrency\.{field}"):
        ConcurrencyPolicy(**{field: value})  # type: ignore[arg-type]
