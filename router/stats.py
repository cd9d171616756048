"""Measuring without a clock of its own: quantile sketches that merge, sliding counts, the median.

The sketch is the log-bucket one of DDSketch (Masson, Rim, Lee, VLDB 2019): bucket ``i`` holds the values in
(g^(i-1), g^i] with g = (1 + a) / (1 - a), so whatever quantile is asked for is off by at most the ratio a, and two
sketches of the same a merge by adding counts. Buckets travel between processes as (index, count) pairs.
"""

from __future__ import annotations

from math import ceil, log
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LEAST_MS: Final = 1e-3
MOST_MS: Final = 1e8
"""Latencies are clamped to [1 µs, 28 h], which bounds the number of buckets (259 at 5% error)."""


class LogBuckets:
    """The arithmetic of log buckets for one relative error.

    ``scale`` is 1 / ln(gamma): the index of a value ``v`` is ``ceil(ln(v) * scale)``.
    """

    __slots__ = ("gamma", "scale")

    def __init__(self, relative_error: float) -> None:
        self.gamma = (1 + relative_error) / (1 - relative_error)
        self.scale = 1 / log(self.gamma)

    def index(self, value: float) -> int:
        """Return the bucket of ``value``, which is clamped to [LEAST_MS, MOST_MS]."""
        return ceil(log(min(max(value, LEAST_MS), MOST_MS)) * self.scale)

    def value(self, index: int) -> float:
        """Return the value that stands for a bucket: within the relative error of everything in it."""
        return float(2 * self.gamma**index / (self.gamma + 1))


def rebucketed(counts: dict[int, int], old: LogBuckets, new: LogBuckets) -> dict[int, int]:
    """Return the counts of ``old`` buckets as counts of ``new`` ones, each at its bucket's value."""
    out: dict[int, int] = {}
    for index, count in counts.items():
        to = new.index(old.value(index))
        out[to] = out.get(to, 0) + count
    return out


class SketchWindow:
    """A quantile sketch over the last ``window_s``, in ``slots`` that expire whole."""

    __slots__ = ("_buckets", "_counts", "_ends", "_slot_s", "_slots", "total")

    def __init__(self, buckets: LogBuckets, window_s: float, slots: int, now: float) -> None:
        self._buckets = buckets
        self._slot_s = window_s / slots
        self._slots: list[dict[int, int]] = [{} for _ in range(slots)]  # the newest is last
        self._ends = now + self._slot_s
        self._counts: dict[int, int] = {}  # the slots' sum
        self.total = 0

    def add(self, pairs: Iterable[tuple[int, int]], now: float) -> None:
        """Add (bucket index, count) pairs that were measured about ``now``; counts below 1 are left out."""
        self.advance(now)
        newest, counts = self._slots[-1], self._counts
        for index, count in pairs:
            if count > 0:
                newest[index] = newest.get(index, 0) + count
                counts[index] = counts.get(index, 0) + count
                self.total += count

    def remade(self, buckets: LogBuckets, window_s: float, slots: int, now: float) -> SketchWindow:
        """Return a window of another form with the same content, all of it as if measured now."""
        self.advance(now)
        new = SketchWindow(buckets, window_s, slots, now)
        new.add(rebucketed(self._counts, self._buckets, buckets).items(), now)
        return new

    def advance(self, now: float) -> bool:
        """Drop what has left the window; True where anything was dropped."""
        before = self.total
        steps = 0
        while now >= self._ends and steps < len(self._slots):
            self._drop(self._slots.pop(0))
            self._slots.append({})
            self._ends += self._slot_s
            steps += 1
        if now >= self._ends:  # a gap longer than the window
            self._ends = now + self._slot_s
        return self.total != before

    def _drop(self, slot: dict[int, int]) -> None:
        counts = self._counts
        for index, count in slot.items():
            self.total -= count
            left = counts[index] - count
            if left:
                counts[index] = left
            else:
                del counts[index]

    def quantiles(self, ratios: Sequence[float]) -> list[float] | None:
        """Return the values at ``ratios`` (ascending, each in [0, 1]), or None where nothing was measured."""
        return quantiles_of(self._counts, self._buckets, ratios)

    @property
    def counts(self) -> dict[int, int]:
        """Counts by bucket of all that is in the window, as of the last :meth:`advance`. Not to be changed."""
        return self._counts


def quantiles_of(counts: dict[int, int], buckets: LogBuckets, ratios: Sequence[float]) -> list[float] | None:
    """Return the values at ``ratios`` (ascending, each in [0, 1]) of a sketch, or None where it is empty."""
    if not counts:
        return None
    ordered = sorted(counts.items())
    total = sum(counts.values())
    last = len(ordered) - 1
    out: list[float] = []
    position, below = 0, ordered[0][1]
    for ratio in ratios:
        rank = ceil(ratio * total)  # nearest rank: with few values the larger one
        while below < rank and position < last:
            position += 1
            below += ordered[position][1]
        out.append(buckets.value(ordered[position][0]))
    return out


class SlidingCounts:
    """Two counts, ``yes`` and ``no``, over a sliding window of ``slots`` steps.

    A hot path may do by hand what :meth:`add` does: call :meth:`turn` where ``now >= ends``, then increment ``yes``
    or ``no``. Nothing older than the window is ever counted; between one slot less and the whole window is.
    """

    __slots__ = ("_past", "_past_no", "_past_yes", "_slot_s", "ends", "no", "yes")

    def __init__(self, window_s: float, now: float, slots: int = 10) -> None:
        self._slot_s = window_s / slots
        self._past: list[tuple[int, int]] = [(0, 0)] * (slots - 1)  # the newest is last
        self._past_yes = 0
        self._past_no = 0
        self.yes = 0
        self.no = 0
        self.ends = now + self._slot_s

    def turn(self, now: float) -> None:
        """Open the slot that ``now`` falls in."""
        steps = int((now - self.ends) / self._slot_s) + 1
        if steps > len(self._past):
            self.clear(now)
            return
        for _ in range(steps):
            yes, no = self._past.pop(0)
            self._past_yes += self.yes - yes
            self._past_no += self.no - no
            self._past.append((self.yes, self.no))
            self.yes = self.no = 0
        self.ends += steps * self._slot_s
        if now >= self.ends:  # floating point left it one step short
            self.ends = now + self._slot_s

    def add(self, yes: int, no: int, now: float) -> None:
        """Count."""
        if now >= self.ends:
            self.turn(now)
        self.yes += yes
        self.no += no

    def totals(self, now: float) -> tuple[int, int]:
        """Return (yes, no) over the window."""
        if now >= self.ends:
            self.turn(now)
        return self._past_yes + self.yes, self._past_no + self.no

    def peek(self, now: float) -> tuple[int, int]:
        """Return (yes, no) over the window and change nothing."""
        if now < self.ends:
            return self._past_yes + self.yes, self._past_no + self.no
        left = self._past[int((now - self.ends) / self._slot_s) + 1 :]
        if int((now - self.ends) / self._slot_s) + 1 > len(self._past):
            return 0, 0
        return sum(yes for yes, _ in left) + self.yes, sum(no for _, no in left) + self.no

    def remade(self, window_s: float, now: float) -> SlidingCounts:
        """Return counts over another window that begin with the totals of this one, all of them as if counted now."""
        new = SlidingCounts(window_s, now)
        new.yes, new.no = self.totals(now)
        return new

    def clear(self, now: float) -> None:
        """Forget everything."""
        self._past = [(0, 0)] * len(self._past)
        self._past_yes = self._past_no = self.yes = self.no = 0
        self.ends = now + self._slot_s


class RecentMean:
    """The mean of what was added to a running total, by its running count, over about the last ``window_s``.

    For counters of other processes, which begin at 0 again when those do.
    """

    __slots__ = ("_points", "_step_s", "_window_s")

    def __init__(self, window_s: float, slots: int = 12) -> None:
        self._window_s = window_s
        self._step_s = window_s / slots
        self._points: list[tuple[float, float, float]] = []  # when, total, count; the oldest is first

    def take(self, total: float, count: float, now: float) -> float | None:
        """Take where the counters stand; return the mean, None where nothing was counted within the window."""
        points = self._points
        if points and (total < points[-1][1] or count < points[-1][2]):
            points.clear()
        if not points or now - points[-1][0] >= self._step_s:
            points.append((now, total, count))
        while len(points) > 1 and now - points[1][0] >= self._window_s:
            del points[0]
        _, from_total, from_count = points[0]
        return (total - from_total) / (count - from_count) if count > from_count else None


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of the known values, the mean of the middle two where they are even; None for none."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    middle = len(known) // 2
    return known[middle] if len(known) % 2 else (known[middle - 1] + known[middle]) / 2
