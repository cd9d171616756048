"""Which version takes requests that name none, as a cluster decides it: latest, one, a split, and who steers them."""

from __future__ import annotations

import json
from collections import Counter

import msgspec
import pytest

from router.model import Replica, State, VersionsSteered, VersionSteering
from router.outcomes import AttemptResult, Reason
from router.policy import ModelPolicy, RolloutPolicy, ServePolicy, ServeRule, VersionShare
from tests.support.fleet import Driven, record

LATEST = ServePolicy(ServeRule.LATEST)
PINNED = ServePolicy(ServeRule.PINNED, version="2")
SPLIT = ServePolicy(ServeRule.SPLIT, shares=(VersionShare("1", 90), VersionShare("2", 10)), header="x-user")


def driven(serve: ServePolicy, **versions: str) -> Driven:
    """Return a cluster with one endpoint per keyword, each with the version that it names."""
    made = Driven(models=[ModelPolicy("m", serve=serve)])
    made.seen(*(record(name, version=version) for name, version in versions.items()))
    return made


def taken(one: Driven, picks: int = 40) -> set[str]:
    """Return the endpoints that requests get which name no version."""
    names = set()
    for _ in range(picks):
        attempt = one.attempt()
        names.add(attempt.endpoint.id)
        one.done(attempt, AttemptResult.SUCCESS, 0.001)
    return names


def test_any_serves_all_versions_alike() -> None:
    one = driven(ServePolicy(), a="1", b="2")
    assert taken(one) == {"a", "b"}
    assert one.route().serve is None


def test_latest_serves_the_newest_by_number_and_no_other() -> None:
    one = driven(LATEST, a="9", b="10", c="10", d="v9.5")
    assert taken(one) == {"b", "c"}
    assert one.attempt(route=one.route(version="9")).endpoint.id == "a"  # who names a version gets it


def test_a_newer_version_takes_over_once_it_is_warm_and_not_before() -> None:
    one = driven(LATEST, a="1")
    one.seen(record("b", version="2", state=State.LOADING))
    one.wait(0.2, heard="ab")
    assert taken(one) == {"a"}
    one.seen(record("b", version="2", state=State.WARMING))
    assert taken(one) == {"a"}
    one.seen(record("b", version="2", warm_for_s=0.0))
    one.wait(0.2, heard="ab")
    assert taken(one) == {"b"}


def test_while_no_replica_of_the_newest_may_be_picked_the_one_before_serves() -> None:
    one = driven(LATEST, a="1", b="2")
    one.done(one.attempt(), AttemptResult.CONNECT_REFUSED)
    assert taken(one) == {"a"}
    one.wait(2.0, heard="ab")
    probe = one.attempt()  # and it is probed, to serve again
    assert probe.endpoint.id == "b"
    assert probe.probe
    one.done(probe, AttemptResult.SUCCESS, 0.001)
    one.wait(0.2, heard="ab")
    assert taken(one) == {"b"}


def test_an_older_version_that_is_ejected_is_not_probed_by_requests_that_are_not_for_it() -> None:
    one = driven(LATEST, a="1", b="2")
    old = one.route(version="1")
    one.done(one.attempt(route=old), AttemptResult.CONNECT_REFUSED)
    one.wait(40.0, heard="ab")
    assert taken(one) == {"b"}
    assert one.attempt(route=old).probe


def test_back_pressure_does_not_turn_to_an_older_version() -> None:
    one = driven(LATEST, a="1", b="2")
    one.done(one.attempt(), AttemptResult.BUSY, retry_after_s=5.0)
    assert taken(one) == {"b"}


def test_one_version_alone_serves_or_nobody_does() -> None:
    one = driven(PINNED, a="1", b="2", c="3")
    assert taken(one) == {"b"}
    one.gone("b")
    none = one.nobody()
    assert none.reason is Reason.OTHER_VERSION
    assert none.detail == "m: none of 2 can be picked: 2 other_version"
    assert not one.cluster.route_is_routable(one.route(), one.now)


def picks(one: Driven, number: int = 1000, key: bytes | None = None) -> Counter[str]:
    return Counter(one.cluster.version_of(one.route(), one.now, one.rng, key).version for _ in range(number))


def test_a_split_divides_requests_and_keeps_keys_where_they_are() -> None:
    one = driven(SPLIT, a="1", b="2")
    drawn = picks(one)
    assert 0.07 < drawn["2"] / 1000 < 0.13
    by_key = [picks(one, 3, b"user %d" % number) for number in range(500)]
    assert all(len(each) == 1 for each in by_key)
    assert 0.05 < sum("2" in each for each in by_key) / 500 < 0.15
    pick = one.cluster.version_of(one.route(), one.now, one.rng, b"user 1")
    assert pick.route is one.route(version=pick.version)
    assert not pick.moved


def test_a_version_without_a_warm_replica_gets_nothing_and_its_share_goes_to_the_others() -> None:
    shares = (VersionShare("1", 60), VersionShare("2", 20), VersionShare("3", 20))
    one = driven(ServePolicy(ServeRule.SPLIT, shares=shares), b="2", c="3")
    one.seen(record("a", version="1", state=State.LOADING))
    drawn = picks(one)
    assert set(drawn) == {"2", "3"}
    assert 0.42 < drawn["2"] / 1000 < 0.58
    assert {one.cluster.version_of(one.route(), one.now, one.rng).moved for _ in range(50)} == {True, False}
    one.seen(record("a", version="1", warm_for_s=0.0))
    assert picks(one)["1"] > 500


def test_a_split_of_which_nobody_is_there_finds_nobody() -> None:
    one = driven(SPLIT, c="3")
    pick = one.cluster.version_of(one.route(), one.now, one.rng)
    assert (pick.route, pick.version) == (one.route(), "")
    assert one.nobody(route=pick.route).reason is Reason.OTHER_VERSION


def test_steering_overrules_the_configuration_until_it_ends() -> None:
    one = driven(LATEST, a="1", b="2")
    before = one.cluster.generation
    one.apply(VersionsSteered((VersionSteering("m", ServeRule.PINNED, "1"),)))
    assert one.cluster.generation > before
    assert taken(one) == {"a"}
    one.apply(VersionsSteered((VersionSteering("m", ServeRule.SPLIT, shares=(VersionShare("2", 1.0),)),)))
    assert picks(one) == {"2": 1000}
    one.cluster.configure(one.cluster.policies, [ModelPolicy("m", serve=PINNED, idempotent=True)], one.now)
    assert picks(one) == {"2": 1000}  # whoever steers says when the configuration counts again
    one.apply(VersionsSteered(()))
    assert taken(one) == {"b"}


def test_steering_in_parts_counts_when_it_is_whole() -> None:
    one = driven(LATEST, a="1", b="2")
    one.apply(VersionsSteered((VersionSteering("m", ServeRule.PINNED, "1"),), last=False))
    assert taken(one) == {"b"}
    one.apply(VersionsSteered((VersionSteering("n", ServeRule.ANY),), first=False))
    assert taken(one) == {"a"}


def test_a_rollout_begins_at_its_first_step_whatever_the_weight() -> None:
    shares = (VersionShare("1", 1), VersionShare("2", 1))
    one = driven(ServePolicy(ServeRule.SPLIT, shares=shares, rollout=RolloutPolicy()), a="1", b="2")
    assert 0.03 < picks(one, 2000)["2"] / 2000 < 0.07


def both() -> tuple[Replica, ...]:
    return Replica("m", "1", warm_for_s=9.0), Replica("m", "2", warm_for_s=9.0)


def test_endpoints_with_several_versions_are_known_as_such() -> None:
    one = driven(LATEST, a="1")
    route, before = one.route(), one.cluster.generation
    assert route.mixed == 0
    one.seen(record("a", replicas=both()))
    assert route.mixed == 1
    assert one.cluster.generation > before
    assert one.cluster.endpoints["a"].several == {"m"}
    one.seen(record("a", replicas=both()), record("b", replicas=both()))
    assert route.mixed == 2
    one.seen(record("a", version="2"))
    one.gone("b")
    assert route.mixed == 0
    assert one.cluster.endpoints["a"].several == frozenset()


# --- explanations -----------------------------------------------------------------------------------------------


def test_the_choice_of_a_version_is_explained() -> None:
    one = driven(LATEST, a="1", b="2")
    one.seen(record("c", version="3", state=State.LOADING))
    shown = one.cluster.explain(one.route(), one.now, one.rng)
    assert shown.serve == "latest"
    assert [(row.version, row.ready, row.replicas, row.share, row.note) for row in shown.versions] == [
        ("3", 0, 1, 0.0, "no replica that may be picked"),
        ("2", 1, 1, 1.0, "the newest that has a replica that may be picked"),
        ("1", 1, 1, 0.0, "older than 2"),
    ]
    assert {row.endpoint: row.reason for row in shown.rows} == {
        "b": None,
        "a": Reason.OTHER_VERSION,
        "c": Reason.NOT_WARM,
    }


@pytest.mark.parametrize("key", [b"user 1", b"user 2", None])
def test_a_split_is_explained_with_the_version_that_is_taken(key: bytes | None) -> None:
    one = driven(SPLIT, a="1", b="2", c="2", d="3")
    shown = one.cluster.explain(one.route(), one.now, one.rng, key)
    assert shown.serve == "split: 1 0.9, 2 0.1"
    assert (shown.route, shown.version) == ("m", "")
    if key is not None:
        version = one.cluster.version_of(one.route(), one.now, one.rng, key).version
        assert shown.law.startswith(f"version {version} of the split, by its key; then weight =")
    else:
        assert " of the split, at random; then weight =" in shown.law
    assert {row.endpoint: (round(row.share, 3), row.reason) for row in shown.rows} == {
        "a": (0.9, None),
        "b": (0.05, None),
        "c": (0.05, None),
        "d": (0.0, Reason.OTHER_VERSION),
    }
    assert [(row.version, row.weight, row.note) for row in shown.versions] == [
        ("3", None, "not in the split"),
        ("2", 10, ""),
        ("1", 90, ""),
    ]
    json.loads(msgspec.json.encode(shown))


def test_what_a_split_gives_to_the_others_is_explained() -> None:
    one = driven(SPLIT, b="2")
    shown = one.cluster.explain(one.route(), one.now, one.rng)
    assert [(row.version, row.share, row.note) for row in shown.versions] == [
        ("2", 1.0, "with what those leave that have nobody"),
        ("1", 0.0, "no replica that may be picked: its share goes to the others"),
    ]
    assert [row.share for row in shown.rows] == [1.0]


def test_routes_show_their_versions() -> None:
    one = driven(SPLIT, a="1", b="2", d="3")
    row = next(row for row in one.cluster.routes(one.now) if row.key == "m")
    assert row.serve == "split: 1 0.9, 2 0.1"
    assert [(each.endpoint, round(each.share, 3)) for each in row.candidates] == [("a", 0.9), ("b", 0.1), ("d", 0.0)]
    assert [each.version for each in row.versions] == ["3", "2", "1"]
    pinned = driven(PINNED, a="1")
    row = next(row for row in pinned.cluster.routes(pinned.now) if row.key == "m")
    assert row.serve == "version 2"
    assert [(each.version, each.note) for each in row.versions] == [
        ("2", "no replica that may be picked"),
        ("1", "requests that name no version go to 2"),
    ]
    assert row.candidates[0].reason is Reason.OTHER_VERSION
