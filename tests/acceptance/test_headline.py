"""The headline in small: a worker fails behind round robin and behind warmroute, and what callers met is told.

``make headline`` is the whole of it (docs/headline.md).
"""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest

from tools.headline.figures import compare
from tools.headline.measure import measure
from tools.headline.profiles import Contender, dependency
from tools.restart.play import Plan, trace
from tools.restart.setups import SETUPS

pytestmark = pytest.mark.acceptance

PLAN = Plan(load_s=0.2, settle_s=0.5, lead_s=1.0, period_s=0.75, share=0.3, spread=0.5)


def test_a_failing_worker_is_found_out_by_warmroute_and_not_by_round_robin() -> None:
    (blind,) = (setup for setup in SETUPS if setup.name == "nginx, round robin")
    whole = dependency(PLAN)
    profile = replace(whole, contenders=(Contender("a", "nginx", blind), whole.contenders[-1]))
    cores = sorted(os.sched_getaffinity(0))
    said: list[str] = []
    try:
        played = measure(profile, 1, (cores[0], cores[-1]), said.append)
    finally:
        os.sched_setaffinity(0, cores)
    sent = sorted(request.at_s for request in trace(PLAN))
    assert [sorted(one.at_s for one in answers) for (answers,) in played.rounds] == [sent, sent]
    assert len(said) == 2
    theirs, ours = compare(profile, played.rounds, random.Random(7), draws=60).rows
    assert theirs.requests == ours.requests == sum(1 for at_s in sent if at_s >= PLAN.lead_s)
    assert set(theirs.errors) == {"status 500"}
    assert set(ours.errors) <= {"status 500"}
    assert ours.failures < theirs.failures
