"""Whether a drill's objectives held. Pure: from what the file says and what was seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sidecar.drills import moments
from sidecar.drills.examine import endpoint_meant, fault_meant
from sidecar.drills.scenario import SHARES, Measure
from sidecar.drills.traffic import Figures, attempts_ratio, figures

if TYPE_CHECKING:
    from sidecar.drills.record import Check, Record
    from sidecar.drills.scenario import Abort, Drill, Objective
    from sidecar.drills.traffic import Interval

_OF_FIGURES = {
    Measure.ERROR_RATIO: "error_ratio",
    Measure.P50_MS: "p50_ms",
    Measure.P95_MS: "p95_ms",
    Measure.P99_MS: "p99_ms",
    Measure.MAX_MS: "max_ms",
    Measure.REQUESTS: "requests",
    Measure.CACHE_RATIO: "cache_ratio",
    Measure.DEGRADED_RATIO: "degraded_ratio",
}
_ACCOUNTS = frozenset({Measure.LOST, Measure.DOUBLED, Measure.WRONG, Measure.CLEAN_CUT})


@dataclass(frozen=True, slots=True)
class Result:
    """One objective: what it asks, what was measured (None: nothing to measure), and whether it holds."""

    name: str
    asked: str
    measured: float | None
    shown: str
    passed: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a drill came to."""

    passed: bool
    results: tuple[Result, ...]
    checks: tuple[Check, ...]
    cut_short: str
    left_behind: tuple[str, ...]


def judge(drill: Drill, record: Record) -> Verdict:
    """Return what ``record`` comes to: passed where the script ran to its end, and all that it asks for held."""
    results = tuple(_result(drill, record, objective) for objective in drill.objectives)
    held = all(result.passed for result in results) and all(check.held for check in record.checks)
    passed = held and not record.cut_short and not record.left_behind
    return Verdict(passed, results, record.checks, record.cut_short, record.left_behind)


def failed_on(verdict: Verdict) -> str:
    """Return what a drill failed on, in short; "" where it passed."""
    if verdict.cut_short:
        return verdict.cut_short
    failed = [f"{one.asked}: {one.shown}" for one in verdict.results if not one.passed]
    failed += [f"{check.phase}: {check.text}" for check in verdict.checks if not check.held]
    failed += verdict.left_behind
    return failed[0] + (f", and {len(failed) - 1} more" if len(failed) > 1 else "") if failed else ""


ABORTED = "aborted: "
"""How it begins why a drill was cut short that its own condition ended."""


def to_abort(abort: Abort, seen: Figures) -> str:
    """Return why ``seen``, what callers saw of late, ends the drill; "" where it does not."""
    if seen.requests < abort.least:
        return ""
    value = getattr(seen, _OF_FIGURES[abort.measure])
    if value is None or value <= abort.above:
        return ""
    bound = said(abort.measure, abort.above)
    return f"{abort.measure} {said(abort.measure, value)} over {abort.over_s:g} s, above {bound}"


def measured(drill: Drill, record: Record, objective: Objective) -> float | str | None:
    """Return the value that an objective is about; None, or why, where there is none."""
    measure = objective.measure
    if measure in _OF_FIGURES:
        value = getattr(figures(record, _intervals(record, objective)), _OF_FIGURES[measure])
        return None if value is None else float(value)
    if measure is Measure.ATTEMPTS_RATIO:
        return attempts_ratio(record, _intervals(record, objective))
    if measure in _ACCOUNTS:
        return None if record.accounts is None else float(getattr(record.accounts, measure.value))
    fault = next((one for one in record.faults if one.id == fault_meant(drill, objective)), None)
    if fault is None:
        return "cannot be measured: the fault never began"
    if measure is Measure.RECOVER_S:
        return moments.recover_s(record, fault, objective.slow_ms)
    endpoint = endpoint_meant(drill, objective)
    if measure is Measure.DETECT_S:
        return moments.detect_s(record, fault, endpoint)
    if measure is Measure.EJECT_S:
        return moments.eject_s(record, fault, endpoint)
    return moments.return_s(record, fault, endpoint)


def asked(objective: Objective) -> str:
    """Return an objective in words."""
    measure = objective.measure
    bounds = []
    if objective.at_most is not None:
        bounds.append(f"at most {said(measure, objective.at_most)}")
    if objective.at_least is not None:
        bounds.append(f"at least {said(measure, objective.at_least)}")
    of = [f"during {', '.join(objective.during)}"] if objective.during else []
    of += [f"of fault {objective.fault}"] if objective.fault else []
    of += [f"of {objective.endpoint}"] if objective.endpoint else []
    return " ".join((measure.value, " and ".join(bounds), *of))


def said(measure: Measure, value: float | None) -> str:
    """Return a value with its unit."""
    if value is None:
        return "never" if measure.endswith("_s") else "nothing to measure"
    if measure in SHARES:
        return f"{100 * value:.4g}%"
    if measure.endswith("_ms"):
        return f"{value:.4g} ms"
    if measure.endswith("_s"):
        return f"{value:.3g} s"
    return f"{value:.4g}" if measure is Measure.ATTEMPTS_RATIO else f"{value:.0f}"


def _result(drill: Drill, record: Record, objective: Objective) -> Result:
    found = measured(drill, record, objective)
    value = None if isinstance(found, str) else found
    most, least = objective.at_most, objective.at_least
    passed = value is not None and (most is None or value <= most) and (least is None or value >= least)
    text = asked(objective)
    shown = found if isinstance(found, str) else said(objective.measure, value)
    return Result(objective.measure.value, text, value, shown, passed)


def _intervals(record: Record, objective: Objective) -> list[Interval]:
    if not objective.during:
        return [(0.0, record.length_s)]
    wanted = set(objective.during)
    return [(span.begin, span.end) for span in record.spans if span.name in wanted]
