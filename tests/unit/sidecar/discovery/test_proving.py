"""When a replica counts as proven by warm-up requests: in order, in time, and since its connections last broke."""

from __future__ import annotations

from math import inf
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.model import State
from sidecar.discovery.proving import BROKE, LATE, NO_ANSWER, NOT_WARMED_YET, PROVEN, RETURNED, WRONG, Proving, judged
from sidecar.settings import Warmup, WarmupRequest
from sidecar.upstreams.adapters import Answer

GOOD = Answer(200, body=b'{"outputs": []}')


def plan(*names: str, requests: tuple[dict[str, Any], ...] = (), **more: Any) -> Warmup:
    listed = [*({"name": name, "path": "/infer", "within_s": 0.1} for name in names), *requests]
    return msgspec.convert({"requests": listed, "retry_s": 1.0, "retry_max_s": 4.0, **more}, Warmup)


class Hand:
    """A replica whose requests are answered by hand."""

    def __init__(self, warmup: Warmup, rng: float = 0.0) -> None:
        self.now = 10.0
        self.proving = Proving(warmup, lambda: rng)
        self.proving.told(ready=True, now=self.now)

    def ask(self, answer: Answer = GOOD, took_s: float = 0.05) -> str | None:
        """Send what is due, and return its class and result; None where nothing is."""
        one = self.proving.take(self.now)
        if one is None:
            return None
        began = self.now
        self.now += took_s
        return f"{one.request.name} {self.proving.took(one, answer, began, self.now)}"


def test_a_late_first_run_proves_nothing_and_the_next_follows_at_once() -> None:
    hand = Hand(plan("b1"))
    assert hand.proving.state == (State.WARMING, NOT_WARMED_YET)
    assert hand.ask(took_s=2.0) == f"b1 {LATE}"
    late = "warm-up b1: took 2 s, more than its within_s of 0.1"
    assert hand.proving.state == (State.WARMING, f"{NOT_WARMED_YET}: {late}"), "no news of one that may serve already"
    assert hand.ask() == f"b1 {PROVEN}"
    assert (hand.proving.state, hand.proving.proven_at) == ((State.WARM, ""), 12.0)
    assert (hand.ask(), hand.proving.next_at()) == (None, inf)


def test_tries_back_off_and_a_second_late_one_does_too() -> None:
    hand = Hand(plan("b1"), rng=0.5)
    waits = []
    for answer, took_s in [(Answer(None, "refused"), 0.0)] * 4 + [(GOOD, 1.0)] * 3:
        assert hand.ask(answer, took_s) is not None
        waits.append(round(hand.proving.next_at() - hand.now, 3))
        assert not waits[-1] or hand.ask() is None, "not before it is due"
        hand.now = max(hand.now, hand.proving.next_at())
    assert waits == [0.9, 1.8, 3.6, 3.6, 0.0, 0.9, 1.8]


def test_nothing_is_sent_to_one_that_says_it_is_not_ready() -> None:
    hand = Hand(plan("b1"))
    hand.proving.told(ready=False, now=hand.now)
    assert (hand.ask(), hand.proving.next_at()) == (None, inf)
    hand.proving.told(ready=True, now=hand.now)
    assert hand.proving.state == (State.WARMING, NOT_WARMED_YET), "nothing was known before either"
    hand.ask()
    warm = [hand.proving.warm]
    hand.proving.told(ready=False, now=hand.now)
    assert [*warm, hand.proving.warm] == [True, False]
    hand.proving.told(ready=True, now=hand.now + 1)
    assert hand.proving.state == (State.WARMING, RETURNED)


def test_every_required_class_must_be_proven_and_the_others_only_add_warmth() -> None:
    hand = Hand(plan("b1", "b8", "b32", required=["b8", "b1"]))
    assert [hand.ask(), hand.proving.warm] == [f"b1 {PROVEN}", False]
    assert hand.proving.warmth == (("b1", 1.0), ("b32", 0.0), ("b8", 0.0))
    assert [hand.ask(), hand.proving.warm] == [f"b8 {PROVEN}", True]
    assert hand.ask(Answer(500)) == f"b32 {WRONG}"
    assert hand.proving.warm, "it is not required"
    hand.now += 1.0
    assert hand.ask() == f"b32 {PROVEN}"
    assert hand.proving.warmth == (("b1", 1.0), ("b32", 1.0), ("b8", 1.0))


def test_so_many_in_a_row_must_succeed() -> None:
    hand = Hand(plan(requests=({"name": "b1", "path": "/", "within_s": 0.1, "count": 3},)))
    hand.ask()
    hand.ask()
    hand.ask(took_s=0.2)
    assert [hand.ask(), hand.ask(), hand.proving.warm] == [f"b1 {PROVEN}", f"b1 {PROVEN}", False]
    assert [hand.ask(), hand.proving.warm] == [f"b1 {PROVEN}", True]


def test_a_break_voids_what_was_begun_before_it_even_while_it_is_under_way() -> None:
    hand = Hand(plan("b1"))
    hand.ask()
    assert hand.proving.broke(hand.now)
    assert hand.proving.state == (State.WARMING, BROKE)
    one = hand.proving.take(hand.now)
    assert one is not None
    began, hand.now = hand.now, hand.now + 0.05
    assert hand.proving.broke(hand.now), "again, while the request is under way"
    hand.proving.took(one, GOOD, began, hand.now)
    assert not hand.proving.warm
    assert not hand.proving.broke(hand.now - 1), "older news"
    hand.now += 0.01
    assert hand.ask() == f"b1 {PROVEN}"
    assert hand.proving.warm


def test_a_doubt_is_cleared_while_it_serves_and_confirmed_it_is_out() -> None:
    hand = Hand(plan("b1"))
    hand.ask()
    hand.proving.doubt(hand.now)
    hand.now += 0.01
    assert hand.proving.warm
    assert hand.ask() == f"b1 {PROVEN}"
    assert (hand.proving.warm, hand.ask()) == (True, None)
    hand.proving.doubt(hand.now)
    hand.now += 0.01
    assert (hand.ask(took_s=0.5), hand.proving.warm) == (f"b1 {LATE}", True), "it may be busy"
    assert (hand.ask(Answer(503)), hand.proving.warm) == (f"b1 {WRONG}", False)


def test_after_a_break_a_late_answer_is_news() -> None:
    hand = Hand(plan("b1"))
    hand.proving.broke(hand.now)
    hand.now += 0.01
    hand.ask(took_s=2.0)
    assert hand.proving.state == (State.WARMING, "warm-up b1: took 2 s, more than its within_s of 0.1")


def test_one_that_did_nothing_for_long_is_proven_again_and_serves_on_through_late_answers() -> None:
    hand = Hand(plan("b1", keep_warm_after_s=60.0))
    assert hand.proving.keep_warm(-inf, hand.now) == inf, "there is nothing to keep"
    hand.ask()
    assert hand.proving.keep_warm(-inf, hand.now) == 70.0, "since the proof"
    assert hand.proving.keep_warm(50.0, hand.now) == 110.0, "since the last answer to anybody"
    hand.now = 110.0
    assert hand.proving.keep_warm(50.0, hand.now) == 170.0
    assert (hand.ask(took_s=1.0), hand.proving.warm) == (f"b1 {LATE}", True)
    assert (hand.ask(), hand.proving.proven_at, hand.ask()) == (f"b1 {PROVEN}", 111.0, None)
    hand.now = 180.0
    assert hand.proving.keep_warm(-inf, hand.now) == 240.0
    assert (hand.ask(Answer(500)), hand.proving.warm) == (f"b1 {WRONG}", False)
    assert Hand(plan("b1")).proving.keep_warm(-inf, 1e9) == inf, "off by default"


def test_another_plan_keeps_what_it_leaves_as_it_was() -> None:
    hand = Hand(plan("b1", "b8"))
    hand.ask()
    hand.ask()
    hand.proving.configure(plan("b1", requests=({"name": "b8", "path": "/other", "within_s": 0.1},)))
    assert hand.proving.state == (State.WARM, "serves as before; warm-up b8: to be proven"), "who serves goes on"
    assert hand.proving.warmth == (("b1", 1.0), ("b8", 1.0))
    assert hand.proving.proven_at == -inf
    assert hand.ask(took_s=0.2) == f"b8 {LATE}", "it may be busy"
    late = "serves as before; warm-up b8: took 0.2 s, more than its within_s of 0.1"
    assert hand.proving.state == (State.WARM, late)
    hand.proving.configure(plan("b1", requests=({"name": "b8", "path": "/third"},)))
    assert hand.ask(Answer(500)) == f"b8 {WRONG}"
    assert hand.proving.state == (State.WARMING, "warm-up b8: HTTP 500, not a 2xx")
    assert hand.proving.warmth == (("b1", 1.0), ("b8", 0.0))
    hand.now += 100.0
    assert hand.ask() == f"b8 {PROVEN}"
    assert hand.proving.state == (State.WARM, "")


@pytest.mark.parametrize("breaks", [True, False])
def test_what_serves_as_before_is_out_once_something_happens_to_it(breaks: bool) -> None:
    hand = Hand(plan("b1"))
    hand.ask()
    hand.proving.configure(plan(requests=({"name": "b1", "path": "/other"},)))
    assert hand.proving.warm
    hand.now = 20.0
    if breaks:
        hand.proving.broke(hand.now)
    else:
        hand.proving.told(ready=False, now=hand.now)
        hand.proving.told(ready=True, now=hand.now)
    assert hand.proving.state == (State.WARMING, BROKE if breaks else RETURNED)


@pytest.mark.parametrize(
    ("expect", "answer", "took_s", "result", "reason"),
    [
        (None, Answer(204), 0.1, PROVEN, ""),
        (None, Answer(None, "refused"), 0.0, NO_ANSWER, "warm-up b1: no answer: refused"),
        (
            None,
            Answer(None, ended="grpc-status 12 (UNIMPLEMENTED): no such method"),
            0.0,
            WRONG,
            "warm-up b1: grpc-status 12 (UNIMPLEMENTED): no such method, not OK",
        ),
        (None, Answer(302), 0.0, WRONG, "warm-up b1: HTTP 302, not a 2xx"),
        ({"status": 400}, Answer(400), 0.0, PROVEN, ""),
        ({"status": 400}, Answer(200), 0.0, WRONG, "warm-up b1: HTTP 200, not the 400 of expect.status"),
        ({"body_contains": "outputs"}, GOOD, 0.0, PROVEN, ""),
        (
            {"body_contains": "outputs"},
            Answer(200),
            0.0,
            WRONG,
            "warm-up b1: HTTP 200, but the body lacks expect.body_contains",
        ),
        (
            {"body_contains": "ok"},
            Answer(200, body=b"ok", cut=True),
            0.0,
            WRONG,
            "warm-up b1: HTTP 200, but more than its max_answer_bytes of 8388608",
        ),
        (None, GOOD, 0.11, LATE, "warm-up b1: took 0.11 s, more than its within_s of 0.1"),
    ],
)
def test_what_an_answer_comes_to(
    expect: dict[str, Any] | None, answer: Answer, took_s: float, result: str, reason: str
) -> None:
    request = msgspec.convert({"name": "b1", "path": "/", "within_s": 0.1, "expect": expect}, WarmupRequest)
    assert judged(request, answer, took_s) == (result, reason)


Step = tuple[str, float]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["good", "late", "bad", "broke", "closed", "doubt", "away", "ready", "wait"]),
            st.floats(0.001, 3.0),
        ),
        max_size=40,
    ),
    st.integers(1, 3),
)
def test_it_is_never_warm_but_for_a_whole_proof_since_the_last_break(steps: list[Step], count: int) -> None:
    requests = tuple({"name": name, "path": "/", "within_s": 0.1, "count": count} for name in ("a", "b", "c"))
    hand = Hand(plan(requests=requests, required=["a", "b"]))
    runs: dict[str, list[float]] = {"a": [], "b": [], "c": []}
    broke_at, ready = -inf, True
    for kind, seconds in steps:
        hand.now += 0.001
        if kind in ("good", "late", "bad"):
            began = hand.now
            took_s = {"good": 0.05, "late": 0.2, "bad": 0.0}[kind]
            done = hand.ask(Answer(500) if kind == "bad" else GOOD, took_s)
            if done is not None:
                name = done.partition(" ")[0]
                proven = len([at for at in runs[name] if at > broke_at]) >= count
                if kind == "good":
                    runs[name] = [*runs[name], began]
                elif kind == "bad" or not proven:  # a late answer takes away no proof that stands
                    runs[name] = []
        elif kind in ("broke", "closed"):
            getattr(hand.proving, kind)(hand.now)
            broke_at = hand.now
        elif kind == "doubt":
            hand.proving.doubt(hand.now)
        elif kind in ("away", "ready"):
            if ready and kind == "away":
                broke_at = hand.now
            ready = kind == "ready"
            hand.proving.told(ready=ready, now=hand.now)
        else:
            hand.now += seconds
        if hand.proving.warm:
            assert ready
            assert all(len([at for at in runs[name] if at > broke_at]) >= count for name in ("a", "b"))
            assert hand.proving.proven_at > broke_at
