"""The forms of a drill: named, short, without a feature."""

from __future__ import annotations

import pytest

from sidecar.drills.reading import parse_drill
from sidecar.drills.scenario import Drill, lacking, overlaid, shortened

TEXT = b"""\
version: 1
name: one
title: One
start: {up: {worker_flags: [--load-s, "1"], config: {policies: {breaker: {window_s: 10, open_s: 60}}}}}
phases:
  - {name: load, load: {path: /x, rate_per_s: 10, for_s: 20}}
  - {name: fault, fault: {kind: abort, for_s: 30, endpoint: worker-1}}
  - {name: calm, wait: {for_s: 10}}
  - {name: out, expect: {endpoint: worker-1, being: out, within_s: 4}}
objectives:
  - {measure: eject_s, at_most: 10}
  - {measure: p95_ms, at_most: 100}
without:
  breaker: {config: {policies: {breaker: {surge: false}}}}
  gate: {worker_flags: []}
short: {time_ratio: 0.5, config: {policies: {breaker: {window_s: 2}}}}
"""


@pytest.fixture
def drill() -> Drill:
    return parse_drill(TEXT, "one.yaml")


def config(drill: Drill) -> object:
    assert drill.start is not None
    return drill.start.up.config


def test_the_short_form_takes_less_time_and_its_settings_are_laid_over(drill: Drill) -> None:
    short = shortened(drill)
    load, fault, calm, out = short.phases
    assert load.load is not None
    assert load.load.for_s == 10
    assert load.load.rate_per_s == 10
    assert fault.fault is not None
    assert fault.fault["for_s"] == 15
    assert calm.wait is not None
    assert calm.wait.for_s == 5
    assert out.expect is not None
    assert out.expect.within_s == 2
    assert [one.at_most for one in short.objectives] == [5, 100]  # seconds of a fault, but not latencies
    assert config(short) == {"policies": {"breaker": {"window_s": 2, "open_s": 60}}}


def test_waits_of_the_short_form_have_a_ratio_of_their_own() -> None:
    text = TEXT.replace(b"time_ratio: 0.5", b"time_ratio: 0.5, wait_ratio: 0.2")
    _, fault, calm, out = shortened(parse_drill(text, "one.yaml")).phases
    assert calm.wait is not None
    assert calm.wait.for_s == 2
    assert fault.fault is not None
    assert fault.fault["for_s"] == 15
    assert out.expect is not None
    assert out.expect.within_s == 2


def test_without_a_feature_its_settings_are_laid_over(drill: Drill) -> None:
    assert config(lacking(shortened(drill), "breaker")) == {
        "policies": {"breaker": {"window_s": 2, "open_s": 60, "surge": False}}
    }


def test_without_a_feature_the_workers_may_have_other_flags(drill: Drill) -> None:
    start, kept = lacking(drill, "gate").start, lacking(drill, "breaker").start
    assert start is not None
    assert start.up.worker_flags == ()
    assert kept is not None
    assert kept.up.worker_flags == ("--load-s", "1")


def test_without_a_feature_phases_may_be_left_out() -> None:
    text = TEXT.replace(b"  gate: {worker_flags: []}", b"  waiting: {skip: [calm]}")
    names = [phase.name for phase in lacking(parse_drill(text, "one.yaml"), "waiting").phases]
    assert names == ["load", "fault", "out"]


def test_a_feature_that_it_knows_nothing_of(drill: Drill) -> None:
    with pytest.raises(KeyError):
        lacking(drill, "cache")


def test_laying_over_changes_nothing_below() -> None:
    below = {"a": {"b": 1, "c": [1, 2]}, "d": 1}
    assert overlaid(below, {"a": {"c": [3]}, "e": None}) == {"a": {"b": 1, "c": [3]}, "d": 1, "e": None}
    assert below == {"a": {"b": 1, "c": [1, 2]}, "d": 1}
