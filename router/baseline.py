"""How long calls usually take: a quantile that is learned slowly, so that a surge stands out against it."""

from __future__ import annotations

from math import exp, inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from router.policy import BreakerPolicy

LEARN_MOST_S: Final = 10.0
"""What was measured after a pause counts as having held for so long at most: nothing was seen of the time between."""

DOWN: Final = 10.0
"""It comes down so many times as fast as it goes up: what is slow first may just have started."""


class Baseline:
    """The usual P95 of one model version on one endpoint. ``ms`` is None until ``surge_minimum_samples`` were seen.

    It follows the measured P95 by ratio, so that one of ten times as much moves it up in a minute by a quarter, not by
    all of it. A surge that stays becomes the usual over ``surge_baseline_s``.
    """

    __slots__ = ("_learned_at", "ms", "policy")

    def __init__(self, policy: BreakerPolicy) -> None:
        self.policy = policy
        self.ms: float | None = None
        self._learned_at = -inf

    def learn(self, p95_ms: float | None, samples: int, now: float) -> None:
        """Take the P95 that is measured now, of so many samples."""
        if p95_ms is None:
            return
        known = self.ms
        if known is None:
            if samples >= self.policy.surge_minimum_samples:
                self.ms = p95_ms
                self._learned_at = now
            return
        for_s = min(now - self._learned_at, LEARN_MOST_S)
        self._learned_at = now
        time_s = self.policy.surge_baseline_s if p95_ms > known else self.policy.surge_baseline_s / DOWN
        self.ms = p95_ms * float((known / p95_ms) ** exp(-for_s / time_s))

    @property
    def slow_ms(self) -> float:
        """A call that took longer is a slow one; infinity while nothing is known, or where surges do not matter."""
        policy = self.policy
        if self.ms is None or not policy.surge:
            return inf
        return max(self.ms * policy.surge_factor, self.ms + policy.surge_least_ms)
