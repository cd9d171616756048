"""Lifecycle and gate."""

from __future__ import annotations

import itertools

import pytest

from router.model import STATE_NEXT, State
from worker.gate import Gate, GateClosedError
from worker.lifecycle import Lifecycle, Transition, TransitionError

PATHS = {
    State.COLD: (),
    State.LOADING: (State.LOADING,),
    State.WARMING: (State.LOADING, State.WARMING),
    State.WARM: (State.LOADING, State.WARMING, State.WARM),
    State.DRAINING: (State.LOADING, State.DRAINING),
    State.FAILED: (State.FAILED,),
}


@pytest.mark.parametrize(("before", "after"), list(itertools.product(State, State)))
def test_only_the_tables_transitions_happen(before: State, after: State) -> None:
    told: list[Transition] = []
    lifecycle = Lifecycle(0.0, told.append)
    for now, state in enumerate(PATHS[before]):
        lifecycle.to(state, float(now))
    told.clear()
    if after in STATE_NEXT[before]:
        lifecycle.to(after, 10.0, "why")
        assert (lifecycle.state, lifecycle.reason) == (after, "why")
        lasted_s = 10.0 - max(0, len(PATHS[before]) - 1)
        assert told == [Transition(before, after, "why", lasted_s)]
    else:
        with pytest.raises(TransitionError, match=f"^{before.value} -> {after.value}$"):
            lifecycle.to(after, 10.0)
        assert lifecycle.state is before
        assert told == []


def test_time_in_state_starts_again_with_each_state() -> None:
    lifecycle = Lifecycle(5.0, lambda _: None)
    assert lifecycle.in_state_s(7.0) == 2.0
    lifecycle.to(State.LOADING, 8.0)
    assert lifecycle.in_state_s(9.5) == 1.5


def test_a_gate_is_closed_until_opened_and_says_why() -> None:
    gate = Gate("m", retry_after_s=3)
    with pytest.raises(GateClosedError, match=r"^model 'm' is not ready: not loaded yet$") as caught:
        gate.check()
    assert caught.value.retry_after_s == 3
    gate.open()
    gate.check()
    gate.close("it broke")
    with pytest.raises(GateClosedError, match=r"^model 'm' is not ready: it broke$"):
        gate.check()


def test_is_open_says_what_check_does() -> None:
    gate = Gate("m")
    seen = [gate.is_open]
    gate.open()
    seen.append(gate.is_open)
    gate.close("x")
    seen.append(gate.is_open)
    assert seen == [False, True, False]
