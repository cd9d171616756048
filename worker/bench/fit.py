"""Fitting the baseline of start times to a machine's own runs: lasso, from the published coefficients on.

The lasso (scikit-learn's, as strong as cross-validation allows) fits what the published coefficients leave over. So
a feature that the runs say nothing of keeps what is published for it, and one that matters here gets its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from router.baseline_load import PRIOR, Baseline, Term

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker.bench.runs import Run

LEAST_RUNS: Final = 30
FOLDS: Final = 5
HELD_OUT: Final = 4
"""One run of so many is held out."""
WIDER: Final = 1.5
"""How much wider the band is than the largest errors on runs that were held out."""

Numbers = np.ndarray[Any, np.dtype[np.float64]]


class FitError(Exception):
    """There is nothing to fit; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted baseline and how well it does. Errors are mean absolute ones, seconds, on runs that it did not see."""

    baseline: Baseline
    runs: int
    held_out: int
    error_s: float
    error_ratio: float
    """The median of the errors in relation to what a run took."""
    published_error_s: float
    """What the published coefficients err on the same runs, with the intercept that suits them best."""


def fit(runs: Sequence[Run], prior: Baseline = PRIOR) -> Fit:
    """Fit a baseline to ``runs``; the same for the same runs in the same order.

    Raises:
        FitError: fewer than :data:`LEAST_RUNS`, or scikit-learn is not installed.
    """
    if len(runs) < LEAST_RUNS:
        raise FitError(f"{len(runs)} runs: a fit needs {LEAST_RUNS}; collect more with --runs FILE")
    try:
        import sklearn.linear_model  # noqa: F401 - asked for before anything is computed
    except ImportError as error:
        raise FitError(f'{error}: pip install "warmroute[bench]"') from error
    held = [run for number, run in enumerate(runs) if number % HELD_OUT == HELD_OUT - 1]
    seen = [run for number, run in enumerate(runs) if number % HELD_OUT != HELD_OUT - 1]
    first = _fitted(seen, prior)
    errors = [first.predict_s(run.features) - run.seconds for run in held]
    published = [prior.predict_s(run.features) - run.seconds for run in held]
    offset = float(np.median([prior.predict_s(run.features) - run.seconds for run in seen]))
    return Fit(
        _with_band(_fitted(runs, prior), _crossed(runs, prior), len(runs)),
        len(runs),
        len(held),
        float(np.mean(np.abs(errors))),
        float(np.median([abs(error) / run.seconds for error, run in zip(errors, held, strict=True)])),
        float(np.mean(np.abs(np.array(published) - offset))),
    )


def _crossed(runs: Sequence[Run], prior: Baseline) -> list[float]:
    """Return the error on each run of a fit that did not see it: took minus predicted."""
    errors = []
    for fold in range(FOLDS):
        baseline = _fitted([run for number, run in enumerate(runs) if number % FOLDS != fold], prior)
        errors += [run.seconds - baseline.predict_s(run.features) for run in runs[fold::FOLDS]]
    return errors


def _with_band(baseline: Baseline, errors: Sequence[float], count: int) -> Baseline:
    band = (min(0.0, WIDER * min(errors)), max(0.0, WIDER * max(errors)))
    return Baseline(
        baseline.intercept_s,
        baseline.parameters,
        baseline.saved,
        baseline.memory,
        baseline.accelerator_s,
        baseline.cached_s,
        (round(band[0], 4), round(band[1], 4)),
        count,
    )


def _fitted(runs: Sequence[Run], prior: Baseline) -> Baseline:
    from sklearn.linear_model import Lasso

    terms = [
        _wider(prior.parameters, [run.parameters_billions for run in runs]),
        _wider(prior.saved, [run.saved_percent for run in runs]),
        _wider(prior.memory, [run.free_memory_gb for run in runs]),
    ]
    given = np.array([_row(run, terms) for run in runs])
    told = np.array([*(term.coefficient for term in terms), prior.accelerator_s, prior.cached_s])
    took = np.array([run.seconds for run in runs])
    left = took - given @ told
    spread = given.std(axis=0)
    moving = spread > 1e-9
    delta = np.zeros(given.shape[1])
    intercept = float(left.mean())
    if moving.any():
        middle = given.mean(axis=0)
        scaled = (given[:, moving] - middle[moving]) / spread[moving]
        model = Lasso(alpha=_strength(scaled, left), max_iter=100_000).fit(scaled, left)
        delta[moving] = model.coef_ / spread[moving]
        intercept = float(model.intercept_ - middle @ delta)
    found = [round(float(value), 6) for value in told + delta]
    parameters, saved, memory = (Term(term.low, term.high, value) for term, value in zip(terms, found[:3], strict=True))
    return Baseline(round(intercept, 6), parameters, saved, memory, found[3], found[4], runs=len(runs))


def _strength(scaled: Numbers, left: Numbers) -> float:
    """Return the strongest lasso whose error in cross-validation is within one standard error of the best one's.

    The best alone would take chance for law where runs are few.
    """
    from sklearn.linear_model import LassoCV

    if not left.std() > 1e-9:
        return 1.0  # nothing is left over
    crossed = LassoCV(cv=FOLDS, random_state=0, max_iter=100_000).fit(scaled, left)
    errors = crossed.mse_path_.mean(axis=1)
    best = int(errors.argmin())
    bound = errors[best] + crossed.mse_path_[best].std() / math.sqrt(FOLDS)
    return float(crossed.alphas_[errors <= bound].max())


def _wider(term: Term, values: Sequence[float]) -> Term:
    """Return ``term`` over a range that has all ``values``, with the same seconds from one value to another."""
    low, high = min(term.low, *values), max(term.high, *values)
    return Term(low, high, term.coefficient * (high - low) / (term.high - term.low))


def _row(run: Run, terms: Sequence[Term]) -> list[float]:
    values = (run.parameters_billions, run.saved_percent, run.free_memory_gb)
    shares = [(value - term.low) / (term.high - term.low) for value, term in zip(values, terms, strict=True)]
    return [*shares, float(run.accelerator), run.cached_ratio]


def describe(found: Fit, prior: Baseline = PRIOR) -> str:
    """Return the fit for people: coefficients beside the published ones, the held-out error, the band."""
    rows = [("feature", "range", "published", "fitted, s"), ("intercept", "", f"{prior.intercept_s:.2f}", "")]
    rows[1] = (*rows[1][:3], f"{found.baseline.intercept_s:.3f}")
    for name, unit, mine, theirs in (
        ("parameters", "10⁹", found.baseline.parameters, prior.parameters),
        ("saved", "%", found.baseline.saved, prior.saved),
        ("free memory", "GB", found.baseline.memory, prior.memory),
    ):
        shown = f"{theirs.coefficient:.2f} over {theirs.low:g} to {theirs.high:g}"
        rows.append((name, f"{mine.low:.3g} to {mine.high:.3g} {unit}", shown, f"{mine.coefficient:.3f}"))
    rows.append(("accelerator", "0 or 1", "", f"{found.baseline.accelerator_s:.3f}"))
    rows.append(("in the page cache", "0 to 1", "", f"{found.baseline.cached_s:.3f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    table = "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
    low_s, high_s = found.baseline.band_s or (-math.inf, math.inf)
    return (
        f"{table}\n{found.runs} runs, {found.held_out} held out: error {found.error_s:.3f} s on average,"
        f" {found.error_ratio:.1%} in the median; the published coefficients {found.published_error_s:.3f} s\n"
        f"band: {low_s:+.3f} to {high_s:+.3f} s around the prediction\n"
    )
