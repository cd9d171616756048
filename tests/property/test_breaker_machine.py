"""Both guards under any sequence of events: only listed transitions, trials within their limit, nothing left over."""

from __future__ import annotations

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from router.breaker import TRANSITIONS, Breaker, GuardState, open_s, opens
from router.model import BreakerRule
from router.outcomes import AttemptResult, Blame
from router.policy import BreakerPolicy, QuarantinePolicy
from router.quarantine import HELD_S, MOST_PROBES, Quarantine

STEPS = {(before, after) for (before, _), after in TRANSITIONS.items()} | {(state, state) for state in GuardState}
TIMES = st.sampled_from([0.0, 0.3, 1.0, 4.0, 9.0, 31.0, 61.0])


class BreakerMachine(RuleBasedStateMachine):
    calls = Bundle("calls")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.policy = BreakerPolicy(minimum_calls=4, half_open_calls=3, hinted_minimum_calls=2)
        self.guard = Breaker(self.policy, 0.0)
        self.before = self.guard.state
        self.open_trials: set[int] = set()
        self.lent_trials: set[int] = set()
        self.next = 0
        self.was_lent = False  # in this half-open time

    @rule(seconds=TIMES)
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def advance(self) -> None:
        if self.guard.advance(self.now):
            self.open_trials.clear()
            self.lent_trials.clear()
            assert self.now >= self.guard.until

    @rule(target=calls)
    def call(self) -> object:
        if self.guard.blocks:
            return multiple()
        self.now += 0.001
        self.next += 1
        trial = self.guard.take()
        assert trial is (self.guard.state is GuardState.HALF_OPEN)
        if trial:
            self.open_trials.add(self.next)
        return self.next, self.now, trial

    @rule(
        call=consumes(calls),
        blame=st.sampled_from(Blame),
        slow=st.booleans(),
        unanswered=st.booleans(),
        spared=st.booleans(),
    )
    def end(self, call: tuple[int, float, bool], blame: Blame, slow: bool, unanswered: bool, spared: bool) -> None:
        number, started, trial = call
        before = self.guard.state
        slow, unanswered = slow and blame is not Blame.NEUTRAL, unanswered and blame is Blame.FAILURE
        moved = self.guard.record(
            blame,
            self.now,
            started=started,
            trial=trial,
            lent=number in self.lent_trials,
            unanswered=unanswered,
            slow=slow,
            spared=lambda: spared,
        )
        self.open_trials.discard(number)
        self.lent_trials.discard(number)
        assert moved is (self.guard.state is not before)
        if moved:
            assert blame is not Blame.NEUTRAL
            if self.guard.state is GuardState.OPEN:
                assert blame is Blame.FAILURE or slow or before is GuardState.HALF_OPEN
                self.opened_rightly(spared=spared)
            else:
                assert before is GuardState.HALF_OPEN

    @rule(target=calls, call=consumes(calls))
    def caller_is_waited_for(self, call: tuple[int, float, bool]) -> object:
        number, started, trial = call
        if trial and number not in self.lent_trials:
            self.guard.lend(started)
            if number in self.open_trials:
                self.open_trials.discard(number)
                self.lent_trials.add(number)
                self.was_lent = True
        return call

    @rule(target=calls, call=consumes(calls))
    def caller_has_sent_all(self, call: tuple[int, float, bool]) -> object:
        number, started, _ = call
        if number in self.lent_trials:
            self.guard.reclaim(started)
            self.lent_trials.discard(number)
            self.open_trials.add(number)
        return call

    @rule(call=consumes(calls), fails=st.booleans())
    def answer_begins_well(self, call: tuple[int, float, bool], fails: bool) -> None:
        """It counts at once; where it breaks later, within the same half-open time, that counts instead."""
        number, started, trial = call
        if not trial:
            return
        mine = number in self.open_trials or number in self.lent_trials
        self.guard.record(Blame.SUCCESS, self.now, started=started, trial=True, lent=number in self.lent_trials)
        self.open_trials.discard(number)
        self.lent_trials.discard(number)
        guard = self.guard
        if fails and mine and guard.state is GuardState.HALF_OPEN:
            before = guard.passed, guard.failed
            moved = guard.record(Blame.FAILURE, self.now, started=started, trial=False, passed=True)
            assert moved or (guard.passed, guard.failed) == (before[0] - 1, before[1] + 1)

    def opened_rightly(self, *, spared: bool) -> None:
        guard, seen = self.guard, self.guard.evidence
        assert seen is not None
        assert guard.rule is not None
        assert guard.rule is opens(seen.calls, seen.failed, seen.unanswered, seen.slow, self.policy)
        assert guard.rule is not BreakerRule.SURGE or spared
        assert seen.trials or seen.calls >= guard.enough(self.now)
        assert guard.until == self.now + open_s(guard.rule, self.policy)

    @rule()
    def nobody_else_is_left(self) -> None:
        before, rule_ = self.guard.state, self.guard.rule
        closes = self.guard.needed(self.now)
        assert closes is (before is not GuardState.CLOSED and rule_ is BreakerRule.SURGE)
        assert closes is (self.guard.state is not before)

    @rule(good=st.integers(0, 5), bad=st.integers(0, 5), slow=st.integers(0, 5), unanswered=st.integers(0, 5))
    def sibling_counts(self, good: int, bad: int, slow: int, unanswered: int) -> None:
        if self.guard.count(good, bad, self.now, min(unanswered, bad), min(slow, good + bad)):
            self.opened_rightly(spared=True)

    @rule()
    def another_sidecar_hints(self) -> None:
        calls = sum(self.guard.calls.peek(self.now))
        if self.guard.hinted(self.now, self.now):
            assert calls >= min(self.policy.hinted_minimum_calls, self.policy.minimum_calls)
            self.opened_rightly(spared=True)

    @rule()
    def looking_changes_nothing(self) -> None:
        guard = self.guard
        before = (guard.state, guard.look(self.now), guard.calls.peek(self.now + 3))
        assert before == (guard.state, guard.look(self.now), guard.calls.peek(self.now + 3))

    @rule(seconds=TIMES)
    def sibling_opens(self, seconds: float) -> None:
        self.now += 0.001  # no event comes at the very moment at which a call began
        self.now += 0.001  # a clock does not stand while a breaker opens, goes half open and lets a trial through
        self.guard.peer_opened(self.now + seconds, self.now)

    @rule()
    def sibling_closes(self) -> None:
        self.guard.peer_closed(self.now)

    @invariant()
    def only_legal_steps(self) -> None:
        # an event may take two: closed by a sibling, then open again is two events, so one step each
        assert (self.before, self.guard.state) in STEPS
        self.before = self.guard.state

    @invariant()
    def trials_stay_within_the_limit(self) -> None:
        guard = self.guard
        assert guard.trials >= 0
        if guard.state is GuardState.HALF_OPEN:
            if not self.was_lent:
                assert guard.trials + guard.passed + guard.failed <= self.policy.half_open_calls
            assert (guard.trials, guard.lent) == (len(self.open_trials), len(self.lent_trials))
        else:
            self.open_trials.clear()
            self.lent_trials.clear()
            self.was_lent = False
            assert guard.trials == guard.lent == 0
            assert guard.blocks is (guard.state is GuardState.OPEN)


class QuarantineMachine(RuleBasedStateMachine):
    attempts = Bundle("attempts")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.policy = QuarantinePolicy()
        self.guard = Quarantine(self.policy)
        self.rng = random.Random(3).random
        self.lent: set[float] = set()
        self.probed_at = 0.0
        self.before = self.guard.state

    @rule(seconds=TIMES)
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(target=attempts, alone=st.booleans())
    def begin(self, alone: bool) -> object:
        self.now += 0.001
        if not self.guard.active:
            return self.now, False
        if self.guard.probe_at(alone=alone) > self.now:
            return multiple()
        assert self.guard.trials < MOST_PROBES
        if self.guard.trials:
            assert self.now - self.probed_at >= HELD_S
        self.probed_at = self.now
        self.guard.take(self.now)
        return self.now, True

    @rule(attempt=consumes(attempts), result=st.sampled_from(AttemptResult))
    def end(self, attempt: tuple[float, bool], result: AttemptResult) -> None:
        started, probe = attempt
        before = self.guard.state
        lent = started in self.lent
        moved = self.guard.record(result, self.now, self.rng, started=started, probe=probe, lent=lent)
        self.lent.discard(started)
        assert moved is (self.guard.state is not before)

    @rule(target=attempts, attempt=consumes(attempts))
    def caller_is_waited_for(self, attempt: tuple[float, bool]) -> object:
        started, probe = attempt
        if probe and started not in self.lent:
            self.guard.lend(started)
            self.lent.add(started)
        return attempt

    @rule(target=attempts, attempt=consumes(attempts))
    def caller_has_sent_all(self, attempt: tuple[float, bool]) -> object:
        started, _ = attempt
        if started in self.lent and self.guard.trials < MOST_PROBES:
            self.guard.wait_again(started, self.now)
            self.lent.discard(started)
        return attempt

    @rule(seconds=TIMES, level=st.integers(0, 9))
    def sibling_opens(self, seconds: float, level: int) -> None:
        self.guard.peer_opened(self.now + min(seconds, self.policy.max_s), level, self.now)

    @rule()
    def sibling_closes(self) -> None:
        self.guard.peer_closed(self.now)

    @invariant()
    def so_many_probes_and_legal_steps(self) -> None:
        assert 0 <= self.guard.trials <= MOST_PROBES
        assert 0 <= self.guard.lent <= len(self.lent)
        assert self.guard.state is GuardState.HALF_OPEN or self.guard.under_way == 0
        assert (self.before, self.guard.state) in STEPS
        self.before = self.guard.state

    @invariant()
    def times_stay_within_the_policy(self) -> None:
        if self.guard.state is GuardState.OPEN:
            assert self.guard.until - self.guard.since <= self.policy.max_s + 1e-9
            assert self.guard.soon - self.guard.since <= self.policy.base_s + 1e-9


TestBreaker = BreakerMachine.TestCase
TestQuarantine = QuarantineMachine.TestCase
for case in (TestBreaker, TestQuarantine):
    case.settings = settings(max_examples=60, stateful_step_count=40)
del case  # a test runner would collect it once more
