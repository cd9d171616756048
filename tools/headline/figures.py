"""The arithmetic: answers in blocks, quantiles with their intervals, and what is judged. Pure; chance is an argument.

A block is what falls into one period of a round: a worker's restart and what follows. Blocks are the same requests at
each contender, and are drawn together (docs/replay.md, "Comparing", has the method).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sidecar.traffic.comparing.statistics import Pooled, interval, resamples, wilson
from sidecar.traffic.comparing.verdicts import BEYOND, LEAST_BLOCKS
from sidecar.traffic.summary import quantile
from tools.restart.report import LOWER_BY, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from tools.headline.profiles import Contender, Profile
    from tools.restart.play import Plan

CONFIDENCE = 0.95
DRAWS = 2000
QUANTILES = {"P50": 0.5, "P95": 0.95, "P99": 0.99, "P99.9": 0.999}
MOST_ERRORS = 0.0003
SLICE_S = 0.5
GRID = tuple(1 - 10 ** (-step / 10) for step in range(41))
"""Quantiles that a plot of a distribution has, as far as there are answers for them."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a request that was meant for ``at_s``: how long it took, or how it failed."""

    at_s: float
    took_ms: float
    error: str = ""


@dataclass(frozen=True)
class Figure:
    """A value and where it lies, with a confidence of 95%; no bounds where there are too few blocks to tell."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Row:
    """One contender's figures. ``quantiles_ms`` by name; ``slices_ms``, ``failed`` and ``curve_ms`` are for the plot.

    ``curve_ms`` has the quantiles of ``GRID``. ``calm_ms``: P95 of what was not counted, where that is anything.
    """

    key: str
    about: str
    requests: int
    failures: int
    errors: dict[str, int]
    error_ratio: Figure
    quantiles_ms: dict[str, Figure]
    slices_ms: list[float | None]
    failed: list[float]
    curve_ms: list[float]
    calm_ms: float | None = None


@dataclass(frozen=True)
class Compared:
    """A whole profile: its rows in order, and what was judged of the last one."""

    rows: list[Row]
    verdicts: list[Verdict]
    blocks: int
    bands: list[tuple[float, float]]


class Blocks:
    """One contender's counted answers in blocks, each of which may be there several times."""

    def __init__(self, blocks: Sequence[Sequence[Answer]]) -> None:
        self._answers = [len(block) for block in blocks]
        self._failures = [sum(1 for one in block if one.error) for block in blocks]
        self._took = Pooled([[one.took_ms for one in block if not one.error] for block in blocks])

    def __len__(self) -> int:
        return len(self._answers)

    def quantile(self, q: float, weights: Sequence[int]) -> float | None:
        """Return a quantile of what did not fail, in ms; None where too few lie beyond it."""
        return self._took.quantile(q, weights) if len(self._took) * (1 - q) >= BEYOND else None

    def error_ratio(self, weights: Sequence[int]) -> float | None:
        """Return the share that failed."""
        requests = sum(count * weight for count, weight in zip(self._answers, weights, strict=True))
        failures = sum(count * weight for count, weight in zip(self._failures, weights, strict=True))
        return failures / requests if requests else None

    @property
    def once(self) -> list[int]:
        """The weights with which each block is there once."""
        return [1] * len(self)


def blocks_of(rounds: Sequence[Sequence[Answer]], plan: Plan, from_s: float) -> list[list[Answer]]:
    """Return what was counted, by period and round; the lead, where it counts, is in the first one of its round."""
    periods = len(plan.restarts)
    blocks: list[list[Answer]] = [[] for _ in range(periods * len(rounds))]
    for number, answers in enumerate(rounds):
        for one in answers:
            if one.at_s >= from_s:
                period = int((one.at_s - plan.lead_s) / plan.period_s)
                blocks[number * periods + min(max(0, period), periods - 1)].append(one)
    return blocks


def compare(
    profile: Profile, played: Sequence[Sequence[Sequence[Answer]]], rng: Random, draws: int = DRAWS
) -> Compared:
    """Return the figures of a profile. ``played`` has each contender's rounds, in the contenders' order."""
    counted = [Blocks(blocks_of(rounds, profile.plan, profile.counted_from_s)) for rounds in played]
    drawn = resamples(len(counted[0]), draws, rng) if len(counted[0]) >= LEAST_BLOCKS else []
    rows = [
        _row(contender, profile, rounds, blocks, drawn)
        for contender, rounds, blocks in zip(profile.contenders, played, counted, strict=True)
    ]
    judge = JUDGES[profile.name]
    return Compared(rows, judge(rows, counted, drawn), len(counted[0]), list(profile.bands))


def _row(
    contender: Contender,
    profile: Profile,
    rounds: Sequence[Sequence[Answer]],
    blocks: Blocks,
    drawn: Sequence[Sequence[int]],
) -> Row:
    answers = [one for answers in rounds for one in answers]
    counted = [one for one in answers if one.at_s >= profile.counted_from_s]
    took = sorted(one.took_ms for one in counted if not one.error)
    calm = sorted(one.took_ms for one in answers if not one.error and one.at_s < profile.counted_from_s)
    slices: list[list[Answer]] = [[] for _ in range(math.ceil(profile.plan.duration_s / SLICE_S))]
    for one in answers:
        slices[min(int(one.at_s / SLICE_S), len(slices) - 1)].append(one)
    errors = Counter(one.error for one in counted if one.error)
    known = {name: _figure(partial(blocks.quantile, q), blocks, drawn) for name, q in QUANTILES.items()}
    return Row(
        contender.key,
        contender.about,
        len(counted),
        errors.total(),
        dict(errors),
        _errors(blocks, drawn, errors.total(), len(counted)),
        {name: figure for name, figure in known.items() if figure is not None},
        [quantile(sorted(one.took_ms for one in part if not one.error), profile.told) for part in slices],
        [sum(1 for one in part if one.error) / len(part) if part else 0.0 for part in slices],
        [value for q in GRID if len(took) * (1 - q) >= 1 and (value := quantile(took, q)) is not None],
        quantile(calm, 0.95),
    )


def _figure(
    figure: Callable[[Sequence[int]], float | None], blocks: Blocks, drawn: Sequence[Sequence[int]]
) -> Figure | None:
    value = figure(blocks.once)
    if value is None:
        return None
    found = interval(figure, drawn, len(blocks), CONFIDENCE) if drawn else None
    return Figure(value) if found is None else Figure(value, *found)


def _errors(blocks: Blocks, drawn: Sequence[Sequence[int]], failures: int, requests: int) -> Figure:
    """Return the share of failures, by blocks and by their number: the wider interval holds."""
    if not requests:
        return Figure(0.0)
    by_number = wilson(failures, requests, CONFIDENCE)
    by_block = interval(blocks.error_ratio, drawn, len(blocks), CONFIDENCE) if drawn else None
    found = by_block or by_number
    return Figure(failures / requests, min(found.low, by_number.low), max(found.high, by_number.high))


def _cold(rows: Sequence[Row], counted: Sequence[Blocks], drawn: Sequence[Sequence[int]]) -> list[Verdict]:
    ours = rows[-1]
    found = [_times("P99", counted[0], counted[-1], drawn)]
    found += [_no_higher(name, counted[1], counted[-1], drawn, "(b)") for name in ("P99", "P99.9")]
    return [
        *found,
        Verdict(
            "error rate of (c)",
            f"at most {MOST_ERRORS:.2%}",
            _share(ours),
            ours.failures <= MOST_ERRORS * ours.requests,
        ),
        Verdict("errors of (c), whose model is idempotent", "none", f"{ours.failures:,}", ours.failures == 0),
    ]


def _dependency(rows: Sequence[Row], counted: Sequence[Blocks], drawn: Sequence[Sequence[int]]) -> list[Verdict]:
    ours = rows[-1]
    found = [_no_higher("P95", counted[0], counted[-1], drawn, "(a)")]
    for row in rows[:-1]:
        reached = f"{_share(ours)}, against {_share(row)}"
        met = ours.error_ratio.value < row.error_ratio.value
        found.append(Verdict("failure rate of (c)", f"lower than that of ({row.key})", reached, met))
    return found


JUDGES = {"coldstart": _cold, "dependency": _dependency}


def _times(name: str, other: Blocks, ours: Blocks, drawn: Sequence[Sequence[int]]) -> Verdict:
    def times(weights: Sequence[int]) -> float | None:
        one, we = other.quantile(QUANTILES[name], weights), ours.quantile(QUANTILES[name], weights)
        return one / we if one is not None and we else None

    found = _figure(times, ours, drawn)
    bound = f"at least {LOWER_BY} times lower than that of (a)"
    if found is None:
        return Verdict(f"{name} of (c)", bound, "too few answers to tell", met=False)
    return Verdict(f"{name} of (c)", bound, f"{found.value:.1f} times{_within(found, 1)}", found.value >= LOWER_BY)


def _no_higher(name: str, other: Blocks, ours: Blocks, drawn: Sequence[Sequence[int]], whose: str) -> Verdict:
    def less(weights: Sequence[int]) -> float | None:
        one, we = other.quantile(QUANTILES[name], weights), ours.quantile(QUANTILES[name], weights)
        return None if one is None or we is None else we - one

    found = _figure(less, ours, drawn)
    bound = f"no higher than that of {whose}"
    if found is None:
        return Verdict(f"{name} of (c)", bound, "too few answers to tell", met=False)
    return Verdict(f"{name} of (c)", bound, f"{found.value:+.1f} ms{_within(found, 1, '+')}", found.value <= 0)


def _within(figure: Figure, digits: int, sign: str = "") -> str:
    if figure.low is None or figure.high is None:
        return ""
    return f" ({figure.low:{sign}.{digits}f} to {figure.high:{sign}.{digits}f})"


def _share(row: Row) -> str:
    return f"{row.error_ratio.value:.3%} ({row.failures:,} of {row.requests:,})"
