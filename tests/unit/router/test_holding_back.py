"""A route on which others wait: who is told to, and who goes on all the same."""

from __future__ import annotations

from router.cluster import Cluster
from router.model import EndpointRecord, EndpointSeen, Replica, State, Tick
from router.outcomes import AttemptResult, Reason
from router.policy import ModelPolicy, OnNoCandidate, Policies, RetryPolicy
from router.routes import Attempt, NoCandidate

NONE = NoCandidate(Reason.AT_LIMIT, 1.0, "others wait")


def rng() -> float:
    return 0.0


def cluster(*states: State, policy: ModelPolicy | None = None) -> Cluster:
    policies = Policies(retry=RetryPolicy(budget_ratio=0.5, budget_min_per_s=0.0))
    made = Cluster(policies, [policy or ModelPolicy("m", idempotent=True)], 0.0)
    for index, state in enumerate(states):
        record = EndpointRecord(
            f"e{index}", f"http://127.0.0.1:{index + 1}", replicas=(Replica("m", state=state),), static=True
        )
        made.apply(EndpointSeen(record, 0.0), 0.0)
    return made


def test_first_attempts_are_told_to_wait_and_retries_are_not() -> None:
    made = cluster(State.WARM, State.WARM)
    route = made.route("m")
    assert route is not None
    first = made.choose(route, 1.0, rng)
    assert isinstance(first, Attempt)
    made.hold_back(route, NONE)
    assert made.choose(route, 1.0, rng) is NONE
    made.apply(Tick(), 1.1)  # tables are made again, and it stays so
    assert made.choose(route, 1.1, rng) is NONE
    retry = made.choose(route, 1.1, rng, first.endpoint)
    assert isinstance(retry, Attempt)
    assert retry.endpoint is not first.endpoint
    made.hold_back(route, None)
    assert isinstance(made.choose(route, 1.2, rng), Attempt)


def test_who_is_in_turn_is_let_in_and_counted_once() -> None:
    made = cluster(State.WARM, State.WARM)
    route = made.route("m")
    assert route is not None
    made.hold_back(route, NONE)
    for _ in range(10):  # each asks once, is told to wait, and asks again in its turn
        assert made.choose(route, 1.0, rng) is NONE
        made.let_in(route, counted=True)
        attempt = made.choose(route, 1.0, rng)
        assert isinstance(attempt, Attempt)
        made.done(attempt, AttemptResult.SUCCESS, 1.0)
        made.hold_back(route, NONE)
    verdicts = []
    for _ in range(8):  # half of ten requests
        made.let_in(route, counted=False)
        made.hold_back(route, None)
        again = made.choose(route, 1.0, rng, made.endpoints["e1"])
        assert isinstance(again, Attempt)
        verdict = made.retry(
            again, AttemptResult.CONNECT_REFUSED, answered=False, replayable=True, tries=1, now=1.0, rng=rng
        )
        verdicts.append(verdict.allowed)
        made.done(again, AttemptResult.CANCELLED, 1.0)
    assert verdicts == [True] * 5 + [False] * 3


def test_a_lazy_model_is_routable_while_somebody_could_load_it() -> None:
    lazy = ModelPolicy("m", on_no_candidate=OnNoCandidate.LAZY)
    assert cluster(State.COLD, policy=lazy).routable(1.0)
    assert not cluster(policy=lazy).routable(1.0)
    assert not cluster(State.COLD, policy=ModelPolicy("m", on_no_candidate=OnNoCandidate.WAIT)).routable(1.0)
