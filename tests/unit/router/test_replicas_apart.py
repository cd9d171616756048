"""An endpoint that holds several model versions: what is measured of one, and its breaker, are not the others'."""

from __future__ import annotations

import pytest

from router.breaker import GuardState
from router.endpoint import Candidate
from router.model import WHOLE, EjectCause, EndpointEjected, EndpointReturned, PeerObserved, Replica
from router.outcomes import AttemptResult, Reason
from router.policy import BreakerPolicy, ModelPolicy, Policies
from router.routes import Attempt
from tests.support.fleet import Driven, record

OK, FAILED, REFUSED = AttemptResult.SUCCESS, AttemptResult.SERVER_ERROR, AttemptResult.CONNECT_REFUSED
MODELS = (ModelPolicy("m"), ModelPolicy("n"))


def fleet(*ids: str, policies: Policies | None = None) -> Driven:
    """Return endpoints that hold two versions of "m", and "n"."""
    driven = Driven(models=MODELS, policies=policies)
    replicas = (Replica("m", "1"), Replica("m", "2"), Replica("n", "1"))
    driven.seen(*(record(id_, replicas=replicas, static=True) for id_ in ids))
    return driven


def at(driven: Driven, model: str, version: str, id_: str = "a") -> Candidate:
    return driven.cluster.endpoints[id_].candidates[model, version, WHOLE]


def ask(driven: Driven, model: str, version: str, result: AttemptResult, times: int = 1, ms: float = 0.0) -> None:
    for _ in range(times):
        driven.done(driven.attempt(route=driven.route(model, version)), result, ms / 1000)


def test_what_one_version_takes_says_nothing_of_another() -> None:
    driven = fleet("a")
    ask(driven, "m", "1", OK, ms=10)
    ask(driven, "m", "2", OK, ms=1000)
    driven.wait(1.5)
    assert at(driven, "m", "1").latency.ewma_ms == pytest.approx(10, rel=0.1)
    assert at(driven, "m", "2").latency.ewma_ms == pytest.approx(1000, rel=0.1)
    assert at(driven, "m", "1").p95_ms == pytest.approx(10, rel=0.06)
    assert at(driven, "m", "2").p95_ms == pytest.approx(1000, rel=0.06)
    assert at(driven, "n", "1").p95_ms is None
    assert at(driven, "n", "1").latency.ewma_ms == 0


def test_the_route_of_all_versions_prefers_the_quick_one() -> None:
    driven = fleet("a")
    at(driven, "m", "1").latency.ewma_ms, at(driven, "m", "2").latency.ewma_ms = 10.0, 1000.0
    versions = [driven.attempt(route=driven.route("m")) for _ in range(40)]
    for attempt in versions:
        driven.done(attempt, AttemptResult.CANCELLED)
    assert {attempt.endpoint.id for attempt in versions} == {"a"}
    assert sum(attempt.candidate.version == "1" for attempt in versions) > 20


def test_an_endpoint_that_is_bad_for_one_version_goes_on_with_its_others() -> None:
    driven = fleet("a")
    ask(driven, "m", "1", FAILED, 20)
    (event,) = driven.shared
    assert isinstance(event, EndpointEjected)
    assert (event.cause, event.until, event.model, event.version) == (EjectCause.BREAKER, driven.now + 60, "m", "1")
    assert driven.nobody(route=driven.route("m", "1")).reason is Reason.BREAKER_OPEN
    ask(driven, "m", "2", OK, 30)
    ask(driven, "n", "1", OK, 30)
    versions = {driven.attempt(route=driven.route("m")).candidate.version for _ in range(30)}
    assert versions == {"2"}
    states = {key[:2]: each.breaker.state.value for key, each in driven.cluster.endpoints["a"].candidates.items()}
    assert states == {("m", "1"): "open", ("m", "2"): "closed", ("n", "1"): "closed"}


def test_a_version_in_trial_leaves_the_others_their_quick_way() -> None:
    policies = Policies(breaker=BreakerPolicy(minimum_calls=2, open_s=1, half_open_calls=2))
    driven = fleet("a", policies=policies)
    ask(driven, "m", "1", FAILED, 2)
    driven.wait(1.1)
    trials = [driven.attempt(route=driven.route("m", "1")) for _ in range(2)]
    assert all(trial.probe for trial in trials)
    assert at(driven, "m", "1").most == -1
    other = driven.attempt(route=driven.route("n"))
    assert not other.probe
    assert at(driven, "n", "1").most > 0
    driven.done(other, FAILED)  # says nothing of the trials
    assert at(driven, "m", "1").breaker.state is GuardState.HALF_OPEN
    for trial in trials:
        driven.done(trial, OK)
    assert driven.shared[-1] == EndpointReturned("a", EjectCause.BREAKER, driven.now, "m", "1")
    assert at(driven, "m", "1").most > 0


def test_a_quarantine_is_for_all_that_the_endpoint_holds() -> None:
    driven = fleet("a", "b")
    ask(driven, "m", "1", REFUSED)
    (event,) = driven.shared
    assert isinstance(event, EndpointEjected)
    assert (event.cause, event.model) == (EjectCause.QUARANTINE, "")
    for model, version in (("m", "1"), ("m", "2"), ("n", "1"), ("m", "")):
        picked = {driven.attempt(route=driven.route(model, version)).endpoint.id for _ in range(20)}
        assert len(picked) == 1
        assert picked != {event.id}


def test_siblings_are_told_of_each_version_apart() -> None:
    driven, sibling = fleet("a"), fleet("a")
    ask(driven, "m", "1", OK, 5, ms=10)
    ask(driven, "m", "2", FAILED, 3, ms=10)
    (told,) = driven.cluster.observe(driven.now)
    assert [(seen.model, seen.version, seen.successes, seen.failures) for seen in told.seen] == [
        ("m", "1", 5, 0),
        ("m", "2", 0, 3),
    ]
    sibling.now = driven.now
    sibling.apply(PeerObserved(1, (told,), driven.now))
    assert at(sibling, "m", "1").known_ewma_ms() == pytest.approx(10)
    assert at(sibling, "m", "2").known_ewma_ms() == pytest.approx(10)  # slower at least than that
    assert at(sibling, "n", "1").known_ewma_ms() is None
    assert at(sibling, "m", "2").breaker.calls.totals(sibling.now) == (0, 3)
    assert at(sibling, "m", "1").breaker.calls.totals(sibling.now) == (5, 0)
    sibling.wait(7)
    assert at(sibling, "m", "1").known_ewma_ms() is None  # the sibling has fallen silent


def test_a_replica_that_left_is_moved_by_nothing() -> None:
    driven = fleet("a")
    running = [driven.attempt(route=driven.route("m", "2")) for _ in range(30)]
    gone = running[0].candidate
    driven.seen(record("a", replicas=(Replica("m", "1"),), static=True))
    for attempt in running:
        assert driven.done(attempt, FAILED) == ()
    assert gone.gone
    assert gone.breaker.state is GuardState.CLOSED
    assert driven.cluster.endpoints["a"].in_flight == 0
    driven.seen(record("a", replicas=(Replica("m", "1"), Replica("m", "2")), static=True))
    again = driven.attempt(route=driven.route("m", "2"))
    assert isinstance(again, Attempt)
    assert again.candidate is not gone


def test_a_full_endpoint_is_full_for_all_its_versions() -> None:
    driven = fleet("a", policies=Policies(requests_per_endpoint=2))
    for model in ("m", "n"):
        driven.attempt(route=driven.route(model))
    for model, version in (("m", "1"), ("m", "2"), ("n", "1")):
        assert driven.nobody(route=driven.route(model, version)).reason is Reason.AT_LIMIT
