"""The table of the ladder's transitions, one row at a time."""

from __future__ import annotations

import pytest

from router.ladder import Ladder, LadderStep, Moved
from router.policy import LadderPolicy, PolicyError

REPLICA, FALLBACK, CACHE, STATIC, REFUSE = LadderStep
POLICY = LadderPolicy(failures=3, hold_s=1.0, trial_s=0.5, successes=2)


def ladder(*steps: LadderStep) -> Ladder:
    return Ladder(steps, POLICY, 0.0)


def fell(made: Ladder, *steps: LadderStep) -> Ladder:
    for step in steps:
        assert made.failed(step, 0.0, "nobody", certain=True) is not None
    return made


def begin(made: Ladder, now: float) -> LadderStep:
    return made.begin(now, whole=True)


def test_it_has_the_first_and_the_last_step_whatever_is_configured() -> None:
    assert ladder().steps == (REPLICA, REFUSE)
    assert ladder(STATIC, CACHE).steps == (REPLICA, CACHE, STATIC, REFUSE)


def test_nobody_to_pick_takes_it_down_at_once() -> None:
    made = ladder(FALLBACK, CACHE)
    moved = made.failed(REPLICA, 5.0, "no_candidate", certain=True)
    assert moved is not None
    assert (moved.before, moved.after, moved.cause, moved.down) == (REPLICA, FALLBACK, "no_candidate", True)
    assert (made.at, made.since, made.degraded) == (FALLBACK, 5.0, True)


def test_failures_take_it_down_in_a_row_only() -> None:
    made = ladder(CACHE)
    assert made.failed(REPLICA, 0.0, "reset", certain=False) is None
    assert made.failed(REPLICA, 0.0, "reset", certain=False) is None
    assert made.succeeded(REPLICA, 0.0) is None
    assert made.failed(REPLICA, 0.0, "reset", certain=False) is None
    assert made.failed(REPLICA, 0.0, "reset", certain=False) is None
    assert made.at is REPLICA
    assert made.failed(REPLICA, 0.0, "reset", certain=False) is not None
    assert made.at is CACHE


def test_what_cannot_fail_is_never_left_downwards_and_nothing_is_below_the_last() -> None:
    made = fell(ladder(), REPLICA)
    assert made.at is REFUSE
    assert made.failed(REFUSE, 0.0, "", certain=True) is None
    assert made.below(REFUSE) is REFUSE


def test_trials_are_spaced_and_begin_after_the_hold() -> None:
    made = fell(ladder(CACHE), REPLICA)
    times = (0.0, 0.9, 1.0, 1.1, 1.4, 1.5)
    assert [begin(made, now) for now in times] == [CACHE, CACHE, REPLICA, CACHE, CACHE, REPLICA]


def test_requests_that_are_not_whole_take_no_trial_of_those_that_are() -> None:
    made = fell(ladder(CACHE), REPLICA)
    parts = [made.begin(1.0 + tenth / 10, whole=False) for tenth in range(6)]
    assert parts == [REPLICA, CACHE, CACHE, CACHE, CACHE, REPLICA]  # in a pace of their own
    assert begin(made, 1.5) is REPLICA
    assert begin(made, 1.6) is CACHE


def test_it_climbs_one_step_at_a_time() -> None:
    made = fell(ladder(FALLBACK, CACHE), REPLICA, FALLBACK)
    assert begin(made, 1.0) is FALLBACK
    assert made.succeeded(FALLBACK, 1.0) is None
    moved = made.succeeded(FALLBACK, 2.0)
    assert moved is not None
    assert (moved.before, moved.after, moved.down) == (CACHE, FALLBACK, False)
    assert begin(made, 2.5) is FALLBACK  # held again
    assert begin(made, 3.0) is REPLICA
    assert made.succeeded(REPLICA, 3.0) is None
    assert made.succeeded(REPLICA, 3.5) is not None
    assert made.at is REPLICA


def test_a_failed_trial_forgets_those_that_went_well() -> None:
    made = fell(ladder(CACHE), REPLICA)
    assert made.succeeded(REPLICA, 1.0) is None
    assert made.failed(REPLICA, 1.5, "reset", certain=False) is None
    assert made.succeeded(REPLICA, 2.0) is None
    assert made.at is CACHE
    assert made.succeeded(REPLICA, 2.5) is not None


def test_a_fallback_that_is_broken_does_not_keep_the_model_from_coming_back() -> None:
    made = fell(ladder(FALLBACK, CACHE), REPLICA, FALLBACK)
    assert begin(made, 1.0) is FALLBACK
    assert made.failed(FALLBACK, 1.0, "nobody", certain=True) is None
    assert begin(made, 2.0) is REPLICA
    assert made.succeeded(REPLICA, 2.0) is None
    assert begin(made, 3.0) is REPLICA
    moved = made.succeeded(REPLICA, 3.0)
    assert moved is not None
    assert moved.after is REPLICA


def test_aims_go_round() -> None:
    made = fell(ladder(FALLBACK, CACHE), REPLICA, FALLBACK)
    aims = []
    for now in (1.0, 2.0, 3.0):
        aims.append(begin(made, now))
        made.failed(aims[-1], now, "nobody", certain=True)
    assert aims == [FALLBACK, REPLICA, FALLBACK]


def test_answers_count_for_the_way_up_at_the_step_aimed_at_and_after_the_hold_only() -> None:
    made = fell(ladder(FALLBACK, CACHE), REPLICA, FALLBACK)
    for now in (0.1, 0.2, 0.9):
        assert made.succeeded(FALLBACK, now) is None  # held
    for now in (1.1, 1.2, 1.3):
        assert made.succeeded(REPLICA, now) is None  # a last resort that skipped a step
    assert made.at is CACHE
    assert made.succeeded(FALLBACK, 1.4) is None
    moved = made.succeeded(FALLBACK, 1.5)
    assert moved is not None
    assert moved.after is FALLBACK


def test_a_failure_of_a_requests_own_takes_no_step_and_no_trial_that_went_well() -> None:
    made = ladder(FALLBACK, CACHE)
    for _ in range(9):
        assert made.failed(REPLICA, 0.0, "status 500", certain=False, of_its_own=True) is None
    assert made.at is REPLICA
    fell(made, REPLICA)
    assert made.succeeded(REPLICA, 1.0) is None
    assert made.failed(REPLICA, 1.5, "status 400", certain=False, of_its_own=True) is None
    assert made.succeeded(REPLICA, 2.0) is not None


def test_a_fallback_that_answers_with_errors_only_is_passed_over() -> None:
    made = fell(ladder(FALLBACK, CACHE), REPLICA, FALLBACK)
    assert begin(made, 1.0) is FALLBACK
    assert made.failed(FALLBACK, 1.0, "status 404", certain=False, of_its_own=True) is None
    assert begin(made, 2.0) is REPLICA


def test_an_answer_from_further_down_says_nothing() -> None:
    made = ladder(CACHE, STATIC)
    assert made.succeeded(STATIC, 0.0) is None
    fell(made, REPLICA)
    assert made.succeeded(STATIC, 0.0) is None
    assert made.at is CACHE


def test_another_configuration_keeps_the_step_or_takes_the_next_below() -> None:
    made = fell(ladder(FALLBACK, CACHE), REPLICA)
    made.configure((FALLBACK,), POLICY, 7.0)
    assert (made.at, made.since) == (FALLBACK, 0.0)
    made.configure((STATIC,), POLICY, 8.0)
    assert (made.at, made.since) == (STATIC, 8.0)
    made.configure((), POLICY, 9.0)
    assert made.at is REFUSE


@pytest.mark.parametrize(
    "values",
    [
        {"failures": 0},
        {"successes": 1001},
        {"hold_s": -1.0},
        {"trial_s": float("inf")},
        {"hold_s": 3600.1},
        {"trial_s": 3601.0},
    ],
)
def test_policies_that_make_no_sense_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(PolicyError, match=r"ladder\."):
        LadderPolicy(**values)  # type: ignore[arg-type]


def test_moved_is_up_where_it_is_not_down() -> None:
    assert not Moved(CACHE, REPLICA, "").down
