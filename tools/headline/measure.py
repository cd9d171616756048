"""The rounds: each contender in its turn, in an order that is reversed each time: what drifts meets all alike."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sidecar.traffic.summary import LATE_S, Summary, quantile
from tools.headline.figures import Answer
from tools.restart.play import drive

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.traffic.samples import Sample
    from tools.headline.profiles import Contender, Profile


@dataclass
class Played:
    """What each contender's rounds came to, in order, and how late the load was in each, at its 99th percentile."""

    rounds: list[list[list[Answer]]]
    late_ms: list[float] = field(default_factory=list)


def measure(profile: Profile, rounds: int, cores: tuple[int, int], tell: Callable[[str], None]) -> Played:
    """Play a profile. Workers and load run on the first core, proxies on the second.

    Raises:
        Missing: this machine lacks a proxy.
        BenchError: one does not answer.
    """
    played = Played([[] for _ in profile.contenders])
    contenders = list(enumerate(profile.contenders))
    for number in range(rounds):
        turned = replace(profile, plan=replace(profile.plan, seed=profile.plan.seed + number))
        for index, contender in contenders if number % 2 == 0 else reversed(contenders):
            answers, summary = _play(contender, turned, cores)
            played.rounds[index].append(answers)
            lag_s = quantile(sorted(summary.lags_s), 0.99) or 0.0
            played.late_ms.append(1000 * lag_s)
            p99_s = quantile(sorted(summary.latencies_s), 0.99)
            tell(
                f"{profile.name}, round {number + 1}/{rounds}, ({contender.key}) {contender.about}: "
                f"{summary.requests:,} requests, P99 {'-' if p99_s is None else f'{1000 * p99_s:.0f} ms'}, "
                f"{summary.failures:,} failed {dict(summary.errors) or ''}"
                + (f"; the load was late by {1000 * lag_s:.0f} ms" if lag_s > LATE_S else "")
            )
    return played


def _play(contender: Contender, profile: Profile, cores: tuple[int, int]) -> tuple[list[Answer], Summary]:
    answers: list[Answer] = []
    summary = Summary()

    def take(sample: Sample) -> None:
        summary.add(sample)
        answers.append(Answer(sample.intended_s, 1000 * sample.latency_s, sample.failure))

    drive(contender.setup, profile.plan, take, lying=False, cores=cores, script=profile.script)
    return answers, summary
