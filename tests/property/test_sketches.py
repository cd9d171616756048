"""Sketches that sidecars tell each other: merging, the bound of the error, and what comes out of the text again."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from router.model import ReplicaKey, ReplicaSketch
from router.policy import LatencyPolicy
from router.sketches import (
    MAX_BUCKETS,
    Heard,
    Pairs,
    SketchError,
    Telling,
    bounded,
    decode_key,
    decode_sketch,
    encode_key,
    encode_sketch,
    merge,
    most_count,
)
from router.stats import LogBuckets, SketchWindow

ERROR = 0.05
MOST = most_count(60.0)
BUCKETS = LogBuckets(ERROR)
MS = st.floats(0.001, 1e8)
MANY_MS = st.lists(MS, min_size=1, max_size=300)
NEAR_MS = st.lists(st.floats(1.0, 400.0), min_size=1, max_size=300)
"""Of a spread that fits MAX_BUCKETS."""
NAME = st.text(max_size=40)
KEYS = st.builds(ReplicaKey, NAME, NAME, NAME, NAME, st.integers(-1, 64))


def sketch(values: list[float]) -> Pairs:
    return bounded(Counter(BUCKETS.index(value) for value in values))


def quantile(pairs: Pairs, ratio: float) -> float:
    window = SketchWindow(BUCKETS, 60.0, 6, 0.0)
    window.add(pairs, 0.0)
    found = window.quantiles((ratio,))
    assert found is not None
    return found[0]


@given(MANY_MS, MANY_MS, MANY_MS)
def test_merging_takes_any_order_and_any_grouping(a: list[float], b: list[float], c: list[float]) -> None:
    one, two, three = sketch(a), sketch(b), sketch(c)
    assert merge((one, two)) == merge((two, one))
    assert merge((merge((one, two)), three)) == merge((one, merge((two, three)))) == merge((three, one, two))
    assert merge((one, ())) == one
    assert sum(count for _, count in merge((one, two, three))) == len(a) + len(b) + len(c)


@given(NEAR_MS, NEAR_MS, st.sampled_from([0.5, 0.9, 0.95, 0.99, 1.0]))
def test_a_merged_quantile_is_within_the_relative_error_of_the_true_one(
    a: list[float], b: list[float], ratio: float
) -> None:
    values = sorted(a + b)
    true = values[math.ceil(ratio * len(values)) - 1]
    said = quantile(merge((decode_sketch(encode_sketch(dict(sketch(a)), MOST), BUCKETS, MOST), sketch(b))), ratio)
    assert abs(said - true) <= ERROR * true * (1 + 1e-9)


@given(MANY_MS)
def test_too_wide_a_sketch_loses_its_lower_end_and_nothing_else(values: list[float]) -> None:
    counts = Counter(BUCKETS.index(value) for value in values)
    pairs = bounded(counts)
    assert len(pairs) <= MAX_BUCKETS
    assert sum(count for _, count in pairs) == len(values)
    kept = dict(pairs[1:])
    assert all(counts[index] == count for index, count in kept.items())
    assert pairs[-1][0] == max(counts)


@given(st.dictionaries(st.integers(-69, 184), st.integers(1, 50) | st.integers(1, 1 << 39), max_size=200))
def test_what_is_written_is_read_again(counts: dict[int, int]) -> None:
    read = decode_sketch(encode_sketch(counts, MOST), BUCKETS, MOST)
    if sum(counts.values()) <= MOST:
        assert read == bounded(counts)
    assert [index for index, _ in read] == [index for index, _ in bounded(counts)]


@given(KEYS)
def test_so_is_a_name(key: ReplicaKey) -> None:
    assert decode_key(encode_key(key)) == key


@given(st.text(max_size=200) | st.text("0123456789-:,", max_size=60))
def test_any_text_is_read_or_refused_and_what_is_read_is_in_order(text: str) -> None:
    try:
        pairs = decode_sketch(text, BUCKETS, MOST)
    except SketchError:
        return
    assert [index for index, _ in pairs] == sorted({index for index, _ in pairs})
    assert all(count > 0 for _, count in pairs)


@given(st.recursive(st.none() | st.integers() | st.floats() | st.text(max_size=20), st.lists, max_leaves=8))
def test_any_payload_is_taken_or_counted(value: object) -> None:
    heard = Heard("own", LatencyPolicy(), lambda _: True)
    for payload in (repr(value), b"\xff", '{"v":1}', "[" * 5000, '{"v":1,"from":"a","form":[],"rows":{}}'):
        heard.message(payload, 0.0)
    assert sum(heard.refused.values()) == 5
    assert not list(heard.all())


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5), MS), max_size=60), st.integers(1, 3))
def test_whatever_changes_when_everything_is_told_in_the_end(
    samples: list[tuple[int, int, float]], rounds: int
) -> None:
    telling, now = Telling(LatencyPolicy()), 0.0
    windows: dict[ReplicaKey, Counter[int]] = {}
    said: dict[str, str] = {}
    for number in range(rounds):
        for endpoint, model, ms in samples[number::rounds]:
            windows.setdefault(ReplicaKey(f"e{endpoint}", "", f"m{model}", "1", 0), Counter())[BUCKETS.index(ms)] += 1
        now += 5.0
        rows = [ReplicaSketch(key, sum(counts.values()), counts) for key, counts in windows.items()]
        for message in telling.due(rows, now):
            said.update(zip(message[::2], message[1::2], strict=True))
    assert said == {encode_key(key): encode_sketch(counts, MOST) for key, counts in windows.items()}
