"""The cluster under any sequence of events and requests: what must hold, holds after every one of them."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from router.breaker import GuardState
from router.cluster import Cluster
from router.hedging import HedgeDenied
from router.model import (
    EndpointGone,
    EndpointHeld,
    EndpointRecord,
    EndpointSeen,
    EndpointsHeard,
    Event,
    GoneReason,
    PeerObserved,
    SnapshotBegan,
    SnapshotEnded,
    State,
    StoreChanged,
    StoreMode,
    Tick,
)
from router.outcomes import AttemptResult, Reason
from router.policy import BalancerName, BreakerPolicy, KeyPolicy, LatencyPolicy, ModelPolicy, Policies, ScoringPolicy
from router.routes import Attempt, NoCandidate
from tests.support.fleet import observation, only, record

IDS = ("a", "b", "c", "s")
POLICIES = Policies(breaker=BreakerPolicy(minimum_calls=4, half_open_calls=3))
OTHERS = (
    POLICIES,
    Policies(breaker=BreakerPolicy(minimum_calls=4, half_open_calls=3, window_s=2.0, failure_ratio=0.9)),
    Policies(breaker=POLICIES.breaker, latency=LatencyPolicy(relative_error=0.2, window_s=6.0, slots=3)),
    Policies(breaker=POLICIES.breaker, requests_per_endpoint=2),
    Policies(breaker=POLICIES.breaker, scoring=ScoringPolicy(speed=0.0), latency=LatencyPolicy(ewma_decay_s=1.0)),
)
"""Configurations that the cluster may be given in between; none of them changes what the invariants go by."""


KEYS = st.sampled_from([None, b"a", b"b", b"c"])
BALANCERS = st.sampled_from(BalancerName)


def policy(balancer: BalancerName, *, hedge: bool = True) -> ModelPolicy:
    key = KeyPolicy(header="x-key") if balancer is BalancerName.KEYED else None
    return ModelPolicy("m", idempotent=True, default=True, hedge=hedge, balancer=balancer, key=key)


class Model:
    """What the test itself knows of each endpoint, kept in the plainest way."""

    def __init__(self) -> None:
        self.records: dict[str, EndpointRecord] = {}
        self.heard: dict[str, float] = {}
        self.held: set[str] = set()


class ClusterMachine(RuleBasedStateMachine):
    attempts = Bundle("attempts")

    def __init__(self) -> None:
        super().__init__()
        self.now = 50.0
        self.first = self.make()
        self.twin = self.make()  # fed the same: it must decide the same
        self.rngs = (random.Random(11).random, random.Random(11).random)
        self.model = Model()
        self.silent_since = self.now
        self.requests = 0
        self.retries = 0
        self.sequence = 0

    def make(self) -> Cluster:
        models = [policy(BalancerName.WARM)]
        return Cluster(POLICIES, models, self.now, rng=random.Random(7).random)

    def apply(self, event: Event) -> None:
        assert self.first.apply(event, self.now) == self.twin.apply(event, self.now)

    def hear(self, id_: str) -> None:
        self.model.heard[id_] = self.now
        self.silent_since = self.now

    @rule(seconds=st.sampled_from([0.01, 0.2, 1.0, 1.9, 6.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def tick(self) -> None:
        self.apply(Tick())

    @rule(
        id_=st.sampled_from(IDS),
        state=st.sampled_from([State.WARM, State.WARM, State.WARM, State.LOADING, State.DRAINING]),
        epoch=st.sampled_from("xxxy"),
        draining=st.sampled_from([False, False, False, True]),
        version=st.sampled_from(["1", "2"]),
        warm_for_s=st.sampled_from([0.0, 4.0, 100.0]),
    )
    def seen(self, id_: str, state: State, epoch: str, draining: bool, version: str, warm_for_s: float) -> None:
        report = record(
            id_,
            state=state,
            epoch=epoch,
            draining=draining,
            version=version,
            warm_for_s=warm_for_s,
            static=id_ == "s",
        )
        self.apply(EndpointSeen(report, self.now))
        self.model.records[id_] = report
        if id_ != "s":
            self.hear(id_)

    @rule(ids=st.lists(st.sampled_from(IDS), unique=True))
    def heartbeat(self, ids: list[str]) -> None:
        self.apply(EndpointsHeard(tuple(ids), self.now))
        for id_ in ids:
            if id_ in self.model.records and id_ != "s":
                self.hear(id_)

    @rule(id_=st.sampled_from(IDS))
    def gone(self, id_: str) -> None:
        self.apply(EndpointGone(id_, GoneReason.EXPIRED, self.now))
        self.model.records.pop(id_, None)

    @rule(kept=st.sets(st.sampled_from(IDS)))
    def snapshot(self, kept: set[str]) -> None:
        self.sequence += 1
        self.apply(SnapshotBegan(self.sequence, self.now))
        for id_ in sorted(kept & set(self.model.records)):
            self.apply(EndpointSeen(self.model.records[id_], self.now))
            if id_ != "s":
                self.hear(id_)
        self.apply(SnapshotEnded(self.sequence, self.now))
        self.model.records = {id_: row for id_, row in self.model.records.items() if id_ in kept}

    @rule(id_=st.sampled_from(IDS), held=st.booleans())
    def hold(self, id_: str, held: bool) -> None:
        self.apply(EndpointHeld(id_, held, self.now))
        (self.model.held.add if held else self.model.held.discard)(id_)

    @rule(mode=st.sampled_from([StoreMode.LIVE, StoreMode.LIVE, *StoreMode]))
    def store(self, mode: StoreMode) -> None:
        self.apply(StoreChanged(mode, self.now))

    @initialize(balancer=BALANCERS)
    def begin(self, balancer: BalancerName) -> None:
        for cluster in (self.first, self.twin):
            cluster.configure(POLICIES, [policy(balancer)], self.now)

    @rule(policies=st.sampled_from(OTHERS), more=st.booleans(), balancer=BALANCERS)
    def configure(self, policies: Policies, more: bool, balancer: BalancerName) -> None:
        before = self.learned()
        models = [policy(balancer, hedge=False), *([ModelPolicy("n")] if more else [])]
        for cluster in (self.first, self.twin):
            cluster.configure(policies, models, self.now)
        assert self.learned() == before
        assert (self.first.route("n") is not None) is more

    def learned(self) -> dict[str, object]:
        """Return what a change of configuration must not touch."""
        return {
            id_: (
                endpoint.in_flight,
                only(endpoint).latency.ewma_ms,
                endpoint.quarantine.state,
                endpoint.quarantine.until,
                only(endpoint).breaker.state,
                only(endpoint).breaker.until,
                only(endpoint).breaker.trials,
                endpoint.held,
                endpoint.busy_until,
            )
            for id_, endpoint in self.first.endpoints.items()
        }

    @rule(id_=st.sampled_from(IDS), count=st.integers(0, 3), bad=st.integers(0, 3), source=st.integers(1, 2))
    def sibling(self, id_: str, count: int, bad: int, source: int) -> None:
        self.apply(PeerObserved(source, (observation(id_, count, None, ((30, 1),), 1, bad),), self.now))

    @rule(target=attempts, version=st.sampled_from(["", "1"]), key=KEYS)
    def request(self, version: str, key: bytes | None) -> Any:
        self.requests += 1
        return self.choose(version, None, key)

    def choose(self, version: str, tried: Attempt | None, key: bytes | None = None) -> Any:
        picks = []
        for cluster, rng in zip((self.first, self.twin), self.rngs, strict=True):
            route = cluster.route("m", version)
            if route is None:
                return multiple()
            excluded = None if tried is None else cluster.endpoints.get(tried.endpoint.id)
            picks.append(cluster.choose(route, self.now, rng, excluded, key))
        first, second = picks
        if isinstance(first, NoCandidate):
            assert first == second
            assert first.retry_after_s >= 0
            left_out = None if tried is None else self.first.endpoints.get(tried.endpoint.id)
            route = self.first.route("m", version)
            assert route is not None
            fit = [each for each in route.candidates if self.now < each.fit_until and each.endpoint is not left_out]
            assert all(each.endpoint.full for each in fit)
            assert (first.reason is Reason.AT_LIMIT) is bool(fit)
            return multiple()
        assert isinstance(first, Attempt)
        assert isinstance(second, Attempt)
        assert (first.endpoint.id, first.permits) == (second.endpoint.id, second.permits)
        self.check(first, version, tried)
        return first, second, version

    def check(self, attempt: Attempt, version: str, tried: Attempt | None) -> None:
        endpoint = attempt.endpoint
        report = self.model.records[endpoint.id]
        assert endpoint is self.first.endpoints[endpoint.id]
        assert endpoint.id not in self.model.held
        assert not report.draining
        assert endpoint.in_flight <= endpoint.cap <= endpoint.limit
        assert report.replicas[0].state is State.WARM
        assert version in ("", report.replicas[0].version)
        assert tried is None or self.first.endpoints.get(tried.endpoint.id) is not endpoint
        assert endpoint.quarantine.state is GuardState.CLOSED or attempt.probe
        assert only(endpoint).breaker.state is not GuardState.OPEN
        assert only(endpoint).breaker.trials <= POLICIES.breaker.half_open_calls
        if self.now < endpoint.busy_until and not attempt.probe:  # only where the table has nobody else
            others = [each for each in attempt.route.drawn if tried is None or each.endpoint is not tried.endpoint]
            others = [each for each in others if not each.endpoint.full]
            assert not any(self.now < each.open_until for each in others)
        live = self.first.mode is StoreMode.LIVE and self.now - self.silent_since <= POLICIES.freshness.full_s
        if live and not report.static:
            # a silence may have been credited to the age, so the plain age bounds it only from above
            assert endpoint.heard_at >= self.model.heard[endpoint.id]
            assert self.now - endpoint.heard_at < POLICIES.freshness.ttl_s

    @rule(
        target=attempts,
        pair=consumes(attempts),
        result=st.sampled_from([*AttemptResult, *[AttemptResult.BUSY] * 3]),
        took=st.floats(0.001, 3),
        retry_after_s=st.sampled_from([None, 0.0, 0.05, 3.0, 99.0]),
    )
    def end(
        self, pair: tuple[Attempt, Attempt, str], result: AttemptResult, took: float, retry_after_s: float | None
    ) -> Any:
        self.now += took
        first, second, version = pair
        events = self.first.done(first, result, self.now, retry_after_s)
        assert events == self.twin.done(second, result, self.now, retry_after_s)
        assert self.first.done(first, result, self.now) == ()
        verdicts = [
            cluster.retry(attempt, result, answered=False, replayable=True, tries=1, now=self.now, rng=lambda: 0.5)
            for cluster, attempt in ((self.first, first), (self.twin, second))
        ]
        assert verdicts[0] == verdicts[1]
        if not verdicts[0].allowed:
            return multiple()
        self.retries += 1
        return self.choose(version, first)

    @rule(target=attempts, pair=attempts, key=KEYS)
    def hedge(self, pair: tuple[Attempt, Attempt, str], key: bytes | None) -> Any:
        first, second, version = pair
        hedges = [
            cluster.hedge(attempt, answered=False, replayable=True, tries=1, left_s=1.0, now=self.now, rng=rng, key=key)
            for cluster, attempt, rng in ((self.first, first, self.rngs[0]), (self.twin, second, self.rngs[1]))
        ]
        one, other = hedges
        if isinstance(one, HedgeDenied):
            assert one is other
            return multiple()
        assert isinstance(one, Attempt)
        assert isinstance(other, Attempt)
        assert one.endpoint.id == other.endpoint.id
        assert self.now >= one.endpoint.busy_until
        assert one.endpoint.quarantine.state is GuardState.CLOSED
        self.retries += 1
        self.check(one, version, first)
        return one, other, version

    @rule(target=attempts, pair=consumes(attempts), key=KEYS)
    def pool_is_full(self, pair: tuple[Attempt, Attempt, str], key: bytes | None) -> Any:
        first, second, version = pair
        one = self.first.choose_again(first, self.now, self.rngs[0], None, key)
        other = self.twin.choose_again(second, self.now, self.rngs[1], None, key)
        if isinstance(one, NoCandidate):
            assert one == other
            return multiple()
        assert isinstance(other, Attempt)
        assert one.endpoint.id == other.endpoint.id
        assert one.endpoint is not first.endpoint or first.endpoint.gone
        self.check(one, version, None)
        return one, other, version

    @rule(pair=consumes(attempts))
    def caller_leaves(self, pair: tuple[Attempt, Attempt, str]) -> None:
        first, second, _ = pair
        self.first.done(first, AttemptResult.CANCELLED, self.now)
        self.twin.done(second, AttemptResult.CANCELLED, self.now)
        assert first.endpoint.in_flight >= 0

    @rule(key=KEYS)
    def explain(self, key: bytes | None) -> None:
        route = self.first.route("m")
        assert route is not None
        passed_over = [endpoint.passed_over for endpoint in self.first.endpoints.values()]
        explanation = self.first.explain(route, self.now, lambda: 0.3, key)  # the twin is not asked: nothing may change
        shares = [row.share for row in explanation.rows if row.reason is None]
        assert not shares or abs(sum(shares) - 1) < 1e-9
        assert explanation.balancer == route.policy.balancer
        assert (explanation.draw is None) is (not shares or explanation.probe is not None)
        assert [endpoint.passed_over for endpoint in self.first.endpoints.values()] == passed_over

    @invariant()
    def retries_stay_within_the_budget(self) -> None:
        retry = POLICIES.retry
        floor = retry.budget_min_per_s * retry.budget_window_s
        windows = 1 + (self.now - 50.0) / (retry.budget_window_s * 0.9)
        assert self.retries <= windows * floor + retry.budget_ratio * self.requests

    @invariant()
    def members_are_those_told(self) -> None:
        assert set(self.first.endpoints) == set(self.model.records)

    def teardown(self) -> None:
        counts = {endpoint.id: endpoint.in_flight for endpoint in self.first.endpoints.values()}
        assert all(count >= 0 for count in counts.values())


class InFlight(RuleBasedStateMachine):
    """Counts return to zero whatever happens in between."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1.0
        self.cluster = Cluster(POLICIES, [ModelPolicy("m")], self.now)
        self.rng = random.Random(1).random
        self.running: list[Attempt] = []
        self.everybody: dict[int, Any] = {}
        for id_ in "ab":
            self.see(id_, "x")

    def see(self, id_: str, epoch: str) -> None:
        self.cluster.apply(EndpointSeen(record(id_, epoch=epoch), self.now), self.now)
        endpoint = self.cluster.endpoints[id_]
        self.everybody[id(endpoint)] = endpoint

    @rule(id_=st.sampled_from("ab"), epoch=st.sampled_from("xyz"))
    def restart(self, id_: str, epoch: str) -> None:
        self.see(id_, epoch)

    @rule(id_=st.sampled_from("ab"))
    def gone(self, id_: str) -> None:
        self.cluster.apply(EndpointGone(id_, GoneReason.EXPIRED, self.now), self.now)

    @rule(seconds=st.sampled_from([0.1, 1.1, 61.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.cluster.apply(EndpointsHeard(("a", "b"), self.now), self.now)

    @rule(key=KEYS)
    def request(self, key: bytes | None) -> None:
        route = self.cluster.route("m")
        if route is None:  # taken out of the configuration, and nobody serves it
            return
        picked = self.cluster.choose(route, self.now, self.rng, None, key)
        if isinstance(picked, Attempt):
            self.running.append(picked)

    @rule(named=st.booleans(), balancer=BALANCERS)
    def configure(self, named: bool, balancer: BalancerName) -> None:
        self.cluster.configure(POLICIES, [policy(balancer)] if named else [], self.now)

    @rule(at=st.integers(0, 100), result=st.sampled_from(AttemptResult), again=st.booleans())
    def end(self, at: int, result: AttemptResult, again: bool) -> None:
        if self.running:
            attempt = self.running.pop(at % len(self.running))
            self.cluster.done(attempt, result, self.now)
            if again:
                assert self.cluster.done(attempt, result, self.now) == ()

    @invariant()
    def counts_are_those_that_run(self) -> None:
        for endpoint in self.everybody.values():
            assert endpoint.in_flight == sum(attempt.endpoint is endpoint for attempt in self.running)

    def teardown(self) -> None:
        for attempt in self.running:
            self.cluster.done(attempt, AttemptResult.CANCELLED, self.now)
        assert all(endpoint.in_flight == 0 for endpoint in self.everybody.values())


TestCluster = ClusterMachine.TestCase
TestInFlight = InFlight.TestCase
for case in (TestCluster, TestInFlight):
    case.settings = settings(max_examples=80, stateful_step_count=40)
del case  # a test runner would collect it once more
