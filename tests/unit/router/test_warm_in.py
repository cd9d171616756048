"""When somebody is told to come back, where replicas are on their way and say how long they should take."""

from __future__ import annotations

import pytest

from router.model import Replica, State
from router.outcomes import AttemptResult, Reason
from router.policy import FreshnessPolicy
from tests.support.fleet import Driven, record

BEAT_S = FreshnessPolicy().heartbeat_s


@pytest.mark.parametrize(
    ("replicas", "retry_after_s", "warm_in_s"),
    [
        ([(State.LOADING, 20.0)], 20.0, 20.0),
        ([(State.WARMING, 7.0), (State.LOADING, 20.0)], 7.0, 7.0),
        ([(State.LOADING, 20.0), (State.COLD, 0.0), (State.FAILED, 0.0)], 20.0, 20.0),  # nobody loads those
        ([(State.LOADING, 20.0), (State.LOADING, 0.0)], BEAT_S, 0.0),  # the second may be there any moment
        ([(State.LOADING, 0.0)], BEAT_S, 0.0),
        ([(State.COLD, 0.0)], BEAT_S, 0.0),
        ([(State.LOADING, 20.0), (State.DRAINING, 0.0)], BEAT_S, 0.0),
    ],
)
def test_the_soonest_is_told(replicas: list[tuple[State, float]], retry_after_s: float, warm_in_s: float) -> None:
    driven = Driven()
    for number, (state, seconds) in enumerate(replicas):
        driven.seen(record(str(number), replicas=(Replica("m", "1", state=state, warm_in_s=seconds),)))
    none = driven.nobody()
    assert (none.retry_after_s, none.warm_in_s) == (retry_after_s, warm_in_s)


def test_one_that_is_warm_and_out_for_a_moment_may_be_back_before() -> None:
    driven = Driven()
    driven.seen(record("a"), record("b", replicas=(Replica("m", "1", state=State.LOADING, warm_in_s=20.0),)))
    driven.done(driven.to("a"), AttemptResult.CONNECT_REFUSED)
    none = driven.nobody()
    assert none.reason in (Reason.QUARANTINED, Reason.NOT_WARM)
    assert none.retry_after_s < 20.0
    assert none.warm_in_s == 0.0
