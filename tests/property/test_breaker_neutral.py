"""What is the caller's fault, back-pressure or broken off here moves no breaker, in any state, however much of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.breaker import Breaker, GuardState
from router.model import Event, ModelObservation, Observation, PeerObserved
from router.outcomes import ATTEMPT_BLAME, AttemptResult, Blame
from router.policy import BreakerPolicy, ModelPolicy, Policies
from tests.support.fleet import Driven, only, record

NEUTRAL = sorted(result for result, blame in ATTEMPT_BLAME.items() if blame is Blame.NEUTRAL)
POLICIES = Policies(breaker=BreakerPolicy(minimum_calls=2, half_open_calls=4, surge_minimum_samples=4))
STATES = st.sampled_from(GuardState)
ENDS = st.tuples(st.sampled_from(NEUTRAL), st.sampled_from([0.0, 0.01, 3.0])).filter(
    lambda end: end != (AttemptResult.OVERDUE, 3.0)  # waited for longer than is slow there: a slow call
)


def fleet(state: GuardState) -> Driven:
    """Return a fleet whose endpoint "a" has a breaker in this state, and where it is known how long calls take."""
    driven = Driven(policies=POLICIES, models=[ModelPolicy("m")])
    driven.seen(record("a", static=True), record("b", static=True))
    for id_ in "ab":
        for _ in range(5):
            driven.done(driven.to(id_), AttemptResult.SUCCESS, 0.01)
    driven.wait(11)
    assert only(driven.cluster.endpoints["a"]).baseline.ms is not None
    if state is not GuardState.CLOSED:
        for _ in range(2):
            driven.done(driven.to("a"), AttemptResult.SERVER_ERROR)
    if state is GuardState.HALF_OPEN:
        driven.wait(60.5)
    driven.shared.clear()
    return driven


def shown(breaker: Breaker, now: float) -> tuple[object, ...]:
    return (
        *(breaker.state, breaker.rule, breaker.evidence, breaker.since, breaker.until, breaker.trials),
        *(breaker.passed, breaker.failed, breaker.slow, breaker.unanswered),
        *(breaker.calls.peek(now), breaker.signs.peek(now)),
    )


@given(
    state=STATES,
    ends=st.lists(ENDS, min_size=1, max_size=12),
)
def test_an_attempt_that_says_nothing_of_the_endpoint_moves_no_breaker(
    state: GuardState, ends: list[tuple[AttemptResult, float]]
) -> None:
    driven = fleet(state)
    breaker = only(driven.cluster.endpoints["a"]).breaker
    for result, seconds in ends:
        attempt = driven.to("a") if state is not GuardState.OPEN else driven.attempt()
        before = shown(breaker, driven.now)
        trial = attempt.candidate.breaker is breaker and attempt.probe
        events: tuple[Event, ...] = driven.cluster.done(attempt, result, driven.now + seconds)
        assert events == ()
        after = shown(breaker, driven.now)
        if trial:  # its place is free again, and that is all
            assert breaker.trials == 0
            assert (*before[:5], *before[6:]) == (*after[:5], *after[6:])
        else:
            assert after == before
        for endpoint in driven.cluster.endpoints.values():
            endpoint.busy_until = only(endpoint).not_ready_until = 0.0
        driven.wait(0.2)


@given(state=STATES, others=st.integers(1, 1000), slow=st.booleans())
def test_nor_do_siblings_that_tell_of_4xx(state: GuardState, others: int, slow: bool) -> None:
    driven = fleet(state)
    breaker = only(driven.cluster.endpoints["a"]).breaker
    before = shown(breaker, driven.now)
    seen = ModelObservation("m", "1", 5000.0 if slow else None, (), 0, 0, others=others)
    driven.apply(PeerObserved(1, (Observation("a", 0, (seen,)),), driven.now))
    assert driven.shared == []
    assert shown(breaker, driven.now) == before


@pytest.mark.parametrize("result", NEUTRAL)
def test_a_flood_of_it_hides_no_failures(result: AttemptResult) -> None:
    """Twenty calls fail among hundreds of the caller's own faults: the breaker opens on the twenty."""
    driven = Driven(models=[ModelPolicy("m")])
    driven.seen(record("a", static=True), record("b", static=True))
    for number in range(286):
        driven.done(driven.to("a"), result if number % 15 else AttemptResult.SERVER_ERROR, retry_after_s=0.0)
        driven.cluster.endpoints["a"].busy_until = 0.0
    assert only(driven.cluster.endpoints["a"]).breaker.state is GuardState.OPEN
