"""A limit on what is in flight at an endpoint that follows its latency: learned in batches, made anew per tick. Pure.

The law is that of the gradient limiters of Netflix's concurrency-limits: ``limit x gradient + sqrt(limit)``, smoothed,
where the gradient is how much latency has risen over its low, with some tolerance, between 1/2 and 1. As there in the
first of them, and in Envoy's adaptive concurrency filter, the low is measured anew every so often with less in flight,
since in a lasting overload the low of what was seen is that of a queue. Errors that say "too much" cut the limit by a
tenth (AIMD). ADR 0021 has the comparison.

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
"""What is left of the limit while the low is measured."""

Key = tuple[str, str]


class _Model:
    """What is known of one model's latency at the endpoint, seconds. ``low`` is 0 while nothing is."""

    __slots__ = ("low", "recent")

    def __init__(self) -> None:
        self.low = 0.0
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
            elif now - self._began_at >= policy.most_s:
                self._end_probe(now)  # it never came down to that
            return self.limit
        if self._number < policy.samples and (now - self._began_at < policy.most_s or not self._number):
            if self._probe and now - self._began_at >= policy.most_s:
                self._end_probe(now)
            return self.limit
        if self._probe:
            for model in self._models.values():
                if len(model.recent) >= FEW:
                    model.low = median(model.recent) or 0.0
            self._end_probe(now)
            return self.limit
        rise = self._rise()
        if rise:
            exact = self._exact
            gradient = min(max(policy.tolerance / rise, LEAST_GRADIENT), 1.0)
            target = exact * gradient + sqrt(exact)
            if target < exact or wanted or in_flight * 2 >= exact:
                self._set(exact + (target - exact) * SMOOTHING)
        self._forget(now)
        turn = self._turn_of(now)
        if turn != self._turn and self.limit > policy.min:
            self._turn = turn
            self._probe = True
            self._probe_from = inf
            self.limit = max(policy.min, int(self._exact * PROBE_RATIO))
        return self.limit

    def _rise(self) -> float:
        """Return latency over its low, averaged over models by their attempts; 0 where nothing can be said."""
        total = weight = 0.0
        for model in self._models.values():
            number = len(model.recent)
            if number < FEW:
                continue
            recent = median(model.recent) or 0.0
            if not model.low or recent < model.low:
                model.low = recent
            total += number * (recent / model.low if model.low else 1.0)
            weight += number
        return total / weight if weight else 0.0

    def _set(self, exact: float) -> None:
        self._exact = min(max(exact, float(self._policy.min)), float(self._policy.max))
        if not self._probe:
            self.limit = int(self._exact)

    def _end_probe(self, now: float) -> None:
        self._probe = False
        self._probe_from = inf
        self.limit = int(self._exact)
        self._forget(now)

    def _forget(self, now: float) -> None:
        for model in self._models.values():
            model.recent.clear()
        self._number = 0
        self._began_at = now
