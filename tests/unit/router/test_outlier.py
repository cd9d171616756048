"""Replicas that fail much more than the others, how many of them may be out, and when that is too many."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.model import EjectCause, EndpointEjected, PeerObserved, Tick
from router.outcomes import AttemptResult, Reason
from router.outlier import Tally, ejection_s, outliers, panics, returning
from router.policy import OutlierPolicy, Policies
from router.routes import Attempt, NoCandidate
from tests.support.fleet import Driven, observation, only, record

POLICY = OutlierPolicy()
IDS = ("a", "b", "c", "d")


def found(*tallies: Tally, policy: OutlierPolicy = POLICY) -> list[int]:
    return [one.index for one in outliers(tallies, policy)]


@pytest.mark.parametrize(
    ("tallies", "expected"),
    [
        ([Tally(80, 20), Tally(100, 0), Tally(100, 0)], [0]),
        ([Tally(90, 10), Tally(100, 0), Tally(100, 0)], []),  # not over the least share
        ([Tally(80, 20), Tally(82, 18), Tally(85, 15)], []),  # all fail: it is not the replicas
        ([Tally(80, 20), Tally(100, 0)], []),  # nobody to compare with but one
        ([Tally(39, 10), Tally(100, 0), Tally(100, 0)], []),  # too few calls
        ([Tally(80, 20), Tally(49, 0), Tally(100, 0)], []),  # the others have too few
        (
            [Tally(70, 30), Tally(60, 40), *[Tally(100, 0)] * 4],
            [],
        ),  # two bad ones hide each other: breakers judge alone
        ([Tally(30, 70), Tally(99, 1), Tally(98, 2), Tally(97, 3)], [0]),
        ([Tally(0, 100, out=True), Tally(60, 40), Tally(100, 0), Tally(100, 0)], [1]),  # half of them, no more
        ([Tally(0, 9, out=True), Tally(0, 9, out=True), Tally(60, 40), Tally(99, 0), Tally(99, 0)], []),
        ([Tally(0, 100, out=True), Tally(60, 40), *[Tally(100, 0)] * 3], [1]),
        ([], []),
    ],
)
def test_who_is_an_outlier(tallies: list[Tally], expected: list[int]) -> None:
    assert found(*tallies) == expected


TALLIES = st.lists(st.builds(Tally, st.integers(0, 300), st.integers(0, 300), st.booleans()), max_size=12)
SOME_POLICY = st.builds(
    OutlierPolicy,
    minimum_calls=st.integers(1, 60),
    minimum_others=st.integers(1, 4),
    least_failure_ratio=st.floats(0, 0.5),
    deviations=st.floats(0, 4),
    max_ejected_ratio=st.floats(0, 1),
)


@given(TALLIES, SOME_POLICY)
def test_no_more_are_out_than_may_be_and_never_a_better_one_than_another_that_stays(
    tallies: list[Tally], policy: OutlierPolicy
) -> None:
    chosen = found(*tallies, policy=policy)
    already = sum(tally.out for tally in tallies)
    if chosen:
        assert already + len(chosen) <= policy.max_ejected_ratio * len(tallies)
    assert not any(tallies[index].out for index in chosen)
    for index in chosen:
        ratio = tallies[index].failure_ratio
        assert ratio > policy.least_failure_ratio
        assert ratio >= sum(tally.failure_ratio for tally in tallies if tally.calls) / max(1, len(tallies)) or already


@pytest.mark.parametrize(
    ("breakers", "ejected", "expected"),
    [(0, [0.2, 0.3], []), (2, [], []), (3, [], []), (1, [0.2, 0.3], [0]), (2, [0.3, 0.2], [1, 0]), (4, [0.2], [0])],
)
def test_where_breakers_take_out_more_than_may_be_the_least_bad_outliers_return(
    breakers: int, ejected: list[float], expected: list[int]
) -> None:
    tallies = [Tally(100 - int(ratio * 100), int(ratio * 100), out=True, ejected=True) for ratio in ejected]
    tallies += [Tally(0, 100, out=True)] * breakers
    tallies += [Tally(100, 0)] * (5 - len(tallies))
    assert returning(tallies, OutlierPolicy(max_ejected_ratio=0.5)) == expected


def test_times_grow_to_a_ceiling() -> None:
    assert [ejection_s(times, POLICY) for times in (0, 1, 2, 3, 10, 11)] == [30, 30, 60, 90, 300, 300]


@pytest.mark.parametrize(
    ("open_", "ejected", "expected"),
    [(3, 7, False), (2, 8, True), (0, 4, False), (1, 3, True), (1, 2, False), (4, 0, False)],
)
def test_panic_is_for_when_too_few_are_left_and_not_nobody(open_: int, ejected: int, expected: bool) -> None:
    assert panics(open_, ejected, POLICY) is expected


# --- in a cluster ----------------------------------------------------------------------------------------------------


def fleet(*ids: str, policy: OutlierPolicy = POLICY) -> Driven:
    driven = Driven(policies=Policies(outlier=policy))
    driven.seen(*(record(id_) for id_ in ids))
    return driven


def play(driven: Driven, rates: dict[str, float], requests: int = 400, step_s: float = 0.01) -> Counter[str]:
    """Send requests; each endpoint fails by its own share, spread evenly. Return who got how many."""
    target = driven.cluster.route("m")
    assert target is not None
    got: Counter[str] = Counter()
    owed: Counter[str] = Counter()
    for number in range(requests):
        driven.now += step_s
        driven.apply(Tick())
        if number % 50 == 0:
            driven.heard(*driven.cluster.endpoints)
        attempt = driven.cluster.choose(target, driven.now, driven.rng)
        if isinstance(attempt, NoCandidate):
            got["nobody"] += 1
            continue
        assert isinstance(attempt, Attempt)
        id_ = attempt.endpoint.id
        got[id_] += 1
        owed[id_] += 1
        bad = owed[id_] * rates.get(id_, 0.0) >= 1
        if bad:
            owed[id_] = 0
        result = AttemptResult.SERVER_ERROR if bad else AttemptResult.SUCCESS
        driven.shared += driven.cluster.done(attempt, result, driven.now + 0.001)
    return got


def test_a_replica_that_fails_a_fifth_is_out_and_comes_back_in_time() -> None:
    driven = fleet(*IDS)
    play(driven, {"a": 0.2})
    assert only(driven.cluster.endpoints["a"]).reason is Reason.OUTLIER
    (event,) = (event for event in driven.shared if isinstance(event, EndpointEjected))
    assert (event.id, event.cause, event.level, event.model, event.version) == ("a", EjectCause.OUTLIER, 1, "m", "1")
    assert event.until == pytest.approx(event.at + 30)
    assert event.evidence is not None
    assert event.evidence.failed / event.evidence.calls == pytest.approx(0.2, abs=0.03)
    assert play(driven, {}, 100)["a"] == 0
    driven.now = event.until
    assert play(driven, {}, 100)["a"] > 0


def test_the_second_time_in_a_row_is_longer_and_after_a_good_while_it_is_not() -> None:
    driven = fleet(*IDS)

    def ejections() -> list[EndpointEjected]:
        return [event for event in driven.shared if isinstance(event, EndpointEjected)]

    play(driven, {"a": 0.2})
    driven.now = ejections()[0].until
    driven.seen(*(record(id_) for id_ in IDS))
    play(driven, {"a": 0.2}, 600)
    assert [(event.level, round(event.until - event.at)) for event in ejections()] == [(1, 30), (2, 60)]
    driven.now = ejections()[1].until + 61
    driven.seen(*(record(id_) for id_ in IDS))
    play(driven, {"a": 0.2}, 600)
    assert [event.level for event in ejections()] == [1, 2, 1]


def test_where_all_fail_alike_nobody_is_out() -> None:
    driven = fleet(*IDS)
    play(driven, dict.fromkeys(IDS, 0.2))
    assert driven.shared == []


def test_it_can_be_turned_off() -> None:
    driven = fleet(*IDS, policy=OutlierPolicy(enabled=False))
    play(driven, {"a": 0.2})
    assert only(driven.cluster.endpoints["a"]).reason is None


def test_siblings_follow_and_explain_it() -> None:
    driven, sibling = fleet(*IDS), fleet(*IDS)
    play(driven, {"a": 0.2})
    sibling.now = driven.now
    sibling.apply(*driven.shared)
    candidate = only(sibling.cluster.endpoints["a"])
    assert candidate.reason is Reason.OUTLIER
    target = sibling.cluster.route("m")
    assert target is not None
    rows = {row.endpoint: row for row in sibling.cluster.explain(target, sibling.now, sibling.rng).rows}
    assert rows["a"].reason is Reason.OUTLIER
    assert rows["a"].left_s == pytest.approx(candidate.ejection.until - sibling.now)
    assert [event.cause for event in sibling.cluster.guards()] == [EjectCause.OUTLIER]
    sibling.now = candidate.ejection.until
    sibling.apply(Tick())
    assert candidate.reason is not Reason.OUTLIER


def test_what_siblings_saw_counts() -> None:
    driven = fleet(*IDS)
    seen = tuple(
        observation(id_, 0, successes=60 if id_ == "a" else 100, failures=40 if id_ == "a" else 0) for id_ in IDS
    )
    driven.apply(PeerObserved(1, seen, driven.now))
    play(driven, {}, 200)
    assert only(driven.cluster.endpoints["a"]).reason is Reason.OUTLIER


def test_in_panic_those_that_are_out_take_their_share_again_and_that_is_said() -> None:
    driven = fleet(*IDS)
    for id_ in ("a", "b", "c"):
        driven.apply(EndpointEjected(id_, EjectCause.BREAKER, driven.now + 60, 1, driven.now, "m", "1"))
    got = play(driven, {}, 400, step_s=0.001)
    assert all(got[id_] > 40 for id_ in IDS), got
    (changed,) = driven.cluster.panicked
    assert changed.panic
    target = driven.cluster.route("m")
    assert target is not None
    said = driven.cluster.explain(target, driven.now, driven.rng)
    assert "panic" in said.law
    assert sum(row.share for row in said.rows) == pytest.approx(1.0)
    (shown,) = (row for row in driven.cluster.routes(driven.now) if row.key == "m")
    assert shown.panic
    driven.seen(record("e"), record("f"))  # help comes
    got = play(driven, {}, 400, step_s=0.001)
    assert {"a", "b", "c"}.isdisjoint(got)
    assert not changed.panic


def test_with_nobody_left_open_breakers_hold() -> None:
    driven = fleet(*IDS)
    for id_ in IDS:
        driven.apply(EndpointEjected(id_, EjectCause.BREAKER, driven.now + 60, 1, driven.now, "m", "1"))
    assert play(driven, {}, 10) == {"nobody": 10}


def out(driven: Driven, *ids: str, cause: EjectCause = EjectCause.QUARANTINE) -> None:
    of = ("", "") if cause is EjectCause.QUARANTINE else ("m", "1")
    driven.apply(*(EndpointEjected(id_, cause, driven.now + 60, 1, driven.now, *of) for id_ in ids))


@pytest.mark.parametrize("cause", [EjectCause.QUARANTINE, EjectCause.BREAKER])
def test_an_outlier_is_let_in_again_where_nobody_else_is_left(cause: EjectCause) -> None:
    driven = fleet("a", "b", "c")
    play(driven, {"a": 0.2})
    assert only(driven.cluster.endpoints["a"]).reason is Reason.OUTLIER
    assert driven.cluster.routable(driven.now)
    out(driven, "b", "c", cause=cause)
    assert driven.cluster.routable(driven.now)
    got = play(driven, {"a": 0.2}, 400, step_s=0.01)
    if cause is EjectCause.BREAKER:
        assert got == {"a": 400}  # and it stays in, though by what it does it would be out each second
    else:
        assert got["a"] >= 390  # they are probed
    assert not only(driven.cluster.endpoints["a"]).ejection.active


def test_an_outlier_is_not_let_in_because_the_others_are_full() -> None:
    driven = Driven(policies=Policies(outlier=POLICY, requests_per_endpoint=1))
    driven.seen(*(record(id_) for id_ in ("a", "b", "c")))
    play(driven, {"a": 0.2})
    for _ in range(2):
        assert driven.attempt().endpoint.id != "a"
    assert driven.nobody().reason is Reason.AT_LIMIT
    assert only(driven.cluster.endpoints["a"]).ejection.active


def test_one_that_refuses_or_whose_breaker_is_open_is_not_let_in() -> None:
    for cause in (EjectCause.QUARANTINE, EjectCause.BREAKER):
        driven = fleet("a", "b", "c")
        play(driven, {"a": 0.2})
        out(driven, "a", "b", "c", cause=cause)
        driven.nobody()
        assert only(driven.cluster.endpoints["a"]).ejection.active
        assert not driven.cluster.routable(driven.now)


def test_breakers_that_open_later_let_an_outlier_in_so_that_no_more_than_half_are_out() -> None:
    driven = fleet(*IDS)
    play(driven, {"a": 0.2})
    out(driven, "b", cause=EjectCause.BREAKER)
    play(driven, {}, 200)
    assert only(driven.cluster.endpoints["a"]).ejection.active
    out(driven, "c", cause=EjectCause.BREAKER)
    assert play(driven, {"a": 0.2}, 400)["a"] > 40
