"""How many series a page of metrics has, whatever workers say that they are called and have."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from router.model import EndpointGone, EndpointRecord, EndpointSeen, GoneReason, Replica
from sidecar.telemetry import bounds as limits
from sidecar.telemetry.bounds import BOUNDED, Bounds, Names
from sidecar.telemetry.exposition import render
from sidecar.telemetry.families import FAMILIES
from sidecar.telemetry.page import MODEL_ADMITTED_SHARE, MODEL_ROWS
from tests.support.control_by_hand import ControlByHand, control_by_hand
from tests.support.metrics_text import doubled

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIGURED = [{"name": "zz", "default": True}, {"name": "zy"}]


@pytest.fixture
def control() -> Iterator[ControlByHand]:
    with control_by_hand(processes=2, models=CONFIGURED) as one:
        yield one


def page_of(control: ControlByHand, bounds: Bounds) -> list[str]:
    text = b"".join(filter(None, render(control.context, control.context.clock(), bounds))).decode()
    assert doubled(text) == []
    return text.splitlines()


def values(lines: list[str], label: str) -> set[str]:
    return {found for line in lines for found in re.findall(rf'[{{,]{label}="([^"]*)"', line)}


def value(lines: list[str], series: str) -> float:
    (found,) = (line for line in lines if line.startswith(f"{series} "))
    return float(found.rpartition(" ")[2])


def left_out(lines: list[str]) -> dict[str, float]:
    return {kind: value(lines, f'warmroute_series_left_out{{kind="{kind}"}}') for kind in BOUNDED}


def test_nothing_is_left_out_of_a_fleet_of_ordinary_size(control: ControlByHand) -> None:
    control.fleet(20, 5)
    control.seen("own", ["zz"], static=True)
    lines = page_of(control, Bounds())
    assert left_out(lines) == dict.fromkeys(BOUNDED, 0)
    assert sum(line.startswith("warmroute_replica_state{") for line in lines) == 20 * 5 + 1
    assert sum(line.startswith("warmroute_route_panic{") for line in lines) == 5 + 5 + 3  # versions too
    assert values(lines, "model") == {"m0", "m1", "m2", "m3", "m4", "zz", "zy"} - {"zy"}  # whom nobody has


def test_strangers_with_many_models_neither_exceed_the_bounds_nor_push_out_what_is_configured(
    control: ControlByHand,
) -> None:
    for number in range(40):
        control.seen(f"a{number}", [f"a{number}-{model}" for model in range(300)])
    control.seen("late", ["zz", "zy"])
    bounds = Bounds()
    lines = page_of(control, bounds)
    assert len(lines) < 6000
    models = values(lines, "model")
    assert len(models) <= limits.MODELS
    assert {"zz", "zy"} <= models
    assert len(values(lines, "route")) <= limits.ROUTES
    for model in ("zz", "zy"):
        pairs = f'endpoint="late",model="{model}",version="1",shard="0"'
        assert f'warmroute_replica_state{{{pairs},state="warm"}} 1' in lines
    shown = limits.MODELS - 1 - 2 - 1  # strangers' models beside _other, the two of the configuration and _none
    strangers = 40 * 300 - shown
    assert left_out(lines) == {
        "model": strangers,
        "endpoint": 0,
        "version": strangers,
        "route": 2 * strangers,
        "replica": strangers,
    }
    kept = values(lines, "model")
    control.seen("a-first", ["a-first"])
    assert values(page_of(control, bounds), "model") == kept  # who has series keeps them
    control.context.keeper.found("redis", EndpointGone("a0", GoneReason.DEREGISTERED, control.context.clock()))
    assert len(values(page_of(control, bounds), "model") - kept) == shown  # all of those shown were of a0


def test_counts_of_strangers_beyond_the_bound_are_added_up(control: ControlByHand) -> None:
    one, other = control.pages
    one.reserve_models(["zz"])
    for number in range(200):  # two pages hold more names together than there may be
        for page, name in ((one, f"one-{number}"), (other, f"other-{number}")):
            page.words[page.model_row(name)] += 3
            page.words[page.model_row(name) + MODEL_ADMITTED_SHARE] = 1
    one.words[one.model_row("zz")] += 5
    lines = page_of(control, Bounds())
    names = values([line for line in lines if line.startswith("warmroute_requests_total")], "model")
    assert len(names) <= limits.MODELS
    assert value(lines, 'warmroute_requests_total{model="zz",outcome="ok"}') == 5
    total = sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("warmroute_requests_total{"))
    assert total == 200 * 2 * 3 + 5
    beyond = 400 - (limits.MODELS - 1 - 3)  # _other, and zz, zy, _none
    assert value(lines, 'warmroute_requests_total{model="_other",outcome="ok"}') == beyond * 3
    assert value(lines, 'warmroute_model_requests_limit{model="_other"}') == beyond
    assert left_out(lines)["model"] == beyond


def test_a_configured_model_has_its_row_before_strangers_take_all(control: ControlByHand) -> None:
    page = control.pages[0]
    page.reserve_models(["zz", "zy"])
    rows = {page.model_row(f"s{number}") for number in range(2 * MODEL_ROWS)}
    assert len(rows) == MODEL_ROWS - 2  # those that share the last one
    assert page.model_row("zy") not in rows


def test_endpoints_and_replicas_are_bounded(control: ControlByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REPLICAS", 30)
    control.fleet(15, 4)
    control.seen("e0", ["zz", "zy"])
    control.seen("own", ["zz"], static=True)
    bounds = Bounds()
    bounds.endpoints = Names(11)
    lines = page_of(control, bounds)
    shown = values(lines, "endpoint")
    assert len(shown) == 10
    assert "own" in shown
    replicas = Counter(line.split("{")[0] for line in lines if line.startswith("warmroute_replica_"))
    assert replicas["warmroute_replica_state"] == replicas["warmroute_replica_weight"] == 30
    assert values([line for line in lines if "warmroute_replica_state" in line], "model") >= {"zz", "zy"}
    told = left_out(lines)
    assert told["endpoint"] == 6
    assert told["replica"] == 14 * 4 + 2 + 1 - 30  # e0 had other models before


def test_versions_are_bounded_with_their_models(control: ControlByHand) -> None:
    for number in range(20):
        control.seen(f"e{number}", ["zz", "other"], version=str(number))
        control.context.keeper.steering.attempts["zz", str(number)] = [number, 1]
    bounds = Bounds()
    bounds.versions = Names(9)
    lines = page_of(control, bounds)
    counted = [line for line in lines if line.startswith("warmroute_version_attempts_total")]
    assert len(values(counted, "version")) == 9
    assert sum(float(line.rpartition(" ")[2]) for line in counted if 'result="ok"' in line) == sum(range(20))
    assert left_out(lines)["version"] == 2 * 20 - 8
    assert len({route for route in values(lines, "route") if "@" in route}) <= 8


def test_names_keep_their_series_until_they_leave_and_those_of_the_configuration_come_first() -> None:
    names = Names(4)
    assert names.settle([], ["b", "c", "d", "e"]) == 1
    assert [name in names for name in "abcde"] == [False, True, True, True, False]
    assert names.settle([], ["a", "b", "c", "d", "e"]) == 2
    assert "a" not in names
    assert names.settle(["e"], ["a", "b", "c", "d", "e"]) == 2
    assert [names.label(name) for name in "abcde"] == ["_other", "b", "c", "_other", "e"]
    assert names.settle(["e"], ["a", "c", "e"]) == 0
    assert [name in names for name in "abcde"] == [True, False, True, False, True]


def test_every_label_is_bounded_here_closed_or_of_the_configuration() -> None:
    bounded = {"model", "endpoint", "version", "shard", "route"}
    closed = {
        "outcome",
        "result",
        "state",
        "reason",
        "rule",
        "step",
        "mode",
        "stage",
        "source",
        "by",
        "resource",
        "kind",
    }
    configured = {"process", "class", "shape_class", "name", "of", "revision", "python", "compiled"}
    assert {label for family in FAMILIES for label in family.labels} <= bounded | closed | configured


def test_groups_that_differ_by_their_generation_alone_are_counted_each() -> None:
    with control_by_hand(models=[{"name": "t", "shards": {"mode": "tensor", "count": 2}}]) as control:
        now = control.context.clock()
        for number, (shard, generation) in enumerate([(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]):
            part = Replica("t", "1", shard=shard, shard_count=2, generation=generation)
            record = EndpointRecord(f"e{number}", "http://127.0.0.1:1", "e", replicas=(part,))
            control.context.keeper.found("redis", EndpointSeen(record, now))
        lines = page_of(control, Bounds())
    assert value(lines, 'warmroute_groups{model="t",version="1",state="complete"}') == 2
    assert value(lines, 'warmroute_groups{model="t",version="1",state="incomplete"}') == 1
