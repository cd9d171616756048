"""What two targets' blocks say of their difference, and what they do not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil
from typing import TYPE_CHECKING, Final

from sidecar.traffic.comparing.statistics import Interval, Pooled, interval, newcombe, resamples

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from sidecar.traffic.comparing.blocks import Block

LEAST_BLOCKS: Final = 8
"""Fewer blocks than this say nothing of how much they vary."""
BEYOND: Final = 10
"""Values that must lie beyond a quantile, at each target, before it is judged."""
RESAMPLES: Final = 4000
MOST_NEEDED: Final = 10_000_000
LEAST_FAILED: Final = 5
"""A round of fewer requests may have failed whole by chance."""
ERRORS: Final = "errors"
"""The figure of failures; all others are of requests that did not fail, or of all."""


class Verdict(StrEnum):
    """What is known of a figure."""

    LOWER = "lower"
    """B is lower than A. Of all these figures lower is better."""
    HIGHER = "higher"
    OPEN = "open"
    """The difference, if there is one, does not show in so many requests."""
    UNKNOWN = "unknown"
    """Too few requests to say anything of this figure."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One figure of both targets. ``difference`` is B less A. ``why``: what is missing where nothing is known.

    ``needed``: about how many requests to each would show a difference of the size that was seen; None: more than
    ``MOST_NEEDED``, or it was shown. ``of``: how many requests of A and B the figure is of.
    """

    figure: str
    unit: str
    a: float | None
    b: float | None
    difference: Interval | None
    verdict: Verdict
    why: str = ""
    needed: int | None = None
    of: tuple[int, int] = (0, 0)


def judge(
    a: Sequence[Block], b: Sequence[Block], rng: Random, confidence: float = 0.95, draws: int = RESAMPLES
) -> list[Judged]:
    """Judge P50, P99, errors and, where it was measured, CPU. ``a`` and ``b`` are of the same blocks of a trace.

    ``confidence`` is of all of them together: each has its share of the doubt (Bonferroni). ``draws``: of blocks;
    intervals are as exact as they are many. Where a target answered nothing for a whole block, its other blocks are not
    taken for all of it: quantiles and CPU are not known then, failures are.
    """
    measured = all(block.cpu_s is not None for block in (*a, *b)) and bool(a)
    figures = 4 if measured else 3
    each = 1 - (1 - confidence) / figures
    drawn = resamples(len(a), draws, rng) if len(a) >= LEAST_BLOCKS else []
    silence = "; ".join(told for name, blocks in (("A", a), ("B", b)) if (told := silent(name, blocks)))
    judged = [_quantile(name, q, a, b, drawn, each, silence) for name, q in (("P50", 0.5), ("P99", 0.99))]
    judged.append(_errors(a, b, drawn, each))
    if measured:
        judged.append(_cpu(a, b, drawn, each, silence or _ended(a, b)))
    return judged


def silent(name: str, blocks: Sequence[Block]) -> str:
    """Return in which rounds a target answered nothing; nothing where it always answered something."""
    rounds = [number for number, block in enumerate(blocks, 1) if block.silent]
    return f"{name} answered nothing in {_spans(rounds)}" if rounds else ""


def failed_whole(a: Sequence[Block], b: Sequence[Block]) -> str:
    """Return in which rounds all of B's requests failed and not all of A's; nothing where there are none.

    Of so few rounds a share of failures may not be known, but a target that fails ``LEAST_FAILED`` in a row is down.
    """
    rounds = [
        number
        for number, (one, other) in enumerate(zip(a, b, strict=True), 1)
        if LEAST_FAILED <= other.summary.requests == other.summary.failures
        and one.summary.failures < one.summary.requests
    ]
    return f"every request to B failed in {_spans(rounds)}" if rounds else ""


def _spans(rounds: Sequence[int]) -> str:
    """Return ascending numbers as ``rounds 6, 8 to 10``."""
    spans: list[list[int]] = []
    for number in rounds:
        if spans and number == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], number]
        else:
            spans.append([number])
    told = ", ".join(" to ".join(str(end) for end in span) for span in spans)
    return f"round{'s' if len(rounds) > 1 else ''} {told}"


def _ended(a: Sequence[Block], b: Sequence[Block]) -> str:
    for name, blocks in (("A", a), ("B", b)):
        for number, block in enumerate(blocks, 1):
            if block.ended:
                return f"process {block.ended[0]} of {name} ended in round {number}"
    return ""


def _quantile(
    name: str,
    q: float,
    a: Sequence[Block],
    b: Sequence[Block],
    drawn: list[list[int]],
    confidence: float,
    silence: str,
) -> Judged:
    in_a, in_b = (Pooled([block.summary.latencies_s for block in blocks]) for blocks in (a, b))
    once = [1] * len(a)
    values = in_a.quantile(q, once), in_b.quantile(q, once)
    least = ceil(BEYOND / (1 - q))
    few = min(len(in_a), len(in_b))
    why = silence or (f"{few} answers at one of them, {least} are needed" if few < least else "")

    def difference(weights: Sequence[int]) -> float | None:
        one, other = in_a.quantile(q, weights), in_b.quantile(q, weights)
        return None if one is None or other is None else 1000 * (other - one)

    shown = [None if value is None else 1000 * value for value in values]
    of = len(in_a), len(in_b)
    return _judged(name, "ms", (shown[0], shown[1]), difference, drawn, a, confidence, why, of)


def _errors(a: Sequence[Block], b: Sequence[Block], drawn: list[list[int]], confidence: float) -> Judged:
    """Judge shares of failures: by blocks and, as blocks without any failure vary not at all, also by their number."""

    def difference(weights: Sequence[int]) -> float | None:
        one, other = _share(a, weights), _share(b, weights)
        return None if one is None or other is None else 100 * (other - one)

    once = [1] * len(a)
    shares = [_share(blocks, once) for blocks in (a, b)]
    shown = [None if share is None else 100 * share for share in shares]
    numbers = [
        (sum(block.summary.failures for block in blocks), sum(block.summary.requests for block in blocks))
        for blocks in (a, b)
    ]
    of = numbers[0][1], numbers[1][1]
    found = _judged(ERRORS, "%", (shown[0], shown[1]), difference, drawn, a, confidence, of=of)
    if found.difference is None:
        return found
    by_number = newcombe(numbers[0], numbers[1], confidence)
    wider = Interval(min(found.difference.low, 100 * by_number.low), max(found.difference.high, 100 * by_number.high))
    return _with(found, wider, sum(of) // 2)


def _cpu(a: Sequence[Block], b: Sequence[Block], drawn: list[list[int]], confidence: float, why: str) -> Judged:
    def used(blocks: Sequence[Block], weights: Sequence[int]) -> float | None:
        requests = sum(block.summary.requests * weight for block, weight in zip(blocks, weights, strict=True))
        cpu_s = sum((block.cpu_s or 0.0) * weight for block, weight in zip(blocks, weights, strict=True))
        return 1e6 * cpu_s / requests if requests else None

    def difference(weights: Sequence[int]) -> float | None:
        one, other = used(a, weights), used(b, weights)
        return None if one is None or other is None else other - one

    once = [1] * len(a)
    of = sum(block.summary.requests for block in a), sum(block.summary.requests for block in b)
    return _judged("CPU a request", "µs", (used(a, once), used(b, once)), difference, drawn, a, confidence, why, of)


def _share(blocks: Sequence[Block], weights: Sequence[int]) -> float | None:
    requests = sum(block.summary.requests * weight for block, weight in zip(blocks, weights, strict=True))
    failures = sum(block.summary.failures * weight for block, weight in zip(blocks, weights, strict=True))
    return failures / requests if requests else None


def _judged(
    figure: str,
    unit: str,
    values: tuple[float | None, float | None],
    difference: Callable[[Sequence[int]], float | None],
    drawn: list[list[int]],
    blocks: Sequence[Block],
    confidence: float,
    why: str = "",
    of: tuple[int, int] = (0, 0),
) -> Judged:
    found = None
    if len(blocks) < LEAST_BLOCKS:
        why = f"{len(blocks)} blocks, {LEAST_BLOCKS} are needed"
    elif not why:
        found = interval(difference, drawn, len(blocks), confidence)
        why = "" if found is not None else "too few answers in some blocks"
    known = Judged(figure, unit, *values, None, Verdict.UNKNOWN, why, of=of)
    return known if found is None else _with(known, found, sum(block.summary.requests for block in blocks))


def _with(known: Judged, found: Interval, requests: int) -> Judged:
    """Return the verdict that an interval gives; ``requests`` went to each target."""
    verdict = Verdict.LOWER if found.high < 0 else Verdict.HIGHER if found.low > 0 else Verdict.OPEN
    needed = None
    if verdict is Verdict.OPEN and known.a is not None and known.b is not None and known.a != known.b:
        # Intervals shrink with the root of the number; the farther end must come to 0.
        about = requests * (found.half_width / abs(known.b - known.a)) ** 2
        needed = _rounded(about) if requests < about <= MOST_NEEDED else None
    return replace(known, difference=found, verdict=verdict, why="", needed=needed)


def _rounded(number: float) -> int:
    """Return a number with two digits that count, rounded up: it is a guess."""
    step: int = 10 ** max(0, len(str(int(number))) - 2)
    return ceil(number / step) * step
