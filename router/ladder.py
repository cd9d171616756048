"""The degradation ladder of one model: which step answers its requests now, and how it climbs back.

A request that the step in force cannot answer goes down by itself, at once; the ladder as a whole follows it when that
is no accident. Upwards it goes one working step at a time, on trial. Nothing here looks at a clock or a socket: the
shell says what happened and when.

============  ====================================================  ===========================================
at            what happened                                         then
============  ====================================================  ===========================================
any           a request that began here was answered                the failures in a row are forgotten
any but last  nobody can be picked, or ``failures`` in a row        one step down
below 1       ``hold_s`` here, ``trial_s`` since the last trial     the next request tries the step aimed at
below 1       ``successes`` in a row at the step aimed at           up to it
below 1       a failure there                                       aim one step higher; over 1: the nearest again
============  ====================================================  ===========================================

Aiming higher after a failure is what lets a model come back whose fallback is broken for good.
"""

from __future__ import annotations

from enum import IntEnum
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.policy import LadderPolicy


class LadderStep(IntEnum):
    """Who answers, best first. A model has those that are configured for it, and always the first and the last."""

    REPLICA = 1  # a replica of the model, the second one too (retries, hedges)
    FALLBACK = 2  # another version, or another model
    CACHE = 3  # an answer kept from good times
    STATIC = 4  # the answer that is declared for this
    REFUSE = 5  # 503 with Retry-After


class Moved:
    """The ladder moved from one step to another."""

    __slots__ = ("after", "before", "cause")

    def __init__(self, before: LadderStep, after: LadderStep, cause: str) -> None:
        self.before: Final = before
        self.after: Final = after
        self.cause: Final = cause

    @property
    def down(self) -> bool:
        """True where it answers worse than before."""
        return self.after > self.before


class Ladder:
    """Where one model stands. Times are monotonic seconds.

    ``at`` is the step that requests begin with, ``since`` when it became that. What cannot fail (a kept or declared
    answer) may still have nothing for a request: that moves nothing.
    """

    __slots__ = ("_aim", "_at", "_failures", "_policy", "_steps", "_successes", "_trial_at", "since")

    def __init__(self, steps: Sequence[LadderStep], policy: LadderPolicy, now: float) -> None:
        self._steps: tuple[LadderStep, ...] = ()
        self._policy = policy
        self._at = 0
        self._aim = 0
        self._failures = 0
        self._successes = 0
        self._trial_at = -inf
        self.since = now
        self.configure(steps, policy, now)

    def configure(self, steps: Sequence[LadderStep], policy: LadderPolicy, now: float) -> None:
        """Go by other steps and another policy from now on; where the step in force is gone, the next one below is."""
        before = self._steps[self._at] if self._steps else LadderStep.REPLICA
        wanted = {LadderStep.REPLICA, LadderStep.REFUSE, *steps}
        self._steps = tuple(step for step in LadderStep if step in wanted)
        self._policy = policy
        at = next(index for index, step in enumerate(self._steps) if step >= before)
        if self._steps[at] is not before:
            self.since = now
        self._settle(at)

    @property
    def at(self) -> LadderStep:
        """The step that requests begin with, but for trials."""
        return self._steps[self._at]

    @property
    def steps(self) -> tuple[LadderStep, ...]:
        """The steps that there are, from above."""
        return self._steps

    @property
    def degraded(self) -> bool:
        """True below the first step."""
        return self._at > 0

    def begin(self, now: float) -> LadderStep:
        """Return the step that a request begins with: the one in force, or the one aimed at where a trial is due."""
        if not self._at:
            return LadderStep.REPLICA
        policy = self._policy
        if now - self.since >= policy.hold_s and now - self._trial_at >= policy.trial_s:
            self._trial_at = now
            return self._steps[self._aim]
        return self._steps[self._at]

    def below(self, step: LadderStep) -> LadderStep:
        """Return the next step down; the last is its own."""
        return next((one for one in self._steps if one > step), LadderStep.REFUSE)

    def succeeded(self, step: LadderStep, now: float) -> Moved | None:
        """A request was answered at ``step``."""
        at = self._at
        if step >= self._steps[at]:
            if step is self._steps[at]:
                self._failures = 0
            return None
        if step is not self._steps[self._aim]:  # a last resort that went well: look there next
            if step > self._steps[self._aim]:
                return None
            self._aim = self._steps.index(step)
            self._successes = 0
        self._successes += 1
        if self._successes < self._policy.successes:
            return None
        return self._go(self._aim, now, f"{self._successes} answers in a row there")

    def failed(self, step: LadderStep, now: float, cause: str, *, certain: bool) -> Moved | None:
        """A request could not be answered at ``step``; ``certain``: nor could any other."""
        at = self._at
        if step is self._steps[at]:
            self._failures += 1
            if at == len(self._steps) - 1 or (not certain and self._failures < self._policy.failures):
                return None
            return self._go(at + 1, now, cause)
        if step is self._steps[self._aim]:
            self._successes = 0
            self._aim = self._aim - 1 if self._aim else max(0, at - 1)
        return None

    def _go(self, at: int, now: float, cause: str) -> Moved:
        moved = Moved(self._steps[self._at], self._steps[at], cause)
        self.since = now
        self._settle(at)
        return moved

    def _settle(self, at: int) -> None:
        self._at = at
        self._aim = max(0, at - 1)
        self._failures = self._successes = 0
