"""An endpoint that answers 429, or 503 with Retry-After: others are picked until then, and it where there are none."""

from __future__ import annotations

import random

import pytest

from router.model import EndpointHeld, State, Tick
from router.outcomes import AttemptResult, Reason
from router.policy import BackPressurePolicy, Policies
from router.routes import Attempt
from tests.support.fleet import Driven, record

OK = AttemptResult.SUCCESS
BUSY = AttemptResult.BUSY
REFUSED = AttemptResult.CONNECT_REFUSED


def fleet(ids: str = "abc") -> Driven:
    driven = Driven()
    driven.seen(*(record(id_) for id_ in ids))
    return driven


def push_back(driven: Driven, id_: str, retry_after_s: float | None = None) -> None:
    driven.done(driven.to(id_), BUSY, retry_after_s=retry_after_s)


def test_others_are_picked_at_once_and_until_retry_after_without_a_tick() -> None:
    driven = fleet()
    push_back(driven, "a", 5.0)
    assert set(driven.ids()) == {"b", "c"}
    assert driven.shared == []
    for _ in range(49):
        driven.now += 0.1
        driven.heard("a", "b", "c")
        assert "a" not in driven.ids(20)
    driven.now += 0.11
    assert set(driven.ids()) == {"a", "b", "c"}


def test_a_fast_refusal_attracts_no_traffic() -> None:
    driven = fleet()
    running: list[tuple[float, Attempt]] = []
    counts = dict.fromkeys("abc", 0)
    for _ in range(4000):  # one answers nothing but 503 in a millisecond, the others take 50
        driven.now += 0.002
        while running and running[0][0] <= driven.now:
            _, attempt = running.pop(0)
            driven.done(attempt, BUSY if attempt.endpoint.id == "a" else OK, retry_after_s=5.0)
        attempt = driven.attempt()
        counts[attempt.endpoint.id] += 1
        running.append((driven.now + (0.001 if attempt.endpoint.id == "a" else 0.05), attempt))
        running.sort(key=lambda one: one[0])
        driven.heard("a", "b", "c")
    assert counts["a"] < 0.02 * 4000


@pytest.mark.parametrize(
    ("named_s", "lasts_s"),
    [(None, 1.0), (3.0, 3.0), (3600.0, 10.0), (float("inf"), 10.0), (0.0, 0.0), (-1.0, 0.0), (float("nan"), 0.0)],
)
def test_how_long_it_lasts(named_s: float | None, lasts_s: float) -> None:
    driven = fleet()
    push_back(driven, "a", named_s)
    assert max(0.0, driven.cluster.endpoints["a"].busy_until - driven.now) == lasts_s
    assert ("a" in driven.ids()) is (lasts_s == 0)


def test_a_later_answer_prolongs_it_and_never_shortens_it() -> None:
    driven = fleet()
    first, second = driven.to("a"), driven.to("a")
    driven.done(first, BUSY, retry_after_s=4.0)
    until = driven.now + 4.0
    driven.done(second, BUSY, 0.5, retry_after_s=1.0)
    assert driven.cluster.endpoints["a"].busy_until == until


def test_policies_say_how_long_and_may_turn_it_off() -> None:
    for policy, lasts_s in ((BackPressurePolicy(2.0, 3.0), 2.0), (BackPressurePolicy(0.0, 0.0), 0.0)):
        driven = Driven(policies=Policies(back_pressure=policy))
        driven.seen(record("a"), record("b"))
        push_back(driven, "a")
        assert max(0.0, driven.cluster.endpoints["a"].busy_until - driven.now) == lasts_s


def test_the_only_one_is_picked_all_the_same() -> None:
    driven = fleet("a")
    for _ in range(50):
        push_back(driven, "a", 5.0)
        driven.now += 0.01
    assert driven.ids(20) == {"a": 20}


def test_where_all_are_busy_all_are_picked_by_weight() -> None:
    driven = Driven()
    driven.seen(record("a", warmth=1.0), record("b", warmth=0.0))
    for id_ in "ab":
        push_back(driven, id_, 5.0)
    driven.ids(10)
    driven.now += 0.2
    share = driven.shares()["a"]
    assert share > 0.6
    assert driven.ids(2000)["a"] / 2000 == pytest.approx(share, abs=0.04)


def test_where_all_are_busy_the_first_to_be_over_takes_all_within_the_interval() -> None:
    driven = fleet("ab")
    push_back(driven, "a", 2.0)
    push_back(driven, "b", 4.0)
    driven.ids(10)
    driven.wait(2.0, heard="ab", tick=False)
    assert driven.ids(50) == {"a": 50}
    driven.wait(2.0, heard="ab", tick=False)
    assert set(driven.ids(50)) == {"a", "b"}


def test_a_busy_one_is_picked_before_a_request_is_turned_away() -> None:
    driven = fleet("ab")
    push_back(driven, "a", 5.0)
    driven.done(driven.to("b"), REFUSED)
    assert driven.ids(20) == {"a": 20}
    driven.seen(record("a", state=State.DRAINING))
    assert driven.nobody().detail == "m: none of 2 can be picked: 1 draining, 1 quarantined"


def test_a_busy_one_that_went_stale_or_is_held_is_not_picked() -> None:
    driven = fleet("ab")
    driven.wait(4.0, heard="b")
    push_back(driven, "a", 5.0)
    driven.apply(EndpointHeld("b", True, driven.now))
    assert driven.ids(5) == {"a": 5}
    driven.now += 1.0  # the table is not made again here, and nobody says so
    assert driven.nobody().detail == "m: none of 2 can be picked: 1 held, 1 stale"


def test_a_retry_goes_to_a_busy_one_where_nobody_else_is_left() -> None:
    driven = fleet("ab")
    push_back(driven, "a", 5.0)
    driven.now += 0.2
    attempt = driven.to("b")
    assert driven.attempt(attempt.endpoint).endpoint.id == "a"


def test_a_retry_without_another_endpoint_says_so_where_that_one_is_busy() -> None:
    driven = fleet("a")
    push_back(driven, "a", 5.0)
    assert driven.nobody(driven.cluster.endpoints["a"]).reason is Reason.ALREADY_TRIED


def test_one_route_may_have_others_and_another_route_none() -> None:
    driven = Driven()
    driven.seen(record("a", version="1"), record("b", version="2"))
    push_back(driven, "a", 5.0)
    assert driven.ids(50) == {"b": 50}
    assert {driven.attempt(route=driven.route(version="1")).endpoint.id for _ in range(20)} == {"a"}
    assert driven.ids(50) == {"b": 50}


def test_a_probe_that_is_pushed_back_ends_the_quarantine_and_others_are_picked() -> None:
    driven = fleet("ab")
    driven.done(driven.to("a"), REFUSED)
    driven.wait(1.0, heard="ab")
    probe = driven.attempt()
    assert probe.endpoint.id == "a"
    driven.done(probe, BUSY, retry_after_s=3.0)
    assert not probe.endpoint.quarantine.active
    assert driven.ids(50) == {"b": 50}


def test_a_new_process_under_the_same_id_is_not_busy() -> None:
    driven = fleet("ab")
    late = driven.to("a")
    push_back(driven, "a", 5.0)
    driven.seen(record("a", epoch="b"))
    driven.done(late, BUSY, retry_after_s=5.0)
    driven.wait(0.2, heard="ab")
    assert set(driven.ids(100)) == {"a", "b"}


def test_tables_are_made_at_most_ten_times_a_second_while_a_fleet_is_overloaded() -> None:
    driven = fleet()
    rng = random.Random(3)
    route = driven.route()
    made = 0
    for step in range(1000):
        before = route.built_at
        driven.now += 0.001
        driven.done(driven.attempt(), rng.choice([BUSY, BUSY, OK]), retry_after_s=rng.choice([0.005, 0.02]))
        driven.heard("a", "b", "c")
        if step % 100 == 0:
            driven.apply(Tick())
        made += route.built_at != before
    assert made <= 13  # two or three at first, where there was nobody in the table yet


def test_explanations_show_who_is_busy_and_for_how_long() -> None:
    driven = fleet("ab")
    push_back(driven, "a", 5.0)
    driven.wait(2.0, heard="ab")
    row = next(row for row in driven.cluster.routes(driven.now)[0].candidates if row.endpoint == "a")
    assert (row.reason, row.for_s, row.left_s, row.share) == (Reason.BUSY, 2.0, 3.0, 0.0)
    driven.now += 3.0
    driven.heard("a", "b")
    assert {row.reason for row in driven.cluster.routes(driven.now)[0].candidates} == {None}


def test_explanations_show_busy_ones_as_candidates_where_nobody_else_is_left() -> None:
    driven = fleet("ab")
    push_back(driven, "a", 5.0)
    driven.apply(EndpointHeld("b", True, driven.now))
    explanation = driven.cluster.explain(driven.route(), driven.now, driven.rng)
    assert [(row.endpoint, row.reason, row.share) for row in explanation.rows] == [
        ("a", None, 1.0),
        ("b", Reason.HELD, 0.0),
    ]
    assert explanation.law.endswith("; all that are left pushed back, so they are picked all the same")
    assert explanation.nobody is None
    assert explanation.draw is not None
    assert explanation.draw.winner == "a" == driven.attempt().endpoint.id
    (route_row, *_) = driven.cluster.routes(driven.now)
    assert route_row.candidates[0].reason is None
