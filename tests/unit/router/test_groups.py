"""Shards: who forms a group, what it lacks, when that counts; which shard has a key, and what adding one moves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.model import (
    EjectCause,
    EndpointEjected,
    EndpointHeld,
    EndpointRecord,
    Replica,
    SnapshotBegan,
    SnapshotEnded,
    State,
)
from router.outcomes import AttemptResult, Reason
from router.policy import (
    BalancerName,
    KeyPolicy,
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
from tests.support.fleet import Driven, record

TENSOR = ModelPolicy("m", shards=ShardPolicy(ShardMode.TENSOR, 4))
KEYED = ModelPolicy("m", shards=ShardPolicy(ShardMode.KEYED, 4), key=KeyPolicy(header="x-key"))
NAMES = "abcd"


def part(shard: int, count: int = 4, **fields: object) -> Replica:
    of = {"version": "1", "group": "g", "warm_for_s": 1000.0} | fields
    return Replica("m", shard=shard, shard_count=count, **of)  # type: ignore[arg-type]


def holds(id_: str, *parts: Replica, **fields: object) -> EndpointRecord:
    return record(id_, replicas=parts, **fields)  # type: ignore[arg-type]


def group(names: str = NAMES, **fields: object) -> tuple[EndpointRecord, ...]:
    return tuple(holds(name, part(shard, 4, **fields)) for shard, name in enumerate(names))


def tensor(*records: EndpointRecord, policy: ModelPolicy = TENSOR) -> Driven:
    driven = Driven(models=[policy])
    driven.seen(*(records or group()))
    return driven


def reasons(driven: Driven, key: str = "m") -> dict[str, Reason | None]:
    name, _, shard = key.partition("#")
    route = driven.route(*name.split("@"))
    if shard:
        route = route.shards[int(shard)]
    return {row.endpoint: row.reason for row in driven.cluster.explain(route, driven.now, driven.rng).rows}


# --- tensor ----------------------------------------------------------------------------------------------------------


def test_a_group_is_asked_through_its_entry_alone() -> None:
    driven = tensor()
    assert driven.ids(50) == {"a": 50}
    assert reasons(driven) == {"a": None, "b": Reason.NOT_ENTRY, "c": Reason.NOT_ENTRY, "d": Reason.NOT_ENTRY}
    row = driven.cluster.explain(driven.route(), driven.now, driven.rng).rows[0]
    assert (row.shard, row.group, row.lacks) == (0, "g", ())


def test_the_entry_is_the_shard_that_the_configuration_names() -> None:
    driven = tensor(policy=replace(TENSOR, shards=ShardPolicy(ShardMode.TENSOR, 4, entry=2)))
    assert driven.ids(20) == {"c": 20}


@pytest.mark.parametrize(
    ("change", "lack"),
    [
        (lambda driven: driven.gone("c"), "shard 2: nobody holds it"),
        (lambda driven: driven.seen(holds("c", part(2, state=State.LOADING))), "shard 2 at c: not_warm"),
        (lambda driven: driven.seen(holds("c", part(2, state=State.DRAINING))), "shard 2 at c: draining"),
        (lambda driven: driven.seen(holds("c", part(2), draining=True)), "shard 2 at c: draining"),
        (lambda driven: driven.seen(holds("c", part(2, generation=7))), "shard 2 at c: on generation 7, not 0"),
        (lambda driven: driven.seen(holds("c", part(2, count=5))), "shard 2 at c: one of 5, not 4"),
        (lambda driven: driven.seen(holds("c", part(2, group="h"))), "shard 2: nobody holds it"),
        (lambda driven: driven.seen(holds("c", part(2), epoch="b")), None),
        (lambda driven: driven.apply(EndpointHeld("c", held=True, at=driven.now)), "shard 2 at c: held"),
        (
            lambda driven: driven.apply(
                EndpointEjected("c", EjectCause.QUARANTINE, driven.now + 9, 1, driven.now)
            ),
            "shard 2 at c: quarantined",
        ),
        (
            lambda driven: driven.seen(holds("x", part(2))),
            "shard 2 at c and x: which of them is meant? Name the groups",
        ),
        (
            lambda driven: driven.seen(holds("x", part(0))),
            "shard 0 at a and x: which of them is meant? Name the groups",
        ),
        (lambda driven: driven.seen(holds("x", part(2, generation=7))), None),
    ],
)  # fmt: skip
def test_what_changes_at_a_member_counts_at_the_next_choice(change: object, lack: str | None) -> None:
    driven = tensor()
    driven.attempt()
    change(driven)  # type: ignore[operator]
    if lack is None:
        assert driven.ids(20) == {"a": 20}
        return
    nobody = driven.nobody()
    assert nobody.reason is Reason.GROUP_INCOMPLETE
    assert f"group_incomplete ({lack})" in nobody.detail
    row = next(
        row for row in driven.cluster.explain(driven.route(), driven.now, driven.rng).rows if row.endpoint == "a"
    )
    assert (row.reason, row.lacks) == (Reason.GROUP_INCOMPLETE, (lack,))


def test_a_group_that_is_whole_again_is_asked_at_once() -> None:
    driven = tensor()
    driven.gone("c")
    driven.nobody()
    driven.seen(holds("x", part(2, state=State.WARMING)))
    assert "shard 2 at x: not_warm" in driven.nobody().detail
    driven.seen(holds("x", part(2)))
    assert driven.ids(5) == {"a": 5}


def test_a_new_generation_is_asked_once_all_are_on_it() -> None:
    driven = tensor()
    for shard, name in enumerate(NAMES):
        driven.seen(holds(name, part(shard, generation=1)))
        if name != "d":
            assert driven.nobody().reason is Reason.GROUP_INCOMPLETE
    assert driven.ids(5) == {"a": 5}


def test_a_member_that_falls_silent_takes_its_group_out_without_a_tick() -> None:
    driven = tensor()
    driven.attempt()
    for _ in range(5):
        driven.now += 1.0
        driven.heard("a", "b", "d")
    nobody = driven.nobody()
    assert "shard 2 at c: stale" in nobody.detail
    driven.heard("c")
    assert driven.ids(5) == {"a": 5}


def test_a_member_goes_stale_between_two_looks_at_its_entry() -> None:
    driven = tensor()
    driven.wait(4.5, heard="abd", tick=False)
    driven.attempt()
    driven.now += 0.6  # nothing happened at the entry since
    assert driven.nobody().reason is Reason.GROUP_INCOMPLETE


def test_a_member_whose_quarantine_is_over_does_its_part() -> None:
    driven = tensor()
    driven.apply(EndpointEjected("c", EjectCause.QUARANTINE, driven.now + 2, 1, driven.now))
    driven.nobody()
    driven.wait(1.5, heard=NAMES)
    driven.nobody()
    driven.wait(1, heard=NAMES)
    assert driven.ids(5) == {"a": 5}


def test_no_probe_and_no_trial_goes_to_a_member() -> None:
    driven = tensor()
    driven.apply(EndpointEjected("b", EjectCause.BREAKER, driven.now + 1, 1, driven.now))
    driven.apply(EndpointEjected("c", EjectCause.QUARANTINE, driven.now + 1, 1, driven.now))
    for _ in range(30):
        driven.wait(0.1, heard=NAMES)
        picked = driven.choose()
        assert getattr(picked, "endpoint", None) is None or picked.endpoint.id == "a"  # type: ignore[union-attr]


def test_a_panic_lets_nobody_ask_a_member() -> None:
    """One group is left of two, and of the other all members but the entry have open breakers."""
    driven = tensor(*group(), *group("efgh", group="h"))
    for shard, name in enumerate("efgh"):
        if shard:
            driven.apply(
                EndpointEjected(name, EjectCause.BREAKER, driven.now + 60, 1, driven.now, "m", "1", shard=shard)
            )
    assert driven.ids(50) == {"a": 50}
    open_ = {name for name, reason in reasons(driven).items() if reason is None}
    assert open_ == {"a"}
    assert {reasons(driven)[name] for name in "fgh"} == {Reason.BREAKER_OPEN}
    assert reasons(driven)["e"] is Reason.GROUP_INCOMPLETE


def test_an_entry_that_is_not_there_is_said_by_name() -> None:
    driven = tensor(*group()[1:])
    nobody = driven.nobody()
    assert (nobody.reason, nobody.detail) == (
        Reason.GROUP_INCOMPLETE,
        "m: no endpoint holds shard 0, which takes the requests",
    )


def test_without_a_number_each_version_has_as_many_shards_as_its_workers_say() -> None:
    policy = replace(TENSOR, shards=ShardPolicy(ShardMode.TENSOR))
    driven = tensor(
        *group(), *(holds(name, part(shard, 2, version="2")) for shard, name in enumerate("ef")), policy=policy
    )
    assert driven.attempt(route=driven.route("m", "1")).endpoint.id == "a"
    assert driven.attempt(route=driven.route("m", "2")).endpoint.id == "e"
    driven.seen(holds("f", part(1, 3, version="2")))
    assert "(shard 1 at f: one of 3, not 2)" in driven.nobody(route=driven.route("m", "2")).detail
    driven.seen(holds("e", part(0, 1 << 40, version="2")))
    assert f"(shard 0 at e: one of {1 << 40}, at most 256)" in driven.nobody(route=driven.route("m", "2")).detail


def test_groups_do_not_help_each_other_out() -> None:
    driven = tensor(*group(), *group("efgh", group="h"))
    assert set(driven.ids(100)) == {"a", "e"}
    driven.gone("c")
    assert set(driven.ids(50)) == {"e"}
    driven.gone("f")
    nobody = driven.nobody()
    assert nobody.detail == "m: none of 2 can be picked: 2 group_incomplete (shard 2: nobody holds it)"


def test_without_names_the_generation_tells_groups_apart() -> None:
    driven = tensor(*group(group=""), *group("efgh", group="", generation=1))
    assert set(driven.ids(100)) == {"a", "e"}
    driven.gone("f")
    assert set(driven.ids(50)) == {"a"}


def test_many_that_go_by_one_name_are_no_group_and_not_looked_at_each() -> None:
    names = [f"{shard}-{number}" for number in range(5) for shard in range(4)]
    driven = tensor(*(holds(name, part(int(name[0]))) for name in names))
    assert "20 replicas of 4 shards go by one name and generation. Name the groups" in driven.nobody().detail
    for name in names[4:]:
        driven.gone(name)
    assert driven.ids(5) == {"0-0": 5}


def test_one_endpoint_with_every_shard_is_a_group_by_itself() -> None:
    every = tuple(part(shard) for shard in range(4))
    driven = tensor(holds("w", *every), *group())
    assert set(driven.ids(100)) == {"a", "w"}
    driven.gone("b")
    assert set(driven.ids(20)) == {"w"}
    driven.seen(holds("w", *every[:3]))  # now it is one more that holds parts of g
    assert "which of them is meant" in driven.nobody().detail
    driven.seen(holds("w", Replica("m", "1")))  # not split at all
    assert set(driven.ids(20)) == {"w"}


def test_one_endpoint_may_hold_several_shards_of_a_group() -> None:
    driven = tensor(holds("a", part(0), part(1)), holds("b", part(2), part(3)))
    assert driven.ids(10) == {"a": 10}
    explanation = driven.cluster.explain(driven.route(), driven.now, driven.rng)
    assert explanation.draw is not None
    assert explanation.draw.winner == "a"
    driven.seen(holds("b", part(2)))
    assert "shard 3: nobody holds it" in driven.nobody().detail


def test_groups_of_versions_and_protocols_are_apart() -> None:
    driven = tensor(*group(), *(holds(name, part(shard, version="2")) for shard, name in enumerate("efg")))
    assert driven.ids(20) == {"a": 20}
    assert driven.nobody(route=driven.route("m", "2")).reason is Reason.GROUP_INCOMPLETE
    grpc = [replace(each, id=each.id + "2", protocol="grpc", address="grpc://" + each.id) for each in group()]
    driven.seen(*grpc)
    assert driven.ids(20) == {"a": 20}


def test_the_newest_and_stalest_member_speaks_for_its_group() -> None:
    driven = tensor(*group()[:3], holds("d", part(3, warm_for_s=2.0)))
    driven.wait(3, heard="abc")
    row = driven.cluster.explain(driven.route(), driven.now, driven.rng).rows[0]
    assert (row.age_s, row.ramp, row.warm_for_s) == (3.0, 0.55, 5.0)
    assert row.freshness == pytest.approx(2 / 3)


def test_a_snapshot_without_a_member_takes_the_group_out() -> None:
    driven = tensor()
    driven.attempt()
    driven.apply(SnapshotBegan(1, driven.now))
    driven.seen(*group()[:3])
    driven.apply(SnapshotEnded(1, driven.now))
    assert "shard 3: nobody holds it" in driven.nobody().detail


def test_a_retry_and_a_hedge_stay_with_entries() -> None:
    driven = tensor(*group(), *group("efgh", group="h"))
    for _ in range(50):
        attempt = driven.attempt()
        again = driven.attempt(attempt.endpoint)
        assert {attempt.endpoint.id, again.endpoint.id} == {"a", "e"}
        driven.done(attempt, AttemptResult.CANCELLED)
        driven.done(again, AttemptResult.CANCELLED)


def test_what_is_declared_replicated_needs_every_shard_at_one_endpoint() -> None:
    driven = tensor(policy=ModelPolicy("m"))
    assert driven.nobody().reason is Reason.GROUP_INCOMPLETE


def test_a_record_may_claim_any_number_of_shards() -> None:
    driven = tensor(holds("a", part(0, count=1 << 62)), policy=ModelPolicy("m"))
    assert driven.nobody().detail.count("not there") == 8


# --- keyed -----------------------------------------------------------------------------------------------------------


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
