"""The degradation ladder of one route: which step answers its requests now, and how it climbs back.

A request that the step in force cannot answer goes down by itself, at once; the ladder as a whole follows it when that
is no accident. Upwards it goes one working step at a time, on trial. Nothing here looks at a clock or a socket: the
shell says what happened and when. A route is a model, one version of it, or one shard: what is dead of a model degrades
nothing else of it.

============  ====================================================  ===========================================
at            what happened                                         then
============  ====================================================  ===========================================
any           a request that began here was answered                the failures in a row are forgotten
any but last  nobody can be picked, or ``failures`` in a row        one step down
below 1       ``hold_s`` here, ``trial_s`` since the last trial     the next request tries the step aimed at
below 1       ``successes`` in a row at the step aimed at           up to it
below 1       a failure there                                       aim one step higher; over 1: the nearest again
any           a failure ``of_its_own``                              the aim moves likewise; nothing else does
============  ====================================================  ===========================================

Aiming higher after a failure is what lets a model come back whose fallback is broken for good. A failure of a request's
own (the worker answered, with an error; its caller's time was over; there was no room for its class and tenant) is one
that its caller can bring about, or that says nothing of the next one: it takes nothing away from others, neither a step
nor the trials that went well.
"""

from __future__ import annotations

from enum import IntEnum
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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


def steps_of(configured: Iterable[LadderStep]) -> tuple[LadderStep, ...]:
    """Return the steps of a ladder, from above: those that are configured, the first and the last."""
    wanted = {LadderStep.REPLICA, LadderStep.REFUSE, *configured}
    return tuple([step for step in LadderStep if step in wanted])


def step_below(steps: Sequence[LadderStep], step: LadderStep) -> LadderStep:
    """Return the next step down; the last is its own."""
    for one in steps:
        if one > step:
            return one
    return LadderStep.REFUSE


class Ladder:
    """Where one route stands. Times are monotonic seconds.

    ``at`` is the step that requests begin with, ``since`` when it became that, ``asked_at`` when a request last looked
    or failed. What cannot fail (a kept or declared answer) may still have nothing for a request: that moves nothing.
    """

    __slots__ = (
        "_aim",
        "_at",
        "_failures",
        "_part_trial_at",
        "_policy",
        "_steps",
        "_successes",
        "_trial_at",
        "asked_at",
        "since",
    )

    def __init__(self, steps: Sequence[LadderStep], policy: LadderPolicy, now: float) -> None:
        self._steps: tuple[LadderStep, ...] = ()
        self._policy = policy
        self._at = 0
        self._aim = 0
        self._failures = 0
        self._successes: dict[int, int] = {}  # in a row, at steps that were aimed at
        self._trial_at = -inf
        self._part_trial_at = -inf  # the same of requests that were not whole
        self.since = self.asked_at = now
        self.configure(steps, policy, now)

    def configure(self, steps: Sequence[LadderStep], policy: LadderPolicy, now: float) -> None:
        """Go by other steps and another policy from now on; where the step in force is gone, the next one below is."""
        before = self._steps[self._at] if self._steps else LadderStep.REPLICA
        self._steps = steps_of(steps)
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

    def begin(self, now: float, *, whole: bool) -> LadderStep:
        """Return the step that a request begins with: the one in force, or the one aimed at where a trial is due.

        ``whole``: all of the request is here. Those whose callers have yet to send the rest have trials of their own:
        whoever takes long for that must not take the trials of others.
        """
        self.asked_at = now
        if not self._at:
            return LadderStep.REPLICA
        policy = self._policy
        last = self._trial_at if whole else self._part_trial_at
        if now - self.since >= policy.hold_s and now - last >= policy.trial_s:
            if whole:
                self._trial_at = now
            else:
                self._part_trial_at = now
            return self._steps[self._aim]
        return self._steps[self._at]

    def below(self, step: LadderStep) -> LadderStep:
        """Return the next step down; the last is its own."""
        return step_below(self._steps, step)

    def succeeded(self, step: LadderStep, now: float) -> Moved | None:
        """A request was answered at ``step``."""
        at, aim = self._at, self._aim
        if step is self._steps[at]:
            self._failures = 0
            return None
        if step is not self._steps[aim] or now - self.since < self._policy.hold_s:
            return None
        self._successes[aim] = number = self._successes.get(aim, 0) + 1
        if number < self._policy.successes:
            return None
        return self._go(aim, now, f"{number} answers in a row there")

    def failed(
        self, step: LadderStep, now: float, cause: str, *, certain: bool, of_its_own: bool = False
    ) -> Moved | None:
        """A request could not be answered at ``step``.

        ``certain``: nor could any other. ``of_its_own``: its caller may have brought that about, or its class.
        """
        self.asked_at = now
        at, aim = self._at, self._aim
        if step is self._steps[at]:
            if of_its_own or at == len(self._steps) - 1:
                return None
            self._failures += 1
            if not certain and self._failures < self._policy.failures:
                return None
            return self._go(at + 1, now, cause)
        if step is self._steps[aim] and now - self.since >= self._policy.hold_s:
            if not of_its_own:
                self._successes[aim] = 0
            self._aim = aim - 1 if aim else max(0, at - 1)
        return None

    def _go(self, at: int, now: float, cause: str) -> Moved:
        moved = Moved(self._steps[self._at], self._steps[at], cause)
        self.since = now
        self._settle(at)
        return moved

    def _settle(self, at: int) -> None:
        self._at = at
        self._aim = max(0, at - 1)
        self._failures = 0
        self._successes = {}
