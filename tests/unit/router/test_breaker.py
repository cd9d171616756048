from __future__ import annotations

from itertools import pairwise

import pytest

from router.breaker import TRANSITIONS, Breaker, GuardEvent, GuardState
from router.outcomes import BROKEN_OFF, QUARANTINES, AttemptResult, Blame
from router.policy import BreakerPolicy, QuarantinePolicy
from router.quarantine import HELD_S, MOST_PROBES, PROBE_PASSES, Quarantine

NO_JITTER = lambda: 0.0  # noqa: E731
REFUSED = AttemptResult.CONNECT_REFUSED


def breaker() -> Breaker:
    return Breaker(BreakerPolicy(), 0.0)


def tripped(now: float = 1.0) -> Breaker:
    guard = breaker()
    assert guard.count(10, 10, now)
    return guard


def blocks(guard: Breaker) -> bool:
    """Ask anew: to a type checker a property keeps the value it was once asserted to have."""
    return guard.blocks


def active(guard: Quarantine) -> bool:
    return guard.active


def half_open(now: float = 61.0) -> Breaker:
    guard = tripped()
    assert guard.advance(now)
    return guard


def trial(guard: Breaker, blame: Blame, now: float = 62.0) -> bool:
    assert guard.take()
    return guard.record(blame, now, started=now, trial=True)


def test_every_state_knows_what_siblings_say_and_nothing_else_is_legal() -> None:
    for state in GuardState:
        assert TRANSITIONS[state, GuardEvent.PEER_OPENED] is GuardState.OPEN
        assert TRANSITIONS[state, GuardEvent.PEER_CLOSED] is GuardState.CLOSED
    own = {pair: to for pair, to in TRANSITIONS.items() if not pair[1].value.startswith("peer")}
    assert own == {
        (GuardState.CLOSED, GuardEvent.TRIPPED): GuardState.OPEN,
        (GuardState.OPEN, GuardEvent.WAITED): GuardState.HALF_OPEN,
        (GuardState.OPEN, GuardEvent.ELAPSED): GuardState.CLOSED,
        (GuardState.OPEN, GuardEvent.NEEDED): GuardState.CLOSED,
        (GuardState.HALF_OPEN, GuardEvent.NEEDED): GuardState.CLOSED,
        (GuardState.HALF_OPEN, GuardEvent.PASSED): GuardState.CLOSED,
        (GuardState.HALF_OPEN, GuardEvent.TRIPPED): GuardState.OPEN,
    }


@pytest.mark.parametrize(
    ("good", "bad", "opens"), [(0, 19, False), (10, 10, True), (11, 9, False), (0, 20, True), (101, 100, False)]
)
def test_it_opens_at_the_ratio_of_at_least_the_minimum(good: int, bad: int, opens: bool) -> None:
    guard = breaker()
    assert guard.count(good, 0, 1.0) is False
    assert guard.count(0, bad, 1.0) is opens
    assert blocks(guard) is opens


def test_single_records_open_it_too_and_successes_never_do() -> None:
    guard = breaker()
    for _ in range(10):
        assert not guard.record(Blame.FAILURE, 1.0, started=0.5, trial=False)
    for _ in range(9):
        assert not guard.record(Blame.SUCCESS, 1.0, started=0.5, trial=False)
    assert not guard.record(Blame.NEUTRAL, 1.0, started=0.5, trial=False)
    assert guard.state is GuardState.CLOSED
    assert guard.record(Blame.FAILURE, 1.0, started=0.5, trial=False)
    assert guard.until == 61.0


def test_failures_older_than_the_window_do_not_count() -> None:
    guard = breaker()
    guard.count(0, 19, 1.0)
    assert not guard.count(0, 19, 12.0)
    assert guard.count(0, 1, 12.5)


def test_it_goes_half_open_only_by_time_and_only_through_advance() -> None:
    guard = tripped(1.0)
    assert not guard.advance(60.9)
    assert blocks(guard)
    assert guard.advance(61.0)
    assert guard.state is GuardState.HALF_OPEN
    assert not blocks(guard)
    assert not guard.advance(62.0)


def test_half_open_admits_ten_trials() -> None:
    guard = half_open()
    for taken in range(10):
        assert not blocks(guard), taken
        guard.take()
    assert blocks(guard)
    assert guard.record(Blame.NEUTRAL, 62.0, started=61.5, trial=True) is False
    assert not blocks(guard)  # a neutral end gives its place back


def test_it_closes_as_soon_as_the_ratio_cannot_be_reached() -> None:
    guard = half_open()
    moved = [trial(guard, Blame.SUCCESS) for _ in range(6)]
    assert moved == [False] * 5 + [True]
    assert guard.state is GuardState.CLOSED
    assert guard.calls.totals(62.0) == (0, 0)


def test_it_opens_again_as_soon_as_the_ratio_is_reached() -> None:
    guard = half_open()
    moved = [trial(guard, blame) for blame in [Blame.SUCCESS] * 5 + [Blame.FAILURE] * 5]
    assert moved == [False] * 9 + [True]
    assert guard.state is GuardState.OPEN
    assert guard.until == 62.0 + 60.0


def test_attempts_from_before_say_nothing_to_an_open_or_half_open_breaker() -> None:
    guard = tripped()
    assert not guard.record(Blame.FAILURE, 2.0, started=0.5, trial=False)
    guard.advance(61.0)
    assert not guard.record(Blame.FAILURE, 62.0, started=0.5, trial=False)
    guard.take()
    guard.peer_opened(130.0, 63.0)
    guard.advance(130.0)
    assert not guard.record(Blame.SUCCESS, 131.0, started=62.0, trial=True)  # a trial of the half-open time before
    assert (guard.trials, guard.passed) == (0, 0)


def test_closed_breakers_count_no_trials() -> None:
    guard = breaker()
    assert not guard.take()
    assert guard.trials == 0


def test_siblings_open_and_close_it_unless_the_news_is_old() -> None:
    guard = breaker()
    guard.peer_opened(50.0, 5.0)
    assert blocks(guard)
    guard.peer_opened(40.0, 6.0)
    assert guard.until == 50.0
    guard.peer_closed(4.0)
    assert blocks(guard)
    guard.peer_closed(7.0)
    assert not blocks(guard)
    guard.peer_opened(60.0, 6.5)
    assert not blocks(guard)
    assert not guard.count(0, 1, 8.0)


def test_an_open_breaker_does_not_count() -> None:
    guard = tripped()
    assert not guard.count(0, 100, 2.0)


# --- quarantine -----------------------------------------------------------------------------------------------------


def out(now: float = 10.0) -> Quarantine:
    guard = Quarantine(QuarantinePolicy())
    assert guard.record(REFUSED, now, NO_JITTER, started=now - 1, probe=False)
    return guard


def probe(guard: Quarantine, result: AttemptResult, now: float) -> bool:
    guard.take(now)
    return guard.record(result, now, NO_JITTER, started=now, probe=True)


@pytest.mark.parametrize("result", list(AttemptResult))
def test_what_quarantines_at_once(result: AttemptResult) -> None:
    guard = Quarantine(QuarantinePolicy())
    assert guard.record(result, 5.0, NO_JITTER, started=4.0, probe=False) is (result in QUARANTINES)
    assert guard.active is (result in QUARANTINES)


@pytest.mark.parametrize("result", sorted(QUARANTINES))
def test_the_last_one_is_kept_while_it_accepts_connections(result: AttemptResult) -> None:
    guard = Quarantine(QuarantinePolicy())
    assert guard.record(result, 5.0, NO_JITTER, started=4.0, probe=False, alone=True) is (result not in BROKEN_OFF)


def test_it_doubles_from_one_second_to_thirty() -> None:
    guard = out(10.0)
    lengths = [guard.until - 10.0]
    for _ in range(6):
        now = guard.until
        assert probe(guard, REFUSED, now)
        lengths.append(guard.until - now)
    assert lengths == [1, 2, 4, 8, 16, 30, 30]
    assert guard.soon == guard.since + 1.0


def test_jitter_only_shortens() -> None:
    guard = Quarantine(QuarantinePolicy())
    guard.record(REFUSED, 10.0, lambda: 0.5, started=9.0, probe=False)
    assert guard.until == pytest.approx(10.9)


def test_very_many_failures_do_not_overflow() -> None:
    guard = out()
    guard.level = 5000
    guard.take(20.0)
    assert guard.record(REFUSED, 20.0, NO_JITTER, started=20.0, probe=True)
    assert guard.until == 50.0


def test_one_probe_at_a_time_for_as_long_as_it_may_say_nothing() -> None:
    guard = out(10.0)
    assert guard.probe_at(alone=False) == 11.0
    guard.take(11.0)
    assert guard.probe_at(alone=True) == 11.0 + HELD_S
    assert guard.probe_at(alone=False) == 11.0 + 2 * guard.policy.base_s
    assert guard.record(AttemptResult.CANCELLED, 11.5, NO_JITTER, started=11.0, probe=True) is False
    assert guard.probe_at(alone=False) == float("-inf")  # nobody knows yet: the next request may


def test_so_many_probes_that_say_nothing_are_enough() -> None:
    guard = out(10.0)
    taken = []
    for _ in range(MOST_PROBES):
        taken.append(guard.probe_at(alone=False))
        guard.take(taken[-1])
    assert [later - earlier for earlier, later in pairwise(taken)] == [2, 4, 8, 16, 30, 30, 30]
    assert guard.probe_at(alone=False) == guard.probe_at(alone=True) == float("inf")
    assert not guard.record(AttemptResult.CANCELLED, 140.0, NO_JITTER, started=12.0, probe=True)
    assert guard.probe_at(alone=False) == taken[-1] + 30
    assert guard.probe_at(alone=True) == taken[-1] + HELD_S


def test_a_probe_whose_caller_is_waited_for_is_none_of_them() -> None:
    guard = out(10.0)
    for number in range(3 * MOST_PROBES):
        guard.take(11.0 + number)
        guard.lend(11.0 + number)
        assert guard.probe_at(alone=False) == 11.0 + number + HELD_S
        assert guard.probe_at(alone=True) == float("-inf")
    assert (guard.trials, guard.under_way) == (0, 3 * MOST_PROBES)
    assert not guard.record(AttemptResult.CANCELLED, 40.0, NO_JITTER, started=11.0, probe=True, lent=True)
    guard.wait_again(12.0, 50.0)
    assert (guard.trials, guard.lent) == (1, 3 * MOST_PROBES - 2)
    assert guard.probe_at(alone=True) == 50.0 + HELD_S
    assert guard.probe_at(alone=False) == 52.0
    assert guard.record(AttemptResult.SUCCESS, 50.5, NO_JITTER, started=12.0, probe=True)
    assert (active(guard), guard.under_way) == (False, 0)


def test_who_is_alone_is_probed_after_one_base_step() -> None:
    guard = out(10.0)
    for _ in range(4):
        probe(guard, REFUSED, guard.until)
    assert guard.probe_at(alone=False) == guard.since + 16
    assert guard.probe_at(alone=True) == guard.since + 1


@pytest.mark.parametrize("result", sorted(PROBE_PASSES))
def test_a_probe_that_is_answered_ends_it(result: AttemptResult) -> None:
    guard = out(10.0)
    assert probe(guard, result, 11.0)
    assert not active(guard)
    assert guard.level == 0
    assert guard.probe_at(alone=True) == float("inf")


def test_a_probe_that_fails_in_any_way_doubles() -> None:
    guard = out(10.0)
    assert probe(guard, AttemptResult.SERVER_ERROR, 11.0)
    assert guard.until == 13.0


def test_one_crash_that_resets_many_connections_is_one_step() -> None:
    guard = out(10.0)
    for _ in range(31):
        assert not guard.record(AttemptResult.RESET, 10.0, NO_JITTER, started=9.0, probe=False)
    assert guard.level == 1
    probe(guard, AttemptResult.SUCCESS, 11.0)
    assert not guard.record(AttemptResult.RESET, 12.0, NO_JITTER, started=9.5, probe=False)
    assert guard.record(AttemptResult.RESET, 12.0, NO_JITTER, started=11.5, probe=False)


def test_siblings_quarantine_and_return_it_unless_the_news_is_old() -> None:
    guard = Quarantine(QuarantinePolicy())
    guard.peer_opened(18.0, 4, 10.0)
    assert (guard.active, guard.until, guard.soon, guard.level) == (True, 18.0, 11.0, 4)
    guard.peer_opened(14.0, 3, 11.0)
    assert guard.until == 18.0
    guard.peer_closed(9.0)
    assert active(guard)
    guard.peer_closed(12.0)
    assert not active(guard)
    guard.peer_opened(20.0, 1, 11.9)
    assert not active(guard)
