"""A limit on what is in flight at an endpoint that follows its latency: learned in batches, made anew per tick. Pure.

The law is that of the gradient limiters of Netflix's concurrency-limits, ``limit x gradient + sqrt(limit)``, smoothed,
where the gradient is how much latency has risen over its low, with some tolerance, between 1/2 and 1; only here it
multiplies the root as well, else the queue of a small endpoint is longer than what it works on. As there in the first
of them, and in Envoy's adaptive concurrency filter, the low is measured anew every so often with less in flight, since
in a lasting overload the low of what was seen is that of a queue. Envoy goes down to three; here the limit is halved
until latency falls no more, so a large endpoint loses little. Errors that say "too much" cut the limit by a tenth
(AIMD). ADR 0021 has the comparison.

Latencies of different models do not compare, so each has its own low, and their rises are averaged.
"""

from __future__ import annotations

from math import inf, sqrt
from typing import TYPE_CHECKING, Final
from zlib import crc32

from router.stats import median

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.policy import ConcurrencyPolicy

SMOOTHING: Final = 0.2
"""How much of a change is made at once."""
LEAST_GRADIENT: Final = 0.5
DROPPED: Final = 0.9
"""What is left of the limit after an error that says "too much"."""
KEPT: Final = 512
"""Latencies of one batch that are looked at, of each model."""
FEW: Final = 3
"""Fewer of one model say nothing."""
KEYS: Final = 64
"""Models told apart at one endpoint."""
PROBE_RATIO: Final = 0.5
"""What is left of the limit in each step of measuring the low."""
FALLS: Final = 0.65
"""Latency fell in a step where it was below so much of what it was before: there was a queue, so there may be still."""

Key = tuple[str, str]


class _Model:
    """What is known of one model's latency at the endpoint, seconds. ``low`` is 0 while nothing is.

    ``step`` is its median in the last step of measuring the low, 0 before the first.
    """

    __slots__ = ("low", "recent", "step")

    def __init__(self) -> None:
        self.low = 0.0
        self.step = 0.0
        self.recent: list[float] = []


class AdaptiveLimit:
    """The limit of one endpoint in one process. Times are monotonic seconds.

    All processes of a host measure an endpoint's low at the same time, each endpoint at its own.
    """

    __slots__ = (
        "_began_at",
        "_dropped",
        "_exact",
        "_models",
        "_number",
        "_phase",
        "_policy",
        "_probe",
        "_probe_from",
        "_probe_now",
        "_rose",
        "_skip",
        "_turn",
        "limit",
    )

    def __init__(self, name: str, policy: ConcurrencyPolicy, now: float) -> None:
        self._policy = policy
        self._exact = float(min(max(policy.initial, policy.min), policy.max))
        self._models: dict[Key, _Model] = {}
        self._number = 0
        self._began_at = now
        self._dropped = False
        self._phase = crc32(name.encode()) / (1 << 32)
        self._turn = self._turn_of(now)
        self._probe = False
        self._probe_from = inf  # what was taken before was sent with more in flight
        self._probe_now = False  # a model's first low may be that of a queue
        self._rose = 1.0
        self._skip = 0
        self.limit = int(self._exact)

    def configure(self, policy: ConcurrencyPolicy, now: float) -> None:
        """Go by another policy from now on."""
        self._policy = policy
        self._exact = min(max(self._exact, float(policy.min)), float(policy.max))
        self._turn = self._turn_of(now)
        self.limit = int(self._exact)

    def _turn_of(self, now: float) -> int:
        return int(now / self._policy.probe_s + self._phase)

    @property
    def probing(self) -> bool:
        """Whether it is lower for a moment, to measure the low."""
        return self._probe

    def low_s(self, key: Key) -> float | None:
        """Return the low of a model's latency, None where it is not known."""
        model = self._models.get(key)
        return None if model is None or not model.low else model.low

    def take(self, key: Key, seconds: Sequence[float]) -> None:
        """Take what successful attempts of one model took."""
        model = self._models.get(key)
        if model is None:
            if len(self._models) >= KEYS:
                return
            model = self._models[key] = _Model()
        if self._skip:
            skip = min(self._skip, len(seconds))
            self._skip -= skip
            seconds = seconds[skip:]
        self._number += len(seconds)
        if len(model.recent) < KEPT:
            model.recent.extend(seconds[: KEPT - len(model.recent)])

    def dropped(self) -> None:
        """An attempt ended in a way that says "too much": pushed back, or not in time."""
        self._dropped = True

    def update(self, in_flight: int, *, wanted: bool, now: float) -> int:
        """Make the limit anew where there is enough to go by, and return it.

        ``wanted``: somebody found the endpoint at its limit since the last call. A limit that is not used says nothing,
        so it does not grow.
        """
        policy = self._policy
        if self._dropped:
            self._dropped = False
            self._set(self._exact * DROPPED)
        if self._probe and self._probe_from == inf:
            if in_flight <= self.limit:  # what is sent from now on has little beside it
                self._probe_from = now
                self._forget(now)
                self._skip = in_flight
            elif now - self._began_at >= policy.most_s:
                self._end_probe(now)  # it never came down to that
            return self.limit
        if self._number < policy.samples and (now - self._began_at < policy.most_s or not self._number):
            if self._probe and now - self._began_at >= policy.most_s:
                self._end_probe(now)
            return self.limit
        rise = self._rise()
        if self._probe:
            if rise and rise < self._rose * FALLS and self.limit > 1:
                self._step_down(rise, self.limit, now)
            else:
                self._end_probe(now)
            return self.limit
        used = wanted or in_flight * 2 >= self._exact
        if rise:
            exact = self._exact
            gradient = min(max(policy.tolerance / rise, LEAST_GRADIENT), 1.0)
            target = (exact + sqrt(exact)) * gradient
            if target < exact or used:
                self._set(exact + (target - exact) * SMOOTHING)
        self._forget(now)
        turn = self._turn_of(now)
        if self.limit > 1 and (turn != self._turn or (self._probe_now and used)):
            self._turn = turn
            self._probe = True
            self._step_down(inf if self._probe_now else rise or 1.0, self.limit, now)
        self._probe_now = False
        return self.limit

    def _step_down(self, rise: float, limit: int, now: float) -> None:
        """Measure the low with half of ``limit`` in flight, at which latency had risen so much over the low before.

        ``rise`` is infinite where that is not known: the first answers of a burst had less before them than its last.
        """
        self._rose = rise
        self._probe_from = inf
        self.limit = max(1, int(limit * PROBE_RATIO))
        self._forget(now)

    def _rise(self) -> float:
        """Return latency over its low, averaged over models by their attempts; 0 where nothing can be said."""
        total = weight = 0.0
        for model in self._models.values():
            number = len(model.recent)
            if number < FEW:
                continue
            recent = median(model.recent) or 0.0
            if self._probe:
                model.step = recent
            elif not model.low:
                self._probe_now = True
                model.low = recent
            elif recent < model.low:
                model.low += (recent - model.low) * SMOOTHING
            total += number * (recent / model.low if model.low else 1.0)
            weight += number
        return total / weight if weight else 0.0

    def _set(self, exact: float) -> None:
        self._exact = min(max(exact, float(self._policy.min)), float(self._policy.max))
        if not self._probe:
            self.limit = int(self._exact)

    def _end_probe(self, now: float) -> None:
        """Go on with the limit from before; the low is that of the last step, where there was one."""
        for model in self._models.values():
            model.low = model.step or model.low
            model.step = 0.0
        self._probe = False
        self._probe_from = inf
        self.limit = int(self._exact)
        self._forget(now)

    def _forget(self, now: float) -> None:
        for model in self._models.values():
            model.recent.clear()
        self._number = 0
        self._skip = 0
        self._began_at = now
