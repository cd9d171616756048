"""What sidecars tell each other of latency: the form of sketches in the shared state, and how they are merged. Pure.

Each sidecar keeps one hash of its own, of which it writes only what changed, and publishes that::

    wr:{NS}:lat:SIDECAR   hash, expires: ``form``, and one field per replica: the sketch of its attempts there
    wr:{NS}:lats          sorted set: sidecar, scored by the server time in ms at which its hash expires
    wr:{NS}:latd          publish/subscribe channel: ``{"v", "from", "form", "rows": {field: sketch}}``

A field names a replica: ``[endpoint, epoch, model, version, shard]``. A sketch is the whole of what a sidecar measured
there within its window: (bucket, count) pairs, each bucket told as its distance from the one before. So a row replaces
the last one of the same sidecar, nothing depends on a message before it, and a lost one is made good by the next. An
empty sketch takes a row back.

``form`` is the schema version, the relative error and the window. Buckets of another relative error are other buckets,
and counts of another window other counts: what has another form is refused, never merged.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from router.model import WHOLE, ReplicaKey, ReplicaSketch
from router.stats import LEAST_MS, MOST_MS, LogBuckets
from router.wire import MAX_ID_CHARS, UNREADABLE, WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from router.policy import LatencyPolicy

VERSION: Final = 1
FORM_FIELD: Final = "form"

INTERVAL_S: Final = 5.0
"""A sidecar tells what changed this often, each time up to a fifth sooner or later at random,"""
MAX_MESSAGE_BYTES: Final = 48 * 1024
"""in messages of at most this size,"""
MAX_MESSAGES: Final = 2
"""of which there are at most so many: rows that did not fit come first the next time."""

MAX_BUCKETS: Final = 64
"""Buckets of one sketch; the lowest of more are told as one, so the upper quantiles stay exact."""
MAX_PER_S: Final = 20_000
"""Attempts a second, all its window long, that one sidecar's row of one replica may speak of: so much it can weigh."""
MAX_NAME_CHARS: Final = 256
MAX_ROWS: Final = 65536
"""Rows taken from one sidecar."""
MAX_SIDECARS: Final = 256

_PAIR: Final = re.compile(r"-?[0-9]{1,6}:[0-9]{1,16}")

Pairs = tuple[tuple[int, int], ...]
"""A sketch: (bucket, count), in order of bucket."""


class Refused:
    """Why rows are not taken: what they are counted by."""

    FORM: Final = "form"
    MALFORMED: Final = "malformed"
    OVER_LIMIT: Final = "over_limit"
    ALL: Final = (FORM, MALFORMED, OVER_LIMIT)


class SketchError(WireError):
    """A sketch, row or message that is not taken; ``reason`` is one of :class:`Refused`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"latency: {detail}")
        self.reason = reason


class Merged(NamedTuple):
    """What all other sidecars together measured at one replica; ``sidecars``: how many of them there are."""

    key: ReplicaKey
    pairs: Pairs
    sidecars: int


def form_of(policy: LatencyPolicy) -> str:
    """Return what must be equal where sketches are to be merged."""
    return f"{VERSION} {policy.relative_error!r} {policy.window_s!r}"


# --- one sketch, one field ------------------------------------------------------------------------------------------


def bounded(counts: Mapping[int, int]) -> Pairs:
    """Return the pairs of ``counts``, the lowest put into one bucket where there are more than MAX_BUCKETS."""
    pairs = sorted(pair for pair in counts.items() if pair[1] > 0)
    if len(pairs) > MAX_BUCKETS:
        cut = len(pairs) - MAX_BUCKETS
        at, count = pairs[cut]
        pairs[: cut + 1] = [(at, count + sum(below for _, below in pairs[:cut]))]
    return tuple(pairs)


def most_count(window_s: float) -> int:
    """Return how many attempts one row may hold."""
    return math.ceil(window_s * MAX_PER_S)


def encode_sketch(counts: Mapping[int, int], most: int) -> str:
    """Return a sketch of at most so many attempts as text; empty where nothing was measured.

    Where there were more, each bucket is told by its share of them: that leaves the quantiles as they are.
    """
    before = 0
    parts = []
    pairs = bounded(counts)
    measured = sum(count for _, count in pairs)
    if measured > most:
        pairs = tuple((index, max(1, count * (most - MAX_BUCKETS) // measured)) for index, count in pairs)
    for index, count in pairs:
        parts.append(f"{index - before}:{count}")
        before = index
    return ",".join(parts)


def decode_sketch(text: str, buckets: LogBuckets, most: int) -> Pairs:
    """Read a sketch of the relative error of ``buckets`` and of at most so many attempts.

    Raises:
        SketchError: it is none, or more than a sketch may be.
    """
    if text == "":
        return ()
    lowest, highest = buckets.index(LEAST_MS), buckets.index(MOST_MS)
    parts = text.split(",", MAX_BUCKETS)
    if len(parts) > MAX_BUCKETS:
        raise SketchError(Refused.OVER_LIMIT, f"a sketch of more than {MAX_BUCKETS} buckets")
    at = measured = 0
    pairs: list[tuple[int, int]] = []
    for part in parts:
        if not _PAIR.fullmatch(part):
            raise SketchError(Refused.MALFORMED, f"{part[:64]!r} is no bucket and count")
        step, _, number = part.partition(":")
        at += int(step)
        count = int(number)
        if not lowest <= at <= highest:
            raise SketchError(Refused.OVER_LIMIT, f"bucket {at} is not within {lowest} and {highest}")
        if pairs and at <= pairs[-1][0]:
            raise SketchError(Refused.MALFORMED, f"bucket {at} comes after bucket {pairs[-1][0]}")
        measured += count
        if count == 0 or measured > most:
            raise SketchError(Refused.OVER_LIMIT, f"a count of {count}, at most {most} in a row")
        pairs.append((at, count))
    return tuple(pairs)


def encode_key(key: ReplicaKey) -> str:
    """Return the field of a replica."""
    return json.dumps(key, separators=(",", ":"), ensure_ascii=False)


def decode_key(text: object) -> ReplicaKey:
    """Read a field.

    Raises:
        SketchError: it names no replica.
    """
    try:
        endpoint, epoch, model, version, shard = json.loads(_text(text, 4 * MAX_NAME_CHARS))
        if isinstance(shard, bool) or not isinstance(shard, int) or not WHOLE <= shard <= MAX_ROWS:
            raise SketchError(Refused.MALFORMED, f"shard {str(shard)[:64]!r}")
        return ReplicaKey(
            _text(endpoint, MAX_ID_CHARS),
            _text(epoch, MAX_ID_CHARS),
            _text(model, MAX_NAME_CHARS),
            _text(version, MAX_NAME_CHARS),
            shard,
        )
    except SketchError:
        raise
    except UNREADABLE as error:
        raise SketchError(Refused.MALFORMED, f"{str(text)[:64]!r} names no replica") from error


def _text(value: object, most: int) -> str:
    if not isinstance(value, str):
        raise SketchError(Refused.MALFORMED, f"{str(value)[:64]!r} is not text")
    if len(value) > most:
        raise SketchError(Refused.OVER_LIMIT, f"text of {len(value)} characters, at most {most}")
    return value


def merge(sketches: Iterable[Pairs]) -> Pairs:
    """Return the sketch of all that was measured in any of ``sketches``; the order makes no difference."""
    counts: Counter[int] = Counter()
    for pairs in sketches:
        for index, count in pairs:
            counts[index] += count
    return tuple(sorted(counts.items()))


# --- telling --------------------------------------------------------------------------------------------------------


class Telling:
    """What this sidecar has told, and so what it has to tell now: rows that changed, first those that waited longest.

    A row is told again after a quarter of the window, changed or not; the hash lives for half of it.
    """

    def __init__(self, policy: LatencyPolicy) -> None:
        self._told: dict[ReplicaKey, tuple[int, float]] = {}  # its changes then, and when
        self._set(policy)

    def _set(self, policy: LatencyPolicy) -> None:
        self.form = form_of(policy)
        self.ttl_s = policy.window_s / 2
        self._most = most_count(policy.window_s)

    def configure(self, policy: LatencyPolicy) -> None:
        """Go by another policy from now on; where its form is another, everything is to be told anew."""
        if form_of(policy) != self.form:
            self._told.clear()
        self._set(policy)

    def forget(self) -> None:
        """What was told is lost: the store was emptied, or another connection has to begin."""
        self._told.clear()

    def due(self, rows: Iterable[ReplicaSketch], now: float) -> list[list[str]]:
        """Return what to tell, in messages of fields and sketches in turn. ``rows`` are all that there are."""
        told = self._told
        left = set(told)
        waiting: list[tuple[float, ReplicaSketch]] = []
        for row in rows:
            if not row.counts:
                continue
            changes, at = told.get(row.key, (-1, -math.inf))
            left.discard(row.key)
            if changes != row.changes or now - at >= self.ttl_s / 2:
                waiting.append((at, row))
        waiting.sort(key=_waited)
        out = _Messages()
        for key in left:
            if not out.add(encode_key(key), ""):
                break
            del told[key]
        for _, row in waiting:
            if not out.add(encode_key(row.key), encode_sketch(row.counts, self._most)):
                break
            told[row.key] = row.changes, now
        return out.messages


def _waited(waiting: tuple[float, ReplicaSketch]) -> float:
    return waiting[0]


class _Messages:
    """Fields and sketches, as many as may be told at once."""

    def __init__(self) -> None:
        self.messages: list[list[str]] = []
        self._bytes = MAX_MESSAGE_BYTES

    def add(self, field: str, sketch: str) -> bool:
        """Take one; False where there is no more room."""
        size = 2 * len(field.encode()) + len(sketch) + 8  # quotes in a field are escaped in the message
        if self._bytes + size > MAX_MESSAGE_BYTES:
            if len(self.messages) == MAX_MESSAGES:
                return False
            self.messages.append([])
            self._bytes = 0
        self._bytes += size
        self.messages[-1] += (field, sketch)
        return True


# --- hearing --------------------------------------------------------------------------------------------------------


class Heard:
    """What other sidecars told, row by row, and what of it has changed since it was last taken.

    Only rows of replicas that are ``known`` here are kept, so there are never more than replicas times sidecars. Each
    counts for one window since it came: a sidecar that is silent, or a store that is, leaves own measurements alone.
    """

    def __init__(self, own: str, policy: LatencyPolicy, known: Callable[[ReplicaKey], bool]) -> None:
        """``own`` is this sidecar's name, whose rows are not heard."""
        self._own = own
        self._known = known
        self._rows: dict[ReplicaKey, dict[str, tuple[Pairs, float]]] = {}
        self._sidecars: dict[str, float] = {}  # when each was last heard
        self._changed: dict[ReplicaKey, None] = {}
        self.refused: Counter[str] = Counter()
        self.complaints: list[str] = []
        """Why something was refused, since last taken away by the shell (which logs them)."""
        self.taken = 0
        self._set(policy)

    def _set(self, policy: LatencyPolicy) -> None:
        self.form = form_of(policy)
        self._window_s = policy.window_s
        self._most = most_count(policy.window_s)
        self._buckets = LogBuckets(policy.relative_error)

    def configure(self, policy: LatencyPolicy) -> None:
        """Go by another policy from now on; where its form is another, nothing that was heard can be used."""
        if form_of(policy) != self.form:
            self._changed.update(dict.fromkeys(self._rows))
            self._rows.clear()
        self._set(policy)

    @property
    def sidecars(self) -> int:
        """Other sidecars whose latencies count now."""
        return len(self._sidecars)

    def message(self, payload: bytes | str, now: float) -> None:
        """Take in a message of the channel."""
        try:
            raw = json.loads(payload)
            if raw["v"] != VERSION:
                raise SketchError(Refused.FORM, f"schema version {str(raw['v'])[:64]!r}, this is {VERSION}")
            told_by = _text(raw["from"], MAX_NAME_CHARS)
            form, rows = raw["form"], raw["rows"]
            if not isinstance(rows, dict):
                raise SketchError(Refused.MALFORMED, "rows are no object")
        except SketchError as error:
            self._refuse(error)
        except UNREADABLE as error:
            self._refuse(SketchError(Refused.MALFORMED, f"{type(error).__name__} in a message"))
        else:
            self._take(told_by, form, rows, now)

    def whole(self, sidecar: str, fields: Mapping[str, str], now: float) -> None:
        """Take in the hash of one sidecar."""
        self._take(sidecar, fields.get(FORM_FIELD), {k: v for k, v in fields.items() if k != FORM_FIELD}, now)

    def _take(self, told_by: str, form: object, rows: Mapping[str, Any], now: float) -> None:
        if told_by == self._own:
            return
        if form != self.form:
            self._refuse(SketchError(Refused.FORM, f"{told_by[:64]}: {str(form)[:64]!r}, here it is {self.form!r}"))
            return
        if len(rows) > MAX_ROWS or (told_by not in self._sidecars and len(self._sidecars) >= MAX_SIDECARS):
            self._refuse(SketchError(Refused.OVER_LIMIT, f"more than {MAX_ROWS} rows or {MAX_SIDECARS} sidecars"))
            return
        self._sidecars[told_by] = now
        for field, sketch in rows.items():
            try:
                key = decode_key(field)
                pairs = decode_sketch(_text(sketch, MAX_BUCKETS * 33), self._buckets, self._most)
            except SketchError as error:
                self._refuse(error)
                continue
            if pairs and self._known(key):
                self._rows.setdefault(key, {})[told_by] = pairs, now
                self._changed[key] = None
                self.taken += 1
            elif self._drop(key, told_by):
                self._changed[key] = None

    def _drop(self, key: ReplicaKey, sidecar: str) -> bool:
        rows = self._rows.get(key)
        if rows is None or rows.pop(sidecar, None) is None:
            return False
        if not rows:
            del self._rows[key]
        return True

    def _refuse(self, error: SketchError) -> None:
        self.refused[error.reason] += 1
        if len(self.complaints) < 16:  # the shell logs a few, the count says how many there were
            self.complaints.append(str(error))

    def expire(self, now: float) -> None:
        """Drop what came a window ago, and what belongs to replicas that are not known any more."""
        before = now - self._window_s
        self._sidecars = {name: at for name, at in self._sidecars.items() if at > before}
        for key in list(self._rows):
            rows = self._rows[key]
            if not self._known(key):
                del self._rows[key]
                self._changed.pop(key, None)
                continue
            old = [name for name, (_, at) in rows.items() if at <= before]
            for name in old:
                self._drop(key, name)
            if old:
                self._changed[key] = None

    def changed(self) -> Iterator[Merged]:
        """Yield what changed since this was last asked for, merged over sidecars; empty pairs where nothing is left."""
        changed, self._changed = self._changed, {}
        for key in changed:
            yield self._merged(key)

    def all(self) -> Iterator[Merged]:
        """Yield everything."""
        for key in self._rows:
            yield self._merged(key)

    def _merged(self, key: ReplicaKey) -> Merged:
        rows = self._rows.get(key, {})
        return Merged(key, bounded(dict(merge(pairs for pairs, _ in rows.values()))), len(rows))
