"""Whatever happens to a fleet in several versions, requests that name none get one that they may have."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from router.model import State, VersionsSteered, VersionSteering
from router.outcomes import AttemptResult
from router.policy import ModelPolicy, ServePolicy, ServeRule, VersionShare
from router.routes import Attempt
from router.versions import version_key
from tests.support.fleet import Driven, record

NAMES = ("a", "b", "c", "d")
VERSIONS = ("1", "2", "10", "v9", "2.0.0-rc.1")

_change = st.one_of(
    st.tuples(st.just("seen"), st.sampled_from(NAMES), st.sampled_from(VERSIONS), st.sampled_from(list(State))),
    st.tuples(st.just("gone"), st.sampled_from(NAMES), st.just(""), st.just(State.WARM)),
    st.tuples(st.just("fails"), st.sampled_from(NAMES), st.just(""), st.just(State.WARM)),
    st.tuples(st.just("waits"), st.just(""), st.just(""), st.just(State.WARM)),
)


def pickable(driven: Driven) -> set[str]:
    """Return the versions with a replica that may be picked at this moment."""
    return {
        candidate.version
        for endpoint in driven.cluster.endpoints.values()
        for candidate in endpoint.candidates.values()
        if driven.now < candidate.open_until
    }


def happen(driven: Driven, change: tuple[str, str, str, State]) -> None:
    what, name, version, state = change
    if what == "seen":
        driven.seen(record(name, version=version, state=state))
    elif what == "gone":
        driven.gone(name)
    elif what == "waits":
        driven.wait(2.0, heard=NAMES)
    else:
        picked = driven.choose()
        if isinstance(picked, Attempt):
            driven.done(picked, AttemptResult.CONNECT_REFUSED)
    driven.wait(0.2, heard=NAMES)  # tables follow within a tenth of a second


@given(st.lists(_change, max_size=25))
@settings(max_examples=60)
def test_latest_is_the_newest_that_may_be_picked(changes: list[tuple[str, str, str, State]]) -> None:
    driven = Driven(models=[ModelPolicy("m", serve=ServePolicy(ServeRule.LATEST))])
    for change in changes:
        happen(driven, change)
        there = pickable(driven)
        for _ in range(3):
            picked = driven.choose()
            if not isinstance(picked, Attempt):
                assert not there
                continue
            assert picked.candidate.replica.state is State.WARM
            if not picked.probe:
                assert picked.candidate.version == max(there, key=version_key)
            driven.cluster.done(picked, AttemptResult.CANCELLED, driven.now)


@given(st.lists(_change, max_size=25), st.lists(st.integers(0, 3), min_size=5, max_size=5), st.binary(max_size=4))
@settings(max_examples=60)
def test_a_split_gives_to_those_with_a_weight_and_somebody_there(
    changes: list[tuple[str, str, str, State]], weights: list[int], key: bytes
) -> None:
    driven = Driven()
    if not any(weights):
        weights[0] = 1
    shares = tuple(VersionShare(version, weight) for version, weight in zip(VERSIONS, weights, strict=True))
    driven.apply(VersionsSteered((VersionSteering("m", ServeRule.SPLIT, shares=shares),)))
    weighty = {share.version for share in shares if share.weight}
    for change in changes:
        happen(driven, change)
        there = pickable(driven) & weighty
        for asked in (key, None):
            pick = driven.cluster.version_of(driven.route(), driven.now, driven.rng, asked)
            if there:
                assert pick.version in weighty
            picked = driven.choose(route=pick.route)
            if isinstance(picked, Attempt):
                assert picked.candidate.replica.state is State.WARM
                assert picked.candidate.version in weighty
                driven.cluster.done(picked, AttemptResult.CANCELLED, driven.now)
            else:
                assert not there
        again = driven.cluster.version_of(driven.route(), driven.now, driven.rng, key)
        assert again.version == driven.cluster.version_of(driven.route(), driven.now, driven.rng, key).version
