"""Replicas of one version that say that they loaded different things."""

from __future__ import annotations

import pytest

from router.model import EndpointGone, EndpointRecord, EndpointSeen, EndpointsHeard, GoneReason, Replica, State
from router.outcomes import Reason
from router.policy import ConsistencyPolicy, Policies
from tests.support.fleet import Driven

HEARTBEATS = 5


@pytest.fixture
def driven() -> Driven:
    return Driven()


def say(
    driven: Driven, id_: str, content_hash: str, revision: str = "r1", state: State = State.WARM, version: str = "1"
) -> None:
    replica = Replica("m", version, state=state, content_hash=content_hash, config_revision=revision, warm_for_s=60.0)
    record = EndpointRecord(id_, f"http://{id_}:1", epoch=id_, replicas=(replica,))
    driven.apply(EndpointSeen(record, driven.now))


def beat(driven: Driven, *ids: str) -> None:
    driven.now += 1.0
    driven.apply(EndpointsHeard(ids, driven.now))


def reason(driven: Driven, id_: str) -> Reason | None:
    (candidate,) = driven.cluster.endpoints[id_].candidates.values()
    return candidate.reason


def test_five_heartbeats_in_a_row_that_differ_take_a_replica_out(driven: Driven) -> None:
    for id_, said in (("a", "x"), ("b", "x"), ("c", "y")):
        say(driven, id_, said)
    for _ in range(HEARTBEATS - 2):
        beat(driven, "a", "b", "c")
        assert reason(driven, "c") is None
    beat(driven, "a", "b", "c")
    assert reason(driven, "c") is Reason.INCONSISTENT
    assert (reason(driven, "a"), reason(driven, "b")) == (None, None)
    (differing,) = driven.cluster.differing
    assert differing.endpoint.id == "c"
    assert differing.differs == "loaded y, most x; 5 heartbeats in a row"
    say(driven, "c", "x")  # it loaded the right thing
    assert reason(driven, "c") is None
    assert len(driven.cluster.differing) == 2


def test_one_that_agrees_in_between_begins_anew(driven: Driven) -> None:
    for id_, said in (("a", "x"), ("b", "x"), ("c", "y")):
        say(driven, id_, said)
    for _ in range(HEARTBEATS - 2):
        beat(driven, "c")
    say(driven, "c", "x")
    say(driven, "c", "y")
    for _ in range(HEARTBEATS - 2):
        beat(driven, "c")
    assert reason(driven, "c") is None
    beat(driven, "c")
    assert reason(driven, "c") is Reason.INCONSISTENT


def test_the_configuration_counts_like_the_content(driven: Driven) -> None:
    for id_, revision in (("a", "r1"), ("b", "r1"), ("c", "r2")):
        say(driven, id_, "x", revision)
    for _ in range(HEARTBEATS):
        beat(driven, "c")
    assert reason(driven, "c") is Reason.INCONSISTENT
    assert "configured as r2, most r1" in driven.cluster.differing[0].differs


def test_those_that_are_loading_do_not_outvote_those_that_serve(driven: Driven) -> None:
    say(driven, "a", "x")
    say(driven, "b", "x")
    for id_ in ("c", "d", "e"):
        say(driven, id_, "y", state=State.WARMING)
    for _ in range(HEARTBEATS):
        beat(driven, "a", "b", "c", "d", "e")
    assert (reason(driven, "a"), reason(driven, "b")) == (None, None)
    say(driven, "c", "y")
    assert reason(driven, "c") is Reason.INCONSISTENT  # warm now, and known for what it is


def test_a_rollout_in_place_passes_over_without_a_moment_that_nobody_serves(driven: Driven) -> None:
    """Three replicas get another content under the same version, one after the other."""
    ids = ("a", "b", "c")
    for id_ in ids:
        say(driven, id_, "x")
    for id_ in ids:
        say(driven, id_, "y", state=State.WARMING)
        for _ in range(HEARTBEATS):
            beat(driven, *ids)
        say(driven, id_, "y")
        for _ in range(HEARTBEATS + 1):
            beat(driven, *ids)
            assert any(reason(driven, other) is None for other in ids)
    assert [reason(driven, id_) for id_ in ids] == [None] * 3


def test_of_as_many_the_longest_warm_are_right_and_stay_so(driven: Driven) -> None:
    say(driven, "b", "y")
    driven.now += 30
    say(driven, "a", "x")
    for _ in range(HEARTBEATS):
        beat(driven, "a", "b")
    assert (reason(driven, "a"), reason(driven, "b")) == (Reason.INCONSISTENT, None)


def test_one_that_falls_silent_about_it_stays_out_until_it_loads_anew(driven: Driven) -> None:
    for id_, said in (("a", "x"), ("b", "x"), ("c", "y")):
        say(driven, id_, said)
    for _ in range(HEARTBEATS):
        beat(driven, "c")
    say(driven, "c", "")
    assert reason(driven, "c") is Reason.INCONSISTENT
    say(driven, "c", "", state=State.LOADING)
    say(driven, "c", "x")
    assert reason(driven, "c") is None


def test_versions_and_replicas_that_say_nothing_are_not_compared(driven: Driven) -> None:
    say(driven, "a", "x")
    say(driven, "b", "y", version="2")
    say(driven, "c", "")
    for _ in range(HEARTBEATS):
        beat(driven, "a", "b", "c")
    assert [reason(driven, id_) for id_ in ("a", "b", "c")] == [None] * 3


def test_what_left_has_no_say(driven: Driven) -> None:
    for id_, said in (("a", "x"), ("b", "x"), ("c", "y")):
        say(driven, id_, said)
    for _ in range(HEARTBEATS):
        beat(driven, "c")
    for id_ in ("a", "b"):
        driven.apply(EndpointGone(id_, GoneReason.DEREGISTERED, driven.now))
    beat(driven, "c")
    assert reason(driven, "c") is None


def test_comparing_can_be_turned_off_and_takes_effect_at_once(driven: Driven) -> None:
    for id_, said in (("a", "x"), ("b", "x"), ("c", "y")):
        say(driven, id_, said)
    for _ in range(HEARTBEATS):
        beat(driven, "c")
    driven.cluster.configure(Policies(consistency=ConsistencyPolicy(mismatches=None)), (), driven.now)
    assert reason(driven, "c") is None
    driven.cluster.configure(Policies(consistency=ConsistencyPolicy(mismatches=2)), (), driven.now)
    beat(driven, "c")
    beat(driven, "c")
    assert reason(driven, "c") is Reason.INCONSISTENT


def test_why_a_request_finds_nobody_names_it(driven: Driven) -> None:
    for id_, said in (("a", "x"), ("b", "x"), ("c", "y")):
        say(driven, id_, said)
    for _ in range(HEARTBEATS):
        beat(driven, "c")
    rows = {
        row.endpoint: row.reason
        for route in driven.cluster.routes(driven.now)
        if route.key == "m"
        for row in route.candidates
    }
    assert rows["c"] is Reason.INCONSISTENT
    target = driven.cluster.route("m")
    assert target is not None
    lacks = {row.endpoint: row.lacks for row in driven.cluster.explain(target, driven.now, driven.rng).rows}
    assert lacks["c"] == ("loaded y, most x; 6 heartbeats in a row",)
    assert lacks["a"] == ()
