"""Workers killed and restarted in turn, whose readiness lies: no request is lost, none waits for a load.

``make restart`` is the whole of it, beside other proxies.
"""

from __future__ import annotations

import os

import pytest

from tools.restart.play import Plan, play
from tools.restart.setups import SETUPS

pytestmark = pytest.mark.acceptance

PLAN = Plan(lead_s=1.0, period_s=3.0, share=0.4)


def test_a_rolling_restart_behind_readiness_that_lies_is_not_noticed() -> None:
    (ours,) = (setup for setup in SETUPS if setup.ours)
    cores = sorted(os.sched_getaffinity(0))
    try:
        outcome = play(ours, PLAN, lying=True, cores=(cores[0], cores[-1]))
    finally:
        os.sched_setaffinity(0, cores)
    assert outcome.requests > 3000
    assert outcome.errors == {}
    assert outcome.p999_ms < 1000, "a request that meets a load waits for up to 2 s"
