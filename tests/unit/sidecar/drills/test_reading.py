"""What a drill's file may say, and what is said of one that cannot be used."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from sidecar.config.problems import SettingsError
from sidecar.drills.faulting import kinds
from sidecar.drills.reading import load_drill, parse_drill
from sidecar.drills.scenario import Drill
from tests.support import drill_files
from tests.support.drill_files import problems

SHIPPED = sorted((Path(__file__).parents[4] / "deploy" / "drills").glob("*.yaml"))

GOOD = """\
version: 1
name: one
title: One
start: {up: {workers: 2, config: {models: [{name: drill, idempotent: true}]}}}
phases:
  - {name: load, load: {path: /v2/models/drill/infer, rate_per_s: 10}}
  - {fault: {id: slow, kind: delay, delay_ms: 5, endpoint: worker-1}}
  - {name: calm, wait: {for_s: 1}}
  - {end: {fault: slow}}
objectives:
  - {measure: error_ratio, at_most: 0, during: [calm]}
without: {breaker: {config: {policies: {breaker: {surge: false}}}}}
"""


changed = partial(drill_files.changed, text=GOOD)


def test_phases_have_names_and_faults_their_defaults() -> None:
    drill = parse_drill(GOOD.encode(), "d.yaml")
    assert [phase.name for phase in drill.phases] == ["load", "fault-2", "calm", "end-4"]
    fault = drill.phases[1].fault
    assert fault is not None
    assert (fault["id"], fault["for_s"], fault["ratio"]) == ("slow", 60.0, 1.0)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("title: One\n", "titel: One\n", 'd.yaml:3:1: titel: "One": unknown field; did you mean "title"?'),
        ("rate_per_s: 10}", "rate_per_s: 0}", "d.yaml:6:67: phases[0].load.rate_per_s: 0: must be greater than 0"),
        (
            "kind: delay, delay_ms: 5",
            "kind: delai, delay_ms: 5",
            (
                'd.yaml:7:30: phases[1].fault.kind: "delai": '
                f'must be one of: {", ".join(kinds())}; did you mean "delay"?'
            ),
        ),
        (
            "kind: delay, delay_ms: 5",
            "kind: delay, dely_ms: 5",
            'd.yaml:7:37: phases[1].fault.dely_ms: 5: unknown field; did you mean "delay_ms"?',
        ),
        (
            "endpoint: worker-1",
            "endpoint: worker-9",
            'd.yaml:7:60: phases[1].fault.endpoint: "worker-9": there are worker-1, worker-2',
        ),
        (
            "wait: {for_s: 1}}",
            "wait: {for_s: 1}, end: {fault: slow}}",
            (
                "d.yaml:8:5: phases[2]: a mapping: says end and wait: "
                "must say exactly one of load, fault, end, do, wait, expect"
            ),
        ),
        (
            "- {end: {fault: slow}}",
            "- {end: {fault: slower}}",
            'd.yaml:9:19: phases[3].end.fault: "slower": no fault of this id is in force here: there is slow',
        ),
        (
            "during: [calm]",
            "during: [storm]",
            (
                'd.yaml:11:49: objectives[0].during[0]: "storm": '
                "no phase has this name: there are calm, end-4, fault-2, load"
            ),
        ),
        (
            "at_most: 0, ",
            "at_most: 2, ",
            "d.yaml:11:37: objectives[0].at_most: 2: is a share: from 0 to 1",
        ),
        ("at_most: 0, ", "", "d.yaml:11:5: objectives[0]: a mapping: sets no bound: add at_most or at_least"),
        (
            "surge: false",
            "surg: false",
            'd.yaml:12:51: config.policies.breaker.surg: false: unknown field; did you mean "surge"?',
        ),
        (
            "start: {up: {workers: 2, config: {models: [{name: drill, idempotent: true}]}}}\n",
            "",
            'd.yaml:11:10: without: a mapping: needs "start": only what a drill starts itself can be started otherwise',
        ),
        (
            "config: {models: [{name: drill, idempotent: true}]}",
            "config: {listeners: [{address: 'x:1'}]}",
            "d.yaml:4:35: config.listeners: a list: warmroute up decides this itself: leave it out",
        ),
        (
            "kind: delay, delay_ms: 5, endpoint: worker-1",
            "kind: delay, endpoint: worker-1",
            "d.yaml:7:13: phases[1].fault.delay_ms: missing: must be given: delay needs it",
        ),
        (
            "kind: delay, delay_ms: 5, endpoint: worker-1",
            "kind: store_stop, process: worker-1",
            'd.yaml:7:51: phases[1].fault.process: "worker-1": store_stop is for redis: name that',
        ),
        (
            "kind: delay, delay_ms: 5, endpoint: worker-1",
            "kind: stop, process: worker-3",
            'd.yaml:7:45: phases[1].fault.process: "worker-3": there are control, data-0, redis, worker-1, worker-2',
        ),
        (
            "config: {policies: {breaker: {surge: false}}}",
            "skip: [storm]",
            (
                'd.yaml:12:28: without.breaker.skip[0]: "storm": no phase has this name: '
                "there are calm, end-4, fault-2, load"
            ),
        ),
        (
            "path: /v2/models/drill/infer",
            "path: v2/models/drill/infer",
            'd.yaml:6:31: phases[0].load.path: "v2/models/drill/infer": must begin with / and hold no spaces and no #',
        ),
    ],
)
def test_each_error_has_its_line_and_a_remedy(old: str, new: str, said: str) -> None:
    assert said in problems(changed(old, new))


@pytest.mark.parametrize(
    ("objective", "said"),
    [
        ("{measure: eject_s, at_most: 1, fault: fast}", "no fault has this id: there is slow"),
        ("{measure: p95_ms, at_most: 1, slow_ms: 3}", "belongs to recover_s alone: leave it out"),
        ("{measure: lost, at_most: 0, during: [calm]}", "lost is of the whole drill: leave it out"),
        ("{measure: p95_ms, at_most: 1, at_least: 2}", "is over at_most (1): nothing can be both"),
        ("{measure: eject_s, at_most: 1, endpoint: worker-3}", "there are worker-1, worker-2"),
    ],
)
def test_objectives_that_cannot_be_meant(objective: str, said: str) -> None:
    found = problems(changed("{measure: error_ratio, at_most: 0, during: [calm]}", objective))
    assert any(one.endswith(said) for one in found), found


@pytest.mark.parametrize(
    ("expect", "said"),
    [
        (
            "{within_s: 1}",
            (
                "expects nothing: add being, reason, step, picked, share_at_most, share_at_least, "
                "weight_at_most, weight_at_least, store or ready"
            ),
        ),
        ("{within_s: 1, being: out}", "needs the endpoint that is meant: add it"),
        ("{within_s: 1, endpoint: worker-1}", "needs being, reason or a share: say what is expected of it"),
        ("{within_s: 1, step: cache}", "needs the model that is meant: add it"),
        (
            "{within_s: 1, model: drill, share_at_most: 0.5}",
            "needs a model and the endpoint whose share it is: add them (a version has weight_…)",
        ),
        (
            "{within_s: 1, model: drill, weight_at_least: 0.5}",
            "needs a model and an endpoint or a version whose weight it is: add them",
        ),
    ],
)
def test_expectations_that_cannot_be_meant(expect: str, said: str) -> None:
    found = problems(changed("- {end: {fault: slow}}", f"- {{expect: {expect}}}"))
    assert any(one.endswith(said) for one in found), found


def test_all_errors_are_told_at_once_in_the_order_of_the_file() -> None:
    text = changed("rate_per_s: 10}", "rate_per_s: fast}").replace("for_s: 1}", "for_s: -1}")
    assert [one.partition(": ")[0] for one in problems(text)] == ["d.yaml:6:67", "d.yaml:8:32"]


@pytest.mark.parametrize("text", ["", "a: [", "just text", "version: 1\n---\nversion: 1\n", "name: one\n"])
def test_whatever_it_holds_the_error_has_a_place(text: str) -> None:
    assert all(one.startswith("d.yaml:") for one in problems(text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.yaml: No such file or directory: name a drill that exists"):
        load_drill(tmp_path / "none.yaml")


def test_the_example_of_the_page_is_good() -> None:
    page = (Path(__file__).parents[4] / "docs" / "drills.md").read_text(encoding="utf-8")
    assert parse_drill(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0].encode(), "page.yaml").objectives


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_what_is_shipped_is_good_and_says_how_to_do_without_what_it_tests(path: Path) -> None:
    drill = load_drill(path)
    assert isinstance(drill, Drill)
    assert drill.name == path.stem
    assert drill.without
    assert drill.about
