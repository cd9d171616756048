"""Adds up what was joined and what was not, in as much memory however long it goes on. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from router.stats import LogBuckets, quantiles_of
from sidecar.traffic.attribution.joining import Orphan, Side, apart_s
from sidecar.traffic.comparing.statistics import wilson

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.traffic.attribution.joining import Half, Joined

MAX_ROWS: Final = 100
"""Versions, or workers, that have a row of their own; what else comes shares one."""
OTHERS: Final = "(others)"
UNNAMED: Final = "(not named)"
RELATIVE_ERROR: Final = 0.01
"""Of quantiles."""
CONFIDENCE: Final = 0.95
"""Of the interval of an error rate."""
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
PARTS: Final = ("caller", "worker", "queue", "run", "between")
"""Times that are told: what callers waited, what workers took, of that the wait and the run, and what the way added."""
_BUCKETS: Final = LogBuckets(RELATIVE_ERROR)


class Times:
    """Quantiles of times, to 1%."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, time_s: float) -> None:
        """Add one, seconds; below 0 counts as 0."""
        index = _BUCKETS.index(1000 * time_s)
        self._counts[index] = self._counts.get(index, 0) + 1

    def quantiles_ms(self) -> dict[str, float] | None:
        """Return milliseconds by name of :data:`QUANTILES`, None where there are no times."""
        found = quantiles_of(self._counts, _BUCKETS, tuple(QUANTILES.values()))
        if found is None:
            return None
        return {name: round(value, 3) for name, value in zip(QUANTILES, found, strict=True)}


@dataclass(slots=True)
class Row:
    """One version, or one worker. ``failed``: callers' requests that were joined here and had failed for them.

    ``unmatched``: its halves that were not joined. ``attempts``: its halves of requests that another one answered.
    """

    joined: int = 0
    failed: int = 0
    unmatched: Counter[Orphan] = field(default_factory=Counter)
    attempts: int = 0
    attempts_failed: int = 0
    times: dict[str, Times] = field(default_factory=lambda: {name: Times() for name in PARTS})

    def add(self, one: Joined) -> None:
        """Add a request."""
        caller, worker = one.caller, one.worker
        self.joined += 1
        self.failed += caller.failed
        parts = (caller.took_s, worker.took_s, worker.queue_s, worker.run_s, caller.took_s - worker.took_s)
        for name, time_s in zip(PARTS, parts, strict=True):
            if time_s is not None:
                self.times[name].add(time_s)

    def figures(self) -> dict[str, Any]:
        """Return everything it says."""
        found: dict[str, Any] = {
            "requests": self.joined + self.unmatched.total(),
            "joined": self.joined,
            "unmatched": {why.value: count for why, count in sorted(self.unmatched.items())},
            "attempts": {"count": self.attempts, "failed": self.attempts_failed},
            "failed": self.failed,
            "error_ratio": None,
            "error_interval": None,
        }
        if self.joined:
            found["error_ratio"] = self.failed / self.joined
            found["error_interval"] = [round(end, 9) for end in wilson(self.failed, self.joined, CONFIDENCE)]
        return found | {f"{name}_ms": times.quantiles_ms() for name, times in self.times.items()}


@dataclass(slots=True)
class Apart:
    """Halves of one worker whose time did not fit their caller's: from how far behind to how far ahead it is."""

    count: int = 0
    least_s: float = 0.0
    most_s: float = 0.0

    def add(self, apart: float) -> None:
        """Add one."""
        self.least_s = min(self.least_s, apart) if self.count else apart
        self.most_s = max(self.most_s, apart) if self.count else apart
        self.count += 1


class Tally:
    """Hears of what a join does. ``key``: in which row a worker's half is."""

    def __init__(self, key: Callable[[Half], str]) -> None:
        self._key = key
        self.rows: defaultdict[str, Row] = defaultdict(Row)
        self.apart: defaultdict[str, Apart] = defaultdict(Apart)

    def take(self, one: Joined) -> None:
        """Count a join."""
        self._row(one.worker).add(one)

    def other(self, half: Half) -> None:
        """Count an attempt that was not the one that answered."""
        row = self._row(half)
        row.attempts += 1
        row.attempts_failed += half.failed

    def lone(self, half: Half, why: Orphan, beside: Half | None) -> None:
        """Count an orphan."""
        if half.side is Side.CALLER:
            return
        self._row(half).unmatched[why] += 1
        if beside is not None:
            who = half.who if half.who in self.apart or len(self.apart) < MAX_ROWS else OTHERS
            self.apart[who].add(apart_s(beside, half))

    def _row(self, half: Half) -> Row:
        name = self._key(half) or UNNAMED
        return self.rows[name if name in self.rows or len(self.rows) < MAX_ROWS else OTHERS]
