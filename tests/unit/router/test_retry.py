from __future__ import annotations

import math

import pytest

from router.outcomes import AttemptResult
from router.policy import RetryPolicy
from router.retry import RetryBudget, RetryDenied, RetryVerdict, judge_retry, may_repeat

POLICY = RetryPolicy()
TWO = RetryPolicy(attempts=2)
SAFE = {AttemptResult.CONNECT_REFUSED, AttemptResult.CONNECT_TIMEOUT, AttemptResult.REFUSED}
IF_IDEMPOTENT = {
    AttemptResult.RESET,
    AttemptResult.PROTOCOL,
    AttemptResult.TRY_TIMEOUT,
    AttemptResult.CALL_FAILED,
    AttemptResult.TURNED_AWAY,
    AttemptResult.NOT_READY,
}


@pytest.mark.parametrize("result", list(AttemptResult))
@pytest.mark.parametrize("idempotent", [False, True])
def test_what_may_be_sent_again(result: AttemptResult, idempotent: bool) -> None:
    why = may_repeat(result, answered=False, idempotent=idempotent, replayable=True)
    if result in SAFE:
        assert why is None
    elif result in IF_IDEMPOTENT:
        assert why is (None if idempotent else RetryDenied.NOT_IDEMPOTENT)
    else:
        assert why is RetryDenied.POINTLESS
    assert may_repeat(result, answered=True, idempotent=idempotent, replayable=True) is RetryDenied.ANSWERED


def test_a_body_that_is_gone_cannot_be_sent_again() -> None:
    refused = AttemptResult.CONNECT_REFUSED
    assert may_repeat(refused, answered=False, idempotent=True, replayable=False) is RetryDenied.NOT_REPLAYABLE


def judge(
    budget: RetryBudget,
    result: AttemptResult = AttemptResult.CONNECT_REFUSED,
    tries: int = 1,
    rng: float = 0.5,
    left_s: float = math.inf,
    policy: RetryPolicy = POLICY,
) -> RetryVerdict:
    return judge_retry(
        policy,
        budget,
        result,
        answered=False,
        idempotent=False,
        replayable=True,
        tries=tries,
        now=1.0,
        rng=lambda: rng,
        left_s=left_s,
    )


@pytest.mark.parametrize("rng", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("policy", [POLICY, TWO])
def test_the_first_retry_goes_elsewhere_at_once(policy: RetryPolicy, rng: float) -> None:
    assert judge(RetryBudget(policy, 0.0), rng=rng, policy=policy) == RetryVerdict(True)


@pytest.mark.parametrize(("rng", "delay_s"), [(0.0, 0.025), (0.5, 0.1375), (1.0, 0.25)])
def test_the_wait_of_a_later_one_is_jittered_between_the_bounds(rng: float, delay_s: float) -> None:
    verdict = judge(RetryBudget(TWO, 0.0), tries=2, rng=rng, policy=TWO)
    assert verdict.allowed
    assert verdict.delay_s == pytest.approx(delay_s)
    assert verdict.denied is None


@pytest.mark.parametrize(("left_s", "delay_s"), [(10.0, 0.25), (0.5, 0.25), (0.4, 0.2), (0.002, 0.001)])
def test_the_wait_leaves_half_of_what_is_left_of_the_request(left_s: float, delay_s: float) -> None:
    verdict = judge(RetryBudget(TWO, 0.0), tries=2, rng=1.0, left_s=left_s, policy=TWO)
    assert verdict.delay_s == pytest.approx(delay_s)


@pytest.mark.parametrize("left_s", [0.0, -0.1])
def test_nothing_is_tried_when_the_requests_time_is_over(left_s: float) -> None:
    budget = RetryBudget(POLICY, 0.0)
    assert judge(budget, left_s=left_s).denied is RetryDenied.DEADLINE
    assert budget.calls.totals(1.0) == (0, 0)


def test_one_more_try_only() -> None:
    assert judge(RetryBudget(POLICY, 0.0), tries=2).denied is RetryDenied.ATTEMPTS


def test_the_budget_is_a_fifth_of_the_requests_or_three_a_second() -> None:
    budget = RetryBudget(POLICY, 0.0)
    assert sum(judge(budget).allowed for _ in range(100)) == 30
    assert judge(budget).denied is RetryDenied.BUDGET
    budget.calls.add(1000, 0, 1.0)
    assert sum(judge(budget).allowed for _ in range(1000)) == 170
    assert not budget.withdraw(10.0 - 1e-9)
    assert budget.withdraw(12.0)


def test_a_denied_retry_costs_no_budget() -> None:
    budget = RetryBudget(POLICY, 0.0)
    judge(budget, tries=2)
    judge(budget, AttemptResult.RESET)
    assert budget.calls.totals(1.0) == (0, 0)
