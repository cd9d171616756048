"""Comparisons: what is found where there is something, and what is not claimed where there is nothing."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.traffic.comparing.blocks import Block, cut, order, total
from sidecar.traffic.comparing.statistics import (
    Interval,
    Pooled,
    interval,
    newcombe,
    resamples,
    student_quantile,
    wilson,
)
from sidecar.traffic.comparing.verdicts import Judged, Verdict, failed_whole, judge, silent
from sidecar.traffic.requests import Timed
from sidecar.traffic.samples import Ended
from sidecar.traffic.summary import Summary, quantile

BLOCKS = st.lists(st.lists(st.integers(0, 20).map(float), max_size=6), min_size=1, max_size=5)


def block(latencies_s: list[float], failures: int = 0, cpu_s: float | None = None) -> Block:
    ends = Counter({Ended.OK: len(latencies_s), Ended.STATUS_5XX: failures})
    return Block(Summary(latencies_s=latencies_s, ends=ends, errors=Counter({"status 503": failures})), cpu_s)


def noisy(rng: Random, *, blocks: int = 20, each: int = 60, slower: float = 1.0) -> list[Block]:
    """Blocks whose latencies hang together: each block has a speed of its own."""
    made = []
    for _ in range(blocks):
        speed = rng.lognormvariate(0.0, 0.2) * slower
        made.append(block([0.01 * speed * rng.expovariate(1.0) for _ in range(each)], cpu_s=each * 1e-4 * speed))
    return made


def verdicts(judged: list[Judged]) -> dict[str, Verdict]:
    return {one.figure: one.verdict for one in judged}


@given(BLOCKS, st.data(), st.sampled_from([0.0, 0.25, 0.5, 0.9, 0.99, 1.0]))
def test_a_weighted_quantile_is_that_of_repeated_blocks(
    blocks: list[list[float]], data: st.DataObject, q: float
) -> None:
    weights = data.draw(st.lists(st.integers(0, 4), min_size=len(blocks), max_size=len(blocks)))
    repeated = sorted(value for one, weight in zip(blocks, weights, strict=True) for value in one * weight)
    assert Pooled(blocks).quantile(q, weights) == quantile(repeated, q)


def test_resamples_draw_as_many_blocks_as_there_are() -> None:
    drawn = resamples(7, 50, Random(1))
    assert {sum(weights) for weights in drawn} == {7}
    assert drawn == resamples(7, 50, Random(1)) != resamples(7, 50, Random(2))


@pytest.mark.parametrize(
    ("p", "degrees", "expected"), [(0.975, 7, 2.3646), (0.975, 19, 2.0930), (0.995, 9, 3.2498), (0.99375, 19, 2.7632)]
)
def test_quantiles_of_t(p: float, degrees: int, expected: float) -> None:
    assert student_quantile(p, degrees) == pytest.approx(expected, rel=0.01)


def test_intervals_of_shares() -> None:
    assert wilson(0, 10, 0.95) == pytest.approx((0.0, 0.2775), abs=1e-4)  # tabulated values
    assert newcombe((48, 80), (56, 70), 0.95) == pytest.approx((0.0524, 0.3339), abs=1e-4)  # Newcombe's example (a)
    assert newcombe((0, 10), (0, 10), 0.95) == pytest.approx((-0.2775, 0.2775), abs=1e-4)


def test_an_interval_needs_a_figure_in_every_draw() -> None:
    drawn = [[1, 1], [2, 0], [0, 2]]
    assert interval(lambda weights: 1.0 if weights[0] else None, drawn, 2, 0.9) is None
    assert interval(lambda weights: float(weights[0]), drawn, 2, 0.9) == Interval(0.0, 2.0)


@pytest.mark.parametrize(("slower", "verdict"), [(2.0, Verdict.HIGHER), (0.5, Verdict.LOWER)])
def test_a_difference_is_found(slower: float, verdict: Verdict) -> None:
    rng = Random(1)
    judged = judge(noisy(rng), noisy(rng, slower=slower), rng)
    assert verdicts(judged) == {"P50": verdict, "P99": verdict, "errors": Verdict.OPEN, "CPU a request": verdict}
    p50 = judged[0]
    assert p50.a is not None
    assert p50.b is not None
    assert p50.difference is not None
    assert p50.difference.low < p50.b - p50.a < p50.difference.high


def test_alike_targets_are_rarely_told_apart() -> None:
    """40 comparisons of what is the same, each with three figures and a confidence of 90% together."""
    rng = Random(2)
    wrong = 0
    for _ in range(40):
        a = noisy(rng, blocks=10, each=30)
        b = noisy(rng, blocks=10, each=30)
        wrong += any(one.verdict in (Verdict.HIGHER, Verdict.LOWER) for one in judge(a, b, rng, 0.9, draws=400))
    assert wrong <= 8  # 4 are expected; more than 8 come in 2% of such tests


@pytest.mark.parametrize("seed", range(5))
def test_five_milliseconds_are_found_and_none_are_not(seed: int) -> None:
    """About 20 ms an answer, with a drift over the blocks that meets both targets."""
    rng = Random(seed)

    def answers(added_s: float) -> list[Block]:
        return [
            block([0.02 + 0.0002 * number + added_s + rng.expovariate(300.0) for _ in range(100)])
            for number in range(20)
        ]

    a = answers(0.0)
    slower = {one.figure: one for one in judge(a, answers(0.005), rng, draws=500)}
    for figure in ("P50", "P99"):
        assert slower[figure].verdict is Verdict.HIGHER
        assert slower[figure].difference is not None
    assert slower["P50"].difference is not None
    assert slower["P50"].difference.low < 5.0 < slower["P50"].difference.high
    same = judge(a, answers(0.0), rng, draws=500)
    assert {one.verdict for one in same} == {Verdict.OPEN}


def test_a_target_that_was_not_there_is_told_and_not_averaged() -> None:
    rng = Random(5)
    b = noisy(rng, blocks=10, each=200)
    a = [*noisy(rng, blocks=5, each=200), gone(200), *noisy(rng, blocks=1, each=200), *(gone(200) for _ in range(3))]
    assert silent("A", a) == "A answered nothing in rounds 6, 8 to 10"
    assert silent("B", b) == ""
    judged = {one.figure: one for one in judge(a, b, rng, draws=200)}
    for figure in ("P50", "P99", "CPU a request"):
        assert (judged[figure].verdict, judged[figure].why) == (Verdict.UNKNOWN, silent("A", a))
    assert judged["errors"].a == pytest.approx(40.0)
    assert judged["errors"].difference is not None
    both = {one.figure: one for one in judge(a, [*b[:9], gone(200)], rng, draws=200)}
    assert both["P50"].why == "A answered nothing in rounds 6, 8 to 10; B answered nothing in round 10"


def test_rounds_that_failed_whole_at_b_alone_are_told() -> None:
    well, down, few = block([0.01] * 9), block([], failures=9), block([], failures=4)
    b = [well, down, well, few, well, down, down, down]
    assert failed_whole([well] * 8, b) == "every request to B failed in rounds 2, 6 to 8"
    assert failed_whole([*[well] * 7, down], b) == "every request to B failed in rounds 2, 6 to 7"
    assert failed_whole(b, [well] * 8) == ""


def test_cpu_of_a_process_that_ended_cannot_be_told() -> None:
    rng = Random(6)
    a, b = noisy(rng, blocks=8), noisy(rng, blocks=8)
    b[2].ended = (4711,)
    judged = {one.figure: one for one in judge(a, b, rng, draws=200)}
    assert judged["CPU a request"].why == "process 4711 of B ended in round 3"
    assert judged["P50"].verdict is Verdict.OPEN


def gone(requests: int) -> Block:
    """Nobody took the connections."""
    ends = Counter({Ended.NO_CONNECTION: requests})
    return Block(Summary(ends=ends, errors=Counter({"no_connection": requests})), 0.0)


def test_failures_are_judged_by_their_number_too() -> None:
    rng = Random(3)
    none = [block([0.01] * 100) for _ in range(20)]
    one = [*none[1:], block([0.01] * 99, failures=1)]
    many = [block([0.01] * 90, failures=10) for _ in range(20)]
    found = judge(none, one, rng)[2]
    assert (found.verdict, found.a) == (Verdict.OPEN, 0.0)
    assert found.b == pytest.approx(0.05)
    assert found.needed is not None
    assert found.needed > 2000
    assert found.needed % 10 ** (len(str(found.needed)) - 2) == 0  # a guess has two digits that count
    same = judge(none, none, rng)[2]
    assert same.difference is not None
    assert same.difference.high > 0.1  # none of 2,000 failed: up to so many percent may
    assert judge(none, many, rng)[2].verdict is Verdict.HIGHER
    assert judge(many, none, rng)[2].verdict is Verdict.LOWER


def test_what_cannot_be_told() -> None:
    rng = Random(4)
    few = noisy(rng, blocks=8, each=20)
    judged = {one.figure: one for one in judge(few, few, rng)}
    assert judged["P99"].verdict is Verdict.UNKNOWN
    assert judged["P99"].why == "160 answers at one of them, 1000 are needed"
    assert judged["P50"].verdict is Verdict.OPEN
    for one in judge(few[:7], few[:7], rng):
        assert (one.verdict, one.why) == (Verdict.UNKNOWN, "7 blocks, 8 are needed")
    failed = [block([], failures=5) for _ in range(8)]
    judged = {one.figure: one for one in judge(few, failed, rng)}
    assert (judged["P50"].verdict, judged["P50"].b) == (Verdict.UNKNOWN, None)
    assert "CPU a request" not in judged
    assert (judged["P50"].of, judged["errors"].of) == ((160, 0), (160, 40))
    assert judge([], [], rng)[0].verdict is Verdict.UNKNOWN


def test_a_trace_is_cut_into_even_blocks_that_begin_at_zero() -> None:
    requests = [Timed(float(number)) for number in range(10)]
    blocks = list(cut(requests, 10, 4))
    assert [[request.at_s for request in one] for one in blocks] == [
        [0.0, 1.0],
        [0.0, 1.0, 2.0],
        [0.0, 1.0],
        [0.0, 1.0, 2.0],
    ]
    assert [order(number) for number in range(4)] == [(0, 1), (1, 0), (0, 1), (1, 0)]


def test_blocks_add_up() -> None:
    whole = total([block([0.1], 1), block([0.2, 0.3])])
    assert (whole.latencies_s, whole.requests, whole.failures) == ([0.1, 0.2, 0.3], 4, 1)
