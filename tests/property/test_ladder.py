"""The ladder, whatever happens to a model: moves by table only, and always comes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.ladder import Ladder, LadderStep, Moved
from router.policy import LadderPolicy

STEPS = st.sets(st.sampled_from([LadderStep.FALLBACK, LadderStep.CACHE, LadderStep.STATIC]))
POLICIES = st.builds(
    LadderPolicy,
    failures=st.integers(1, 3),
    successes=st.integers(1, 3),
    hold_s=st.sampled_from([0.0, 1.0]),
    trial_s=st.sampled_from([0.0, 0.5]),
)
HAPPENED = st.lists(
    st.tuples(st.sampled_from(["ok", "failed", "nobody", "own"]), st.sampled_from(list(LadderStep)), st.floats(0, 2)),
    max_size=60,
)


def happens(ladder: Ladder, what: str, step: LadderStep, now: float) -> Moved | None:
    """One request ends."""
    if what == "ok":
        return ladder.succeeded(step, now)
    return ladder.failed(step, now, what, certain=what == "nobody", of_its_own=what == "own")


@given(STEPS, POLICIES, HAPPENED)
def test_down_goes_by_single_steps_and_up_only_where_answers_came_from(
    steps: set[LadderStep], policy: LadderPolicy, happened: list[tuple[str, LadderStep, float]]
) -> None:
    ladder = Ladder(tuple(steps), policy, 0.0)
    now = 0.0
    for what, step, later in happened:
        now += later
        before = ladder.at
        began = ladder.begin(now, whole=True)
        assert began in ladder.steps
        assert began <= before
        if step not in ladder.steps:
            continue
        since = ladder.since
        moved = happens(ladder, what, step, now)
        assert (moved is not None) == (ladder.at is not before)
        if moved is None:
            continue
        assert (moved.before, moved.after) == (before, ladder.at)
        assert ladder.since == now
        if moved.down:
            assert what in ("failed", "nobody")
            assert step is before
            assert ladder.at is ladder.below(before)
        else:
            assert what == "ok"
            assert ladder.at is step
            assert now - since >= policy.hold_s


@given(STEPS, POLICIES, HAPPENED)
def test_a_step_is_passed_over_on_the_way_up_only_after_it_failed_on_trial(
    steps: set[LadderStep], policy: LadderPolicy, happened: list[tuple[str, LadderStep, float]]
) -> None:
    ladder = Ladder(tuple(steps), policy, 0.0)
    now = 0.0
    failed: set[LadderStep] = set()  # since the last move
    for what, step, later in happened:
        now += later
        before = ladder.at
        if step not in ladder.steps:
            continue
        if what != "ok" and step < before:
            failed.add(step)
        moved = happens(ladder, what, step, now)
        if moved is not None:
            if not moved.down:
                assert failed >= {one for one in ladder.steps if moved.after < one < before}
            failed.clear()


@given(STEPS, POLICIES, HAPPENED)
def test_what_requests_bring_about_of_their_own_takes_no_step_down_and_no_answers_away(
    steps: set[LadderStep], policy: LadderPolicy, happened: list[tuple[str, LadderStep, float]]
) -> None:
    """With and without them a ladder goes down alike, as long as it never looks up."""
    ladder, without = Ladder(tuple(steps), policy, 0.0), Ladder(tuple(steps), policy, 0.0)
    for what, step, _ in happened:
        if step in ladder.steps and step >= ladder.at:
            happens(ladder, what, step, 0.0)
            if what != "own":
                happens(without, what, step, 0.0)
        assert ladder.at is without.at


@given(STEPS, POLICIES, HAPPENED, st.booleans())
def test_a_model_whose_replicas_answer_comes_back_whatever_its_fallback_does(
    steps: set[LadderStep], policy: LadderPolicy, happened: list[tuple[str, LadderStep, float]], fallback: bool
) -> None:
    ladder = Ladder(tuple(steps), policy, 0.0)
    for what, step, _ in happened:
        if step in ladder.steps:
            happens(ladder, what, step, 0.0)
    now = 0.0
    for _ in range(4 * len(ladder.steps) * policy.successes):
        now += 1.0
        step = ladder.begin(now, whole=True)
        if step is LadderStep.REPLICA or (step is LadderStep.FALLBACK and fallback) or step >= LadderStep.CACHE:
            ladder.succeeded(step, now)
        else:
            ladder.failed(step, now, "nobody", certain=True)
    assert ladder.at is LadderStep.REPLICA
