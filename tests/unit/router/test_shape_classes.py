"""Requests of a shape class: to replicas that are proven for it, while there are some that can take them."""

from __future__ import annotations

from router.model import EndpointRecord, Replica
from router.outcomes import AttemptResult, Reason
from router.policy import ModelPolicy, Policies
from router.routes import NoCandidate, Route
from tests.support.fleet import Driven, record


def holding(id_: str, **warmth: float) -> EndpointRecord:
    return record(id_, replicas=(Replica("m", "1", warmth=tuple(sorted(warmth.items())), warm_for_s=1e4),))


def shaped(driven: Driven, shape: str) -> Route:
    return driven.cluster.shaped_route(driven.route(), shape, driven.now)


def ids(driven: Driven, route: Route, draws: int = 200) -> set[str]:
    found = set()
    for _ in range(draws):
        attempt = driven.attempt(route=route)
        found.add(attempt.endpoint.id)
        driven.cluster.done(attempt, AttemptResult.CANCELLED, driven.now)
    return found


def fleet() -> Driven:
    driven = Driven()
    driven.seen(holding("a", b1=1.0, b32=0.0), holding("b", b1=1.0, b32=1.0), holding("c", b1=1.0, b32=0.5))
    return driven


def test_a_class_goes_to_those_proven_for_it_and_all_else_to_everybody() -> None:
    driven = fleet()
    assert ids(driven, shaped(driven, "b32")) == {"b", "c"}
    assert ids(driven, shaped(driven, "b1")) == {"a", "b", "c"}
    assert ids(driven, driven.route()) == {"a", "b", "c"}
    assert shaped(driven, "b32") is shaped(driven, "b32")


def test_where_nobody_is_proven_everybody_takes_it() -> None:
    driven = fleet()
    assert ids(driven, shaped(driven, "b64")) == {"a", "b", "c"}


def test_a_proof_that_comes_or_goes_is_followed() -> None:
    driven = fleet()
    route = shaped(driven, "b32")
    ids(driven, route)
    driven.seen(holding("a", b1=1.0, b32=1.0), holding("b", b1=1.0, b32=0.0))
    driven.wait(0.2)
    assert ids(driven, route) == {"a", "c"}
    driven.gone("a")
    driven.gone("c")
    assert ids(driven, route) == {"b"}, "it is what is left"
    driven.gone("b")
    assert driven.nobody(route=route).reason is Reason.NO_ENDPOINTS
    driven.seen(holding("d", b32=1.0))
    assert ids(driven, route) == {"d"}


def test_one_that_is_out_is_out_here_too_and_its_probe_brings_it_back() -> None:
    driven = fleet()
    route = shaped(driven, "b32")
    ids(driven, route)
    while (attempt := driven.attempt(route=route)).endpoint.id != "b":
        driven.done(attempt, AttemptResult.CANCELLED)
    driven.done(attempt, AttemptResult.CONNECT_REFUSED)
    assert ids(driven, route) == {"c"}
    assert "b" not in ids(driven, driven.route())
    driven.wait(1.5, heard=["a", "b", "c"])
    probe = driven.attempt(route=route)
    assert (probe.endpoint.id, probe.probe) == ("b", True)
    driven.done(probe, AttemptResult.SUCCESS, 0.01)
    driven.wait(0.2, heard=["a", "b", "c"])
    assert ids(driven, route) == {"b", "c"}


def test_where_those_that_are_proven_are_full_the_others_take_it() -> None:
    driven = Driven(policies=Policies(requests_per_endpoint=2))
    driven.seen(holding("a", b32=0.0), holding("b", b32=1.0))
    route = shaped(driven, "b32")
    taken = [driven.attempt(route=route).endpoint.id for _ in range(4)]
    assert taken == ["b", "b", "a", "a"]
    assert driven.nobody(route=route).reason is Reason.AT_LIMIT


def test_a_retry_goes_to_another_proven_one_first() -> None:
    driven = fleet()
    route = shaped(driven, "b32")
    first = driven.attempt(route=route)
    again = driven.attempt(tried=first.endpoint, route=route)
    assert {first.endpoint.id, again.endpoint.id} == {"b", "c"}
    driven.gone(again.endpoint.id)
    assert driven.attempt(tried=first.endpoint, route=route).endpoint.id == "a"


def test_another_configuration_has_them_made_again() -> None:
    driven = fleet()
    before, generation = shaped(driven, "b32"), driven.cluster.generation
    driven.cluster.configure(Policies(), [ModelPolicy("m", idempotent=True)], driven.now)
    assert driven.cluster.generation > generation
    after = shaped(driven, "b32")
    assert after is not before
    assert after.policy.idempotent
    assert ids(driven, after) == {"b", "c"}


def test_requests_of_a_class_wait_in_their_model_s_queue() -> None:
    driven = fleet()
    route, none = shaped(driven, "b32"), NoCandidate(Reason.AT_LIMIT, 1.0, "others wait")
    ids(driven, route)
    driven.cluster.hold_back(driven.route(), none)
    assert driven.nobody(route=route) is none
    assert driven.nobody(route=shaped(driven, "b1")) is none, "one that is asked for only now"
    driven.cluster.let_in(driven.route(), counted=False)
    assert ids(driven, route) == {"b", "c"}
