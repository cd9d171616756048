"""The metrics page: one shared mapping of u64 per data process, written there, read by the control process.

The supervisor makes one memory file per data process and keeps it, so counters survive a restart of either side. Rows
name themselves (their key stands in the page), so a reader needs nothing else to label them. One writer per page; a
reader may see a row half updated, never a torn u64.

Layout, in u64 words::

    0 magic   1 layout version   2 pid   3 start (monotonic ns)
    SCALARS   one word per member of Scalar
    MODELS    MODEL_ROWS rows of ROW_KEY_WORDS + MODEL_WORDS
    ENDPOINTS ENDPOINT_ROWS rows of ROW_KEY_WORDS + ENDPOINT_WORDS
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_left
from collections import Counter
from enum import IntEnum
from typing import TYPE_CHECKING

from router.outcomes import AttemptResult, Outcome
from router.overload import Resource

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

MAGIC = 0x77726D3100000000
LAYOUT = 2
MODEL_ROWS = 256
ENDPOINT_ROWS = 2048
ROW_KEY_WORDS = 32
"""256 bytes of UTF-8 key, zero-padded: longer keys are cut (the schema allows at most 128 characters)."""

BUCKETS_S: tuple[float, ...] = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1,
    0.15, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip
"""Upper bounds of the duration histograms, seconds: OpenTelemetry's advice, extended both ways for inference."""

_HISTOGRAM = len(BUCKETS_S) + 1


class Scalar(IntEnum):
    """Counters and gauges of a process without labels. Gauges end in ``_NOW`` and are zeroed when a process starts."""

    CONNECTIONS_TOTAL = 0
    CONNECTIONS_NOW = 1
    REQUESTS_NOW = 2
    RECEIVED_BYTES = 3  # from downstream, bodies and heads
    SENT_BYTES = 4  # to downstream
    UPSTREAM_CONNECTIONS_TOTAL = 5
    UPSTREAM_CONNECTIONS_NOW = 6
    UPSTREAM_POOLED_NOW = 7
    UPSTREAM_POISONED_TOTAL = 8  # idle connections dropped for stray bytes
    UPSTREAM_STALE_TOTAL = 9  # idle connections found closed when reused
    RETRIES_TOTAL = 10
    RETRIES_DENIED_TOTAL = 11  # budget spent
    REFUSED_CONNECTIONS_TOTAL = 12  # over the limit
    CHANNEL_DROPPED_TOTAL = 13
    CONTROL_LOST_NOW = 14  # 1 while the control process is silent
    STORE_MODE_NOW = 15  # index into router.model.StoreMode
    LOOP_LAG_US_NOW = 16
    FAULTS_INJECTED_TOTAL = 17
    DRAINING_NOW = 18
    RESTARTS_TOTAL = 19  # of this data process, counted by itself at start
    REJECTED_MESSAGES_TOTAL = 20  # requests refused for their form
    SLOW_READERS_TOTAL = 21
    CONNECTIONS_AGED_TOTAL = 22
    TUNNELS_TOTAL = 23
    TUNNELS_NOW = 24
    GRPC_RESENT_TOTAL = 25  # calls that a worker's GOAWAY left out, sent again
    OPEN_FILES_NOW = 26
    MAX_FILES_NOW = 27
    RESIDENT_BYTES_NOW = 28
    MEMORY_LIMIT_BYTES_NOW = 29
    TASKS_NOW = 30
    OVERLOAD_MEMORY_NOW = 31  # router.overload.Level, here and below
    OVERLOAD_DESCRIPTORS_NOW = 32
    OVERLOAD_LOOP_NOW = 33
    OVERLOAD_REFUSED_TOTAL = 34  # requests
    OVERLOAD_SHED_TOTAL = 35  # idle connections closed to make room
    TLS_HANDSHAKES_TOTAL = 36  # with callers, that succeeded
    TLS_HANDSHAKES_NOW = 37
    TLS_HANDSHAKES_FAILED_TOTAL = 38
    TLS_HANDSHAKES_REFUSED_TOTAL = 39  # over the limit, or no certificate to show
    TLS_PEERS_REJECTED_TOTAL = 40  # callers and workers, for their certificates
    TLS_UPSTREAM_FAILED_TOTAL = 41  # handshakes with workers
    TLS_RELOADS_TOTAL = 42
    TLS_RELOADS_FAILED_TOTAL = 43
    HEDGES_TOTAL = 44
    HEDGES_WON_TOTAL = 45
    HEDGES_DENIED_TOTAL = 46
    CONFIG_NOW = 47  # sequence number of the configuration in force
    ACCEPTING_NOW = 48  # 1 from when it accepts connections
    GRPC_REFUSED_TOTAL = 49  # streams of callers: over the calls at once, or too many given up early
    LOAD_REPORTS_TOTAL = 50  # in answers, that were taken; below, those that were refused
    LOAD_REPORTS_NAN_TOTAL = 51
    LOAD_REPORTS_INFINITE_TOTAL = 52
    LOAD_REPORTS_NEGATIVE_TOTAL = 53
    LOAD_REPORTS_NOT_A_NUMBER_TOTAL = 54
    LOAD_REPORTS_DUPLICATE_TOTAL = 55
    LOAD_REPORTS_MALFORMED_TOTAL = 56
    LOAD_REPORTS_OVER_LIMIT_TOTAL = 57
    BACKGROUND_TOTAL = 58  # attempts that no caller waited for
    NAME_LOOKUPS_TOTAL = 59  # of endpoints' hosts
    NAME_LOOKUPS_FAILED_TOTAL = 60
    NAME_LOOKUP_US_TOTAL = 61
    VERSION_MOVED_TOTAL = 62  # requests of a split whose version had nobody
    MIRRORS_TOTAL = 63  # copies of requests that were sent; below, those without a good answer, and those not sent
    MIRRORS_FAILED_TOTAL = 64
    MIRRORS_DROPPED_TOTAL = 65
    AFFINITY_HITS_TOTAL = 66  # requests that went where their prompt's beginning was seen; below, those that did not
    AFFINITY_DECLINED_TOTAL = 67  # because whoever saw it was at its bound
    AFFINITY_UNSEEN_TOTAL = 68  # because nobody had
    FAULTS_FAILED_TOTAL = 69  # attempts that faults struck, and that came to nothing; below, those struck, by kind
    FAULTS_DELAY_TOTAL = 70
    FAULTS_ABORT_TOTAL = 71
    FAULTS_RESET_TOTAL = 72
    FAULTS_BLACK_HOLE_TOTAL = 73
    FAULTS_BANDWIDTH_TOTAL = 74
    FAULTS_SLICING_TOTAL = 75
    FAULTS_TRUNCATE_TOTAL = 76
    FAULTS_SLOW_CLOSE_TOTAL = 77
    FAULTS_CORRUPT_TOTAL = 78
    FAULTS_FIRST_BYTE_TOTAL = 79
    FAULTS_CUT_STREAM_TOTAL = 80


LADDER_WORDS = 32


class LadderWord(IntEnum):
    """What a model with a ladder counts in its row. Gauges end in ``_NOW``; ``REFUSED`` is the first of many."""

    STEP_NOW = 0  # router.ladder.LadderStep; 0 where the model has none
    SINCE_MS_NOW = 1  # monotonic
    BY_REPLICA = 2  # requests answered, by step
    BY_FALLBACK = 3
    BY_CACHE = 4
    BY_STATIC = 5
    REFUSALS = 6
    ENTRIES_NOW = 7
    BYTES_NOW = 8
    MISSES = 9  # looked for while degraded, and not found
    FILLS = 10
    EVICTED = 11
    REFUSED = 12  # by sidecar.cache.terms.Refused, one word each, up to here:
    SHARED_FILLS = 27  # of the second tier: answers sent there,
    SHARED_DROPPED = 28  # those that were not: too long, too many; and questions that were not: too many
    SHARED_HITS = 29
    SHARED_MISSES = 30  # or no answer in time
    SHARED_REFUSED = 31  # something was there that may not be told by the terms in force


OVERLOAD_NOW: dict[Resource, Scalar] = {
    Resource.MEMORY: Scalar.OVERLOAD_MEMORY_NOW,
    Resource.DESCRIPTORS: Scalar.OVERLOAD_DESCRIPTORS_NOW,
    Resource.LOOP: Scalar.OVERLOAD_LOOP_NOW,
}
"""Where the level of each resource stands."""

SCALAR_WORDS = 192
_MODELS_AT = 16 + SCALAR_WORDS

# model row: outcomes, then the histogram of request durations, then its sum in microseconds; the same of the time to
# the first byte of an answer and of the time in a queue; then other counters
MODEL_OUTCOMES = 48
MODEL_FIRST_BYTE = MODEL_OUTCOMES + _HISTOGRAM + 1
MODEL_QUEUED = MODEL_FIRST_BYTE + _HISTOGRAM + 1
MODEL_COUNTERS = MODEL_QUEUED + _HISTOGRAM + 1
MODEL_WORDS = MODEL_COUNTERS + 160
# of these counters: what waits, what is in flight of the model and may be, then who was turned away, by class
MODEL_QUEUE_NOW = MODEL_COUNTERS + 64
MODEL_ADMITTED_NOW = MODEL_QUEUE_NOW + 1
MODEL_ADMITTED_SHARE = MODEL_QUEUE_NOW + 2
MODEL_TURNED_AWAY = MODEL_QUEUE_NOW + 4
REFUSAL_WORDS = 8
MODEL_TURNED_AWAY_END = MODEL_TURNED_AWAY + 8 * REFUSAL_WORDS
QUEUED_SUM = MODEL_QUEUED + _HISTOGRAM
FIRST_BYTE_SUM = MODEL_FIRST_BYTE + _HISTOGRAM
MODEL_LADDER = MODEL_COUNTERS + 32
"""Where a model's ladder counts: LadderWord."""
# endpoint row: attempt results, gauges, then the histogram of attempt durations, then its sum in microseconds
ENDPOINT_RESULTS = 24
ENDPOINT_IN_FLIGHT = ENDPOINT_RESULTS
ENDPOINT_EJECTIONS = ENDPOINT_RESULTS + 1
ENDPOINT_PASSED_OVER = ENDPOINT_RESULTS + 2
ENDPOINT_LIMIT = ENDPOINT_RESULTS + 7  # on what may be in flight, where that adapts
ENDPOINT_HISTOGRAM = ENDPOINT_RESULTS + 8
ENDPOINT_WORDS = ENDPOINT_HISTOGRAM + _HISTOGRAM + 1

_MODEL_STRIDE = ROW_KEY_WORDS + MODEL_WORDS
_ENDPOINT_STRIDE = ROW_KEY_WORDS + ENDPOINT_WORDS
_ENDPOINTS_AT = _MODELS_AT + MODEL_ROWS * _MODEL_STRIDE
PAGE_WORDS = _ENDPOINTS_AT + ENDPOINT_ROWS * _ENDPOINT_STRIDE
PAGE_BYTES = PAGE_WORDS * 8

assert len(Outcome) <= MODEL_OUTCOMES  # noqa: S101  the layout must be enlarged with the enum
assert len(AttemptResult) <= ENDPOINT_RESULTS  # noqa: S101
assert MODEL_TURNED_AWAY_END <= MODEL_WORDS  # noqa: S101
assert len(Scalar) <= SCALAR_WORDS  # noqa: S101
assert MODEL_LADDER + LADDER_WORDS <= MODEL_WORDS  # noqa: S101

OVERFLOW_KEY = "_other"
"""Row that takes what no longer fits: label sets stay bounded."""


def bucket(seconds: float) -> int:
    """Return the histogram bucket of a duration (the last one is +Inf)."""
    return bisect_left(BUCKETS_S, seconds)


def create(name: str) -> int:
    """Return the descriptor of a new, zeroed metrics page (an anonymous memory file)."""
    fd = os.memfd_create(name, 0)
    os.ftruncate(fd, PAGE_BYTES)
    return fd


class Page:
    """A mapped metrics page. Rows are word offsets, so the hot path is ``words[row + k] += 1`` and nothing else."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, PAGE_BYTES)
        self.words: memoryview = memoryview(self._map).cast("B").cast("Q")
        self._rows: dict[tuple[int, str], int] = {}

    # --- writer -------------------------------------------------------------------------------------------------

    def begin(self, pid: int, now: float) -> None:
        """Take the page over as its one writer: zero the gauges, find the rows that are there."""
        words = self.words
        if words[0] == MAGIC and words[1] == LAYOUT:
            words[self.scalar(Scalar.RESTARTS_TOTAL)] += 1
        words[0], words[1], words[2], words[3] = MAGIC, LAYOUT, pid, int(now * 1e9)
        for member in Scalar:
            if member.name.endswith("_NOW"):
                words[self.scalar(member)] = 0
        for key, row in self.models():
            self._rows[(0, key)] = row
            for word in LadderWord:
                if word.name.endswith("_NOW"):
                    words[row + MODEL_LADDER + word] = 0
            words[row + MODEL_QUEUE_NOW] = words[row + MODEL_ADMITTED_NOW] = words[row + MODEL_ADMITTED_SHARE] = 0
        for key, row in self.endpoints():
            self._rows[(1, key)] = row
            words[row + ENDPOINT_IN_FLIGHT] = 0

    @staticmethod
    def scalar(member: Scalar) -> int:
        """Return the word of a scalar."""
        return 16 + int(member)

    def model_row(self, key: str) -> int:
        """Return the offset of a model's counters, making the row where it is new."""
        return self._row(0, key, _MODELS_AT, _MODEL_STRIDE, MODEL_ROWS)

    def reserve_models(self, keys: Iterable[str]) -> None:
        """Make the rows of these models, so that they have some before others take all there are."""
        for key in keys:
            self.model_row(key)

    def endpoint_row(self, key: str) -> int:
        """Return the offset of an endpoint's counters, making the row where it is new."""
        return self._row(1, key, _ENDPOINTS_AT, _ENDPOINT_STRIDE, ENDPOINT_ROWS)

    def drop_endpoint(self, key: str) -> None:
        """Delete an endpoint's row: its series end."""
        row = self._rows.pop((1, key), None)
        if row is not None and key != OVERFLOW_KEY:
            start = row - ROW_KEY_WORDS
            for word in range(start, start + _ENDPOINT_STRIDE):
                self.words[word] = 0

    def _row(self, kind: int, key: str, at: int, stride: int, rows: int) -> int:
        found = self._rows.get((kind, key))
        if found is not None:
            return found
        for number in range(rows):
            start = at + number * stride
            if self.words[start] == 0:
                if number == rows - 1 and key != OVERFLOW_KEY:
                    return self._row(kind, OVERFLOW_KEY, at, stride, rows)
                raw = key.encode()[: ROW_KEY_WORDS * 8 - 1] or b"?"
                self._map[start * 8 : start * 8 + len(raw)] = raw
                self._rows[(kind, key)] = start + ROW_KEY_WORDS
                return start + ROW_KEY_WORDS
        return self._rows[(kind, OVERFLOW_KEY)]

    # --- reader -------------------------------------------------------------------------------------------------

    def models(self) -> Iterator[tuple[str, int]]:
        """Yield (model, offset of its counters)."""
        return self._keys(_MODELS_AT, _MODEL_STRIDE, MODEL_ROWS)

    def endpoints(self) -> Iterator[tuple[str, int]]:
        """Yield (endpoint id, offset of its counters)."""
        return self._keys(_ENDPOINTS_AT, _ENDPOINT_STRIDE, ENDPOINT_ROWS)

    def _keys(self, at: int, stride: int, rows: int) -> Iterator[tuple[str, int]]:
        for number in range(rows):
            start = at + number * stride
            if self.words[start]:
                raw = self._map[start * 8 : (start + ROW_KEY_WORDS) * 8].rstrip(b"\0")
                yield raw.decode("utf-8", "replace"), start + ROW_KEY_WORDS

    def close(self) -> None:
        """Unmap."""
        self.words.release()
        self._map.close()


def admitted_shares(pages: Sequence[Page], alive: Collection[int]) -> Counter[str]:
    """Return how much of each model with a limit may be in flight, added up over the data processes that are alive.

    One that stands still has its part on its page, while the others have it already. None alive: nobody knows yet.
    """
    shares: Counter[str] = Counter()
    for index, page in enumerate(pages):
        if page.words[0] == MAGIC and (not alive or index in alive):
            for model, row in page.models():
                shares[model] += page.words[row + MODEL_ADMITTED_SHARE]
    return shares
