"""What faults of signals make of endpoints' words, and what a cluster makes of those."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from router.model import EndpointRecord, EndpointSeen, EndpointsHeard, LoadReport, LoadsReported, Replica, State
from sidecar.faults.rules import FaultRule
from sidecar.faults.signals.altering import Signals, Word
from sidecar.faults.signals.kinds import SIGNALS
from sidecar.faults.signals.terms import TERMS

REPLICA = Replica(
    "m", "1", state=State.WARM, warmth=(("small", 1.0),), content_hash="sha256:aa", generation=3, warm_for_s=9.0
)
RECORD = EndpointRecord(
    "a",
    "http://127.0.0.1:1",
    epoch="e",
    revision=7,
    replicas=(REPLICA, replace(REPLICA, version="2")),
    free_memory_bytes=60,
    total_memory_bytes=100,
    cpu_load=0.5,
    queue_depth=2,
)
OTHER = replace(RECORD, id="b", address="http://127.0.0.1:2")


def rule(kind: str, **scope: Any) -> FaultRule:
    return FaultRule("f", kind, 1.0, until=1000.0, **scope)


def put(*rules: FaultRule, records: tuple[EndpointRecord, ...] = (RECORD, OTHER)) -> Signals:
    signals = Signals()
    signals.put(rules, [Word(record, 10.0, 11.0) for record in records])
    return signals


def told(signals: Signals, record: EndpointRecord = RECORD) -> Word | None:
    return signals.told(Word(record, 20.0, 21.0))


def altered(kind: str, record: EndpointRecord = RECORD, **scope: Any) -> EndpointRecord:
    word = told(put(rule(kind, **scope)), record)
    assert word is not None
    return word.record


@pytest.mark.parametrize("kind", SIGNALS)
def test_nothing_becomes_of_who_is_not_meant(kind: str) -> None:
    signals = put(rule(kind, endpoint="b"))
    seen, heard = EndpointSeen(RECORD, 20.0), EndpointsHeard(("a",), 20.0)
    loads = LoadsReported((("a", LoadReport(0.5)),), 20.0)
    assert told(signals) == Word(RECORD, 20.0, 21.0)
    assert signals.seen(seen) == seen
    assert list(signals.heard(heard, [RECORD])) == [heard]
    assert signals.reported(loads, {"a": RECORD}) == loads


@pytest.mark.parametrize("kind", SIGNALS)
@pytest.mark.parametrize("scope", [{"model": "n"}, {"version": "3"}, {"shard": 1}, {"model": "m", "version": "3"}])
def test_who_does_not_hold_what_is_meant_is_not_meant(kind: str, scope: dict[str, Any]) -> None:
    assert told(put(rule(kind, **scope))) == Word(RECORD, 20.0, 21.0)


def test_warmth_is_lost_of_the_replicas_that_are_meant() -> None:
    first, second = altered("warmth_lost", version="1").replicas
    assert (first.state, first.warmth, first.warm_for_s) == (State.COLD, (("small", 0.0),), 0.0)
    assert second == RECORD.replicas[1]
    assert {one.state for one in altered("warmth_lost").replicas} == {State.COLD}


def test_another_hash_is_told_and_always_the_same() -> None:
    hashes = [one.content_hash for one in altered("wrong_hash").replicas]
    assert hashes == [one.content_hash for one in altered("wrong_hash").replicas]
    assert all(one.startswith("sha256:") and one != "sha256:aa" for one in hashes)
    silent = replace(RECORD, replicas=(replace(REPLICA, content_hash=""),))
    assert altered("wrong_hash", silent) == silent


def test_a_swap_stands_half_way() -> None:
    first, second = altered("half_loaded", version="1").replicas
    assert (first.state, first.generation, first.warmth) == (State.LOADING, 4, (("small", 0.5),))
    assert first.content_hash != REPLICA.content_hash
    assert second == RECORD.replicas[1]


@pytest.mark.parametrize(
    ("memory", "given", "expected"),
    [
        ((60, 100, None), None, (0, 100, None)),
        ((60, 100, None), 0.1, (10, 100, None)),
        ((5, 100, None), 0.1, (5, 100, None)),
        ((60, None, None), 0.5, (30, None, None)),
        ((None, None, 0.9), 0.2, (None, None, 0.2)),
        ((None, None, 0.1), 0.2, (None, None, 0.1)),
        ((None, None, None), 0.2, (None, None, 0.2)),
    ],
)
def test_little_memory_is_free(memory: Any, given: float | None, expected: Any) -> None:
    free, total, ratio = memory
    record = replace(RECORD, free_memory_bytes=free, total_memory_bytes=total, free_memory_ratio=ratio)
    out = altered("memory_pressure", record, free_ratio=given)
    assert (out.free_memory_bytes, out.total_memory_bytes, out.free_memory_ratio) == expected


def test_load_reports_tell_of_little_memory_too() -> None:
    signals = put(rule("memory_pressure", endpoint="a"))
    loads = LoadsReported(
        (("a", LoadReport(0.5, 1, 0.9)), ("b", LoadReport(0.5, 1, 0.9)), ("a", LoadReport(0.5))), 20.0
    )
    assert signals.reported(loads, {"a": RECORD, "b": OTHER}).reports == (
        ("a", LoadReport(0.5, 1, 0.0)),
        ("b", LoadReport(0.5, 1, 0.9)),
        ("a", LoadReport(0.5)),
    )


def test_words_are_late_by_the_skew() -> None:
    signals = put(rule("clock_skew", endpoint="a"))
    assert told(signals) == Word(RECORD, 10.0, 11.0)
    assert signals.seen(EndpointSeen(RECORD, 20.0)) == EndpointSeen(RECORD, 10.0)
    assert list(signals.heard(EndpointsHeard(("a", "b"), 20.0), [RECORD, OTHER])) == [
        EndpointsHeard(("b",), 20.0),
        EndpointsHeard(("a",), 10.0),
    ]
    assert told(put(rule("clock_skew", skew_ms=500.0))) == Word(RECORD, 19.5, 20.5)


@pytest.mark.parametrize("kind", ["telemetry_frozen", "nan_load"])
def test_what_was_said_last_stands_while_words_are_withheld(kind: str) -> None:
    signals = put(rule(kind, endpoint="a"))
    new = replace(RECORD, revision=8, queue_depth=90)
    assert signals.seen(EndpointSeen(new, 20.0)) is None
    assert list(signals.heard(EndpointsHeard(("a", "b"), 20.0), [new, OTHER])) == [EndpointsHeard(("b",), 20.0)]
    assert signals.reported(LoadsReported((("a", LoadReport(0.5)),), 20.0), {"a": new}).reports == ()
    assert told(signals, new) == Word(RECORD, 10.0, 11.0)
    assert signals.put((), [Word(new, 20.0, 21.0), Word(OTHER, 20.0, 21.0)]) == ["a"]
    assert told(signals, new) == Word(new, 20.0, 21.0)


def test_what_is_withheld_from_its_first_word_is_not_heard_of() -> None:
    signals = put(rule("telemetry_frozen"), records=())
    assert signals.seen(EndpointSeen(RECORD, 20.0)) is None
    assert told(signals) is None
    later = (rule("telemetry_frozen"), rule("warmth_lost"))
    signals.put(later, [Word(RECORD, 20.0, 20.0)])
    assert told(signals) is None, "it has never been heard"
    assert signals.put((), [Word(RECORD, 20.0, 20.0)]) == ["a"]


def test_who_is_gone_is_forgotten() -> None:
    signals = put(rule("telemetry_frozen"))
    signals.gone("a")
    assert told(signals) is None
    assert told(signals, OTHER) == Word(OTHER, 10.0, 11.0)


def test_no_load_is_told_of_a_probed_endpoint_whose_page_has_nan() -> None:
    out = altered("nan_load", replace(RECORD, static=True))
    assert (out.cpu_load, out.queue_depth, out.free_memory_ratio) == (None, None, None)


def test_faults_add_up() -> None:
    signals = put(rule("telemetry_frozen"), rule("memory_pressure"), rule("clock_skew", skew_ms=1000.0))
    assert told(signals) == Word(replace(RECORD, free_memory_bytes=0), 9.0, 10.0)


def test_only_those_change_that_are_meant_before_or_after() -> None:
    signals = put(rule("warmth_lost", endpoint="a"))
    words = [Word(RECORD, 10.0, 11.0), Word(OTHER, 10.0, 11.0)]
    same = rule("warmth_lost", endpoint="a")
    assert signals.put((same,), words) == []
    assert signals.put((same, rule("wrong_hash", endpoint="b")), words) == ["b"]
    assert signals.put((rule("wrong_hash", endpoint="b"),), words) == ["a"]
    assert signals.put((rule("delay", endpoint="b"),), words) == ["b"], "of another sort"


def test_every_kind_has_its_terms() -> None:
    assert SIGNALS.keys() == TERMS.keys()
