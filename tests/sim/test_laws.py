"""What the router's law has to reach beside the others, on short seeded runs; ``make sim`` is the long form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sim import runs, scenarios
from tests.sim.laws import WARM
from tests.sim.play import play
from tests.sim.runs import HERDS, LYING, ROLLING, STALE_RESTART, STEADY, Row, play_row, settings
from tests.sim.signals import Knows

if TYPE_CHECKING:
    from tests.sim.runs import Played

SETTINGS = {setting.title: setting for setting in settings(0.4)}
OURS = Row(WARM, Knows.REPORTS)
JUDGED = {ROLLING: (Knows.REPORTS, Knows.NOTHING), LYING: (Knows.PROOF, Knows.CHECKS)}
"""What the router and the others know; the router is judged with what the others know as well."""


def played(title: str) -> Played:
    """Play what is judged in a scenario."""
    setting = SETTINGS[title]
    ours, theirs = JUDGED.get(title, (Knows.REPORTS, Knows.NOTHING))
    rows = [row for row in setting.rows if row.knows is theirs or (row.law == WARM and row.knows is ours)]
    return {(title, row): play_row(setting, row, (1,)) for row in rows}


def missed(of: Played) -> list[str]:
    """Return the figures that were not reached, of which there is at least one."""
    found = list(runs.verdicts(of))
    assert found
    return [f"{each.figure}: {each.reached:.2f} ({each.who})" for each in found if not each.met]


@pytest.mark.timeout(110)
def test_a_rolling_restart_is_hardly_felt() -> None:
    assert missed(played(ROLLING)) == []


@pytest.mark.timeout(110)
def test_nor_where_readiness_lies_and_the_sidecar_proves_workers_itself() -> None:
    assert missed(played(LYING)) == []


def test_reports_that_are_late_or_lost_do_not_change_that() -> None:
    title = STALE_RESTART
    ours = play_row(SETTINGS[title], Row(WARM, Knows.REPORTS), (1,))
    least = play_row(SETTINGS[ROLLING], Row("least_request", Knows.NOTHING), (1,))
    assert ours.errors == 0
    assert least.p999_ms / ours.p999_ms >= runs.BOUND_P999


@pytest.mark.timeout(110)
@pytest.mark.parametrize("title", STEADY)
def test_a_steady_fleet_is_served_as_well_as_by_the_best_other(title: str) -> None:
    assert missed(played(title)) == []


@pytest.mark.timeout(110)
@pytest.mark.parametrize("title", HERDS)
def test_of_equal_workers_none_gets_much_more_than_its_share_of_any_100_ms(title: str) -> None:
    setting = SETTINGS[title]
    assert missed({(title, OURS): play_row(setting, OURS, (1, 2))}) == []


@pytest.mark.timeout(110)
def test_models_that_are_resident_stay_so_under_memory_pressure() -> None:
    of = played("memory pressure")
    ours = of.pop(("memory pressure", Row(WARM, Knows.REPORTS)))
    assert ours.loads == 0
    assert ours.errors == 0
    assert min(other.p999_ms for other in of.values()) / ours.p999_ms >= runs.BOUND_P999


@pytest.mark.timeout(110)
def test_a_thousand_endpoints_with_a_hundred_models_are_served_as_well_as_by_the_best_other() -> None:
    large = scenarios.large(2.0)  # ten models an endpoint, and what each takes there is learned apart
    ours, theirs = play(large, WARM, Knows.REPORTS, 1), play(large, "peak_ewma", Knows.NOTHING, 1)
    assert ours.errors == 0
    for name in runs.QUANTILES:
        assert getattr(ours, name) / getattr(theirs, name) <= runs.BOUND_STEADY, name


@pytest.mark.timeout(110)
def test_a_thousand_endpoints_in_trouble_answer_every_request() -> None:
    """Killed, cold, slow, short of memory, in bursts, and reported late or not at all, everything at once."""
    troubled = scenarios.troubled(2.0)
    ours, theirs = play(troubled, WARM, Knows.REPORTS, 1), play(troubled, "least_request", Knows.NOTHING, 1)
    assert ours.errors == 0
    assert ours.loads * 10 < theirs.loads
    for name in runs.QUANTILES:
        assert getattr(ours, name) * 2 < getattr(theirs, name), name
