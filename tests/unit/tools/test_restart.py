"""The rolling restart's own arithmetic: arrivals, quantiles, and what is judged."""

from __future__ import annotations

from collections import Counter

from sidecar.traffic.samples import Ended
from sidecar.traffic.summary import Summary
from tools.restart.play import Outcome, Plan, outcome, rows
from tools.restart.report import table, verdicts
from tools.restart.setups import SETUPS, Setup


def made(p99_ms: float, p999_ms: float, failures: int = 0) -> Outcome:
    return Outcome(1000, failures, {}, 20.0, p99_ms, p999_ms, 1.0)


BY_NAME = {setup.name: setup for setup in SETUPS}
OURS = BY_NAME["warmroute"]
CHECKED, BLIND = BY_NAME["HAProxy, leastconn, checks"], BY_NAME["nginx, least_conn"]


def judged(played: dict[tuple[Setup, bool], Outcome]) -> dict[str, bool]:
    return {verdict.figure: verdict.met for verdict in verdicts(played)}


def test_the_load_is_what_the_page_says() -> None:
    assert Plan().rate == 480.0


def test_quantiles_are_of_answers_and_failures_are_counted_apart() -> None:
    summary = Summary([number / 1000 for number in range(1, 1001)], ends=Counter({Ended.OK: 1000, Ended.STATUS_5XX: 2}))
    summary.errors["status 503"] = 2
    found = outcome(summary)
    assert (found.p50_ms, found.p99_ms, found.p999_ms) == (500.0, 990.0, 999.0)
    assert (found.requests, found.failures, found.errors) == (1002, 2, {"status 503": 2})


def test_rows_without_checks_are_played_once() -> None:
    planned = list(rows(SETUPS))
    assert len(planned) == len(SETUPS) + sum(setup.checks for setup in SETUPS)
    assert (BLIND, True) not in planned


def test_truth_is_judged_by_the_best_other_and_lies_by_the_closest() -> None:
    played = {
        (OURS, False): made(38.0, 48.0),
        (CHECKED, False): made(38.0, 60.0),
        (BLIND, False): made(40.0, 1960.0),
        (OURS, True): made(40.0, 150.0),
        (CHECKED, True): made(40.0, 1990.0),
    }
    assert all(judged(played).values())
    assert len(judged(played)) == 5
    played[OURS, False] = made(39.0, 61.0, 1)
    played[OURS, True] = made(40.0, 160.0, 1)
    assert not any(judged(played).values())


def test_what_was_not_played_is_not_judged() -> None:
    assert judged({(OURS, True): made(40.0, 150.0)}) == {"readiness lies: errors": True}
    assert judged({(CHECKED, True): made(40.0, 150.0)}) == {}


def test_the_table_says_whether_readiness_was_asked() -> None:
    text = table({(BLIND, False): made(40.0, 1960.4), (CHECKED, True): made(40.0, 50.0, 1)})
    assert text.splitlines()[2:] == [
        "| nginx, least_conn | not asked | 20.0 | 40.0 | 1,960 | none |",
        "| HAProxy, leastconn, checks | lies | 20.0 | 40.0 | 50.0 | 0.10% |",
    ]
