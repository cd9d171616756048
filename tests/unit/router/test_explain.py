from __future__ import annotations

import json
import random

import msgspec
import pytest

from router.cluster import Cluster
from router.explain import CandidateRow, Explanation
from router.model import (
    EjectCause,
    EndpointEjected,
    EndpointHeld,
    EndpointSeen,
    PeerObserved,
    State,
    StoreChanged,
    StoreMode,
)
from router.outcomes import AttemptResult, Reason
from router.policy import ModelPolicy, Policies
from tests.support.fleet import GIB, Driven, observation, only, record


def explain(driven: Driven) -> Explanation:
    return driven.cluster.explain(driven.route(), driven.now, driven.rng)


def rows(driven: Driven) -> dict[str, CandidateRow]:
    return {row.endpoint: row for row in explain(driven).rows}


def mixed() -> Driven:
    driven = Driven()
    driven.seen(
        record("a", warmth=0.8, free=4 * GIB),
        record("b", warmth=None, free=None, warm_for_s=5.0),
        record("c", state=State.LOADING),
        record("d"),
    )
    driven.apply(PeerObserved(1, (observation("a", 3, 20.0, ((60, 5),), 5, 0),), driven.now))
    driven.done(driven.to("d"), AttemptResult.CONNECT_REFUSED)
    driven.wait(0.5, heard="abcd")
    return driven


def test_every_term_adds_up_to_the_weight() -> None:
    row = rows(mixed())["a"]
    assert [term.name for term in row.terms] == ["warmth", "free_memory", "speed"]
    for term in row.terms:
        assert term.contribution == pytest.approx((term.coefficient or 0) * (term.score or 0)) != 0
    total = sum(term.contribution or 0 for term in row.terms)
    assert row.weight == pytest.approx(row.freshness * row.ramp * total)
    warmth, memory, speed = row.terms
    assert (warmth.raw, warmth.unit, warmth.unknown, warmth.age_s) == (0.8, "ratio", False, 0.0)
    assert (memory.raw, memory.score, memory.unit) == (4 * GIB, 0.25, "bytes")
    assert speed.raw == row.p95_ms != None  # noqa: E711
    assert speed.age_s == pytest.approx(0.5)


def test_what_is_unknown_is_marked_and_shows_the_median() -> None:
    row = rows(mixed())["b"]
    assert [term.unknown for term in row.terms] == [True, True, True]
    assert [term.raw for term in row.terms] == [None, None, None]
    assert row.terms[0].score == 0.8
    assert row.terms[2].age_s is None
    assert not row.ewma_known
    assert row.ewma_ms == 20.0
    assert row.ramp == pytest.approx(0.1 + 0.9 * 0.55)
    assert row.warm_for_s == pytest.approx(5.5)


def test_loads_count_siblings_and_waits_do_not() -> None:
    row = rows(mixed())["a"]
    assert (row.in_flight, row.peers_in_flight, row.expected_wait_ms) == (0, 3, 20.0)


def test_those_left_out_come_last_with_reason_and_times() -> None:
    driven = mixed()
    shown = explain(driven).rows
    assert [row.endpoint for row in shown] == ["a", "b", "c", "d"]
    assert sum(row.share for row in shown) == pytest.approx(1)
    assert shown[0].share > shown[1].share
    c, d = shown[2:]
    assert (c.reason, c.state, c.left_s) == (Reason.NOT_WARM, "loading", None)
    assert c.for_s == pytest.approx(0.5)
    assert c.warm_for_s is None
    assert d.reason is Reason.QUARANTINED
    assert d.for_s == pytest.approx(0.5)
    assert d.left_s is not None
    assert 0.3 <= d.left_s <= 0.5
    assert (d.weight, d.share, d.terms) == (0, 0, ())


def test_where_siblings_decide_the_wait_is_that_in_one_of_them_in_the_mean() -> None:
    cluster = Cluster(Policies(), [ModelPolicy("m")], 1.0, decides=False)
    cluster.apply(EndpointSeen(record("a"), 1.0), 1.0)
    cluster.apply(EndpointSeen(record("b"), 1.0), 1.0)
    for source, count in ((1, 2), (2, 5)):
        seen = observation("a", count, 20.0, ((60, 5),), 5, 0)
        cluster.apply(PeerObserved(source, (seen,), 1.0), 1.0)
    route = cluster.route("m")
    assert route is not None
    explanation = cluster.explain(route, 1.0, lambda: 0.0)
    assert {row.endpoint: row.expected_wait_ms for row in explanation.rows} == {"a": 20 * (3.5 + 1), "b": 20.0}
    assert explanation.draw is not None
    assert "a: 20 ms x 4.5 in flight with this one = 90 ms" in explanation.draw.why


def test_the_sample_draw_says_why() -> None:
    driven = Driven()
    driven.seen(record("a"), record("b"))
    a, b = (only(driven.cluster.endpoints[id_]) for id_ in "ab")
    for a_ms, b_ms, winner, why in (
        (10.0, 30.0, "a", "the lowest expected wait wins; "),
        (30.0, 10.0, "b", "the lowest expected wait wins; "),
        (10.0, 10.5, None, "the first drawn wins: no other's expected wait is lower by more than a tenth; "),
    ):
        a.latency.ewma_ms, b.latency.ewma_ms = a_ms, b_ms
        for number in (0.0, 0.3, 0.6, 0.9):
            draw = driven.cluster.explain(driven.route(), driven.now, lambda: number).draw  # noqa: B023
            assert draw is not None
            assert sorted(draw.drawn) == ["a", "b"]
            assert draw.winner == (winner or draw.drawn[0])
            if winner or b_ms / a_ms < 1 or draw.drawn[0] == "b":
                assert draw.why.startswith(why)
            assert f"a: {a_ms:g} ms x 1 in flight with this one = {a_ms:g} ms" in draw.why
    driven.cluster.endpoints["a"].in_flight = 2
    draw = driven.cluster.explain(driven.route(), driven.now, lambda: 0.0).draw
    assert draw is not None
    assert draw.winner == "b"
    assert "a: 10 ms x 3 in flight with this one = 30 ms" in draw.why


def test_the_sample_draw_says_who_is_as_good_and_that_age_decides() -> None:
    driven = Driven()
    driven.seen(record("a"), record("b"), record("c"))
    for age_s, (id_, ms, in_flight) in enumerate((("a", 20.0, 1), ("b", 21.0, 1), ("c", 10.5, 2))):
        endpoint = driven.cluster.endpoints[id_]
        only(endpoint).latency.ewma_ms, endpoint.in_flight = ms, in_flight
        endpoint.picked_at = driven.now - age_s
    draw = driven.cluster.explain(driven.route(), driven.now, lambda: 0.5).draw
    assert draw is not None
    assert draw.winner == "c"
    assert draw.why.startswith("the lowest expected wait wins; ")
    only(driven.cluster.endpoints["c"]).latency.ewma_ms = 20.0
    why = "2 are as good, with as much in flight and about as fast: the one picked longest ago wins"
    for number in (0.0, 0.3, 0.6, 0.9):
        draw = driven.cluster.explain(driven.route(), driven.now, lambda: number).draw  # noqa: B023
        assert draw is not None
        assert draw.winner == "b"
        assert draw.why.startswith(f"{why}; ")


def test_where_siblings_decide_the_draw_says_that_they_know_whom_they_picked_last() -> None:
    cluster = Cluster(Policies(), [ModelPolicy("m")], 1.0, decides=False)
    for id_ in "ab":
        cluster.apply(EndpointSeen(record(id_), 1.0), 1.0)
        cluster.apply(PeerObserved(1, (observation(id_, 2, 20.0, ((60, 5),), 5, 0),), 1.0), 1.0)
    route = cluster.route("m")
    assert route is not None
    draw = cluster.explain(route, 1.0, lambda: 0.0).draw
    assert draw is not None
    assert "the one picked longest ago wins, which each data process knows for itself; " in draw.why


def test_of_one_nobody_else_is_drawn() -> None:
    driven = Driven()
    driven.seen(record("a"))
    draw = explain(driven).draw
    assert draw is not None
    assert (draw.drawn, draw.winner) == (("a",), "a")
    assert draw.why == "nobody else was drawn; a: nothing measured, 1 in flight with this one"


def test_without_any_measurement_the_fewest_in_flight_win() -> None:
    driven = Driven()
    driven.seen(record("a"), record("b"))
    driven.cluster.endpoints["a"].in_flight = 1
    draw = driven.cluster.explain(driven.route(), driven.now, iter((0.1, 0.9)).__next__).draw
    assert draw is not None
    assert draw.winner == "b"
    assert "nothing measured" in draw.why


def test_the_next_probe_is_named() -> None:
    driven = mixed()
    assert explain(driven).probe is None
    driven.wait(1, heard="abcd")
    explanation = explain(driven)
    assert explanation.probe == "d"
    assert explanation.draw is None
    assert [row.endpoint for row in explanation.rows if row.probe_due] == ["d"]
    assert driven.attempt().endpoint.id == "d"
    assert not any(row.probe_due for row in explain(driven).rows)  # it is under way


def test_where_nobody_else_is_left_the_probe_is_due_as_early_as_it_is_made() -> None:
    driven = Driven()
    driven.seen(record("a"))
    until = driven.now + 30
    driven.apply(EndpointEjected("a", EjectCause.QUARANTINE, until, 6, driven.now))
    assert not rows(driven)["a"].probe_due
    driven.wait(1.1, heard="a")
    assert rows(driven)["a"].probe_due
    driven.seen(record("b"))
    assert not rows(driven)["a"].probe_due


def test_nobody_left_is_explained() -> None:
    driven = Driven()
    driven.seen(record("a"))
    driven.apply(EndpointHeld("a", True, driven.now))
    explanation = explain(driven)
    assert explanation.draw is None
    assert explanation.nobody is not None
    assert explanation.nobody.reason is Reason.HELD
    assert explanation.rows[0].reason is Reason.HELD


def test_an_open_breaker_shows_when_it_ends_and_counts_as_half_open_after() -> None:
    driven = Driven()
    driven.seen(record("a"), record("b"))
    driven.apply(PeerObserved(1, (observation("a", 0, None, (), 0, 20),), driven.now))
    row = rows(driven)["a"]
    assert row.reason is Reason.BREAKER_OPEN
    assert row.left_s == 60.0
    assert row.for_s == 0.0
    driven.wait(60, heard="ab")
    assert rows(driven)["a"].reason is None


def test_floors_static_endpoints_and_modes_show() -> None:
    driven = Driven()
    driven.seen(record("a", static=True), record("b", warmth=0.0, free=0))
    only(driven.cluster.endpoints["a"]).latency.merge(((10, 1),), driven.now)
    only(driven.cluster.endpoints["b"]).latency.merge(((90, 1),), driven.now)
    driven.wait(1, heard=("b",))
    shown = rows(driven)
    assert shown["b"].floored
    assert not shown["a"].floored
    assert shown["a"].warm_for_s is None
    assert "0.4 x warmth + 0.35 x free_memory + 0.25 x speed" in explain(driven).law
    driven.apply(StoreChanged(StoreMode.LOCAL, driven.now))
    assert "(0.25 x speed)" in explain(driven).law
    driven.apply(StoreChanged(StoreMode.UNIFORM, driven.now))
    assert explain(driven).law.startswith("weight = 1 for each")
    assert explain(driven).mode is StoreMode.UNIFORM


def test_explaining_changes_nothing() -> None:
    def drive(*, explained: bool) -> list[str]:
        driven = mixed()
        other = random.Random(9)
        picks: list[str] = []
        for step in range(400):
            if explained:
                driven.cluster.explain(driven.route(), driven.now, other.random)
                driven.cluster.routes(driven.now)
            attempt = driven.attempt()
            picks.append(attempt.endpoint.id)
            driven.done(attempt, AttemptResult.SERVER_ERROR if step % 7 == 0 else AttemptResult.SUCCESS, 0.003)
            if step % 50 == 0:
                driven.wait(0.5, heard="abcd")
        return picks

    assert drive(explained=True) == drive(explained=False)


def test_all_of_it_turns_into_json() -> None:
    driven = mixed()
    driven.seen(record("s", static=True))
    shown = json.loads(msgspec.json.encode(explain(driven)))
    assert shown["route"] == "m"
    assert shown["rows"][-1]["reason"] == "quarantined"
    table = json.loads(msgspec.json.encode(driven.cluster.routes(driven.now)))
    assert [row["key"] for row in table] == ["m", "m@1"]


def test_routes_lists_every_route_and_candidate() -> None:
    driven = Driven(models=[ModelPolicy("m", default=True, idempotent=True), ModelPolicy("unserved")])
    driven.seen(record("a"), record("b", version="2"))
    table = driven.cluster.routes(driven.now)
    assert [(row.key, row.default, row.idempotent, len(row.candidates)) for row in table] == [
        ("m", True, True, 2),
        ("m@1", False, True, 1),
        ("m@2", False, True, 1),
        ("unserved", False, False, 0),
    ]
    assert [row.share for row in table[0].candidates] == [0.5, 0.5]
