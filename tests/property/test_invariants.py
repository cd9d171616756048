"""What must hold, always, as far as the router decides it; docs/invariants.md says which test holds each.

Here: what may be sent a second time, and what never counts against an endpoint.
"""

from __future__ import annotations

import random
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from router.breaker import GuardState
from router.cluster import Cluster
from router.hedging import HedgeDenied
from router.model import EndpointSeen
from router.outcomes import NOT_STARTED, AttemptResult
from router.policy import HedgingPolicy, ModelPolicy, Policies
from router.routes import Attempt
from tests.support.fleet import only, record

ROOT = Path(__file__).parents[2]
NEVER_AGAINST = (
    AttemptResult.CLIENT_ERROR,
    AttemptResult.BUSY,
    AttemptResult.CANCELLED,
)
"""A 4xx, back-pressure, a caller that went away."""
NOW = 10.0


def cluster(*, idempotent: bool, hedge: bool = False) -> Cluster:
    made = Cluster(
        Policies(hedging=HedgingPolicy()), [ModelPolicy("m", idempotent=idempotent, hedge=hedge)], NOW, rng=lambda: 0.5
    )
    for id_ in "abc":
        made.apply(EndpointSeen(record(id_), NOW), NOW)
    return made


def attempt_on(made: Cluster, rng: random.Random) -> Attempt:
    route = made.route("m")
    assert route is not None
    picked = made.choose(route, NOW, rng.random)
    assert isinstance(picked, Attempt)
    return picked


@settings(max_examples=400)
@given(
    st.sampled_from(AttemptResult),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(1, 4),
    st.floats(0, 100),
    st.integers(0, 1 << 16),
)
def test_nothing_is_sent_again_that_may_do_harm(
    result: AttemptResult,
    answered: bool,
    idempotent: bool,
    replayable: bool,
    tries: int,
    left_s: float,
    seed: int,
) -> None:
    """Not once a byte of the answer went downstream; not without what was sent; nor what may have begun, undeclared."""
    made, rng = cluster(idempotent=idempotent, hedge=True), random.Random(seed)
    attempt = attempt_on(made, rng)
    hedge = made.hedge(
        attempt, answered=answered, replayable=replayable, tries=tries, left_s=left_s, now=NOW, rng=rng.random
    )
    if isinstance(hedge, Attempt):
        assert idempotent
        assert replayable
        assert not answered
        assert hedge.endpoint is not attempt.endpoint
        made.done(hedge, AttemptResult.CANCELLED, NOW)
    else:
        assert isinstance(hedge, HedgeDenied)
    made.done(attempt, result, NOW + 0.01)
    verdict = made.retry(
        attempt,
        result,
        answered=answered,
        replayable=replayable,
        tries=tries,
        now=NOW + 0.01,
        rng=rng.random,
        left_s=left_s,
    )
    if verdict.allowed:
        assert not answered
        assert replayable
        assert idempotent or result in NOT_STARTED
        assert tries <= made.policies.retry.attempts
        assert verdict.delay_s <= left_s
    else:
        assert verdict.denied is not None


@settings(max_examples=80)
@given(
    st.lists(st.sampled_from(NEVER_AGAINST), min_size=1, max_size=120),
    st.sampled_from([None, 0.0, 0.5]),
    st.integers(0, 1 << 16),
)
def test_neither_a_4xx_nor_back_pressure_nor_a_caller_that_left_counts_against_an_endpoint(
    results: list[AttemptResult], retry_after_s: float | None, seed: int
) -> None:
    made, rng = cluster(idempotent=True), random.Random(seed)
    for id_ in "abc":
        only(made.endpoints[id_]).latency.sample(50.0, NOW)
    before = {id_: only(endpoint).latency.ewma_ms for id_, endpoint in made.endpoints.items()}
    for result in results:
        attempt = attempt_on(made, rng)
        assert made.done(attempt, result, NOW, retry_after_s) == ()
    for id_, endpoint in made.endpoints.items():
        candidate = only(endpoint)
        assert candidate.breaker.state is GuardState.CLOSED
        assert candidate.breaker.calls.totals(NOW)[1] == 0
        assert not endpoint.quarantine.active
        assert candidate.latency.ewma_ms == before[id_]
        assert endpoint.in_flight == 0


def test_every_test_that_docs_invariants_names_is_there() -> None:
    page = (ROOT / "docs" / "invariants.md").read_text()
    named = {cell for line in page.splitlines() if line.startswith("|") for cell in line.split("`")[1::2]}
    tests = {name for name in named if name.startswith("tests/")}
    assert len(tests) > 20
    for name in sorted(tests):
        path, _, function = name.partition("::")
        assert (ROOT / path).is_file(), name
        if function:
            assert f"{function}(" in (ROOT / path).read_text(), name


def test_all_eight_have_their_row() -> None:
    rows = [line for line in (ROOT / "docs" / "invariants.md").read_text().splitlines() if line.startswith("| ")]
    numbers = [row.split("|")[1].strip() for row in rows]
    assert [number for number in numbers if number.isdigit()] == [str(number) for number in range(1, 9)]
