"""What a breaker goes by, or opened on, as a row for explanations and in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from router.breaker import GuardState
from router.model import BreakerRule, Evidence

if TYPE_CHECKING:
    from router.endpoint import Candidate


@dataclass(frozen=True, slots=True)
class BreakerRow:
    """A replica's breaker: its state, the rule that opened it, and what it goes by, or opened on.

    ``why`` is both in words. ``left_s`` is how much longer it stays open; ``trials`` are under way. ``rule``, ``for_s``
    and ``left_s`` are None where they have no meaning.
    """

    state: GuardState
    rule: BreakerRule | None
    why: str
    for_s: float | None
    left_s: float | None
    trials: int
    evidence: Evidence


def breaker_row(candidate: Candidate, now: float) -> BreakerRow:
    """Show a replica's breaker as of ``now``; one whose time is over shows as half open."""
    breaker = candidate.breaker
    state = breaker.state
    if state is GuardState.OPEN and now >= breaker.until:
        state = GuardState.HALF_OPEN
    closed = state is GuardState.CLOSED
    rule = None if closed else breaker.rule
    evidence, trials = breaker.look(now), breaker.under_way
    if state is GuardState.HALF_OPEN:
        if breaker.state is GuardState.OPEN:  # nobody came here since its time was over
            evidence = Evidence(0, 0, 0, 0, trials=True)
        if breaker.elsewhere is not None:
            trials += breaker.elsewhere[0]
            evidence = tried_in_all(evidence, breaker.elsewhere[1])
    if state is not GuardState.OPEN:
        evidence = candidate.measured(evidence)
    return BreakerRow(
        state=state,
        rule=rule,
        why=breaker_text(rule, breaker.evidence if rule is not None and breaker.evidence is not None else evidence),
        for_s=None if closed else max(0.0, now - breaker.since),
        left_s=max(0.0, breaker.until - now) if state is GuardState.OPEN else None,
        trials=trials,
        evidence=evidence,
    )


def tried_in_all(one: Evidence, other: Evidence) -> Evidence:
    """Return how the trials of two processes went together."""
    return Evidence(
        one.calls + other.calls,
        one.failed + other.failed,
        one.unanswered + other.unanswered,
        one.slow + other.slow,
        trials=True,
    )


def breaker_text(rule: BreakerRule | None, evidence: Evidence) -> str:
    """Say in words by which rule a breaker opened and on what; without a rule, what it goes by."""
    calls = f"{evidence.calls} {'trials' if evidence.trials else 'calls'}"
    if rule is BreakerRule.UNAVAILABLE:
        return f"{rule}: {evidence.unanswered} of {calls} found nobody there"
    slow = f"{evidence.slow} of {calls} took over {_ms(evidence.slow_over_ms)}"
    usual = f"P95 {_ms(evidence.p95_ms)}, usually {_ms(evidence.baseline_ms)}"
    if rule is BreakerRule.SURGE:
        return f"{rule}: {slow}; {usual}"
    failed = f"{evidence.failed} of {calls} failed"
    if rule is not None:
        return f"{rule}: {failed}"
    return failed if evidence.slow_over_ms is None else f"{failed}, {slow}; {usual}"


def _ms(value: float | None) -> str:
    return "an unknown time" if value is None else f"{value:.3g} ms"
