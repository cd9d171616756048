"""Whether objectives held."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.drills.reading import parse_drill
from sidecar.drills.record import Accounts, Call, Check, FaultSpan, Look, Record, Seen, Span
from sidecar.drills.scenario import Abort, Drill, Measure
from sidecar.drills.traffic import Figures
from sidecar.drills.verdict import judge, to_abort

TEXT = """\
version: 1
name: one
title: One
phases:
  - {{load: {{path: /x, rate_per_s: 10}}}}
  - {{name: f, fault: {{kind: abort, endpoint: a}}}}
  - {{name: late, wait: {{for_s: 5}}}}
objectives:
  - {objective}
"""
RECORD = Record(
    length_s=10,
    spans=(Span("f", "fault", 2, 2), Span("late", "wait", 5, 10)),
    faults=(FaultSpan("f", "abort", "a", 2, 5),),
    calls=tuple(
        Call(n / 10, 200.0 if n < 50 else 20.0, not 20 <= n < 30, "x", "cache" if n >= 90 else "") for n in range(100)
    ),
    looks=(Look(1, {"a": Seen()}), Look(3.5, {"a": Seen(out="breaker_open", breaker="open")})),
    accounts=Accounts(sent=100, lost=1),
)


def drill(objective: str) -> Drill:
    return parse_drill(TEXT.format(objective=objective).encode(), "one.yaml")


@pytest.mark.parametrize(
    ("objective", "shown", "passed"),
    [
        ("{measure: error_ratio, at_most: 0.1}", "10%", True),
        ("{measure: error_ratio, at_most: 0.09}", "10%", False),
        ("{measure: error_ratio, at_most: 0, during: [late]}", "0%", True),
        ("{measure: error_ratio, at_least: 0.2}", "10%", False),
        ("{measure: p95_ms, at_most: 50}", "200 ms", False),
        ("{measure: p95_ms, at_most: 50, during: [late]}", "20 ms", True),
        ("{measure: cache_ratio, at_least: 0.1, at_most: 0.1}", "10%", True),
        ("{measure: requests, at_least: 101}", "100", False),
        ("{measure: lost, at_most: 0}", "1", False),
        ("{measure: lost, at_most: 1}", "1", True),
        ("{measure: doubled, at_most: 0}", "0", True),
        ("{measure: eject_s, at_most: 1.5}", "1.5 s", True),
        ("{measure: eject_s, at_most: 1.4}", "1.5 s", False),
        ("{measure: return_s, at_most: 100}", "never", False),
        ("{measure: recover_s, at_most: 3, slow_ms: 300}", "1 s", True),
        ("{measure: attempts_ratio, at_most: 100}", "nothing to measure", False),
        ("{measure: p95_ms, at_most: 1000, during: [f]}", "nothing to measure", False),  # nothing is no pass
    ],
)
def test_an_objective(objective: str, shown: str, passed: bool) -> None:
    verdict = judge(drill(objective), RECORD)
    assert [(one.shown, one.passed) for one in verdict.results] == [(shown, passed)]
    assert verdict.passed is passed


@pytest.mark.parametrize(
    "spoilt",
    [
        replace(RECORD, cut_short="interrupted"),
        replace(RECORD, left_behind=("fault f",)),
        replace(RECORD, checks=(Check("x", "y", False, 1.0),)),
    ],
)
def test_all_objectives_alone_are_not_enough(spoilt: Record) -> None:
    verdict = judge(drill("{measure: error_ratio, at_most: 1}"), spoilt)
    assert verdict.results[0].passed
    assert not verdict.passed


@pytest.mark.parametrize(
    ("abort", "seen", "said"),
    [
        (
            Abort(measure=Measure.ERROR_RATIO, above=0.5),
            Figures(requests=100, errors=51),
            "error_ratio 51% over 5 s, above 50%",
        ),
        (Abort(measure=Measure.ERROR_RATIO, above=0.5), Figures(requests=100, errors=50), ""),
        (Abort(measure=Measure.ERROR_RATIO, above=0.5), Figures(requests=19, errors=19), ""),
        (
            Abort(measure=Measure.P99_MS, above=5, least=1),
            Figures(requests=1, p99_ms=6.0),
            "p99_ms 6 ms over 5 s, above 5 ms",
        ),
    ],
)
def test_what_ends_a_drill_at_once(abort: Abort, seen: Figures, said: str) -> None:
    assert to_abort(abort, seen) == said
