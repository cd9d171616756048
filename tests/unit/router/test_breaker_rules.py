"""By which rule a breaker opens, and for how long: tables of evidence, the usual latency, what a surge may take out."""

from __future__ import annotations

from math import inf

import pytest

from router.baseline import Baseline
from router.breaker import Breaker, GuardState, opens
from router.evidence import breaker_row, breaker_text
from router.model import BreakerRule, EjectCause, EndpointEjected, EndpointReturned, Evidence, PeerObserved
from router.outcomes import AttemptResult, Blame, Reason
from router.policy import BreakerPolicy, ModelPolicy, Policies
from router.stats import SlidingCounts
from tests.support.fleet import Driven, only, record

OK, FAILED = AttemptResult.SUCCESS, AttemptResult.SERVER_ERROR
GENERAL, SURGE, UNAVAILABLE = BreakerRule.GENERAL, BreakerRule.SURGE, BreakerRule.UNAVAILABLE
POLICY = BreakerPolicy()


@pytest.mark.parametrize(
    ("failed", "unanswered", "slow", "rule"),
    [
        (0, 0, 0, None),
        (9, 0, 0, None),
        (10, 0, 0, GENERAL),
        (10, 10, 0, GENERAL),
        (18, 18, 0, GENERAL),
        (19, 19, 0, UNAVAILABLE),
        (20, 19, 20, UNAVAILABLE),
        (20, 18, 20, GENERAL),
        (0, 0, 11, None),
        (0, 0, 12, SURGE),
        (9, 9, 12, SURGE),
        (10, 0, 20, GENERAL),
    ],
)
def test_of_twenty_calls(failed: int, unanswered: int, slow: int, rule: BreakerRule | None) -> None:
    assert opens(20, failed, unanswered, slow, POLICY) is rule
    guard = Breaker(POLICY, 0.0)
    assert guard.count(20 - failed, failed, 1.0, unanswered, slow) is (rule is not None)
    assert guard.rule is rule
    if rule is not None:
        assert guard.evidence == Evidence(20, failed, unanswered, slow)
        assert guard.until == 1.0 + {GENERAL: 60.0, SURGE: 30.0, UNAVAILABLE: 120.0}[rule]


@pytest.mark.parametrize(("failed", "unanswered", "slow"), [(19, 19, 19), (19, 0, 0), (0, 0, 19)])
def test_fewer_calls_than_the_minimum_open_nothing(failed: int, unanswered: int, slow: int) -> None:
    guard = Breaker(POLICY, 0.0)
    assert not guard.count(19 - failed, failed, 1.0, unanswered, slow)
    assert guard.state is GuardState.CLOSED


def test_no_calls_meet_no_rule() -> None:
    assert opens(0, 0, 0, 0, POLICY) is None


def test_what_is_older_than_the_window_is_no_evidence() -> None:
    guard = Breaker(POLICY, 0.0)
    guard.count(20, 0, 1.0, 0, 11)
    assert guard.look(5.0) == Evidence(20, 0, 0, 11)
    assert guard.look(12.0) == Evidence(0, 0, 0, 0)
    assert not guard.count(10, 0, 12.0, 0, 10)
    assert guard.count(10, 0, 12.0, 0, 2)
    assert guard.evidence == Evidence(20, 0, 0, 12)


def test_surges_can_be_switched_off_and_every_rule_moved() -> None:
    assert opens(20, 0, 0, 20, BreakerPolicy(surge=False)) is None
    own = BreakerPolicy(failure_ratio=0.9, unavailable_ratio=0.3, surge_ratio=0.1, unavailable_open_s=7, surge_open_s=5)
    assert opens(10, 3, 3, 0, own) is UNAVAILABLE
    assert opens(10, 8, 0, 0, own) is None
    assert opens(10, 0, 0, 1, own) is SURGE
    guard = Breaker(own, 0.0)
    guard.count(0, 20, 1.0, 20, 0)
    assert guard.until == 8.0


def half_open(rule: BreakerRule = SURGE) -> Breaker:
    guard = Breaker(POLICY, 0.0)
    guard.count(20 if rule is SURGE else 0, 0 if rule is SURGE else 20, 1.0, 0, 20)
    assert guard.rule is rule
    assert guard.advance(guard.until)
    return guard


def trial(
    guard: Breaker, *, good: bool = True, slow: bool = False, unanswered: bool = False, spared: bool = True
) -> bool:
    assert guard.take()
    blame = Blame.SUCCESS if good else Blame.FAILURE
    return guard.record(
        blame, 200.0, started=200.0, trial=True, unanswered=unanswered, slow=slow, spared=lambda: spared
    )


def test_trials_that_are_slow_open_it_again() -> None:
    guard = half_open()
    assert [trial(guard, slow=True) for _ in range(6)] == [False] * 5 + [True]
    assert (guard.rule, guard.until) == (SURGE, 230.0)
    assert guard.evidence == Evidence(6, 0, 0, 6, trials=True)


def test_trials_that_are_slow_close_it_where_it_cannot_be_spared() -> None:
    guard = half_open()
    assert [trial(guard, slow=True, spared=False) for _ in range(6)] == [False] * 5 + [True]
    assert guard.state is GuardState.CLOSED


def test_six_quick_trials_close_it_whatever_opened_it() -> None:
    for rule in (SURGE, GENERAL):
        guard = half_open(rule)
        assert [trial(guard) for _ in range(6)] == [False] * 5 + [True]
        assert guard.state is GuardState.CLOSED


def test_trials_that_find_nobody_open_it_for_longer() -> None:
    guard = half_open(GENERAL)
    assert [trial(guard, good=False, unanswered=True) for _ in range(5)] == [False] * 4 + [True]
    assert (guard.rule, guard.until) == (UNAVAILABLE, 320.0)


def test_a_mixture_of_trials_is_judged_to_the_last() -> None:
    guard = half_open()
    moved = [trial(guard, slow=True) for _ in range(5)] + [trial(guard) for _ in range(4)] + [trial(guard, slow=True)]
    assert moved == [False] * 9 + [True]
    assert guard.state is GuardState.OPEN


def test_it_lets_a_slow_one_in_where_nobody_else_is_left_and_no_other() -> None:
    for rule, lets in ((SURGE, True), (GENERAL, False)):
        guard = half_open(rule)
        assert guard.needed(200.0) is lets
    assert not Breaker(POLICY, 0.0).needed(1.0)


def test_counts_can_be_looked_at_without_moving_them() -> None:
    counts = SlidingCounts(10.0, 0.0)
    counts.add(5, 1, 0.5)
    counts.add(2, 0, 4.2)
    moments = [0.0, 0.9, 1.0, 4.9, 9.5, 10.0, 10.5, 13.9, 14.5, 40.0]
    peeked = [counts.peek(at) for at in moments]
    assert peeked == [counts.peek(at) for at in moments]
    assert [counts.totals(at) for at in moments] == peeked


# --- what is usual ---------------------------------------------------------------------------------------------------


def test_nothing_is_slow_before_enough_was_measured() -> None:
    usual = Baseline(POLICY)
    usual.learn(None, 0, 1.0)
    usual.learn(30.0, 99, 2.0)
    assert (usual.ms, usual.slow_ms) == (None, inf)
    usual.learn(30.0, 100, 3.0)
    assert (usual.ms, usual.slow_ms) == (30.0, 60.0)


@pytest.mark.parametrize(("usual_ms", "slow_ms"), [(1.0, 26.0), (25.0, 50.0), (40.0, 80.0)])
def test_slow_is_twice_the_usual_and_25_ms_more(usual_ms: float, slow_ms: float) -> None:
    usual = Baseline(POLICY)
    usual.learn(usual_ms, 100, 1.0)
    assert usual.slow_ms == slow_ms
    usual.policy = BreakerPolicy(surge=False)
    assert usual.slow_ms == inf


def learned(p95_ms: float, for_s: int, start: float = 30.0) -> float:
    usual = Baseline(POLICY)
    usual.learn(start, 100, 0.0)
    for second in range(1, for_s + 1):
        usual.learn(p95_ms, 10, float(second))
    assert usual.ms is not None
    return usual.ms


def test_what_is_usual_rises_slowly_and_falls_ten_times_as_fast() -> None:
    assert learned(300.0, 60) == pytest.approx(30 * 10**0.095, rel=0.01)
    assert learned(300.0, 600) == pytest.approx(30 * 10**0.632, rel=0.01)
    assert learned(300.0, 6000) == pytest.approx(300, rel=0.01)
    assert learned(3.0, 60) == pytest.approx(3 * 10**0.368, rel=0.01)


def test_a_pause_teaches_no_more_than_ten_seconds() -> None:
    usual = Baseline(POLICY)
    usual.learn(30.0, 100, 0.0)
    usual.learn(300.0, 100, 100_000.0)
    assert usual.ms == pytest.approx(30 * 10 ** (1 - 0.9835), rel=0.01)


# --- in a cluster ----------------------------------------------------------------------------------------------------


def used(*ids: str, policy: BreakerPolicy | None = None) -> Driven:
    """Return a fleet whose usual P95 is known: 20 ms everywhere."""
    driven = Driven(policies=Policies(breaker=policy or POLICY), models=[ModelPolicy("m")])
    driven.seen(*(record(id_, static=True) for id_ in ids))
    for id_ in ids:
        burst(driven, id_, 120, 20.0)
    driven.wait(2.1)
    return driven


def burst(driven: Driven, id_: str, count: int, ms: float, result: AttemptResult = OK) -> None:
    attempts = [driven.to(id_) for _ in range(count)]
    driven.now += ms / 1000
    for attempt in attempts:
        driven.shared += driven.cluster.done(attempt, result, driven.now)


def opened(driven: Driven) -> list[tuple[str, BreakerRule | None]]:
    return [(event.id, event.rule) for event in driven.shared if isinstance(event, EndpointEjected)]


def test_a_surge_takes_out_the_replica_that_is_slower_than_it_was() -> None:
    driven = used("a", "b")
    driven.wait(10.1)
    burst(driven, "a", 20, 200.0)
    (event,) = driven.shared
    assert isinstance(event, EndpointEjected)
    assert (event.id, event.rule, event.until) == ("a", SURGE, driven.now + 30)
    evidence = event.evidence
    assert evidence is not None
    assert (evidence.calls, evidence.failed, evidence.trials) == (20, 0, False)
    assert 12 <= evidence.slow <= 20
    assert evidence.baseline_ms == pytest.approx(20, rel=0.06)
    assert evidence.slow_over_ms == pytest.approx(45, rel=0.06)
    assert driven.ids() == {"b": 300}
    driven.wait(30.1)
    trials = [driven.to("a") for _ in range(6)]
    driven.now += 0.02
    for attempt in trials:
        driven.done(attempt, OK)
    assert isinstance(driven.shared[-1], EndpointReturned)


def test_slow_successes_are_no_failures() -> None:
    driven = used("a", "b", policy=BreakerPolicy(surge=False))
    burst(driven, "a", 50, 1000.0)
    assert driven.shared == []
    breaker = only(driven.cluster.endpoints["a"]).breaker
    assert breaker.look(driven.now).failed == 0


def test_one_that_was_always_slow_is_not_slower_than_usual() -> None:
    driven = Driven(models=[ModelPolicy("m")])
    driven.seen(record("a", static=True), record("b", static=True))
    burst(driven, "a", 120, 20.0)
    burst(driven, "b", 120, 400.0)
    driven.wait(2.1)
    burst(driven, "b", 60, 400.0)
    assert driven.shared == []


def test_at_most_half_of_a_version_s_replicas_are_out_for_a_surge() -> None:
    driven = used("a", "b", "c", "d", "e")
    for id_ in "abcde":
        burst(driven, id_, 200, 300.0)
    assert opened(driven) == [("a", SURGE), ("b", SURGE)]
    alone = used("a")
    burst(alone, "a", 60, 300.0)
    assert alone.shared == []


def test_what_is_slow_everywhere_takes_nobody_out() -> None:
    """Longer requests, or more of them than there is room for: no replica is to blame."""
    driven = used("a", "b", "c", "d")
    for _ in range(10):
        for id_ in "abcd":
            burst(driven, id_, 30, 90.0)
    assert opened(driven) == []
    assert all(only(endpoint).breaker.look(driven.now).slow > 100 for endpoint in driven.cluster.endpoints.values())


def test_failures_are_judged_however_many_are_out() -> None:
    driven = used("a", "b")
    for id_ in "ab":
        driven.now += 11
        burst(driven, id_, 30, 20.0, FAILED)
    assert opened(driven) == [("a", GENERAL), ("b", GENERAL)]


def test_where_nobody_else_is_left_slow_ones_are_let_in() -> None:
    driven = used("a", "b")
    burst(driven, "a", 200, 300.0)
    assert opened(driven) == [("a", SURGE)]
    driven.gone("b")
    assert driven.attempt().endpoint.id == "a"
    assert only(driven.cluster.endpoints["a"]).breaker.state is GuardState.CLOSED


def test_but_not_those_that_fail() -> None:
    driven = used("a", "b")
    burst(driven, "a", 200, 20.0, FAILED)
    driven.gone("b")
    assert driven.nobody().reason is Reason.BREAKER_OPEN


def test_two_processes_that_open_different_ones_do_not_take_out_both() -> None:
    first, second = used("a", "b"), used("a", "b")
    burst(first, "a", 200, 300.0)
    burst(second, "b", 200, 300.0)
    second.now = first.now = max(first.now, second.now)
    first.apply(*second.shared)
    second.apply(*first.shared[:1])
    assert first.attempt().endpoint.id == "b"
    assert second.attempt().endpoint.id == "a"


def test_siblings_counts_are_evidence_here_too() -> None:
    first, second = used("a", "b"), used("a", "b")
    first.cluster.observe(first.now)
    burst(first, "a", 10, 300.0)
    (told,) = [each for each in first.cluster.observe(first.now) if each.id == "a"]
    assert told.seen[0].slow == 10
    second.wait(10.1)
    burst(second, "a", 10, 300.0)
    assert second.shared == []
    second.apply(PeerObserved(1, (told,), second.now))
    assert opened(second) == [("a", SURGE)]


def test_calls_that_a_worker_failed_are_told_apart_and_break_nothing() -> None:
    one, sibling = used("a", "b"), used("a", "b")
    one.cluster.observe(one.now)
    burst(one, "a", 30, 20.0, AttemptResult.CALL_FAILED)
    (told,) = [each for each in one.cluster.observe(one.now) if each.seen]
    assert (told.seen[0].successes, told.seen[0].failures, told.seen[0].failed_calls) == (0, 0, 30)
    sibling.apply(PeerObserved(1, (told,), sibling.now))
    assert (one.shared, sibling.shared) == ([], [])


def test_what_was_given_up_after_longer_than_usual_is_slow_and_no_failure() -> None:
    first, second = used("a", "b"), used("a", "b")
    first.cluster.observe(first.now)
    burst(first, "a", 200, 40.0, AttemptResult.OVERDUE)  # callers' own times, too short to say anything
    assert not any(each.seen for each in first.cluster.observe(first.now))
    assert only(first.cluster.endpoints["a"]).breaker.look(first.now).slow == 0
    first.wait(10.1)
    second.wait(10.1)
    burst(first, "a", 13, 200.0, AttemptResult.OVERDUE)
    (told,) = [each for each in first.cluster.observe(first.now) if each.seen]
    seen = told.seen[0]
    assert (seen.successes, seen.failures, seen.slow, seen.overdue, seen.buckets) == (0, 0, 13, 13, ())
    burst(second, "a", 9, 20.0)
    second.apply(PeerObserved(1, (told,), second.now))
    assert second.shared == []  # 13 of 22
    second.apply(PeerObserved(1, (told,), second.now))
    assert opened(second) == [("a", SURGE)]
    burst(first, "a", 20, 200.0, AttemptResult.OVERDUE)
    assert opened(first) == [("a", SURGE)]
    first.wait(30.1)
    burst(first, "a", 10, 200.0, AttemptResult.OVERDUE)
    assert opened(first) == [("a", SURGE)] * 2
    breaker = only(first.cluster.endpoints["a"]).breaker
    assert breaker.evidence is not None
    assert (breaker.evidence.failed, breaker.evidence.slow) == (0, breaker.evidence.calls)


def test_trials_that_are_under_way_are_shown_by_who_makes_them_and_by_who_is_told() -> None:
    driven = used("a", "b")
    burst(driven, "a", 200, 1.0, FAILED)
    (opened_event,) = [event for event in driven.cluster.guards() if event.cause is EjectCause.BREAKER]
    assert (opened_event.trials, opened_event.tried) == (0, None)
    one = only(driven.cluster.endpoints["a"])
    driven.wait(60.1)
    trials = [driven.to("a") for _ in range(3)]
    driven.done(trials.pop(), OK)
    driven.done(trials.pop(), FAILED)
    (event,) = driven.cluster.guards()
    assert (event.trials, event.tried) == (1, Evidence(2, 1, 0, 0, trials=True))
    row = breaker_row(one, driven.now)
    assert (row.state, row.trials, row.evidence.calls, row.evidence.failed) == (GuardState.HALF_OPEN, 1, 2, 1)
    one.breaker.elsewhere = (4, Evidence(3, 2, 1, 1, trials=True))
    row = breaker_row(one, driven.now)
    assert (row.trials, row.evidence.calls, row.evidence.failed, row.evidence.unanswered) == (5, 5, 3, 1)
    assert row.why.startswith("general: ")  # what it opened on


def test_nobody_there_opens_it_for_two_minutes() -> None:
    """Resets of a replica that has no other beside it: it is kept out of quarantine, but not for ever."""
    driven = Driven(models=[ModelPolicy("m")])
    driven.seen(record("a", static=True))
    burst(driven, "a", 20, 1.0, AttemptResult.RESET)
    assert opened(driven) == [("a", UNAVAILABLE)]
    assert driven.nobody().retry_after_s == 120.0


@pytest.mark.parametrize(
    ("rule", "evidence", "text"),
    [
        (None, Evidence(7, 2, 0, 0), "2 of 7 calls failed"),
        (
            None,
            Evidence(7, 2, 0, 1, False, 21.0, 20.0, 45.0),
            "2 of 7 calls failed, 1 of 7 calls took over 45 ms; P95 21 ms, usually 20 ms",
        ),
        (GENERAL, Evidence(20, 12, 3, 0), "general: 12 of 20 calls failed"),
        (UNAVAILABLE, Evidence(10, 10, 10, 0, True), "unavailable: 10 of 10 trials found nobody there"),
        (
            SURGE,
            Evidence(20, 0, 0, 13, False, 310.0, 21.0, 46.0),
            "latency_surge: 13 of 20 calls took over 46 ms; P95 310 ms, usually 21 ms",
        ),
    ],
)
def test_in_words(rule: BreakerRule | None, evidence: Evidence, text: str) -> None:
    assert breaker_text(rule, evidence) == text
