"""Whether a new version takes more of a split, all of it, or none: it against the others, by what attempts came to.

What is shown by a bound that holds for any number of samples rolls back; what merely looks bad holds; what looks good
for long enough takes the next step. docs/versions.md has the statistics in words.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import ceil, inf, log
from typing import TYPE_CHECKING, Final

from router.policy import (
    RolloutPolicy,
    ServeRule,
    VersionShare,
)  # in annotations that the compiled build evaluates, or may
from router.stats import LogBuckets, quantiles_of
from router.versions import newest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from router.model import VersionSteering
    from router.policy import ServePolicy

QUANTILE: Final = 0.95
"""Of the latencies, what is compared."""
FIRST_LOOK: Final = 20
"""Attempts on the new version before it is first looked for proof against it: what may open its breaker, too."""
_BISECTIONS: Final = 50


class Verdict(StrEnum):
    """What becomes of the new version's share."""

    HOLD = "hold"
    STEP = "step"
    PROMOTE = "promote"
    ROLL_BACK = "roll_back"


class Finding(StrEnum):
    """What the samples say, and time; the first that applies, in this order."""

    MORE_ERRORS = "more_errors"
    SLOWER = "slower"
    FEW_SAMPLES = "few_samples"
    PERHAPS_MORE_ERRORS = "perhaps_more_errors"
    PERHAPS_SLOWER = "perhaps_slower"
    TOO_SOON = "too_soon"
    AS_GOOD = "as_good"
    AS_GOOD_TO_THE_END = "as_good_to_the_end"


VERDICTS: Final[dict[Finding, Verdict]] = {
    Finding.MORE_ERRORS: Verdict.ROLL_BACK,
    Finding.SLOWER: Verdict.ROLL_BACK,
    Finding.FEW_SAMPLES: Verdict.HOLD,
    Finding.PERHAPS_MORE_ERRORS: Verdict.HOLD,
    Finding.PERHAPS_SLOWER: Verdict.HOLD,
    Finding.TOO_SOON: Verdict.HOLD,
    Finding.AS_GOOD: Verdict.STEP,
    Finding.AS_GOOD_TO_THE_END: Verdict.PROMOTE,
}
"""What follows from each finding."""


@dataclass(slots=True)
class Sample:
    """What the attempts on a version came to since a step began: answers, failures, latencies by log bucket.

    What says nothing of the version (4xx, back-pressure, callers that left) is neither.
    """

    successes: int = 0
    failures: int = 0
    buckets: dict[int, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """How many attempts there were."""
        return self.successes + self.failures

    @property
    def error_ratio(self) -> float:
        """The failed ones' part of them, 0 where there were none."""
        return self.failures / self.size if self.size else 0.0

    def add(self, successes: int, failures: int, buckets: Sequence[tuple[int, int]]) -> None:
        """Take in more of them."""
        self.successes += successes
        self.failures += failures
        for index, count in buckets:
            self.buckets[index] = self.buckets.get(index, 0) + count


@dataclass(frozen=True, slots=True)
class Ruling:
    """What is to be done, why, and the numbers for people. ``looked``: this was one of the step's looks."""

    finding: Finding
    detail: str
    looked: bool

    @property
    def verdict(self) -> Verdict:
        """What is to be done."""
        return VERDICTS[self.finding]


def new_version(policy: ServePolicy) -> str:
    """Return which version of a split is rolled out."""
    rollout = policy.rollout
    named = rollout.version if rollout is not None else ""
    return named or newest(share.version for share in policy.shares) or ""


def shares_at(policy: ServePolicy, step: int) -> tuple[VersionShare, ...]:
    """Return the shares of a split at a step of its rollout: the others divide by their weights what is left."""
    rollout = policy.rollout
    if rollout is None:
        return policy.shares
    new = new_version(policy)
    percent = rollout.steps[step]
    rest = sum(share.weight for share in policy.shares if share.version != new)
    return tuple(
        VersionShare(share.version, percent if share.version == new else (100 - percent) * share.weight / rest)
        for share in policy.shares
        if share.version == new or rest > 0
    )


def in_force(policy: ServePolicy, steering: VersionSteering | None) -> ServePolicy | None:
    """Return what is gone by: who steers a model's versions, else its configuration; None where all serve alike."""
    if steering is not None:
        policy = replace(policy, rule=steering.rule, version=steering.version, shares=steering.shares, rollout=None)
    elif policy.rule is ServeRule.SPLIT and policy.rollout is not None:
        policy = replace(policy, shares=shares_at(policy, 0), rollout=None)
    return None if policy.rule is ServeRule.ANY else policy


def judge(
    policy: RolloutPolicy, step: int, looks: int, elapsed_s: float, new: Sample, old: Sample, buckets: LogBuckets
) -> Ruling:
    """Rule on ``step``, which began ``elapsed_s`` ago and was looked at ``looks`` times; both samples are since then.

    It is looked for proof that the new version is worse when it has 20 attempts, twice, four times as many, and so on:
    each look may be wrong with half the probability of the one before, so all looks of all steps together are with
    ``false_alarm_ratio`` at most.
    """
    looked = new.size >= min(FIRST_LOOK, policy.min_samples) * 2**looks
    detail = _detail(new, old, buckets)
    if looked:
        alarm = policy.false_alarm_ratio / max(1, len(policy.steps) - 1) / 2 ** (looks + 1)
        if has_more_errors(new, old, policy.max_error_ratio_delta, alarm / 2):
            return Ruling(Finding.MORE_ERRORS, detail, looked)
        if is_slower(new, old, policy.max_p95_ratio, alarm / 2, buckets):
            return Ruling(Finding.SLOWER, detail, looked)
    return Ruling(_finding(policy, step, elapsed_s, new, old, buckets), detail, looked)


def _finding(
    policy: RolloutPolicy, step: int, elapsed_s: float, new: Sample, old: Sample, buckets: LogBuckets
) -> Finding:
    if new.size < policy.min_samples or old.size < policy.min_samples:
        return Finding.FEW_SAMPLES
    if new.error_ratio > old.error_ratio + policy.max_error_ratio_delta:
        return Finding.PERHAPS_MORE_ERRORS
    new_ms, old_ms = quantile_ms(new.buckets, buckets), quantile_ms(old.buckets, buckets)
    if new_ms is not None and old_ms is not None and new_ms > old_ms * policy.max_p95_ratio:
        return Finding.PERHAPS_SLOWER
    if elapsed_s < policy.interval_s:
        return Finding.TOO_SOON
    return Finding.AS_GOOD if step + 2 < len(policy.steps) else Finding.AS_GOOD_TO_THE_END


def _detail(new: Sample, old: Sample, buckets: LogBuckets) -> str:
    return f"new: {_text(new, buckets)}; old: {_text(old, buckets)}"


def _text(sample: Sample, buckets: LogBuckets) -> str:
    p95_ms = quantile_ms(sample.buckets, buckets)
    latency = "no latency" if p95_ms is None else f"P95 {p95_ms:.3g} ms"
    return f"{sample.failures} of {sample.size} failed ({sample.error_ratio:.2%}), {latency}"


# --- statistics -------------------------------------------------------------------------------------------------


def has_more_errors(new: Sample, old: Sample, delta: float, alarm: float) -> bool:
    """Return whether the new version surely fails more than ``delta`` more often; wrongly with ``alarm`` at most.

    Sure is what holds between the ends of both ratios' confidence intervals, each missed with half of ``alarm``.
    """
    return least_ratio(new.failures, new.size, alarm / 2) > most_ratio(old.failures, old.size, alarm / 2) + delta


def is_slower(new: Sample, old: Sample, ratio: float, alarm: float, buckets: LogBuckets) -> bool:
    """Return whether the new version's P95 is surely over ``ratio`` x the others'; wrongly with ``alarm`` at most.

    More than 5% of its answers must surely take longer than that many times what surely is no less than the others'
    P95: the value of a rank so high that 95% of values seldom reach it.
    """
    limit_ms = highest_quantile_ms(old.buckets, alarm / 2, buckets) * ratio
    slow = sum(count for index, count in new.buckets.items() if buckets.gamma ** (index - 1) >= limit_ms)
    return least_ratio(slow, sum(new.buckets.values()), alarm / 2) > 1 - QUANTILE


def quantile_ms(counts: dict[int, int], buckets: LogBuckets) -> float | None:
    """Return the P95 of counts by bucket, None where there are none."""
    values = quantiles_of(counts, buckets, (QUANTILE,))
    return None if values is None else values[0]


def highest_quantile_ms(counts: Mapping[int, int], alarm: float, buckets: LogBuckets) -> float:
    """Return what the P95 behind ``counts`` exceeds with probability ``alarm`` at most; infinity where none can be."""
    total = sum(counts.values())
    # so many of them lie below the true P95 with probability ``alarm`` at most
    rank = ceil(total * _further(QUANTILE, 1.0, total, log(1 / alarm)))
    if not total or total * divergence(1.0, QUANTILE) < log(1 / alarm):
        return inf
    index = _at_rank(counts, rank)
    return inf if index is None else float(buckets.gamma**index)


def _at_rank(counts: Mapping[int, int], rank: int) -> int | None:
    """Return the bucket that the value of this rank (the least has 1) lies in."""
    seen = 0
    for index in sorted(counts):
        seen += counts[index]
        if seen >= rank > 0:
            return index
    return None


def least_ratio(hits: int, tries: int, alarm: float) -> float:
    """Return what the probability behind ``hits`` of ``tries`` is less than with probability ``alarm`` at most.

    Chernoff's bound: an average of n reaches x where p is expected, p < x, with exp(-n x divergence(x, p)) at most.
    It holds for every n, and is cautious: the real probability of an error is several times smaller.
    """
    if not hits:
        return 0.0
    return _nearer(hits / tries, 0.0, tries, log(1 / alarm))


def most_ratio(hits: int, tries: int, alarm: float) -> float:
    """Return the same on the other side: what it exceeds with probability ``alarm`` at most."""
    if hits >= tries:
        return 1.0
    return _nearer(hits / tries, 1.0, tries, log(1 / alarm))


def divergence(x: float, p: float) -> float:
    """Return the Kullback-Leibler divergence of one coin from another, in nats."""
    out = 0.0
    if x > 0:
        out += x * log(x / p) if p > 0 else inf
    if x < 1:
        out += (1 - x) * log((1 - x) / (1 - p)) if p < 1 else inf
    return out


def _nearer(x: float, end: float, tries: int, most: float) -> float:
    """Return the p from ``x`` towards ``end`` at which ``tries`` x divergence(x, p) reaches ``most``."""
    inside, outside = x, end
    for _ in range(_BISECTIONS):
        middle = (inside + outside) / 2
        if tries * divergence(x, middle) <= most:
            inside = middle
        else:
            outside = middle
    return outside


def _further(p: float, end: float, tries: int, most: float) -> float:
    """Return the x from ``p`` towards ``end`` at which ``tries`` x divergence(x, p) reaches ``most``."""
    inside, outside = p, end
    for _ in range(_BISECTIONS):
        middle = (inside + outside) / 2
        if tries * divergence(middle, p) <= most:
            inside = middle
        else:
            outside = middle
    return outside
