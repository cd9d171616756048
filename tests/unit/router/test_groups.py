"""Groups, which answer together: who forms one, what it lacks, and when that counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.model import (
    EjectCause,
    EndpointEjected,
    EndpointHeld,
    Replica,
    SnapshotBegan,
    SnapshotEnded,
    State,
)
from router.outcomes import AttemptResult, Reason
from router.policy import (
    ModelPolicy,
    ShardMode,
    ShardPolicy,
)
from tests.support.shards import NAMES, TENSOR, group, holds, part, reasons, tensor


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
