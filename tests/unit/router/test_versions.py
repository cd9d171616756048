"""The order of versions, who serves requests that name none, and splits that move no more keys than they must."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.policy import PolicyError, RolloutPolicy, ServePolicy, ServeRule, VersionShare
from router.versions import (
    is_left_out,
    is_taken,
    newest,
    share_at_random,
    share_by_key,
    version_key,
    versions_asked,
)

ASCENDING = [
    ["", "blue", "green", "r9", "r10", "0", "1", "9", "10", "20240131", "20240201"],
    ["1.9", "1.10", "1.10.1", "2"],
    ["v1", "v2", "v10"],
    ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1"],
    ["1.0.0-rc.1", "1.0.0", "1.0.1-rc.1", "1.0.1"],
    ["2.0.0-1", "2.0.0-2", "2.0.0-11", "2.0.0-a", "2.0.0"],
    ["1.2rc1", "1.2", "1.3a"],
    ["2024-01-31", "2024-02-01"],
    ["1.0.0+a", "1.0.0+b", "1.0.1"],
    ["1-" + "9" * 4999, "1-1" + "0" * 4999, "1", "007", "8", "9" * 4999, "1" + "0" * 4999, "1" + "0" * 4998 + "1"],
]
SHARES = (VersionShare("1", 95), VersionShare("2", 5))
KEYS = [b"caller %d" % number for number in range(4000)]


@pytest.mark.parametrize("versions", ASCENDING)
def test_versions_order_as_what_they_are(versions: list[str]) -> None:
    shuffled = random.Random(5).sample(versions, len(versions))
    assert sorted(shuffled, key=version_key) == versions
    assert newest(shuffled) == versions[-1]


def test_a_v_and_zeros_behind_decide_only_between_equals() -> None:
    assert newest(["v2", "10"]) == "10"
    assert newest(["1.0", "1.1"]) == "1.1"
    assert version_key("1.0")[:4] == version_key("v1")[:4] == version_key("1.0.0+cuda")[:4]
    assert newest([]) is None


@given(
    st.lists(st.text(max_size=12) | st.from_regex(r"v?[0-9]{1,3}(\.[0-9]{1,2}){0,2}(-[a-c0-9.]{1,5})?", fullmatch=True))
)
def test_any_versions_have_one_order(versions: list[str]) -> None:
    ordered = sorted(versions, key=version_key)
    assert sorted(random.Random(1).sample(versions, len(versions)), key=version_key) == ordered
    assert all((version_key(a) == version_key(b)) is (a == b) for a in versions for b in versions)


def test_latest_leaves_out_all_but_the_newest_that_is_there() -> None:
    latest = ServePolicy(ServeRule.LATEST)
    assert not is_left_out(latest, "10", "10", ejected=False)
    assert is_left_out(latest, "9", "10", ejected=False)
    assert is_left_out(latest, "9", "10", ejected=True)
    assert not is_left_out(latest, "11", "10", ejected=True)  # it is probed, to serve again
    assert not is_left_out(latest, "9", None, ejected=True)  # nobody is there: anyone is tried


def test_a_rule_names_who_may_take_requests() -> None:
    assert is_taken(ServePolicy(), "1")
    assert is_taken(ServePolicy(ServeRule.LATEST), "1")
    pinned = ServePolicy(ServeRule.PINNED, version="2")
    assert is_taken(pinned, "2")
    assert not is_taken(pinned, "1")
    split = ServePolicy(ServeRule.SPLIT, shares=(VersionShare("1", 1), VersionShare("2", 0)))
    assert is_taken(split, "1")
    assert not is_taken(split, "2")
    assert not is_taken(split, "3")


def test_keys_are_divided_by_weight() -> None:
    taken = [share_by_key(SHARES, key) for key in KEYS]
    assert 0.04 < taken.count(1) / len(taken) < 0.06
    assert taken == [share_by_key(SHARES, key) for key in KEYS]


def test_a_growing_share_takes_keys_from_the_others_and_moves_no_other() -> None:
    before = [share_by_key(SHARES, key) for key in KEYS]
    for new in (5.0, 25.0, 50.0, 99.0, 100.0):
        shares = (VersionShare("1", 100 - new), VersionShare("2", new))
        after = [share_by_key(shares, key) for key in KEYS]
        assert all(now == 1 for was, now in zip(before, after, strict=True) if was == 1)
        assert abs(after.count(1) / len(KEYS) - new / 100) < 0.03
        before = after
    assert set(before) == {1}


@given(
    st.lists(st.floats(0.1, 100), min_size=2, max_size=6),
    st.integers(0, 5),
    st.floats(1, 50),
    st.binary(min_size=1, max_size=8),
)
def test_one_weight_that_grows_takes_keys_only(weights: list[float], which: int, factor: float, key: bytes) -> None:
    which %= len(weights)
    shares = [VersionShare(str(index), weight) for index, weight in enumerate(weights)]
    before = share_by_key(shares, key)
    shares[which] = VersionShare(str(which), weights[which] * factor)
    assert share_by_key(shares, key) in (before, which)


def test_a_version_that_is_left_out_gives_its_keys_to_all_others() -> None:
    shares = [VersionShare("1", 40), VersionShare("2", 40), VersionShare("3", 20)]
    before = [share_by_key(shares, key) for key in KEYS]
    after = [share_by_key([shares[0], shares[2]], key) for key in KEYS]
    kept = [(was, now) for was, now in zip(before, after, strict=True) if was != 1]
    assert all((was, now) in {(0, 0), (2, 1)} for was, now in kept)
    moved = [now for was, now in zip(before, after, strict=True) if was == 1]
    assert abs(moved.count(0) / len(moved) - 40 / 60) < 0.05


def test_requests_without_a_key_are_divided_at_random() -> None:
    rng = random.Random(3).random
    taken = [share_at_random(SHARES, rng()) for _ in range(4000)]
    assert 0.04 < taken.count(1) / len(taken) < 0.06
    only = (VersionShare("1", 0), VersionShare("2", 3), VersionShare("3", 0))
    assert {share_at_random(only, unit) for unit in (0.0, 0.5, 0.999999999999)} == {1}
    assert {share_by_key(only, key) for key in KEYS[:50]} == {1}


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: VersionShare("1", -1), "versions.split.weight: -1: must be 0 or more"),
        (
            lambda: ServePolicy(ServeRule.SPLIT, shares=(VersionShare("1", 0),)),
            "versions.split: ['1']: must give at least one version a weight over 0",
        ),
        (
            lambda: ServePolicy(ServeRule.SPLIT, shares=(VersionShare("1", 1), VersionShare("1", 2))),
            "versions.split: ['1']: must name each version once, 8 at most",
        ),
        (lambda: RolloutPolicy(steps=(5, 5, 100)), "versions.rollout.steps: [5, 5, 100]: must rise from over 0 to 100"),
        (
            lambda: RolloutPolicy(steps=(100,)),
            "versions.rollout.steps: [100]: must rise from over 0 to 100, in 2 to 16",
        ),
        (lambda: RolloutPolicy(steps=(5, 50)), "versions.rollout.steps: [5, 50]: must rise from over 0 to 100"),
        (lambda: RolloutPolicy(max_p95_ratio=0.5), "versions.rollout.max_p95_ratio: 0.5: must be 1 or more"),
    ],
)
def test_what_makes_no_sense_is_refused(make: object, text: str) -> None:
    with pytest.raises(PolicyError) as caught:
        make()  # type: ignore[operator]
    assert str(caught.value).startswith(text)


SPLIT = ServePolicy(ServeRule.SPLIT, shares=(VersionShare("1", 5), VersionShare("2", 95), VersionShare("3", 0)))


@pytest.mark.parametrize(
    ("policy", "named", "warm", "last", "asked"),
    [
        (None, "", {"9", "10"}, None, ("10", "9")),
        (None, "", {"9", "10"}, "9", ("9", "10")),
        (ServePolicy(), "", set(), "9", ("9",)),
        (ServePolicy(), "", {"10"}, "9", ("10",)),  # withdrawn
        (ServePolicy(), "", {""}, None, ("",)),
        (ServePolicy(), "", set(), None, ()),
        (ServePolicy(), "7", {"9"}, "9", ("7",)),
        (ServePolicy(ServeRule.PINNED, "1"), "", {"2"}, "2", ("1",)),
        (ServePolicy(ServeRule.PINNED, "1"), "2", {"2"}, None, ("2",)),
        (SPLIT, "", {"3"}, "3", ("2", "1")),
        (SPLIT, "1", set(), None, ("1",)),
        (ServePolicy(ServeRule.LATEST), "", {"9", "10"}, None, ("10",)),
        (ServePolicy(ServeRule.LATEST), "", {"9", "10"}, "9", ("9",)),
        (ServePolicy(ServeRule.LATEST), "", {"9"}, "10", ("9",)),
        (ServePolicy(ServeRule.LATEST), "", set(), "10", ("10",)),
    ],
)
def test_whose_kept_answers_stand_for_the_version_that_would_be_asked(
    policy: ServePolicy | None, named: str, warm: set[str], last: str | None, asked: tuple[str, ...]
) -> None:
    assert versions_asked(policy, named, warm, last) == asked
