"""What probes and trials are judged by while their callers take their time: never by the callers."""

from __future__ import annotations

import pytest

from router.breaker import GuardState
from router.model import BreakerRule, EjectCause, EndpointReturned, Evidence
from router.outcomes import AttemptResult, Reason
from router.policy import BreakerPolicy
from router.routes import Attempt
from tests.support.fleet import Driven, only, pair, record

OK, FAILED = AttemptResult.SUCCESS, AttemptResult.SERVER_ERROR
REFUSED, CUT = AttemptResult.CONNECT_REFUSED, AttemptResult.CUT
GENERAL, SURGE = BreakerRule.GENERAL, BreakerRule.SURGE
TRIALS = BreakerPolicy().half_open_calls


def dead() -> Driven:
    """Return a cluster whose only endpoint's back-off is over."""
    driven = Driven()
    driven.seen(record("a"))
    driven.done(driven.attempt(), REFUSED)
    driven.now += 1.0
    return driven


def half_open(rule: BreakerRule = GENERAL, driven: Driven | None = None) -> Driven:
    """Return one whose endpoint ``a`` is out for a rule, and half open by now."""
    if driven is None:
        driven = Driven()
        driven.seen(record("a"))
    candidate = only(driven.cluster.endpoints["a"])
    candidate.breaker.peer_opened(driven.now + 1.0, driven.now, rule, Evidence(20, 20, 0, 0))
    driven.cluster._fleet.judge(candidate.endpoint, driven.now)
    driven.now += 1.0
    return driven


def lent(driven: Driven) -> Attempt:
    """Return an attempt whose caller has sent a part of the request."""
    attempt = driven.attempt()
    driven.cluster.lend(attempt, driven.now)
    return attempt


def began(driven: Driven, attempt: Attempt, result: AttemptResult = OK, *, timed: bool = False) -> None:
    driven.shared += driven.cluster.answer_began(attempt, result, driven.now, timed=timed)


# --- quarantine ------------------------------------------------------------------------------------------------------


def test_an_answer_that_begins_well_brings_an_endpoint_back_and_siblings_hear_of_it() -> None:
    driven = dead()
    probe = driven.attempt()
    assert driven.nobody().reason is Reason.QUARANTINED
    began(driven, probe)
    assert driven.shared[-1] == EndpointReturned("a", EjectCause.QUARANTINE, driven.now)
    assert not driven.attempt().probe
    driven.done(probe, OK, 60.0)
    assert driven.cluster.endpoints["a"].in_flight == 1


def test_one_that_begins_with_a_failure_keeps_it_out() -> None:
    driven = dead()
    probe = driven.attempt()
    began(driven, probe, FAILED)
    quarantine = driven.cluster.endpoints["a"].quarantine
    assert (quarantine.state, quarantine.level) == (GuardState.OPEN, 2)
    driven.done(probe, FAILED, 30.0)
    assert quarantine.level == 2


def test_an_answer_that_began_well_and_was_cut_takes_it_out_again_where_others_are() -> None:
    driven = pair()
    driven.done(driven.to("a"), REFUSED)
    driven.now += 1.0
    probe = driven.attempt()
    began(driven, probe)
    driven.now += 0.5
    driven.done(probe, CUT)
    assert driven.cluster.endpoints["a"].quarantine.active


def test_uploads_of_which_the_rest_does_not_come_keep_nobody_from_the_last_endpoint() -> None:
    driven = dead()
    slow = [lent(driven) for _ in range(50)]
    assert all(attempt.probe for attempt in slow)
    probe = driven.attempt()
    assert driven.nobody().reason is Reason.QUARANTINED
    driven.done(probe, OK, 0.01)
    assert not driven.attempt().probe
    for attempt in slow:
        driven.done(attempt, AttemptResult.CANCELLED)
    assert not driven.cluster.endpoints["a"].quarantine.active


def test_where_others_are_an_upload_keeps_them_from_probing_for_a_second() -> None:
    driven = pair()
    driven.done(driven.to("a"), REFUSED)
    driven.now += 1.0
    assert lent(driven).endpoint.id == "a"
    assert set(driven.ids(50)) == {"b"}
    driven.now += 1.0
    probe = driven.attempt()
    assert (probe.endpoint.id, probe.probe) == ("a", True)


def test_a_request_that_has_become_whole_is_a_probe_that_others_wait_for() -> None:
    driven = dead()
    slow = lent(driven)
    driven.cluster.reclaim(slow, driven.now)
    assert driven.nobody().reason is Reason.QUARANTINED
    assert driven.nobody().retry_after_s == 1.0
    driven.done(slow, OK)
    driven.attempt()


def test_a_worker_that_takes_long_to_answer_is_asked_by_one_more_each_second() -> None:
    driven = dead()
    probes = []
    for _ in range(8):
        probes.append(driven.attempt())
        assert driven.nobody().reason is Reason.QUARANTINED
        driven.now += 1.0
    assert driven.nobody().reason is Reason.QUARANTINED  # no more at a time than that
    driven.done(probes[3], AttemptResult.HEAD_TIMEOUT)
    assert driven.cluster.endpoints["a"].quarantine.level == 2
    for probe in probes:
        driven.done(probe, AttemptResult.HEAD_TIMEOUT)
    assert driven.cluster.endpoints["a"].quarantine.level == 2


# --- breakers --------------------------------------------------------------------------------------------------------


def test_uploads_of_which_the_rest_does_not_come_take_no_trials() -> None:
    driven = half_open()
    breaker = only(driven.cluster.endpoints["a"]).breaker
    slow = [lent(driven) for _ in range(3 * TRIALS)]
    assert (breaker.trials, breaker.under_way, breaker.blocks) == (0, 3 * TRIALS, False)
    for _ in range(6):
        driven.done(driven.attempt(), OK, 0.01)
    assert breaker.state is GuardState.CLOSED
    for attempt in slow:
        driven.done(attempt, AttemptResult.CANCELLED)
    assert (breaker.state, driven.cluster.endpoints["a"].in_flight) == (GuardState.CLOSED, 0)


def test_an_upload_that_has_become_whole_is_a_trial_like_any() -> None:
    driven = half_open()
    breaker = only(driven.cluster.endpoints["a"]).breaker
    slow = [lent(driven) for _ in range(TRIALS)]
    for attempt in slow:
        driven.cluster.reclaim(attempt, driven.now)
    assert driven.nobody().reason is Reason.BREAKER_OPEN
    for attempt in slow[:5]:
        driven.done(attempt, FAILED)
    assert (breaker.state, breaker.under_way) == (GuardState.OPEN, 0)


@pytest.mark.parametrize(("rule", "timed"), [(GENERAL, False), (GENERAL, True), (SURGE, True)])
def test_answers_that_begin_well_close_it(rule: BreakerRule, timed: bool) -> None:
    driven = half_open(rule) if rule is GENERAL else half_open(rule, pair())
    breaker = only(driven.cluster.endpoints["a"]).breaker
    streams = [driven.to("a") for _ in range(6)]
    for attempt in streams:
        began(driven, attempt, timed=timed)
    assert breaker.state is GuardState.CLOSED
    for attempt in streams:
        driven.done(attempt, OK, 30.0)
    assert breaker.look(driven.now).calls > 0


def test_after_a_surge_an_answer_that_is_timed_as_a_whole_is_waited_for_and_others_are_let_through() -> None:
    driven = half_open(SURGE, pair())
    breaker = only(driven.cluster.endpoints["a"]).breaker
    for _ in range(2 * TRIALS):
        began(driven, driven.to("a"))
    assert breaker.state is GuardState.HALF_OPEN
    assert (breaker.trials, breaker.under_way) == (0, 2 * TRIALS)


def test_an_answer_that_breaks_after_it_began_well_counts_as_one_that_failed() -> None:
    driven = half_open()
    breaker = only(driven.cluster.endpoints["a"]).breaker
    streams = [driven.attempt() for _ in range(5)]
    for attempt in streams:
        began(driven, attempt)
    assert (breaker.passed, breaker.failed) == (5, 0)
    for attempt in streams:
        driven.done(attempt, AttemptResult.STREAM_IDLE)
    assert (breaker.state, breaker.rule) == (GuardState.OPEN, GENERAL)


def test_answers_that_begin_with_a_failure_open_it() -> None:
    driven = half_open()
    breaker = only(driven.cluster.endpoints["a"]).breaker
    for attempt in [driven.attempt() for _ in range(5)]:
        began(driven, attempt, FAILED)
    assert breaker.state is GuardState.OPEN


def test_one_that_says_nothing_gives_its_place_back() -> None:
    driven = half_open()
    breaker = only(driven.cluster.endpoints["a"]).breaker
    for _ in range(3 * TRIALS):
        began(driven, driven.attempt(), AttemptResult.CLIENT_ERROR)
    assert (breaker.state, breaker.under_way) == (GuardState.HALF_OPEN, 0)
