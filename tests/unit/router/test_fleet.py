"""Who there is: membership, routes, ages, silence, warm moments."""

from __future__ import annotations

from math import inf

import pytest

from router.model import EndpointHeld, Replica, SnapshotBegan, SnapshotEnded, State, StoreChanged, StoreMode
from router.outcomes import AttemptResult, Reason
from router.policy import ModelPolicy
from tests.support.fleet import Driven, pair, record

# --- routes ----------------------------------------------------------------------------------------------------------


def test_configured_models_have_a_route_before_anybody_serves_them() -> None:
    driven = Driven(models=[ModelPolicy("x"), ModelPolicy("y", default=True), ModelPolicy("z", default=True)])
    assert driven.route("x").policy == ModelPolicy("x")
    assert driven.cluster.default_route is driven.route("y")
    assert Driven().cluster.default_route is None


def test_a_name_is_all_versions_and_a_version_only_those() -> None:
    driven = Driven()
    driven.seen(record("a", version="1"), record("b", version="2"))
    for version, expected in (("", {"a", "b"}), ("1", {"a"}), ("2", {"b"})):
        route = driven.route("m", version)
        assert {driven.attempt(route=route).endpoint.id for _ in range(50)} == expected
    assert driven.route("m", "1").key == "m@1"


def test_what_no_route_means() -> None:
    driven = pair()
    assert driven.cluster.route("m", "9") is None
    assert driven.cluster.missing("m", "9") is Reason.WRONG_VERSION
    assert driven.cluster.route("n") is None
    assert driven.cluster.missing("n") is Reason.UNKNOWN_MODEL


def test_models_that_endpoints_report_get_a_route_and_lose_it_a_while_after() -> None:
    driven = Driven(models=[])
    before = driven.cluster.generation
    driven.seen(record("a", model="new", version="3"))
    assert driven.cluster.generation > before
    route = driven.route("new")
    driven.gone("a")
    driven.wait(59)
    assert driven.route("new") is route
    assert driven.nobody(route=route).reason is Reason.NO_ENDPOINTS
    before = driven.cluster.generation
    driven.wait(2)
    assert driven.cluster.route("new") is None
    assert driven.cluster.route("new", "3") is None
    assert driven.cluster.generation == before + 2


def test_configured_routes_stay_and_versions_of_them_go() -> None:
    driven = pair()
    driven.gone("a")
    driven.gone("b")
    driven.wait(61)
    assert driven.route("m").candidates == []
    assert driven.cluster.route("m", "1") is None


def test_a_model_that_an_endpoint_no_longer_offers_is_left_alone_there() -> None:
    driven = pair()
    driven.seen(record("a", model="n"))
    assert driven.ids(50) == {"b": 50}
    attempt = driven.attempt(route=driven.route("n"))
    assert attempt.endpoint.id == "a"
    driven.done(attempt, AttemptResult.CANCELLED)
    driven.seen(record("a", version=""))
    driven.wait(0.2, heard=("a", "b"))
    assert set(driven.ids(50)) == {"a", "b"}


def test_an_endpoint_without_a_version_serves_the_name() -> None:
    driven = Driven()
    driven.seen(record("a", version=""))
    assert [route.key for route in driven.cluster.routes(driven.now)] == ["m"]
    assert driven.ids(5) == {"a": 5}


def test_of_several_shards_the_coldest_speaks() -> None:
    driven = Driven()
    shards = tuple(Replica("m", "1", shard=k, shard_count=3) for k in range(3))
    driven.seen(record("a", replicas=shards))
    assert driven.ids(5) == {"a": 5}
    cold = Replica("m", "1", shard=1, shard_count=3, state=State.LOADING)
    driven.seen(record("a", replicas=(shards[0], cold, shards[2])))
    assert driven.nobody().reason is Reason.NOT_WARM
    driven.seen(record("a", replicas=shards[:2]))
    assert driven.nobody().reason is Reason.GROUP_INCOMPLETE
    assert driven.nobody().detail == ("m: none of 1 can be picked: 1 group_incomplete (shard 2 at a: not there)")
    newer = Replica("m", "1", shard=2, shard_count=3, generation=1)
    driven.seen(record("a", replicas=(*shards[:2], newer)))
    assert driven.nobody().detail.endswith("(shard 2 at a: on generation 1, not 0)")


# --- members ---------------------------------------------------------------------------------------------------------


def test_a_snapshot_takes_out_who_was_not_seen() -> None:
    driven = pair()
    driven.apply(SnapshotBegan(7, driven.now))
    driven.seen(record("b"), record("c"))
    driven.apply(SnapshotEnded(6, driven.now))
    assert set(driven.cluster.endpoints) == {"a", "b", "c"}
    driven.apply(SnapshotEnded(7, driven.now))
    assert set(driven.cluster.endpoints) == {"b", "c"}
    assert [endpoint.id for endpoint in driven.cluster.departed] == ["a"]
    driven.apply(SnapshotEnded(7, driven.now))
    assert set(driven.cluster.endpoints) == {"b", "c"}


def test_a_snapshot_that_begins_anew_replaces_the_one_under_way() -> None:
    driven = pair()
    driven.apply(SnapshotBegan(1, driven.now))
    driven.seen(record("a"))
    driven.apply(SnapshotBegan(2, driven.now))
    driven.seen(record("b"))
    driven.apply(SnapshotEnded(2, driven.now))
    assert set(driven.cluster.endpoints) == {"b"}


def test_an_empty_snapshot_empties_the_fleet() -> None:
    driven = pair()
    driven.apply(SnapshotBegan(1, driven.now), SnapshotEnded(1, driven.now))
    assert not driven.cluster.endpoints
    assert driven.nobody().reason is Reason.NO_ENDPOINTS


def test_the_same_process_keeps_what_was_learned_and_a_moved_one_does_not() -> None:
    driven = pair()
    known = driven.cluster.endpoints["a"]
    known.shell = "pool"
    driven.seen(record("a", free=1))
    assert driven.cluster.endpoints["a"] is known
    assert known.record.free_memory_bytes == 1
    driven.seen(record("a", address="http://elsewhere:1"))
    assert driven.cluster.endpoints["a"] is not known
    assert driven.cluster.endpoints["a"].shell is None


def test_attempts_on_who_left_are_released_and_say_nothing_any_more() -> None:
    driven = pair()
    attempt = driven.to("a")
    driven.gone("a")
    assert driven.done(attempt, AttemptResult.CONNECT_REFUSED) == ()
    assert attempt.endpoint.in_flight == 0


def test_a_hold_is_on_the_id_and_outlives_the_process() -> None:
    driven = pair()
    driven.apply(EndpointHeld("c", True, driven.now), EndpointHeld("a", True, driven.now))
    driven.seen(record("c"), record("a", epoch="b"))
    driven.wait(0.2, heard=("a", "b", "c"))
    assert driven.ids(50) == {"b": 50}
    driven.apply(EndpointHeld("c", False, driven.now))
    driven.wait(0.2, heard=("a", "b", "c"))
    assert set(driven.ids(50)) == {"b", "c"}


def test_departed_is_the_shells_to_empty() -> None:
    driven = pair()
    driven.gone("a")
    driven.cluster.departed.clear()
    driven.gone("b")
    assert [endpoint.id for endpoint in driven.cluster.departed] == ["b"]


# --- ramp ------------------------------------------------------------------------------------------------------------


def test_a_newly_warm_replica_ramps() -> None:
    driven = Driven()
    driven.seen(record("a"), record("b", state=State.WARMING))
    driven.wait(3, heard=("a", "b"))
    driven.seen(record("b", warm_for_s=0.0))
    assert driven.shares()["b"] == pytest.approx(0.1 / 1.1)
    driven.wait(5, heard=("a", "b"))
    assert driven.shares()["b"] == pytest.approx(0.55 / 1.55)
    driven.wait(5, heard=("a", "b"))
    assert driven.shares()["b"] == pytest.approx(0.5)


@pytest.mark.parametrize(("proven_at", "start"), [(None, 0.1), (-inf, 0.1), (0.0, 0.5), (101.5, 0.5)])
def test_one_that_warm_up_requests_have_proven_starts_with_more(proven_at: float | None, start: float) -> None:
    driven = Driven()
    driven.seen(record("a"), record("b", state=State.WARMING))
    driven.seen(record("b", replicas=(Replica("m", "1", warmth=(("any", 1.0),), proven_at=proven_at),)))
    assert driven.shares()["b"] == pytest.approx(start / (1 + start))


def test_a_replica_first_seen_long_warm_does_not_ramp() -> None:
    driven = Driven()
    driven.seen(record("a"), record("b", warm_for_s=10.0))
    assert driven.shares()["b"] == pytest.approx(0.5)


def test_a_report_that_repeats_the_age_does_not_start_the_ramp_again() -> None:
    driven = Driven()
    driven.seen(record("a"), record("b", warm_for_s=0.0))
    driven.wait(10, heard=("a", "b"))
    driven.seen(record("b", warm_for_s=0.0))
    assert driven.shares()["b"] == pytest.approx(0.5)


@pytest.mark.parametrize("how", ["cold between", "epoch", "generation"])
def test_warm_anew_ramps_anew(how: str) -> None:
    driven = Driven()
    driven.seen(record("a"), record("b"))
    if how == "cold between":
        driven.seen(record("b", state=State.LOADING))
        driven.seen(record("b", warm_for_s=0.0))
    elif how == "epoch":
        driven.seen(record("b", warm_for_s=0.0, epoch="z"))
    else:
        driven.seen(record("b", replicas=(Replica("m", "1", warmth=(("any", 1.0),), generation=2),)))
    assert driven.shares()["b"] == pytest.approx(0.1 / 1.1)


def test_static_endpoints_count_as_warm_without_a_ramp_and_never_go_stale() -> None:
    driven = Driven()
    driven.seen(record("s", static=True, warmth=None, free=None, total=None, warm_for_s=0.0), record("a"))
    assert driven.shares() == pytest.approx({"s": 0.5, "a": 0.5})
    driven.wait(300)
    assert driven.ids(50)["s"] > 10
    driven.heard("s")
    driven.seen(record("s", static=True, state=State.FAILED))
    assert driven.ids(20) == {"a": 20}
    driven.seen(record("s", static=True, warm_for_s=0.0))
    assert driven.shares()["s"] < 0.2  # a probe saw it come back just now


# --- silence ---------------------------------------------------------------------------------------------------------


def test_where_everybody_falls_silent_nobody_goes_stale() -> None:
    driven = pair()
    driven.wait(1, heard=("a",))
    driven.wait(500)
    assert set(driven.ids(50)) == {"a", "b"}
    assert driven.cluster.mode is StoreMode.LIVE


@pytest.mark.parametrize("tick", [True, False])
def test_a_silence_does_not_count_in_the_age_of_those_heard_after_it(tick: bool) -> None:
    driven = pair()
    driven.ids(5)
    driven.wait(60, tick=tick)
    driven.heard("a")
    assert set(driven.ids(50)) == {"a", "b"}
    driven.wait(2.9, heard=("a",), tick=tick)
    assert set(driven.ids(50)) == {"a", "b"}
    driven.wait(0.2, heard=("a",), tick=tick)
    assert driven.ids(50) == {"a": 50}


def test_who_ended_a_silence_ages_from_then() -> None:
    driven = pair()
    driven.wait(60)
    driven.heard("a")
    driven.wait(4.9, heard=("b",))
    assert set(driven.ids(50)) == {"a", "b"}
    driven.wait(0.2, heard=("b",))
    assert driven.ids(50) == {"b": 50}


def test_a_choice_in_the_silence_finds_all_without_a_tick() -> None:
    driven = pair()
    driven.ids(5)
    driven.now += 30
    assert set(driven.ids(50)) == {"a", "b"}


def test_frozen_ages_stand_still() -> None:
    driven = pair()
    driven.wait(4, heard=("b",))
    before = driven.shares()
    assert before["a"] < before["b"]
    driven.apply(StoreChanged(StoreMode.FROZEN, driven.now))
    driven.wait(1000)
    assert driven.shares() == before
    assert driven.cluster.mode is StoreMode.FROZEN


def test_who_was_stale_when_it_froze_stays_stale() -> None:
    driven = pair()
    driven.wait(6, heard=("b",))
    driven.apply(StoreChanged(StoreMode.FROZEN, driven.now))
    driven.wait(3)
    assert driven.ids(50) == {"b": 50}
    driven.apply(StoreChanged(StoreMode.LIVE, driven.now))
    assert driven.ids(50) == {"b": 50}
    driven.heard("a")
    driven.wait(0.2)
    assert set(driven.ids(50)) == {"a", "b"}


def test_a_freeze_that_is_noticed_late_freezes_as_of_the_silence() -> None:
    driven = pair()
    driven.now += 8
    driven.apply(StoreChanged(StoreMode.FROZEN, driven.now))
    assert set(driven.ids(50)) == {"a", "b"}


def test_live_again_leaves_one_ttl_to_speak() -> None:
    driven = pair()
    driven.wait(3, heard=("b",))
    driven.apply(StoreChanged(StoreMode.FROZEN, driven.now))
    driven.wait(30)
    driven.heard("b")  # while frozen: fresh, and the rest stays as it is
    driven.apply(StoreChanged(StoreMode.LIVE, driven.now))
    driven.wait(4.9, heard=("b",))
    assert set(driven.ids(50)) == {"a", "b"}
    driven.wait(0.2, heard=("b",))
    assert driven.ids(50) == {"b": 50}


def test_live_again_counts_silence_anew() -> None:
    driven = pair()
    driven.apply(StoreChanged(StoreMode.FROZEN, driven.now))
    driven.wait(100)
    driven.apply(StoreChanged(StoreMode.LIVE, driven.now))
    driven.wait(0.9)
    driven.wait(4.2, heard=("b",))
    assert driven.ids(50) == {"b": 50}


def test_live_said_twice_changes_nothing() -> None:
    driven = pair()
    driven.wait(3, heard=("b",))
    driven.apply(StoreChanged(StoreMode.LIVE, driven.now))
    driven.wait(2.1, heard=("b",))
    assert driven.ids(50) == {"b": 50}


def test_local_drops_what_the_store_said_and_uniform_everything() -> None:
    driven = Driven()
    driven.seen(record("a", warmth=1.0), record("b", warmth=0.0, warm_for_s=0.0))
    assert driven.shares()["b"] < 0.1
    driven.wait(10, heard=("a", "b"))
    assert driven.shares()["b"] == pytest.approx(0.3 / 1.0)
    driven.apply(StoreChanged(StoreMode.LOCAL, driven.now))
    assert driven.shares() == pytest.approx({"a": 0.5, "b": 0.5})
    driven.apply(StoreChanged(StoreMode.UNIFORM, driven.now))
    assert driven.shares() == {"a": 0.5, "b": 0.5}
    assert set(driven.ids(50)) == {"a", "b"}


def test_a_store_that_fell_silent_before_anybody_was_heard() -> None:
    driven = Driven()
    driven.apply(StoreChanged(StoreMode.FROZEN, driven.now))
    driven.seen(record("a"))
    driven.wait(100)
    assert driven.ids(5) == {"a": 5}
    driven.apply(StoreChanged(StoreMode.LIVE, driven.now))
    assert driven.ids(5) == {"a": 5}


def test_reports_of_different_age_in_one_snapshot_are_no_silence() -> None:
    driven = Driven()
    late, now = driven.now - 4.5, driven.now
    from router.model import EndpointSeen

    driven.apply(EndpointSeen(record("a"), late), EndpointSeen(record("b"), now))
    driven.wait(0.6, heard=("b",))
    assert driven.ids(20) == {"b": 20}


def test_a_full_report_ends_a_silence_too() -> None:
    driven = pair()
    driven.wait(60)
    driven.seen(record("a"))
    driven.wait(2, heard=("a",))
    assert set(driven.ids(50)) == {"a", "b"}


def test_who_leaves_in_quarantine_is_not_probed_any_more() -> None:
    driven = pair()
    driven.done(driven.to("a"), AttemptResult.CONNECT_REFUSED)
    driven.ids(5)
    driven.wait(0.2, heard=("a", "b"))
    driven.gone("a")
    driven.wait(2, heard=("b",), tick=False)
    assert driven.ids(50) == {"b": 50}
