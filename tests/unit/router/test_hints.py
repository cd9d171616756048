"""What sidecars tell each other of open breakers: messages, what is refused, and what a hint changes (and what not)."""

from __future__ import annotations

import json

import pytest

from router.breaker import Breaker, GuardState
from router.hints import MAX_CHARS, MAX_HINTS, REASONS, HintError, decode, encode
from router.model import BreakerRule, BreakersHinted, EndpointEjected, Hint, Replica
from router.outcomes import AttemptResult
from router.policy import BreakerPolicy, Policies
from tests.support.fleet import Driven, only, record

A = Hint("a", "e1", "m", "1")


def test_a_message_says_what_it_was_made_of_and_nothing_to_its_sender() -> None:
    hints = (A, Hint("b", "", "ünïcode", "2", 3))
    text = encode("one", hints)
    assert decode(text, "two", 7.0) == BreakersHinted(hints, 7.0)
    assert decode(text.encode(), "one", 7.0) is None
    assert decode(encode("one", ()), "two", 7.0) == BreakersHinted((), 7.0)


@pytest.mark.parametrize(("count", "length"), [(MAX_HINTS + 9, 3), (60, 500), (1, 128)])
def test_of_more_than_fit_those_that_opened_last_are_told(count: int, length: int) -> None:
    hints = tuple(Hint(f"{number:03}" + "x" * length, "e", "m", "1") for number in range(count))
    text = encode("one", hints)
    assert len(text) <= MAX_CHARS
    told = decode(text, "two", 1.0)
    assert told is not None
    assert told.hints
    assert told.hints == hints[: len(told.hints)]
    assert len(told.hints) <= MAX_HINTS


def said(**changes: object) -> str:
    return json.dumps({"v": 1, "from": "one", "open": [["a", "e", "m", "1", 0]], **changes})


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ("", "malformed"),
        ("[]", "malformed"),
        ("[" * 10_000, "malformed"),
        ("nonsense", "malformed"),
        ("\ud800", "malformed"),
        (b"\xff\xfe", "malformed"),
        (said(v=2), "version"),
        (said(v=None), "version"),
        (said(v=True), "version"),
        (said(v=1.0), "version"),
        (said(**{"from": 7}), "malformed"),
        (said(open={}), "malformed"),
        (said(open=[7]), "malformed"),
        (said(open=[["a", "e", "m", "1"]]), "malformed"),
        (said(open=[["a", "e", "m", "1", 0, 0]]), "malformed"),
        (said(open=[["a", "e", "m", 1, 0]]), "malformed"),
        (said(open=[["a", "e", "m", "1", 0.5]]), "malformed"),
        (said(open=[["\ud800", "e", "m", "1", 0]]), "malformed"),
        (said(open=[["a", "e", "m", "\udfff", 0]]), "malformed"),
        (said(open=[["a", "e", "m", "1", True]]), "malformed"),
        (said(open=[["a", "e", "m", "1", 1 << 31]]), "malformed"),
        (said(open=[["a", "e", "m", "x" * 513, 0]]), "malformed"),
        (said(open=[["a", "e", "m", "1", 0]] * 65), "over_limit"),
        (" " * (MAX_CHARS + 1), "over_limit"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_reason(payload: str | bytes, reason: str) -> None:
    with pytest.raises(HintError) as caught:
        decode(payload, "two", 1.0)
    assert caught.value.reason == reason
    assert reason in REASONS
    assert str(caught.value)


def test_a_hint_alone_opens_nothing() -> None:
    breaker = Breaker(BreakerPolicy(), 0.0)
    assert not breaker.hinted(1.0, 1.0)
    assert breaker.state is GuardState.CLOSED
    assert not breaker.count(9, 0, 2.0)
    assert not breaker.count(0, 4, 2.0)
    assert breaker.state is GuardState.CLOSED


def test_with_a_hint_half_as_many_calls_are_enough() -> None:
    breaker = Breaker(BreakerPolicy(), 0.0)
    breaker.hinted(1.0, 1.0)
    assert not breaker.count(5, 4, 2.0)
    assert breaker.count(0, 1, 2.0)
    assert breaker.rule is BreakerRule.GENERAL


def test_calls_from_before_confirm_it_at_once() -> None:
    breaker = Breaker(BreakerPolicy(), 0.0)
    assert not breaker.count(5, 5, 1.0)
    assert breaker.hinted(2.0, 2.0)
    assert breaker.state is GuardState.OPEN


def test_a_hint_is_for_half_a_minute() -> None:
    breaker = Breaker(BreakerPolicy(), 0.0)
    breaker.hinted(1.0, 1.0)
    assert (breaker.enough(30.9), breaker.enough(31.0)) == (10, 20)
    assert not breaker.count(5, 5, 31.0)


def test_hints_need_not_be_heeded_and_never_ask_for_more() -> None:
    deaf = Breaker(BreakerPolicy(hint_s=0), 0.0)
    deaf.hinted(1.0, 1.0)
    assert deaf.enough(1.0) == 20
    quick = Breaker(BreakerPolicy(minimum_calls=5), 0.0)
    quick.hinted(1.0, 1.0)
    assert quick.enough(2.0) == 5


def test_in_a_cluster_a_hint_is_for_the_replica_and_the_process_that_it_names() -> None:
    driven = Driven()
    driven.seen(record("a", epoch="e1", replicas=(Replica("m", "1"), Replica("m", "2"))), record("b", epoch="e1"))
    driven.apply(
        BreakersHinted(
            (A, Hint("a", "old", "m", "2"), Hint("nobody", "", "m", "1"), Hint("b", "e1", "n", "1")), driven.now
        )
    )
    assert driven.shared == []
    replicas = driven.cluster.endpoints["a"].candidates
    enough = {key[1]: each.breaker.enough(driven.now) for key, each in replicas.items()}
    assert enough == {"1": 10, "2": 20}
    assert only(driven.cluster.endpoints["b"]).breaker.enough(driven.now) == 20


def test_what_is_open_is_told_the_last_one_first() -> None:
    driven = Driven(policies=Policies(breaker=BreakerPolicy(minimum_calls=2)))
    driven.seen(record("a", epoch="e1"), record("b", epoch="e2"), record("c"))
    assert driven.cluster.open_breakers(driven.now) == ()
    for id_ in "ab":
        for _ in range(2):
            driven.done(driven.to(id_), AttemptResult.SERVER_ERROR, 0.001)
    assert driven.cluster.open_breakers(driven.now) == (Hint("b", "e2", "m", "1"), Hint("a", "e1", "m", "1"))
    assert driven.cluster.open_breakers(driven.now + 61) == ()


def test_own_calls_that_confirm_a_hint_are_told_to_siblings() -> None:
    driven = Driven()
    driven.seen(record("a", epoch="e1"), record("b"))
    for number in range(10):
        driven.done(driven.to("a"), AttemptResult.SERVER_ERROR if number % 2 else AttemptResult.SUCCESS)
    driven.apply(BreakersHinted((A,), driven.now))
    (event,) = driven.shared
    assert isinstance(event, EndpointEjected)
    assert (event.id, event.rule) == ("a", BreakerRule.GENERAL)
