"""The breaker beside ``fluxgate``'s, where both mean the same.

That is: a minimum of calls and a ratio of failures that a failure meets opens it, a fixed time ends that, and one trial
decides. What differs is left out: how windows slide (nothing leaves either one here), more trials than one, siblings.
"""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import fluxgate.circuitbreaker
import fluxgate.retries
from fluxgate import CallNotPermittedError, CircuitBreaker
from fluxgate.permits import All
from fluxgate.retries import Cooldown
from fluxgate.trackers import TypeOf
from fluxgate.trippers import Closed, FailureRate, FailureStreak, HalfOpened, MinRequests
from fluxgate.windows import CountWindow
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from router.breaker import Breaker
from router.outcomes import Blame
from router.policy import BreakerPolicy

MORE_THAN_THERE_ARE = 10_000


class FailedError(Exception):
    """A call that counts against the endpoint."""


class NeutralError(Exception):
    """One that does not."""


def end(blame: Blame) -> None:
    """Be the call that ends so."""
    if blame is Blame.FAILURE:
        raise FailedError
    if blame is Blame.NEUTRAL:
        raise NeutralError


class OracleMachine(RuleBasedStateMachine):
    @initialize(
        ratio=st.sampled_from([0.2, 0.5, 0.9, 1.0]), minimum=st.integers(1, 9), open_s=st.sampled_from([1.0, 60.0])
    )
    def begin(self, ratio: float, minimum: int, open_s: float) -> None:
        self.now = 1000.0
        self.ours = Breaker(
            BreakerPolicy(
                failure_ratio=ratio,
                minimum_calls=minimum,
                window_s=1e9,
                open_s=open_s,
                half_open_calls=1,
                surge=False,
            ),
            self.now,
        )
        clock = SimpleNamespace(time=lambda: self.now, perf_counter=lambda: self.now)
        self.patches = [
            mock.patch.object(module, "time", clock) for module in (fluxgate.circuitbreaker, fluxgate.retries)
        ]
        for patch in self.patches:
            patch.start()
        enough = MinRequests(minimum) & FailureRate(ratio)
        self.theirs = CircuitBreaker(
            window=CountWindow(MORE_THAN_THERE_ARE),
            tracker=TypeOf(FailedError),
            tripper=(Closed() & enough & FailureStreak(1)) | (HalfOpened() & FailureStreak(1)),
            retry=Cooldown(open_s),
            permit=All(),
        )

    @rule(seconds=st.sampled_from([0.01, 0.5, 0.99, 1.0, 30.0, 59.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(blames=st.lists(st.sampled_from([Blame.SUCCESS, Blame.FAILURE, Blame.FAILURE, Blame.NEUTRAL]), max_size=12))
    def calls(self, blames: list[Blame]) -> None:
        for blame in blames:
            self.now += 0.001
            self.ours.advance(self.now)
            permitted = not self.ours.blocks
            if permitted:
                trial = self.ours.take()
                self.ours.record(blame, self.now, started=self.now, trial=trial)
            try:
                self.theirs.call(end, blame)
            except CallNotPermittedError:
                assert not permitted
            except (FailedError, NeutralError):
                assert permitted
            else:
                assert permitted
            self.they_agree()

    @invariant()
    def they_agree(self) -> None:
        if hasattr(self, "theirs"):
            assert self.theirs.info().state == self.ours.state.value

    def teardown(self) -> None:
        for patch in getattr(self, "patches", ()):
            patch.stop()


TestOracle = OracleMachine.TestCase
TestOracle.settings = settings(max_examples=80, stateful_step_count=30)
