"""What is known of how long an endpoint takes: own answers, siblings' word, and how both are forgotten."""

from __future__ import annotations

from math import exp

import pytest

from router.model import PeerObserved
from router.outcomes import AttemptResult
from router.policy import BalancerName, ModelPolicy
from tests.support.fleet import Driven, observation, only, pair, record

OK = AttemptResult.SUCCESS
FAILED = AttemptResult.SERVER_ERROR


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


def test_latencies_travel_between_siblings_and_are_not_sent_on() -> None:
    first, second = pair(), pair()
    for _ in range(50):
        first.done(first.to("a"), OK, 0.04)
    second.apply(PeerObserved(1, first.cluster.observe(first.now), second.now))
    second.wait(1.5, heard=("a", "b"))
    assert only(second.cluster.endpoints["a"]).latency.p95_ms == pytest.approx(40, rel=0.06)
    assert second.cluster.observe(second.now) == ()
