"""The baseline of start times: the published prior, its ranges, the band."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.baseline_load import MOST_S, PRIOR, Baseline, StartFeatures, Term, remaining_s

FLAT = Term(0, 1, 0)


@pytest.mark.parametrize(
    ("billions", "saved", "free", "seconds"),
    [
        (0.1, 30, 2, 0.69),  # the low end of every range: the intercept alone
        (5, 30, 2, 0.69 + 0.62),
        (0.1, 95, 2, 0.69 - 0.41),
        (0.1, 30, 24, 0.69 - 0.28),
        (0.1, 95, 24, 0.0),
        (2.55, 62.5, 13, 0.69 + (0.62 - 0.41 - 0.28) / 2),
        (0.01, 0, 1, 0.69),  # below a range: its end
        (0.1, 100, 640, 0.0),  # above it: its end
        (9.9, 30, 2, 0.69 + 2 * 0.62),  # but twice the parameters cost twice as much
    ],
)
def test_the_published_prior(billions: float, saved: float, free: float, seconds: float) -> None:
    assert PRIOR.predict_s(StartFeatures(billions, saved, free)) == pytest.approx(seconds, abs=1e-9)


def test_device_and_page_cache_count_where_they_were_fitted() -> None:
    baseline = Baseline(1.0, FLAT, FLAT, FLAT, accelerator_s=0.5, cached_s=-0.25)
    assert baseline.predict_s(StartFeatures(1, 1, 1)) == 1.0
    assert baseline.predict_s(StartFeatures(1, 1, 1, accelerator=True)) == 1.5
    assert baseline.predict_s(StartFeatures(1, 1, 1, cached_ratio=1.0)) == 0.75
    assert baseline.predict_s(StartFeatures(1, 1, 1, cached_ratio=7.0)) == 0.75


@pytest.mark.parametrize("coefficient", [1e308, -1e308, 0.0])
def test_a_prediction_is_a_time_whatever_the_coefficients(coefficient: float) -> None:
    sharp = Term(0.0, 5e-324, coefficient)
    predicted_s = Baseline(1e308, sharp, sharp, sharp, coefficient, coefficient).predict_s(
        StartFeatures(1e6, 100, 1e6, accelerator=True, cached_ratio=1)
    )
    assert 0 <= predicted_s <= MOST_S


def test_the_band_says_what_is_news() -> None:
    baseline = Baseline(1.0, FLAT, FLAT, FLAT, band_s=(-0.2, 0.5))
    assert [baseline.is_outside(1.0, took) for took in (0.79, 0.81, 1.0, 1.49, 1.51)] == [
        True,
        False,
        False,
        False,
        True,
    ]
    assert not PRIOR.is_outside(0.5, 500.0)  # published without a band


@given(st.floats(0, 1e3), st.floats(0, 100), st.floats(0, 1e4), st.floats(0, 1), st.booleans())
def test_a_prediction_is_a_time_and_grows_with_parameters(
    billions: float, saved: float, free: float, cached: float, accelerator: bool
) -> None:
    seconds = PRIOR.predict_s(StartFeatures(billions, saved, free, accelerator, cached))
    assert 0 <= seconds < math.inf
    assert PRIOR.predict_s(StartFeatures(billions + 1, saved, free, accelerator, cached)) >= seconds


def test_what_remains_is_unknown_once_it_is_overdue() -> None:
    assert remaining_s(3.0, 1.0) == 2.0
    assert remaining_s(3.0, 3.0) is None


@pytest.mark.parametrize("numbers", [(1, 1, 0), (2, 1, 0), (0, math.nan, 1), (0, 1, math.inf)])
def test_a_term_without_a_range_is_refused(numbers: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="expected finite numbers, low < high"):
        Term(*numbers)


def test_a_band_upside_down_is_refused() -> None:
    with pytest.raises(ValueError, match=r"band_s \[0.5, 1.0\]"):
        Baseline(1.0, FLAT, FLAT, FLAT, band_s=(0.5, 1.0))
    with pytest.raises(ValueError, match="expected finite"):
        Baseline(math.nan, FLAT, FLAT, FLAT)
