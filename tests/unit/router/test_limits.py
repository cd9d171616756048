"""As much in flight at one endpoint as may be, and no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.endpoint import NO_LIMIT
from router.model import PeerObserved, Tick
from router.outcomes import AttemptResult, Outcome, Reason
from router.policy import BreakerPolicy, ModelPolicy, Policies
from router.routes import Attempt, NoCandidate
from tests.support.fleet import Driven, observation, only, record

OK = AttemptResult.SUCCESS
LIMITED = Policies(requests_per_endpoint=3)


def fleet(ids: str = "ab", policies: Policies = LIMITED) -> Driven:
    driven = Driven(policies=policies)
    driven.seen(*(record(id_) for id_ in ids))
    return driven


def in_flight(driven: Driven) -> dict[str, int]:
    return {id_: endpoint.in_flight for id_, endpoint in driven.cluster.endpoints.items()}


def test_a_full_endpoint_is_passed_over_while_others_have_room() -> None:
    driven = fleet("abc")
    for endpoint in driven.cluster.endpoints.values():
        only(endpoint).latency.ewma_ms = {"a": 1.0, "b": 1000.0, "c": 1000.0}[endpoint.id]  # "a" is always preferred
    attempts = [driven.attempt() for _ in range(9)]
    assert in_flight(driven) == {"a": 3, "b": 3, "c": 3}
    assert driven.cluster.endpoints["a"].passed_over > 0
    driven.done(attempts[0], OK)
    assert driven.attempt().endpoint is attempts[0].endpoint


def test_when_all_are_full_the_request_is_refused_at_once() -> None:
    driven = fleet()
    attempts = [driven.attempt() for _ in range(6)]
    nobody = driven.nobody()
    assert nobody == NoCandidate(
        Reason.AT_LIMIT, 1.0, "m: all 2 that could take it are at their limit (limits.requests_per_endpoint: 3)"
    )
    assert nobody.outcome is Outcome.OVERLOADED
    assert in_flight(driven) == {"a": 3, "b": 3}
    driven.done(attempts[0], OK)
    driven.attempt()
    assert driven.nobody().reason is Reason.AT_LIMIT


def test_other_reasons_are_no_overload() -> None:
    driven = Driven()
    assert driven.nobody().outcome is Outcome.NO_CANDIDATE


def test_a_retry_finds_the_others_full() -> None:
    driven = fleet()
    first = driven.attempt()
    others = [driven.attempt(first.endpoint) for _ in range(3)]
    assert {attempt.endpoint.id for attempt in others} == set("ab") - {first.endpoint.id}
    assert driven.nobody(first.endpoint).reason is Reason.AT_LIMIT


def test_one_that_pushed_back_has_a_limit_too() -> None:
    driven = fleet("a")
    driven.done(driven.attempt(), AttemptResult.BUSY, retry_after_s=5.0)
    for _ in range(3):
        driven.attempt()
    assert driven.nobody().reason is Reason.AT_LIMIT


def test_a_probe_waits_for_room() -> None:
    driven = fleet("a")
    attempts = [driven.attempt() for _ in range(3)]
    driven.now += 0.1
    driven.done(attempts.pop(), AttemptResult.CONNECT_REFUSED)
    attempts += [
        Attempt(only(attempts[0].endpoint), attempts[0].route, driven.now)  # one that the cluster does not know of
    ]
    attempts[0].endpoint.in_flight += 1
    driven.wait(3.0, heard="a")
    assert driven.nobody().reason is Reason.QUARANTINED
    driven.done(attempts[0], AttemptResult.CANCELLED)
    assert driven.attempt().probe


def test_without_a_limit_there_is_none() -> None:
    driven = fleet("a", Policies())
    for _ in range(10_000):
        driven.attempt()
    assert driven.cluster.endpoints["a"].limit == NO_LIMIT


def test_another_limit_holds_at_once() -> None:
    driven = fleet("a")
    attempts = [driven.attempt() for _ in range(3)]
    driven.cluster.configure(Policies(requests_per_endpoint=4), [ModelPolicy("m")], driven.now)
    attempts.append(driven.attempt())
    driven.cluster.configure(Policies(requests_per_endpoint=1), [ModelPolicy("m")], driven.now)
    for attempt in attempts:
        assert driven.nobody().reason is Reason.AT_LIMIT
        driven.done(attempt, OK)
    driven.attempt()
    driven.nobody()


# --- connections ------------------------------------------------------------------------------------------------------


def again(driven: Driven, attempt: Attempt) -> Attempt | NoCandidate:
    return driven.cluster.choose_again(attempt, driven.now, driven.rng)


def test_a_pool_without_connections_counts_as_full() -> None:
    driven = fleet("ab", Policies())
    running = driven.to("a")
    second = again(driven, driven.to("a"))
    assert isinstance(second, Attempt)
    assert second.endpoint.id == "b"
    assert in_flight(driven) == {"a": 1, "b": 1}
    assert set(driven.ids(50)) == {"b"}
    nobody = again(driven, second)
    assert isinstance(nobody, NoCandidate)
    assert nobody.detail == "m: all 2 that could take it are at their limit (limits.connections_per_endpoint)"
    driven.done(running, OK)
    assert driven.attempt().endpoint.id == "a"  # something ended there: it is worth another look


def test_over_http1_the_limit_on_connections_is_one_on_requests() -> None:
    driven = fleet("ab", Policies(requests_per_endpoint=3, connections_per_endpoint=2))
    driven.seen(replace(record("g", address="grpc://g:1"), protocol="grpc"))
    for _ in range(4):
        driven.attempt()
    assert in_flight(driven) == {"a": 2, "b": 2, "g": 0}
    assert driven.nobody().detail == "m: all 2 that could take it are at their limit (limits.connections_per_endpoint)"
    assert driven.cluster.endpoints["g"].limit == 3  # its calls share connections
    driven.cluster.configure(Policies(requests_per_endpoint=2, connections_per_endpoint=9), [], driven.now)
    assert driven.nobody().detail == "m: all 2 that could take it are at their limit (limits.requests_per_endpoint: 2)"
    driven.cluster.configure(Policies(connections_per_endpoint=3), [], driven.now)
    driven.attempt()


def test_a_pool_that_something_else_keeps_full_is_looked_at_again() -> None:
    driven = fleet("a", Policies())
    assert isinstance(again(driven, driven.attempt()), NoCandidate)
    assert driven.nobody().reason is Reason.AT_LIMIT
    driven.now += 0.2
    driven.apply(Tick())
    driven.attempt()


@pytest.mark.parametrize("half_open", [False, True])
def test_choosing_again_comes_to_an_end_whatever_is_due(half_open: bool) -> None:
    """Also where a table is due, and where what is given back is the last trial of a breaker."""
    policies = Policies(breaker=BreakerPolicy(minimum_calls=1, half_open_calls=1, open_s=1.0))
    driven = fleet("a", policies)
    if half_open:
        driven.done(driven.attempt(), AttemptResult.SERVER_ERROR)
    driven.wait(2.0, heard="a", tick=False)
    assert only(driven.cluster.endpoints["a"]).breaker.blocks is half_open
    attempt = driven.attempt()
    assert attempt.probe is half_open
    assert isinstance(again(driven, attempt), NoCandidate)
    assert in_flight(driven) == {"a": 0}
    driven.wait(0.2, heard="a")
    assert driven.attempt().probe is half_open


# --- what people see --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policies", [LIMITED, Policies(connections_per_endpoint=3)])
def test_an_explanation_says_who_is_full(policies: Policies) -> None:
    driven = fleet(policies=policies)
    for _ in range(3):
        driven.to("a")
    rows = {row.endpoint: row for row in driven.cluster.explain(driven.route(), driven.now, driven.rng).rows}
    assert (rows["a"].reason, rows["a"].share, rows["a"].in_flight) == (Reason.AT_LIMIT, 0.0, 3)
    assert (rows["b"].reason, rows["b"].share) == (None, 1.0)


@pytest.mark.parametrize("policies", [LIMITED, Policies(connections_per_endpoint=3)])
@pytest.mark.parametrize(("counts", "full"), [((3, 3), True), ((3, 2), False), ((4, 3), True)])
def test_the_control_process_goes_by_what_the_others_report(
    policies: Policies, counts: tuple[int, int], full: bool
) -> None:
    driven = fleet("a", policies)
    for source, count in enumerate(counts):
        driven.apply(PeerObserved(source, (observation("a", count, None, (), 0, 0),), driven.now))
    (row,) = driven.cluster.explain(driven.route(), driven.now, driven.rng).rows
    assert (row.reason is Reason.AT_LIMIT) is full
    driven.attempt()  # its own requests are another matter
