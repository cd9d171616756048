"""Shards that each answer for their keys: which has a key, what adding one moves, and other numbers of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.model import (
    EndpointRecord,
    Replica,
    State,
)
from router.outcomes import AttemptResult, Reason
from router.policy import (
    BalancerName,
    ModelPolicy,
    Policies,
    PolicyError,
    ServePolicy,
    ServeRule,
    ShardMode,
    ShardPolicy,
    VersionShare,
)
from router.routes import Attempt
from tests.support.fleet import Driven
from tests.support.shards import KEYED, NAMES, TENSOR, group, holds, part, tensor


def keyed(*records: EndpointRecord, policy: ModelPolicy = KEYED) -> Driven:
    driven = Driven(models=[policy])
    driven.seen(*(records or group(group="")))
    return driven


def test_each_shard_answers_for_the_keys_that_it_has() -> None:
    driven = keyed()
    route = driven.route()
    held = dict(enumerate(NAMES))
    seen = set()
    for number in range(200):
        key = b"key %d" % number
        of_shard = driven.cluster.shard_route(route, key)
        assert of_shard.shard is not None
        assert driven.attempt(route=of_shard).endpoint.id == held[of_shard.shard]
        assert driven.cluster.shard_route(route, key) is of_shard
        seen.add(of_shard.shard)
    assert seen == {0, 1, 2, 3}


def test_the_replicas_of_a_shard_share_its_requests_by_the_models_balancer() -> None:
    policy = replace(KEYED, balancer=BalancerName.ROUND_ROBIN)
    driven = keyed(*group(group=""), holds("e", part(1, group="")), policy=policy)
    route = driven.route().shards[1]
    picked = [driven.attempt(route=route).endpoint.id for _ in range(10)]
    assert sorted(picked) == ["b"] * 5 + ["e"] * 5


def test_nobody_is_picked_without_a_shard() -> None:
    driven = keyed()
    assert driven.nobody().reason is Reason.NO_ENDPOINTS
    assert driven.cluster.routable(driven.now)
    assert [row.key for row in driven.cluster.routes(driven.now)] == [
        f"m{version}#{shard}" for version in ("", "@1") for shard in range(4)
    ]


def test_a_shard_without_replicas_is_said_by_name() -> None:
    driven = keyed(*group(group="")[:3])
    assert driven.nobody(route=driven.route().shards[3]).detail == "no endpoint serves m#3"
    assert driven.nobody(route=driven.route("m", "1").shards[3]).detail == "no endpoint serves m@1#3"
    driven.seen(holds("c", part(2, group="", state=State.LOADING)))
    assert driven.nobody(route=driven.route().shards[2]).detail == "m#2: none of 1 can be picked: 1 not_warm"
    assert driven.attempt(route=driven.route().shards[0]).endpoint.id == "a"


def test_a_key_is_explained_by_its_shard() -> None:
    driven = keyed()
    key = b"somebody"
    explanation = driven.cluster.explain(driven.route(), driven.now, driven.rng, key)
    assert explanation.route == driven.cluster.shard_route(driven.route(), key).key


def test_one_endpoint_may_hold_several_shards_and_one_that_is_not_split_holds_all() -> None:
    driven = keyed(holds("a", part(0), part(2)), holds("w", Replica("m", "1")))
    picked = [{driven.attempt(route=route).endpoint.id for _ in range(40)} for route in driven.route().shards]
    assert picked == [{"a", "w"}, {"w"}, {"a", "w"}, {"w"}]


def test_a_shard_of_another_number_of_shards_is_left_out() -> None:
    driven = keyed(holds("a", part(0, count=5)), holds("b", part(4, count=5)))
    nobody = driven.nobody(route=driven.route().shards[0])
    assert nobody.detail.endswith("1 group_incomplete (shard 0 at a: one of 5, while the configuration says 4)")


def test_keys_are_found_again_after_all_were_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.groups.KEPT_KEYS", 4)
    driven = keyed()
    keys = [b"%d" % number for number in range(20)]
    first = [driven.cluster.shard_route(driven.route(), key) for key in keys]
    assert [driven.cluster.shard_route(driven.route(), key) for key in keys] == first


def test_a_version_of_a_split_takes_its_share_once_every_shard_has_somebody() -> None:
    serve = ServePolicy(ServeRule.SPLIT, shares=(VersionShare("1", 1), VersionShare("2", 99)))
    driven = keyed(*group(group=""), holds("e", part(0, version="2", group="")), policy=replace(KEYED, serve=serve))
    versions = {driven.cluster.version_of(driven.route(), driven.now, driven.rng).version for _ in range(50)}
    assert versions == {"1"}
    driven.seen(holds("f", *(part(shard, version="2", group="") for shard in (1, 2, 3))))
    versions = {driven.cluster.version_of(driven.route(), driven.now, driven.rng).version for _ in range(50)}
    assert "2" in versions


LATEST = replace(KEYED, serve=ServePolicy(ServeRule.LATEST))


def new(id_: str, *shards: int, state: State = State.WARM) -> EndpointRecord:
    return holds(id_, *(part(shard, version="2", group="", state=state) for shard in shards))


def test_a_split_of_which_no_version_has_all_shards_serves_the_keys_that_it_can() -> None:
    shares = (VersionShare("1", 1), VersionShare("2", 99))
    split = replace(KEYED, serve=ServePolicy(ServeRule.SPLIT, shares=shares))
    driven = keyed(*group(group="")[:3], new("e", 3), policy=split)
    for _ in range(20):
        pick = driven.cluster.version_of(driven.route(), driven.now, driven.rng)
        assert (pick.version, pick.moved) == ("1", True)
    assert [driven.choose(route=route).__class__ is Attempt for route in pick.route.shards] == [True, True, True, False]
    (two, one) = driven.cluster.versions("m", driven.now) or ()
    assert (two.share, two.note) == (
        0.0,
        "no replica of shards 0, 1, 2 that may be picked: its share goes to the others",
    )
    assert (one.share, one.note) == (1.0, "no replica of shard 3 that may be picked, and no version has all")
    driven.seen(new("f", 0, 1, 2))
    driven.wait(0.2, heard="abcef")
    assert driven.cluster.version_of(driven.route(), driven.now, driven.rng).version == "2"


def versions_of(driven: Driven) -> list[set[str]]:
    """Return the versions that the requests of each shard get; "" where there is nobody."""
    found: list[set[str]] = []
    for route in driven.route().shards:
        picked = [driven.choose(route=route) for _ in range(20)]
        found.append({one.candidate.version if isinstance(one, Attempt) else "" for one in picked})
    return found


def test_the_newest_version_takes_over_once_every_shard_of_it_is_warm() -> None:
    driven = keyed(*group(group=""), new("e", 0, 1), policy=LATEST)
    driven.seen(new("f", 2, 3, state=State.WARMING))
    assert versions_of(driven) == [{"1"}] * 4
    rows = {row.key: row for row in driven.cluster.routes(driven.now)}
    assert [(row.version, row.share, row.note) for row in rows["m#0"].versions] == [
        ("2", 0.0, "no replica of shards 2, 3 that may be picked"),
        ("1", 1.0, "the newest that has a replica that may be picked"),
    ]
    assert {row.endpoint: row.reason for row in rows["m#0"].candidates} == {"a": None, "e": Reason.OTHER_VERSION}
    driven.seen(new("f", 2, 3))
    driven.wait(0.2, heard="abcdef")
    assert versions_of(driven) == [{"2"}] * 4
    driven.gone("f")
    driven.wait(0.2, heard="abcde")
    assert versions_of(driven) == [{"1"}] * 4


def test_where_no_version_has_all_shards_each_is_served_by_what_there_is() -> None:
    driven = keyed(*group(group="")[:3], new("e", 2, 3), policy=LATEST)
    assert versions_of(driven) == [{"1"}, {"1"}, {"1"}, {"2"}]  # the one that more shards have goes first
    (two, one) = driven.cluster.versions("m", driven.now) or ()
    assert (two.version, two.share, two.note) == (
        "2",
        0.25,
        "no replica of shards 0, 1 that may be picked, and no version has all",
    )
    assert (one.version, one.share) == ("1", 0.75)


def test_an_ejected_shard_of_a_newer_version_is_probed_where_all_of_it_is_there() -> None:
    driven = keyed(*group(group=""), new("e", 0), new("f", 1, 2), policy=LATEST)
    own = driven.route(version="2").shards[0]
    driven.done(driven.attempt(route=own), AttemptResult.CONNECT_REFUSED)
    driven.wait(2.0, heard="abcdef")
    assert versions_of(driven) == [{"1"}] * 4  # one shard of it is nowhere: a probe would be its first live request
    driven.seen(new("g", 3))
    driven.wait(0.2, heard="abcdefg")
    attempt = driven.attempt(route=driven.route().shards[0])
    assert (attempt.endpoint.id, attempt.probe) == ("e", True)
    driven.done(attempt, AttemptResult.SUCCESS, 0.001)
    driven.wait(0.2, heard="abcdefg")
    assert versions_of(driven) == [{"2"}] * 4


# --- changing --------------------------------------------------------------------------------------------------------


def configured(driven: Driven, *models: ModelPolicy) -> None:
    driven.cluster.configure(Policies(), models, driven.now)


def test_another_split_takes_effect_at_once() -> None:
    driven = tensor()
    driven.attempt()
    configured(driven, KEYED)
    assert [driven.attempt(route=route).endpoint.id for route in driven.route().shards] == list(NAMES)
    assert driven.nobody().reason is Reason.NO_ENDPOINTS
    configured(driven, replace(KEYED, shards=ShardPolicy(ShardMode.KEYED, 5)))
    assert all(driven.nobody(route=route) for route in driven.route().shards)
    configured(driven, TENSOR)
    assert driven.route().shards == ()
    assert driven.ids(5) == {"a": 5}
    assert driven.cluster.explain(driven.route(), driven.now, driven.rng).rows[0].ramp == 1.0
    configured(driven, ModelPolicy("m"))
    assert driven.nobody().reason is Reason.GROUP_INCOMPLETE
    configured(driven)
    assert driven.nobody().reason is Reason.GROUP_INCOMPLETE


def test_a_model_that_is_declared_later_is_split_then() -> None:
    driven = tensor(policy=ModelPolicy("other"))
    configured(driven, ModelPolicy("other"), TENSOR)
    assert driven.ids(5) == {"a": 5}


def test_routes_of_shards_follow_the_models_policy() -> None:
    driven = keyed()
    configured(driven, replace(KEYED, idempotent=True, hedge=True))
    for route in driven.route().shards:
        assert route.policy.idempotent
        assert route.hedging is not None


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"mode": ShardMode.TENSOR, "count": 257}, "shards.count: 257: must be between 1 and 256 where mode is tensor"),
        ({"mode": ShardMode.TENSOR, "entry": 256}, "shards.entry: 256: must be the number of a shard, 0 to 255"),
        ({"mode": ShardMode.KEYED, "count": 257}, "shards.count: 257: must be between 2 and 256 where mode is keyed"),
        ({"count": 2}, "shards.count: 2: must be 1 where mode is replicated"),
        ({"mode": ShardMode.TENSOR, "count": 4, "entry": 4}, "shards.entry: 4: must be the number of a shard, 0 to 3"),
        ({"mode": ShardMode.KEYED, "count": 4, "entry": 1}, "shards.entry: 1: has no use unless mode is tensor"),
    ],
)
def test_splits_that_make_no_sense(fields: dict[str, object], text: str) -> None:
    with pytest.raises(PolicyError) as refused:
        ShardPolicy(**fields)  # type: ignore[arg-type]
    assert str(refused.value) == text
