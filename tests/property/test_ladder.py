"""The ladder, whatever happens to a model: moves by table only, and always comes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.ladder import Ladder, LadderStep
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
    st.tuples(st.sampled_from(["ok", "failed", "nobody"]), st.sampled_from(list(LadderStep)), st.floats(0, 2)),
    max_size=60,
)


@given(STEPS, POLICIES, HAPPENED)
def test_down_goes_by_single_steps_and_up_only_where_answers_came_from(
    steps: set[LadderStep], policy: LadderPolicy, happened: list[tuple[str, LadderStep, float]]
) -> None:
    ladder = Ladder(tuple(steps), policy, 0.0)
    now = 0.0
    for what, step, later in happened:
        now += later
        before = ladder.at
        began = ladder.begin(now)
        assert began in ladder.steps
        assert began <= before
        if step not in ladder.steps:
            continue
        moved = (
            ladder.succeeded(step, now) if what == "ok" else ladder.failed(step, now, what, certain=what == "nobody")
        )
        assert (moved is not None) == (ladder.at is not before)
        if moved is None:
            continue
        assert (moved.before, moved.after) == (before, ladder.at)
        assert ladder.since == now
        if moved.down:
            assert what != "ok"
            assert step is before
            assert ladder.at is ladder.below(before)
        else:
            assert what == "ok"
            assert ladder.at is step


@given(STEPS, POLICIES, HAPPENED, st.booleans())
def test_a_model_whose_replicas_answer_comes_back_whatever_its_fallback_does(
    steps: set[LadderStep], policy: LadderPolicy, happened: list[tuple[str, LadderStep, float]], fallback: bool
) -> None:
    ladder = Ladder(tuple(steps), policy, 0.0)
    for what, step, _ in happened:
        if step in ladder.steps:
            if what == "ok":
                ladder.succeeded(step, 0.0)
            else:
                ladder.failed(step, 0.0, what, certain=what == "nobody")
    now = 0.0
    for _ in range(4 * len(ladder.steps) * policy.successes):
        now += 1.0
        step = ladder.begin(now)
        if step is LadderStep.REPLICA or (step is LadderStep.FALLBACK and fallback) or step >= LadderStep.CACHE:
            ladder.succeeded(step, now)
        else:
            ladder.failed(step, now, "nobody", certain=True)
    assert ladder.at is LadderStep.REPLICA
