"""Faults that cannot be in force together are refused before a drill begins."""

from __future__ import annotations

import pytest

from sidecar.drills.reading import parse_drill
from tests.support.drill_files import HOLD, STORE_FAULTS, changed, problems

REDIS = {f"store_{name}": f"fault: {{kind: store_{name}, process: redis, for_s: 9}}" for name in STORE_FAULTS}
KILL, FULL = (f"fault: {{kind: {kind}, process: worker-1, for_s: 9}}" for kind in ("kill", "full_disk"))
SOON = "wait: {for_s: 1}"


@pytest.mark.parametrize(
    ("phases", "why"),
    [
        ((FULL, FULL), 'full_disk ("f6") is in force there then: end it'),
        ((FULL, "end: {fault: f6}", FULL), ""),
        ((FULL, FULL.replace("1", "2")), ""),
        ((FULL, KILL, SOON, FULL), ""),  # of another process, as soon as that is there
        ((KILL, KILL), 'is only being started again then, after kill ("f6"): wait until it is there'),
        ((KILL, FULL), 'is only being started again then, after kill ("f6"): wait until it is there'),
        ((KILL, SOON, KILL), ""),
        ((REDIS["store_read_only"], REDIS["store_failover"]), 'store_read_only ("f6") is in force there then: end it'),
        ((REDIS["store_stop"], REDIS["store_refused"]), 'store_stop ("f6") is in force there then: end it'),
        ((REDIS["store_stop"], REDIS["store_read_only"]), 'store_stop ("f6") is in force there then: end it'),
        ((REDIS["store_stop"], "fault: {kind: full_disk, process: redis}"), 'store_stop ("f6") is in force there'),
        ((REDIS["store_stop"], "end: {fault: f6}", REDIS["store_pause"]), 'after store_stop ("f6"): wait until it is'),
        ((REDIS["store_stop"], "end: {fault: f6}", SOON, REDIS["store_pause"]), ""),
        ((REDIS["store_refused"], REDIS["store_stop"]), 'store_refused ("f6") is in force there then: end it'),
        ((REDIS["store_refused"], "fault: {kind: stop, process: redis}"), ""),  # which is named by its pid
        ((REDIS["store_pause"], REDIS["store_refused"]), 'store_pause ("f6") is in force there then: end it'),
        ((REDIS["store_read_only"], REDIS["store_refused"]), ""),
        ((REDIS["store_read_only"], REDIS["store_stop"]), ""),
        ((REDIS["store_restart"], REDIS["store_read_only"]), 'after store_restart ("f6"): wait until it is there'),
    ],
)
def test_faults_of_a_process_that_cannot_be_at_the_same_time(phases: tuple[str, ...], why: str) -> None:
    told = "".join(f"  - {{name: f{number}, {phase}}}\n" for number, phase in enumerate(phases, 6))
    text = changed(HOLD, told)
    if why:
        (problem,) = problems(text)
        assert problem.startswith(f"d.yaml:{11 + len(phases)}:")
        assert why in problem
    else:
        parse_drill(text.encode(), "d.yaml")
