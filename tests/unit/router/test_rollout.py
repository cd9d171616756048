"""A rollout's rulings in virtual time, with seeded samples: bad is rolled back, good promoted, noise holds."""

from __future__ import annotations

import random

import pytest

from router.policy import RolloutPolicy, ServePolicy, ServeRule, VersionShare
from router.rollout import (
    VERDICTS,
    Finding,
    Sample,
    Verdict,
    divergence,
    highest_quantile_ms,
    judge,
    least_ratio,
    most_ratio,
    new_version,
    quantile_ms,
    shares_at,
)
from router.stats import LogBuckets

BUCKETS = LogBuckets(0.05)
POLICY = RolloutPolicy(interval_s=60.0, min_samples=100)
SPLIT = ServePolicy(
    ServeRule.SPLIT,
    shares=(VersionShare("1", 60), VersionShare("2", 30), VersionShare("3", 5)),
    rollout=POLICY,
)


class Course:
    """A rollout in virtual time: attempts a second, divided by the step's share, each failing or taking a while."""

    def __init__(
        self,
        policy: RolloutPolicy,
        seed: int,
        *,
        errors: tuple[float, float] = (0.001, 0.001),
        median_ms: tuple[float, float] = (20.0, 20.0),
        per_s: int = 100,
    ) -> None:
        self.policy = policy
        self.rng = random.Random(seed)
        self.errors = errors
        self.median_ms = median_ms
        self.per_s = per_s
        self.now = 0.0
        self.findings: list[Finding] = []

    def run(self, most_s: float) -> Verdict:
        """Return what became of it: ROLL_BACK, PROMOTE, or HOLD where time is over."""
        step, looks, since = 0, 0, self.now
        samples = (Sample(), Sample())
        while self.now < most_s:
            self.now += 1.0
            self._second(self.policy.steps[step] / 100, samples)
            ruling = judge(self.policy, step, looks, self.now - since, samples[1], samples[0], BUCKETS)
            self.findings.append(ruling.finding)
            looks += ruling.looked
            if ruling.verdict is Verdict.STEP:
                step, looks, since = step + 1, 0, self.now
                samples = (Sample(), Sample())
            elif ruling.verdict is not Verdict.HOLD:
                return ruling.verdict
        return Verdict.HOLD

    def _second(self, share: float, samples: tuple[Sample, Sample]) -> None:
        for _ in range(self.per_s):
            which = self.rng.random() < share
            if self.rng.random() < self.errors[which]:
                samples[which].add(0, 1, ())
            else:
                ms = self.rng.lognormvariate(0, 0.5) * self.median_ms[which]
                samples[which].add(1, 0, ((BUCKETS.index(ms), 1),))


def test_a_good_version_is_promoted_step_by_step() -> None:
    course = Course(POLICY, 1)
    assert course.run(1000.0) is Verdict.PROMOTE
    assert course.now == 180.0 + 0.0  # three steps of a minute
    assert course.findings.count(Finding.AS_GOOD) == 2
    assert course.findings[-1] is Finding.AS_GOOD_TO_THE_END


def test_a_version_that_fails_is_rolled_back_at_the_first_look() -> None:
    course = Course(POLICY, 2, errors=(0.001, 0.3))
    assert course.run(1000.0) is Verdict.ROLL_BACK
    assert course.findings[-1] is Finding.MORE_ERRORS
    assert course.now <= 30.0  # twenty samples at 5 a second take four


def test_a_version_that_fails_somewhat_more_is_found_out_later() -> None:
    course = Course(POLICY, 3, errors=(0.002, 0.05))
    assert course.run(3000.0) is Verdict.ROLL_BACK
    assert Finding.PERHAPS_MORE_ERRORS in course.findings
    assert Finding.AS_GOOD not in course.findings


def test_a_slow_version_is_rolled_back() -> None:
    course = Course(POLICY, 4, median_ms=(20.0, 60.0))
    assert course.run(3000.0) is Verdict.ROLL_BACK
    assert course.findings[-1] is Finding.SLOWER


def test_noise_holds_until_it_is_over() -> None:
    new, old = Sample(), Sample()
    new.add(98, 2, ((60, 98),))
    old.add(1000, 1, ((60, 1000),))
    ruling = judge(POLICY, 0, 0, 600.0, new, old, BUCKETS)
    assert ruling.finding is Finding.PERHAPS_MORE_ERRORS
    assert ruling.verdict is Verdict.HOLD
    assert ruling.detail.startswith("new: 2 of 100 failed (2.00%), P95 ")
    new.add(300, 0, ((60, 300),))
    assert judge(POLICY, 0, 1, 600.0, new, old, BUCKETS).finding is Finding.AS_GOOD


def test_equals_are_hardly_ever_rolled_back() -> None:
    policy = RolloutPolicy(min_samples=50, interval_s=20.0, max_error_ratio_delta=0.0, max_p95_ratio=1.0)
    ends = [Course(policy, seed, errors=(0.05, 0.05), per_s=40).run(120.0) for seed in range(60)]
    assert ends.count(Verdict.ROLL_BACK) == 0  # of 60, at most 1 in 100 by the bound


@pytest.mark.parametrize(
    ("elapsed_s", "new", "old", "finding"),
    [
        (600.0, (10, 0), (1000, 0), Finding.FEW_SAMPLES),
        (600.0, (1000, 0), (10, 0), Finding.FEW_SAMPLES),
        (600.0, (0, 0), (0, 0), Finding.FEW_SAMPLES),
        (10.0, (100, 0), (100, 0), Finding.TOO_SOON),
        (60.0, (100, 0), (100, 0), Finding.AS_GOOD),
        (60.0, (99, 1), (100, 0), Finding.AS_GOOD),  # within max_error_ratio_delta
        (60.0, (98, 2), (100, 0), Finding.PERHAPS_MORE_ERRORS),
        (0.0, (0, 100), (100, 0), Finding.MORE_ERRORS),
        (0.0, (0, 20), (1000, 0), Finding.MORE_ERRORS),
        (0.0, (10, 10), (1000, 0), Finding.MORE_ERRORS),
        (0.0, (0, 19), (1000, 0), Finding.FEW_SAMPLES),
    ],
)
def test_findings_by_numbers(elapsed_s: float, new: tuple[int, int], old: tuple[int, int], finding: Finding) -> None:
    samples = [Sample(), Sample()]
    for sample, (successes, failures) in zip(samples, (new, old), strict=True):
        sample.add(successes, failures, ((60, successes),) if successes else ())
    assert judge(POLICY, 0, 0, elapsed_s, samples[0], samples[1], BUCKETS).finding is finding


def test_each_finding_has_a_verdict() -> None:
    assert set(VERDICTS) == set(Finding)


def test_bounds_of_ratios_are_missed_as_seldom_as_they_say() -> None:
    rng, alarm, rounds = random.Random(7), 0.05, 2000
    low = high = 0
    for _ in range(rounds):
        hits = sum(rng.random() < 0.2 for _ in range(60))
        low += least_ratio(hits, 60, alarm) > 0.2
        high += most_ratio(hits, 60, alarm) < 0.2
    assert low / rounds <= alarm
    assert high / rounds <= alarm
    assert least_ratio(0, 60, alarm) == 0.0
    assert most_ratio(60, 60, alarm) == 1.0
    assert least_ratio(60, 60, alarm) == pytest.approx(alarm ** (1 / 60))
    assert most_ratio(0, 0, alarm) == 1.0


def test_the_bound_of_a_quantile_is_missed_as_seldom_as_it_says() -> None:
    rng, alarm, missed = random.Random(8), 0.05, 0
    for _ in range(400):
        counts: dict[int, int] = {}
        for _ in range(300):
            index = BUCKETS.index(rng.random() * 100)
            counts[index] = counts.get(index, 0) + 1
        missed += highest_quantile_ms(counts, alarm, BUCKETS) < 95.0
    assert missed / 400 <= alarm
    assert highest_quantile_ms({60: 10}, alarm, BUCKETS) == float("inf")  # ten values say nothing of a P95
    assert highest_quantile_ms({}, alarm, BUCKETS) == float("inf")
    assert quantile_ms({}, BUCKETS) is None


def test_divergence() -> None:
    assert divergence(0.3, 0.3) == 0
    assert divergence(0.5, 0.0) == divergence(0.5, 1.0) == float("inf")
    assert divergence(0.0, 0.5) == divergence(1.0, 0.5) == pytest.approx(0.693147, rel=1e-5)


def test_steps_set_the_new_version_apart_and_leave_the_others_their_proportions() -> None:
    assert new_version(SPLIT) == "3"
    assert shares_at(SPLIT, 1) == (VersionShare("1", 50.0), VersionShare("2", 25.0), VersionShare("3", 25.0))
    assert shares_at(SPLIT, 3) == (VersionShare("1", 0.0), VersionShare("2", 0.0), VersionShare("3", 100.0))
    named = ServePolicy(ServeRule.SPLIT, shares=SPLIT.shares, rollout=RolloutPolicy(version="1"))
    assert new_version(named) == "1"
    without = ServePolicy(ServeRule.SPLIT, shares=SPLIT.shares)
    assert shares_at(without, 0) == SPLIT.shares
