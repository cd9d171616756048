"""The decisions: who is chosen, who is out and since when, what is learned, what is said to siblings."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

import pytest

from router.cluster import Cluster, no_jitter
from router.model import (
    BreakerRule,
    EjectCause,
    EndpointEjected,
    EndpointHeld,
    EndpointReturned,
    EndpointSeen,
    Evidence,
    Observation,
    PeerObserved,
    State,
    StoreMode,
    Tick,
)
from router.outcomes import AttemptResult, Reason
from router.policy import BalancerName, ModelPolicy, Policies, QuarantinePolicy, RampPolicy
from router.protocols import Candidate, Choosable, Rng
from router.retry import RetryDenied
from router.routes import Attempt, NoCandidate
from tests.support.fleet import Driven, observation, only, record

OK = AttemptResult.SUCCESS
REFUSED = AttemptResult.CONNECT_REFUSED
FAILED = AttemptResult.SERVER_ERROR


def pair() -> Driven:
    driven = Driven()
    driven.seen(record("a"), record("b"))
    return driven


# --- the law --------------------------------------------------------------------------------------------------------


def test_a_warm_endpoint_is_chosen_and_counted() -> None:
    driven = Driven()
    driven.seen(record("a"))
    attempt = driven.attempt()
    assert attempt.endpoint is driven.cluster.endpoints["a"]
    assert attempt.endpoint.in_flight == 1
    assert attempt.route.key == "m"
    assert attempt.started == driven.now
    assert not attempt.probe


def test_in_flight_is_released_exactly_once() -> None:
    driven = Driven()
    driven.seen(record("a"))
    attempt = driven.attempt()
    driven.done(attempt, OK, 0.01)
    assert driven.done(attempt, REFUSED) == ()
    assert attempt.endpoint.in_flight == 0
    assert not attempt.endpoint.quarantine.active


def test_draws_follow_the_weights_where_waits_are_equal() -> None:
    driven = Driven()
    driven.seen(record("a", warmth=1.0), record("b", warmth=0.0))
    share = driven.shares()["a"]
    assert share > 0.6
    assert driven.ids(2000)["a"] / 2000 == pytest.approx(share, abs=0.04)


def test_the_lowest_expected_wait_wins_of_those_drawn() -> None:
    driven = pair()
    a, b = (only(driven.cluster.endpoints[id_]) for id_ in "ab")
    a.latency.ewma_ms, b.latency.ewma_ms = 100.0, 10.0
    assert driven.ids(100) == {"b": 100}
    b.endpoint.in_flight = 8
    assert driven.ids(1000)["a"] / 1000 == pytest.approx(0.5, abs=0.06)  # about equal, 100 and 90: the first drawn
    b.endpoint.in_flight = 7
    assert driven.ids(100) == {"b": 100}
    b.endpoint.in_flight = 11
    assert driven.ids(100) == {"a": 100}


def test_the_lowest_of_many_wins_whoever_was_drawn_first() -> None:
    driven = Driven()
    driven.seen(*(record(f"e{index}") for index in range(8)))
    for index, endpoint in enumerate(driven.cluster.endpoints.values()):
        only(endpoint).latency.ewma_ms = 10.0 * 2**index
    counts = driven.ids(2000)
    assert counts["e0"] > 600  # it is in about half of all hands
    assert [counts.get(f"e{index}", 0) for index in range(8)] == sorted(counts.values(), reverse=True) + [0] * (
        8 - len(counts)
    )


@pytest.mark.parametrize("first", ["a", "b"])
def test_of_about_equal_waits_the_first_drawn_wins(first: str) -> None:
    driven = pair()
    driven.ids(1)
    table = driven.route().table
    assert table is not None
    size, hands = table
    number = next(index for index, hand in enumerate(hands) if hand[0].endpoint.id == first) / size
    for a_ms, b_ms in ((0.0, 0.0), (10.0, 10.0), (10.0, 9.2), (9.2, 10.0)):
        for id_, ms in (("a", a_ms), ("b", b_ms)):
            only(driven.cluster.endpoints[id_]).latency.ewma_ms = ms
        attempt = driven.cluster.choose(driven.route(), driven.now, lambda: number)
        assert isinstance(attempt, Attempt)
        assert attempt.endpoint.id == first
        driven.done(attempt, AttemptResult.CANCELLED)


def test_attempts_of_siblings_do_not_count_in_the_wait() -> None:
    """What they last said is a second old: everybody would leave, and then come back, at once."""
    driven = pair()
    driven.apply(PeerObserved(1, (observation("a", 50, None, (), 0, 0),), driven.now))
    assert driven.ids(1000)["b"] / 1000 == pytest.approx(0.5, abs=0.06)


def test_what_a_silent_sibling_said_is_forgotten() -> None:
    driven = pair()
    driven.apply(PeerObserved(1, (observation("a", 50, 12.0, (), 0, 0),), driven.now))
    driven.apply(PeerObserved(2, (observation("a", 3, 12.0, (), 0, 0),), driven.now + 4))
    assert driven.cluster.endpoints["a"].peers_in_flight == 53
    driven.wait(6.5, heard=("a", "b"))
    assert driven.cluster.endpoints["a"].peers_in_flight == 3


def test_an_unknown_ewma_is_the_siblings_or_else_the_median() -> None:
    driven = Driven()
    driven.seen(*(record(id_) for id_ in "abcd"))
    for id_, ewma_ms in (("a", 10.0), ("b", 20.0)):
        only(driven.cluster.endpoints[id_]).latency.ewma_ms = ewma_ms
    driven.apply(PeerObserved(1, (observation("c", 0, 90.0, (), 0, 0),), driven.now))
    driven.attempt()
    priors = {id_: next(iter(e.candidates.values())).prior_ms for id_, e in driven.cluster.endpoints.items()}
    assert priors == {"a": 10.0, "b": 20.0, "c": 90.0, "d": 20.0}


def test_the_ewma_follows_with_a_time_constant_of_two_seconds() -> None:
    driven = Driven()
    driven.seen(record("a"))
    latency = only(driven.cluster.endpoints["a"]).latency
    driven.done(driven.attempt(), OK, 0.1)
    assert latency.ewma_ms == pytest.approx(100)
    for ms, after_s, left in ((10, 0.5, 0.7788), (200, 0.8, 0.6703), (50, 0.9, 0.6376)):
        before = latency.ewma_ms
        driven.wait(after_s - ms / 1000, heard=("a",), tick=False)
        attempt = driven.attempt()
        driven.done(attempt, OK, ms / 1000)
        assert latency.ewma_ms == pytest.approx(ms + (before - ms) * left, rel=0.001)


def test_for_a_balancer_that_goes_by_peaks_it_jumps_to_them_and_decays_over_ten_seconds() -> None:
    driven = Driven(models=[ModelPolicy("m", balancer=BalancerName.PEAK_EWMA)])
    driven.seen(record("a"))
    latency = only(driven.cluster.endpoints["a"]).latency
    for ms, expected in ((10, 10.0), (100, 100.0)):
        attempt = driven.attempt()
        driven.done(attempt, OK, ms / 1000)
        assert latency.ewma_ms == pytest.approx(expected)
    attempt = driven.attempt()
    driven.wait(9.99, heard=("a",), tick=False)
    attempt.started = driven.now
    driven.done(attempt, OK, 0.01)
    assert latency.ewma_ms == pytest.approx(10 + 90 * 0.3679, rel=0.001)
    driven.cluster.configure(driven.cluster.policies, [ModelPolicy("m")], driven.now)
    assert not latency.peaks
    driven.cluster.configure(driven.cluster.policies, [ModelPolicy("m", balancer=BalancerName.PEAK_EWMA)], driven.now)
    assert latency.peaks


def test_the_first_samples_do_not_weigh_more_than_those_that_follow() -> None:
    driven = Driven()
    driven.seen(record("a"))
    latency = only(driven.cluster.endpoints["a"]).latency
    for ms in (500, *[10] * 20):
        driven.done(driven.attempt(), OK, ms / 1000)
    assert latency.ewma_ms > 400
    latency.settle(driven.now)
    assert latency.ewma_ms == pytest.approx(10, rel=0.06)
    driven.wait(5, heard=("a",))  # it is young no more
    for ms in (500, *[10] * 20):
        driven.done(driven.attempt(), OK, ms / 1000)
    before = latency.ewma_ms
    latency.settle(driven.now)
    assert latency.ewma_ms == before > 20


def test_idle_endpoints_drift_to_their_median_and_are_unknown_after_ten_seconds() -> None:
    """So who was slow is asked once more."""
    driven = Driven()
    driven.seen(record("a"))
    latency = only(driven.cluster.endpoints["a"]).latency
    for ms in (10, 10, 10, 500):
        driven.done(driven.attempt(), OK, ms / 1000)
    before = latency.ewma_ms
    assert before > 100
    driven.wait(4, heard=("a",))
    assert latency.ewma_ms == pytest.approx(10 + (before - 10) * 0.135, rel=0.05)
    driven.wait(7, heard=("a",))
    assert latency.ewma_ms == 0.0
    assert latency.p95_ms == pytest.approx(500, rel=0.06)
    driven.done(driven.attempt(), OK, 0.02)
    assert latency.ewma_ms == pytest.approx(20)
    driven.wait(70, heard=("a",))
    assert latency.ewma_ms == 0.0
    assert latency.p95_ms is None


@pytest.mark.parametrize(("answer_s", "known_s"), [(0.5, 10), (3.0, 30), (20.0, 60)])
def test_where_answers_take_long_it_is_known_for_ten_of_them_and_no_longer_than_the_window(
    answer_s: float, known_s: float
) -> None:
    driven = Driven()
    driven.seen(record("a"))
    latency = only(driven.cluster.endpoints["a"]).latency
    driven.done(driven.attempt(), OK, answer_s)
    driven.wait(known_s - 2, heard=("a",))
    assert latency.ewma_ms == pytest.approx(answer_s * 1000, rel=0.06)
    driven.wait(6, heard=("a",))
    assert latency.ewma_ms == 0.0


@pytest.mark.parametrize(
    ("result", "raises"),
    [
        (AttemptResult.SERVER_ERROR, True),
        (AttemptResult.HEAD_TIMEOUT, True),
        (AttemptResult.STREAM_IDLE, True),
        (AttemptResult.CANCELLED, False),
        (AttemptResult.CLIENT_ERROR, False),
        (AttemptResult.BUSY, False),
        (AttemptResult.CONNECT_TIMEOUT, False),
    ],
)
def test_what_did_not_succeed_can_only_say_slower(result: AttemptResult, raises: bool) -> None:
    driven = Driven()
    driven.seen(record("a"))
    latency = only(driven.cluster.endpoints["a"]).latency
    driven.done(driven.attempt(), OK, 0.05)
    driven.done(driven.attempt(), result, 0.001)
    assert latency.ewma_ms == pytest.approx(50)
    attempt = driven.attempt() if result is not AttemptResult.CONNECT_TIMEOUT else None
    if attempt is not None:
        driven.done(attempt, result, 1.0)
    assert latency.ewma_ms == pytest.approx(1000 if raises else 50)
    latency.settle(driven.now)
    assert latency.p95_ms == pytest.approx(50, rel=0.06)


def test_latency_counts_from_when_the_shell_says_the_request_had_been_sent() -> None:
    driven = Driven()
    driven.seen(record("a"))
    for result, after_s, expected_ms in ((OK, 0.01, 10), (FAILED, 0.02, 20), (OK, 0.03, 30 - 10 * exp(-2.03 / 2))):
        attempt = driven.attempt()
        driven.now += 2.0  # so long the caller took to send a body
        attempt.started = driven.now
        driven.done(attempt, result, after_s)
        assert only(driven.cluster.endpoints["a"]).latency.ewma_ms == pytest.approx(expected_ms)
        driven.heard("a")


def test_impossible_durations_do_no_harm() -> None:
    driven = Driven()
    driven.seen(record("a"))
    for after_s in (0.0, -5.0, 1e9):
        attempt = driven.attempt()
        attempt.started = driven.now - after_s
        driven.done(attempt, OK)
    latency = only(driven.cluster.endpoints["a"]).latency
    latency.settle(driven.now)
    assert latency.p95_ms == pytest.approx(1e8, rel=0.06)
    assert 1e-3 <= latency.ewma_ms <= 1e8


def test_slow_endpoints_lose_weight() -> None:
    driven = pair()
    for _ in range(40):
        attempt = driven.attempt()
        driven.cluster.done(attempt, OK, driven.now + (0.010 if attempt.endpoint.id == "a" else 0.100))
    driven.wait(2, heard=("a", "b"))
    assert driven.shares()["a"] == pytest.approx(0.825 / (0.825 + 0.575))


# --- out at once, in soon --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["draining", "cold", "held", "gone", "epoch", "sibling", "breaker", "version"])
def test_who_is_taken_out_is_not_chosen_again_even_without_a_tick(how: str) -> None:
    driven = pair()
    for id_, ewma_ms in (("a", 1.0), ("b", 100.0)):  # whenever it is drawn at all, it would win
        only(driven.cluster.endpoints[id_]).latency.ewma_ms = ewma_ms
    driven.ids(10)
    if how == "draining":
        driven.seen(record("a", draining=True))
    elif how == "cold":
        driven.seen(record("a", state=State.COLD))
    elif how == "held":
        driven.apply(EndpointHeld("a", True, driven.now))
    elif how == "gone":
        driven.gone("a")
    elif how == "epoch":
        driven.seen(record("a", epoch="b", state=State.LOADING))
    elif how == "sibling":
        driven.apply(EndpointEjected("a", EjectCause.QUARANTINE, driven.now + 4, 3, driven.now))
    elif how == "breaker":
        driven.apply(EndpointEjected("a", EjectCause.BREAKER, driven.now + 60, 1, driven.now, "m", "1"))
    else:
        driven.seen(record("a", model="other"))
    assert driven.ids() == {"b": 300}
    driven.now += 0.3
    driven.apply(Tick())
    assert driven.ids() == {"b": 300}


def test_stale_endpoints_are_not_chosen_and_come_back_when_heard() -> None:
    driven = pair()
    driven.ids(10)
    driven.wait(4.9, heard=("b",), tick=False)
    assert set(driven.ids()) == {"a", "b"}
    driven.wait(0.1, heard=("b",), tick=False)
    assert driven.ids() == {"b": 300}
    driven.heard("a", "nobody")
    driven.wait(0.3, heard=("a", "b"))
    assert set(driven.ids()) == {"a", "b"}


def test_older_endpoints_lose_weight() -> None:
    driven = pair()
    driven.wait(3.5, heard=("b",))
    assert driven.shares()["a"] == pytest.approx(0.5 / 1.5)


def test_the_first_candidate_is_chosen_at_once() -> None:
    driven = Driven()
    driven.seen(record("a", state=State.WARMING))
    assert driven.nobody().reason is Reason.NOT_WARM
    driven.seen(record("a"))
    assert driven.ids(3) == {"a": 3}


def test_more_candidates_come_within_the_interval_even_without_a_tick() -> None:
    driven = Driven()
    driven.seen(record("a"))
    driven.ids(3)
    driven.seen(record("b"))
    assert driven.ids() == {"a": 300}
    driven.now += 0.11
    assert set(driven.ids()) == {"a", "b"}


def test_where_all_of_the_table_is_out_the_others_are_found_at_once() -> None:
    driven = Driven()
    driven.seen(record("a"))
    driven.ids(3)
    driven.seen(record("b"))
    driven.seen(record("a", draining=True))
    assert driven.ids(3) == {"b": 3}


def test_many_out_and_one_left_is_found() -> None:
    driven = Driven()
    driven.seen(*(record(f"e{n:03}") for n in range(200)))
    driven.ids(10)
    for n in range(199):
        driven.apply(EndpointHeld(f"e{n:03}", True, driven.now))
    assert driven.ids(20) == {"e199": 20}


def test_tables_are_made_at_most_ten_times_a_second() -> None:
    made = 0
    driven = pair()
    route = driven.route()
    for _ in range(1000):
        before = route.built_at
        driven.now += 0.001
        driven.seen(record("a", free=driven.route().used))
        driven.attempt()
        driven.apply(Tick())
        made += route.built_at != before
    assert 9 <= made <= 11


def test_big_tables_are_made_seldomer_and_a_tick_does_a_bounded_share() -> None:
    driven = Driven()
    models = [f"m{n}" for n in range(5)]
    for model in models:
        driven.seen(*(record(f"{model}-{n:03}", model=model) for n in range(900)))
    for model in models:
        driven.attempt(route=driven.route(model))
    assert driven.route("m0").interval_s == pytest.approx(0.9)
    driven.now += 1.5
    heard = [f"{model}-{n:03}" for model in models for n in range(900)]
    driven.heard(*heard)
    driven.apply(Tick())
    assert sum(driven.route(model).built_at == driven.now for model in models) == 3
    driven.apply(Tick())
    assert sum(driven.route(model).built_at == driven.now for model in models) == 5


def test_unused_routes_cost_nothing() -> None:
    driven = pair()
    built = driven.route(version="1").built_at
    driven.wait(5, heard=("a", "b"))
    assert driven.route(version="1").built_at == built
    driven.attempt(route=driven.route(version="1"))


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


# --- nobody ----------------------------------------------------------------------------------------------------------


def test_nobody_serves_it() -> None:
    none = Driven().nobody()
    assert none.reason is Reason.NO_ENDPOINTS
    assert none.detail == "no endpoint serves m"
    assert none.retry_after_s == 1.0


def test_the_reason_is_the_one_that_most_share_and_the_detail_counts_all() -> None:
    driven = Driven()
    driven.seen(
        record("a", state=State.LOADING), record("b", state=State.COLD), record("c", draining=True), record("d")
    )
    driven.apply(EndpointHeld("d", True, driven.now))
    none = driven.nobody()
    assert none.reason is Reason.NOT_WARM
    assert none.detail == "m: none of 4 can be picked: 2 not_warm, 1 draining, 1 held"
    assert driven.nobody() is none
    driven.seen(record("b", draining=True), record("a", draining=True))
    assert driven.nobody().reason is Reason.DRAINING


def test_a_retry_without_another_endpoint_says_so() -> None:
    driven = Driven()
    driven.seen(record("a"))
    none = driven.nobody(driven.cluster.endpoints["a"])
    assert none.reason is Reason.ALREADY_TRIED
    assert "a" in none.detail
    driven.apply(EndpointHeld("a", True, driven.now))
    assert driven.nobody(driven.cluster.endpoints["a"]).reason is Reason.HELD


# --- retries ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_retry_is_asked_of_the_route_and_the_budget(idempotent: bool) -> None:
    driven = Driven(models=[ModelPolicy("m", idempotent=idempotent)])
    driven.seen(record("a"), record("b"))
    attempt = driven.attempt()
    driven.done(attempt, AttemptResult.RESET)
    verdict = driven.cluster.retry(
        attempt, AttemptResult.RESET, answered=False, replayable=True, tries=1, now=driven.now, rng=driven.rng
    )
    assert verdict.allowed is idempotent
    assert verdict.denied is (None if idempotent else RetryDenied.NOT_IDEMPOTENT)


def test_the_budget_counts_requests_not_retries() -> None:
    driven = pair()
    driven.ids(500)
    attempt = driven.attempt()
    allowed = 0
    for _ in range(300):
        verdict = driven.cluster.retry(
            attempt, REFUSED, answered=False, replayable=True, tries=1, now=driven.now, rng=driven.rng
        )
        allowed += verdict.allowed
        if verdict.allowed:
            driven.done(driven.attempt(attempt.endpoint), OK)
    assert allowed == 100


# --- what siblings are told ------------------------------------------------------------------------------------------


def test_observations_are_what_was_seen_since_the_last_call() -> None:
    driven = pair()
    assert driven.cluster.observe(driven.now) == ()
    first, second = driven.to("a"), driven.to("a")
    driven.done(first, OK, 0.010)
    (observed,) = driven.cluster.observe(driven.now)
    (seen,) = observed.seen
    assert (observed.id, observed.in_flight, seen.model, seen.version) == ("a", 1, "m", "1")
    assert (seen.successes, seen.failures) == (1, 0)
    assert seen.ewma_ms == pytest.approx(10)
    assert sum(count for _, count in seen.buckets) == 1
    assert driven.cluster.observe(driven.now) == (Observation("a", 1),)
    driven.done(second, AttemptResult.CANCELLED)
    assert driven.cluster.observe(driven.now) == (Observation("a", 0),)
    assert driven.cluster.observe(driven.now) == ()
    driven.done(driven.to("b"), AttemptResult.CLIENT_ERROR)
    driven.done(driven.to("b"), FAILED)
    (observed,) = driven.cluster.observe(driven.now)
    (seen,) = observed.seen
    assert (observed.id, seen.successes, seen.failures, seen.others, seen.buckets) == ("b", 0, 1, 1, ())


def test_latencies_travel_between_siblings_and_are_not_sent_on() -> None:
    first, second = pair(), pair()
    for _ in range(50):
        first.done(first.to("a"), OK, 0.04)
    second.apply(PeerObserved(1, first.cluster.observe(first.now), second.now))
    second.wait(1.5, heard=("a", "b"))
    assert only(second.cluster.endpoints["a"]).latency.p95_ms == pytest.approx(40, rel=0.06)
    assert second.cluster.observe(second.now) == ()


# --- configuration ---------------------------------------------------------------------------------------------------


def test_policies_reach_every_part() -> None:
    policies = Policies(quarantine=QuarantinePolicy(base_s=7, jitter_ratio=0), ramp=RampPolicy(duration_s=0))
    driven = Driven(policies=policies)
    driven.seen(record("a", warm_for_s=0), record("b"))
    assert driven.shares() == {"a": 0.5, "b": 0.5}
    driven.done(driven.to("a"), REFUSED)
    event = driven.shared[-1]
    assert isinstance(event, EndpointEjected)
    assert event.until == driven.now + 7


def test_a_cluster_without_rng_jitters_in_the_middle() -> None:
    from router.cluster import no_jitter

    assert no_jitter() == 0.5


class Vetoed:
    name = "vetoed"

    def __call__(self, candidate: Candidate, mode: StoreMode) -> Reason | None:
        return Reason.HELD if candidate.record.id == "a" else None


class ByName:
    name = "by_name"
    unit = "letter"
    observed = True

    def raw(self, candidate: Candidate) -> float | None:
        return float(ord(candidate.record.id))

    def __call__(self, candidates: Sequence[Candidate]) -> list[float | None]:
        return [1.0 if candidate.record.id == "c" else 0.5 for candidate in candidates]


class Last:
    def __init__(self, candidates: Sequence[Choosable], weights: Sequence[float], turn: int) -> None:
        self._last = candidates[-1]

    def draw(self, rng: Rng) -> list[Choosable]:
        return [self._last]


def test_filters_scorers_and_pickers_are_plug_ins() -> None:
    now = 1.0
    cluster = Cluster(Policies(), [ModelPolicy("m")], now, filters=[Vetoed()], scorers=[(ByName(), 2.0)], picker=Last)
    for id_ in "abc":
        cluster.apply(EndpointSeen(record(id_, state=State.COLD), now), now)
    route = cluster.route("m")
    assert route is not None
    rows = cluster.explain(route, now, no_jitter).rows
    assert [(row.endpoint, row.weight, row.reason) for row in rows] == [
        ("c", 2.0 * 0.1, None),
        ("b", 1.0 * 0.1, None),
        ("a", 0.0, Reason.HELD),
    ]
    attempt = cluster.choose(route, now, no_jitter)
    assert isinstance(attempt, Attempt)
    assert attempt.endpoint.id == "c"


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
