"""Latencies that sidecars tell each other: what is told when, what is heard of whom, and for how long it counts."""

from __future__ import annotations

import json

import pytest

from router.model import ReplicaKey, ReplicaSketch
from router.policy import LatencyPolicy
from router.sketches import (
    MAX_MESSAGE_BYTES,
    MAX_MESSAGES,
    MAX_SIDECARS,
    Heard,
    SketchError,
    Telling,
    decode_key,
    decode_sketch,
    encode_key,
    encode_sketch,
    form_of,
    most_count,
)
from router.stats import LogBuckets

POLICY = LatencyPolicy()
A = ReplicaKey("a", "e1", "m", "1", 0)
B = ReplicaKey("b", "e1", "m", "1", 0)


def told(telling: Telling, now: float, *rows: ReplicaSketch) -> dict[str, str]:
    out: dict[str, str] = {}
    for message in telling.due(rows, now):
        out.update(zip(message[::2], message[1::2], strict=True))
    return out


def message(sidecar: str, rows: dict[str, str], form: str = form_of(POLICY)) -> str:
    return json.dumps({"v": 1, "from": sidecar, "form": form, "rows": rows})


def hearing() -> Heard:
    return Heard("own", POLICY, {A, B}.__contains__)


def all_of(heard: Heard) -> dict[ReplicaKey, tuple[tuple[tuple[int, int], ...], int]]:
    return {row.key: (row.pairs, row.sidecars) for row in heard.all()}


# --- telling ---------------------------------------------------------------------------------------------------------


def test_only_what_changed_is_told_and_all_of_it_again_in_time() -> None:
    telling = Telling(POLICY)
    assert told(telling, 0.0, ReplicaSketch(A, 1, {5: 2}), ReplicaSketch(B, 1, {7: 1})) == {
        encode_key(A): "5:2",
        encode_key(B): "7:1",
    }
    assert told(telling, 5.0, ReplicaSketch(A, 1, {5: 2}), ReplicaSketch(B, 2, {7: 1, 9: 3})) == {
        encode_key(B): "7:1,2:3"
    }
    assert told(telling, 14.9, ReplicaSketch(A, 1, {5: 2})) == {encode_key(B): ""}
    assert told(telling, 15.0, ReplicaSketch(A, 1, {5: 2})) == {encode_key(A): "5:2"}
    assert told(telling, 16.0, ReplicaSketch(A, 2, {})) == {encode_key(A): ""}
    assert telling.due((), 17.0) == []


def test_all_is_told_anew_to_another_store_or_in_another_form() -> None:
    telling = Telling(POLICY)
    row = ReplicaSketch(A, 1, {5: 2})
    assert told(telling, 0.0, row)
    telling.configure(LatencyPolicy(ewma_decay_s=3.0))
    assert not told(telling, 1.0, row)
    telling.forget()
    assert told(telling, 1.0, row)
    telling.configure(LatencyPolicy(relative_error=0.01))
    assert told(telling, 1.0, row)


def test_a_shorter_window_bounds_what_is_told_by_what_is_heard_under_it() -> None:
    shorter = LatencyPolicy(window_s=6.0)
    heard, telling = Heard("own", shorter, {A, B}.__contains__), Telling(POLICY)
    telling.configure(shorter)
    heard.message(message("other", told(telling, 0.0, ReplicaSketch(A, 1, {5: most_count(60.0)})), telling.form), 0.0)
    assert (heard.complaints, heard.taken) == ([], 1)


def test_more_than_fits_is_told_in_turns_and_messages_are_bounded() -> None:
    telling = Telling(POLICY)
    rows = [
        ReplicaSketch(ReplicaKey(f"endpoint-{n:05}", "e" * 16, "model", "1", 0), 1, {n % 90: 1}) for n in range(3000)
    ]
    seen: set[str] = set()
    rounds = 0
    while len(seen) < len(rows):
        messages = telling.due(rows, rounds * 0.001)
        rounds += 1
        assert 0 < len(messages) <= MAX_MESSAGES
        for one in messages:
            size = len(json.dumps(dict(zip(one[::2], one[1::2], strict=True)), ensure_ascii=False))
            assert size <= MAX_MESSAGE_BYTES
            assert seen.isdisjoint(one[::2])
            seen.update(one[::2])
    assert rounds < 6


# --- hearing ---------------------------------------------------------------------------------------------------------


def test_rows_replace_those_of_the_same_sidecar_and_add_to_those_of_others() -> None:
    heard = hearing()
    heard.message(message("x", {encode_key(A): "5:2"}), 0.0)
    heard.message(message("y", {encode_key(A): "5:1,1:4", encode_key(B): "9:1"}), 1.0)
    heard.message(message("x", {encode_key(A): "5:3"}), 2.0)
    assert all_of(heard) == {A: (((5, 4), (6, 4)), 2), B: (((9, 1),), 1)}
    assert [row.key for row in heard.changed()] == [A, B]
    assert list(heard.changed()) == []
    heard.message(message("y", {encode_key(A): ""}), 3.0)
    assert [(row.key, row.pairs) for row in heard.changed()] == [(A, ((5, 3),))]


def test_own_rows_and_those_of_unknown_replicas_are_passed_over() -> None:
    heard = hearing()
    heard.message(message("own", {encode_key(A): "5:2"}), 0.0)
    heard.message(
        message("x", {encode_key(A._replace(epoch="e2")): "5:2", encode_key(A._replace(shard=1)): "5:2"}), 0.0
    )
    assert all_of(heard) == {}
    assert heard.refused == {}


def test_a_row_counts_for_one_window_and_a_replica_that_left_takes_its_rows_along() -> None:
    known = {A, B}
    heard = Heard("own", POLICY, known.__contains__)
    heard.message(message("x", {encode_key(A): "5:2", encode_key(B): "5:2"}), 0.0)
    heard.message(message("y", {encode_key(A): "5:1"}), 30.0)
    list(heard.changed())
    heard.expire(59.0)
    assert heard.sidecars == 2
    known.discard(B)
    heard.expire(60.0)
    assert [(row.key, row.pairs) for row in heard.changed()] == [(A, ((5, 1),))]
    assert heard.sidecars == 1
    heard.expire(90.0)
    assert [(row.key, row.pairs, row.sidecars) for row in heard.changed()] == [(A, (), 0)]
    assert all_of(heard) == {}


@pytest.mark.parametrize(
    "form", [form_of(LatencyPolicy(relative_error=0.01)), form_of(LatencyPolicy(window_s=30.0)), "2 0.05 60.0", ""]
)
def test_another_form_is_never_merged(form: str) -> None:
    heard = hearing()
    heard.message(message("x", {encode_key(A): "5:2"}, form), 0.0)
    heard.whole("x", {"form": form, encode_key(A): "5:2"}, 0.0)
    heard.whole("x", {encode_key(A): "5:2"}, 0.0)
    assert all_of(heard) == {}
    assert heard.refused == {"form": 3}


def test_what_was_heard_is_dropped_where_the_own_form_changes() -> None:
    heard = hearing()
    heard.whole("x", {"form": heard.form, encode_key(A): "5:2"}, 0.0)
    list(heard.changed())
    heard.configure(LatencyPolicy(ewma_decay_s=1.0))
    assert all_of(heard)
    heard.configure(LatencyPolicy(relative_error=0.01))
    assert [(row.key, row.pairs) for row in heard.changed()] == [(A, ())]


def test_sidecars_are_bounded() -> None:
    heard = hearing()
    for number in range(MAX_SIDECARS + 3):
        heard.message(message(f"s{number}", {encode_key(A): "5:1"}), 0.0)
    assert all_of(heard) == {A: (((5, MAX_SIDECARS),), MAX_SIDECARS)}
    assert heard.refused == {"over_limit": 3}


# --- what cannot be read ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("5", "malformed"),
        ("5:", "malformed"),
        (":1", "malformed"),
        ("5:1,", "malformed"),
        ("5:1;6:1", "malformed"),
        ("5:-1", "malformed"),
        ("5:1.5", "malformed"),
        ("5:nan", "malformed"),
        ("5:inf", "malformed"),
        ("5:\u0661", "malformed"),
        ("1e3:1", "malformed"),
        ("5:1,0:1", "malformed"),
        ("5:1,-2:1", "malformed"),
        ("9999999:1", "malformed"),
        ("5:0", "over_limit"),
        ("186:1", "over_limit"),
        ("-70:1", "over_limit"),
        (f"5:{1 << 40}", "over_limit"),
        ("5:1200001", "over_limit"),
        ("5:1200000,1:1", "over_limit"),
        (",".join(["1:1"] * 65), "over_limit"),
    ],
)
def test_sketches_that_are_refused(text: str, reason: str) -> None:
    with pytest.raises(SketchError) as caught:
        decode_sketch(text, LogBuckets(0.05), most_count(60.0))
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "malformed"),
        ("{}", "malformed"),
        ('["a","e","m","1"]', "malformed"),
        ('["a","e","m","1",0,0]', "malformed"),
        ('["a","e","m","1",true]', "malformed"),
        ('["a","e","m","1",-2]', "malformed"),
        ('["a","e","m","1",1.0]', "malformed"),
        ('["a",null,"m","1",0]', "malformed"),
        (json.dumps(["a" * 129, "e", "m", "1", 0]), "over_limit"),
        (json.dumps(["a", "e", "m" * 257, "1", 0]), "over_limit"),
        ("[" * 1000, "malformed"),
        ("x" * 1025, "over_limit"),
    ],
)
def test_names_that_are_refused(text: str, reason: str) -> None:
    with pytest.raises(SketchError) as caught:
        decode_key(text)
    assert caught.value.reason == reason


def test_a_row_weighs_no_more_than_its_sidecar_can_have_measured_in_a_window() -> None:
    most = most_count(60.0)
    assert most == 60 * 20_000
    buckets = LogBuckets(0.05)
    assert decode_sketch(f"5:{most}", buckets, most) == ((5, most),)
    busy = {5: 60 * most, 40: 39 * most, 90: most, 91: 1}  # what was measured all the same is told in its proportions
    told = dict(decode_sketch(encode_sketch(busy, most), buckets, most))
    assert sum(told.values()) <= most
    assert told.keys() == busy.keys()
    for index in (5, 40, 90):
        assert told[index] / most == pytest.approx(busy[index] / (100 * most), rel=0.001)


def test_a_row_of_more_is_counted_and_the_last_one_stands() -> None:
    heard = Heard("own", LatencyPolicy(), lambda _: True)
    key = ReplicaKey("a", "e1", "m", "1", 0)
    form = heard.form
    heard.whole("other", {"form": form, encode_key(key): "10:5"}, 1.0)
    heard.whole("other", {"form": form, encode_key(key): f"90:{1 << 40}"}, 2.0)
    assert heard.refused == {"over_limit": 1}
    assert [row.pairs for row in heard.all()] == [((10, 5),)]
