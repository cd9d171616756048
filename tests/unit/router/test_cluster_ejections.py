"""Who is out and since when: quarantine and breaker, the way back, and what siblings make of each other's word."""

from __future__ import annotations

import pytest

from router.model import (
    BreakerRule,
    EjectCause,
    EndpointEjected,
    EndpointHeld,
    EndpointReturned,
    Evidence,
    PeerObserved,
)
from router.outcomes import AttemptResult, Reason
from router.routes import NoCandidate
from tests.support.fleet import Driven, observation, only, pair, record

OK = AttemptResult.SUCCESS
REFUSED = AttemptResult.CONNECT_REFUSED
FAILED = AttemptResult.SERVER_ERROR


# --- quarantine ------------------------------------------------------------------------------------------------------


def test_a_refused_connection_quarantines_at_once_and_siblings_hear_of_it() -> None:
    driven = pair()
    driven.done(driven.to("a"), REFUSED)
    assert driven.ids() == {"b": 300}
    (event,) = driven.shared
    assert isinstance(event, EndpointEjected)
    assert (event.id, event.cause, event.level, event.at) == ("a", EjectCause.QUARANTINE, 1, driven.now)
    assert 0.8 <= event.until - driven.now <= 1.0


def test_routable_tells_what_a_request_would_find_and_begins_nothing() -> None:
    driven = pair()
    assert driven.cluster.routable(driven.now)
    for name in ("a", "b"):
        driven.done(driven.to(name), REFUSED)
    assert not driven.cluster.routable(driven.now)
    driven.wait(1.5)
    assert driven.cluster.routable(driven.now)  # a probe is due
    assert driven.cluster.routable(driven.now)  # and still is
    assert all(endpoint.in_flight == 0 for endpoint in driven.cluster.endpoints.values())
    assert driven.attempt().probe


def test_a_broken_connection_quarantines_unless_nobody_else_is_left() -> None:
    driven = pair()
    driven.done(driven.to("a"), AttemptResult.RESET)
    assert driven.ids() == {"b": 300}
    driven.done(driven.to("b"), AttemptResult.CUT)
    assert driven.ids() == {"b": 300}
    driven.done(driven.to("b"), REFUSED)
    assert isinstance(driven.choose(), NoCandidate)


def test_after_quarantine_exactly_one_probe_goes_first_and_its_success_returns_it() -> None:
    driven = pair()
    driven.done(driven.to("a"), REFUSED)
    driven.wait(1.0, heard=("a", "b"), tick=False)
    probe = driven.attempt()
    assert probe.endpoint.id == "a"
    assert probe.probe
    assert driven.ids(100) == {"b": 100}
    driven.done(probe, OK, 0.01)
    assert driven.shared[-1] == EndpointReturned("a", EjectCause.QUARANTINE, driven.now)
    driven.wait(0.2, heard=("a", "b"))
    assert set(driven.ids()) == {"a", "b"}


def test_a_failed_probe_doubles_and_a_cancelled_one_is_made_again() -> None:
    driven = pair()
    driven.done(driven.to("a"), REFUSED)
    driven.wait(1.0, heard=("a", "b"))
    driven.done(driven.attempt(), AttemptResult.CANCELLED)
    probe = driven.attempt()
    assert probe.endpoint.id == "a"
    driven.done(probe, REFUSED)
    event = driven.shared[-1]
    assert isinstance(event, EndpointEjected)
    assert event.level == 2
    assert 1.6 <= event.until - driven.now <= 2.0
    assert driven.ids(100) == {"b": 100}


def test_a_retry_does_not_probe_while_others_are_there() -> None:
    driven = Driven()
    driven.seen(*(record(id_) for id_ in "abc"))
    driven.done(driven.to("a"), REFUSED)
    driven.wait(1.0, heard="abc")
    tried = driven.cluster.endpoints["b"]
    assert {driven.attempt(tried).endpoint.id for _ in range(50)} == {"c"}


def test_a_retry_probes_where_nobody_else_is_left() -> None:
    driven = pair()
    driven.done(driven.to("a"), REFUSED)
    driven.wait(1.0, heard=("a", "b"), tick=False)
    b = driven.cluster.endpoints["b"]
    probe = driven.attempt(b)
    assert probe.endpoint.id == "a"
    assert probe.probe


def test_a_retry_never_probes_the_endpoint_that_it_comes_from() -> None:
    driven = Driven()
    driven.seen(record("a"))
    driven.done(driven.attempt(), REFUSED)
    driven.wait(1.0, heard=("a",))
    assert driven.nobody(driven.cluster.endpoints["a"]).reason is Reason.QUARANTINED
    assert driven.attempt().probe


def test_a_quarantined_endpoint_that_went_stale_is_not_probed() -> None:
    driven = pair()
    driven.wait(4.5, heard=("b",))
    driven.done(driven.to("a"), REFUSED)
    driven.now += 0.15
    driven.ids(5)  # the table is new now, and a is still fresh
    driven.now += 0.9
    driven.heard("b")
    assert driven.ids(50) == {"b": 50}


def test_an_attempt_from_before_the_ejection_says_nothing_new_though_its_body_was_sent_after_it() -> None:
    driven = pair()
    slow = driven.to("a")
    driven.done(driven.to("a"), REFUSED)
    driven.wait(1.0, heard=("a", "b"))
    driven.done(driven.attempt(), OK, 0.01)
    assert not slow.endpoint.quarantine.active
    slow.started = driven.now
    driven.done(slow, AttemptResult.RESET, 0.01)
    assert not slow.endpoint.quarantine.active


def test_a_trial_of_an_earlier_half_open_time_does_not_count_though_its_body_was_sent_in_this_one() -> None:
    driven = pair()
    breaker = only(driven.cluster.endpoints["a"]).breaker
    break_(driven)
    driven.wait(60.2, heard=("a", "b"))
    slow = driven.to("a")
    driven.apply(EndpointEjected("a", EjectCause.BREAKER, driven.now + 1, 1, driven.now, "m", "1"))
    driven.wait(1.2, heard=("a", "b"))
    trial = driven.to("a")
    assert breaker.trials == 1
    slow.started = driven.now
    driven.done(slow, OK, 0.01)
    assert (breaker.trials, breaker.passed) == (1, 0)
    driven.done(trial, OK, 0.01)
    assert (breaker.trials, breaker.passed) == (0, 1)


def test_a_sole_endpoint_is_tried_again_after_one_base_step_however_often_it_failed() -> None:
    driven = Driven()
    driven.seen(record("a"))
    for _ in range(6):
        driven.done(driven.attempt(), REFUSED)
        none = driven.nobody()
        assert none.reason is Reason.QUARANTINED
        assert 0 < none.retry_after_s <= 1.0
        driven.wait(1.0, heard=("a",), tick=False)
    assert driven.cluster.endpoints["a"].quarantine.level == 6


def test_while_a_sole_endpoint_is_probed_the_others_are_told_to_come_back() -> None:
    driven = Driven()
    driven.seen(record("a"))
    driven.done(driven.attempt(), REFUSED)
    driven.wait(1.0, heard=("a",))
    driven.attempt()
    assert driven.nobody().retry_after_s == 1.0


def test_siblings_decide_for_each_other() -> None:
    first, second = pair(), pair()
    first.done(first.to("a"), REFUSED)
    second.now = first.now
    second.apply(*first.shared)
    assert second.shared == []
    assert second.ids() == {"b": 300}
    first.wait(1.0, heard=("a", "b"))
    first.done(first.attempt(), OK)
    second.now = first.now
    second.heard("a", "b")
    second.apply(first.shared[-1])
    second.wait(0.2, heard=("a", "b"))
    assert set(second.ids()) == {"a", "b"}


def test_news_of_an_earlier_process_or_of_nobody_is_passed_over() -> None:
    driven = pair()
    driven.wait(1, heard=("a", "b"))
    driven.seen(record("a", epoch="b"))
    before = driven.now - 0.5
    for cause in EjectCause:
        driven.apply(EndpointEjected("a", cause, driven.now + 60, 1, before, "m", "1"))
        driven.apply(EndpointReturned("a", cause, before, "m", "1"))
        driven.apply(EndpointEjected("nobody", cause, driven.now + 60, 1, driven.now, "m", "1"))
        driven.apply(EndpointReturned("nobody", cause, driven.now, "m", "1"))
    for other in (("other", "1"), ("m", "2")):  # what it does not offer
        driven.apply(EndpointEjected("a", EjectCause.BREAKER, driven.now + 60, 1, driven.now, *other))
        driven.apply(EndpointReturned("a", EjectCause.BREAKER, driven.now, *other))
    driven.apply(PeerObserved(1, (observation("nobody", 1, None, (), 0, 0),), driven.now))
    driven.apply(EndpointHeld("nobody", False, driven.now))
    driven.gone("nobody")
    driven.wait(0.2, heard=("a", "b"))
    assert set(driven.ids()) == {"a", "b"}


def test_a_new_process_under_an_old_id_starts_clean() -> None:
    driven = pair()
    late = driven.to("a")
    driven.done(driven.to("a"), REFUSED)
    old = driven.cluster.endpoints["a"]
    driven.seen(record("a", epoch="b"))
    new = driven.cluster.endpoints["a"]
    assert new is not old
    assert driven.cluster.departed == [old]
    driven.done(late, REFUSED)
    assert old.in_flight == 0
    assert not new.quarantine.active
    driven.wait(0.2, heard=("a", "b"))
    assert set(driven.ids()) == {"a", "b"}


# --- breaker ---------------------------------------------------------------------------------------------------------


def break_(driven: Driven, id_: str = "a") -> None:
    for _ in range(20):
        driven.done(driven.to(id_), FAILED)


def test_the_breaker_opens_closes_and_tells_siblings() -> None:
    driven = pair()
    break_(driven)
    (event,) = driven.shared
    assert event == EndpointEjected(
        "a", EjectCause.BREAKER, driven.now + 60, 1, driven.now, "m", "1", BreakerRule.GENERAL, Evidence(20, 20, 0, 0)
    )
    assert driven.ids() == {"b": 300}
    driven.wait(60.2, heard=("a", "b"), tick=False)
    trials = [driven.to("a") for _ in range(6)]
    assert all(trial.probe for trial in trials)
    for trial in trials:
        driven.done(trial, OK)
    assert driven.shared[-1] == EndpointReturned("a", EjectCause.BREAKER, driven.now, "m", "1")
    driven.wait(0.2, heard=("a", "b"))
    assert driven.ids()["a"] > 50


def test_half_open_lets_ten_through() -> None:
    driven = pair()
    break_(driven)
    driven.wait(60.2, heard=("a", "b"))
    attempts = [driven.attempt() for _ in range(300)]
    assert sum(attempt.endpoint.id == "a" for attempt in attempts) == 10
    for attempt in attempts:
        driven.done(attempt, FAILED if attempt.endpoint.id == "a" else OK)
    assert driven.cluster.endpoints["a"].in_flight == 0
    assert driven.ids() == {"b": 300}


def test_a_breaker_that_a_sibling_closed_is_closed_here() -> None:
    driven = pair()
    driven.apply(EndpointEjected("a", EjectCause.BREAKER, driven.now + 60, 1, driven.now, "m", "1"))
    driven.wait(1, heard=("a", "b"))
    assert driven.ids(50) == {"b": 50}
    driven.apply(EndpointReturned("a", EjectCause.BREAKER, driven.now, "m", "1"))
    driven.wait(0.2, heard=("a", "b"))
    assert set(driven.ids(50)) == {"a", "b"}


def test_a_breaker_goes_half_open_on_time_though_the_table_is_new() -> None:
    driven = pair()
    driven.apply(EndpointEjected("a", EjectCause.BREAKER, driven.now + 0.35, 1, driven.now, "m", "1"))
    driven.now += 0.3
    driven.ids(5)
    driven.now += 0.06
    driven.ids(5)
    driven.now += 0.1
    assert driven.to("a").probe


def test_client_errors_and_back_pressure_never_open_it() -> None:
    driven = Driven()
    driven.seen(record("a"))
    for result in (AttemptResult.CLIENT_ERROR, AttemptResult.BUSY, AttemptResult.CANCELLED):
        for _ in range(100):
            driven.done(driven.attempt(), result)
    assert driven.shared == []


def test_failures_that_siblings_saw_count_too() -> None:
    driven = pair()
    driven.apply(PeerObserved(1, (observation("a", 0, None, (), 0, 19),), driven.now))
    assert driven.shared == []
    driven.apply(PeerObserved(2, (observation("a", 0, None, ((40, 2),), 1, 1),), driven.now))
    (event,) = driven.shared
    assert isinstance(event, EndpointEjected)
    assert driven.ids() == {"b": 300}


def test_where_all_breakers_are_open_the_caller_hears_when_to_come_back() -> None:
    driven = Driven()
    driven.seen(record("a"))
    break_(driven)
    none = driven.nobody()
    assert none.reason is Reason.BREAKER_OPEN
    assert none.retry_after_s == pytest.approx(60, abs=0.1)


def test_guards_are_all_ejections_that_have_not_ended() -> None:
    driven = Driven()
    driven.seen(record("a"), record("b"))
    assert driven.cluster.guards() == ()
    driven.done(driven.to("a"), AttemptResult.CONNECT_REFUSED)
    began, until = driven.now, driven.cluster.endpoints["a"].quarantine.until
    waiting = (EndpointEjected("a", EjectCause.QUARANTINE, until, 1, began),)
    assert driven.cluster.guards() == waiting
    driven.wait(40, heard="ab")
    assert driven.cluster.guards() == waiting  # it waits for a probe
    driven.apply(EndpointEjected("b", EjectCause.BREAKER, driven.now + 60, 1, driven.now, "m", "1"))
    probe = driven.attempt()
    assert {(event.id, event.cause) for event in driven.cluster.guards()} == {
        ("a", EjectCause.QUARANTINE),
        ("b", EjectCause.BREAKER),
    }
    driven.done(probe, AttemptResult.SUCCESS)
    assert [event.id for event in driven.cluster.guards()] == ["b"]
