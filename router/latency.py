"""What attempts on one replica took, measured without a clock: an average, and quantiles over a window."""

from __future__ import annotations

from collections import Counter
from math import ceil, exp, inf, log
from typing import TYPE_CHECKING, Final

from router.stats import LEAST_MS, MOST_MS, LogBuckets, SketchWindow, quantiles_of, rebucketed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.policy import LatencyPolicy

_LEAST_S: Final = LEAST_MS / 1000
_MOST_S: Final = MOST_MS / 1000

SETTLE_S: Final = 0.5
"""How old the quantiles may be that weights are made from."""

NO_BUCKET: Final = 1 << 30
"""Above the index of every bucket."""

IDLE_S: Final = 1.0
"""Without a sample for this long, the EWMA drifts to the median of the window."""

FORGOTTEN_S: Final = 10.0
"""Without a sample for this long, the EWMA is unknown again: who was slow is asked once more. It is as long as ten
answers take where that is more, and the window at most."""
_TEN_OF_THEM: Final = 10 / 1000

YOUNG_S: Final = 4.0
YOUNG_SAMPLES: Final = 10
"""So long after the first sample, once there are so many, the EWMA is brought to the median of the window again and
again: else its first samples would weigh too much."""


class Latency:
    """What attempts on one replica took, own ones and those that sibling processes report.

    ``ewma_ms`` follows samples with the time constant ``ewma_decay_s``; 0 where nothing is known. Where ``peaks``, a
    longer sample replaces it at once and shorter ones pull it down over ``peak_decay_s``. ``slow_above`` is the bucket
    above which an attempt is a slow one. A sketch over the window gives ``own_p95_ms`` and ``p50_ms``; ``p95_ms`` is
    that of all sidecars, of which ``sidecars`` others count in it. ``changes`` counts the window's changes. A sample
    costs one bucket of ``fresh``; :meth:`settle` moves those to the window.
    """

    __slots__ = (
        "_buckets", "_changed", "_decay", "_drifted_at", "_others", "_others_at", "_peak_decay", "_settled_at",
        "_since", "_slots", "_unsent", "_window", "_window_s",
        "changes", "ewma_at", "ewma_ms", "fresh", "own_p95_ms", "p50_ms", "p95_ms", "peaks", "sampled_at", "sidecars",
        "slow_above",
    )  # fmt: skip

    def __init__(self, policy: LatencyPolicy, buckets: LogBuckets, *, peaks: bool = False) -> None:
        self._buckets = buckets
        self._decay = -1 / policy.ewma_decay_s
        self._peak_decay = -1 / policy.peak_decay_s
        self._window: SketchWindow | None = None  # made with the first measurement
        self._window_s = policy.window_s
        self._slots = policy.slots
        self._unsent: dict[int, int] = {}
        self._changed = False
        self._settled_at = -inf
        self._drifted_at = -inf
        self.fresh: dict[int, int] = {}
        self._since = inf  # when ``ewma_ms`` was found to be known at first
        self.peaks = peaks
        self.ewma_ms = 0.0
        self.slow_above = NO_BUCKET
        self.ewma_at = -inf  # so the first sample counts whole
        self.sampled_at = -inf
        self.p95_ms: float | None = None
        self.p50_ms: float | None = None
        self.own_p95_ms: float | None = None
        self.changes = 0
        self._others: dict[int, int] = {}
        self._others_at = -inf
        self.sidecars = 0

    def configure(self, policy: LatencyPolicy, buckets: LogBuckets, now: float) -> None:
        """Go by another policy from now on; what was measured stays."""
        self._decay = -1 / policy.ewma_decay_s
        self._peak_decay = -1 / policy.peak_decay_s
        old = self._buckets
        if buckets is old and policy.window_s == self._window_s and policy.slots == self._slots:
            return
        if self._window is not None:
            self._window = self._window.remade(buckets, policy.window_s, policy.slots, now)
        self._window_s = policy.window_s
        self._slots = policy.slots
        if buckets is not old:
            self._buckets = buckets
            self.fresh = rebucketed(self.fresh, old, buckets)
            self._unsent = rebucketed(self._unsent, old, buckets)
        self._others, self.sidecars = {}, 0  # whoever goes by this policy too will tell again
        self._changed = True
        self.changes += 1

    def sample(self, ms: float, now: float) -> None:
        """Take the duration of an attempt that succeeded."""
        self.count((ms / 1000,))
        self.average(ms, now)

    def slow_from(self, ms: float) -> None:
        """Have those count as slow that are in a bucket above that of ``ms``; infinity: none."""
        self.slow_above = NO_BUCKET if ms == inf else self._buckets.index(ms)

    def is_slow(self, ms: float) -> bool:
        """Return whether an attempt of this duration is a slow one."""
        return self.slow_above < NO_BUCKET and self._buckets.index(ms) > self.slow_above

    @property
    def samples(self) -> int:
        """How many attempts the quantiles are taken of."""
        return 0 if self._window is None else self._window.total

    def average(self, ms: float, now: float) -> None:
        """Take it into the EWMA alone."""
        ms = LEAST_MS if ms < LEAST_MS else min(ms, MOST_MS)
        average = self.ewma_ms
        if self.peaks:
            left = 0.0 if ms >= average else exp((now - self.ewma_at) * self._peak_decay)
        else:
            left = exp((now - self.ewma_at) * self._decay)
        self.ewma_ms = ms + (average - ms) * left
        self.ewma_at = now

    def count(self, seconds: Sequence[float]) -> int:
        """Take durations into the sketch alone; return how many of them were slow (:attr:`slow_above`)."""
        scale = self._buckets.scale
        if min(seconds) < _LEAST_S or max(seconds) > _MOST_S:
            seconds = [min(max(one, _LEAST_S), _MOST_S) for one in seconds]
        fresh = self.fresh
        slow_above = self.slow_above
        slow = 0
        for index, count in Counter([ceil(log(one * 1000.0) * scale) for one in seconds]).items():
            fresh[index] = fresh.get(index, 0) + count
            if index > slow_above:
                slow += count
        return slow

    def at_least(self, ms: float, now: float) -> None:
        """Take the duration of an attempt that did not succeed: it can only say "slower than thought"."""
        if ms > self.ewma_ms:
            self.ewma_ms = min(ms, MOST_MS)
            self.ewma_at = now

    def merge(self, pairs: tuple[tuple[int, int], ...], now: float) -> None:
        """Take a sibling process's buckets."""
        if pairs:
            self._filled(now).add(pairs, now)
            self._changed = True
            self.changes += 1
            self.sampled_at = now

    def told(self, pairs: tuple[tuple[int, int], ...], sidecars: int, at: float) -> None:
        """Take what other sidecars measured, in place of what they told before. It counts for one window from ``at``.

        It counts in ``p95_ms`` alone: averages, and what this sidecar tells in its turn, are of its own attempts.
        """
        self._others = dict(pairs)
        self._others_at = at
        self.sidecars = sidecars if pairs else 0
        self._changed = True

    @property
    def counts(self) -> dict[int, int]:
        """What this sidecar measured within the window, as of the last settling: counts by bucket. For reading."""
        return {} if self._window is None else self._window.counts

    def _filled(self, now: float) -> SketchWindow:
        if self._window is None:
            self._window = SketchWindow(self._buckets, self._window_s, self._slots, now)
        return self._window

    @property
    def idle(self) -> bool:
        """True where nothing was ever measured: there is nothing to settle or to tell."""
        return self._window is None and not self.fresh and not self._others and not self._changed

    def settle_seldom(self, now: float) -> None:
        """Settle where that was not done lately, or nothing is known yet."""
        if self.p95_ms is None or now - self._settled_at >= SETTLE_S:
            self.settle(now)

    def settle(self, now: float) -> None:
        """Bring the window and what is derived from it up to ``now``."""
        self._settled_at = now
        if self.fresh:
            self._filled(now).add(self.fresh.items(), now)
            for index, count in self.fresh.items():
                self._unsent[index] = self._unsent.get(index, 0) + count
            self.fresh = {}
            self._changed = True
            self.changes += 1
            self.sampled_at = max(self.sampled_at, self.ewma_at)
        elif self._window is not None and self._window.total and self._window.advance(now):
            self._changed = True
            self.changes += 1
        if self._others and now - self._others_at >= self._window_s:
            self._others, self.sidecars = {}, 0
            self._changed = True
        if self._changed:
            self._changed = False
            counts = self.counts
            values = quantiles_of(counts, self._buckets, (0.5, 0.95))
            self.p50_ms, self.own_p95_ms = values or (None, None)
            self.p95_ms = self.own_p95_ms
            if self._others:
                counts = counts.copy()
                for index, count in self._others.items():
                    counts[index] = counts.get(index, 0) + count
                values = quantiles_of(counts, self._buckets, (0.95,))
                self.p95_ms = values[0] if values else None
        if self.ewma_ms:
            self._regard(now)

    def _regard(self, now: float) -> None:
        """Mend what samples alone would say: while there are few, and after there were none for long."""
        if self._since > now:
            self._since = now
        idle_s = now - max(self.ewma_at, self._since)
        if idle_s >= max(FORGOTTEN_S, min(self._window_s, self.ewma_ms * _TEN_OF_THEM)):
            self.ewma_ms = 0.0
            self.ewma_at = -inf
        elif self.p50_ms is None:
            return
        elif idle_s >= IDLE_S:
            since_s = now - max(self.ewma_at, self._drifted_at)
            self.ewma_ms = self.p50_ms + (self.ewma_ms - self.p50_ms) * exp(since_s * self._decay)
            self._drifted_at = now
        elif now - self._since < YOUNG_S and not self.peaks and self.samples >= YOUNG_SAMPLES:
            self.ewma_ms = self.p50_ms

    def take_unsent(self, now: float) -> tuple[tuple[int, int], ...]:
        """Return own buckets since the last call, in order of index."""
        if self.fresh:
            self.settle(now)
        if not self._unsent:
            return ()
        pairs = tuple(sorted(self._unsent.items()))
        self._unsent = {}
        return pairs
