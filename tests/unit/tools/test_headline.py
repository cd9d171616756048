"""The headline's arithmetic: blocks, intervals, verdicts, the table, the picture and the page."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from statistics import mean
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from tools.headline import page
from tools.headline.figures import Answer, Compared, Figure, blocks_of, compare
from tools.headline.plot import drawn
from tools.headline.profiles import PROFILES, WHOLE
from tools.headline.report import Result, about_figures, failed, from_json, judged, parameters, table, to_json, within
from tools.restart.play import Plan, Restart, trace

if TYPE_CHECKING:
    from pathlib import Path

PLAN = Plan(lead_s=1.0, period_s=2.0, absent_s=1.0)
COLD = PROFILES["coldstart"](PLAN)
BROKEN = PROFILES["dependency"](replace(PLAN, absent_s=0.0))
EACH = 5100


@cache
def played(
    *took_ms: float, slow_ms: float | None = None, errors: int = 0, plan: Plan = PLAN, each: int = EACH
) -> list[list[Answer]]:
    """Return two rounds. ``slow_ms``: of every fiftieth answer; ``errors``: failures in the second one's end. Kept."""
    rounds = []
    duration_s = plan.duration_s
    for number in range(2):
        answers = []
        for one in range(each):
            took = slow_ms if slow_ms is not None and one % 50 == 0 else took_ms[one % len(took_ms)]
            error = "status 500" if number == 1 and one >= each - errors else ""
            answers.append(Answer(duration_s * one / each, took, error))
        rounds.append(answers)
    return rounds


def result(compared: Compared, name: str = "coldstart") -> Result:
    (profile,) = (one for one in WHOLE if one.name == name)
    machine = {"cores": "2"}
    return Result(
        name, profile.title, machine, {"HAProxy": "2.6"}, parameters(profile, 2), 1.25, profile.told, compared
    )


def cold(**changed: list[list[Answer]]) -> Compared:
    rounds = {"a": played(20.0, 21.0, slow_ms=1900.0), "b": played(20.0, 24.0), "c": played(20.0, 22.0)} | changed
    return compare(COLD, list(rounds.values()), random.Random(7), draws=60)


def test_a_trace_is_the_same_each_time_and_takes_as_long_as_is_said() -> None:
    plan = Plan(spread=0.5)
    requests = list(trace(plan))
    assert requests == list(trace(plan))
    assert requests != list(trace(replace(plan, seed=2)))
    assert len(requests) == pytest.approx(plan.rate * plan.duration_s, rel=0.05)
    services = [float(dict(one.headers)["x-service-ms"]) for one in requests]
    assert mean(services) == pytest.approx(1000 * plan.service_s, rel=0.05)
    assert {one.headers for one in trace(Plan())} == {(("Content-Type", "application/json"),)}


def test_after_all_were_restarted_one_is_away_for_longer() -> None:
    expected = [Restart(1.0 + 2 * number, number, 0.3) for number in range(4)]
    assert PLAN.restarts == (*expected, Restart(9.0, 0, 1.0))
    assert PLAN.duration_s == 11.0
    assert replace(PLAN, absent_s=0.0).restarts == tuple(expected)
    assert COLD.bands[-1] == (9.0, 12.0)


def test_blocks_are_periods_of_rounds_and_the_lead_is_in_the_first() -> None:
    ats = [0.0, 0.9, 1.0, 2.9, 3.0, 9.5, 11.5]
    rounds = [[Answer(at_s, 20.0) for at_s in ats], [Answer(3.5, 20.0)]]
    found = [[one.at_s for one in block] for block in blocks_of(rounds, PLAN, 0.0)]
    assert found == [[0.0, 0.9, 1.0, 2.9], [3.0], [], [], [9.5, 11.5], [], [3.5], [], [], []]
    assert [one.at_s for one in blocks_of(rounds, PLAN, 1.0)[0]] == [1.0, 2.9]


def test_what_is_within_its_bounds_is_met() -> None:
    compared = cold()
    assert [row.key for row in compared.rows] == ["a", "b", "c"]
    assert all(verdict.met for verdict in compared.verdicts)
    assert [judged(verdict) for verdict in compared.verdicts] == [
        "MET: P99 of (c): 86.4 times (86.4 to 86.4), at least 12.3 times lower than that of (a)",
        "MET: P99 of (c): -2.0 ms (-2.0 to -2.0), no higher than that of (b)",
        "MET: P99.9 of (c): -2.0 ms (-2.0 to -2.0), no higher than that of (b)",
        "MET: error rate of (c): 0.000% (0 of 10,200), at most 0.03%",
        "MET: errors of (c), whose model is idempotent: 0, none",
    ]


@pytest.mark.parametrize(
    ("ours", "missed"),
    [
        (played(20.0, 30.0), [1, 2]),
        (played(20.0, slow_ms=200.0), [0, 1, 2]),
        (played(20.0, 22.0, errors=1), [4]),
        (played(20.0, 22.0, errors=4), [3, 4]),
    ],
)
def test_what_is_not_is_missed(ours: list[list[Answer]], missed: list[int]) -> None:
    assert [number for number, verdict in enumerate(cold(c=ours).verdicts) if not verdict.met] == missed


def test_a_quantile_of_too_few_answers_is_not_told_and_its_bound_not_met() -> None:
    compared = cold(c=played(20.0, 22.0, each=3000))  # 6,000 answers: six beyond a P99.9
    assert set(compared.rows[2].quantiles_ms) == {"P50", "P95", "P99"}
    assert not compared.verdicts[2].met
    assert judged(compared.verdicts[2]) == "MISSED: P99.9 of (c): too few answers to tell, no higher than that of (b)"


def test_intervals_hold_their_value_and_take_eight_blocks() -> None:
    figure = cold().rows[0].quantiles_ms["P99"]
    assert (figure.low, figure.value, figure.high) == (1900.0, 1900.0, 1900.0)
    errors = cold(c=played(20.0, errors=30)).rows[2].error_ratio
    assert errors.low is not None
    assert errors.high is not None
    assert errors.low < errors.value == 30 / 10_200 < errors.high
    few = compare(replace(COLD, plan=replace(PLAN, workers=2)), [played(20.0)] * 3, random.Random(7), draws=60)
    assert few.blocks == 6
    assert few.rows[0].quantiles_ms["P50"] == Figure(20.0)


def test_of_a_failing_worker_only_what_follows_its_failure_counts() -> None:
    plan = BROKEN.plan
    rounds = [played(30.0, errors=600, plan=plan), played(40.0, errors=300, plan=plan), played(20.0, plan=plan)]
    compared = compare(BROKEN, rounds, random.Random(7), draws=60)
    counted = sum(1 for number in range(EACH) if plan.duration_s * number / EACH >= plan.lead_s)
    assert {row.requests for row in compared.rows} == {2 * counted}
    assert [row.calm_ms for row in compared.rows] == [30.0, 40.0, 20.0]
    assert [verdict.met for verdict in compared.verdicts] == [True, True, True]
    turned = compare(BROKEN, list(reversed(rounds)), random.Random(7), draws=60)
    assert [verdict.met for verdict in turned.verdicts] == [False, False, False]


def test_the_table_has_a_row_for_each_with_where_its_figures_lie() -> None:
    first, _, *rows = table(result(cold(c=played(20.0, 22.0, errors=3)))).splitlines()
    assert first == "|  | requests | P50 | P95 | P99 | P99.9 | failed |"
    slow = "1,900 (1,900–1,900)"
    assert rows[0].endswith(f"| 10,200 | 21.0 (21.0–21.0) | 21.0 (21.0–21.0) | {slow} | {slow} | none (≤ 0.038%) |")
    assert "| 22.0 (22.0–22.0) | 0.03% (0.00%–" in rows[2]


def test_a_load_that_was_late_is_told() -> None:
    quiet = result(cold())
    assert about_figures(quiet).endswith("The load was late by 1.2 ms at most, at its 99th percentile.")
    assert "the machine was part of these figures" in about_figures(replace(quiet, late_ms=10.5))


def test_figures_are_written_with_the_digits_that_count() -> None:
    assert within(Figure(99.94)) == "99.9"
    assert within(Figure(1999.6, 180.4, 2001.0)) == "2,000 (180–2,001)"
    assert within(None) == "too few"
    row = cold().rows[2]
    assert failed(replace(row, error_ratio=Figure(0.0))) == "none"


@pytest.mark.parametrize("errors", [0, 3])
def test_the_picture_has_a_line_for_each_and_bands_for_restarts(errors: int) -> None:
    drawing = ET.fromstring(drawn(result(cold(a=played(20.0, slow_ms=1900.0, errors=errors)))))
    name = "{http://www.w3.org/2000/svg}"
    colors = [line.get("stroke") for line in drawing.iter(f"{name}polyline")]
    panels = 3 if errors else 2
    assert [colors.count(color) for color in ("#c2413b", "#3b6fb6", "#d9730d")] == [1 + panels] * 3  # one in the legend
    assert sum(1 for rect in drawing.iter(f"{name}rect") if rect.get("fill-opacity")) == len(PLAN.restarts)


def test_results_are_kept_by_profile_and_give_the_page(tmp_path: Path) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / page.PAGE).write_text(f"before\n{page.BEGIN}\nwhat was here\n{page.END}\nafter\n")
    plan = BROKEN.plan
    broken = compare(BROKEN, [played(20.0, plan=plan)] * 3, random.Random(7), draws=60)
    page.keep([result(cold(c=played(20.0, 30.0)))], tmp_path)
    page.keep([result(broken, "dependency")], tmp_path)
    page.keep([replace(result(cold(c=played(20.0, each=3000))), late_ms=7.5)], tmp_path)
    assert [one.name for one in page.kept(tmp_path)] == ["coldstart", "dependency"]
    text = (tmp_path / page.PAGE).read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "what was here" not in text
    assert "late by 7.5 ms at most" in text
    assert "- **MISSED**: P99.9 of (c): too few" in text
    for name in ("headline-coldstart.svg", "headline-dependency.svg"):
        assert f"(benchmarks/{name})" in text
        ET.fromstring((tmp_path / "benchmarks" / name).read_text())


def test_results_are_read_as_they_were_kept() -> None:
    kept = [result(cold())]
    assert from_json(to_json(kept)) == kept


def test_the_committed_page_and_pictures_are_those_of_the_committed_results() -> None:
    results = page.kept()
    text = (page.DOCS / page.PAGE).read_text(encoding="utf-8")
    assert page.replaced(text, results) == text, "stale: python -m tools.headline --render"
    for name, picture in page.pictures(results).items():
        assert (page.DOCS / name).read_text(encoding="utf-8") == picture, f"{name} is stale"


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"headline\.md needs the lines"):
        page.replaced("nothing here", [])
